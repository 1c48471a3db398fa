//! The report of `muster doctor --cost` on an agent's eBPF programs.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::dev::dev;
use crate::support::{
    Process, ask, job_file, muster, needs_root, poll_until, skipped, stderr, stdout,
};

/// A task that starts processes all the time.
const JOB: &str = r#"
job "busy" {
  update { min_healthy_time = "0s" }
  group "g" {
    task "t" {
      driver = "native"
      config {
        command = "/bin/sh"
        args    = ["-c", "while :; do /bin/true; done"]
      }
      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
"#;

/// Programs that run while such a task does.
const RUN: [&str; 4] = [
    "sched_switch",
    "process_fork",
    "process_exec",
    "process_exit",
];

fn cost(args: &[&str]) -> Output {
    let output = muster().args(["doctor", "--cost"]).args(args).output();
    output.unwrap()
}

/// The number of programs that the task has started.
fn execs(address: &str) -> Option<u64> {
    let shown = ask(address, &["--json", "alloc", "status", "busy"]);
    let status: Value = serde_json::from_slice(&shown.stdout).ok()?;
    status["Stats"]["Tasks"]["t"]["Muster"]["Execs"].as_u64()
}

/// A cluster in which the task runs; `None`, reported as a skip of the test `name`, if its programs cannot run.
fn busy(name: &str, dir: &Path) -> Option<Process> {
    if !needs_root(name) {
        return None;
    }
    let (process, address) = dev(dir);
    let shown = ask(&address, &["--json", "node", "status", "dev"]);
    let node: Value = serde_json::from_slice(&shown.stdout).unwrap();
    if let Some(reason) = node["Node"]["Attributes"]["ebpf.reason"].as_str() {
        skipped(name, &format!("the node has no eBPF programs: {reason}"));
        return None;
    }
    let file = job_file(dir, JOB);
    let ran = ask(&address, &["job", "run", file.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    poll_until("the task to start programs", || {
        execs(&address).filter(|count| *count > 0)
    });
    Some(process)
}

/// Programs of other agents on the machine count too, so the report exceeds the usage of one task.
#[test]
fn doctor_reports_ebpf_program_cost() {
    let name = "doctor_reports_ebpf_program_cost";
    let dir = tempfile::tempdir().unwrap();
    let Some(_process) = busy(name, dir.path()) else {
        return;
    };

    let json = cost(&["0.5", "--json"]);
    let shown = cost(&["0.5"]);

    assert_eq!(json.status.code(), Some(0), "{}", stderr(&json));
    let costs: Vec<Value> = serde_json::from_slice(&json.stdout).unwrap();
    for program in RUN {
        let found = costs.iter().find(|cost| cost["Program"] == program);
        let cost = found.unwrap_or_else(|| panic!("no {program} in {costs:?}"));
        let number = |field: &str| cost[field].as_f64().unwrap_or_else(|| panic!("{cost}"));
        let (runs, nanos) = (number("Runs"), number("NanosEach"));
        assert!(runs > 0.0, "{cost}");
        // A shorter run would do no work, and none of these programs takes a millisecond.
        assert!((5.0..1e6).contains(&nanos), "{cost}");
        let share = number("PercentOfCore") / 100.0;
        assert!(
            (share * 0.5e9 / (runs * nanos) - 1.0).abs() < 1e-3,
            "{cost}"
        );
    }
    let mut idle = costs.iter().filter(|cost| cost["Runs"] == 0);
    assert!(idle.all(|cost| cost["NanosEach"].is_null()), "{costs:?}");

    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let table = Table::read(&stdout(&shown));
    for program in RUN {
        let [runs, nanos, percent] = table.row(program);
        // Shares are printed with three decimals, the other values with none.
        let (least, most) = ((runs - 0.5) * (nanos - 0.5), (runs + 0.5) * (nanos + 0.5));
        let nanos_per_s = percent * 1e7;
        let place = 0.0005 * 1e7;
        assert!(
            runs > 0.0 && nanos_per_s >= least - place && nanos_per_s <= most + place,
            "{table:?}"
        );
    }
    let sum: f64 = table.rows.values().map(|[_, _, percent]| percent).sum();
    let place = 0.0005 * (table.rows.len() + 1) as f64;
    assert!((table.all - sum).abs() <= place, "{table:?}");
}

/// The table that a user sees.
#[derive(Debug)]
struct Table {
    /// Runs a second, nanoseconds of one and percents of a core, by program.
    rows: BTreeMap<String, [f64; 3]>,
    /// Percents of a core of all.
    all: f64,
}

impl Table {
    fn read(text: &str) -> Self {
        let (head, rest) = text.split_once('\n').unwrap();
        let words: Vec<_> = head
            .split("  ")
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect();
        assert_eq!(words, ["PROGRAM", "RUNS/S", "NS/RUN", "% OF A CORE"]);
        let (rows, last) = rest.trim_end().rsplit_once('\n').unwrap();
        let last = last
            .strip_prefix("all of them: ")
            .unwrap_or_else(|| panic!("{text}"));
        let (all, rest) = last.split_once(' ').unwrap();
        assert_eq!(
            rest,
            "% of one core over 0.5 s, what measuring costs included"
        );
        let row = |line: &str| {
            let mut words = line.split_whitespace().map(str::to_owned);
            let program = words.next().unwrap();
            // A program without runs took no time.
            let numbers: Vec<f64> = words
                .map(|word| word.replace('–', "0").parse().unwrap())
                .collect();
            (program, numbers.try_into().unwrap())
        };
        Self {
            rows: rows.lines().map(row).collect(),
            all: all.parse().unwrap(),
        }
    }

    fn row(&self, program: &str) -> [f64; 3] {
        let row = self.rows.get(program);
        *row.unwrap_or_else(|| panic!("no {program} in {self:?}"))
    }
}

/// Without the privilege for kernel statistics, the command explains the requirements.
#[test]
fn unprivileged_doctor_explains_required_privileges() {
    if !nix::unistd::geteuid().is_root() {
        skipped(
            "unprivileged_doctor_explains_required_privileges",
            "needs root to become somebody else",
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The other user must be able to read the whole path.
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let binary = dir.path().join("muster");
    std::fs::copy(env!("CARGO_BIN_EXE_muster"), &binary).unwrap();

    let mut refused = Command::new(&binary);
    refused
        .args(["doctor", "--cost", "0.1"])
        .uid(65_534)
        .gid(65_534);
    let refused = refused.output().unwrap();
    let wrong = cost(&["0"]);

    assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
    let expected = "error: what eBPF programs cost cannot be measured: run this as root with CAP_SYS_ADMIN, on Linux 5.8 or newer: Operation not permitted (os error 1)\n";
    assert_eq!(stderr(&refused), expected);
    assert_eq!(stdout(&refused), "");
    assert_eq!(wrong.status.code(), Some(2), "{}", stdout(&wrong));
    let expected = "error: --cost 0 is outside 0.1 to 3600 seconds\n";
    assert_eq!(stderr(&wrong), expected);
}
