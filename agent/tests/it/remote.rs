//! Tasks that run on another system: taken over, left and stopped, with a driver in the agent's process.

use std::sync::Arc;

use muster_agent::node::{Agent, ShutdownPolicy};
use muster_domain::alloc::{ClientStatus, RemoteAlloc, RemoteHandle, TaskState};
use muster_domain::id::AllocId;
use muster_driver::TaskHandle;
use muster_driver::mock::{MockDriver, MockHost, MockTask};

use crate::support::{FakeServer, Machine, eventually, privileged, service};

/// An agent whose tasks run on `host`.
async fn agent(machine: &Machine, server: &FakeServer, host: &MockHost) -> Agent {
    agent_with(machine, server, MockDriver::remote(host.clone())).await
}

async fn agent_with(machine: &Machine, server: &FakeServer, driver: MockDriver) -> Agent {
    let mut config = machine.config(server);
    config.driver_command.clear();
    config.drivers = vec![("mock".to_owned(), Arc::new(driver))];
    Agent::start(config).await.unwrap()
}

async fn place(server: &FakeServer, number: u32) -> AllocId {
    let config = MockTask::forever().to_config();
    let alloc = service(number, "").driver("mock", &config);
    // Two servers place the same allocation.
    server.place(alloc.index(7).build()).await
}

/// The handle of the task that runs, as its agent reports it.
async fn handle(server: &FakeServer, alloc_id: AllocId) -> RemoteHandle {
    server.status(alloc_id, ClientStatus::Running).await;
    eventually("a handle", async || server.report(alloc_id)?.remote.pop()).await
}

fn taking(alloc_id: AllocId, handle: &RemoteHandle) -> RemoteAlloc {
    RemoteAlloc {
        take: vec![handle.clone()],
        ..RemoteAlloc::none(alloc_id)
    }
}

fn leaving(alloc_id: AllocId, handle: &RemoteHandle) -> RemoteAlloc {
    RemoteAlloc {
        leave: vec![handle.clone()],
        ..RemoteAlloc::none(alloc_id)
    }
}

fn has_event(task: &TaskState, words: &str) -> bool {
    task.events
        .iter()
        .any(|event| event.message.contains(words))
}

/// The replacement is told of the task before its former agent has left it, and the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn remote_task_moves_between_agents() {
    if !privileged("remote_task_moves_between_agents") {
        return;
    }
    for leaves_first in [false, true] {
        let (old, new, host) = (Machine::new(), Machine::new(), MockHost::new());
        let (old_server, new_server) = (old.server(), new.server());
        let old_agent = agent(&old, &old_server, &host).await;
        let new_agent = agent(&new, &new_server, &host).await;
        let first = place(&old_server, 1).await;
        let given = handle(&old_server, first).await;
        let second = service(2, "").index(7).build().alloc_id;
        new_server.set_remote(taking(second, &given));
        old_server.set_remote(leaving(first, &given));

        if leaves_first {
            old_server.stop(first).await;
            old_server.status(first, ClientStatus::Complete).await;
        }
        place(&new_server, 2).await;
        let taken = handle(&new_server, second).await;
        if !leaves_first {
            old_server.stop(first).await;
            old_server.status(first, ClientStatus::Complete).await;
        }
        let task = new_server.status(second, ClientStatus::Running).await;

        assert_eq!((host.running(), host.tasks()), (1, 1));
        assert_eq!(taken, given);
        assert!(has_event(&task, "taken over"), "{task:?}");
        let left = old_server.report(first).unwrap();
        assert!(has_event(&left.task_states[0], "DETACH"), "{left:?}");
        assert_eq!(left.remote, []);

        // Collection of what was left does not reach the task.
        old_server.forget(first).await;
        old_agent.collect_now(false).await.unwrap();
        old_agent.shutdown(ShutdownPolicy::StopTasks).await;
        assert_eq!(host.running(), 1);
        new_server.stop(second).await;
        new_server.status(second, ClientStatus::Complete).await;
        assert_eq!(host.running(), 0);
        new_agent.shutdown(ShutdownPolicy::StopTasks).await;
    }
}

