//! Job files in, JSON or faults out.

use expect_test::{Expect, expect};

use super::{Inputs, ReadJobFileError};

fn parse(name: &str, text: &str) -> Result<serde_json::Value, ReadJobFileError> {
    super::parse(name, text, &Inputs::default())
}

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
fn unknown_field_error_shows_position_and_suggestion() {
    refused(
        "job \"web\" {\n  group \"g\" {\n    coutn = 2\n  }\n}\n",
        expect!["job.hcl:3:5: unknown field `coutn` in `group` (did you mean `count`?)"],
    );
}

#[test]
fn a_field_of_nomad_is_refused_by_name() {
    refused(
        "job \"web\" {\n  multiregion {}\n}\n",
        expect![
            "job.hcl:2:3: `multiregion` in `job` is not supported (a cluster is one region; register the job in the cluster of each region)"
        ],
    );
}

#[test]
fn type_fault_names_the_expected_type() {
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
fn an_undeclared_variable_is_refused_with_advice() {
    refused(
        "job \"web\" {\n  region = var.region\n}\n",
        expect![[
            r#"job.hcl:2:16: `region`: unknown variable `region` (declare it: variable "name" { default = … })"#
        ]],
    );
}

#[test]
fn file_without_a_job_is_refused() {
    refused(
        "\n",
        expect![[r#"job.hcl:1:1: holds no `job` block (start with job "name" { … })"#]],
    );
}

#[test]
fn api_json_job_is_accepted() {
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
            // These examples are not jobs.
            continue;
        }

        let job = super::read(&path, &Inputs::default()).unwrap_or_else(|error| panic!("{error}"));

        assert!(
            job["TaskGroups"][0]["Tasks"][0]["Driver"] == "native",
            "{}",
            path.display()
        );
    }
}

const VARIABLES: &str = r#"
variable "image" {
  type    = string
  default = "web:1"
}
variable "count" {
  type = number
  validation {
    condition     = var.count < 10
    error_message = "no more than nine"
  }
}
variable "zones" {
  type    = list(string)
  default = ["*"]
}
locals {
  name = "${local.base}-${replace(var.image, ":", "-")}"
  base = "front"
}
job "front" {
  name        = local.name
  datacenters = var.zones
  group "web" {
    count = var.count
  }
}
"#;

fn parse_with_values(values: &[&str]) -> Result<serde_json::Value, String> {
    let inputs = Inputs {
        env: vec![
            ("NOMAD_VAR_count".to_owned(), "2".to_owned()),
            ("NOMAD_VAR_unknown".to_owned(), "x".to_owned()),
            ("HOME".to_owned(), "/".to_owned()),
        ],
        files: Vec::new(),
        values: values.iter().map(|&value| value.to_owned()).collect(),
    };
    super::parse("job.hcl", VARIABLES, &inputs).map_err(|error| error.to_string())
}

#[test]
fn variables_and_locals_are_filled_in() {
    let job = parse_with_values(&["count=3", "zones=[\"a\", \"b\"]"]).unwrap();

    assert_eq!(job["Name"], "front-web-1");
    assert_eq!(job["Datacenters"], serde_json::json!(["a", "b"]));
    assert_eq!(job["TaskGroups"][0]["Count"], 3);
    assert_eq!(parse_with_values(&[]).unwrap()["TaskGroups"][0]["Count"], 2);
}

#[test]
fn variable_file_overrides_environment() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("values.hcl");
    std::fs::write(&file, "count = 4\nimage = \"api:${1 + 1}\"\n").unwrap();
    let inputs = Inputs {
        env: vec![("NOMAD_VAR_count".to_owned(), "2".to_owned())],
        files: vec![file.clone()],
        values: vec!["image=web:9".to_owned()],
    };

    let job = super::parse("job.hcl", VARIABLES, &inputs).unwrap();

    assert_eq!(job["Name"], "front-web-9");
    assert_eq!(job["TaskGroups"][0]["Count"], 4);

    std::fs::write(&file, "\ncuont = 4\n").unwrap();
    let error = super::parse("job.hcl", VARIABLES, &inputs).expect_err("is undeclared");
    let error = error.to_string();
    assert!(
        error.ends_with(
            "values.hcl:2:1: the job file declares no variable `cuont` (did you mean `count`?)"
        ),
        "{error}"
    );
}

