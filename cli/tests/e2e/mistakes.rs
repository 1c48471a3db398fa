//! Common mistakes. Each message has the fault, its place, its reason and a remedy, with the right exit code.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;

use crate::support::{
    ask, job_file, muster, poll_until, server, server_with, skipped, stderr, stdout,
};

#[test]
fn a_missing_server_is_exit_6_with_advice() {
    let output = ask("http://127.0.0.1:1", &["job", "status"]);

    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("muster dev"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn unknown_job_field_exits_2_with_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = job_file(dir.path(), "job \"web\" {\n  groop \"g\" {}\n}\n");

    let output = ask(
        "http://127.0.0.1:1",
        &["job", "run", file.to_str().unwrap()],
    );

    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("job.hcl:2:3: unknown field `groop`"),
        "{}",
        stderr(&output)
    );
    assert!(
        stderr(&output).contains("did you mean `group`"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_missing_job_file_is_named() {
    let output = ask("http://127.0.0.1:1", &["job", "run", "/nowhere/job.hcl"]);

    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("/nowhere/job.hcl"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn an_oversized_job_file_names_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let file = job_file(dir.path(), &"#".repeat(2 << 20));

    let output = ask(
        "http://127.0.0.1:1",
        &["job", "validate", file.to_str().unwrap()],
    );

    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("1048576 bytes"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_job_that_is_invalid_lists_every_fault() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = server(dir.path());
    let file = job_file(
        dir.path(),
        "job \"web\" {\n  priority = 101\n  group \"g\" {\n    count = 1\n    task \"alloc\" {\n      driver = \"native\"\n      resources { memory = 1 }\n    }\n  }\n}\n",
    );

    let output = ask(&address, &["job", "validate", file.to_str().unwrap()]);

    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    for part in ["priority", "alloc", "memory"] {
        assert!(
            stderr(&output).contains(part),
            "{part} in {}",
            stderr(&output)
        );
    }
}

#[test]
fn an_unknown_job_is_exit_4() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = server(dir.path());

    let output = ask(&address, &["job", "status", "nothing"]);

    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
}

/// Without a node, the job is registered, but no instance is placed.
#[test]
fn unplaceable_job_exits_3_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = server(dir.path());
    let file = job_file(
        dir.path(),
        "job \"web\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"native\"\n      config { command = \"/bin/true\" }\n    }\n  }\n}\n",
    );

    let output = ask(&address, &["job", "run", file.to_str().unwrap()]);

    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("no node is ready"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn check_index_mismatch_refuses_job() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = server(dir.path());
    let text = "job \"web\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"native\"\n      config { command = \"/bin/true\" }\n    }\n  }\n}\n";
    let file = job_file(dir.path(), text);
    let path = file.to_str().unwrap();
    ask(&address, &["job", "run", "--detach", path]);

    let output = ask(
        &address,
        &["job", "run", "--detach", "--check-index", "0", path],
    );

    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
}

#[test]
fn a_port_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();

    let output = muster()
        .args([
            "server",
            "--http",
            &addr,
            "--quic",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(dir.path())
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(&addr) && stderr(&output).contains("--http"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn second_server_on_same_data_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = server(dir.path());

    let output = muster()
        .args([
            "server",
            "--http",
            "127.0.0.1:0",
            "--quic",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(dir.path().join("server"))
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(
        message.contains(&first.child.id().to_string()),
        "names the holder: {message}"
    );
}

#[test]
fn non_root_agent_is_refused_with_reason() {
    if !nix::unistd::geteuid().is_root() {
        skipped(
            "non_root_agent_is_refused_with_reason",
            "needs root to become somebody else",
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    muster_link::tls::ensure_cluster(&dir.path().join("tls"), "local", "server").unwrap();
    // The other user must be able to read the whole path.
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), all).unwrap();
    let passable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path().join("tls"), passable).unwrap();
    for entry in std::fs::read_dir(dir.path().join("tls")).unwrap() {
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(entry.unwrap().path(), readable).unwrap();
    }
    let binary = dir.path().join("muster");
    std::fs::copy(env!("CARGO_BIN_EXE_muster"), &binary).unwrap();

    let output = std::process::Command::new(&binary)
        .args(["agent", "--data-dir"])
        .arg(dir.path().join("agent"))
        .arg("--tls-dir")
        .arg(dir.path().join("tls"))
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("root"), "{}", stderr(&output));
}

#[test]
fn missing_certificates_are_named() {
    let dir = tempfile::tempdir().unwrap();

    let output = muster()
        .args(["agent", "--tls-dir"])
        .arg(dir.path())
        .arg("--data-dir")
        .arg(dir.path().join("agent"))
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("ca.pem"), "{}", stderr(&output));
}

#[test]
fn completions_are_printed_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = muster().args(["completions", shell]).output().unwrap();

        assert!(output.status.success());
        assert!(stdout(&output).contains("muster"), "{shell}");
    }
}

#[test]
fn a_prefix_changes_no_job() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = server(dir.path());
    let file = job_file(
        dir.path(),
        "job \"review-12\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"native\"\n      config { command = \"/bin/true\" }\n    }\n  }\n}\n",
    );
    ask(
        &address,
        &["job", "run", "--detach", file.to_str().unwrap()],
    );

    let changes: [&[&str]; 8] = [
        &["job", "stop", "--purge", "review-1"],
        &["job", "scale", "review-1", "2"],
        &["job", "revert", "review-1", "0"],
        &["job", "eval", "review-1"],
        &["job", "promote", "review-1"],
        &["job", "dispatch", "review-1"],
        &["job", "tag", "apply", "--name", "v", "review-1"],
        &["deployment", "fail", "review-1"],
    ];
    for change in changes {
        let output = ask(&address, change);

        assert_eq!(
            output.status.code(),
            Some(4),
            "{change:?} {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains("did you mean `review-12`?"),
            "{change:?} {}",
            stderr(&output)
        );
    }
    let shown = ask(&address, &["job", "inspect", "review-1"]);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    assert!(
        stdout(&shown).contains("\"Version\": 0"),
        "{}",
        stdout(&shown)
    );
}

/// Jobs have names such as `db`, which may also be a prefix of other ids.
#[test]
fn job_id_wins_over_id_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = server(dir.path());
    let run = |id: &str| {
        let text = format!(
            "job \"{id}\" {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"native\"\n      config {{ command = \"/bin/true\" }}\n    }}\n  }}\n}}\n"
        );
        let file = job_file(dir.path(), &text);
        let path = file.to_str().unwrap();
        ask(&address, &["job", "run", "--detach", path])
    };
    let of = |name: &str| {
        let shown = ask(&address, &["--json", "deployment", "status", name]);
        let shown: serde_json::Value = serde_json::from_str(&stdout(&shown)).ok()?;
        let text = |field: &str| shown["Deployment"][field].as_str().map(str::to_owned);
        Some((text("ID")?, text("JobID")?))
    };
    run("web");
    let (id, _) = poll_until("the first deployment", || of("web"));

    run(&id[..4]);
    let (_, job) = poll_until("the second deployment", || {
        of(&id[..4]).filter(|(found, _)| *found != id)
    });

    assert_eq!(job, id[..4]);
}

#[test]
fn jobs_of_another_region_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, address) = server_with(dir.path(), &["--region", "eu"]);
    let run = |region: &str| {
        let text = format!(
            "job \"web\" {{\n  region = \"{region}\"\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"native\"\n      config {{ command = \"/bin/true\" }}\n    }}\n  }}\n}}\n"
        );
        let file = job_file(dir.path(), &text);
        ask(
            &address,
            &["job", "run", "--detach", file.to_str().unwrap()],
        )
    };

    let taken = run("eu");
    assert_eq!(taken.status.code(), Some(0), "{}", stderr(&taken));
    let shown = ask(&address, &["job", "inspect", "web"]);
    assert!(
        stdout(&shown).contains("\"Region\": \"eu\""),
        "{}",
        stdout(&shown)
    );
    let refused = run("us");
    assert_ne!(refused.status.code(), Some(0));
    assert!(
        stderr(&refused).contains("no path to region `us`: this cluster is region `eu`"),
        "{}",
        stderr(&refused)
    );
}
