//! Drivers in the agent's own process, whose tasks are no processes.

use std::sync::Arc;
use std::time::Duration;

use muster_agent::node::{Agent, Leave};
use muster_domain::alloc::{ClientStatus, TaskEventKind};
use muster_driver::mock::{MockDriver, MockHost, MockTask};

use crate::support::{FakeServer, Machine, batch, privileged, service};

async fn agent(machine: &Machine, server: &FakeServer, host: &MockHost) -> Agent {
    let mut config = machine.config(server);
    config.driver_command.clear();
    config.drivers = vec![("mock".to_owned(), Arc::new(MockDriver::on(host.clone())))];
    Agent::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mock_task_runs_to_its_end() {
    if !privileged("a_mock_task_runs_to_its_end") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent(&machine, &server, &host).await;
    let config = MockTask::exits(Duration::from_millis(20), 5).to_config();

    let alloc_id = server
        .place(batch(1, "").driver("mock", &config).build())
        .await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    assert!(
        task.events
            .iter()
            .any(|event| event.message == "exit code 5"),
        "{task:?}"
    );
    agent.shutdown(Leave::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_may_work_later_is_tried_again() {
    if !privileged("a_start_that_may_work_later_is_tried_again") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent(&machine, &server, &host).await;
    let mut broken = MockTask::broken("no luck today");
    broken.start_error_recoverable = true;

    let alloc = service(1, "")
        .driver("mock", &broken.to_config())
        .restarts(2)
        .build();
    let alloc_id = server.place(alloc).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    assert_eq!(task.restarts, 2);
    assert!(
        task.events
            .iter()
            .any(|event| event.message == "no luck today"),
        "{task:?}"
    );
    agent.shutdown(Leave::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_without_a_process_is_recovered() {
    if !privileged("a_task_without_a_process_is_recovered") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let first = agent(&machine, &server, &host).await;
    let config = MockTask::forever().to_config();
    let alloc_id = server
        .place(service(1, "").driver("mock", &config).build())
        .await;
    server.status(alloc_id, ClientStatus::Running).await;

    first.shutdown(Leave::KeepTasks).await;
    assert_eq!(host.running(), 1);
    let second = agent(&machine, &server, &host).await;
    let recovered = |kind: &TaskEventKind| matches!(kind, TaskEventKind::Recovered);
    server
        .reported(alloc_id, "recovered", |task, _| {
            task.events.iter().any(|event| recovered(&event.kind))
        })
        .await;

    assert_eq!(host.running(), 1);
    second.shutdown(Leave::StopTasks).await;
    assert_eq!(host.running(), 0);
}
