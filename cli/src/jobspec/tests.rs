//! Job files in, JSON or faults out.

use expect_test::{Expect, expect};

use super::parse;

fn refused(text: &str, expected: Expect) {
    let error = parse("job.hcl", text).expect_err("is faulty");
    expected.assert_eq(&error.to_string());
}

#[test]
fn a_whole_job_becomes_the_api_body() {
    let job = parse(
        "web.hcl",
        r#"
job "web" {
  datacenters = ["dc1"]
  meta { team = "core" }
  constraint {
    attribute = "${attr.cpu.arch}"
    value     = "amd64"
  }
  group "api" {
    count = 2
    network {
      port "http" { static = 8080 }
      port "admin" {}
    }
    restart {
      attempts = 1
      delay    = "1s"
    }
    task "server" {
      driver = "native"
      config {
        command = "/bin/sh"
        args    = ["-c", "serve ${NOMAD_PORT_http}"]
      }
      env = { A = "1", B = 2 }
      resources {
        cpu    = 200
        memory = 64
      }
      kill_timeout = "1m30s"
    }
  }
}
"#,
    )
    .unwrap();

    let group = &job["TaskGroups"][0];
    let task = &group["Tasks"][0];
    assert_eq!(job["ID"], "web");
    assert_eq!(job["Meta"]["team"], "core");
    assert_eq!(job["Constraints"][0]["LTarget"], "${attr.cpu.arch}");
    assert_eq!(job["Constraints"][0]["Operand"], "=");
    assert_eq!(group["Networks"][0]["ReservedPorts"][0]["Value"], 8080);
    assert_eq!(group["Networks"][0]["DynamicPorts"][0]["Label"], "admin");
    assert_eq!(group["RestartPolicy"]["Delay"], 1_000_000_000);
    assert_eq!(task["Config"]["args"][1], "serve ${NOMAD_PORT_http}");
    assert_eq!(task["Env"]["B"], "2");
    assert_eq!(task["KillTimeout"], 90_000_000_000_u64);
}

#[test]
fn an_unknown_field_is_placed_and_the_nearest_named() {
    refused(
        "job \"web\" {\n  group \"g\" {\n    coutn = 2\n  }\n}\n",
        expect!["job.hcl:3:5: unknown field `coutn` in `group` (did you mean `count`?)"],
    );
}

#[test]
fn a_field_of_nomad_is_refused_by_name() {
    refused(
        "job \"web\" {\n  periodic {}\n}\n",
        expect![
            "job.hcl:2:3: `periodic` in `job` is not supported by this version of Muster yet (leave it out; nothing is ignored silently)"
        ],
    );
}

#[test]
fn a_wrong_type_says_what_was_expected() {
    refused(
        "job \"web\" {\n  priority = \"high\"\n}\n",
        expect!["job.hcl:2:14: `priority` must be a whole number, not a text"],
    );
}

#[test]
fn every_fault_is_returned() {
    refused(
        "job \"web\" {\n  typ = \"batch\"\n  group {\n    task \"t\" {\n      kill_timeout = \"soon\"\n    }\n  }\n}\n",
        expect![[r#"
            job.hcl:2:3: unknown field `typ` in `job` (did you mean `type`?)
            job.hcl:3:3: `group` needs a name (write group "name" { … })
            job.hcl:5:22: `kill_timeout`: `soon` is not a duration: write it as 30s, 500ms or 1h30m"#]],
    );
}

#[test]
fn broken_syntax_is_placed() {
    let error = parse("job.hcl", "job \"web\" {\n  group = \n}\n").expect_err("is faulty");

    assert!(error.to_string().starts_with("job.hcl:2:"), "{error}");
}

#[test]
fn a_variable_is_refused_with_advice() {
    refused(
        "job \"web\" {\n  region = var.region\n}\n",
        expect![
            "job.hcl:2:12: `region`: a reference to a variable or local is not supported yet (write the value itself, or a runtime reference in quotes such as \"${NOMAD_PORT_http}\")"
        ],
    );
}

#[test]
fn a_file_without_a_job_says_so() {
    refused(
        "\n",
        expect![[r#"job.hcl:1:1: holds no `job` block (start with job "name" { … })"#]],
    );
}

#[test]
fn json_in_the_form_of_the_api_is_taken() {
    let job = parse("job.json", r#"{"Job": {"ID": "web"}}"#).unwrap();

    assert_eq!(job["ID"], "web");
}

#[test]
fn broken_json_is_placed() {
    let error = parse("job.json", "{\n  \"Job\": {,}\n}").expect_err("is faulty");

    assert!(error.to_string().starts_with("job.json:2:"), "{error}");
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow() {
    let text = format!(
        "job \"web\" {{\n  x = {}{}\n}}",
        "[".repeat(10_000),
        "]".repeat(10_000)
    );

    assert!(parse("job.hcl", &text).is_err());
}

#[test]
fn the_example_jobs_are_accepted() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // Examples of other things than jobs.
            continue;
        }

        let job = super::read(&path).unwrap_or_else(|error| panic!("{error}"));

        assert!(
            job["TaskGroups"][0]["Tasks"][0]["Driver"] == "native",
            "{}",
            path.display()
        );
    }
}
