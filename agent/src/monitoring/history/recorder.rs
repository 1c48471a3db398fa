//! Samples of running tasks, taken at each step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_domain::error_chain::chain;
use muster_domain::saturating::{micros, nanos};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::bpf::{Bpf, TotalsByCgroup};
use crate::context::AgentContext;
use crate::limits::HISTORY_STEP;
use crate::monitoring::history::sample::Sample;
use crate::monitoring::history::series::{
    AbsenceReasons, AvailablePrograms, SampleTime, TaskCountValues,
};
use crate::monitoring::history::since_boot;
use crate::monitoring::history::{BLOCK, NO_MEMORY, RETRANSMITS, RUN_DELAY};
use crate::monitoring::stats::{
    GONE, NO_PRESSURE, NOT_REGISTERED, absent_from_cgroup, absent_from_driver,
};
use crate::resources::cgroup::{CgroupFileError, CgroupRows, Controller, StallStats, TaskCgroup};
use crate::session::clock::now;
use crate::tasks::drivers::usage::is_measured_by_driver;
use crate::tasks::live::LiveTask;

/// Looks at all tasks until the agent stops.
pub(crate) async fn run(context: Arc<AgentContext>, stop: CancellationToken) {
    // The first look is at once, so tasks that begin after it are measured from their start.
    let mut steps = tokio::time::interval(HISTORY_STEP);
    // After a stall of the agent, one look covers the whole span.
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(steps.tick()).await.is_some() {
        let context = Arc::clone(&context);
        // A look at thousands of tasks takes milliseconds.
        let sampled = tokio::task::spawn_blocking(move || {
            step(&context);
            if let Some(bpf) = context.bpf() {
                bpf.forget_retired_policies();
            }
        });
        if let Err(error) = sampled.await {
            tracing::error!(%error, "what tasks use is not kept");
        }
    }
}

/// Samples a task that only its driver sees. Its use before the driver was asked is not known.
fn sample(live: &LiveTask) -> Sample {
    let driver = &live.record.driver;
    let known = live.usage.known(driver, Instant::now());
    let reason = known.as_ref().err().cloned();
    let reason: Box<str> = reason.unwrap_or_else(|| absent_from_driver(driver)).into();
    let known = known.unwrap_or_default();
    let throttled_us = known.throttled.map(micros);
    let waits = StallStats {
        throttled_us,
        pressure: None,
    };
    let unless = |is_reported: bool| (!is_reported).then(|| reason.clone());
    Sample {
        cgroup_id: live.record.cgroup_id,
        counts: TaskCountValues::of_cpu(known.cpu.map(nanos)).with_waits(waits),
        began: None,
        memory_bytes: known.memory_bytes,
        absent: AbsenceReasons {
            memory: unless(known.memory_bytes.is_some()),
            counts: unless(false),
            throttled: unless(throttled_us.is_some()),
            pressure: unless(false),
        },
    }
}

/// Returns the value, or sets `why` to the reason for its absence.
fn value_or_reason<T>(value: Result<T, Box<str>>, why: &mut Option<Box<str>>) -> Option<T> {
    value.map_err(|reason| *why = Some(reason)).ok()
}

/// Bytes of charged memory and the stall times of a task, and the reasons for absent values.
fn memory_and_stalls(
    live: &LiveTask,
    walked: Option<&CgroupRows>,
    absent: &mut AbsenceReasons,
) -> (Option<u64>, StallStats) {
    let cgroup = live.cgroup.as_ref().zip(walked);
    if let Some((memory, waits)) = cgroup.and_then(|(cgroup, walked)| cgroup.now_in(walked)) {
        let memory = memory.ok_or_else(|| NO_MEMORY.into());
        return (
            value_or_reason(memory, &mut absent.memory),
            waits_or(live, Some(Ok(waits)), absent),
        );
    }
    let waits = live.cgroup.as_ref().map(TaskCgroup::waits_now);
    let waits = waits_or(live, waits, absent);
    (value_or_reason(memory(live), &mut absent.memory), waits)
}

/// Returns the waits of a task, and records the reasons for absent ones.
fn waits_or(
    live: &LiveTask,
    found: Option<Result<StallStats, CgroupFileError>>,
    absent: &mut AbsenceReasons,
) -> StallStats {
    let reason = match found {
        Some(Ok(waits)) => {
            if waits.throttled_us.is_none() {
                absent.throttled = Some(absent_from_cgroup(live, Controller::Cpu).into());
            }
            if waits.pressure.is_none() {
                absent.pressure = Some(NO_PRESSURE.into());
            }
            return waits;
        }
        Some(Err(error)) => chain(&error),
        None => GONE.to_owned(),
    };
    absent.throttled = Some(reason.as_str().into());
    absent.pressure = Some(reason.into());
    StallStats::default()
}

/// The time at which the first process of a start began, since boot.
fn began(bpf: Option<&Bpf>, cgroup_id: u64) -> Option<Duration> {
    let main = bpf?.main_of(cgroup_id).ok()??;
    Some(Duration::from_nanos(main.start_boottime_ns))
}

/// Bytes of charged memory, or the reason why they are unknown.
fn memory(live: &LiveTask) -> Result<u64, Box<str>> {
    let Some(cgroup) = &live.cgroup else {
        return Err(GONE.into());
    };
    match cgroup.memory_now() {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(NO_MEMORY.into()),
        Err(error) => Err(chain(&error).into()),
    }
}

/// Looks at all tasks.
fn step(context: &AgentContext) {
    let histories = &context.monitoring.histories;
    let live = context.tasks.live.of(None);
    let sample_time = SampleTime {
        at: now(),
        since_boot: since_boot(),
    };
    let counted = match context.bpf().map(|bpf| bpf.collect_totals(live.len())) {
        Some(Ok(counted)) => counted,
        Some(Err(error)) => {
            // The next look covers this span, too.
            tracing::warn!(%error, "what tasks use was not collected");
            return;
        }
        None => TotalsByCgroup::default(),
    };
    let walked = context.walked();
    let has = |part| {
        let bpf = context.bpf();
        bpf.is_some_and(|bpf| !bpf.absent().contains_key(part))
    };
    let has = AvailablePrograms {
        run_delay: has(RUN_DELAY),
        block: has(BLOCK),
        retransmits: has(RETRANSMITS),
    };
    for (alloc_id, name, live) in live {
        let key = (alloc_id, name);
        let cgroup_id = live.record.cgroup_id;
        let sample = if is_measured_by_driver(&live) {
            sample(&live)
        } else {
            let totals = counted.get(&cgroup_id);
            let counts = totals.map_or(TaskCountValues::NONE, |totals| {
                TaskCountValues::new(totals, has)
            });
            let mut absent = AbsenceReasons {
                counts: totals.is_none().then(|| match &context.bpf {
                    Ok(_) => NOT_REGISTERED.into(),
                    Err(reason) => reason.as_str().into(),
                }),
                ..AbsenceReasons::default()
            };
            // No lock is held while files are read, so that readers are not blocked.
            let (memory_bytes, waits) = memory_and_stalls(&live, walked.as_ref(), &mut absent);
            let is_known = histories.locked().knows(&key, cgroup_id);
            Sample {
                cgroup_id,
                counts: counts.with_waits(waits),
                began: (!is_known)
                    .then(|| began(context.bpf(), cgroup_id))
                    .flatten(),
                memory_bytes,
                absent,
            }
        };
        histories.locked().add_sample(key, sample, sample_time);
    }
    histories.locked().evict_tasks(sample_time);
}
