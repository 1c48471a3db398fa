//! Times at which periodic jobs are launched.
//!
//! Expressions are read by `croner`, with the fields as in Nomad's `cronexpr`: minute, hour, day of month,
//! month, day of week; a sixth is the year, and with seven the first is the second. `@hourly` and the like,
//! `L`, `W`, `#`, names of days and months, and Sunday as 7 are the same. If both days are restricted, either
//! will do.
//!
//! The clock may go forward or back. A job with a fixed time of day is launched once on either day. If its time is
//! skipped, it is launched at the end of the gap. If its time comes twice, it is launched at the first of the two. A
//! job with `*` or a step in its hours, minutes or seconds follows the clock: no launch in the gap, and launches in
//! both hours. Nomad skips the fixed time in the gap, and does not distinguish the two kinds. A zone `Local` is UTC
//! here: a server that becomes leader must find the same times.

use std::collections::BTreeMap;

use chrono::DateTime;
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use muster_domain::fault::Fault;
use muster_domain::id::{JobKey, LogIndex, Timestamp};
use muster_domain::job::{Job, JobSpec, Periodic};

use crate::fsm::{Entry, JobCommand};
use crate::state::State;

const NS_PER_S: u64 = 1_000_000_000;

/// Everything that is wrong with the expressions and the time zone of a job.
#[must_use]
pub fn faults(spec: &JobSpec) -> Vec<Fault> {
    let Some(periodic) = &spec.periodic else {
        return Vec::new();
    };
    let at = format!("job \"{}\" → periodic", spec.id);
    let mut faults = Vec::new();
    if periodic.specs.is_empty() {
        faults.push(Fault::new(
            format!("{at} → cron"),
            "is missing: say when, such as \"*/15 * * * *\"",
        ));
    }
    for text in &periodic.specs {
        if let Err(why) = parse(text) {
            let reason = format!("\"{text}\" is not a cron expression: {why}");
            faults.push(Fault::new(format!("{at} → cron"), reason));
        }
    }
    if zone(periodic).is_none() {
        let reason = format!(
            "unknown time zone \"{}\": use a name such as \"Europe/Berlin\", or leave it out for UTC",
            periodic.time_zone
        );
        faults.push(Fault::new(format!("{at} → time_zone"), reason));
    }
    faults
}

fn parse(text: &str) -> Result<Cron, String> {
    let fields = text.split_whitespace().count();
    // Without a second, which comes first, the sixth field is the year.
    let seconded = match fields {
        1 if text.trim_start().starts_with('@') => text.trim().to_owned(),
        5 | 6 => format!("0 {text}"),
        7 => text.to_owned(),
        _ => {
            return Err(format!(
                "use 5 fields, not {fields}: minute, hour, day of month, month and day of week"
            ));
        }
    };
    let parser = CronParser::builder()
        .seconds(Seconds::Optional)
        .year(Year::Optional)
        .sloppy_ranges(true)
        .build();
    parser.parse(&seconded).map_err(|error| error.to_string())
}

fn zone(periodic: &Periodic) -> Option<Tz> {
    // Go's name for the time zone of the machine. A server has no zone of its own.
    if matches!(periodic.time_zone.as_str(), "" | "Local") {
        return Some(Tz::UTC);
    }
    periodic.time_zone.parse().ok()
}

/// Returns the first launch after `after`. `None`: there is no such launch, or the job was not checked by [`faults`].
#[must_use]
pub fn next_launch(periodic: &Periodic, after: Timestamp) -> Option<Timestamp> {
    let after = local(periodic, after)?;
    let next = |cron: Cron| stamp(&cron.find_next_occurrence(&after, false).ok()?);
    crons(periodic).filter_map(next).min()
}

/// Returns the last launch after `after` and up to `now`.
fn last_launch(periodic: &Periodic, after: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let now = local(periodic, now)?;
    let last = |cron: Cron| stamp(&cron.find_previous_occurrence(&now, true).ok()?);
    let newest = crons(periodic).filter_map(last).max();
    newest.filter(|at| *at > after)
}

fn crons(periodic: &Periodic) -> impl Iterator<Item = Cron> {
    periodic.specs.iter().filter_map(|text| parse(text).ok())
}

/// Returns `at` on the job's clock, to the second: no launch is between two seconds.
fn local(periodic: &Periodic, at: Timestamp) -> Option<DateTime<Tz>> {
    let seconds = i64::try_from(at.0 / NS_PER_S).ok()?;
    let at = DateTime::from_timestamp(seconds, 0)?;
    Some(at.with_timezone(&zone(periodic)?))
}

fn stamp(at: &DateTime<Tz>) -> Option<Timestamp> {
    let seconds = u64::try_from(at.timestamp()).ok()?;
    Some(Timestamp(seconds.checked_mul(NS_PER_S)?))
}

/// Returns the time after which a job is to be launched: the time of its last launch, or of its submission.
fn base(job: &Job) -> Timestamp {
    let submitted = job.current.submit_time;
    job.launched_at
        .map_or(submitted, |last| last.max(submitted))
}

/// The next launch of each periodic job. It is valid as long as the job has not changed since it was found.
#[derive(Debug, Default)]
pub struct PeriodicLaunches {
    known: BTreeMap<JobKey, ScheduledJob>,
}

#[derive(Clone, Copy, Debug)]
struct ScheduledJob {
    version: LogIndex,
    base: Timestamp,
    next: Option<Timestamp>,
}

impl PeriodicLaunches {
    /// Returns the launches at `now`, and when to look again. If several launches were missed because there was no
    /// leader, only the newest of them is made up for.
    pub fn due(&mut self, state: &State, now: Timestamp) -> (Vec<Entry>, Option<Timestamp>) {
        let mut before = std::mem::take(&mut self.known);
        let mut commands = Vec::new();
        let mut again: Option<Timestamp> = None;
        for job in state.jobs().periodic() {
            let periodic = job.current.spec.periodic.as_ref();
            let Some(periodic) = periodic.filter(|periodic| periodic.enabled) else {
                continue;
            };
            let (key, version, base) = (job.key(), job.current.job_modify_index, base(job));
            let known = before
                .remove(&key)
                .filter(|known| (known.version, known.base) == (version, base))
                .unwrap_or_else(|| ScheduledJob {
                    version,
                    base,
                    next: next_launch(periodic, base),
                });
            if let Some(next) = known.next {
                if next <= now {
                    let due = last_launch(periodic, base, now).unwrap_or(next);
                    commands.push(
                        JobCommand::LaunchPeriodic {
                            key: key.clone(),
                            due,
                            forced: false,
                        }
                        .at(now),
                    );
                } else {
                    again = Some(again.map_or(next, |other| other.min(next)));
                }
            }
            self.known.insert(key, known);
        }
        (commands, again)
    }
}

#[cfg(test)]
mod tests;
