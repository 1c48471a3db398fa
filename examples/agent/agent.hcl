# The agent's configuration: `muster agent --config examples/agent/agent.hcl`. Every name is a flag of
# `muster agent`, with underscores; a flag that is given stands above the file.

servers    = ["127.0.0.1:4647"]
datacenter = "dc1"
class      = "general"

meta {
  rack = "r1"
}

# Task drivers besides the native one: every executable in it, Nomad's own included.
# plugin_dir = "/usr/lib/muster/plugins"

# What a driver is told, by its name or that of its file. Its own schema says what may stand here.
# plugin "docker" {
#   args = ["--log-level", "info"]
#   config {
#     allow_privileged = false
#   }
# }
