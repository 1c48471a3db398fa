//! The native driver as a plugin, and drivers in the agent's configuration.

use std::fs;
use std::process::Command;

use muster_driver::go::{self, BuildGoError};

use crate::support::{muster, skipped};

/// A host that is not ours, with the library that Nomad uses, drives this very binary: twice
/// launched, a task started, waited for, measured, signalled, stopped, destroyed, commands run in it,
/// the plugin taken up again and killed and its task recovered.
#[test]
fn a_host_in_go_drives_the_native_driver() {
    let name = "a_host_in_go_drives_the_native_driver";
    if !nix::unistd::geteuid().is_root() {
        skipped(name, "the native driver isolates tasks as root only");
        return;
    }
    let host = match go::program("host") {
        Ok(host) => host,
        Err(error @ BuildGoError::Missing { .. }) => {
            skipped(name, &error.to_string());
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("muster-driver-native");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_muster"), &plugin).unwrap();

    let output = Command::new(host)
        .arg(dir.path().join("work"))
        .arg(&plugin)
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{log}");
    for step in [
        "introduces itself",
        "ends when told",
        "starts, prints, exits",
        "refuses what cannot start",
        "stops, and kills what does not stop",
        "signals",
        "runs commands in tasks",
        "measures",
        "is found by a host that comes back",
        "recovers its tasks after a crash",
    ] {
        assert!(said.contains(&format!("ok: {step}\n")), "{step}: {said}");
    }
    assert!(!log.contains("failed to exit gracefully"), "{log}");
}

#[test]
fn a_plugin_started_by_hand_says_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("muster-driver-native");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_muster"), &plugin).unwrap();

    let by_name = Command::new(&plugin).output().unwrap();
    let by_command = muster().args(["driver", "native"]).output().unwrap();

    for output in [by_name, by_command] {
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("plugin_dir"), "{said}");
    }
}

#[test]
fn a_wrong_agent_file_is_refused_with_its_places() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.hcl");
    fs::write(&path, "pool = \"x\"\nserver = \"10.0.0.1\"\nplugin {}\n").unwrap();

    let output = muster()
        .args(["agent", "--config"])
        .arg(&path)
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for place in [
        "agent.hcl:2:1: unknown field `server`",
        "agent.hcl:3:1: `plugin` needs",
    ] {
        assert!(said.contains(place), "{said}");
    }
}
