//! Several servers: one of them is chosen, and left when it is of no use.

use std::time::{Duration, Instant};

use muster_agent::node::{Agent, ShutdownPolicy};
use muster_domain::alloc::ClientStatus;
use muster_link::certificates::Certificates;
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject, Role};
use muster_wire::rpc::LogStream;

use crate::support::{FakeServer, Machine, batch, eventually, privileged, service};

/// An agent that was told of all `servers`.
async fn agent(machine: &Machine, servers: &[&FakeServer]) -> Agent {
    let mut config = machine.config(servers[0]);
    config.servers = servers.iter().map(|server| server.addr()).collect();
    Agent::start(config).await.unwrap()
}

/// Which of `servers` has a session.
async fn holder<'a>(servers: &[&'a FakeServer]) -> &'a FakeServer {
    eventually("a session", async || {
        servers.iter().find(|server| server.is_connected()).copied()
    })
    .await
}

/// The server is gone without a word; its tasks go on, and the next server learns of them and of what ended
/// meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_goes_on_with_another_server() {
    if !privileged("an_agent_goes_on_with_another_server") {
        return;
    }
    let machine = Machine::new();
    let first = machine.server();
    let second = first.sibling();
    let agent = agent(&machine, &[&first, &second]).await;
    let held = holder(&[&first, &second]).await;
    let gate = machine.data().join("gate");
    let script = format!(
        "while ! [ -e {} ]; do sleep 0.02; done; exit 3",
        gate.display()
    );
    let ending = held.place(batch(1, &script).raw().build()).await;
    let staying = held.place(service(2, "echo up; sleep 600").build()).await;
    held.status(ending, ClientStatus::Running).await;
    let pid = held.pid(staying).await;
    let other = if held.addr() == first.addr() {
        &second
    } else {
        &first
    };
    other.want_as(held);

    held.stop_listening();
    std::fs::write(&gate, "").unwrap();

    other.status(ending, ClientStatus::Failed).await;
    assert_eq!(other.pid(staying).await, pid);
    assert_eq!(other.log(staying, LogStream::Stdout).await, "up\n");
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// It answers, but no leader counts the heartbeats that it is sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_leaves_a_server_without_a_leader() {
    if !privileged("an_agent_leaves_a_server_without_a_leader") {
        return;
    }
    let machine = Machine::new();
    let first = machine.server();
    let second = first.sibling();
    first.leaderless(true);
    second.leaderless(true);
    let agent = agent(&machine, &[&first, &second]).await;
    eventually("a session with each", async || {
        (first.sessions() > 0 && second.sessions() > 0).then_some(())
    })
    .await;
    assert!(agent.lease().borrow().is_none());

    second.leaderless(false);

    eventually("a lease", async || {
        let lease = *agent.lease().borrow();
        lease.is_some_and(|end| end > Instant::now()).then_some(())
    })
    .await;
    assert!(second.is_connected());
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Only one of the servers was named; the other is learned, and known after a restart when the first is gone.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_were_learned_are_kept() {
    if !privileged("servers_that_were_learned_are_kept") {
        return;
    }
    let machine = Machine::new();
    let first = machine.server();
    let second = first.sibling();
    first.send_servers(vec![first.addr(), second.addr()]);
    let mut config = machine.config(&first);
    config.servers = vec![first.addr()];
    let agent = Agent::start(config).await.unwrap();
    first.node(|_| true).await;
    eventually("both servers", async || {
        (first.heartbeats() > 1).then_some(())
    })
    .await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;
    first.stop_listening();

    let mut config = machine.config(&first);
    config.servers = vec![first.addr()];
    let agent = Agent::start(config).await.unwrap();

    second.node(|_| true).await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_sends_away_is_left() {
    if !privileged("a_server_that_sends_away_is_left") {
        return;
    }
    let machine = Machine::new();
    let first = machine.server();
    let second = first.sibling();
    let agent = agent(&machine, &[&first, &second]).await;
    let held = holder(&[&first, &second]).await;
    let other = if held.addr() == first.addr() {
        &second
    } else {
        &first
    };

    held.send_away(Duration::from_mins(10)).await;

    other.node(|_| true).await;
    assert_eq!(held.sessions(), 1);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The next connection shows it; the agent is not restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_of_the_agent_is_shown() {
    if !privileged("a_new_certificate_of_the_agent_is_shown") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let mut config = machine.config(&server);
    config.certificates = Certificates::load(server.tls_dir(), Role::Agent).unwrap();
    let agent = Agent::start(config).await.unwrap();
    server.node(|_| true).await;
    let old = server.peer_certificate();

    let authority = Authority::load(server.tls_dir()).unwrap();
    authority
        .issue(
            server.tls_dir(),
            CertificateSubject::Agent,
            CERTIFICATE_LIFE,
        )
        .unwrap();
    agent.certificates().ask();
    eventually("the new certificate is read", async || {
        (agent.certificates().current().chain[0].to_vec() != old).then_some(())
    })
    .await;
    assert_eq!(server.peer_certificate(), old);
    server.disconnect();

    eventually("the new certificate", async || {
        (server.is_connected() && server.peer_certificate() != old).then_some(())
    })
    .await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}
