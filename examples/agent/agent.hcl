# The agent's configuration: `muster agent --config examples/agent/agent.hcl`. Every name is a flag of
# `muster agent`, with underscores; a flag that is given stands above the file.

servers    = ["127.0.0.1:4647"]
datacenter = "dc1"
class      = "general"

meta {
  rack = "r1"
}

# When finished allocations are destroyed, under Nomad's names and with its defaults. Without pressure
# nothing is.
# client {
#   gc_interval              = "1m"
#   gc_disk_usage_threshold  = 80
#   gc_inode_usage_threshold = 70
#   gc_max_allocs            = 50
#   gc_parallel_destroys     = 2
# }

# What becomes of an allocation that writes more than its `ephemeral_disk`: it is limited by the file system or stopped
# (`auto`), or nothing (`off`), as with Nomad.
# client {
#   disk_enforcement = "auto"
# }

# Where allocations with a network of their own (`mode = "bridge"`) have their addresses, under Nomad's name and with its
# default.
# client {
#   bridge_network_subnet = "172.26.64.0/20"
# }

# Plugins and network configurations of CNI, for jobs with `mode = "cni/NAME"`, under Nomad's names. `cni_path` may name
# directories with `:` between them.
# client {
#   cni_path       = "/opt/cni/bin:/usr/libexec/cni"
#   cni_config_dir = "/opt/cni/config"
# }

# Users of tasks that name none, for drivers that run tasks as users that no database knows, under Nomad's names and with
# its defaults.
# client {
#   users {
#     dynamic_user_min = 80000
#     dynamic_user_max = 89999
#   }
# }

# What of the machine tasks of drivers that change their root see in it, read-only, under Nomad's name; shown is its default.
# client {
#   chroot_env {
#     "/bin"                 = "/bin"
#     "/etc"                 = "/etc"
#     "/lib"                 = "/lib"
#     "/lib32"               = "/lib32"
#     "/lib64"               = "/lib64"
#     "/run/resolvconf"      = "/run/resolvconf"
#     "/run/systemd/resolve" = "/run/systemd/resolve"
#     "/sbin"                = "/sbin"
#     "/usr"                 = "/usr"
#   }
# }

# What of the machine tasks do not get, under Nomad's names: placement leaves it alone, and with `memory` all tasks
# together cannot have more than the rest.
# client {
#   reserved {
#     cpu            = 500
#     memory         = 512
#     disk           = 1024
#     cores          = "0"
#     reserved_ports = "22,8000-8010"
#   }
# }

# Task drivers besides the native one: every executable in it, Nomad's own included.
# plugin_dir = "/usr/lib/muster/plugins"

# What a driver is told, by its name or that of its file. Its own schema says what may stand here.
# plugin "docker" {
#   args = ["--log-level", "info"]
#   config {
#     allow_privileged = false
#   }
# }

# What tasks of the native driver may have of this machine. What is not said is not allowed.
# plugin "native" {
#   config {
#     allow_paths     = ["/srv/roots"]      # to be mounted, or to be a root; with ":rw" also to be written to
#     allow_downloads = ["/srv/artifacts"]  # to be downloaded by file: URLs, whoever may read them
#     allow_uploads   = ["/srv/results"]    # where file: URLs of uploads may lead to
#     allow_local_transfers = true          # downloads from this machine and uploads to it
#     ca_file         = "/etc/muster/ca.pem" # for transfers by HTTPS; the machine's certificates unless said
#     result_bytes_max = 51200              # bytes kept of a one-off task's result file; 10240 unless given
#   }
# }
