//! Tests that must have run. A run of everything without one of them fails, and names it.
//!
//! Most tests may report that they cannot run if a requirement is missing. The tests listed here verify Muster's most
//! important promises. If such a test is always skipped, filtered out, or renamed, no test verifies its promise. A
//! test of this machine counts wherever it ran, here or in the guest. Tests of guests are required only if there was
//! a guest, and then in the guest.

use super::guest::Guest;
use super::output::Run;
use super::report::Report;
use crate::vm;

/// A required test, and the promise that it verifies.
#[derive(Clone, Copy, Debug)]
struct Required {
    /// The test's name, with as many modules as are needed to make it unique.
    test: &'static str,
    /// The promise that only this test verifies.
    holds: &'static str,
    place: TestHost,
}

/// The place where a test must run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestHost {
    /// On this machine, or in the guest.
    HostOrGuest,
    /// In the guest with all of its tests. This machine may differ, with cgroup v1 or another kernel.
    Guest,
    /// In a guest of each series of kernels.
    EachKernel,
}

const fn host_or_guest(test: &'static str, holds: &'static str) -> Required {
    Required {
        test,
        holds,
        place: TestHost::HostOrGuest,
    }
}

const fn guest(test: &'static str, holds: &'static str) -> Required {
    Required {
        test,
        holds,
        place: TestHost::Guest,
    }
}

const fn each_kernel(test: &'static str) -> Required {
    Required {
        test,
        holds: KERNELS,
        place: TestHost::EachKernel,
    }
}

const SURVIVAL: &str = "tasks survive what manages them";
const CONFORMANCE: &str = "every driver passes the same suite";
const EXTERNAL_AUDIT: &str = "judges that are not ours look at tasks from inside";
const BOUNDARY: &str = "a task does not reach its host";
const PROTOCOL: &str = "drivers of other hosts and hosts of other drivers work";
const LIMITS: &str = "limits hold, and each breach is reported";
const STUCK: &str = "resources that the kernel keeps are reported and block nothing else";
const KERNELS: &str = "one eBPF object works on every supported kernel";

