//! The session with a server.

use muster_agent::node::{Agent, StartAgentError};
use muster_domain::alloc::ClientStatus;
use muster_wire::frame::AGENT_VERSION;
use muster_wire::rpc::LogStream;

use crate::support::{Machine, batch, eventually, privileged, service};

#[tokio::test(flavor = "multi_thread")]
async fn the_node_registers_with_its_driver() {
    if !privileged("the_node_registers_with_its_driver") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let node = server.node(|node| node.has_driver("native")).await;

    assert!(node.faults().is_empty(), "{:?}", node.faults());
    assert_eq!(node.address, "127.0.0.1");
    assert_eq!(node.attributes["driver.native"], "1");
    assert!(node.attributes.contains_key("cgroup.mode"));
    assert!(node.attributes.contains_key("ebpf.object"));
    agent.end().await;
}

/// A server of another version is told which versions did not fit. It had read the registration.
#[tokio::test(flavor = "multi_thread")]
async fn other_server_version_is_refused_with_both_versions() {
    if !privileged("other_server_version_is_refused_with_both_versions") {
        return;
    }
    for version in [AGENT_VERSION - 1, AGENT_VERSION + 1] {
        let machine = Machine::new();
        let server = machine.server();
        server.speak(version);
        let agent = machine.agent(&server).await;

        let reason = server.closed().await;

        let expected = format!(
            "got version {version} of the agent protocol, expected version {AGENT_VERSION}: upgrade the older one"
        );
        assert!(reason.contains(&expected), "{reason}");
        agent.end().await;
    }
}

/// The time to live is a second.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_are_sent_in_time() {
    if !privileged("heartbeats_are_sent_in_time") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    server.node(|_| true).await;
    let begun = std::time::Instant::now();

    eventually("six heartbeats", async || {
        (server.heartbeats() >= 6).then_some(())
    })
    .await;

    assert!(begun.elapsed().as_secs() < 10);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_go_on_without_a_server() {
    if !privileged("tasks_go_on_without_a_server") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let gate = machine.data().join("gate");
    let script = format!(
        "echo up; while ! [ -e {} ]; do sleep 0.02; done; exit 3",
        gate.display()
    );
    let alloc_id = server.place(batch(1, &script).raw().build()).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let pid = server.pid(alloc_id).await;

    server.disconnect();
    std::fs::write(&gate, "").unwrap();
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    assert_eq!(task.restarts, 0);
    assert!(crate::support::ended(pid));
    assert!(server.sessions() >= 2);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_that_were_not_committed_are_sent_again() {
    if !privileged("reports_that_were_not_committed_are_sent_again") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    server.node(|node| node.has_driver("native")).await;
    server.mute(true);
    let alloc_id = server.place(batch(1, "exit 0").build()).await;
    eventually("a report", async || {
        server
            .messages()
            .iter()
            .any(|(_, allocs)| allocs.contains(&alloc_id))
            .then_some(())
    })
    .await;
    assert_eq!(server.report(alloc_id), None);

    server.mute(false);
    server.disconnect();

    server.status(alloc_id, ClientStatus::Complete).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_messages_start_nothing_twice() {
    if !privileged("repeated_messages_start_nothing_twice") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "echo up; sleep 600").build()).await;
    let pid = server.pid(alloc_id).await;

    for session in 2..5 {
        server.disconnect();
        eventually("a session", async || {
            (server.sessions() >= session).then_some(())
        })
        .await;
    }

    assert_eq!(server.pid(alloc_id).await, pid);
    assert_eq!(server.log(alloc_id, LogStream::Stdout).await, "up\n");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_agent_on_same_data_directory_is_refused() {
    if !privileged("second_agent_on_same_data_directory_is_refused") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let refused = Agent::start(machine.config(&server)).await.unwrap_err();

    assert!(matches!(refused, StartAgentError::Lock(_)), "{refused}");
    assert!(
        refused
            .to_string()
            .contains(&std::process::id().to_string()),
        "{refused}"
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_without_root_asks_for_sudo() {
    if !privileged("agent_without_root_asks_for_sudo") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();

    let words = machine.agent_of_nobody(&server);

    assert!(
        words.contains("the agent is not root: run it with sudo"),
        "{words}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_data_is_the_same_node() {
    if !privileged("the_same_data_is_the_same_node") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let first = server.node(|_| true).await.id;
    agent.end().await;

    let agent = machine.agent(&server).await;
    eventually("a second session", async || {
        (server.sessions() >= 2).then_some(())
    })
    .await;

    assert_eq!(server.node(|_| true).await.id, first);
    agent.end().await;
}
