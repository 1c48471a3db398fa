# A one-off task: it runs at most once, and its result comes back.
#
#   muster task run examples/tasks/hello.hcl

task "hello" {
  domain      = "examples"
  rootfs      = "preloaded:host"
  memory_mb   = 32
  disk_mb     = 10
  result_file = "/tmp/result"

  action {
    serial {
      actions = [
        { run = { path = "/bin/sh", args = ["-c", "echo working; uname -sr > /tmp/result"], user = "vcap" } },
        { timeout = {
            timeout_ms = 5000
            action     = { run = { path = "/bin/sh", args = ["-c", "date -u >> /tmp/result"], user = "vcap" } }
        } },
      ]
    }
  }
}
