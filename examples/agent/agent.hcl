# The agent's configuration: `muster agent --config examples/agent/agent.hcl`. Every name is a flag of `muster agent`,
# with underscores. A flag wins over the file.

servers    = ["127.0.0.1:4647"]
datacenter = "dc1"
class      = "general"

meta {
  rack = "r1"
}

# Garbage collection of finished allocations, with Nomad's names and defaults. Without pressure none is destroyed.
# client {
#   gc_interval              = "1m"
#   gc_disk_usage_threshold  = 80
#   gc_inode_usage_threshold = 70
#   gc_max_allocs            = 50
#   gc_parallel_destroys     = 2
# }

# Enforcement of `ephemeral_disk`. With `auto` the file system refuses further writes, or the allocation is stopped. With
# `off` nothing is enforced, as with Nomad.
# client {
#   disk_enforcement = "auto"
# }

# Subnet of allocations in network mode `bridge`, with Nomad's name and default.
# client {
#   bridge_network_subnet = "172.26.64.0/20"
# }

# Plugins and network configurations of CNI, for jobs with `mode = "cni/NAME"`, under Nomad's names. `cni_path` may name
# directories with `:` between them.
# client {
#   cni_path       = "/opt/cni/bin:/usr/libexec/cni"
#   cni_config_dir = "/opt/cni/config"
# }

# Range of user ids for tasks that name no user, for drivers with dynamic users. Names and defaults are Nomad's.
# client {
#   users {
#     dynamic_user_min = 80000
#     dynamic_user_max = 89999
#   }
# }

# Directories of the machine in the root of tasks, read-only, for drivers that change the root. The default is shown.
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

# Resources that placement reserves for the machine, with Nomad's names. `memory` also limits all tasks together.
# client {
#   reserved {
#     cpu            = 500
#     memory         = 512
#     disk           = 1024
#     cores          = "0"
#     reserved_ports = "22,8000-8010"
#   }
# }

# Directory of task drivers. Every executable in it runs as a plugin, Nomad's included.
# plugin_dir = "/usr/lib/muster/plugins"

# Configuration of a driver, by its name or the name of its file. Its own schema lists the fields.
# plugin "docker" {
#   args = ["--log-level", "info"]
#   config {
#     allow_privileged = false
#   }
# }

# Allowances of the native driver. Everything that is not named is forbidden.
# plugin "native" {
#   config {
#     allow_paths     = ["/srv/roots"]      # paths that jobs may mount or use as a root; ":rw" also allows writing
#     allow_downloads = ["/srv/artifacts"]  # directories for downloads by file: URLs
#     allow_uploads   = ["/srv/results"]    # directories for uploads by file: URLs
#     allow_local_transfers = true          # downloads from this machine and uploads to it
#     ca_file         = "/etc/muster/ca.pem" # for transfers by HTTPS; the machine's certificates by default
#     result_bytes_max = 51200              # bytes kept of a one-off task's result file; 10240 by default
#   }
# }
