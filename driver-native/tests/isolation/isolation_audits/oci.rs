//! `runtimetest` of the OCI's runtime-tools: the checks of the runtime specification from inside a container.
//!
//! `runtimetest` compares its container with a `config.json`. Ours is written here from the promises of the README and
//! ARCHITECTURE.md, and requires the strictest reading (`--compliance-level may`). Two topics are left out, because
//! `runtimetest` cannot check them. Namespaces and the filter are checked by `introspection`. `rootfsPropagation`
//! would need a folder in the root, which is read-only.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::isolation_audits::{HOST_NAME, PLACE, TaskSetting, judge, run};

/// The capabilities that root keeps: Docker's set without raw sockets.
const ROOT_KEEPS: [&str; 13] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];
/// The paths that the specification's own example and the common engines hide.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// The paths that a task may read but not write. Our `probe` checks `/proc/sysrq-trigger`: `runtimetest` reads each
/// path that should be read-only, and fails because no task can read that one.
const READ_ONLY: [&str; 4] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"];
const DEVICES: [(&str, u32, u32); 6] = [
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
    ("/dev/tty", 5, 0),
];
/// The mounts of every task, in this order: first the shared ones, then its own.
const MOUNTS: [(&str, &str); 6] = [
    ("/dev", "tmpfs"),
    ("/proc", "proc"),
    ("/dev/pts", "devpts"),
    ("/dev/shm", "tmpfs"),
    ("/dev/mqueue", "mqueue"),
    ("/run", "tmpfs"),
];
/// The task's own directories.
const OWN: [&str; 3] = ["/local", "/secrets", "/tmp"];

/// The first id of strict tasks, and the number of ids of each task.
const FIRST_STRICT_ID: u64 = 0x4000_0000;
const IDS: u64 = 65_536;

/// The number of checks that must pass at every level.
const PASSED_MIN: usize = 290;

/// Returns the checks that fail because our contract differs on purpose. The test fails if another check fails, or if
/// one of these passes.
fn deviations(setting: TaskSetting) -> BTreeSet<String> {
    let devices = DEVICES.iter().zip(0..).flat_map(|((path, ..), at)| {
        let check = |id| format!("\"{path}\" (linux.devices[{at}]) has the expected {id} ID");
        [check("user"), check("group")]
    });
    match setting {
        TaskSetting::Nobody | TaskSetting::Root => BTreeSet::new(),
        // The devices belong to the host's root, who has no id in the task's user namespace. So no user in it is their
        // owner.
        TaskSetting::Strict => devices.collect(),
    }
}

/// Returns the checks that the promises do not cover.
fn not_looked_at(setting: TaskSetting, skipped: &BTreeSet<String>) -> BTreeSet<String> {
    let open = [
        "linux.mountlabel not set",
        "linux.rootfsPropagation not set",
        "linux.seccomp not set",
        "linux.sysctl not set",
        "process.ApparmorProfile not set",
    ];
    let ids = match setting {
        TaskSetting::Nobody | TaskSetting::Root => {
            &["linux.uidMappings not set", "linux.gidMappings not set"][..]
        }
        TaskSetting::Strict => &[],
    };
    // Every device is checked twice: as a device of the specification, without owner and permissions, and as one of
    // ours.
    let again = skipped
        .iter()
        .filter(|reason| reason.contains(" (default device) has "));
    let named = open.iter().chain(ids).map(|reason| (*reason).to_owned());
    named.chain(again.cloned()).collect()
}

/// Returns the promises to a task of `setting`. `first_id` is the host's id for id 0 of a strict task.
fn promised(setting: TaskSetting, arguments: &[&str], first_id: Option<u64>) -> Value {
    let (uid, kept): (u32, &[&str]) = match setting {
        TaskSetting::Nobody | TaskSetting::Strict => (65_534, &[]),
        TaskSetting::Root => (0, &ROOT_KEEPS),
    };
    let devices = DEVICES.map(|(path, major, minor)| {
        json!({"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666,
            "uid": 0, "gid": 0})
    });
    let shared = MOUNTS.map(|(place, kind)| json!({"destination": place, "type": kind}));
    let own = OWN.map(|place| json!({"destination": place}));
    let mounts = if kernel_lists_mounts_by_age() {
        [&own[..], &shared[..]].concat()
    } else {
        [&shared[..], &own[..]].concat()
    };
    let ids = first_id.map(|first| json!([{"containerID": 0, "hostID": first, "size": IDS}]));
    json!({
        "ociVersion": "1.0.2",
        "hostname": HOST_NAME,
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "cwd": "/local",
            "args": arguments,
            "env": ["PATH=/usr/bin:/bin"],
            "noNewPrivileges": true,
            "user": {"uid": uid, "gid": uid},
            "capabilities": {
                "bounding": kept, "effective": kept, "permitted": kept,
                // The capabilities that a program of another user would inherit.
                "inheritable": [], "ambient": [],
            },
            "rlimits": [{"type": "RLIMIT_CORE", "soft": 0, "hard": 0}],
            "oomScoreAdj": 0,
        },
        "mounts": mounts,
        "linux": {
            "devices": devices,
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
            "uidMappings": ids,
            "gidMappings": ids,
        },
    })
}

