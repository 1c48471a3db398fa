//! Followers that are behind what the log still holds.

use muster_control_core::fsm::JobCommand;
use muster_domain::fixture::job;

use super::{Cluster, Member, leader};
use crate::fixture::soon;

/// Some tens of megabytes, so that it takes its time, and nobody stands for election meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn lagging_follower_gets_snapshot_without_election() {
    let (_cluster, mut members) = Cluster::of(3).await;
    let at = leader(&members).await;
    let behind = members.remove((at + 1) % 3).crash();
    let at = leader(&members).await;
    write_large(&members[at], 20).await;
    for member in &members {
        member.until_has("large-19").await;
        soon("a purge", member.control().compact_log())
            .await
            .unwrap();
    }
    let term = members[at].control().term();

    let back = Member::start(behind).await;
    back.until_has("large-19").await;

    assert_eq!(members[at].control().term(), term, "there was an election");
    members[at].register("after").await;
    back.until_has("after").await;
    // It goes on from what it got.
    let config = back.crash();
    let back = Member::start(config).await;
    back.until_has("large-0").await;
    back.until_has("after").await;
}

/// More than fits in one frame: what a follower gets at a time is bounded.
#[tokio::test(flavor = "multi_thread")]
async fn follower_catches_up_on_large_entries() {
    let (_cluster, mut members) = Cluster::of(3).await;
    let at = leader(&members).await;
    let behind = members.remove((at + 1) % 3).crash();
    let at = leader(&members).await;
    write_large(&members[at], 80).await;

    let back = Member::start(behind).await;

    back.until_has("large-0").await;
    back.until_has("large-79").await;
}

/// Registers so many jobs of a megabyte each.
async fn write_large(member: &Member, count: u64) {
    for number in 0..count {
        let at = member.control().now();
        let mut spec = job(&format!("large-{number}")).count(0).build();
        spec.meta.insert("noise".to_owned(), noise(number));
        let command = JobCommand::Register {
            spec: Box::new(spec),
            check_index: None,
            places: None,
        }
        .at(at);
        soon("a write", member.control().propose(command))
            .await
            .unwrap();
    }
}

/// Text that does not compress: a megabyte.
fn noise(seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..1 << 20)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(b'0' + u8::try_from(state % 64).unwrap())
        })
        .collect()
}
