use super::*;
use crate::bpf::TaskTotals;
use crate::limits::HISTORY_POINTS_MAX;

const STEP_S: u64 = 10;

/// The clock on the wall is a day ahead of the time since boot.
fn moment(s: u64) -> Moment {
    Moment {
        at: Timestamp::from_millis((86_400 + s) * 1_000),
        since_boot: Duration::from_secs(s),
    }
}

fn key(task: &str) -> Key {
    (AllocId([7; 16]), task.to_owned())
}

/// So much CPU time, and as many bytes sent.
fn look(cgroup_id: u64, began_s: u64, used: u64) -> Look {
    let totals = TaskTotals {
        cpu_ns: used,
        net_tx_bytes: used,
        ..TaskTotals::default()
    };
    Look {
        cgroup_id,
        counts: Counts::new(&totals, true, false),
        began: Some(Duration::from_secs(began_s)),
        memory_bytes: Ok(4_096),
        no_counts: None,
    }
}

/// Steps at multiples of ten seconds, each with what is found of the one task.
fn kept(steps: impl IntoIterator<Item = (u64, Option<Look>)>) -> Kept {
    let mut kept = Kept::default();
    for (s, found) in steps {
        if let Some(look) = found {
            kept.look(key("main"), look, moment(s));
        }
        kept.end_step(moment(s));
    }
    kept
}

/// End and length of the span in seconds, and what was used.
fn points(kept: &Kept) -> Vec<(u64, u64, Option<u64>)> {
    let Some(series) = kept.tasks.get(&key("main")) else {
        return Vec::new();
    };
    let points = series.points(Timestamp(0));
    let seconds = |at: Timestamp| at.0 / 1_000_000_000 - 86_400;
    let told = points.iter();
    told.map(|point| (seconds(point.at), point.span.as_secs(), point.net_tx_bytes))
        .collect()
}

#[test]
fn a_task_that_begins_between_two_looks_is_told_from_its_begin() {
    let kept = kept([
        (10, None),
        (20, Some(look(1, 16, 400))),
        (30, Some(look(1, 16, 1_000))),
    ]);

    assert_eq!(points(&kept), [(20, 4, Some(400)), (30, 10, Some(600))]);
}

/// What it used before is nobody's knowledge of when.
#[test]
fn a_task_that_was_there_before_the_agent_has_no_point_at_first() {
    let kept = kept([(10, Some(look(1, 2, 5_000))), (20, Some(look(1, 2, 5_100)))]);

    assert_eq!(points(&kept), [(20, 10, Some(100))]);
}

/// It was adopted later than the first look.
#[test]
fn a_task_that_began_before_a_look_that_missed_it_has_no_point_at_first() {
    let kept = kept([
        (10, None),
        (20, Some(look(1, 2, 5_000))),
        (30, Some(look(1, 2, 5_100))),
    ]);

    assert_eq!(points(&kept), [(30, 10, Some(100))]);
}

#[test]
fn another_start_counts_from_zero_and_leaves_a_gap() {
    let kept = kept([
        (10, None),
        (20, Some(look(1, 12, 800))),
        (30, None),
        (40, Some(look(2, 35, 50))),
    ]);

    assert_eq!(points(&kept), [(20, 8, Some(800)), (40, 5, Some(50))]);
}

/// The look at 30 failed as a whole: the next one tells of both spans.
#[test]
fn a_look_that_failed_loses_nothing() {
    let kept = kept([
        (10, None),
        (20, Some(look(1, 20, 0))),
        (40, Some(look(1, 20, 70))),
    ]);

    assert_eq!(points(&kept).last(), Some(&(40, 20, Some(70))));
}

#[test]
fn what_is_not_counted_is_absent_and_not_zero() {
    let mut without = look(1, 12, 0);
    without.counts = Counts::NONE;
    without.memory_bytes = Err("no controller".into());
    let kept = kept([(10, None), (20, Some(look(1, 12, 9))), (30, Some(without))]);

    let series = &kept.tasks[&key("main")];
    let [first, second] = series.points(Timestamp(0))[..] else {
        panic!("two points")
    };

    assert_eq!(
        (first.cpu, first.memory_bytes),
        (Some(Duration::from_nanos(9)), Some(4_096))
    );
    // The programs for disks are not there.
    assert_eq!(
        (first.block_read_bytes, first.run_delay),
        (None, Some(Duration::ZERO))
    );
    assert_eq!(
        (second.cpu, second.net_tx_bytes, second.memory_bytes),
        (None, None, None)
    );
    assert_eq!(series.no_memory.as_deref(), Some("no controller"));
}

#[test]
fn points_are_kept_for_ten_minutes_at_most() {
    let steps = (1..=100).map(|step| (step * STEP_S, Some(look(1, 0, step))));

    let kept = kept(steps);

    let points = points(&kept);
    assert_eq!(points.len(), HISTORY_POINTS_MAX);
    assert_eq!(points.last(), Some(&(1_000, 10, Some(1))));
    assert_eq!(
        HISTORY_STEP * u32::try_from(HISTORY_POINTS_MAX).unwrap(),
        HISTORY_KEPT
    );
}

#[test]
fn a_task_that_ended_is_told_for_ten_minutes() {
    let mut kept = kept([(10, None), (20, Some(look(1, 12, 8)))]);

    kept.end_step(moment(619));
    assert_eq!(points(&kept), [(20, 8, Some(8))]);
    kept.end_step(moment(620));
    assert_eq!(points(&kept), []);
}

/// Who ended makes room, first the one that ended first; those that live stay, and one more has none.
#[test]
fn there_are_only_so_many() {
    let mut kept = Kept::default();
    kept.end_step(moment(10));
    for (name, at) in [("ended first", 20), ("ended later", 30)] {
        kept.look(key(name), look(1, at - 1, 1), moment(at));
        kept.end_step(moment(at));
    }
    let live = HISTORY_TASKS_MAX - HISTORY_TASKS_SPARE - 1;
    for number in 0..live {
        kept.look(key(&format!("t{number}")), look(2, 32, 1), moment(40));
    }
    kept.end_step(moment(40));
    assert!(kept.tasks.contains_key(&key("ended later")));
    assert!(!kept.tasks.contains_key(&key("ended first")));

    for number in live..=HISTORY_TASKS_MAX {
        kept.look(key(&format!("t{number}")), look(3, 42, 1), moment(50));
    }

    assert_eq!(kept.tasks.len(), HISTORY_TASKS_MAX);
    assert!(
        !kept
            .tasks
            .contains_key(&key(&format!("t{HISTORY_TASKS_MAX}")))
    );
    // Those that were not seen this time make room for others.
    kept.end_step(moment(50));
    assert_eq!(kept.tasks.len(), HISTORY_TASKS_MAX - HISTORY_TASKS_SPARE);
    assert!(kept.tasks.contains_key(&key(&format!("t{live}"))));
}
