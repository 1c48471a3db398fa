use muster_domain::fixture::recorded::{self, CaseKind, CaseRunner, Outcome};
use serde_json::json;

use super::*;

const DIFF: CaseKind = CaseKind {
    name: "job_diff",
    is: |row| row.get("diff_contextual").is_some(),
    judge: CaseRunner::Row(run_case),
};

/// Blocks that we list and Nomad only marks.
const LISTED_HERE: [&str; 6] = [
    "Migrate",
    "Spread",
    "Scaling",
    "Lifecycle",
    "VolumeMount",
    "RestartPolicy",
];

/// `diff` without the edits that only Muster lists. Both list a group's restart policy.
fn as_nomad(mut diff: JobDiff) -> JobDiff {
    diff.objects.retain(|object| object.name != "Spread");
    for group in &mut diff.task_groups {
        group.objects.retain(|object| {
            object.name == "RestartPolicy" || !LISTED_HERE.contains(&object.name.as_str())
        });
        for task in &mut group.tasks {
            task.objects
                .retain(|object| !LISTED_HERE.contains(&object.name.as_str()));
        }
    }
    let edited = !diff.fields.is_empty()
        || !diff.objects.is_empty()
        || diff
            .task_groups
            .iter()
            .any(|group| group.diff_type != DiffType::None);
    if diff.diff_type == DiffType::Edited && !edited {
        diff.diff_type = DiffType::None;
    }
    diff
}

/// The first difference between two values.
fn first_difference(at: &str, ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => ours
            .iter()
            .find_map(|(key, ours)| first_difference(&format!("{at}.{key}"), ours, &theirs[key])),
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => (0..)
            .zip(ours.iter().zip(theirs))
            .find_map(|(position, (ours, theirs)): (usize, _)| {
                first_difference(&format!("{at}[{position}]"), ours, theirs)
            }),
        (ours, theirs) => (ours != theirs).then(|| {
            let short = |value: &Value| value.to_string().chars().take(300).collect::<String>();
            format!("{at}: {} not {}", short(ours), short(theirs))
        }),
    }
}

fn run_case(case: &Value) -> Outcome {
    let side = |key: &str| Some(&case[key]).filter(|job| !job.is_null());
    let (old, new) = (side("old_job"), side("new_job"));
    if let Some(error) = case["error"].as_str().filter(|error| !error.is_empty()) {
        return match jobs(old, new, false) {
            Err(ours) if ours.to_string() == error => Outcome::Same,
            ours => Outcome::Differs(format!("{ours:?}, not {error}")),
        };
    }
    for (key, context) in [
        ("diff", false),
        ("diff_contextual", true),
        ("diff_contextual_annotated", true),
    ] {
        let expected: JobDiff = serde_json::from_value(case[key].clone()).unwrap();
        let mut ours = as_nomad(jobs(old, new, context).unwrap());
        if key.ends_with("annotated") {
            annotate(&mut ours);
        }
        if ours != expected {
            let (ours, theirs) = (json!(ours), json!(expected));
            let place = first_difference("", &ours, &theirs).unwrap_or_default();
            return Outcome::Differs(format!("{} {key}: {place}", case["edits"]));
        }
    }
    Outcome::Same
}

#[test]
fn diffs_are_nomads() {
    let Some(tally) = recorded::beside("diffs_are_nomads", "job_diff.jsonl.gz", &DIFF) else {
        return;
    };
    tally.assert_same(250);
}

#[test]
fn recorded_cases_in_named_files() {
    recorded::named(&[DIFF]);
}

#[test]
fn changed_migrate_fields_are_listed() {
    let job = |stagger: u32| json!({"ID": "a", "TaskGroups": [{"Name": "g", "Migrate": {"MaxParallel": stagger}, "Tasks": []}]});

    let diff = jobs(Some(&job(1)), Some(&job(2)), false).unwrap();

    let migrate = &diff.task_groups[0].objects[0];
    assert_eq!(migrate.name, "Migrate");
    assert_eq!(migrate.diff_type, DiffType::Edited);
    assert_eq!(
        (
            migrate.fields[0].old.as_str(),
            migrate.fields[0].new.as_str()
        ),
        ("1", "2")
    );
}
