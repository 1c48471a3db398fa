//! Two agents on one machine: neither counts, ends or cleans up what is the other's.

use std::time::Duration;

use muster_domain::alloc::ClientStatus;

use crate::support::{Machine, ended, privileged, service, start_ticks};

/// Both have the same allocation, so that the node alone tells whose a task is.
#[tokio::test(flavor = "multi_thread")]
async fn two_agents_on_one_machine_do_not_meet() {
    if !privileged("two_agents_on_one_machine_do_not_meet") {
        return;
    }
    let (machine, other) = (Machine::new(), Machine::new());
    let (server, other_server) = (machine.server(), other.server());
    let agent = machine.killable_agent(&server);
    let other_agent = other.agent(&other_server).await;
    let quiet = service(1, "exec sleep 600").index(7).build();
    let busy = service(1, "while :; do :; done").index(7).build();

    let alloc_id = server.place(quiet).await;
    assert_eq!(other_server.place(busy).await, alloc_id);
    for server in [&server, &other_server] {
        server.status(alloc_id, ClientStatus::Running).await;
    }

    let (pid, other_pid) = (server.pid(alloc_id).await, other_server.pid(alloc_id).await);
    assert_ne!(machine.tree(), other.tree());
    let burnt = |least: Duration| {
        other_server.usage(alloc_id, "time of a processor", move |stats| {
            stats.cpu.is_some_and(|cpu| cpu >= least)
        })
    };
    let used = burnt(Duration::from_secs(1)).await.cpu.unwrap();
    let rests = server.usage(alloc_id, "its own time", |stats| stats.cpu.is_some());
    assert!(rests.await.cpu.unwrap() < Duration::from_millis(500));

    let start = start_ticks(other_pid).unwrap();
    agent.kill();
    muster_agent::clean::run(&machine.data(), true).unwrap();

    assert!(ended(pid));
    burnt(used + Duration::from_millis(500)).await;
    assert_eq!(other_server.pid(alloc_id).await, other_pid);
    assert_eq!(start_ticks(other_pid), Some(start));
    other_agent.leave().await;
    let other_agent = other.agent(&other_server).await;
    burnt(used + Duration::from_secs(1)).await;
    assert_eq!(start_ticks(other_pid), Some(start));
    other_server.stop(alloc_id).await;
    other_agent.end().await;
}
