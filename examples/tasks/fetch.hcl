# A one-off task that brings its program and sends what it made. The node fetches and sends: the task needs no network.
#
#   muster task run examples/tasks/fetch.hcl
#
# A node speaks to itself only where it is told to, as `muster dev` does: plugin "native" { config {
# allow_local_transfers = true } }. It gives files of its own, by file:///srv/artifacts/app.tgz, only from directories
# that it is told: allow_downloads = ["/srv/artifacts"].

task "fetch" {
  domain    = "examples"
  rootfs    = "preloaded:host"
  memory_mb = 32
  disk_mb   = 10 # also what a download may unpack to

  action {
    serial {
      actions = [
        { download = { artifact = "app", from = "http://127.0.0.1:8000/app.tgz", to = "/local/app", user = "vcap" } },
        { run = { path = "/local/app/bin/work", args = ["/local/result"], user = "vcap" } },
        { upload = { artifact = "result", from = "/local/result", to = "http://127.0.0.1:8000/result", user = "vcap" } },
      ]
    }
  }
}
