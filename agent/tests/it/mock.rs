//! Drivers in the agent's own process, whose tasks are no processes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_agent::ChrootEnv;
use muster_agent::node::{Agent, ShutdownPolicy};
use muster_domain::alloc::{ClientStatus, TaskEvent, TaskEventKind, TaskNetwork, TaskState};
use muster_domain::id::AllocId;
use muster_domain::job::{
    DirectionPolicy, DnsConfig, GroupNetwork, JobSpec, LogConfig, NetworkMode, NetworkPolicy,
    PolicyAction,
};
use muster_domain::resources::Holding;
use muster_driver::mock::{MockDriver, MockHost, MockTask};
use muster_driver::{Dns, FsIsolation, Health, TaskDriver};
use muster_wire::rpc::{LogStream, NodeReply, NodeRequest, TaskStats};

use crate::support::{FakeServer, Machine, batch, eventually, privileged, service};

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
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recoverable_start_error_is_retried() {
    if !privileged("recoverable_start_error_is_retried") {
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
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

fn has_event(task: &TaskState, part: &str) -> bool {
    let mut events = task.events.iter();
    events.any(|event| event.message.contains(part))
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_start_gives_reason_and_can_be_stopped() {
    if !privileged("hung_start_gives_reason_and_can_be_stopped") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let driver = Arc::new(MockDriver::on(host.clone()));
    let mut config = machine.config(&server);
    config.driver_command.clear();
    let served: Arc<dyn TaskDriver> = Arc::clone(&driver) as _;
    config.drivers = vec![("mock".to_owned(), served)];
    let agent = Agent::start(config).await.unwrap();
    let hung = MockTask {
        start_for_ms: 3_600_000,
        ..MockTask::default()
    };

    let alloc = service(1, "").driver("mock", &hung.to_config()).build();
    let alloc_id = server.place(alloc).await;
    driver.set_health(Health::Unhealthy, "it was stopped");
    server
        .reported(alloc_id, "the reason of the wait", |task, _| {
            has_event(task, "waits for the driver `mock`: it was stopped")
        })
        .await;
    server.stop(alloc_id).await;
    let task = server.status(alloc_id, ClientStatus::Complete).await;
    assert!(has_event(&task, "did not answer StartTask"), "{task:?}");
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The group's network is made before the task is started, by a driver that does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn hung_network_creation_can_be_stopped() {
    if !privileged("hung_network_creation_can_be_stopped") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let driver = Arc::new(MockDriver::on(host.clone()).with_networks());
    driver.hang_create_network(true);
    let mut config = machine.config(&server);
    config.driver_command.clear();
    let served: Arc<dyn TaskDriver> = Arc::clone(&driver) as _;
    config.drivers = vec![("mock".to_owned(), served)];
    let agent = Agent::start(config).await.unwrap();
    let task = MockTask::forever().to_config();
    let alloc = service(1, "").driver("mock", &task).with(|spec, _| {
        spec.groups[0].network = Some(GroupNetwork {
            mode: NetworkMode::Bridge,
            ports: Vec::new(),
            policy: None,
            dns: None,
            hostname: String::new(),
        });
    });

    let alloc_id = server.place(alloc.build()).await;
    eventually("the driver to be asked", async || {
        (driver.hung_calls() > 0).then_some(())
    })
    .await;
    server.stop(alloc_id).await;
    let task = server.status(alloc_id, ClientStatus::Complete).await;

    assert!(has_event(&task, "did not answer CreateNetwork"), "{task:?}");
    driver.hang_create_network(false);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Pauses between attempts to wait for a task, at least.
const WAIT_PAUSES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

#[tokio::test(flavor = "multi_thread")]
async fn failing_waits_are_retried_with_longer_pauses() {
    if !privileged("failing_waits_are_retried_with_longer_pauses") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let driver = Arc::new(MockDriver::on(host.clone()));
    driver.fail_waits(true);
    let mut config = machine.config(&server);
    config.driver_command.clear();
    let served: Arc<dyn TaskDriver> = Arc::clone(&driver) as _;
    config.drivers = vec![("mock".to_owned(), served)];
    let agent = Agent::start(config).await.unwrap();
    let task = MockTask::forever().to_config();

    let alloc = service(1, "").driver("mock", &task).build();
    let alloc_id = server.place(alloc).await;
    let waits = eventually("failed waits", async || {
        let waits = driver.failed_waits();
        (waits.len() > WAIT_PAUSES.len()).then_some(waits)
    })
    .await;
    let running = server.status(alloc_id, ClientStatus::Running).await;
    driver.fail_waits(false);
    server.stop(alloc_id).await;
    let task = server.status(alloc_id, ClientStatus::Complete).await;

    for (pair, pause) in waits.windows(2).zip(WAIT_PAUSES) {
        assert!(pair[1] - pair[0] >= pause, "{waits:?}");
    }
    assert_eq!((running.restarts, task.restarts), (0, 0));
    agent.shutdown(ShutdownPolicy::StopTasks).await;
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

    first.shutdown(ShutdownPolicy::KeepTasks).await;
    assert_eq!(host.running(), 1);
    let second = agent(&machine, &server, &host).await;
    let recovered = |kind: &TaskEventKind| matches!(kind, TaskEventKind::Recovered);
    server
        .reported(alloc_id, "recovered", |task, _| {
            task.events.iter().any(|event| recovered(&event.kind))
        })
        .await;

    assert_eq!(host.running(), 1);
    second.shutdown(ShutdownPolicy::StopTasks).await;
    assert_eq!(host.running(), 0);
}

/// A task of the driver's whose job was changed so is not started, and says why.
async fn is_refused(name: &str, change: impl FnOnce(&mut JobSpec), reason: &str) {
    if !privileged(name) {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent(&machine, &server, &host).await;
    let config = MockTask::forever().to_config();

    let alloc = service(1, "").driver("mock", &config);
    let alloc = alloc.with(|spec, _| change(spec));
    let alloc_id = server.place(alloc.build()).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    let names_reason = |event: &TaskEvent| event.message.contains(reason);
    assert!(task.events.iter().any(names_reason), "{task:?}");
    assert_eq!((task.restarts, host.running()), (0, 0));
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A job that asks for no network, or for one of the group's, does not get the machine's from a driver without others.
#[tokio::test(flavor = "multi_thread")]
async fn unsupported_network_mode_is_refused_by_driver() {
    let none = |spec: &mut JobSpec| {
        spec.groups[0].network = Some(GroupNetwork {
            mode: NetworkMode::None,
            ports: Vec::new(),
            policy: None,
            dns: None,
            hostname: String::new(),
        });
    };
    let name = "unsupported_network_mode_is_refused_by_driver";
    is_refused(name, none, "cannot keep tasks from every network").await;
}

/// The programs judge what is in the agent's cgroups, and this driver's tasks are in none.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_would_not_hold_starts_nothing() {
    let closed = |spec: &mut JobSpec| {
        spec.groups[0].tasks[0].policy = Some(NetworkPolicy {
            egress: DirectionPolicy {
                default: Some(PolicyAction::Deny),
                ..DirectionPolicy::default()
            },
            ingress: DirectionPolicy::default(),
        });
    };
    let name = "a_policy_that_would_not_hold_starts_nothing";
    is_refused(name, closed, "runs tasks in none of the agent's cgroups").await;
}

/// It is told before anything is placed, and by the start of what is placed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn driver_with_own_output_directory_gets_no_tasks() {
    if !privileged("driver_with_own_output_directory_gets_no_tasks") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let mut config = machine.config(&server);
    config.driver_command.clear();
    let driver = MockDriver::on(host.clone()).isolating(FsIsolation::Unveil);
    config.drivers = vec![("exec2".to_owned(), Arc::new(driver))];
    let agent = Agent::start(config).await.unwrap();
    let node = server
        .node(|node| node.drivers.get("exec2").is_some_and(|it| it.detected))
        .await;

    let alloc = service(1, "").driver("exec2", &MockTask::forever().to_config());
    let alloc_id = server.place(alloc.build()).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    let reported = &node.drivers["exec2"];
    assert!(!reported.healthy, "{reported:?}");
    for words in ["driver `exec2`", "`logs`", "take another driver"] {
        assert!(reported.description.contains(words), "{reported:?}");
        let is_reported = |event: &TaskEvent| event.message.contains(words);
        assert!(task.events.iter().any(is_reported), "{words}: {task:?}");
    }
    assert_eq!((task.restarts, host.running()), (0, 0));
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A driver in the agent's process tells in the same way, and its words make a history.
#[tokio::test(flavor = "multi_thread")]
async fn reported_cpu_percent_becomes_cpu_time() {
    if !privileged("reported_cpu_percent_becomes_cpu_time") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent(&machine, &server, &host).await;
    let config = MockTask {
        cpu_percent: Some(50),
        ..MockTask::forever()
    };

    let alloc = service(1, "").driver("mock", &config.to_config());
    let alloc_id = server.place(alloc.build()).await;
    let used = |stats: &TaskStats| stats.cpu.is_some_and(|cpu| cpu > Duration::from_secs(1));
    let stats = server.usage(alloc_id, "CPU time", used).await;
    let history = eventually("a point with CPU time", async || {
        let request = NodeRequest::AllocHistory { alloc_id };
        let replies = server.ask(request, |replies| !replies.is_empty()).await;
        let Some(NodeReply::AllocHistory(mut history)) = replies.into_iter().next() else {
            return None;
        };
        let task = history.tasks.remove("main")?;
        let mut points = task.points.iter();
        points
            .any(|point| point.cpu > Some(Duration::ZERO))
            .then_some(task)
    })
    .await;

    assert_eq!(stats.memory_bytes, None);
    assert!(stats.absent["memory_bytes"].contains("`mock`"), "{stats:?}");
    assert!(!history.absent.contains_key("cpu"), "{history:?}");
    assert!(
        history.absent["net_rx_bytes"].contains("`mock`"),
        "{history:?}"
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A driver with images is given places inside the image: paths of the host would lead nowhere in them.
#[tokio::test(flavor = "multi_thread")]
async fn image_task_gets_paths_inside_its_root() {
    if !privileged("image_task_gets_paths_inside_its_root") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let driver = Arc::new(MockDriver::on(host).isolating(FsIsolation::Image));
    let mut config = machine.config(&server);
    config.driver_command.clear();
    config.drivers = vec![(
        "mock".to_owned(),
        Arc::clone(&driver) as Arc<dyn TaskDriver>,
    )];
    let agent = Agent::start(config).await.unwrap();
    let task = MockTask {
        exec_stdout: "${NOMAD_TASK_DIR}/x".to_owned(),
        ..MockTask::forever()
    };

    let alloc = service(1, "").driver("mock", &task.to_config());
    let alloc_id = server.place(alloc.with(with_dns).build()).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let started = driver.list_tasks().await.unwrap().remove(0).config;

    let places = ["NOMAD_ALLOC_DIR", "NOMAD_TASK_DIR", "NOMAD_SECRETS_DIR"];
    let places = places.map(|name| started.env[name].as_str());
    assert_eq!(places, ["/alloc", "/local", "/secrets"]);
    assert_eq!(started.config["exec_stdout"], "/local/x");
    assert_eq!(started.task_dir, machine.alloc_dir(alloc_id).join("main"));
    let expected = Dns {
        servers: vec!["192.0.2.53".to_owned()],
        searches: vec!["lab".to_owned()],
        options: Vec::new(),
    };
    assert_eq!(started.dns, Some(expected));
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

fn with_dns(spec: &mut JobSpec, _holding: &mut Holding) {
    spec.groups[0].network = Some(GroupNetwork {
        mode: NetworkMode::Host,
        ports: Vec::new(),
        policy: None,
        dns: Some(DnsConfig {
            servers: vec!["192.0.2.53".to_owned()],
            searches: vec!["lab".to_owned()],
            options: Vec::new(),
        }),
        hostname: String::new(),
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn driver_network_of_a_task_is_reported() {
    if !privileged("driver_network_of_a_task_is_reported") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent(&machine, &server, &host).await;
    let task = MockTask {
        address: "192.0.2.9".to_owned(),
        ..MockTask::forever()
    };

    let alloc = service(1, "").driver("mock", &task.to_config());
    let alloc_id = server.place(alloc.build()).await;
    let words = "its driver put it on a network of its own: 192.0.2.9 (http at 80)";
    server
        .reported(alloc_id, words, |task, _| {
            let mut events = task.events.iter();
            events.any(|event| event.message.contains(words))
        })
        .await;
    let is_reported = |task: &TaskState, _| task.network.is_some();
    let reported = server.reported(alloc_id, "a network", is_reported).await;
    let has_network = |stats: &TaskStats| stats.network.is_some();
    let before = server
        .usage(alloc_id, "a network", has_network)
        .await
        .network;
    agent.shutdown(ShutdownPolicy::KeepTasks).await;
    let next = self::agent(&machine, &server, &host).await;
    let after = server
        .usage(alloc_id, "the same network", has_network)
        .await
        .network;

    let expected = TaskNetwork {
        address: "192.0.2.9".to_owned(),
        ports: [("http".to_owned(), 80)].into(),
        auto_advertise: true,
    };
    assert_eq!(
        [before, after],
        [Some(expected.clone()), Some(expected.clone())]
    );
    assert_eq!(reported.network.as_deref(), Some(&expected));
    server.stop(alloc_id).await;
    let ended = server.status(alloc_id, ClientStatus::Complete).await;
    assert_eq!(ended.network, None);
    next.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A driver whose tasks are not in the agent's cgroups; whether it is called `native` decides nothing.
#[tokio::test(flavor = "multi_thread")]
async fn unenforceable_limits_fail_task_start() {
    if !privileged("unenforceable_limits_fail_task_start") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let mut config = machine.config(&server);
    config.driver_command.clear();
    config.drivers = vec![("native".to_owned(), Arc::new(MockDriver::on(host)))];
    let agent = Agent::start(config).await.unwrap();
    let task = MockTask::forever().to_config();

    let alloc = service(1, "").driver("native", &task).with(|spec, _| {
        spec.groups[0].tasks[0].resources.cpu_hard_limit = true;
    });
    let alloc_id = server.place(alloc.build()).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;

    let words = "`resources.cpu_hard_limit` is kept by the agent, and the driver `native` does not";
    let mut events = task.events.iter();
    assert!(
        events.any(|event| event.message.contains(words)),
        "{task:?}"
    );
}

/// A task without logs, by its job or by its driver, has nothing made for its output, also by the next agent. A reader
/// of its log is told why.
#[tokio::test(flavor = "multi_thread")]
async fn task_without_log_collection_has_no_log() {
    if !privileged("task_without_log_collection_has_no_log") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let start = async || {
        let mut config = machine.config(&server);
        config.driver_command.clear();
        let usual = Arc::new(MockDriver::on(host.clone()));
        let own = Arc::new(MockDriver::on(host.clone()).taking_output());
        let drivers = [Arc::clone(&usual), Arc::clone(&own)];
        config.drivers = vec![("mock".to_owned(), usual), ("own".to_owned(), own)];
        (Agent::start(config).await.unwrap(), drivers)
    };
    let (agent, drivers) = start().await;
    let task = MockTask::forever().to_config();

    let silent = service(1, "").driver("mock", &task).with(|spec, _| {
        spec.groups[0].tasks[0].logs = LogConfig::DISABLED;
    });
    let silent = server.place(silent.build()).await;
    let own = server
        .place(service(2, "").driver("own", &task).build())
        .await;
    let usual = server
        .place(service(3, "").driver("mock", &task).build())
        .await;
    let all = [silent, own, usual];
    for alloc_id in all {
        server.status(alloc_id, ClientStatus::Running).await;
    }
    let fifos = |alloc_id: AllocId| {
        let dir = machine.data().join("logs").join(alloc_id.to_string());
        std::fs::read_dir(dir.join("fifos")).unwrap().count()
    };
    let before = all.map(fifos);
    let mut outputs = Vec::new();
    for driver in &drivers {
        for handle in driver.list_tasks().await.unwrap() {
            outputs.extend([handle.config.stdout_path, handle.config.stderr_path]);
        }
    }
    let nowhere = outputs
        .iter()
        .filter(|path| *path == Path::new("/dev/null"));
    let nowhere = nowhere.count();
    agent.shutdown(ShutdownPolicy::KeepTasks).await;
    let (next, _drivers) = start().await;
    for alloc_id in all {
        let recovered = |kind: &TaskEventKind| matches!(kind, TaskEventKind::Recovered);
        server
            .reported(alloc_id, "recovered", |task, _| {
                task.events.iter().any(|event| recovered(&event.kind))
            })
            .await;
    }
    let after = all.map(fifos);
    let mut logs = Vec::new();
    for alloc_id in all {
        logs.push(server.log(alloc_id, LogStream::Stdout).await);
    }
    next.shutdown(ShutdownPolicy::StopTasks).await;

    assert_eq!((before, after), ([0, 0, 2], [0, 0, 2]));
    assert_eq!((nowhere, outputs.len()), (4, 6));
    assert!(logs[0].contains("`logs { disabled = true }`"), "{logs:?}");
    assert!(
        logs[1].contains("its driver `own` takes the output itself"),
        "{logs:?}"
    );
    assert!(
        logs[..2]
            .iter()
            .all(|words| words.contains("kind: NotFound")),
        "{logs:?}"
    );
    assert_eq!(logs[2], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_network_creating_drivers_in_group_are_refused() {
    if !privileged("two_network_creating_drivers_in_group_are_refused") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let mut config = machine.config(&server);
    config.driver_command.clear();
    for name in ["mock", "other"] {
        let driver = Arc::new(MockDriver::on(host.clone()).with_networks());
        config.drivers.push((name.to_owned(), driver));
    }
    let agent = Agent::start(config).await.unwrap();
    let task = MockTask::forever().to_config();

    let alloc = service(1, "").driver("mock", &task).with(|spec, _| {
        let group = &mut spec.groups[0];
        let mut second = group.tasks[0].clone();
        "second".clone_into(&mut second.name);
        "other".clone_into(&mut second.driver);
        group.tasks.push(second);
        group.network = Some(GroupNetwork {
            mode: NetworkMode::Bridge,
            ports: Vec::new(),
            policy: None,
            dns: None,
            hostname: String::new(),
        });
    });
    let alloc_id = server.place(alloc.build()).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    let words = "drivers `mock` and `other` of the group both make the network";
    let mut events = task.events.iter();
    assert!(
        events.any(|event| event.message.contains(words)),
        "{task:?}"
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Each start has a root of its own, which is gone when that has failed or ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_root_lasts_as_long_as_its_task() {
    if !privileged("a_root_lasts_as_long_as_its_task") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let driver = Arc::new(MockDriver::on(host).isolating(FsIsolation::Chroot));
    let mut config = machine.config(&server);
    config.driver_command.clear();
    let shown = [("/etc", "/etc"), ("/no/such/place", "/opt")]
        .map(|(path, place)| (path.to_owned(), place.to_owned()));
    config.chroot_env = ChrootEnv::new(shown).unwrap();
    config.drivers = vec![(
        "mock".to_owned(),
        Arc::clone(&driver) as Arc<dyn TaskDriver>,
    )];
    let agent = Agent::start(config).await.unwrap();

    let runs = service(1, "").driver("mock", &MockTask::forever().to_config());
    let runs = server.place(runs.build()).await;
    let words = "`chroot_env` names what this node does not have: /no/such/place";
    server
        .reported(runs, words, |task, _| {
            let mut events = task.events.iter();
            events.any(|event| event.message.contains(words))
        })
        .await;
    let started = driver.list_tasks().await.unwrap().remove(0).config;
    let is_there = started.task_dir.join("etc/passwd").exists();
    let broken = batch(2, "").driver("mock", &MockTask::broken("no luck").to_config());
    let broken = server.place(broken.build()).await;
    server.status(broken, ClientStatus::Failed).await;
    server.stop(runs).await;
    server.status(runs, ClientStatus::Complete).await;

    let roots = machine.data().join("roots");
    assert_eq!(started.alloc_dir, roots.join(runs.to_string()));
    assert_eq!(started.task_dir, started.alloc_dir.join("main"));
    assert!(is_there);
    for alloc_id in [runs, broken] {
        let root = roots.join(alloc_id.to_string()).join("main");
        assert!(!root.exists(), "{}", root.display());
    }
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}