const REQUIRED: &[Required] = &[
    host_or_guest(
        "survival::many_tasks_survive_deaths_of_agent_and_driver",
        SURVIVAL,
    ),
    host_or_guest(
        "survival::exits_without_an_agent_are_reported_exactly",
        SURVIVAL,
    ),
    host_or_guest(
        "survival::tasks_survive_store_loss_and_driver_crash",
        SURVIVAL,
    ),
    host_or_guest("survival::tasks_survive_truncated_store", SURVIVAL),
    host_or_guest(
        "gap::limits_and_policy_hold_without_agent_and_driver",
        SURVIVAL,
    ),
    host_or_guest("survival::a_task_of_another_boot_is_lost", SURVIVAL),
    host_or_guest("survival::killed_driver_loses_no_task", SURVIVAL),
    host_or_guest("survival::reused_pid_is_not_recovered_as_task", SURVIVAL),
    host_or_guest("remote::a_remote_task_outlives_its_nodes", SURVIVAL),
    host_or_guest(
        "mock::tests::conformance::recovered_task_is_the_same_task",
        CONFORMANCE,
    ),
    host_or_guest(
        "plugin::tests::conformance::recovered_task_is_the_same_task",
        CONFORMANCE,
    ),
    host_or_guest("conformance::raw::task_goes_through_its_life", CONFORMANCE),
    host_or_guest(
        "conformance::contained::task_goes_through_its_life",
        CONFORMANCE,
    ),
    host_or_guest(
        "conformance::contained::ignored_stop_ends_in_a_kill",
        CONFORMANCE,
    ),
    host_or_guest(
        "conformance::strict::task_goes_through_its_life",
        CONFORMANCE,
    ),
    host_or_guest(
        "conformance::over_socket::recovered_task_is_the_same_task",
        CONFORMANCE,
    ),
    host_or_guest(
        "conformance::over_socket::two_hundred_tasks_live_at_once",
        CONFORMANCE,
    ),
    host_or_guest(
        "plugin::tests::go::recovered_task_is_the_same_task",
        PROTOCOL,
    ),
    host_or_guest("plugin::a_job_runs_with_a_driver_in_go", PROTOCOL),
    host_or_guest("plugin::a_host_in_go_drives_the_native_driver", PROTOCOL),
    host_or_guest("oci::contained_task_passes_runtimetest", EXTERNAL_AUDIT),
    host_or_guest("oci::strict_task_passes_runtimetest", EXTERNAL_AUDIT),
    host_or_guest(
        "introspection::contained_task_matches_the_golden_answer",
        EXTERNAL_AUDIT,
    ),
    host_or_guest(
        "introspection::strict_task_matches_the_golden_answer",
        EXTERNAL_AUDIT,
    ),
    host_or_guest(
        "escape::script_findings_match_list_in_contained_task",
        EXTERNAL_AUDIT,
    ),
    host_or_guest(
        "escape::script_findings_match_list_in_strict_task",
        EXTERNAL_AUDIT,
    ),
    host_or_guest(
        "escape::engine_finds_no_escape_from_contained_task",
        EXTERNAL_AUDIT,
    ),
    host_or_guest(
        "escape::engine_finds_no_escape_from_contained_root_task",
        EXTERNAL_AUDIT,
    ),
    host_or_guest(
        "escape::engine_finds_no_escape_from_strict_task",
        EXTERNAL_AUDIT,
    ),
    guest("oci::contained_task_passes_runtimetest", EXTERNAL_AUDIT),
    guest("oci::strict_task_passes_runtimetest", EXTERNAL_AUDIT),
    guest(
        "introspection::contained_task_matches_the_golden_answer",
        EXTERNAL_AUDIT,
    ),
    guest(
        "introspection::strict_task_matches_the_golden_answer",
        EXTERNAL_AUDIT,
    ),
    guest(
        "escape::script_findings_match_list_in_contained_task",
        EXTERNAL_AUDIT,
    ),
    guest(
        "escape::script_findings_match_list_in_strict_task",
        EXTERNAL_AUDIT,
    ),
    host_or_guest(
        "boundary::contained_task_reaches_nothing_of_its_host",
        BOUNDARY,
    ),
    guest(
        "boundary::contained_task_reaches_nothing_of_its_host",
        BOUNDARY,
    ),
    guest("boundary::strict_task_has_own_ids_and_network", BOUNDARY),
    host_or_guest("roots::named_root_tree_is_used_and_unmodified", BOUNDARY),
    host_or_guest("roots::read_only_root_cannot_be_written", BOUNDARY),
    host_or_guest("roots::links_where_the_driver_mounts_are_refused", BOUNDARY),
    host_or_guest("roots::tree_elsewhere_needs_the_nodes_word", BOUNDARY),
    host_or_guest("roots::mounts_follow_the_job_definition", BOUNDARY),
    host_or_guest("roots::symlinked_task_directory_is_rejected", BOUNDARY),
    host_or_guest("boundary::strict_task_has_own_ids_and_network", BOUNDARY),
    host_or_guest(
        "network_paths::every_egress_path_matches_verdict_table",
        BOUNDARY,
    ),
    host_or_guest(
        "stuck::process_in_uninterruptible_sleep_is_reported_without_blocking",
        STUCK,
    ),
    host_or_guest("run::memory_limit_is_reported_as_out_of_memory", LIMITS),
    host_or_guest("run::oom_killed_child_is_named_in_task_end", LIMITS),
    guest("run::memory_limit_is_reported_as_out_of_memory", LIMITS),
    guest("run::oom_killed_child_is_named_in_task_end", LIMITS),
    guest(
        "survival::exits_without_an_agent_are_reported_exactly",
        SURVIVAL,
    ),
    guest("oom::oom_kill_is_reported_with_the_task", LIMITS),
    guest("limits::memory_limit_kills_and_is_counted", LIMITS),
    guest("host::host_cgroup_limits_its_tasks", LIMITS),
    guest("limits::a_fork_bomb_stops_at_its_limit", LIMITS),
    each_kernel("adoption::this_kernel_takes_every_program"),
    each_kernel("policy::connections_follow_the_policy_of_the_task"),
    each_kernel("policy::datagrams_follow_the_policy_and_answers_come_through"),
    each_kernel("policy::server_task_replies_despite_closed_egress"),
    each_kernel("policy::new_policy_applies_to_open_connection"),
    each_kernel("policy::a_socket_that_connects_elsewhere_is_judged_anew"),
    each_kernel("policy::a_new_policy_holds_for_datagrams_under_way"),
    each_kernel("policy::datagrams_to_one_place_are_counted_and_limited"),
    each_kernel("policy::a_datagram_to_another_place_is_judged_anew"),
    each_kernel("policy::a_datagram_to_another_listener_is_judged_anew"),
    each_kernel("policy::loopback_is_open_within_alloc_but_not_across"),
    each_kernel("policy::verdicts_carry_rule_name"),
    each_kernel("policy::restarted_agent_keeps_policies_and_sweeps_orphans"),
];

