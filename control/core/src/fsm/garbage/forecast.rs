//! The earliest time at which an allocation may be removed, computed from the rules.
//!
//! The rules decide which objects are removed with a cutoff. The earliest cutoff that removes an allocation lies just
//! after one of the times in the rows. So the module tries those times, and the rules decide which of them count.

use muster_domain::id::Timestamp;
use muster_domain::job::Job;

use super::keep_reason::KeepReason;
use super::rule;
use crate::gc::config::GcConfig;
use crate::limits;
use crate::state::{AllocView, State};

/// The time from which a collection may free an allocation, or the reason why it stays, if nothing else changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcForecast {
    /// A collection removes it from then on: alone, with its evaluation or with its job, whichever comes first.
    From {
        /// The first moment at which a collection removes it.
        from: Timestamp,
        /// The reason why it stays until then.
        until_then: KeepReason,
    },
    /// It stays for this reason.
    Kept(KeepReason),
}

impl GcForecast {
    /// Returns the forecast for `alloc` at the time `at`, with the thresholds of `config`.
    #[must_use]
    pub fn of(state: &State, alloc: AllocView<'_>, config: &GcConfig, at: Timestamp) -> Self {
        let job = state.jobs.get(alloc.job_key()).map(|job| &**job);
        let by_eval = by_eval(state, alloc, job, config, at);
        let with_job = job.map(|job| with_job(state, job, config, at));
        match (by_eval, with_job) {
            (Ok(one), Some(Ok(other))) => Self::from(one.min(other)),
            (Ok(one), Some(Err(_)) | None) | (Err(_), Some(Ok(one))) => Self::from(one),
            (Err(why), Some(Err(_)) | None) => Self::Kept(why),
        }
    }

    fn from((from, until_then): Eligibility) -> Self {
        Self::From { from, until_then }
    }
}

/// The earliest time at which an object is removed, and the reason why it stays until then.
type Eligibility = (Timestamp, KeepReason);

/// Returns the time at which the allocation is removed with its evaluation, or alone while the evaluation stays.
fn by_eval(
    state: &State,
    alloc: AllocView<'_>,
    job: Option<&Job>,
    config: &GcConfig,
    at: Timestamp,
) -> Result<Eligibility, KeepReason> {
    let eval = state
        .evals
        .get(&alloc.eval_id())
        .ok_or(KeepReason::Needed)?;
    let times = [eval.modify_time, alloc.modify_time()];
    let earliest = |at| {
        let cutoff = earliest(&times, |before| {
            let extent = rule::eval(eval, job, before)?;
            if !rule::may_free(extent, eval, job) {
                return Err(KeepReason::Result);
            }
            rule::alloc_of(extent, state, alloc, job, before, at)
        })?;
        Ok(cutoff.plus(config.threshold_of_evals(eval.job_type)))
    };
    // An eligible allocation may have had to wait for its job before. So the moment is computed again as of that time.
    match earliest(at).and_then(|from| earliest(from.min(at)).map(|_| from)) {
        Err(KeepReason::Replaceable) => {
            let until = job.and_then(|job| rule::replaceable_until(state, alloc, job));
            let settled = until.ok_or(KeepReason::Replaceable)?.plus(NEXT);
            let from = earliest(settled)?;
            Ok((from.max(settled), KeepReason::Replaceable))
        }
        other => Ok((other?, KeepReason::Young)),
    }
}

/// Returns the time at which the job is removed with everything below it. A job with more objects below it than a slice
/// looks at is not looked at.
fn with_job(
    state: &State,
    job: &Job,
    config: &GcConfig,
    at: Timestamp,
) -> Result<Eligibility, KeepReason> {
    let submitted = job.current.submit_time;
    let mut cutoff = earliest(&[submitted], |before| rule::job(job, before))?;
    let mut looked_at = 0;
    let mut look = || {
        looked_at += 1;
        let is_bounded = looked_at <= limits::GC_LOOKED_AT_MAX;
        is_bounded.then_some(()).ok_or(KeepReason::Needed)
    };
    for eval in state.evals.of_job(&job.key()) {
        look()?;
        let ended = earliest(&[eval.modify_time], |before| rule::ended(eval, before))?;
        cutoff = cutoff.max(ended);
        for alloc in state.allocs.of_eval(&eval.id) {
            look()?;
            let ended = earliest(&[alloc.modify_time()], |before| {
                rule::alloc(state, alloc, Some(job), before, at)
            })?;
            cutoff = cutoff.max(ended);
        }
    }
    Ok((cutoff.plus(config.job_threshold), KeepReason::Young))
}

/// The least step of time.
const NEXT: std::time::Duration = std::time::Duration::from_nanos(1);

/// Returns the earliest cutoff for which `goes` holds: right after one of `times`.
fn earliest(
    times: &[Timestamp],
    goes: impl Fn(Timestamp) -> Result<(), KeepReason>,
) -> Result<Timestamp, KeepReason> {
    goes(Timestamp(u64::MAX))?;
    let cutoffs = times.iter().map(|time| time.plus(NEXT));
    let enough = cutoffs.filter(|before| goes(*before).is_ok());
    enough.min().ok_or(KeepReason::Young)
}
