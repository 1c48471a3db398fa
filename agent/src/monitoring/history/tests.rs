use super::*;
use crate::bpf::TaskTotals;
use crate::limits::{HISTORY_POINTS_MAX, HISTORY_STEP};
use crate::monitoring::history::sample::Sample;
use crate::monitoring::history::series::{AbsenceReasons, AvailablePrograms};
use crate::resources::cgroup::{Pressure, PressureStats, StallStats};

const STEP_S: u64 = 10;

/// The wall clock is a day ahead of the time since boot.
fn sample_time(s: u64) -> SampleTime {
    SampleTime {
        at: Timestamp::from_millis((86_400 + s) * 1_000),
        since_boot: Duration::from_secs(s),
    }
}

/// The programs for disks are absent.
const HAS: AvailablePrograms = AvailablePrograms {
    run_delay: true,
    block: false,
    retransmits: true,
};

fn key(task: &str) -> TaskKey {
    (AllocId([7; 16]), task.to_owned())
}

/// A sample with this CPU time, and as many sent bytes.
fn sample(cgroup_id: u64, began_s: u64, used: u64) -> Sample {
    let totals = TaskTotals {
        cpu_ns: used,
        net_tx_bytes: used,
        ..TaskTotals::default()
    };
    Sample {
        cgroup_id,
        counts: TaskCountValues::new(&totals, HAS),
        began: Some(Duration::from_secs(began_s)),
        memory_bytes: Some(4_096),
        absent: AbsenceReasons::default(),
    }
}

/// Runs steps at multiples of ten seconds, each with the sample of the one task.
fn kept(steps: impl IntoIterator<Item = (u64, Option<Sample>)>) -> HistoryState {
    let mut kept = HistoryState::default();
    for (s, found) in steps {
        if let Some(sample) = found {
            kept.add_sample(key("main"), sample, sample_time(s));
        }
        kept.evict_tasks(sample_time(s));
    }
    kept
}

/// The end and length of each span in seconds, and its usage.
fn points(kept: &HistoryState) -> Vec<(u64, u64, Option<u64>)> {
    let Some(series) = kept.tasks.get(&key("main")) else {
        return Vec::new();
    };
    let points = series.points(Timestamp(0));
    let seconds = |at: Timestamp| at.0 / 1_000_000_000 - 86_400;
    points
        .iter()
        .map(|point| (seconds(point.at), point.span.as_secs(), point.net_tx_bytes))
        .collect()
}

#[test]
fn task_started_between_samples_counts_from_zero() {
    let kept = kept([
        (10, None),
        (20, Some(sample(1, 16, 400))),
        (30, Some(sample(1, 16, 1_000))),
    ]);

    assert_eq!(points(&kept), [(20, 4, Some(400)), (30, 10, Some(600))]);
}

/// The use of a task before the first look is not attributed to any point.
#[test]
fn preexisting_task_has_no_point_at_first_sample() {
    let kept = kept([
        (10, Some(sample(1, 2, 5_000))),
        (20, Some(sample(1, 2, 5_100))),
    ]);

    assert_eq!(points(&kept), [(20, 10, Some(100))]);
}

/// The task was adopted after the first look.
#[test]
fn late_adopted_task_has_no_point_at_first() {
    let kept = kept([
        (10, None),
        (20, Some(sample(1, 2, 5_000))),
        (30, Some(sample(1, 2, 5_100))),
    ]);

    assert_eq!(points(&kept), [(30, 10, Some(100))]);
}

#[test]
fn restart_counts_from_zero_and_leaves_gap() {
    let kept = kept([
        (10, None),
        (20, Some(sample(1, 12, 800))),
        (30, None),
        (40, Some(sample(2, 35, 50))),
    ]);

    assert_eq!(points(&kept), [(20, 8, Some(800)), (40, 5, Some(50))]);
}

/// The look at 30 failed as a whole: the next one covers both spans.
#[test]
fn a_look_that_failed_loses_nothing() {
    let kept = kept([
        (10, None),
        (20, Some(sample(1, 20, 0))),
        (40, Some(sample(1, 20, 70))),
    ]);

    assert_eq!(points(&kept).last(), Some(&(40, 20, Some(70))));
}

#[test]
fn missing_counters_are_absent_not_zero() {
    let mut without = sample(1, 12, 0);
    without.counts = TaskCountValues::NONE;
    without.memory_bytes = None;
    without.absent.memory = Some("no controller".into());
    let kept = kept([
        (10, None),
        (20, Some(sample(1, 12, 9))),
        (30, Some(without)),
    ]);

    let series = &kept.tasks[&key("main")];
    let [first, second] = series.points(Timestamp(0))[..] else {
        panic!("two points")
    };

    assert_eq!(
        (first.cpu, first.memory_bytes),
        (Some(Duration::from_nanos(9)), Some(4_096))
    );
    // The programs for disks are absent.
    assert_eq!(
        (first.block_read_bytes, first.run_delay),
        (None, Some(Duration::ZERO))
    );
    assert_eq!(
        (second.cpu, second.net_tx_bytes, second.memory_bytes),
        (None, None, None)
    );
    assert_eq!(
        (
            second.context_switches,
            second.tcp_retransmits,
            second.throttled,
            second.pressure_io
        ),
        (None, None, None, None)
    );
    assert_eq!(series.absent.memory.as_deref(), Some("no controller"));
}