#[test]
fn wrong_values_are_placed_where_they_were_given() {
    let wrong = |value: &str| parse_with_values(&[value]).expect_err("is wrong");

    expect!["--var:1:7: `count`: it must be of type number, not the text `many`"]
        .assert_eq(&wrong("count=many"));
    expect!["--var:1:1: the job file declares no variable `cont` (did you mean `count`?)"]
        .assert_eq(&wrong("cont=1"));
    expect!["--var:1:1: `count` has no `=` (write --var name=value)"].assert_eq(&wrong("count"));
    expect!["--var:1:9: `zones`: invalid HCL: expected `,` or `]`, found the end of the text"]
        .assert_eq(&wrong("zones=[1"));
    expect!["--var:1:7: `zones`: it must be of type list(string), not an object"]
        .assert_eq(&wrong("zones={}"));
    expect!["job.hcl:9:21: `count`: no more than nine"].assert_eq(&wrong("count=12"));
}

#[test]
fn every_fault_of_a_declaration_is_returned() {
    refused(
        r#"
variable "a" {
  type  = strin
  other = 1
}
variable "b" {
  type    = number
  default = "x"
}
variable "b" {}
variable {}
job "x" {}
"#,
        expect![[r#"
            job.hcl:3:11: unknown type `strin` (types are any, bool, number, string, list(…), set(…), map(…), object({…}) and tuple([…]))
            job.hcl:4:3: unknown field `other` in `variable` (known here: type, default, description, validation)
            job.hcl:8:13: `b`: it must be of type number, not the text `x`
            job.hcl:11:1: `variable` needs a name, and only one (write variable "name" { … })"#]],
    );
}

#[test]
fn a_variable_without_a_value_is_a_fault() {
    refused(
        "variable \"a\" {}\njob \"x\" {}\n",
        expect![
            "job.hcl:1:1: the variable `a` has no value (give it with --var a=…, NOMAD_VAR_a=… or a default)"
        ],
    );
}

#[test]
fn locals_that_need_each_other_are_named() {
    refused(
        "locals {\n  a = local.b\n  b = [local.c]\n  c = \"${local.b}\"\n  d = upper(1, 2)\n}\njob \"x\" {}\n",
        expect![[r"
            job.hcl:5:7: `local.d`: `upper`: takes 1 argument, not 2
            job.hcl:3:3: locals that need each other: local.b → local.c → local.b"]],
    );
}

#[test]
fn dynamic_blocks_are_written_out() {
    let job = parse(
        "job.hcl",
        r#"
locals {
  ports = { http = 8080, admin = 9090 }
}
job "x" {
  dynamic "group" {
    for_each = ["a", "b"]
    labels   = ["g-${group.value}"]
    content {
      count = group.key + 1
      network {
        dynamic "port" {
          for_each = local.ports
          iterator = each
          labels   = [each.key]
          content {
            static = each.value + group.key
          }
        }
      }
      task "t" {
        driver = "native"
        config {
          dynamic "mount" {
            for_each = [1, 2]
            content {
              source = "${group.value}${mount.value}"
            }
          }
        }
      }
    }
  }
}
"#,
    )
    .unwrap();

    let group = &job["TaskGroups"][1];
    assert_eq!(group["Name"], "g-b");
    assert_eq!(group["Count"], 2);
    assert_eq!(
        group["Networks"][0]["ReservedPorts"],
        serde_json::json!([
            {"Label": "admin", "Value": 9091},
            {"Label": "http", "Value": 8081},
        ])
    );
    assert_eq!(
        group["Tasks"][0]["Config"]["mount"],
        serde_json::json!([{"source": "b1"}, {"source": "b2"}])
    );
}

#[test]
fn faults_of_dynamic_blocks_appear_once() {
    refused(
        "job \"x\" {\n  dynamic \"group\" {\n    for_each = [1, 2]\n    content {}\n  }\n  dynamic \"task\" {\n  }\n}\n",
        expect![[r#"
            job.hcl:6:3: `dynamic` needs `for_each` and a block `content` (write dynamic "port" { for_each = […] labels = [port.key] content { … } })
            job.hcl:2:3: `group` needs a name (write group "name" { … })"#]],
    );
}

#[test]
fn short_forms_of_constraints_name_their_operator() {
    let job = parse(
        "job.hcl",
        r#"
job "x" {
  constraint { distinct_hosts = true }
  constraint { distinct_hosts = false }
  constraint {
    distinct_property = "${meta.rack}"
    value             = "2"
  }
  constraint { is_set = "${meta.gpu}" }
  constraint {
    attribute = "${meta.tags}"
    set_contains_any = "a,b"
  }
  affinity {
    attribute = "${attr.kernel.version}"
    version   = ">= 6"
    weight    = -50
  }
}
"#,
    )
    .unwrap();

    assert_eq!(
        job["Constraints"],
        serde_json::json!([
            {"Operand": "distinct_hosts"},
            {"Operand": "distinct_property", "LTarget": "${meta.rack}", "RTarget": "2"},
            {"Operand": "is_set", "LTarget": "${meta.gpu}"},
            {"Operand": "set_contains_any", "LTarget": "${meta.tags}", "RTarget": "a,b"},
        ])
    );
    assert_eq!(
        job["Affinities"],
        serde_json::json!([
            {"Operand": "version", "LTarget": "${attr.kernel.version}", "RTarget": ">= 6", "Weight": -50},
        ])
    );
}

#[test]
fn values_that_double_without_end_are_stopped() {
    let locals: Vec<String> = (1..40)
        .map(|at| (at, at - 1))
        .map(|(at, before)| format!("a{at} = \"${{local.a{before}}}${{local.a{before}}}\""))
        .collect();
    let text = format!(
        "locals {{\na0 = \"0123456789abcdef\"\n{}\n}}\njob \"x\" {{}}\n",
        locals.join("\n")
    );

    let error = parse("job.hcl", &text)
        .expect_err("is too much")
        .to_string();

    assert!(error.contains("64 MiB"), "{error}");
}

#[test]
fn values_nested_without_end_are_stopped() {
    let locals: Vec<String> = (1..400)
        .map(|at| format!("a{at} = [local.a{}]", at - 1))
        .collect();
    let text = format!(
        "locals {{\na0 = []\n{}\n}}\njob \"x\" {{}}\n",
        locals.join("\n")
    );

    let error = parse("job.hcl", &text)
        .expect_err("is too deep")
        .to_string();

    assert!(error.contains("nested deeper than 128"), "{error}");
}

/// Each cut leaves something half written.
#[test]
fn cut_files_are_errors_and_no_panics() {
    for text in [VARIABLES, include_str!("../../examples/variables.hcl")] {
        let ends = text.char_indices().map(|(at, _)| at);
        for end in ends.step_by(3) {
            drop(parse("job.hcl", &text[..end]));
            drop(parse("job.hcl", &text[end..]));
        }
        let lines: Vec<&str> = text.lines().collect();
        for left_out in 0..lines.len() {
            let mut lines = lines.clone();
            lines.remove(left_out);
            drop(parse("job.hcl", &lines.join("\n")));
        }
    }
}

fn job_of(text: &str) -> serde_json::Value {
    parse("job.hcl", text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn heredocs_keep_their_text() {
    let job = job_of(
        "job \"cut\" {\n  meta {\n    first = <<-EOF\n#!/bin/sh\ncd ${NOMAD_TASK_DIR}\n  exec ./run ${NOMAD_ALLOC_ID}\n   --flag\nEOF\n    blank = <<-EOF\n    one\n  \n    two\n    EOF\n    branch = <<-EOF\n      one %{ if true }\n      two\n      %{ endif }\n    EOF\n  }\n}\n",
    );

    assert_eq!(
        job["Meta"]["first"],
        "#!/bin/sh\ncd ${NOMAD_TASK_DIR}\n  exec ./run ${NOMAD_ALLOC_ID}\n   --flag\n"
    );
    assert_eq!(job["Meta"]["blank"], "one\n  \ntwo\n");
    assert_eq!(job["Meta"]["branch"], "one \ntwo\n\n");
}

#[test]
fn empty_heredoc_ends_at_its_marker() {
    let job = job_of(
        "job \"swallow\" {\n  meta {\n    note = <<EOF\nEOF\n    level = \"high\"\n    text = <<EOF\nhello\nEOF, it says\nEOF\n  }\n}\n",
    );

    assert_eq!(
        job["Meta"],
        serde_json::json!({"note": "", "level": "high", "text": "hello\nEOF, it says\n"})
    );
}

#[test]
fn escapes_inside_directives_are_resolved() {
    let job = job_of(
        r#"job "escapes" {
  meta {
    tab   = "%{ if true }a\tb%{ endif }"
    quote = "%{ if true }\"q\"%{ endif }"
    lines = "%{ for x in ["a", "b"] }${x}\n%{ endfor }"
  }
}
"#,
    );

    assert_eq!(
        job["Meta"],
        serde_json::json!({"tab": "a\tb", "quote": "\"q\"", "lines": "a\nb\n"})
    );
}

#[test]
fn computed_numbers_are_exact() {
    let job = job_of(
        r#"
variable "mem" {
  default = 100
}
locals {
  second = 1000000000
}
job "numbers" {
  group "g" {
    shutdown_delay = 2 * local.second
    restart {
      delay = 5e9
    }
    task "t" {
      driver = "native"
      resources {
        memory     = floor(1.15 * 100)
        memory_max = var.mem * 1.1
      }
    }
  }
}
"#,
    );

    let group = &job["TaskGroups"][0];
    assert_eq!(group["ShutdownDelay"], 2_000_000_000);
    assert_eq!(group["RestartPolicy"]["Delay"], 5_000_000_000_u64);
    assert_eq!(group["Tasks"][0]["Resources"]["MemoryMB"], 115);
    assert_eq!(group["Tasks"][0]["Resources"]["MemoryMaxMB"], 110);
}

#[test]
fn fraction_is_not_a_duration() {
    refused(
        "job \"x\" {\n  group \"g\" {\n    shutdown_delay = 1.5\n  }\n}\n",
        expect![[
            r#"job.hcl:3:22: `shutdown_delay` must be a duration such as "30s" or "1h15m", or whole nanoseconds, not a fraction"#
        ]],
    );
}

#[test]
fn label_cannot_be_computed() {
    refused(
        "variable \"n\" {\n  default = \"x\"\n}\njob \"${var.n}\" {}\n",
        expect![
            "job.hcl:4:6: invalid HCL: a label is a text without `${…}`: it cannot be computed (write `$${` for the sign)"
        ],
    );
}

#[test]
fn byte_order_mark_is_ignored() {
    assert_eq!(job_of("\u{feff}job \"x\" {}\n")["ID"], "x");
    let json = parse("job", "\u{feff}{\"Job\": {\"ID\": \"x\"}}").unwrap();
    assert_eq!(json["ID"], "x");
}

#[test]
fn quoted_keys_are_attributes() {
    let job = job_of("job \"x\" {\n  meta {\n    \"max-file\" = \"3\"\n  }\n}\n");

    assert_eq!(job["Meta"]["max-file"], "3");
}

const JSON_SYNTAX: &str = r#"{
  "//": "a comment",
  "variable": {"count": {"type": "number", "default": 2}},
  "locals": {"ports": {"http": 8080, "admin": 9090}},
  "job": {"web": {
    "type": "batch",
    "meta": {"who": "job ${var.count}"},
    "constraint": [{"distinct_hosts": true}, {"attribute": "${attr.cpu.arch}", "value": "amd64"}],
    "group": {
      "g": {
        "count": "${var.count + 1}",
        "network": {"dynamic": {"port": {
          "for_each": "${local.ports}",
          "labels": ["${port.key}"],
          "content": {"static": "${port.value}"}
        }}},
        "task": {"t": {
          "driver": "native",
          "config": {"command": "/bin/echo", "args": ["a", "${NOMAD_ALLOC_ID}"], "mount": {"source": "x"}}
        }}
      },
      "h": [{"task": {"t": {"driver": "native"}}}]
    }
  }}
}"#;

#[test]
fn json_syntax_gives_the_same_job() {
    let native = r#"
variable "count" {
  type    = number
  default = 2
}
locals {
  ports = { http = 8080, admin = 9090 }
}
job "web" {
  type = "batch"
  meta {
    who = "job ${var.count}"
  }
  constraint {
    distinct_hosts = true
  }
  constraint {
    attribute = "${attr.cpu.arch}"
    value     = "amd64"
  }
  group "g" {
    count = var.count + 1
    network {
      dynamic "port" {
        for_each = local.ports
        labels   = [port.key]
        content {
          static = port.value
        }
      }
    }
    task "t" {
      driver = "native"
      config {
        command = "/bin/echo"
        args    = ["a", "${NOMAD_ALLOC_ID}"]
        mount {
          source = "x"
        }
      }
    }
  }
  group "h" {
    task "t" {
      driver = "native"
    }
  }
}
"#;

    assert_eq!(parse("job.json", JSON_SYNTAX).unwrap(), job_of(native));
}

#[test]
fn json_syntax_places_its_faults() {
    let refused = |text: &str| parse("job.json", text).expect_err("is faulty").to_string();

    expect!["job.json:2:1: unknown field `typ` in `job` (did you mean `type`?)"]
        .assert_eq(&refused("{\"job\": {\"x\": {\n\"typ\": \"batch\"\n}}}"));
    expect!["job.json:2:15: invalid HCL: expected a value, found `}`"]
        .assert_eq(&refused("{\"job\": {\"x\": {\n\"type\": \"${1 +}\"\n}}}"));
    expect!["job.json:1:15: expected an object: this is a block"]
        .assert_eq(&refused("{\"job\": {\"x\": 5}}"));
    expect!["job.json:1:27: a second attribute `type`"]
        .assert_eq(&refused("{\"job\": {\"x\": {\"type\": 1, \"type\": 2}}}"));
    expect![[r#"job.json:1:1: has no job (write {"Job": {"ID": …}}, as `muster job inspect` prints it, or {"job": {"name": {…}}} in HCL's JSON syntax)"#]].assert_eq(&refused("{\"other\": 1}"));
}

#[test]
fn values_may_be_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vars.json");
    std::fs::write(
        &file,
        "{\"count\": 5, \"image\": \"${x}\", \"zones\": [\"a\"]}",
    )
    .unwrap();
    let inputs = Inputs {
        files: vec![file],
        ..Inputs::default()
    };

    let job = super::parse("job.hcl", VARIABLES, &inputs).unwrap();

    assert_eq!(job["Name"], "front-${x}");
    assert_eq!(job["Datacenters"], serde_json::json!(["a"]));
    assert_eq!(job["TaskGroups"][0]["Count"], 5);
}
