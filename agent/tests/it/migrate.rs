//! Data that come from other nodes, and go to them.

use muster_domain::alloc::{ClientStatus, DesiredAlloc, TaskState};
use muster_domain::id::{AllocId, LogIndex};
use muster_domain::job::JobSpec;
use muster_domain::resources::Holding;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_wire::rpc::{
    AgentReply, AgentRequest, DiskAck, DiskDir, DiskEntry, DiskPiece, DiskRequest, DiskSum,
    FailureKind, FileMeta, LogStream, NodeReply, NodeRequest,
};

use crate::support::{
    AllocBuilder, DEADLINE, FakeServer, Machine, batch, eventually, privileged, service,
};

/// Its data follow it.
fn migrating(spec: &mut JobSpec, _: &mut Holding) {
    spec.groups[0].ephemeral_disk.migrate = true;
}

/// An allocation that nobody here knows.
fn elsewhere() -> AllocId {
    AllocId::at(LogIndex(1_000), 0)
}

/// It replaces the one that was elsewhere.
fn heir(alloc: AllocBuilder) -> DesiredAlloc {
    DesiredAlloc {
        previous: Some(elsewhere()),
        ..alloc.with(migrating).build()
    }
}

/// A shared file and one of the task, with this content.
fn files(content: &str) -> (DiskPiece, DiskSum) {
    let file = |name: &str| DiskEntry::File {
        name: name.into(),
        meta: FileMeta {
            mode: 0o644,
            ..FileMeta::default()
        },
        bytes: content.len() as u64,
    };
    let data = || DiskEntry::Data {
        offset: 0,
        bytes: content.into(),
    };
    let local = DiskDir::Local("main".to_owned());
    let entries = vec![
        DiskEntry::Place(DiskDir::Shared),
        file("shared"),
        data(),
        DiskEntry::Place(local),
        file("own"),
        data(),
    ];
    let sum = DiskSum {
        inodes: 2,
        bytes: 2 * content.len() as u64,
        left: 0,
    };
    (DiskPiece { entries }, sum)
}

/// Writes out what it was left, and whether nothing of an earlier try is in the way.
const SHOW: &str = "cat $NOMAD_ALLOC_DIR/data/shared $NOMAD_TASK_DIR/own; ls $NOMAD_ALLOC_DIR/data";

/// The stream on which the data for `heir` are asked for.
async fn asked(server: &FakeServer, heir: AllocId) -> (FrameSender, FrameReceiver) {
    let (request, sender, receiver) = server.question().await;
    let previous = elsewhere();
    let wanted = AgentRequest::FetchDisk {
        alloc_id: heir,
        previous,
    };
    assert_eq!(request, wanted);
    (sender, receiver)
}

async fn send_all(sender: &mut FrameSender, content: &str) {
    let (piece, sum) = files(content);
    sender.send(&AgentReply::Idle).await.unwrap();
    sender.send(&AgentReply::DiskPiece(piece)).await.unwrap();
    sender.send(&AgentReply::DiskEnd(sum)).await.unwrap();
    sender.finish();
    sender.stopped().await;
}

fn has_message(task: &TaskState, words: &str) -> bool {
    task.events
        .iter()
        .any(|event| event.message.contains(words))
}

