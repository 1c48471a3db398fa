//! Compares the output of `procenv` in a task with the golden answer of its level.
//!
//! `procenv` (Debian) reports more than all other available tools: each capability in each set, the secure bits, the
//! filter ("secure computing"), `no_new_privs`, every namespace. `capsh`, `setpriv` and `lsns` report a part each.
//! `MUSTER_BLESS=1` (`cargo xtask bless`) rewrites the golden answers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::isolation_audits::{TaskSetting, judge, run};

const ARGUMENTS: &str = "/opt/judges/procenv --format=crumb --capabilities --namespaces --misc";

/// Output that differs by machine or by run, and is unrelated to isolation.
const OF_THE_MACHINE: [&str; 4] = [
    "misc:vm",
    "misc:prctl:clear child tid address",
    "misc:prctl:timer slack",
    "misc:kernel headers version",
];

/// Returns the output without the machine's properties: namespaces become `own` or `host`.
fn normalised(text: &str) -> String {
    let host = namespaces();
    let mut out = String::new();
    for line in text.lines() {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        let value = match name.strip_prefix("namespaces:") {
            Some(kind) if host.get(kind).is_some_and(|inode| inode == value) => "host",
            Some(_) => "own",
            None if OF_THE_MACHINE.contains(&name) => continue,
            None => value,
        };
        writeln!(out, "{name}: {value}").unwrap();
    }
    out
}

/// Returns the inode numbers of this process's namespaces.
fn namespaces() -> BTreeMap<String, String> {
    fs::read_dir("/proc/self/ns")
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let link = fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
            let inode = link.to_str()?.split(['[', ']']).nth(1)?.to_owned();
            Some((name, inode))
        })
        .collect()
}

async fn compare(test: &str, setting: TaskSetting, golden: &str) {
    let Some(folder) = judge(test, "procenv") else {
        return;
    };

    let output = run(setting, &folder, ARGUMENTS, &[]).await;
    let found = normalised(&output.text);

    assert!(output.result.successful(), "{output:?}");
    if std::env::var_os("MUSTER_BLESS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/procenv");
        fs::write(path.join(setting.name()), found).unwrap();
        return;
    }
    let differing: Vec<String> = (0..golden.lines().count().max(found.lines().count()))
        .filter_map(|at| {
            let (wanted, found) = (golden.lines().nth(at), found.lines().nth(at));
            (wanted != found).then(|| format!("found {found:?}, wanted {wanted:?}"))
        })
        .collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[tokio::test]
async fn contained_task_matches_the_golden_answer() {
    let test = "isolation_audits::introspection::contained_task_matches_the_golden_answer";
    let golden = include_str!("../../../testdata/procenv/nobody");
    compare(test, TaskSetting::Nobody, golden).await;
}

#[tokio::test]
async fn contained_root_matches_the_golden_answer() {
    let test = "isolation_audits::introspection::contained_root_matches_the_golden_answer";
    let golden = include_str!("../../../testdata/procenv/root");
    compare(test, TaskSetting::Root, golden).await;
}

#[tokio::test]
async fn strict_task_matches_the_golden_answer() {
    let test = "isolation_audits::introspection::strict_task_matches_the_golden_answer";
    let golden = include_str!("../../../testdata/procenv/strict");
    compare(test, TaskSetting::Strict, golden).await;
}
