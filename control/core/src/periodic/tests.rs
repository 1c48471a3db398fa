//! Periodic launches across changes of the clock and gaps in leadership.

use muster_domain::fixture::{job, node};
use muster_domain::id::JobKey;
use muster_domain::job::JobSpec;

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{Command, Response};

fn cron(specs: &[&str], time_zone: &str) -> Periodic {
    Periodic {
        enabled: true,
        specs: specs.iter().map(|text| (*text).to_owned()).collect(),
        prohibit_overlap: false,
        time_zone: time_zone.to_owned(),
    }
}

fn at(text: &str) -> Timestamp {
    let parsed = DateTime::parse_from_rfc3339(text).unwrap();
    Timestamp(u64::try_from(parsed.timestamp()).unwrap() * NS_PER_S)
}

fn local_time(at: Timestamp, periodic: &Periodic) -> String {
    local(periodic, at)
        .unwrap()
        .format("%Y-%m-%dT%H:%M:%S%:z")
        .to_string()
}

/// Returns the first launches after `after`, by the job's own clock.
fn launches(periodic: &Periodic, after: &str, count: usize) -> Vec<String> {
    let mut after = at(after);
    let mut found = Vec::new();
    while found.len() < count
        && let Some(next) = next_launch(periodic, after)
    {
        found.push(local_time(next, periodic));
        after = next;
    }
    found
}

fn first(spec: &str, after: &str) -> String {
    launches(&cron(&[spec], "UTC"), after, 1)
        .pop()
        .unwrap_or_default()
}

#[test]
fn fields_are_nomads() {
    let after = "2026-01-10T12:30:15Z";
    let cases = [
        ("*/15 * * * *", "2026-01-10T12:45:00+00:00"),
        ("0 3 * * *", "2026-01-11T03:00:00+00:00"),
        ("@hourly", "2026-01-10T13:00:00+00:00"),
        ("@daily", "2026-01-11T00:00:00+00:00"),
        ("@weekly", "2026-01-11T00:00:00+00:00"),
        ("@monthly", "2026-02-01T00:00:00+00:00"),
        ("@yearly", "2027-01-01T00:00:00+00:00"),
        // A sixth field is the year; with seven fields the first is the second.
        ("0 0 1 1 * 2028", "2028-01-01T00:00:00+00:00"),
        ("*/20 * * * * * *", "2026-01-10T12:30:20+00:00"),
        ("5 0 0 1 1 * 2028", "2028-01-01T00:00:05+00:00"),
        // The last day, the last Friday, the second Tuesday, the working day next to the 15th of a month.
        ("0 0 L * *", "2026-01-31T00:00:00+00:00"),
        ("0 0 * * 5L", "2026-01-30T00:00:00+00:00"),
        ("0 0 * * TUE#2", "2026-01-13T00:00:00+00:00"),
        ("0 0 15W 8 *", "2026-08-14T00:00:00+00:00"),
        // Sunday is 0 and 7; either day will do.
        ("0 0 * * 7", "2026-01-11T00:00:00+00:00"),
        ("0 0 13 * 0", "2026-01-11T00:00:00+00:00"),
        ("30/10 * * * *", "2026-01-10T12:40:00+00:00"),
    ];
    for (spec, expected) in cases {
        assert_eq!(first(spec, after), expected, "{spec}");
    }
}

#[test]
fn the_earliest_of_several_expressions_counts() {
    let several = cron(&["0 12 * * *", "0 6 * * *"], "UTC");

    assert_eq!(
        launches(&several, "2026-01-10T07:00:00Z", 2),
        ["2026-01-10T12:00:00+00:00", "2026-01-11T06:00:00+00:00"]
    );
}

#[test]
fn a_time_that_never_comes_is_none() {
    let past = cron(&["0 0 1 1 * 2020"], "UTC");

    assert_eq!(next_launch(&past, at("2026-01-01T00:00:00Z")), None);
}

/// 29 March 2026, Berlin: 02:00 becomes 03:00.
#[test]
fn a_skipped_time_comes_when_the_gap_ends() {
    let fixed = cron(&["30 2 * * *"], "Europe/Berlin");
    let steps = cron(&["*/30 * * * *"], "Europe/Berlin");

    assert_eq!(
        launches(&fixed, "2026-03-28T12:00:00Z", 2),
        ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    );
    assert_eq!(
        launches(&steps, "2026-03-29T00:20:00Z", 3),
        [
            "2026-03-29T01:30:00+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-29T03:30:00+02:00"
        ]
    );
}

/// 25 October 2026, Berlin: 03:00 becomes 02:00.
#[test]
fn a_time_that_comes_twice_is_taken_once() {
    let fixed = cron(&["30 2 * * *"], "Europe/Berlin");
    let steps = cron(&["*/30 * * * *"], "Europe/Berlin");

    assert_eq!(
        launches(&fixed, "2026-10-24T12:00:00Z", 2),
        ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    );
    assert_eq!(
        launches(&steps, "2026-10-25T00:00:00Z", 4),
        [
            "2026-10-25T02:30:00+02:00",
            "2026-10-25T02:00:00+01:00",
            "2026-10-25T02:30:00+01:00",
            "2026-10-25T03:00:00+01:00"
        ]
    );
}

