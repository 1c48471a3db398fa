//! Questions to a node that hangs on another server.

use muster_domain::fixture::node;
use muster_domain::id::{AllocId, LogIndex, NodeId};
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_wire::rpc::{LogOrigin, LogStream, LogsRequest, NodeReply, NodeRequest};

use super::light::Cluster;
use super::link::agent_on;
use crate::fixture::soon;

fn logs() -> NodeRequest {
    NodeRequest::Logs(LogsRequest {
        alloc_id: AllocId::at(LogIndex(1), 0),
        task: "main".to_owned(),
        stream: LogStream::Stdout,
        from: LogOrigin::Start(0),
        follow: true,
    })
}

fn piece(at: u64) -> NodeReply {
    NodeReply::LogData {
        file: "main.stdout.0".to_owned(),
        offset: at,
        data: vec![b'x'; 64 << 10],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_reaches_a_node_of_another_server() {
    let cluster = Cluster::found(3).await;
    let spec = node("n1").build();
    let node_id = spec.id;
    let mut agent = agent_on(&cluster, 0, spec, LogIndex(0)).await;
    agent.registered().await;
    let answering = async {
        let (send, receive) = agent.connection.accept_bi().await.unwrap();
        let request = FrameReceiver::new(receive).recv::<NodeRequest>().await;
        let mut sender = FrameSender::new(send);
        for at in 0..3 {
            sender.send(&piece(at)).await.unwrap();
        }
        sender.finish();
        sender.stopped().await;
        request.unwrap().unwrap()
    };
    let asking = async {
        let nodes = cluster.server(1).control().nodes().clone();
        let mut replies = nodes.request(node_id, logs()).await.unwrap();
        let mut received = Vec::new();
        while let Some(reply) = replies.recv().await {
            received.push(reply);
        }
        received
    };

    let (request, received) = soon("the answer", async { tokio::join!(answering, asking) }).await;

    assert_eq!(request, logs());
    assert_eq!(received, [piece(0), piece(1), piece(2)]);
    cluster.shutdown().await;
}

/// A reader that takes nothing holds the node's stream back, through both servers; one that goes ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_holds_the_node_back() {
    let cluster = Cluster::found(3).await;
    let spec = node("n1").build();
    let node_id = spec.id;
    let mut agent = agent_on(&cluster, 0, spec, LogIndex(0)).await;
    agent.registered().await;
    let nodes = cluster.server(1).control().nodes().clone();
    let (replies, stream) = soon("a stream", async {
        tokio::join!(nodes.request(node_id, logs()), agent.connection.accept_bi())
    })
    .await;
    let mut replies = replies.unwrap();
    let mut sender = FrameSender::new(stream.unwrap().0);

    let mut sent = 0_u64;
    let stuck = loop {
        let patience = std::time::Duration::from_secs(1);
        match tokio::time::timeout(patience, sender.send(&piece(sent))).await {
            Ok(result) => result.unwrap(),
            Err(stuck) => break stuck,
        }
        sent += 1;
        assert!(sent < 4_000, "256 MiB were taken, and nobody read them");
    };
    assert_eq!(replies.recv().await, Some(piece(0)), "{stuck}");

    drop(replies);
    soon("the node hears that the reader is gone", sender.stopped()).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_nowhere_is_named() {
    let mut cluster = Cluster::found(3).await;
    let asked = cluster.follower().await;
    let other = (0..3).find(|at| *at != asked).unwrap();
    let node_id = NodeId([7; 16]);
    let control = cluster.server(asked).control().clone();
    let error = control.nodes().request(node_id, logs()).await.unwrap_err();
    assert!(
        error.to_string().contains("not connected to any server:"),
        "{error}"
    );

    cluster.crash(other);

    let error = control.nodes().request(node_id, logs()).await.unwrap_err();
    let name = format!("(s{} did not)", other + 1);
    assert!(error.to_string().contains(&name), "{error}");
    cluster.shutdown().await;
}
