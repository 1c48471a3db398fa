//! Tests that must have run: a run of everything without one of them fails, and names it.
//!
//! Most tests may say that they cannot run where something is missing. On these rests what Muster promises first, and
//! a promise that is skipped every day, filtered out, or renamed away is held by nobody. A test counts wherever it ran,
//! on this machine or in the guest; those of the guest are asked for only when there was one.

use super::output::Run;
use super::report::Report;

/// A test, and what it holds.
#[derive(Clone, Copy, Debug)]
struct Required {
    /// With as many of its modules as tell it from others.
    test: &'static str,
    /// What nobody would know without it.
    holds: &'static str,
    place: Place,
}

/// Where a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On this machine, and perhaps in the guest.
    Here,
    /// In the guest, and on machines that are like it.
    Guest,
}

const fn here(test: &'static str, holds: &'static str) -> Required {
    Required {
        test,
        holds,
        place: Place::Here,
    }
}

const fn guest(test: &'static str, holds: &'static str) -> Required {
    Required {
        test,
        holds,
        place: Place::Guest,
    }
}

const SURVIVAL: &str = "tasks survive what manages them";
const CONFORMANCE: &str = "every driver passes the same suite";
const JUDGE: &str = "judges that are not ours look at tasks from inside";
const BOUNDARY: &str = "a task does not reach its host";
const PROTOCOL: &str = "drivers of other hosts and hosts of other drivers work";
const LIMITS: &str = "limits hold, and who broke them is told";

const REQUIRED: &[Required] = &[
    here(
        "survival::a_hundred_tasks_survive_ten_deaths_of_the_agent_and_ten_of_the_driver",
        SURVIVAL,
    ),
    here(
        "survival::what_happens_while_nobody_watches_is_reported_exactly",
        SURVIVAL,
    ),
    here(
        "survival::a_lost_store_and_a_dead_driver_lose_no_task",
        SURVIVAL,
    ),
    here(
        "survival::a_store_that_is_cut_anywhere_costs_no_task",
        SURVIVAL,
    ),
    here("survival::a_task_of_another_boot_is_lost", SURVIVAL),
    here("survival::killed_driver_loses_no_task", SURVIVAL),
    here(
        "survival::process_with_a_reused_pid_is_not_the_task",
        SURVIVAL,
    ),
    here("remote::a_remote_task_outlives_its_nodes", SURVIVAL),
    here(
        "mock::tests::conformance::recovered_task_is_the_same_task",
        CONFORMANCE,
    ),
    here(
        "plugin::tests::conformance::recovered_task_is_the_same_task",
        CONFORMANCE,
    ),
    here("conformance::raw::task_goes_through_its_life", CONFORMANCE),
    here(
        "conformance::contained::task_goes_through_its_life",
        CONFORMANCE,
    ),
    here(
        "conformance::contained::ignored_stop_ends_in_a_kill",
        CONFORMANCE,
    ),
    here(
        "conformance::strict::task_goes_through_its_life",
        CONFORMANCE,
    ),
    here(
        "conformance::over_socket::recovered_task_is_the_same_task",
        CONFORMANCE,
    ),
    here(
        "conformance::over_socket::two_hundred_tasks_live_at_once",
        CONFORMANCE,
    ),
    here(
        "plugin::tests::go::recovered_task_is_the_same_task",
        PROTOCOL,
    ),
    here("plugin::a_job_runs_with_a_driver_in_go", PROTOCOL),
    here("plugin::a_host_in_go_drives_the_native_driver", PROTOCOL),
    here("oci::contained_task_passes_runtimetest", JUDGE),
    here("oci::strict_task_passes_runtimetest", JUDGE),
    here(
        "introspection::contained_task_is_what_the_golden_answer_says",
        JUDGE,
    ),
    here(
        "introspection::strict_task_is_what_the_golden_answer_says",
        JUDGE,
    ),
    here(
        "escape::script_finds_what_is_listed_in_a_contained_task",
        JUDGE,
    ),
    here(
        "escape::script_finds_what_is_listed_in_a_strict_task",
        JUDGE,
    ),
    here(
        "boundary::contained_task_reaches_nothing_of_its_host",
        BOUNDARY,
    ),
    here(
        "boundary::strict_task_has_ids_and_a_network_of_its_own",
        BOUNDARY,
    ),
    here("ways::every_way_out_has_the_verdict_of_the_table", BOUNDARY),
    guest("oom::oom_kill_is_reported_with_the_task", LIMITS),
    guest("limits::memory_limit_kills_and_is_counted", LIMITS),
    guest("limits::a_fork_bomb_stops_at_its_limit", LIMITS),
];

/// Has `report` fail for each test that is required and did not run.
pub(super) fn check(report: &mut Report, host: &Run, guest: Option<&Run>) {
    for Missing { required, reason } in missing(REQUIRED, host, guest) {
        let Required { test, holds, place } = required;
        let what = format!("it is required ({holds}) and did not run: {reason}");
        let command = match place {
            Place::Here => format!("cargo test --workspace -- {test}"),
            Place::Guest => "cargo xtask vm".to_owned(),
        };
        report.fail(test, &what, &command);
    }
}