#[test]
fn faults_name_their_place() {
    let mut spec = job("nightly").build();
    spec.periodic = Some(cron(&["0 25 * * *", "* * *", "0 3 * * *"], "Europe/Bärlin"));

    let faults: Vec<String> = faults(&spec).iter().map(ToString::to_string).collect();

    assert_eq!(faults.len(), 3, "{faults:#?}");
    assert!(faults[0].starts_with("job \"nightly\" → periodic → cron: \"0 25 * * *\""));
    assert!(faults[1].contains("use 5 fields, not 3"));
    assert!(faults[2].contains("Europe/Bärlin"));
}

/// A cluster at midnight of 10 January 2026, with one periodic job.
fn cluster(periodic: Periodic) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.now = at("2026-01-10T00:00:00Z");
    let mut spec = job("nightly").build();
    spec.periodic = Some(periodic);
    cluster.run(spec);
    cluster
}

/// Returns the times for which jobs are launched, by their hour and minute.
fn launch(cluster: &mut Cluster, duty: &mut PeriodicLaunches) -> (Vec<String>, Option<String>) {
    let utc = cron(&[], "UTC");
    let (commands, again) = duty.due(&cluster.state, cluster.now);
    let mut made = Vec::new();
    for command in commands {
        let Command::Job(JobCommand::LaunchPeriodic { due, .. }) = &command.command else {
            panic!("{command:?}");
        };
        made.push(local_time(*due, &utc));
        assert!(matches!(
            cluster.apply(command),
            Response::JobLaunched { .. }
        ));
    }
    (made, again.map(|at| local_time(at, &utc)))
}

#[test]
fn forced_launches_overlap_and_have_own_ids() {
    let mut cluster = cluster(Periodic {
        prohibit_overlap: true,
        ..cron(&["0 3 * * *"], "UTC")
    });
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let response = cluster.apply(
            JobCommand::LaunchPeriodic {
                key: JobKey::in_default("nightly"),
                due: cluster.now,
                forced: true,
            }
            .at(cluster.now),
        );
        let Response::JobLaunched { job_id, eval_id } = response else {
            panic!("{response:?}");
        };
        assert!(eval_id.is_some(), "{job_id} starts nothing");
        ids.insert(job_id);
    }

    assert_eq!(ids.len(), 3, "{ids:?}");
    let before = cluster.state.jobs().iter().count();
    cluster.now = at("2026-01-10T03:00:00Z");
    launch(&mut cluster, &mut PeriodicLaunches::default());
    assert_eq!(
        cluster.state.jobs().iter().count(),
        before,
        "it prohibits overlap"
    );
}

#[test]
fn a_job_that_becomes_periodic_stops() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let spec = job("j").build();
    cluster.run(spec.clone());
    assert_eq!(cluster.live("j").len(), 1);

    cluster.run(JobSpec {
        periodic: Some(cron(&["@daily"], "UTC")),
        ..spec
    });

    assert_eq!(cluster.live("j").len(), 0);
}

#[test]
fn a_job_is_launched_once_for_each_time() {
    let mut cluster = cluster(cron(&["0 * * * *"], "UTC"));
    let mut duty = PeriodicLaunches::default();

    let early = launch(&mut cluster, &mut duty);
    cluster.now = at("2026-01-10T01:00:00Z");
    let due = launch(&mut cluster, &mut duty);
    let again = launch(&mut cluster, &mut duty);

    let next = |text: &str| Some(text.to_owned());
    assert_eq!(early, (vec![], next("2026-01-10T01:00:00+00:00")));
    assert_eq!(due.0, ["2026-01-10T01:00:00+00:00"]);
    assert_eq!(again, (vec![], next("2026-01-10T02:00:00+00:00")));
}

#[test]
fn only_latest_missed_launch_is_run() {
    let mut cluster = cluster(cron(&["0 * * * *"], "UTC"));
    cluster.now = at("2026-01-12T05:40:00Z");

    let (made, _) = launch(&mut cluster, &mut PeriodicLaunches::default());

    assert_eq!(made, ["2026-01-12T05:00:00+00:00"]);
    assert_eq!(cluster.state.jobs().len(), 2);
}

#[test]
fn disabled_or_stopped_periodic_jobs_do_not_launch() {
    let mut off = cluster(Periodic {
        enabled: false,
        ..cron(&["0 * * * *"], "UTC")
    });
    let mut stopped = cluster(cron(&["0 * * * *"], "UTC"));
    stopped.stop("nightly");
    off.now = at("2026-01-10T01:00:00Z");
    stopped.now = off.now;

    for cluster in [&mut off, &mut stopped] {
        let found = launch(cluster, &mut PeriodicLaunches::default());
        assert_eq!(found, (vec![], None));
    }
}

/// A launch time that was found for an older version is dropped.
#[test]
fn a_job_that_changed_is_looked_at_again() {
    let mut cluster = cluster(cron(&["0 * * * *"], "UTC"));
    let mut duty = PeriodicLaunches::default();
    launch(&mut cluster, &mut duty);
    let mut spec = job("nightly").build();
    spec.periodic = Some(cron(&["30 * * * *"], "UTC"));
    cluster.run(spec);

    let (_, again) = launch(&mut cluster, &mut duty);

    assert_eq!(again.as_deref(), Some("2026-01-10T00:30:00+00:00"));
}
