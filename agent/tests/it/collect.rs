//! Removal of what has finished, and of everything.

use muster_domain::alloc::ClientStatus;

use crate::support::{Machine, batch, ended, eventually, privileged, service};

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_allocation_leaves_nothing() {
    if !privileged("a_forgotten_allocation_leaves_nothing") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "echo up; sleep 600").build()).await;
    let pid = server.pid(alloc_id).await;

    server.forget(alloc_id).await;
    eventually("its directories go", async || {
        let left = machine.alloc_dir(alloc_id).exists() || machine.log_dir(alloc_id).exists();
        (!left).then_some(())
    })
    .await;

    assert!(ended(pid));
    assert!(!machine.tree().join(alloc_id.to_string()).exists());
    eventually("the trash is emptied", async || {
        let trash = std::fs::read_dir(machine.data().join("trash"))
            .unwrap()
            .count();
        (trash == 0).then_some(())
    })
    .await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_collection_takes_what_has_finished() {
    if !privileged("forced_collection_takes_what_has_finished") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let done = server.place(batch(1, "exit 0").build()).await;
    let running = server.place(service(2, "sleep 600").build()).await;
    server.status(done, ClientStatus::Complete).await;
    server.status(running, ClientStatus::Running).await;
    assert!(machine.alloc_dir(done).exists());

    server.collect_garbage().await;
    eventually("the finished one goes", async || {
        (!machine.alloc_dir(done).exists()).then_some(())
    })
    .await;

    assert!(machine.alloc_dir(running).exists());
    // It stays away when the server names it again.
    server.disconnect();
    eventually("a session", async || (server.sessions() >= 2).then_some(())).await;
    assert!(!machine.alloc_dir(done).exists());
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clean_refuses_while_tasks_run() {
    if !privileged("clean_refuses_while_tasks_run") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "sleep 600").build()).await;
    let pid = server.pid(alloc_id).await;
    let tree = machine.tree();
    agent.leave().await;

    let refused = muster_agent::clean::run(&machine.data(), false)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains(&format!("{alloc_id}/main")) && !ended(pid),
        "{refused}"
    );

    let (driver, _) = machine.driver().await;
    muster_agent::clean::run(&machine.data(), true).unwrap();
    assert!(ended(pid) && ended(driver) && !tree.exists());
    assert!(!machine.data().join("bpf").exists());
    let again = muster_agent::clean::run(&machine.data(), false).unwrap();
    assert_eq!(again, Vec::<String>::new());
}
