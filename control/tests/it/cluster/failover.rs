//! Leaders that die.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_control::handle::{Consistency, ProposeError, ReadError, Retry};
use muster_domain::id::{JobKey, WriteKey};
use tokio::task::JoinSet;

use super::{Cluster, LOOK, Member, has, leader, registration};
use crate::fixture::soon;

#[tokio::test(flavor = "multi_thread")]
async fn crashed_leader_is_replaced_and_catches_up() {
    let (_cluster, mut members) = Cluster::of(3).await;
    members[0].register("before").await;

    let first = leader(&members).await;
    let config = members.remove(first).crash();
    let second = leader(&members).await;
    members[second].register("by-the-next").await;
    members[1 - second].register("by-a-follower").await;

    members.push(Member::start(config).await);
    for name in ["before", "by-the-next", "by-a-follower"] {
        members[2].until_has(name).await;
    }
    leader(&members).await;
    members[2].register("by-the-returned").await;
}

/// A follower asks the leader, and the leader dies: the write is not lost, and a key makes it once.
#[tokio::test(flavor = "multi_thread")]
async fn keyed_follower_writes_apply_once_across_failover() {
    let (_cluster, mut members) = Cluster::of(3).await;
    let at = leader(&members).await;
    let dying = members.remove(at);
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for (number, member) in members.iter().enumerate() {
        for writer in 0..8_u32 {
            let (control, stop) = (member.control().clone(), Arc::clone(&stop));
            writers.spawn(async move {
                let mut names = Vec::new();
                let mut count = 0_u32;
                while !stop.load(Ordering::Acquire) {
                    count += 1;
                    let name = format!("job-{number}-{writer}-{count}");
                    let key = WriteKey::new(&name).unwrap();
                    loop {
                        let command = registration(&control, &name);
                        match control.propose_keyed(key.clone(), command).await {
                            Ok(_) => break,
                            Err(error) if error.retry() == Retry::Later => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    names.push(name);
                }
                names
            });
        }
    }
    soon("some writes", async {
        while dying.control().state().jobs().iter().count() < 100 {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
    dying.crash();
    let next = leader(&members).await;
    let so_far = members[next].control().state().jobs().iter().count();
    soon("writes after the fail-over", async {
        while members[next].control().state().jobs().iter().count() < so_far + 100 {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
    stop.store(true, Ordering::Release);

    let mut acknowledged = BTreeSet::new();
    while let Some(names) = soon("a writer", writers.join_next()).await {
        acknowledged.extend(names.unwrap());
    }
    for member in &members {
        let state = member.read(Consistency::Linearizable).await;
        for name in &acknowledged {
            let job = state.jobs().get(&JobKey::in_default(name));
            let job = job.unwrap_or_else(|| panic!("{name} is lost at {}", member.name()));
            assert_eq!(job.current.version, 0, "{name} was applied twice");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn minority_rejects_writes_but_serves_stale_reads() {
    let (_cluster, mut members) = Cluster::of(3).await;
    members[0].register("web").await;
    for member in &members {
        member.until_has("web").await;
    }
    let at = leader(&members).await;
    let survivor = members.remove((at + 1) % 3);
    let configs: Vec<_> = members.into_iter().map(Member::crash).collect();

    let written = survivor
        .control()
        .propose(registration(survivor.control(), "more"));
    match soon("an answer", written).await {
        Err(ProposeError::NotLeader { .. } | ProposeError::Timeout { .. }) => {}
        other => panic!("{other:?}"),
    }
    let read = soon(
        "an answer",
        survivor.control().read(Consistency::Linearizable),
    )
    .await;
    assert!(matches!(read, Err(ReadError::NoLeader { .. })), "{read:?}");
    let stale = survivor.control().read(Consistency::Stale).await.unwrap();
    assert!(has(&stale.state, "web"));
    assert!(!stale.leader_known);
    assert!(!stale.last_contact.is_zero());

    let mut members = vec![survivor];
    for config in configs {
        members.push(Member::start(config).await);
    }
    leader(&members).await;
    members[0].register("after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_leader_shutdown_transfers_leadership() {
    let (_cluster, mut members) = Cluster::of(3).await;
    let at = leader(&members).await;
    let term = members[at].control().term();

    members.remove(at).stop().await;

    // One election, held by the leader itself: nobody waited for its silence.
    let next = leader(&members).await;
    assert_eq!(members[next].control().term(), term + 1);
    members[next].register("after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_follower_writes_all_succeed() {
    let (_cluster, members) = Cluster::of(3).await;
    let at = leader(&members).await;
    let mut writers = JoinSet::new();
    for number in 0..600 {
        let control = members[(at + 1 + number % 2) % 3].control().clone();
        writers.spawn(async move {
            let name = format!("job-{number}");
            control
                .propose(registration(&control, &name))
                .await
                .map(drop)
        });
    }

    while let Some(written) = soon("a write", writers.join_next()).await {
        written.unwrap().unwrap();
    }

    for member in &members {
        let state = member.read(Consistency::Leader).await;
        assert_eq!(state.jobs().iter().count(), 600, "at {}", member.name());
    }
}

/// Makes the end of a server's log as if its last bytes had never been written.
fn cut_log(config: &muster_control::server::ServerConfig) {
    let dir = config.data_dir.join("raft/log");
    let files = std::fs::read_dir(dir).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    let segment = paths.filter(|path| path.extension().is_some_and(|found| found == "log"));
    let path = segment.max().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes[end - 7..end].fill(0);
    std::fs::write(&path, bytes).unwrap();
}

/// It had acknowledged the end of its log. The leader sends it again, and the server votes as before.
#[tokio::test(flavor = "multi_thread")]
async fn follower_with_truncated_log_catches_up() {
    let (_cluster, mut members) = Cluster::of(3).await;
    let at = leader(&members).await;
    members[at].register("before").await;
    let follower = (at + 1) % 3;
    members[follower].until_has("before").await;

    let config = members.remove(follower).crash();
    cut_log(&config);
    members.push(Member::start(config).await);

    members[2].until_has("before").await;
    members[2].register("after").await;
    // Its vote is needed for the next leader.
    let at = leader(&members).await;
    members.remove(at).crash();
    leader(&members).await;
    members[0].register("by-the-next").await;
    members[1].until_has("by-the-next").await;
}

/// Of three servers one lost entries and another one is gone: the third is elected, since it has them.
#[tokio::test(flavor = "multi_thread")]
async fn truncated_server_votes_for_up_to_date_peer() {
    let (_cluster, mut members) = Cluster::of(3).await;
    let at = leader(&members).await;
    members[at].register("before").await;
    for member in &members {
        member.until_has("before").await;
    }
    members.remove(at).crash();
    let config = members.remove(1).crash();
    cut_log(&config);
    members.push(Member::start(config).await);

    let at = leader(&members).await;
    assert_eq!(at, 0, "the server without the end leads");
    members[1].until_has("before").await;
}
