//! Data of an allocation, from the node of one server to that of another.

use muster_control_core::fsm::{AllocCommand, JobCommand, NodeCommand};
use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::eval::Trigger;
use muster_domain::fixture::{job, node};
use muster_domain::id::{AllocId, LogIndex};
use muster_domain::node::Eligibility;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_wire::rpc::{
    AgentReply, AgentRequest, DiskAck, DiskEntry, DiskPiece, DiskRequest, DiskSum, FailureKind,
    NodeReply, NodeRequest, ToAgent,
};

use super::light::Cluster;
use super::link::{ScriptedAgent, agent_on};
use crate::fixture::soon;

/// An allocation of `from` was replaced by one of `to`, and is to stop.
struct TwoNodes {
    cluster: Cluster,
    from: ScriptedAgent,
    to: ScriptedAgent,
    former: AllocId,
    heir: AllocId,
}

async fn moved() -> TwoNodes {
    let cluster = Cluster::found(3).await;
    let mut from = agent_on(&cluster, 0, node("n1").build(), LogIndex(0)).await;
    from.registered().await;
    let control = cluster.server(0).control();
    let mut spec = job("web").build();
    spec.groups[0].ephemeral_disk.migrate = true;
    let at = control.now();
    let register = JobCommand::Register {
        spec: Box::new(spec),
        check_index: None,
        places: None,
    }
    .at(at);
    control.propose(register).await.unwrap();
    let former = from.next_to_run().await.alloc_id;
    from.report_running(former).await;
    let mut to = agent_on(&cluster, 1, node("n2").build(), LogIndex(0)).await;
    to.registered().await;
    let leave = NodeCommand::SetEligibility {
        node_id: node("n1").build().id,
        eligibility: Eligibility::Ineligible,
    }
    .at(at);
    control.propose(leave).await.unwrap();
    let migrate = AllocCommand::Migrate {
        alloc_ids: vec![former],
        trigger: Trigger::NodeDrain,
    }
    .at(at);
    control.propose(migrate).await.unwrap();
    let heir = to.next_to_run().await;
    assert_eq!(heir.previous, Some(former));
    TwoNodes {
        cluster,
        from,
        to,
        former,
        heir: heir.alloc_id,
    }
}

impl TwoNodes {
    /// Asks through the server of the heir's node.
    async fn ask(&self, alloc_id: AllocId, previous: AllocId) -> (FrameSender, FrameReceiver) {
        let (send, receive) = self.to.connection.open_bi().await.unwrap();
        let mut sender = FrameSender::new(send);
        let request = AgentRequest::FetchDisk { alloc_id, previous };
        sender.send(&request).await.unwrap();
        (sender, FrameReceiver::new(receive))
    }

    /// The former agent is asked for its data.
    async fn asked(&self) -> (NodeRequest, FrameSender, FrameReceiver) {
        let accepted = soon("a question", self.from.connection.accept_bi()).await;
        let (send, receive) = accepted.unwrap();
        let mut receiver = FrameReceiver::new(receive);
        let request = receiver.recv::<NodeRequest>().await.unwrap().unwrap();
        (request, FrameSender::new(send), receiver)
    }

    async fn end_former(&mut self) {
        let stopped = |message| match message {
            ToAgent::Desired { allocs, .. } => {
                let mut allocs = allocs.into_iter();
                allocs.find(|alloc| alloc.desired == DesiredStatus::Stop)
            }
            _ => None,
        };
        self.from.receive_message("a stop", stopped).await;
        self.from.report(self.former, ClientStatus::Complete).await;
    }
}

/// The next that is more than a sign of life.
async fn next(receiver: &mut FrameReceiver) -> Option<AgentReply> {
    soon("an answer", async {
        loop {
            match receiver.recv::<AgentReply>().await.unwrap() {
                Some(AgentReply::Idle) => {}
                reply => return reply,
            }
        }
    })
    .await
}

