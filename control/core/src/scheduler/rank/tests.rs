use std::path::Path;

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

/// The recorded decisions of a real Nomad, if they are there.
pub(in crate::scheduler) fn cases(test: &str, file: &str) -> Option<Vec<serde_json::Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/cases")
        .join(file);
    let Ok(text) = std::fs::read_to_string(path) else {
        skipped(
            test,
            "no recorded cases beside the workspace (../shared/cases)",
        );
        return None;
    };
    Some(
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

#[test]
fn binpack_scores_are_nomads() {
    let Some(cases) = cases("binpack_scores_are_nomads", "fit_and_score.jsonl") else {
        return;
    };
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let mut compared = 0;
    for case in &cases {
        let (node, used) = (&case["node"], &case["used"]);
        let amount = |suffix: &str, of: &str| {
            number(&node[format!("{of}_{suffix}")])
                .saturating_sub(number(&node[format!("reserved_{of}_{suffix}")]))
        };
        let total = Amount {
            cpu_mhz: amount("mhz", "cpu"),
            memory_mb: amount("mb", "memory"),
            disk_mb: 0,
        };
        // A node without capacity is refused here; Nomad divides by zero.
        if total.cpu_mhz == 0 || total.memory_mb == 0 {
            continue;
        }
        let used = Amount {
            cpu_mhz: number(&used["cpu_mhz"]),
            memory_mb: number(&used["memory_mb"]),
            disk_mb: 0,
        };

        let score = binpack::score(total, used) * 18.0;

        let expected = case["score_binpack"].as_f64().unwrap();
        assert!(
            (score - expected).abs() < 1e-9,
            "case {}: {score} is not {expected}",
            case["case"]
        );
        compared += 1;
    }
    assert!(
        compared > 900,
        "only {compared} of {} were compared",
        cases.len()
    );
}

#[test]
fn fit_is_nomads_where_no_core_or_device_is_asked_for() {
    let test = "fit_is_nomads_where_no_core_or_device_is_asked_for";
    let Some(cases) = cases(test, "fit_and_score.jsonl") else {
        return;
    };
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let mut compared = 0;
    for case in &cases {
        let (node, used, dimension) = (
            &case["node"],
            &case["used"],
            case["dimension"].as_str().unwrap(),
        );
        let usable = |name: &str| {
            number(&node[name]).saturating_sub(number(&node[format!("reserved_{name}")]))
        };
        let total = Amount {
            cpu_mhz: usable("cpu_mhz"),
            memory_mb: usable("memory_mb"),
            disk_mb: usable("disk_mb"),
        };
        let used = Amount {
            cpu_mhz: number(&used["cpu_mhz"]),
            memory_mb: number(&used["memory_mb"]),
            disk_mb: number(&used["disk_mb"]),
        };
        // More reserved than there is: such a node is refused before this comparison.
        if total.cpu_mhz == 0 || total.memory_mb == 0 || total.disk_mb == 0 {
            continue;
        }
        if matches!(dimension, "" | "cpu" | "memory" | "disk") {
            assert_eq!(
                used.exceeds(total).unwrap_or(""),
                dimension,
                "case {}",
                case["case"]
            );
            compared += 1;
        }
    }
    assert!(
        compared > 300,
        "only {compared} of {} were compared",
        cases.len()
    );
}

#[test]
fn the_winner_is_the_first_of_the_best() {
    let mut scores = vec![0.5, 1.0, 1.0, f64::NEG_INFINITY, 0.2];

    let mut tree = Tournament::new(&scores, 2);
    assert_eq!(tree.winner(), Some(2));
    scores[2] = 0.1;
    tree.update(&scores, 2);
    assert_eq!(tree.winner(), Some(1));
    scores[4] = 2.0;
    tree.update(&scores, 4);
    assert_eq!(tree.winner(), Some(4));

    assert_eq!(Tournament::new(&[], 7).winner(), None);
    assert_eq!(Tournament::new(&[0.0], 7).winner(), Some(0));
}