/// The next agent has a handle, too, and leaves the task if it is told to, or if the control plane knows nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn returning_agent_detaches_tasks_owned_elsewhere() {
    if !privileged("returning_agent_detaches_tasks_owned_elsewhere") {
        return;
    }
    for is_forgotten in [false, true] {
        let (machine, host) = (Machine::new(), MockHost::new());
        let server = machine.server();
        let first = agent(&machine, &server, &host).await;
        let alloc_id = place(&server, 1).await;
        let given = handle(&server, alloc_id).await;
        first.shutdown(ShutdownPolicy::KeepTasks).await;
        if is_forgotten {
            server.forget(alloc_id).await;
        } else {
            server.set_remote(leaving(alloc_id, &given));
            server.stop(alloc_id).await;
        }

        let second = agent(&machine, &server, &host).await;
        if is_forgotten {
            eventually("its directories go", async || {
                (!machine.alloc_dir(alloc_id).exists()).then_some(())
            })
            .await;
        } else {
            server.status(alloc_id, ClientStatus::Complete).await;
        }

        assert_eq!((host.running(), host.tasks()), (1, 1), "{is_forgotten}");
        second.shutdown(ShutdownPolicy::StopTasks).await;
        assert_eq!(host.running(), 1, "{is_forgotten}");
    }
}

/// Without a word that it is another's, it is stopped; an agent that was started anew knows its handle.
#[tokio::test(flavor = "multi_thread")]
async fn remote_task_is_stopped_by_restarted_agent() {
    if !privileged("remote_task_is_stopped_by_restarted_agent") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let first = agent(&machine, &server, &host).await;
    let alloc_id = place(&server, 1).await;
    let given = handle(&server, alloc_id).await;
    first.shutdown(ShutdownPolicy::KeepTasks).await;

    let second = agent(&machine, &server, &host).await;
    server
        .reported(alloc_id, "recovered", |task, _| {
            has_event(task, "found running")
        })
        .await;
    assert_eq!(handle(&server, alloc_id).await, given);
    server.stop(alloc_id).await;
    server.status(alloc_id, ClientStatus::Complete).await;

    assert_eq!(host.running(), 0);
    second.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_remote_task_is_started_anew() {
    if !privileged("missing_remote_task_is_started_anew") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent(&machine, &server, &host).await;
    let first = place(&server, 1).await;
    let given = handle(&server, first).await;
    host.power_off();
    let second = service(2, "").index(7).build().alloc_id;
    server.set_remote(taking(second, &given));

    place(&server, 2).await;
    let task = server.status(second, ClientStatus::Running).await;

    assert!(has_event(&task, "started anew"), "{task:?}");
    assert_eq!(task.restarts, 0);
    assert_eq!(host.running(), 1);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A handle of another version of the driver: the task is neither started a second time nor touched.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_remote_handle_fails_alloc() {
    if !privileged("unreadable_remote_handle_fails_alloc") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent(&machine, &server, &host).await;
    let first = place(&server, 1).await;
    let given = handle(&server, first).await;
    let newer = TaskHandle {
        version: 7,
        ..TaskHandle::decode(&given.handle).unwrap()
    };
    let newer = RemoteHandle {
        handle: newer.encode().unwrap(),
        ..given
    };
    let second = service(2, "").index(7).build().alloc_id;
    server.set_remote(taking(second, &newer));

    place(&server, 2).await;
    let task = server.status(second, ClientStatus::Failed).await;

    assert!(has_event(&task, "its handle has version 7"), "{task:?}");
    assert_eq!(server.report(second).unwrap().remote, [newer]);
    assert_eq!(host.running(), 1);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The next agent has another version of the driver: it does not start beside what runs, and whatever replaces the
/// allocation gets the handle.
#[tokio::test(flavor = "multi_thread")]
async fn incompatible_driver_version_starts_no_duplicate_task() {
    if !privileged("incompatible_driver_version_starts_no_duplicate_task") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let first = agent(&machine, &server, &host).await;
    let alloc_id = place(&server, 1).await;
    let given = handle(&server, alloc_id).await;
    first.shutdown(ShutdownPolicy::KeepTasks).await;

    let driver = MockDriver::remote(host.clone()).of_version(2);
    let second = agent_with(&machine, &server, driver).await;
    server.status(alloc_id, ClientStatus::Failed).await;

    let report = server.report(alloc_id).unwrap();
    let events = &report.task_states[0];
    assert!(has_event(events, "its handle has version 1"), "{report:?}");
    assert_eq!(report.remote, [given]);
    assert_eq!(host.running(), 1);
    second.shutdown(ShutdownPolicy::StopTasks).await;
}
