//! Resizes the tasks of a job in place, with a user's commands.

use crate::dev::dev;
use crate::support::{ask, began, job_file, needs_root, poll_until, stderr, stdout};

fn job(cpu: u32, memory: u32) -> String {
    format!(
        r#"
job "grows" {{
  update {{ min_healthy_time = "0s" }}
  group "g" {{
    task "t" {{
      driver = "native"
      config {{
        command = "/bin/sleep"
        args    = ["1000"]
      }}
      resources {{
        cpu    = {cpu}
        memory = {memory}
      }}
    }}
  }}
}}
"#
    )
}

/// At the end, no node has the requested memory. So the instance would be replaced if there were a place.
#[test]
fn resource_increase_keeps_process_while_node_has_capacity() {
    if !needs_root("resource_increase_keeps_process_while_node_has_capacity") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let output_of = |args: &[&str]| {
        let output = ask(&address, args);
        format!("{}{}", stdout(&output), stderr(&output))
    };
    let file = |cpu, memory| {
        job_file(dir.path(), &job(cpu, memory))
            .display()
            .to_string()
    };
    let pid = || {
        poll_until("the task's process", || {
            let output = ask(&address, &["--json", "alloc", "status", "grows"]);
            let found: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
            let pid = found["Stats"]["Tasks"]["t"]["Muster"]["Pid"].as_u64()?;
            u32::try_from(pid).ok().filter(|pid| *pid != 0)
        })
    };
    output_of(&["job", "run", &file(100, 32)]);
    let first = pid();
    let start = began(first);

    let planned = output_of(&["job", "plan", &file(200, 64)]);
    let run = output_of(&["job", "run", &file(200, 64)]);

    assert!(planned.contains("1 in-place update"), "{planned}");
    assert!(planned.contains("(forces in-place update)"), "{planned}");
    assert!(run.contains("takes what changes in place"), "{run}");
    assert_eq!((pid(), began(first)), (first, start));

    let planned = output_of(&["job", "plan", &file(200, 50_000_000)]);
    assert!(planned.contains("1 create/destroy update"), "{planned}");
}
