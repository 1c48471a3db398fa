# Exceeds its memory limit: the kernel kills it, and the task's events say so.
job "hungry" {
  datacenters = ["*"]
  type        = "batch"

  group "hungry" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "hungry" {
      driver = "native"

      config {
        command = "/usr/bin/perl"
        args    = ["-e", "print \"taking memory\\n\"; my @a; push @a, \"x\" x (1 << 20) while 1;"]
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
