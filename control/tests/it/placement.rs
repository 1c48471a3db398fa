//! From a job to an allocation on a node, with an agent that only talks.

use std::time::Duration;

use muster_control_core::fsm::JobCommand;
use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::fixture::{job, node};
use muster_domain::id::{JobKey, LogIndex, NodeId};
use muster_domain::node::{NodeSecret, NodeSpec, NodeStatus};
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_link::tls::Role;
use muster_wire::rpc::{FromAgent, NodeReply, NodeRequest, ToAgent};

use crate::fixture::{FakeAgent, TestServer, connect, server, soon, statuses};

async fn ready(server: &TestServer, node_id: NodeId) {
    server
        .until("the node is ready", |state| {
            state
                .nodes()
                .get(&node_id)
                .is_some_and(|node| node.status == NodeStatus::Ready)
        })
        .await;
}

#[tokio::test]
async fn a_registered_job_reaches_its_node_and_runs() {
    let server = server().await;
    let mut agent = FakeAgent::join(&server, node("n1").build()).await;
    server.register(job("web")).await;

    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;

    let state = server.control().state();
    assert_eq!(alloc.job.spec.id, "web");
    assert_eq!(statuses(&state, "web"), [ClientStatus::Running]);
    assert_eq!(
        state.allocs().get(&alloc.alloc_id).unwrap().node_id(),
        agent.node_id
    );
    server.shutdown().await;
}

/// Two entries: the job with its evaluation, and the plan with the evaluation's end.
#[tokio::test]
async fn registration_and_placement_cost_two_entries() {
    let server = server().await;
    let mut agent = FakeAgent::join(&server, node("n1").build()).await;
    ready(&server, agent.node_id).await;
    let before = server.control().last_log_index();

    server.register(job("web").count(3)).await;
    agent.next_to_run().await;
    server
        .until("the evaluation is complete", |state| {
            state.evals().pending().next().is_none()
        })
        .await;

    assert_eq!(server.control().last_log_index().0 - before.0, 2);
    assert_eq!(statuses(&server.control().state(), "web").len(), 3);
    server.shutdown().await;
}

/// Plans that are made while an entry commits share the next one.
#[tokio::test]
async fn job_burst_uses_under_two_entries_each() {
    const JOBS: u64 = 64;
    let server = server().await;
    let agent = FakeAgent::join(&server, node("n1").cpu_mhz(100_000).build()).await;
    ready(&server, agent.node_id).await;
    let before = server.control().last_log_index();

    let names: Vec<String> = (0..JOBS).map(|at| format!("job-{at}")).collect();
    futures::future::join_all(names.iter().map(|name| server.register(job(name)))).await;
    let state = server
        .until("everything is placed", |state| {
            state.evals().pending().next().is_none() && state.jobs().len() as u64 == JOBS
        })
        .await;

    let entries = server.control().last_log_index().0 - before.0;
    assert!(entries < 2 * JOBS, "{entries} entries for {JOBS} jobs");
    assert_eq!(state.allocs().len() as u64, JOBS);
    server.shutdown().await;
}

#[tokio::test]
async fn unregistered_agent_is_disconnected() {
    let server = server().await;
    let (_endpoint, connection) = connect(&server, Role::Agent).await;
    let connection = connection.unwrap();
    let (send, _receive) = connection.open_bi().await.unwrap();

    FrameSender::new(send)
        .send(&FromAgent::Heartbeat { number: 1 })
        .await
        .unwrap();

    soon("the server hangs up", connection.closed()).await;
    assert_eq!(server.control().nodes().connected(), []);
    server.shutdown().await;
}

/// Registers a node that is refused, and returns the reason.
async fn register_as(server: &TestServer, spec: NodeSpec, secret: NodeSecret) -> String {
    let (_endpoint, connection) = connect(server, Role::Agent).await;
    let (send, receive) = connection.unwrap().open_bi().await.unwrap();
    let mut sender = FrameSender::new(send);
    let register = FromAgent::Register {
        node: Box::new(spec),
        secret,
        known: LogIndex(0),
    };
    sender.send(&register).await.unwrap();
    let answer = soon("an answer", FrameReceiver::new(receive).recv::<ToAgent>()).await;
    match answer.unwrap() {
        Some(ToAgent::Refused { reason }) => reason,
        answer => panic!("{answer:?}"),
    }
}

