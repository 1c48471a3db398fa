use std::collections::BTreeMap;
use std::time::SystemTime;

use muster_driver::TaskUsage;

use super::*;

const DRIVER: &str = "docker";

fn words(cpu: CpuUsage, memory: MemoryUsage) -> TaskStats {
    TaskStats {
        task_id: "task".to_owned(),
        at: SystemTime::UNIX_EPOCH,
        usage: TaskUsage { cpu, memory },
        by_pid: BTreeMap::new(),
    }
}

fn percent(percent: f64) -> TaskStats {
    let cpu = CpuUsage {
        percent,
        measured: vec![CpuField::Percent],
        ..CpuUsage::default()
    };
    words(cpu, MemoryUsage::default())
}

/// Seconds of CPU time.
fn cpu(usage: &DriverUsage, now: Instant) -> Option<f64> {
    let cpu = usage.known(DRIVER, now).unwrap().cpu;
    cpu.map(|cpu| cpu.as_secs_f64())
}

/// Half a core for 5 s is 2.5 s, spread over the next 5 s.
#[test]
fn shares_become_time_that_grows_evenly() {
    let (usage, start) = (DriverUsage::default(), Instant::now());
    let after = |seconds| start + Duration::from_secs_f64(seconds);

    usage.take(&percent(80.0), start, true);
    assert_eq!(cpu(&usage, after(4.0)), Some(0.0));
    usage.take(&percent(50.0), after(5.0), false);

    let cpu_seconds = [5.0, 6.0, 10.0, 12.0].map(|seconds| cpu(&usage, after(seconds)));
    assert_eq!(cpu_seconds, [Some(0.0), Some(0.5), Some(2.5), Some(2.5)]);
}

/// The next life of a driver counts from an unknown time.
#[test]
fn restarted_stats_stream_ignores_first_sample() {
    let (usage, start) = (DriverUsage::default(), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    usage.take(&percent(0.0), start, true);
    usage.take(&percent(100.0), after(5), false);

    usage.refuse("it is being started again");
    usage.take(&percent(100.0), after(20), true);

    assert_eq!(cpu(&usage, after(25)), Some(5.0));
}

#[test]
fn unmeasured_usage_is_absent() {
    let (usage, now) = (DriverUsage::default(), Instant::now());
    let cpu = CpuUsage {
        percent: 3.0,
        throttled_periods: 4,
        measured: vec![CpuField::ThrottledPeriods, CpuField::SystemMode],
        ..CpuUsage::default()
    };
    let memory = MemoryUsage {
        rss: 1,
        cache: 2,
        swap: 0,
        measured: vec![MemoryField::Rss, MemoryField::Swap],
        ..MemoryUsage::default()
    };

    usage.take(&words(cpu, memory), now, true);

    let expected = ReportedUsage {
        throttled_periods: Some(4),
        memory_bytes: Some(1),
        memory_anon_bytes: Some(1),
        memory_swap_bytes: Some(0),
        ..ReportedUsage::default()
    };
    assert_eq!(usage.known(DRIVER, now), Ok(expected));
}

#[test]
fn invalid_cpu_percentages_are_absent() {
    let (usage, start) = (DriverUsage::default(), Instant::now());
    for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        usage.take(&percent(wrong), start, false);
        assert_eq!(cpu(&usage, start), None, "{wrong}");
    }
}

#[test]
fn missing_or_old_usage_has_a_reason() {
    let (usage, start) = (DriverUsage::default(), Instant::now());
    let nothing_yet = usage.known(DRIVER, start).unwrap_err();
    usage.take(&percent(1.0), start, true);
    assert!(usage.known(DRIVER, start + DRIVER_USAGE_KEPT).is_ok());

    let late = start + DRIVER_USAGE_KEPT + Duration::from_nanos(1);
    let old = usage.known(DRIVER, late).unwrap_err();
    usage.refuse(&format!(
        "TaskStats is not supported {}",
        "x".repeat(10_000)
    ));
    let refused = usage.known(DRIVER, start).unwrap_err();

    assert!(refused.len() < 300, "{refused}");
    for (reason, part) in [
        (nothing_yet, "has not reported its usage yet"),
        (old, "for more than"),
        (refused, "TaskStats is not supported"),
    ] {
        assert!(reason.contains(part), "{reason}");
        assert!(reason.contains("`docker`"), "{reason}");
    }
}
