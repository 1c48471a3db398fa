//! The bytes of messages between servers, version 1. Servers of different releases exchange them: a change here
//! needs a new `frame::SERVER_VERSION`.

use std::fmt::{Debug, Write as _};

use expect_test::expect_file;
use muster_wire::frame::{self, SERVER};
use serde::de::DeserializeOwned;

use super::*;

/// Appends a line to the golden file, and checks that `message` decodes from its bytes.
fn line<T>(golden: &mut String, name: &str, message: &T)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let bytes = SERVER.encode(message).unwrap();
    let read: T = frame::decode(&bytes[frame::HEADER_BYTES..]).unwrap();
    assert_eq!(&read, message);
    write!(golden, "{name} ").unwrap();
    for byte in &bytes {
        write!(golden, "{byte:02x}").unwrap();
    }
    golden.push('\n');
}

fn known() -> PeerInfo {
    PeerInfo {
        server_id: 7,
        node: ServerNode {
            name: "s1".to_owned(),
            quic_addr: "10.0.0.1:4647".to_owned(),
            http_addr: "10.0.0.1:4646".to_owned(),
        },
    }
}

fn founding() -> BootstrapProposal {
    BootstrapProposal {
        founder: 7,
        servers: vec![known()],
    }
}

fn hello() -> Hello {
    Hello {
        me: known(),
        expect: 3,
        founded: true,
        others: vec![known()],
        members: vec![7, 8],
        leader: Some(8),
        promised: Some(founding()),
    }
}

fn hash() -> StateHash {
    StateHash {
        jobs: 9,
        ..StateHash::default()
    }
}

/// Returns one request of each kind, in their order.
fn requests() -> Vec<PeerRequest> {
    let node_id = NodeId([1; 16]);
    vec![
        PeerRequest::Hello(hello()),
        PeerRequest::Join(hello()),
        PeerRequest::Raft {
            kind: RaftCall::PreVote,
            body: vec![1, 2],
        },
        PeerRequest::RaftAppend,
        PeerRequest::RaftSnapshot,
        PeerRequest::Propose,
        PeerRequest::ReadIndex { linearizable: true },
        PeerRequest::Members,
        PeerRequest::Add {
            quic_addr: "s2:4647".to_owned(),
        },
        PeerRequest::Remove { server_id: 8 },
        PeerRequest::Transfer { to: Some(8) },
        PeerRequest::Promise(founding()),
        PeerRequest::Found(founding()),
        PeerRequest::Removed { server_id: 8 },
        PeerRequest::Heartbeats {
            nodes: vec![node_id],
            left: vec![],
        },
        PeerRequest::NodeHeard { node_id },
        PeerRequest::AskNode {
            node_id,
            request: NodeRequest::NodeStats,
        },
        PeerRequest::CollectOnNodes,
        PeerRequest::CollectGarbage,
        PeerRequest::StateHash {
            index: LogIndex(300),
        },
        PeerRequest::StateDiffers {
            index: LogIndex(300),
            right: hash(),
        },
        PeerRequest::Restore,
        PeerRequest::FindPlaces(PlacementQuery::Tasks(Vec::new())),
        PeerRequest::Troubles,
    ]
}

/// The name of a request. A missing variant does not compile; it must be added to [`requests`] as well.
fn request_name(request: &PeerRequest) -> &'static str {
    match request {
        PeerRequest::Hello(_) => "Hello",
        PeerRequest::Join(_) => "Join",
        PeerRequest::Raft { .. } => "Raft",
        PeerRequest::RaftAppend => "RaftAppend",
        PeerRequest::RaftSnapshot => "RaftSnapshot",
        PeerRequest::Propose => "Propose",
        PeerRequest::ReadIndex { .. } => "ReadIndex",
        PeerRequest::Members => "Members",
        PeerRequest::Add { .. } => "Add",
        PeerRequest::Remove { .. } => "Remove",
        PeerRequest::Transfer { .. } => "Transfer",
        PeerRequest::Promise(_) => "Promise",
        PeerRequest::Found(_) => "Found",
        PeerRequest::Removed { .. } => "Removed",
        PeerRequest::Heartbeats { .. } => "Heartbeats",
        PeerRequest::NodeHeard { .. } => "NodeHeard",
        PeerRequest::AskNode { .. } => "AskNode",
        PeerRequest::CollectOnNodes => "CollectOnNodes",
        PeerRequest::CollectGarbage => "CollectGarbage",
        PeerRequest::StateHash { .. } => "StateHash",
        PeerRequest::StateDiffers { .. } => "StateDiffers",
        PeerRequest::Restore => "Restore",
        PeerRequest::FindPlaces(_) => "FindPlaces",
        PeerRequest::Troubles => "Troubles",
    }
}

fn replies() -> Vec<PeerReply> {
    let member = MemberRecord {
        server_id: 7,
        node: known().node,
        voter: true,
        leader: false,
        last_contact_ms: Some(12),
        log_index: Some(LogIndex(300)),
        behind: 4,
        stalled_ms: 500,
    };
    vec![
        PeerReply::Done,
        PeerReply::Refused {
            reason: "no".to_owned(),
        },
        PeerReply::NotLeader,
        PeerReply::Hello(hello()),
        PeerReply::Raft(vec![1, 2]),
        PeerReply::ReadIndex(LogIndex(300)),
        PeerReply::Members(vec![member]),
        PeerReply::Counted {
            lease: Duration::from_millis(1_500),
            uncounted: vec![NodeId([2; 16])],
        },
        PeerReply::NodeHeard {
            ago: Some(Duration::from_millis(1_500)),
        },
        PeerReply::StateHash(Some(hash())),
        PeerReply::Restored(LogIndex(300)),
        PeerReply::Collected(FreedCounts {
            jobs: 1,
            evals: 2,
            allocs: 300,
            deployments: 4,
            nodes: 5,
            bytes: 600,
            slices: 6,
            took: Duration::from_millis(7),
            one_offs: 8,
        }),
        PeerReply::Places(PlacementAnswer::Tasks {
            places: vec![None],
            seen: LogIndex(300),
        }),
        PeerReply::Troubles(Troubles(vec!["full".to_owned()])),
    ]
}

/// The name of a reply. A missing variant does not compile; it must be added to [`replies`] as well.
fn reply_name(reply: &PeerReply) -> &'static str {
    match reply {
        PeerReply::Done => "Done",
        PeerReply::Refused { .. } => "Refused",
        PeerReply::NotLeader => "NotLeader",
        PeerReply::Hello(_) => "Hello",
        PeerReply::Raft(_) => "Raft",
        PeerReply::ReadIndex(_) => "ReadIndex",
        PeerReply::Members(_) => "Members",
        PeerReply::Counted { .. } => "Counted",
        PeerReply::NodeHeard { .. } => "NodeHeard",
        PeerReply::StateHash(_) => "StateHash",
        PeerReply::Restored(_) => "Restored",
        PeerReply::Collected(_) => "Collected",
        PeerReply::Places(_) => "Places",
        PeerReply::Troubles(_) => "Troubles",
    }
}

#[test]
fn peer_message_bytes_are_stable() {
    let mut golden = String::new();
    for request in requests() {
        let name = format!("request {}", request_name(&request));
        let opening = StreamHeader {
            from: 7,
            to: 8,
            request,
        };
        line(&mut golden, &name, &opening);
    }
    for reply in replies() {
        line(
            &mut golden,
            &format!("reply {}", reply_name(&reply)),
            &reply,
        );
    }

    expect_file!["../../../testdata/peers.v1.txt"].assert_eq(&golden);
}
