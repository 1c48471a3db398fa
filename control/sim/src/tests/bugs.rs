//! Deliberate bugs, and the most seeds that it takes to find each of them. A simulator that misses these bugs would
//! miss similar ones.

use std::ops::RangeInclusive;

use muster_domain::fixture::long;

use crate::{Bug, SimConfig, run};

/// Checks that one of the first `seeds` seeds finds `bug`.
fn found_within(bug: Bug, seeds: u64) {
    found_among(bug, 1..=seeds);
}

/// Checks that the last of `seeds` finds the bug. Only a long run tries the earlier seeds, which do not find it.
///
/// A change in the random draws may move the bug to another seed. `cargo xtask sim --seeds 500 -- --bug NAME` finds
/// it again.
fn found_among(bug: Bug, seeds: RangeInclusive<u64>) {
    let mut seeds = if long() { 1..=*seeds.end() } else { seeds };
    let text = format!("{} is not found by seeds {seeds:?}", bug.as_str());
    let found = seeds.any(|seed| !run(SimConfig::new(seed).with(bug)).faults.is_empty());

    assert!(found, "{text}");
}

#[test]
fn commit_without_quorum_is_found_within_2_seeds() {
    found_within(Bug::CommitWithoutQuorum, 2);
}

#[test]
fn ack_before_sync_is_found_within_5_seeds() {
    found_within(Bug::AckBeforeSync, 5);
}

#[test]
fn forgotten_vote_is_found_by_seed_8() {
    found_among(Bug::VoteForgotten, 5..=8);
}

#[test]
fn apply_with_clock_is_found_within_5_seeds() {
    found_within(Bug::ApplyWithClock, 5);
}

#[test]
fn lost_effect_is_found_by_seed_23() {
    found_among(Bug::LostEffect, 20..=23);
}

#[test]
fn double_placement_is_found_by_seed_65() {
    found_among(Bug::DoublePlacement, 61..=65);
}

#[test]
fn stale_read_is_found_by_seed_35() {
    found_among(Bug::StaleRead, 31..=35);
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
fn older_desired_state_is_found_by_seed_31() {
    found_among(Bug::OlderDesired, 28..=31);
}

#[test]
fn half_a_collection_is_found_within_2_seeds() {
    found_within(Bug::HalfCollection, 2);
}

#[test]
fn wrong_gc_clock_is_found_within_5_seeds() {
    found_within(Bug::OtherClock, 5);
}

#[test]
fn left_deployments_are_found_within_5_seeds() {
    found_within(Bug::LeftDeployments, 5);
}

#[test]
fn a_revived_job_is_found_by_seed_240() {
    found_among(Bug::RevivedJob, 236..=240);
}

#[test]
fn ignored_key_is_found_within_5_seeds() {
    found_within(Bug::KeyIgnored, 5);
}
