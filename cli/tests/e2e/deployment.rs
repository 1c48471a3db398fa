//! Deployments, drains, stops and the scheduler's settings, with the commands an operator has.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::dev::dev;
use crate::support::{ask, job_file, needs_root, poll_until, server, stderr, stdout};

/// A service whose instances are healthy shortly after their start.
fn job(env: &str, update: &str) -> String {
    format!(
        r#"
job "web" {{
  group "g" {{
    update {{
      health_check     = "task_states"
      min_healthy_time = "100ms"
      {update}
    }}
    task "t" {{
      driver = "native"
      config {{
        command = "/bin/sleep"
        args    = ["1000"]
      }}
      env {{ VERSION = "{env}" }}
      resources {{ memory = 32 }}
    }}
  }}
}}
"#
    )
}

fn done(output: &Output) -> String {
    let printed = format!("{}{}", stdout(output), stderr(output));
    assert_eq!(output.status.code(), Some(0), "{printed}");
    printed
}

fn json(address: &str, args: &[&str]) -> Value {
    let output = ask(address, &[args, &["--json"]].concat());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(&output), stderr(&output)))
}

fn run(address: &str, dir: &Path, env: &str, update: &str, flags: &[&str]) -> Output {
    let file = job_file(dir, &job(env, update));
    let path = file.to_str().unwrap();
    ask(address, &[&["job", "run"], flags, &[path]].concat())
}

/// A first version, a second one that waits for its promotion, and a third one that fails.
#[test]
fn a_version_is_deployed_promoted_and_given_up() {
    if !needs_root("a_version_is_deployed_promoted_and_given_up") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());

    let first = done(&run(&address, dir.path(), "1", "", &[]));
    assert!(first.contains("is successful"), "{first}");

    done(&run(&address, dir.path(), "2", "canary = 1", &["--detach"]));
    poll_until("the canary to be healthy", || {
        let status = stdout(&ask(&address, &["job", "status", "web"]));
        status.contains("muster deployment promote").then_some(())
    });
    let list = done(&ask(&address, &["alloc", "status"]));
    assert!(list.contains("canary, healthy"), "{list}");
    done(&ask(&address, &["job", "promote", "web"]));
    let end = done(&ask(
        &address,
        &["deployment", "status", "--monitor", "web"],
    ));
    assert!(end.contains("successful"), "{end}");

    done(&run(&address, dir.path(), "3", "canary = 1", &["--detach"]));
    let latest = poll_until("the third deployment", || {
        let found = json(&address, &["deployment", "status", "web"]);
        (found["Deployment"]["JobVersion"] == 2).then_some(found)
    });
    let id = latest["Deployment"]["ID"].as_str().unwrap();
    done(&ask(&address, &["deployment", "pause", id]));
    done(&ask(&address, &["deployment", "resume", &id[..8]]));
    done(&ask(&address, &["deployment", "fail", id]));
    let failed = ask(&address, &["deployment", "status", "--monitor", id]);
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    let list = done(&ask(&address, &["deployment", "list"]));
    assert!(list.contains("Deployment marked as failed"), "{list}");
    let again = ask(&address, &["deployment", "promote", id]);
    assert_eq!(again.status.code(), Some(5), "{}", stderr(&again));
}

/// The instance ran after its placement, so only its deployment reports the failure.
#[test]
fn a_version_that_fails_later_is_exit_1() {
    if !needs_root("a_version_that_fails_later_is_exit_1") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let update = "progress_deadline = \"0s\"\n}\nrestart {\nattempts = 0\nmode = \"fail\"";
    let text = job("1", update).replace("100ms", "10s");
    let text = text.replace("\"1000\"", "\"1\"");
    let file = job_file(dir.path(), &text);

    let output = ask(&address, &["job", "run", file.to_str().unwrap()]);

    let printed = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("is failed: Failed due to unhealthy"),
        "{printed}"
    );
}

#[test]
fn a_stopped_allocation_is_replaced() {
    if !needs_root("a_stopped_allocation_is_replaced") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    done(&run(&address, dir.path(), "1", "", &[]));

    let printed = done(&ask(&address, &["alloc", "stop", "web/g.0"]));

    assert!(printed.contains("takes its place"), "{printed}");
    let evals = done(&ask(&address, &["eval", "status"]));
    assert!(evals.contains("alloc-stop"), "{evals}");
    let status = done(&ask(&address, &["alloc", "status", "web"]));
    assert!(status.contains("replaces "), "{status}");
}

