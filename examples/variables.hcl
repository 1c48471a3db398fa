# A job computed from variables: muster job run --var greeting=Hi --var 'people=["Ada"]' examples/variables.hcl
variable "greeting" {
  type        = string
  description = "greeting of each person"
  default     = "Hello"

  validation {
    condition     = strlen(var.greeting) < 20
    error_message = "a greeting is short"
  }
}

variable "people" {
  type    = list(string)
  default = ["Grace", "Edsger"]
}

locals {
  words = { for name in var.people : lower(name) => "${var.greeting}, ${name}!" }
}

job "greet" {
  datacenters = ["*"]
  type        = "batch"

  meta {
    people = join(",", var.people)
  }

  dynamic "group" {
    for_each = local.words
    labels   = [group.key]

    content {
      task "say" {
        driver = "native"

        config {
          command = "/bin/echo"
          args    = ["${group.value}", "I am ${NOMAD_ALLOC_NAME}."]
        }

        resources {
          cpu    = 50
          memory = 16
        }
      }
    }
  }
}