/// Nobody is asked before the former allocation has ended; then frames go both ways, through two servers.
#[tokio::test(flavor = "multi_thread")]
async fn disk_data_streams_between_nodes_across_servers() {
    let mut scene = moved().await;
    let (mut to_server, mut from_server) = scene.ask(scene.heir, scene.former).await;
    let first = soon("a sign of life", from_server.recv::<AgentReply>()).await;

    scene.end_former().await;
    let (request, mut sender, mut receiver) = scene.asked().await;
    let piece = DiskPiece {
        entries: vec![DiskEntry::Leave],
    };
    sender.send(&NodeReply::Idle).await.unwrap();
    sender
        .send(&NodeReply::DiskPiece(piece.clone()))
        .await
        .unwrap();
    let came = next(&mut from_server).await;
    to_server.send(&DiskAck { bytes: 64 }).await.unwrap();
    let taken = soon("the word back", receiver.recv::<DiskAck>()).await;
    let sum = DiskSum::default();
    sender.send(&NodeReply::DiskEnd(sum)).await.unwrap();
    let end = next(&mut from_server).await;

    assert_eq!(first.unwrap(), Some(AgentReply::Idle));
    let wanted = DiskRequest {
        alloc_id: scene.former,
        tasks: vec!["main".to_owned()],
    };
    assert_eq!(request, NodeRequest::ReadDisk(wanted));
    assert_eq!(came, Some(AgentReply::DiskPiece(piece)));
    assert_eq!(taken.unwrap(), Some(DiskAck { bytes: 64 }));
    assert_eq!(end, Some(AgentReply::DiskEnd(sum)));
    assert_eq!(next(&mut from_server).await, None);
    scene.cluster.shutdown().await;
}

/// A failure of the node reaches the asker, and so does a stream that the node breaks off.
#[tokio::test(flavor = "multi_thread")]
async fn node_failure_is_distinguished_from_missing_data() {
    let mut scene = moved().await;
    scene.end_former().await;
    let reason = "why".to_owned();
    for kind in [
        FailureKind::NotFound,
        FailureKind::Other,
        FailureKind::TooMany,
    ] {
        let (_to_server, mut from_server) = scene.ask(scene.heir, scene.former).await;
        let (_, mut sender, _receiver) = scene.asked().await;

        let reason = reason.clone();
        let failed = NodeReply::Failed { reason, kind };
        sender.send(&failed).await.unwrap();

        let reason = "why".to_owned();
        let expected = if kind == FailureKind::NotFound {
            AgentReply::Gone { reason }
        } else {
            AgentReply::Later { reason }
        };
        assert_eq!(next(&mut from_server).await, Some(expected));
    }

    let (_to_server, mut from_server) = scene.ask(scene.heir, scene.former).await;
    let (_, sender, _receiver) = scene.asked().await;
    drop(sender);

    let reply = next(&mut from_server).await;
    assert!(
        matches!(reply, None | Some(AgentReply::Later { .. })),
        "{reply:?}"
    );
    scene.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_no_data_of_others() {
    let scene = moved().await;
    let (_to_server, mut from_server) = scene.ask(scene.former, scene.heir).await;

    let reply = next(&mut from_server).await;

    let Some(AgentReply::Gone { reason }) = reply else {
        panic!("{reply:?}");
    };
    assert!(reason.contains("is not on the node that asks"), "{reason}");
    scene.cluster.shutdown().await;
}

/// The one that waits goes, and so does the question to the other node.
#[tokio::test(flavor = "multi_thread")]
async fn disk_relay_stops_when_requester_disconnects() {
    let mut scene = moved().await;
    scene.end_former().await;
    let asking = scene.ask(scene.heir, scene.former).await;
    let (_, mut sender, _receiver) = scene.asked().await;

    drop(asking);

    soon("the node hears of it", sender.stopped()).await;
    scene.cluster.shutdown().await;
}