/// In ten seconds, the task was throttled for 2 and stalled for 1, 3 and 4. It switched threads more often than 32
/// bits can count.
#[test]
fn waits_and_switches_are_those_of_the_span() {
    let waits = |us: u64| StallStats {
        throttled_us: Some(2 * us),
        pressure: Some(PressureStats {
            cpu: some(us),
            memory: some(3 * us),
            io: some(4 * us),
        }),
    };
    let at = |switches: u64, us: u64| {
        let totals = TaskTotals {
            context_switches: switches,
            tcp_retransmits: us / 500_000,
            ..TaskTotals::default()
        };
        let mut look = sample(1, 10, 0);
        look.counts = TaskCountValues::new(&totals, HAS).with_waits(waits(us));
        Some(look)
    };
    let kept = kept([
        (10, None),
        (20, at(5, 1_000_000)),
        (30, at(6, 2_000_000)),
        (40, at(1 << 40, 2_000_000)),
    ]);

    let points = kept.tasks[&key("main")].points(Timestamp(0));

    let seconds = |s| Some(Duration::from_secs(s));
    for point in &points[..2] {
        assert_eq!(point.throttled, seconds(2));
        assert_eq!(point.pressure_cpu, seconds(1));
        assert_eq!(point.pressure_memory, seconds(3));
        assert_eq!(point.pressure_io, seconds(4));
        assert_eq!(point.tcp_retransmits, Some(2));
    }
    let switches: Vec<_> = points.iter().map(|point| point.context_switches).collect();
    let most = u64::from(u32::MAX) - 1;
    assert_eq!(switches, [Some(5), Some(1), Some(most)]);
    assert_eq!(points[2].throttled, Some(Duration::ZERO));
}

fn some(some_us: u64) -> Pressure {
    Pressure {
        some_us,
        full_us: None,
    }
}

#[test]
fn points_are_kept_for_ten_minutes_at_most() {
    let steps = (1..=100).map(|step| (step * STEP_S, Some(sample(1, 0, step))));

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
fn finished_task_history_expires_after_ten_minutes() {
    let mut kept = kept([(10, None), (20, Some(sample(1, 12, 8)))]);

    kept.evict_tasks(sample_time(619));
    assert_eq!(points(&kept), [(20, 8, Some(8))]);
    kept.evict_tasks(sample_time(620));
    assert_eq!(points(&kept), []);
}

/// Thousands of short tasks would each keep the memory for ten minutes of points.
#[test]
fn finished_task_keeps_room_for_its_points() {
    let capacity = |kept: &HistoryState| kept.tasks[&key("main")].capacity();
    let mut kept = kept([(10, None), (20, Some(sample(1, 16, 400)))]);
    assert_eq!(capacity(&kept), HISTORY_POINTS_MAX);

    kept.evict_tasks(sample_time(30));
    assert_eq!(capacity(&kept), 1);
    assert_eq!(points(&kept), [(20, 4, Some(400))]);

    // The next start of the task has its full room again.
    kept.add_sample(key("main"), sample(2, 35, 100), sample_time(40));
    kept.evict_tasks(sample_time(40));
    assert_eq!(capacity(&kept), HISTORY_POINTS_MAX);
    assert_eq!(points(&kept), [(20, 4, Some(400)), (40, 5, Some(100))]);
}

/// A task that ended makes room, the first to end first. Tasks that live stay, and one more task has no history.
#[test]
fn there_are_only_so_many() {
    let mut kept = HistoryState::default();
    kept.evict_tasks(sample_time(10));
    for (name, at) in [("ended first", 20), ("ended later", 30)] {
        kept.add_sample(key(name), sample(1, at - 1, 1), sample_time(at));
        kept.evict_tasks(sample_time(at));
    }
    let live = HISTORY_TASKS_MAX - HISTORY_TASKS_SPARE - 1;
    for number in 0..live {
        kept.add_sample(
            key(&format!("t{number}")),
            sample(2, 32, 1),
            sample_time(40),
        );
    }
    kept.evict_tasks(sample_time(40));
    assert!(kept.tasks.contains_key(&key("ended later")));
    assert!(!kept.tasks.contains_key(&key("ended first")));

    for number in live..=HISTORY_TASKS_MAX {
        kept.add_sample(
            key(&format!("t{number}")),
            sample(3, 42, 1),
            sample_time(50),
        );
    }

    assert_eq!(kept.tasks.len(), HISTORY_TASKS_MAX);
    assert!(
        !kept
            .tasks
            .contains_key(&key(&format!("t{HISTORY_TASKS_MAX}")))
    );
    // Tasks that this step did not see make room for others.
    kept.evict_tasks(sample_time(50));
    assert_eq!(kept.tasks.len(), HISTORY_TASKS_MAX - HISTORY_TASKS_SPARE);
    assert!(kept.tasks.contains_key(&key(&format!("t{live}"))));
}
