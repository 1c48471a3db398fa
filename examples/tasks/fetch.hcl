# A one-off task that downloads its program and uploads its result. The node transfers both: the task needs no network.
#
#   muster task run examples/tasks/fetch.hcl
#
# Transfers from and to the node itself need plugin "native" { config { allow_local_transfers = true } }. `muster dev`
# sets it. Files of the node, such as file:///srv/artifacts/app.tgz, need their directory in the same block:
# allow_downloads = ["/srv/artifacts"].

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