#[tokio::test(flavor = "multi_thread")]
async fn migrated_data_is_present_before_tasks_start() {
    if !privileged("migrated_data_is_present_before_tasks_start") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let new = server.place(heir(batch(1, SHOW))).await;

    let (mut sender, _receiver) = asked(&server, new).await;
    let waiting = |task: &TaskState, _| has_message(task, "waiting for the data");
    let waiting = server.reported(new, "waiting", waiting).await;
    send_all(&mut sender, "left\n").await;
    let ended = server.status(new, ClientStatus::Complete).await;

    assert_eq!(waiting.started_at, None);
    assert!(
        has_message(&ended, "came from its node: 2 files"),
        "{ended:#?}"
    );
    let log = server.log(new, LogStream::Stdout).await;
    assert_eq!(log, "left\nleft\nshared\n");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_begins_empty_if_data_are_gone() {
    if !privileged("an_allocation_begins_empty_if_data_are_gone") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let new = server
        .place(heir(batch(1, "ls $NOMAD_ALLOC_DIR/data")))
        .await;

    let (mut sender, _receiver) = asked(&server, new).await;
    let (piece, _) = files("half");
    sender.send(&AgentReply::DiskPiece(piece)).await.unwrap();
    let reason = "node n1 burnt down".to_owned();
    sender.send(&AgentReply::Gone { reason }).await.unwrap();
    let ended = server.status(new, ClientStatus::Complete).await;

    assert!(
        has_message(&ended, "did not come: node n1 burnt down"),
        "{ended:#?}"
    );
    assert_eq!(server.log(new, LogStream::Stdout).await, "");
    assert!(!machine.alloc_dir(new).join("tmp/incoming").exists());
    agent.end().await;
}

/// More than its disk of ten megabytes has is not taken, and it begins.
#[tokio::test(flavor = "multi_thread")]
async fn too_large_migration_starts_alloc_empty() {
    if !privileged("too_large_migration_starts_alloc_empty") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let small = batch(1, "ls $NOMAD_ALLOC_DIR/data")
        .with(|spec, _| spec.groups[0].ephemeral_disk.size = muster_domain::resources::Mb(10));
    let new = server.place(heir(small)).await;

    let (mut sender, _receiver) = asked(&server, new).await;
    let mut entries = vec![
        DiskEntry::Place(DiskDir::Shared),
        DiskEntry::File {
            name: b"large".to_vec(),
            meta: FileMeta::default(),
            bytes: 1 << 30,
        },
    ];
    for at in 0.. {
        entries.push(DiskEntry::Data {
            offset: at * 60_000,
            bytes: vec![1; 60_000],
        });
        let entries = std::mem::take(&mut entries);
        let piece = AgentReply::DiskPiece(DiskPiece { entries });
        if sender.send(&piece).await.is_err() {
            break;
        }
    }
    let ended = server.status(new, ClientStatus::Complete).await;

    assert!(
        has_message(&ended, "may have on disk, 10 MiB"),
        "{ended:#?}"
    );
    assert_eq!(server.log(new, LogStream::Stdout).await, "");
    agent.end().await;
}

/// The connection breaks in the middle: what had come by then is nothing.
#[tokio::test(flavor = "multi_thread")]
async fn broken_migration_connection_is_retried() {
    if !privileged("broken_migration_connection_is_retried") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let new = server.place(heir(batch(1, SHOW))).await;
    let (mut sender, mut receiver) = asked(&server, new).await;
    let (mut piece, _) = files("half\n");
    let padding = DiskEntry::Data {
        offset: 0,
        bytes: vec![b'x'; 65_536],
    };
    let file = DiskEntry::File {
        name: b"in the way".to_vec(),
        meta: FileMeta::default(),
        bytes: 65_536,
    };
    piece.entries.extend([file, padding]);
    sender.send(&AgentReply::DiskPiece(piece)).await.unwrap();
    let unpacked = receiver.recv::<DiskAck>().await.unwrap();

    server.disconnect();
    let (mut sender, _receiver) = asked(&server, new).await;
    send_all(&mut sender, "whole\n").await;
    server.status(new, ClientStatus::Complete).await;

    assert!(unpacked.unwrap().bytes >= 65_536);
    let log = server.log(new, LogStream::Stdout).await;
    assert_eq!(log, "whole\nwhole\nshared\n");
    assert!(
        !machine
            .alloc_dir(new)
            .join("main/local/in the way")
            .exists()
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_ends_alloc_waiting_for_migration() {
    if !privileged("stop_ends_alloc_waiting_for_migration") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let new = server.place(heir(service(1, "sleep 600"))).await;
    let (mut sender, _receiver) = asked(&server, new).await;
    sender.send(&AgentReply::Idle).await.unwrap();

    server.stop(new).await;
    let ended = server.status(new, ClientStatus::Complete).await;

    assert_eq!(ended.started_at, None);
    // The agent does not want them any more.
    let refused = tokio::time::timeout(DEADLINE, sender.stopped()).await;
    refused.expect("the agent hangs up");
    server.forget(new).await;
    eventually("it is destroyed", async || {
        (!machine.alloc_dir(new).exists()).then_some(())
    })
    .await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_killed_asks_again() {
    if !privileged("an_agent_that_was_killed_asks_again") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    eventually("a session", async || server.is_connected().then_some(())).await;
    let new = server.place(heir(batch(1, SHOW))).await;
    let (mut sender, _receiver) = asked(&server, new).await;
    let (piece, _) = files("half\n");
    sender.send(&AgentReply::DiskPiece(piece)).await.unwrap();

    agent.kill();
    let agent = machine.agent(&server).await;
    let (mut sender, _receiver) = asked(&server, new).await;
    send_all(&mut sender, "whole\n").await;
    server.status(new, ClientStatus::Complete).await;

    let log = server.log(new, LogStream::Stdout).await;
    assert_eq!(log, "whole\nwhole\nshared\n");
    agent.end().await;
}

/// Asks for the data of an allocation of this node, and takes nothing yet.
async fn reader(server: &FakeServer, alloc_id: AllocId) -> (FrameSender, FrameReceiver) {
    let tasks = vec!["main".to_owned()];
    let request = NodeRequest::ReadDisk(DiskRequest { alloc_id, tasks });
    server.open(&request).await
}

/// All that follows but signs of life.
async fn rest((mut sender, mut receiver): (FrameSender, FrameReceiver)) -> Vec<NodeReply> {
    let mut replies = Vec::new();
    while let Some(reply) = receiver.recv::<NodeReply>().await.unwrap() {
        if let NodeReply::DiskPiece(piece) = &reply {
            let taken = DiskAck {
                bytes: piece.cost(),
            };
            drop(sender.send(&taken).await);
        }
        if reply != NodeReply::Idle {
            replies.push(reply);
        }
    }
    replies
}

#[tokio::test(flavor = "multi_thread")]
async fn data_are_sent_after_their_alloc_ended() {
    if !privileged("data_are_sent_after_their_alloc_ended") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let script = "echo b > $NOMAD_ALLOC_DIR/data/b; sleep 600";
    let old = server.place(service(1, script).build()).await;
    eventually("what it writes", async || {
        let text = std::fs::read(machine.alloc_dir(old).join("alloc/data/b")).ok()?;
        (text == b"b\n").then_some(())
    })
    .await;

    let early = rest(reader(&server, old).await).await;
    let of_nobody = rest(reader(&server, elsewhere()).await).await;
    server.stop(old).await;
    server.status(old, ClientStatus::Complete).await;
    let all = rest(reader(&server, old).await).await;

    let [
        NodeReply::Failed {
            kind: FailureKind::Other,
            reason,
        },
    ] = &early[..]
    else {
        panic!("{early:?}");
    };
    assert!(reason.contains("has not ended"), "{reason}");
    assert!(matches!(
        of_nobody[..],
        [NodeReply::Failed {
            kind: FailureKind::NotFound,
            ..
        }]
    ));
    let [NodeReply::DiskPiece(_), NodeReply::DiskEnd(sum)] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!((sum.inodes, sum.bytes), (1, 2));
    agent.end().await;
}

/// The control plane forgets the allocation while its data are on their way.
#[tokio::test(flavor = "multi_thread")]
async fn data_on_their_way_are_not_collected() {
    if !privileged("data_on_their_way_are_not_collected") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let script = "head -c 4000000 /dev/zero | tr '\\0' x > $NOMAD_ALLOC_DIR/data/large";
    let old = server.place(batch(1, script).build()).await;
    server.status(old, ClientStatus::Complete).await;
    let (sender, mut receiver) = reader(&server, old).await;
    let first = receiver.recv::<NodeReply>().await.unwrap();
    assert!(matches!(first, Some(NodeReply::DiskPiece(_))), "{first:?}");

    server.forget(old).await;
    // An answer that comes after it: the agent has heard of both.
    server.ask(NodeRequest::NodeStats, |_| false).await;
    let later = rest(reader(&server, old).await).await;
    let is_there = machine.alloc_dir(old).exists();
    let rest = rest((sender, receiver)).await;

    assert!(is_there, "{later:?}");
    let Some(NodeReply::DiskEnd(sum)) = rest.last() else {
        panic!("{:?}", rest.last());
    };
    assert_eq!(sum.bytes, 4_000_000);
    eventually("its end", async || {
        (!machine.alloc_dir(old).exists()).then_some(())
    })
    .await;
    agent.end().await;
}

/// A dry run of a forced collection and the collection itself agree while a reader has an allocation's data.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_keeps_lent_data() {
    if !privileged("a_dry_run_keeps_lent_data") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let script = "head -c 4000000 /dev/zero | tr '\\0' x > $NOMAD_ALLOC_DIR/data/large";
    let lent = server.place(batch(1, script).build()).await;
    server.status(lent, ClientStatus::Complete).await;
    let other = server.place(batch(2, "exit 0").build()).await;
    server.status(other, ClientStatus::Complete).await;
    let (sender, mut receiver) = reader(&server, lent).await;
    let first = receiver.recv::<NodeReply>().await.unwrap();
    assert!(matches!(first, Some(NodeReply::DiskPiece(_))), "{first:?}");
    eventually("reports are committed", async || {
        let (_, kept) = collected(&server, true).await;
        let has_unreported = kept.iter().any(|(why, _)| why.contains("not yet known"));
        (!has_unreported).then_some(())
    })
    .await;

    let would = collected(&server, true).await;
    let did = collected(&server, false).await;

    let kept = vec![("its data go to its successor".to_owned(), 1)];
    assert_eq!((&would, &did), (&(1, kept.clone()), &(1, kept)));
    assert!(machine.alloc_dir(lent).exists() && !machine.alloc_dir(other).exists());
    drop(rest((sender, receiver)).await);
    agent.end().await;
}

/// The count of allocations that a forced collection frees, and the reasons of those that stay, with their counts.
async fn collected(server: &FakeServer, dry_run: bool) -> (u64, Vec<(String, u64)>) {
    let replies = server.ask(NodeRequest::CollectGarbage { dry_run }, |_| false);
    match replies.await.pop() {
        Some(NodeReply::Collected { freed, kept, .. }) => (freed, kept),
        other => panic!("{other:?}"),
    }
}
