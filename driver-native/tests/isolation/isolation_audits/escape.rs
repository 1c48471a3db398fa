//! Cepheus (PyPI, `cepheus-engine`) consists of a shell script and an engine. Inside a container, the script lists
//! possible ways out. The engine reports which of 75 known ways match the list.
//!
//! Every finding of either part in a task is in `testdata/escape-findings.md`, with the reason why it exists and why
//! it is no way out. The test fails for a finding that is not listed. It also fails for a listed finding that does not
//! appear, unless the list marks it as specific to some machines. The engine is third-party code, so it runs in a
//! task, too.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::fixture::skipped;
use crate::isolation_audits::{PLACE, TaskSetting, judge, run};

const LIST: &str = include_str!("../../../testdata/escape-findings.md");

/// Reads a posture from its input and prints the matching ways out.
const ENGINE: &str = "import sys
from cepheus.models.posture import ContainerPosture
from cepheus.engine.analyzer import analyze
posture = ContainerPosture.model_validate_json(open('/local/posture.json').read())
result = analyze(posture)
assert result.total_techniques_checked >= 75
for item in result.remediations:
    print('technique', item.technique_id)
";

/// Fields about the run itself that are not findings.
const NO_FINDINGS: [&str; 7] = [
    "enumeration_version",
    "timestamp",
    "hostname",
    "kernel",
    "cgroup_version",
    "mounts",
    "runtime.pid_one",
];
/// The lists of which each entry is a separate finding. For other lists, the finding is that they are not empty. The
/// other auditors compare the sets of capabilities.
const BY_ENTRY: [(&str, &str); 4] = [
    ("capabilities.bounding", "capability"),
    ("capabilities.effective", "capability"),
    ("capabilities.permitted", "capability"),
    ("writable_paths", "writable path"),
];

/// A row of the list of expected findings.
#[derive(Debug)]
struct ExpectedFinding {
    finding: String,
    settings: BTreeSet<String>,
    sometimes: bool,
}

/// Returns the rows: the finding, its setting, the reason why it exists, the reason why it is no way out.
fn listed() -> Vec<ExpectedFinding> {
    let rows = LIST.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [finding, place, reason, no_way_out] = cells[..] else {
            panic!("four cells: {row}");
        };
        assert!(!reason.is_empty() && !no_way_out.is_empty(), "{row}");
        let words = place.split([',', ' ']).filter(|word| !word.is_empty());
        let (sometimes, settings) =
            words.partition::<BTreeSet<&str>, _>(|word| *word == "sometimes");
        ExpectedFinding {
            finding: finding.trim_matches('`').to_owned(),
            settings: settings.into_iter().map(str::to_owned).collect(),
            sometimes: !sometimes.is_empty(),
        }
    })
    .collect()
}

/// Returns the output of the script as findings.
fn findings(posture: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    flatten("", posture, &mut found);
    let mounts = posture["mounts"].as_array().unwrap();
    let writable = mounts.iter().filter(|mount| mount["options"][0] == "rw");
    found.extend(
        writable.map(|mount| format!("writable mount {}", mount["destination"].as_str().unwrap())),
    );
    found
}

fn flatten(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    if NO_FINDINGS.contains(&path) {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                flatten(&path, value, found);
            }
        }
        Value::Array(entries) if BY_ENTRY.iter().any(|(list, _)| *list == path) => {
            let words = BY_ENTRY.iter().find(|(list, _)| *list == path).unwrap().1;
            found.extend(
                entries
                    .iter()
                    .map(|entry| format!("{words} {}", entry.as_str().unwrap())),
            );
        }
        Value::Array(entries) => {
            if !(entries.is_empty() || entries == &[Value::from("lo")]) {
                found.insert(path.to_owned());
            }
        }
        // A separate namespace and a security module's profile are good; their absence is a finding.
        Value::Bool(own) if path.starts_with("namespaces.") => {
            if !own {
                found.insert(format!("{path} shared"));
            }
        }
        Value::String(profile) if path == "security.apparmor" || path == "security.selinux" => {
            found.insert(format!("{path} {profile}"));
        }
        Value::Null if path.starts_with("security.") => {
            found.insert(format!("{path} none"));
        }
        Value::String(text) if text == "unknown" || text == "filtering" => {}
        Value::Bool(false) | Value::Null => {}
        Value::Bool(true) | Value::Number(_) | Value::String(_) => {
            found.insert(path.to_owned());
        }
    }
}