/// Records a failure in `report` for each required test that did not run.
pub(super) fn check(report: &mut Report, host: &Run, guests: &[Guest]) {
    let seen = TestRuns {
        host,
        guests,
        series: &vm::SERIES,
    };
    for missing in seen.missing(REQUIRED) {
        let Required { test, holds, .. } = missing.required;
        let what = format!(
            "it is required ({holds}) and did not run: {}",
            missing.reason
        );
        report.fail(test, &what, &missing.command());
    }
}

/// A required test that did not run, and the reason if it is known.
#[derive(Debug)]
struct MissingTest {
    required: Required,
    /// The kernel series of the guest in which the test did not run.
    series: Option<&'static str>,
    reason: String,
}

impl MissingTest {
    fn command(&self) -> String {
        match (self.required.place, self.series) {
            (TestHost::HostOrGuest, _) => {
                format!("cargo test --workspace -- {}", self.required.test)
            }
            (TestHost::Guest, _) | (TestHost::EachKernel, None) => "cargo xtask vm".to_owned(),
            (TestHost::EachKernel, Some(series)) => {
                format!("cargo xtask vm --kernel {series} --ebpf")
            }
        }
    }
}

/// The results of all runs.
struct TestRuns<'a> {
    host: &'a Run,
    guests: &'a [Guest],
    /// The kernel series that each need a guest.
    series: &'a [&'static str],
}

impl TestRuns<'_> {
    fn missing(&self, list: &[Required]) -> Vec<MissingTest> {
        list.iter()
            .flat_map(|required| self.missing_of(*required))
            .collect()
    }

    fn missing_of(&self, required: Required) -> Vec<MissingTest> {
        let whole = self.guests.iter().find(|guest| !guest.ebpf);
        let whole = whole.map(|guest| &guest.run);
        let missing = |reason| MissingTest {
            required,
            series: None,
            reason,
        };
        match (required.place, whole) {
            (TestHost::HostOrGuest, _) => {
                let runs: Vec<&Run> = [Some(self.host), whole].into_iter().flatten().collect();
                let reason = why_missing(required.test, &runs);
                reason.map(missing).into_iter().collect()
            }
            (TestHost::Guest, Some(run)) => {
                let reason = why_missing(required.test, &[run]);
                reason.map(missing).into_iter().collect()
            }
            (TestHost::EachKernel, _) if !self.guests.is_empty() => {
                self.missing_by_kernel(required)
            }
            (TestHost::Guest | TestHost::EachKernel, _) => Vec::new(),
        }
    }

    fn missing_by_kernel(&self, required: Required) -> Vec<MissingTest> {
        let reason = |series: &str| {
            let guest = self.guests.iter().find(|guest| guest.series == series);
            match guest {
                Some(guest) => why_missing(required.test, &[&guest.run])
                    .map(|reason| format!("under Linux {series}: {reason}")),
                None => Some(format!("there was no guest with Linux {series}")),
            }
        };
        let missing = self.series.iter().filter_map(|series| {
            Some(MissingTest {
                required,
                series: Some(series),
                reason: reason(series)?,
            })
        });
        missing.collect()
    }
}