/// A required test that did not run, and why as far as anybody said.
#[derive(Debug)]
struct Missing {
    required: Required,
    reason: String,
}

fn missing(list: &[Required], host: &Run, guest: Option<&Run>) -> Vec<Missing> {
    let asked = |required: &&Required| required.place == Place::Here || guest.is_some();
    let mut missing = Vec::new();
    for required in list.iter().filter(asked) {
        let mut runs = [Some(host), guest].into_iter().flatten();
        // One that failed is told of as such.
        if runs.any(|run| run.ran(required.test) || run.failed(required.test)) {
            continue;
        }
        let runs = [Some(host), guest].into_iter().flatten();
        let reasons: Vec<&str> = runs
            .filter_map(|run| run.why_skipped(required.test))
            .collect();
        let reason = if reasons.is_empty() {
            "no test of this name ended; if it was renamed, rename it in xtask/src/test/required.rs"
                .to_owned()
        } else {
            reasons.join("; ")
        };
        missing.push(Missing {
            required: *required,
            reason,
        });
    }
    missing
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::shell;
    use crate::test::output::BinaryRun;

    const LIST: &[Required] = &[here("life::goes_on", "life"), guest("oom::kills", "limits")];

    fn run(passes: &[&str], failures: &[&str], skipped: &[&str]) -> Run {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        Run {
            binaries: vec![BinaryRun {
                passes: owned(passes).into_iter().collect(),
                failures: owned(failures),
                ended: true,
                ..BinaryRun::default()
            }],
            skipped: owned(skipped).into_iter().collect(),
            ..Run::default()
        }
    }

    fn names(host: &Run, guest: Option<&Run>) -> Vec<(&'static str, String)> {
        let missing = missing(LIST, host, guest).into_iter();
        missing
            .map(|missing| (missing.required.test, missing.reason))
            .collect()
    }

    #[test]
    fn what_ran_is_not_missed() {
        let host = run(&["a::life::goes_on"], &[], &[]);

        assert_eq!(names(&host, None), []);
        assert_eq!(names(&host, Some(&run(&["oom::kills"], &[], &[]))), []);
    }

    /// Filtered out, renamed, or in a binary that crashed.
    #[test]
    fn a_test_that_nobody_saw_is_named() {
        let missed = names(&run(&["life::goes_by"], &[], &[]), None);

        assert_eq!(missed.len(), 1);
        assert_eq!(missed[0].0, "life::goes_on");
        assert!(missed[0].1.contains("renamed"), "{missed:?}");
    }

    /// By itself, or with all of its module.
    #[test]
    fn a_test_that_was_skipped_is_named_with_its_reason() {
        for skip in [
            "goes_on: no root",
            "life: no root",
            "life::goes_on: no root",
        ] {
            let missed = names(&run(&["life::goes_on"], &[], &[skip]), None);

            assert_eq!(missed, [("life::goes_on", "no root".to_owned())], "{skip}");
        }
    }

    #[test]
    fn a_test_that_failed_is_not_named_twice() {
        assert_eq!(names(&run(&[], &["life::goes_on"], &[]), None), []);
    }

    #[test]
    fn what_could_not_run_here_may_have_run_in_the_guest() {
        let host = run(
            &["life::goes_on", "oom::kills"],
            &[],
            &["oom::kills: cgroup v1"],
        );

        assert_eq!(names(&host, Some(&run(&["oom::kills"], &[], &[]))), []);
        let nowhere = names(&host, Some(&run(&[], &[], &[])));
        assert_eq!(nowhere, [("oom::kills", "cgroup v1".to_owned())]);
    }

    #[test]
    fn a_required_test_that_did_not_run_fails_the_run() {
        let mut report = Report::default();

        check(&mut report, &run(&[], &[], &[]), None);

        let summary = report.summary(Path::new("/report"));
        assert!(
            summary.contains("FAILED survival::killed_driver_loses_no_task: it is required"),
            "{summary}"
        );
        assert!(!summary.contains(", 0 failed,"), "{summary}");
    }

    /// A name that no source has would make every run fail, and is found before that.
    #[test]
    fn every_required_test_is_there() {
        let mut sources = String::new();
        for folder in [
            "agent/tests",
            "cli/tests",
            "driver/src",
            "driver-native/tests",
        ] {
            read_all(&shell::root().join(folder), &mut sources);
        }

        for Required { test, .. } in REQUIRED {
            let name = test.rsplit("::").next().unwrap();
            let of_a_function = sources.contains(&format!("fn {name}("));
            assert!(of_a_function, "{test}");
        }
    }

    fn read_all(folder: &Path, sources: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_all(&path, sources);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
}