/// Compares the findings with the rows of the list that `concern` selects.
fn compare(setting: TaskSetting, found: &BTreeSet<String>, concern: impl Fn(&str) -> bool) {
    let rows: Vec<ExpectedFinding> = listed()
        .into_iter()
        .filter(|row| concern(&row.finding) && row.settings.contains(setting.name()))
        .collect();
    let known: BTreeSet<String> = rows.iter().map(|row| row.finding.clone()).collect();
    let unlisted: Vec<_> = found.difference(&known).collect();
    let absent: Vec<_> = rows
        .iter()
        .filter(|row| !row.sometimes && !found.contains(&row.finding))
        .map(|row| &row.finding)
        .collect();
    assert!(unlisted.is_empty(), "found and not listed: {unlisted:#?}");
    assert!(absent.is_empty(), "listed and not found: {absent:#?}");
}

fn is_technique(finding: &str) -> bool {
    finding.starts_with("technique ")
}

/// Returns the output of the script in a task.
async fn posture(test: &str, setting: TaskSetting) -> Option<String> {
    let folder = judge(test, "cepheus-enum.sh")?;
    let script = format!("exec /bin/sh {PLACE}/cepheus-enum.sh 2>/dev/null");
    let output = run(setting, &folder, &script, &[]).await;
    assert!(output.result.successful(), "{output:?}");
    Some(output.text)
}

async fn enumerate(test: &str, setting: TaskSetting) {
    let Some(posture) = posture(test, setting).await else {
        return;
    };

    let found = findings(&serde_json::from_str(&posture).unwrap());

    compare(setting, &found, |finding| !is_technique(finding));
}

async fn match_techniques(test: &str, setting: TaskSetting) {
    if !Path::new("/usr/bin/python3").exists() {
        let reason =
            "the engine needs /usr/bin/python3, which a guest has not; run: cargo xtask setup";
        skipped(test, reason);
        return;
    }
    let Some(folder) = judge(test, "python/cepheus") else {
        return;
    };
    let Some(posture) = posture(test, setting).await else {
        return;
    };

    let script = format!("PYTHONPATH={PLACE}/python exec /usr/bin/python3 -S -B /local/engine.py");
    let files = [("engine.py", ENGINE), ("posture.json", &posture)];
    let output = run(TaskSetting::Nobody, &folder, &script, &files).await;

    assert!(output.result.successful(), "{output:?}");
    let found = output.text.lines().map(str::to_owned).collect();
    compare(setting, &found, is_technique);
}

#[tokio::test]
async fn script_findings_match_list_in_contained_task() {
    let test = "isolation_audits::escape::script_findings_match_list_in_contained_task";
    enumerate(test, TaskSetting::Nobody).await;
}

#[tokio::test]
async fn script_findings_match_list_in_contained_root_task() {
    let test = "isolation_audits::escape::script_findings_match_list_in_contained_root_task";
    enumerate(test, TaskSetting::Root).await;
}

#[tokio::test]
async fn script_findings_match_list_in_strict_task() {
    let test = "isolation_audits::escape::script_findings_match_list_in_strict_task";
    enumerate(test, TaskSetting::Strict).await;
}

#[tokio::test]
async fn engine_finds_no_escape_from_contained_task() {
    let test = "isolation_audits::escape::engine_finds_no_escape_from_contained_task";
    match_techniques(test, TaskSetting::Nobody).await;
}

#[tokio::test]
async fn engine_finds_no_escape_from_contained_root_task() {
    let test = "isolation_audits::escape::engine_finds_no_escape_from_contained_root_task";
    match_techniques(test, TaskSetting::Root).await;
}

#[tokio::test]
async fn engine_finds_no_escape_from_strict_task() {
    let test = "isolation_audits::escape::engine_finds_no_escape_from_strict_task";
    match_techniques(test, TaskSetting::Strict).await;
}