/// A command for a job without deployments ends as soon as the job runs.
#[test]
fn batch_job_run_does_not_wait_for_deployment() {
    if !needs_root("batch_job_run_does_not_wait_for_deployment") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let text = job("1", "").replace("group \"g\"", "type = \"batch\"\n  group \"g\"");
    let text = text
        .replace("update {", "reschedule {")
        .replace("health_check     = \"task_states\"", "");
    let text = text.replace("min_healthy_time = \"100ms\"", "attempts = 0");
    let file = job_file(dir.path(), &text);

    let printed = done(&ask(&address, &["job", "run", file.to_str().unwrap()]));

    assert!(!printed.contains("deployment"), "{printed}");
    let none = ask(&address, &["deployment", "status", "web"]);
    assert_eq!(none.status.code(), Some(4), "{}", stderr(&none));
}

#[test]
fn a_node_shows_that_it_is_drained() {
    if !needs_root("a_node_shows_that_it_is_drained") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    done(&run(&address, dir.path(), "1", "", &["--detach"]));

    let unsure = ask(&address, &["node", "drain", "--enable", "dev"]);
    done(&ask(
        &address,
        &[
            "node",
            "drain",
            "--enable",
            "--yes",
            "--detach",
            "--no-deadline",
            "--ignore-system",
            "dev",
        ],
    ));
    let draining = done(&ask(&address, &["node", "status", "dev"]));
    done(&ask(&address, &["node", "drain", "--disable", "dev"]));
    let after = json(&address, &["node", "status", "dev"]);

    assert_eq!(unsure.status.code(), Some(2));
    assert!(stderr(&unsure).contains("--yes"), "{}", stderr(&unsure));
    assert!(draining.contains("ineligible"), "{draining}");
    assert_eq!(after["Node"]["Drain"], false);
    assert_eq!(after["Node"]["SchedulingEligibility"], "eligible");
}

#[test]
fn a_node_takes_new_work_or_none() {
    if !needs_root("a_node_takes_new_work_or_none") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let node = json(&address, &["node", "status", "dev"]);
    let id = node["Node"]["ID"].as_str().unwrap();
    let eligibility = || {
        let node = json(&address, &["node", "status", "dev"]);
        node["Node"]["SchedulingEligibility"].clone()
    };

    let printed = done(&ask(&address, &["node", "eligibility", "--disable", "dev"]));
    let disabled = eligibility();
    let unknown = ask(&address, &["node", "eligibility", "--enable", id, "nobody"]);
    let untouched = eligibility();
    let answers = json(&address, &["node", "eligibility", "--enable", id]);

    assert!(printed.contains("takes no new work"), "{printed}");
    assert_eq!(disabled, "ineligible");
    assert_eq!(unknown.status.code(), Some(4), "{}", stderr(&unknown));
    assert_eq!(untouched, "ineligible");
    assert!(
        answers[0]["NodeModifyIndex"].as_u64() > Some(0),
        "{answers}"
    );
    assert_eq!(eligibility(), "eligible");
}

#[test]
fn the_scheduler_is_set_and_read() {
    const SET: [&str; 3] = ["operator", "scheduler", "set-config"];
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = server(dir.path());
    let set = |flags: &[&str]| ask(&address, &[&SET[..], flags].concat());

    let flags = [
        "--scheduler-algorithm",
        "spread",
        "--preempt-service-scheduler=true",
    ];
    done(&set(&flags));
    let config = json(&address, &["operator", "scheduler", "get-config"]);
    let stale = set(&["--check-index", "1", "--pause-eval-broker"]);
    let unknown = set(&["--scheduler-algorithm", "random"]);

    let config = &config["SchedulerConfig"];
    assert_eq!(config["SchedulerAlgorithm"], "spread");
    assert_eq!(config["PreemptionConfig"]["ServiceSchedulerEnabled"], true);
    assert_eq!(config["PreemptionConfig"]["SystemSchedulerEnabled"], true);
    assert_eq!(stale.status.code(), Some(5), "{}", stderr(&stale));
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        stderr(&unknown).contains("binpack, spread"),
        "{}",
        stderr(&unknown)
    );
    let shown = done(&ask(&address, &["operator", "scheduler", "get-config"]));
    assert!(shown.contains("scheduler algorithm"), "{shown}");
    assert!(shown.contains("spread"), "{shown}");
}