/// Returns whether the kernel lists mounts in the order of their creation, as since Linux 6.8. A task's directories
/// are mounted before its start. Earlier kernels list them in the order in which they were attached.
fn kernel_lists_mounts_by_age() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    version >= (Some(6), Some(8))
}

/// Returns the host's id for id 0 of a strict task, as a task of the same name reads it. It is the same at every
/// start, and a whole number of ranges above the first id.
async fn first_strict_id(folder: &PathBuf) -> u64 {
    let output = run(
        TaskSetting::Strict,
        folder,
        "exec cat /proc/self/uid_map",
        &[],
    )
    .await;
    let map: Vec<u64> = output
        .text
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    assert_eq!((map.len(), map[0], map[2]), (3, 0, IDS), "{output:?}");
    assert!(map[1] >= FIRST_STRICT_ID, "{output:?}");
    assert_eq!((map[1] - FIRST_STRICT_ID) % IDS, 0, "{output:?}");
    map[1]
}

/// The output of `runtimetest`, in the Test Anything Protocol.
#[derive(Debug, Default)]
struct TapResults {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    skipped: BTreeSet<String>,
    complete: bool,
}

impl TapResults {
    fn read(text: &str) -> Self {
        let mut verdict = Self::default();
        let mut checks = 0_usize;
        for line in text.lines() {
            if let Some(plan) = line.strip_prefix("1..") {
                verdict.complete = plan.parse() == Ok(checks);
            } else if let Some(rest) = line.strip_prefix("not ok ") {
                checks += 1;
                verdict.failed.insert(description(rest).to_owned());
            } else if let Some(rest) = line.strip_prefix("ok ") {
                checks += 1;
                let description = description(rest);
                match description.strip_prefix("# SKIP ") {
                    Some(reason) => verdict.skipped.insert(reason.to_owned()),
                    None => verdict.passed.insert(description.to_owned()),
                };
            }
        }
        verdict
    }
}

/// Returns the text after a check's number.
fn description(rest: &str) -> &str {
    rest.split_once(' ')
        .map_or("", |(_number, rest)| rest.trim_start_matches("- "))
}

async fn run_audit(test: &str, setting: TaskSetting) {
    let Some(folder) = judge(test, "runtimetest") else {
        return;
    };
    let first_id = match setting {
        TaskSetting::Nobody | TaskSetting::Root => None,
        TaskSetting::Strict => Some(first_strict_id(&folder).await),
    };
    let program = format!("{PLACE}/runtimetest");
    let arguments = [program.as_str(), "--compliance-level", "may"];
    let statement = promised(setting, &arguments, first_id).to_string();
    // The program reads `config.json` in its working directory.
    let script = format!("cd /local && exec {}", arguments.join(" "));

    let output = run(setting, &folder, &script, &[("config.json", &statement)]).await;
    let verdict = TapResults::read(&output.text);

    let whole = verdict.complete && output.result.successful();
    assert!(whole, "{:?}: {}", output.result, output.text);
    assert_eq!(verdict.failed, deviations(setting), "failed, and listed");
    let skipped = not_looked_at(setting, &verdict.skipped);
    assert_eq!(verdict.skipped, skipped, "not looked at, and listed");
    let count = verdict.passed.len();
    assert!(count >= PASSED_MIN, "{count} passed");
}

#[tokio::test]
async fn contained_task_passes_runtimetest() {
    let test = "isolation_audits::oci::contained_task_passes_runtimetest";
    run_audit(test, TaskSetting::Nobody).await;
}

#[tokio::test]
async fn contained_root_passes_runtimetest() {
    let test = "isolation_audits::oci::contained_root_passes_runtimetest";
    run_audit(test, TaskSetting::Root).await;
}

#[tokio::test]
async fn strict_task_passes_runtimetest() {
    let test = "isolation_audits::oci::strict_task_passes_runtimetest";
    run_audit(test, TaskSetting::Strict).await;
}