/// A node whose description breaks the rules is told why.
#[tokio::test]
async fn a_malformed_node_is_refused_with_the_reason() {
    let server = server().await;
    let mut spec = node("n1").build();
    spec.name = String::new();

    let reason = register_as(&server, spec, NodeSecret::default()).await;

    assert!(reason.contains("name"), "{reason}");
    assert_eq!(server.control().state().nodes().len(), 0);
    server.shutdown().await;
}

#[tokio::test]
async fn blocked_job_is_placed_when_node_joins() {
    let server = server().await;
    server.register(job("web")).await;
    server
        .until("the evaluation is blocked", |state| {
            state
                .evals()
                .of_job(&JobKey::in_default("web"))
                .any(|eval| eval.status.as_str() == "blocked")
        })
        .await;

    let mut agent = FakeAgent::join(&server, node("n1").build()).await;

    assert_eq!(agent.next_to_run().await.job.spec.id, "web");
    server.shutdown().await;
}

#[tokio::test]
async fn a_stopped_job_is_stopped_on_its_node() {
    let server = server().await;
    let mut agent = FakeAgent::join(&server, node("n1").build()).await;
    server.register(job("web")).await;
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;

    let at = server.control().now();
    server
        .propose(
            JobCommand::Deregister {
                key: JobKey::in_default("web"),
            }
            .at(at),
        )
        .await;

    let stopped = loop {
        if let Some(ToAgent::Desired { allocs, .. }) = agent.next().await
            && let Some(alloc) = allocs
                .into_iter()
                .find(|alloc| alloc.desired == DesiredStatus::Stop)
        {
            break alloc;
        }
    };
    assert_eq!(stopped.alloc_id, alloc.alloc_id);
    assert!(stopped.alloc_modify_index > alloc.alloc_modify_index);
    server.shutdown().await;
}

#[tokio::test]
async fn silent_node_goes_down_and_allocs_move() {
    let server = server().await;
    let mut first = FakeAgent::join(&server, node("n1").build()).await;
    server.register(job("web")).await;
    let lost = first.next_to_run().await;
    first.report(lost.alloc_id, ClientStatus::Running).await;
    let mut second = FakeAgent::join(&server, node("n2").build()).await;
    ready(&server, second.node_id).await;

    first.fall_silent();

    let replacement = second.next_to_run().await;
    second
        .report(replacement.alloc_id, ClientStatus::Running)
        .await;
    let state = server.control().state();
    assert_eq!(
        state.nodes().get(&first.node_id).unwrap().status,
        NodeStatus::Down
    );
    assert_eq!(
        statuses(&state, "web"),
        [ClientStatus::Running, ClientStatus::Lost]
    );
    assert_eq!(
        state
            .allocs()
            .get(&replacement.alloc_id)
            .unwrap()
            .previous(),
        Some(lost.alloc_id)
    );
    server.shutdown().await;
}

#[tokio::test]
async fn a_restart_marks_no_node_down() {
    let first = server().await;
    let mut agent = FakeAgent::join(&first, node("n1").build()).await;
    first.register(job("web")).await;
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;
    drop(agent);
    let dir = first.shutdown().await;

    let second = crate::fixture::server_on(dir).await;
    let mut agent = FakeAgent::join(&second, node("n1").build()).await;

    assert_eq!(agent.next_to_run().await.alloc_id, alloc.alloc_id);
    let state = second.control().state();
    assert_eq!(
        state.nodes().get(&agent.node_id).unwrap().status,
        NodeStatus::Ready
    );
    assert_eq!(statuses(&state, "web"), [ClientStatus::Running]);
    second.shutdown().await;
}

#[tokio::test]
async fn second_node_connection_replaces_first() {
    let server = server().await;
    let mut first = FakeAgent::join(&server, node("n1").build()).await;

    let mut second = FakeAgent::join(&server, node("n1").build()).await;

    while first.next().await.is_some() {}
    server.register(job("web")).await;
    assert_eq!(second.next_to_run().await.job.spec.id, "web");
    assert_eq!(server.control().nodes().connected(), [second.node_id]);
    server.shutdown().await;
}