/// Returns the reason why none of `runs` contains the test `name`. Returns `None` if a run contains it, even if it
/// failed.
fn why_missing(name: &str, runs: &[&Run]) -> Option<String> {
    if runs
        .iter()
        .any(|run| run.has_passed(name) || run.has_failed(name))
    {
        return None;
    }
    let reasons: Vec<&str> = runs
        .iter()
        .filter_map(|run| run.why_skipped(name))
        .collect();
    Some(if reasons.is_empty() {
        "no test of this name ended; if it was renamed, rename it in xtask/src/test/required.rs"
            .to_owned()
    } else {
        reasons.join("; ")
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::shell;
    use crate::test::output::BinaryRun;

    const LIST: &[Required] = &[
        host_or_guest("life::goes_on", "life"),
        guest("oom::kills", "limits"),
    ];
    const KERNELS: &[Required] = &[each_kernel("policy::holds")];

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
        let guests: Vec<Guest> = guest.map(|run| guest_of("6.1", run)).into_iter().collect();
        let seen = TestRuns {
            host,
            guests: &guests,
            series: &["6.1"],
        };
        let missing = seen.missing(LIST).into_iter();
        missing
            .map(|missing| (missing.required.test, missing.reason))
            .collect()
    }

    fn guest_of(series: &'static str, run: &Run) -> Guest {
        Guest {
            run: run.clone(),
            ..Guest::new(series, false)
        }
    }

    /// Returns the missing tests of each kernel when there are two kernel series.
    fn by_kernel(guests: &[Guest]) -> Vec<(String, String)> {
        let seen = TestRuns {
            host: &run(&["policy::holds"], &[], &[]),
            guests,
            series: &["6.1", "6.12"],
        };
        let missing = seen.missing(KERNELS).into_iter();
        missing
            .map(|missing| (missing.command(), missing.reason))
            .collect()
    }

    #[test]
    fn executed_tests_are_not_missed() {
        let host = run(&["a::life::goes_on"], &[], &[]);

        assert_eq!(names(&host, None), []);
        assert_eq!(names(&host, Some(&run(&["oom::kills"], &[], &[]))), []);
    }

    /// Checks that an unavailable kernel counts as missing, because the programs may not load on it.
    #[test]
    fn each_kernel_is_asked_for_by_its_series() {
        let ran = run(&["policy::holds"], &[], &[]);
        let skipped = run(&["policy::holds"], &[], &["policy: no network"]);
        let (first, second) = (guest_of("6.1", &ran), guest_of("6.12", &skipped));

        let one = by_kernel(std::slice::from_ref(&first));
        let both = by_kernel(&[first, second]);

        let command = "cargo xtask vm --kernel 6.12 --ebpf".to_owned();
        let absent = "there was no guest with Linux 6.12".to_owned();
        assert_eq!(one, [(command.clone(), absent)]);
        assert_eq!(both, [(command, "under Linux 6.12: no network".to_owned())]);
        assert_eq!(by_kernel(&[]), [], "no guest was wanted");
    }

    /// Checks that a run on this machine does not replace a run in the guest.
    #[test]
    fn a_guests_test_counts_in_the_guest() {
        let host = run(&["life::goes_on", "oom::kills"], &[], &[]);

        let missed = names(&host, Some(&run(&[], &[], &["oom::kills: no judges"])));

        assert_eq!(missed, [("oom::kills", "no judges".to_owned())]);
    }

    /// The test was filtered out or renamed, or its binary crashed.
    #[test]
    fn unseen_test_is_named() {
        let missed = names(&run(&["life::goes_by"], &[], &[]), None);

        assert_eq!(missed.len(), 1);
        assert_eq!(missed[0].0, "life::goes_on");
        assert!(missed[0].1.contains("renamed"), "{missed:?}");
    }

    /// A test is skipped alone, or with its whole module.
    #[test]
    fn skipped_test_is_listed_with_reason() {
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
    fn guest_run_covers_tests_skipped_on_host() {
        let host = run(&["life::goes_on"], &[], &["life::goes_on: cgroup v1"]);

        let in_guest = names(
            &host,
            Some(&run(&["life::goes_on", "oom::kills"], &[], &[])),
        );
        let nowhere = names(&host, Some(&run(&["oom::kills"], &[], &[])));

        assert_eq!(in_guest, []);
        assert_eq!(nowhere, [("life::goes_on", "cgroup v1".to_owned())]);
    }

    #[test]
    fn missing_required_test_fails_run() {
        let mut report = Report::default();

        check(&mut report, &run(&[], &[], &[]), &[]);

        let summary = report.summary(Path::new("/report"));
        assert!(
            summary.contains("FAILED survival::killed_driver_loses_no_task: it is required"),
            "{summary}"
        );
        assert!(!summary.contains(", 0 failed,"), "{summary}");
    }

    /// Checks that every required name exists in the sources. Otherwise every complete run would fail.
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
