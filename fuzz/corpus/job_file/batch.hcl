# A batch job: counts, says so, and ends.
job "count" {
  datacenters = ["*"]
  type        = "batch"

  group "count" {
    task "count" {
      driver = "native"

      config {
        command = "/bin/sh"
        args    = ["-c", "i=1; while [ $i -le 1000 ]; do echo line $i; i=$((i+1)); done; echo done >&2"]
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