/// An agent that has the id of a node and not its secret changes nothing, and the node's events name it.
#[tokio::test]
async fn an_agent_with_another_secret_is_refused() {
    let server = server().await;
    let mut first = FakeAgent::join(&server, node("n1").build()).await;
    let mut spec = node("n1").build();
    let secret = NodeSecret([1; 32]);
    spec.secret_hash = secret.hash();
    spec.address = "192.0.2.1".to_owned();

    for _ in 0..2 {
        let refused = register_as(&server, spec.clone(), secret).await;
        assert!(refused.contains("another secret"), "{refused}");
    }
    let refused = register_as(&server, node("n1").build(), secret).await;
    assert!(refused.contains("does not fit its hash"), "{refused}");

    server.register(job("web")).await;
    assert_eq!(first.next_to_run().await.job.spec.id, "web");
    let state = server.control().state();
    let row = state.nodes().get(&first.node_id).unwrap();
    assert_eq!(row.spec.address, node("n1").build().address);
    let refusals = row
        .events
        .iter()
        .filter(|event| event.message.contains("another secret"));
    assert_eq!(refusals.count(), 1, "{:?}", row.events);
    server.shutdown().await;
}

/// Everything a node knew that the state has forgotten is named once.
#[tokio::test]
async fn collected_allocations_are_named_as_gone() {
    let server = server().await;
    let mut agent = FakeAgent::join(&server, node("n1").build()).await;
    server.register(job("web")).await;
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;
    let at = server.control().now();
    server
        .propose(
            JobCommand::Purge {
                key: JobKey::in_default("web"),
            }
            .at(at),
        )
        .await;
    agent.report(alloc.alloc_id, ClientStatus::Complete).await;
    server
        .until("all evaluations are done", |state| {
            state.evals().pending().next().is_none()
        })
        .await;

    server.control().collect_garbage().await.unwrap();

    let mut asked = false;
    let gone = soon("the allocation is gone", async {
        loop {
            match agent.next().await {
                Some(ToAgent::Desired { gone, .. }) if !gone.is_empty() => return gone,
                Some(ToAgent::CollectGarbage) => asked = true,
                Some(_) => {}
                None => panic!("the session ended"),
            }
        }
    })
    .await;
    assert_eq!(gone, [alloc.alloc_id]);
    while !asked {
        asked = matches!(agent.next().await, Some(ToAgent::CollectGarbage));
    }
    assert_eq!(server.control().state().allocs().len(), 0);
    server.shutdown().await;
}

#[tokio::test]
async fn a_node_answers_questions() {
    let server = server().await;
    let agent = FakeAgent::join(&server, node("n1").build()).await;
    let replies = [NodeReply::Idle, NodeReply::LogGap { bytes: 7 }];

    let (asked, answered) = tokio::join!(
        async {
            let mut receiver = server
                .control()
                .nodes()
                .request(agent.node_id, NodeRequest::NodeStats)
                .await
                .unwrap();
            let mut received = Vec::new();
            while let Some(reply) = receiver.recv().await {
                received.push(reply);
            }
            received
        },
        agent.answer(&replies),
    );

    assert_eq!(asked, replies);
    assert_eq!(answered, NodeRequest::NodeStats);
    server.shutdown().await;
}

#[tokio::test]
async fn request_to_disconnected_node_fails() {
    let server = server().await;

    let error = server
        .control()
        .nodes()
        .request(NodeId([7; 16]), NodeRequest::NodeStats)
        .await
        .unwrap_err();

    assert!(error.to_string().contains("not connected"), "{error}");
    server.shutdown().await;
}

#[tokio::test]
async fn server_certificate_is_rejected_for_agent_role() {
    let server = server().await;

    let (_endpoint, connection) = connect(&server, Role::Server).await;

    let closed = soon("the server hangs up", connection.unwrap().closed()).await;
    assert!(
        closed.to_string().contains("does not speak for an agent"),
        "{closed}"
    );
    server.shutdown().await;
}

#[tokio::test]
async fn silent_connection_delays_no_shutdown() {
    let server = server().await;
    let (_endpoint, connection) = connect(&server, Role::Agent).await;
    let _silent = connection.unwrap();

    let agent = FakeAgent::join(&server, node("n1").build()).await;

    ready(&server, agent.node_id).await;
    let began = std::time::Instant::now();
    server.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(10));
}
