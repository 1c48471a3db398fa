//! Job files with Nomad's results and refusals.
//!
//! `MUSTER_CASES` names a file of cases to run instead of `shared/cases`.

use std::path::{Path, PathBuf};

use muster_domain::fixture::recorded::skipped;
use serde_json::Value;

use super::{Inputs, ReadJobFileError};

/// Fields that Nomad reads and Muster refuses by name, because it does not implement them.
const REFUSED_BY_DESIGN: [(&str, &str); 16] = [
    ("action", "commands inside tasks are for another version"),
    ("artifact", "no downloads: drivers bring their files"),
    ("connect", "no service mesh"),
    ("consul", "no Consul"),
    ("consul_token", "no Consul"),
    ("csi_plugin", "no CSI"),
    ("identity", "no workload identities"),
    ("kind", "no Consul Connect"),
    ("mount_options", "no CSI"),
    ("multiregion", "one region"),
    ("network", "ports belong to the group"),
    ("scaling", "a task is not scaled, its group is"),
    ("service", "no service discovery"),
    ("template", "no templates"),
    ("vault", "no Vault"),
    ("vault_token", "no Vault"),
];

/// Refusals for which Nomad reports a different place each time.
const PLACELESS: [&str; 1] = ["extra__error_variable_cycle"];

/// The results of a file of cases.
#[derive(Debug, Default)]
struct Tally {
    equal: usize,
    refused_by_design: usize,
    different: Vec<String>,
}

/// The result of one case.
#[derive(Debug)]
enum CaseResult {
    Equal,
    RefusedByDesign,
    Different(String),
    /// The case is not about this parser.
    Other,
}

/// Runs the cases in `path`; `None` if it cannot be read or has no job files.
fn run(path: &Path) -> Option<Tally> {
    let text = std::fs::read_to_string(path).ok()?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let rows: Vec<Value> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).expect("a case is JSON"))
        .collect();
    if !rows.iter().all(|row| row["hcl"].is_string()) || rows.is_empty() {
        return None;
    }
    let mut tally = Tally::default();
    for row in &rows {
        match verdict(row, dir) {
            CaseResult::Equal => tally.equal += 1,
            CaseResult::RefusedByDesign => tally.refused_by_design += 1,
            CaseResult::Different(how) => {
                let name = row["name"].as_str().unwrap_or("?");
                tally.different.push(format!("{name}: {how}"));
            }
            CaseResult::Other => {}
        }
    }
    Some(tally)
}

/// Returns the content of `field`: of a file next to the cases, or the text itself.
fn contents(field: &Value, dir: &Path) -> String {
    let field = field.as_str().expect("a name of a file, or a text");
    std::fs::read_to_string(dir.join(field)).unwrap_or_else(|_| field.to_owned())
}

fn verdict(row: &Value, dir: &Path) -> CaseResult {
    let wanted = match &row["hcl2"] {
        Value::Null if row["parser"] == "hcl2" => None,
        Value::Null => return CaseResult::Other,
        Value::Object(job) => Some(Value::Object(job.clone())),
        file => Some(serde_json::from_str(&contents(file, dir)).expect("is JSON")),
    };
    let variables = row["variables"].as_array().into_iter().flatten();
    let inputs = Inputs {
        values: variables
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        ..Inputs::default()
    };
    let text = contents(&row["hcl"], dir);
    match (super::parse("job.hcl", &text, &inputs), wanted) {
        (Ok(ours), Some(theirs)) => match difference("Job", &ours, &theirs["Job"]) {
            None => CaseResult::Equal,
            Some(how) => CaseResult::Different(how),
        },
        (Ok(_), None) => CaseResult::Different(format!("accepted; Nomad says {}", row["error"])),
        (Err(error), _) if is_by_design(&error) => CaseResult::RefusedByDesign,
        (Err(error), Some(_)) => CaseResult::Different(format!("refused: {error}")),
        (Err(_), None) if PLACELESS.iter().any(|name| row["name"] == *name) => CaseResult::Equal,
        (Err(error), None) => position_mismatch(&error, row["error"].as_str().unwrap_or_default())
            .map_or(CaseResult::Equal, CaseResult::Different),
    }
}

/// Whether all faults are about features that Muster lacks by design.
fn is_by_design(error: &ReadJobFileError) -> bool {
    let ReadJobFileError::Faulty { faults, .. } = error else {
        return false;
    };
    faults.iter().all(|fault| {
        fault.message.contains("is not supported")
            && REFUSED_BY_DESIGN
                .iter()
                .any(|(name, _)| fault.message.starts_with(&format!("`{name}` ")))
    })
}

/// The mismatch, if our fault is at none of the lines that Nomad names.
fn position_mismatch(error: &ReadJobFileError, theirs: &str) -> Option<String> {
    let lines = |text: &str, end: char| -> Vec<u32> {
        let places = text.split("job.hcl:").skip(1);
        let lines = places.filter_map(|place| place.split(end).next()?.parse().ok());
        lines.collect()
    };
    let ours = error.to_string();
    let (our_lines, their_lines) = (lines(&ours, ':'), lines(theirs, ','));
    let is_near = our_lines.iter().any(|line| their_lines.contains(line));
    (!their_lines.is_empty() && !is_near)
        .then(|| format!("faults at {our_lines:?} ({ours}), not {their_lines:?}"))
}

/// The first difference between two values. A zero value that Nomad prints may be absent here.
fn difference(at: &str, ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let names = ours.keys().chain(theirs.keys());
            names.into_iter().find_map(|name| {
                let ours = ours.get(name).unwrap_or(&Value::Null);
                let theirs = theirs.get(name).unwrap_or(&Value::Null);
                difference(&format!("{at}.{name}"), ours, theirs)
            })
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            let pairs = ours.iter().zip(theirs).enumerate();
            pairs.into_iter().find_map(|(position, (ours, theirs))| {
                difference(&format!("{at}[{position}]"), ours, theirs)
            })
        }
        (Value::Number(ours), Value::Number(theirs)) if ours.as_f64() == theirs.as_f64() => None,
        (Value::Null, theirs) if is_zero(theirs) => None,
        (ours, theirs) => (ours != theirs).then(|| format!("{at}: {ours} not {theirs}")),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}

#[test]
fn recorded_job_files() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases/jobspec");
    let given = std::env::var_os("MUSTER_CASES").map(PathBuf::from);
    let paths = match given {
        Some(path) => vec![path],
        None => vec![recorded.join("pairs.jsonl"), recorded.join("refused.jsonl")],
    };
    let mut passed = 0;
    let mut failed = 0;
    for path in &paths {
        let Some(tally) = run(path) else {
            skipped(
                "recorded_job_files",
                "no recorded cases beside the workspace (../shared/cases), or none of job files",
            );
            return;
        };
        for line in &tally.different {
            println!("{line}");
        }
        println!(
            "{}: {} equal, {} refused by name, {} different",
            path.file_name().unwrap_or_default().display(),
            tally.equal,
            tally.refused_by_design,
            tally.different.len()
        );
        passed += tally.equal + tally.refused_by_design;
        failed += tally.different.len();
    }
    println!("{passed} passed, {failed} failed");

    assert_eq!(failed, 0, "differences are printed above");
}
