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
