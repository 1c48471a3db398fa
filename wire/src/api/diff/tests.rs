use std::path::Path;

use serde_json::json;

use super::*;

fn skipped(name: &str, reason: &str) {
    use std::io::Write as _;
    eprintln!("skipped: {name}: {reason}");
    if let Some(file) = std::env::var_os("MUSTER_SKIP_FILE") {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .unwrap();
        file.write_all(format!("{name}: {reason}\n").as_bytes())
            .unwrap();
    }
}

/// Blocks that we list and Nomad only marks.
const LISTED_HERE: [&str; 6] = [
    "Migrate",
    "Spread",
    "Scaling",
    "Lifecycle",
    "VolumeMount",
    "RestartPolicy",
];

/// `diff` without what only we list. A group's restart policy is listed by both.
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

/// Where two values differ first, and how.
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

#[test]
fn diffs_are_nomads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases/job_diff.jsonl.gz");
    let Ok(file) = std::fs::File::open(path) else {
        skipped(
            "diffs_are_nomads",
            "no recorded cases beside the workspace (../shared/cases)",
        );
        return;
    };
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut text).unwrap();
    let mut differ = Vec::new();
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let side = |key: &str| Some(&case[key]).filter(|job| !job.is_null());
        let (old, new) = (side("old_job"), side("new_job"));
        if let Some(error) = case["error"].as_str().filter(|error| !error.is_empty()) {
            assert_eq!(jobs(old, new, false).unwrap_err().to_string(), error);
            continue;
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
                differ.push(format!(
                    "case {} {} {key}: {place}",
                    case["case"], case["edits"]
                ));
                break;
            }
        }
    }
    assert!(
        differ.is_empty(),
        "{} differ:\n{}",
        differ.len(),
        differ[..differ.len().min(40)].join("\n")
    );
}

#[test]
fn what_nomad_only_marks_is_listed() {
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
