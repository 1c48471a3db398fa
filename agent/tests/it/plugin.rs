//! Drivers from a plugin directory: one in Go, and some that are none.

mod users;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_agent::node::{Agent, AgentConfig, ShutdownPolicy, StartAgentError};
use muster_agent::{PluginError, PluginSettings};
use muster_domain::alloc::{ClientStatus, TaskEvent, TaskEventKind};
use muster_domain::id::AllocId;
use muster_domain::job::{GroupNetwork, JobSpec, NetworkMode};
use muster_domain::resources::Holding;
use muster_driver::fixture::write_program;
use muster_driver::go::{self, BuildGoError};
use muster_wire::rpc::{LogStream, TaskStats};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{FakeServer, Machine, batch, eventually, privileged, service, skipped};
use crate::support::{kill, start_ticks, words};

/// The name of the driver's file; its own name is the rest of it.
const FILE: &str = "nomad-driver-gotest";

/// A machine with a plugin directory.
struct PluginMachine {
    machine: Machine,
    server: FakeServer,
    dir: tempfile::TempDir,
}

impl PluginMachine {
    /// `None` where the test cannot run; it was skipped then.
    fn new(name: &str) -> Option<Self> {
        if !privileged(name) {
            return None;
        }
        let driver = match go::program("driver") {
            Ok(driver) => driver,
            Err(error @ BuildGoError::Missing { .. }) => {
                skipped(name, &error.to_string());
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let machine = Machine::new();
        let server = machine.server();
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(driver, dir.path().join(FILE)).unwrap();
        Some(Self {
            machine,
            server,
            dir,
        })
    }

    fn config(&self) -> AgentConfig {
        let mut config = self.machine.config(&self.server);
        config.driver_command.clear();
        config.plugin_dir = Some(self.dir.path().to_owned());
        config
    }

    async fn agent(&self) -> Agent {
        Agent::start(self.config()).await.unwrap()
    }

    fn script(&self, name: &str, body: &str) {
        let path = self.dir.path().join(name);
        write_program(&path, &format!("#!/bin/sh\n{body}\n"));
    }

    /// The plugin's process as the agent recorded it, once it said where it listens.
    async fn plugin(&self) -> u32 {
        let path = self
            .machine
            .data()
            .join(format!("drivers/{FILE}.plugin.json"));
        eventually("a plugin's process", async || {
            let record: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            record["socket"].as_str()?;
            let pid = u32::try_from(record["process"]["pid"].as_u64()?).unwrap();
            let start = record["process"]["start_ticks"].as_u64()?;
            (start_ticks(pid) == Some(start)).then_some(pid)
        })
        .await
    }

    /// The pid that the task printed first.
    async fn task_pid(&self, alloc_id: AllocId) -> u32 {
        eventually("the task's pid", async || {
            let printed = self.server.log(alloc_id, LogStream::Stdout).await;
            printed.lines().next()?.parse().ok()
        })
        .await
    }
}

fn shell(script: &str) -> Value {
    json!({"command": "/bin/sh", "args": ["-c", script]})
}

async fn driver_of(
    agent: &Agent,
    name: &str,
    healthy: bool,
) -> (String, std::collections::BTreeMap<String, String>) {
    let mut spec = agent.spec();
    let spec = spec
        .wait_for(|spec| {
            let driver = spec.drivers.get(name);
            driver.is_some_and(|driver| driver.healthy == healthy)
        })
        .await
        .unwrap();
    (
        spec.drivers[name].description.clone(),
        spec.attributes.clone(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_with_a_driver_in_go() {
    let Some(with) = PluginMachine::new("a_job_runs_with_a_driver_in_go") else {
        return;
    };
    let mut config = with.config();
    let settings = PluginSettings {
        args: Vec::new(),
        config: json!({"greeting": "servus"}),
    };
    config.plugins.insert("gotest".to_owned(), settings);
    let agent = Agent::start(config).await.unwrap();
    let (description, attributes) = driver_of(&agent, "gotest", true).await;

    let alloc = batch(1, "").driver("gotest", &shell("echo $NOMAD_TASK_NAME; exit 3"));
    let alloc_id = with.server.place(alloc.build()).await;
    let task = with.server.status(alloc_id, ClientStatus::Failed).await;

    assert_eq!(description, "ready");
    assert_eq!(attributes["driver.gotest"], "1");
    assert_eq!(attributes["driver.gotest.greeting"], "servus");
    assert_eq!(with.server.log(alloc_id, LogStream::Stdout).await, "main\n");
    assert!(
        task.events
            .iter()
            .any(|event| event.message == "exit code 3"),
        "{task:?}"
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A plugin says what it was told before anybody knows its name.
#[tokio::test(flavor = "multi_thread")]
async fn first_plugin_log_lines_reach_agent_log() {
    let Some(with) = PluginMachine::new("first_plugin_log_lines_reach_agent_log") else {
        return;
    };
    words::listen();
    let mut config = with.config();
    let settings = PluginSettings {
        args: Vec::new(),
        config: json!({"greeting": "first-words"}),
    };
    config.plugins.insert("gotest".to_owned(), settings);

    let agent = Agent::start(config).await.unwrap();
    let line = eventually("what the plugin said", async || {
        words::lines_with("greeting=first-words").into_iter().next()
    })
    .await;

    assert_eq!(line.level, Some(tracing::Level::INFO));
    assert_eq!(line.message, "configured");
    assert_eq!(
        (line.driver, line.module),
        ("gotest".to_owned(), "gotest".to_owned())
    );
    assert!(line.fields.contains("enabled=null"), "{}", line.fields);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Which machine it is on, and what part of it a task was placed with: the driver refuses a host that does not say it.
#[tokio::test(flavor = "multi_thread")]
async fn driver_receives_node_info_and_task_share() {
    let Some(with) = PluginMachine::new("driver_receives_node_info_and_task_share") else {
        return;
    };
    words::listen();
    let mut config = with.config();
    let settings = PluginSettings {
        args: Vec::new(),
        config: json!({"greeting": "node-and-part"}),
    };
    config.plugins.insert("gotest".to_owned(), settings);
    let agent = Agent::start(config).await.unwrap();
    let (_, attributes) = driver_of(&agent, "gotest", true).await;

    let alloc = service(1, "").driver("gotest", &shell("echo $$; exec sleep 600"));
    let alloc_id = with.server.place(alloc.build()).await;
    let node = eventually("what the driver was told", async || {
        words::lines_with("greeting=node-and-part")
            .into_iter()
            .next()
    })
    .await;
    let task = eventually("what the driver was told of the task", async || {
        let lines = words::lines_with(&format!("task_id={alloc_id}/main"));
        lines.into_iter().find(|words| words.message == "started")
    })
    .await;

    let total = &attributes["cpu.totalcompute"];
    assert_eq!(field(&node.fields, "compute"), total);
    assert_eq!(field(&node.fields, "ports"), "14000-14512");
    let group = PathBuf::from(field(&task.fields, "group"));
    assert!(group.ends_with(format!("{alloc_id}/main")), "{group:?}");
    assert!(group.join("cgroup.procs").exists(), "{group:?}");
    let part: f64 = field(&task.fields, "part").parse().unwrap();
    let mhz = part * total.parse::<f64>().unwrap();
    assert!((mhz - 100.0).abs() < 0.01, "{mhz} MHz");
    assert_eq!(
        (field(&task.fields, "quota"), field(&task.fields, "period")),
        ("0", "0")
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The value of `name` among `fields`.
fn field<'a>(fields: &'a str, name: &str) -> &'a str {
    let mut pairs = fields.split(' ').filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(key, _)| *key == name)
        .map_or("", |(_, value)| value)
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_task_config_names_its_fields() {
    let Some(with) = PluginMachine::new("invalid_task_config_names_its_fields") else {
        return;
    };
    let agent = with.agent().await;

    let wrong = json!({"comand": "/bin/true", "args": [["nested"]]});
    let alloc = batch(1, "").driver("gotest", &wrong).restarts(3);
    let alloc_id = with.server.place(alloc.build()).await;
    let task = with.server.status(alloc_id, ClientStatus::Failed).await;

    assert_eq!(task.restarts, 0, "trying again cannot help: {task:?}");
    let messages: Vec<&str> = task
        .events
        .iter()
        .map(|event| event.message.as_str())
        .collect();
    let messages = messages.join("\n");
    for part in [
        "`config.comand`",
        "`config.command` is missing",
        "`config.args[0]` must be string",
    ] {
        assert!(messages.contains(part), "{part} is not in {messages}");
    }
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_dies_gets_its_tasks_back() {
    let Some(with) = PluginMachine::new("a_plugin_that_dies_gets_its_tasks_back") else {
        return;
    };
    let agent = with.agent().await;
    let script = "echo $$; trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done";
    let alloc = service(1, "").driver("gotest", &shell(script));
    let alloc_id = with.server.place(alloc.build()).await;
    with.server.status(alloc_id, ClientStatus::Running).await;
    let (plugin, task) = (with.plugin().await, with.task_pid(alloc_id).await);
    let begun = start_ticks(task);

    for _time in 0..2 {
        let before = with.plugin().await;
        kill(before);
        eventually("another life of the plugin", async || {
            (with.plugin().await != before).then_some(())
        })
        .await;
    }
    let newest = with.plugin().await;
    assert_eq!(start_ticks(task), begun, "the task has lived through it");
    agent.shutdown(ShutdownPolicy::StopTasks).await;

    assert_ne!(newest, plugin);
    assert_eq!(start_ticks(task), None);
    assert_eq!(start_ticks(newest), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_plugin_is_unhealthy_and_delays_tasks() {
    let Some(with) = PluginMachine::new("stopped_plugin_is_unhealthy_and_delays_tasks") else {
        return;
    };
    let agent = with.agent().await;
    driver_of(&agent, "gotest", true).await;
    let plugin = Pid::from_raw(i32::try_from(with.plugin().await).unwrap());

    signal::kill(plugin, Signal::SIGSTOP).unwrap();
    let alloc = service(1, "").driver("gotest", &shell("exec sleep 600"));
    let alloc_id = with.server.place(alloc.build()).await;
    let (reason, _) = driver_of(&agent, "gotest", false).await;
    with.server
        .reported(alloc_id, "the reason of the wait", |task, status| {
            let mut events = task.events.iter();
            status == ClientStatus::Pending && events.any(|it| it.message.contains(&reason))
        })
        .await;
    signal::kill(plugin, Signal::SIGCONT).unwrap();
    driver_of(&agent, "gotest", true).await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;

    assert!(reason.contains("does not answer"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_takes_up_plugin_and_tasks() {
    let Some(with) = PluginMachine::new("the_next_agent_takes_up_plugin_and_tasks") else {
        return;
    };
    let first = with.agent().await;
    let alloc = service(1, "").driver("gotest", &shell("echo $$; exec sleep 600"));
    let alloc_id = with.server.place(alloc.build()).await;
    with.server.status(alloc_id, ClientStatus::Running).await;
    let (plugin, task) = (with.plugin().await, with.task_pid(alloc_id).await);
    let begun = start_ticks(task);

    first.shutdown(ShutdownPolicy::KeepTasks).await;
    let second = with.agent().await;
    let task_state = with
        .server
        .reported(alloc_id, "recovered", |task, _| {
            let mut events = task.events.iter();
            events.any(|event| event.kind == TaskEventKind::Recovered)
        })
        .await;

    assert_eq!(with.plugin().await, plugin);
    assert_eq!(start_ticks(task), begun);
    drop(task_state);
    second.shutdown(ShutdownPolicy::StopTasks).await;
    assert_eq!(start_ticks(task), None);
}

/// The task of a plugin is in no cgroup of its own: it is seen all the same.
#[tokio::test(flavor = "multi_thread")]
async fn clean_is_refused_while_plugin_task_runs() {
    let Some(with) = PluginMachine::new("clean_is_refused_while_plugin_task_runs") else {
        return;
    };
    let agent = with.agent().await;
    let alloc = service(1, "").driver("gotest", &shell("echo $$; exec sleep 600"));
    let alloc_id = with.server.place(alloc.build()).await;
    let (plugin, task) = (with.plugin().await, with.task_pid(alloc_id).await);
    agent.shutdown(ShutdownPolicy::KeepTasks).await;

    let refused = muster_agent::clean::run(&with.machine.data(), false);
    let runs = start_ticks(task).is_some() && start_ticks(plugin).is_some();
    muster_agent::clean::run(&with.machine.data(), true).unwrap();

    let Err(muster_agent::clean::CleanError::TasksRun { tasks }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(tasks, [format!("process {task} of a plugin")]);
    assert!(runs);
    assert_eq!((start_ticks(task), start_ticks(plugin)), (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_plugins_do_not_affect_others() {
    let Some(with) = PluginMachine::new("invalid_plugins_do_not_affect_others") else {
        return;
    };
    with.script(
        "muster-driver-broken",
        "echo 'no runtime found' >&2; exit 3",
    );
    with.script("chatty", "echo hello; exec sleep 60");
    fs::write(with.dir.path().join("README"), "plugins are here").unwrap();
    let agent = with.agent().await;

    let (broken, _) = driver_of(&agent, "broken", false).await;
    let (chatty, _) = driver_of(&agent, "chatty", false).await;
    driver_of(&agent, "gotest", true).await;

    assert!(broken.contains("no runtime found"), "{broken}");
    assert!(chatty.contains("hello"), "{chatty}");
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_plugin_config_is_rejected_at_agent_start() {
    let Some(with) = PluginMachine::new("invalid_plugin_config_is_rejected_at_agent_start") else {
        return;
    };
    let with_block = |name: &str, config: Value| {
        let mut agent = with.config();
        let settings = PluginSettings {
            args: Vec::new(),
            config,
        };
        agent.plugins.insert(name.to_owned(), settings);
        agent
    };

    let wrong = Agent::start(with_block(FILE, json!({"greetings": "x", "enabled": []}))).await;
    let unknown = Agent::start(with_block("gotets", Value::Null)).await;

    let Err(StartAgentError::Plugin(PluginError::Config { plugin, faults })) = wrong else {
        panic!("{wrong:?}")
    };
    let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(plugin, FILE);
    assert_eq!(fields, ["config.greetings", "config.enabled"]);
    let Err(StartAgentError::Plugin(error @ PluginError::Unknown { .. })) = unknown else {
        panic!("{unknown:?}")
    };
    assert!(error.to_string().contains("gotest"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn driver_events_become_task_events() {
    let Some(with) = PluginMachine::new("driver_events_become_task_events") else {
        return;
    };
    let agent = with.agent().await;
    let script = "trap '' TERM INT; echo $$; while :; do sleep 0.05; done";
    let stubborn = |name| {
        let alloc = service(name, "").driver("gotest", &shell(script));
        alloc.kill_timeout(Duration::from_millis(100)).build()
    };
    let stopped = with.server.place(stubborn(1)).await;
    let other = with.server.place(stubborn(2)).await;
    for alloc_id in [stopped, other] {
        with.task_pid(alloc_id).await;
    }
    with.server.stop(stopped).await;
    let history = |events: &[TaskEvent]| {
        let events = events.iter();
        events
            .filter(|event| event.kind == TaskEventKind::Driver)
            .map(|event| event.message.clone())
            .collect::<Vec<_>>()
    };
    with.server
        .reported(stopped, "the driver's words", |task, _| {
            history(&task.events) == ["did not end in time; killed"]
        })
        .await;

    let others = with.server.report(other).unwrap();
    assert!(
        history(&others.task_states[0].events).is_empty(),
        "{others:?}"
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The task is in none of the agent's cgroups, so that its driver alone sees it: through the deaths of both.
#[tokio::test(flavor = "multi_thread")]
async fn task_stats_come_from_driver() {
    let Some(with) = PluginMachine::new("task_stats_come_from_driver") else {
        return;
    };
    let first = with.agent().await;
    let alloc = service(1, "").driver("gotest", &shell("echo $$; exec sleep 600"));
    let alloc_id = with.server.place(alloc.build()).await;
    with.task_pid(alloc_id).await;
    let usage_from = async |plugin: u32| {
        let is_from_plugin = |stats: &TaskStats| stats.memory_swap_bytes == Some(plugin.into());
        let what = "the words of a driver";
        with.server.usage(alloc_id, what, is_from_plugin).await
    };

    let before = with.plugin().await;
    let at_first = usage_from(before).await;
    kill(before);
    let newest = eventually("another life of the plugin", async || {
        Some(with.plugin().await).filter(|plugin| *plugin != before)
    })
    .await;
    let afterwards = usage_from(newest).await;
    first.shutdown(ShutdownPolicy::KeepTasks).await;
    let second = with.agent().await;
    let to_the_next = usage_from(newest).await;

    for stats in [&at_first, &afterwards, &to_the_next] {
        assert_eq!(stats.memory_bytes, Some(4096));
        assert_eq!(stats.memory_anon_bytes, Some(4096));
        let absent = [
            ("cpu", stats.cpu.is_none()),
            ("memory_file_bytes", stats.memory_file_bytes.is_none()),
            ("memory_limit_bytes", stats.memory_limit_bytes.is_none()),
            ("pids", stats.pids.is_none()),
            ("oom_kills", stats.oom_kills.is_none()),
            ("context_switches", stats.context_switches.is_none()),
            ("net_rx_bytes", stats.net_rx_bytes.is_none()),
        ];
        for (value, is_absent) in absent {
            assert!(is_absent, "{value}: {stats:?}");
            assert!(stats.absent[value].contains("`gotest`"), "{stats:?}");
        }
    }
    second.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A task with a network that its driver made, as the task sees it.
struct NetworkedTask {
    alloc_id: AllocId,
    pid: u32,
    /// As its link says.
    network: String,
    device: String,
}

impl PluginMachine {
    /// A driver that makes networks.
    fn making_networks(&self) -> AgentConfig {
        let mut config = self.config();
        let settings = PluginSettings {
            args: Vec::new(),
            config: json!({"networks": true}),
        };
        config.plugins.insert("gotest".to_owned(), settings);
        config
    }

    /// An agent with such a driver; `None` where there are no networks, which was said then.
    async fn agent_with_networks(&self, name: &str) -> Option<Agent> {
        let agent = Agent::start(self.making_networks()).await.unwrap();
        let (_, attributes) = driver_of(&agent, "gotest", true).await;
        if let Some(reason) = attributes.get("network.bridge.reason") {
            skipped(name, &format!("{reason}; run: cargo xtask build-ebpf"));
            agent.shutdown(ShutdownPolicy::StopTasks).await;
            return None;
        }
        Some(agent)
    }

    async fn networked(&self, name: u32) -> NetworkedTask {
        let script =
            "echo $$; readlink /proc/self/ns/net; grep -o eth0: /proc/net/dev; exec sleep 600";
        let alloc = service(name, "").driver("gotest", &shell(script));
        let alloc_id = self.server.place(alloc.with(with_bridge).build()).await;
        let [pid, network, device] = eventually("what the task sees", async || {
            let printed = self.server.log(alloc_id, LogStream::Stdout).await;
            let lines: Vec<String> = printed.lines().map(str::to_owned).collect();
            lines.try_into().ok()
        })
        .await;
        NetworkedTask {
            alloc_id,
            pid: pid.parse().unwrap(),
            network,
            device,
        }
    }
}

/// Waits until no process is in the network any more, not even the one that held it.
async fn is_given_back(network: &str) {
    let what = format!("the end of {network}");
    eventually(&what, async || {
        processes_in(network).is_empty().then_some(())
    })
    .await;
}

/// One network is given back when its task is stopped, one by an agent that was not there when its task ended, to a
/// plugin that was not there either.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_makes_the_networks_of_its_tasks() {
    const NAME: &str = "a_driver_makes_the_networks_of_its_tasks";
    let Some(with) = PluginMachine::new(NAME) else {
        return;
    };
    let Some(first) = with.agent_with_networks(NAME).await else {
        return;
    };
    let stopped = with.networked(1).await;
    let left = with.networked(2).await;
    let own = fs::read_link("/proc/self/ns/net").unwrap();

    with.server.stop(stopped.alloc_id).await;
    is_given_back(&stopped.network).await;
    let holders = processes_in(&left.network).len();
    first.shutdown(ShutdownPolicy::KeepTasks).await;
    kill(with.plugin().await);
    kill(left.pid);
    let second = Agent::start(with.making_networks()).await.unwrap();
    is_given_back(&left.network).await;

    assert_eq!(stopped.device, "eth0:");
    assert_eq!(holders, 2, "the task, and whoever holds the namespace");
    assert_ne!(stopped.network, left.network);
    assert!(own != Path::new(&stopped.network) && own != Path::new(&left.network));
    second.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A driver keeps its network when the agent's store is lost: the agent asks the driver again.
#[tokio::test(flavor = "multi_thread")]
async fn driver_network_survives_store_loss() {
    const NAME: &str = "driver_network_survives_store_loss";
    let Some(with) = PluginMachine::new(NAME) else {
        return;
    };
    let Some(first) = with.agent_with_networks(NAME).await else {
        return;
    };
    let task = with.networked(1).await;
    let begun = start_ticks(task.pid);

    first.shutdown(ShutdownPolicy::KeepTasks).await;
    fs::write(with.machine.data().join("agent.redb"), "garbage").unwrap();
    let second = Agent::start(with.making_networks()).await.unwrap();
    with.server
        .reported(task.alloc_id, "recovered", |task, _| {
            let mut events = task.events.iter();
            events.any(|event| event.kind == TaskEventKind::Recovered)
        })
        .await;
    let still = start_ticks(task.pid);
    with.server.stop(task.alloc_id).await;
    is_given_back(&task.network).await;

    assert_eq!(still, begun);
    second.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A driver that runs its tasks in a root of the host's directories sees them there, through the death of the agent.
/// When the task has ended, nothing is mounted any more.
#[tokio::test(flavor = "multi_thread")]
async fn chroot_driver_sees_host_directories() {
    let Some(with) = PluginMachine::new("chroot_driver_sees_host_directories") else {
        return;
    };
    let config = || {
        let mut config = with.config();
        let settings = PluginSettings {
            args: Vec::new(),
            config: json!({"chroot": true}),
        };
        config.plugins.insert("gotest".to_owned(), settings);
        config
    };
    let first = Agent::start(config()).await.unwrap();
    let script = "echo $$; echo $NOMAD_TASK_DIR; touch $NOMAD_ALLOC_DIR/data/ours && echo shared; \
        touch /usr/mine || echo read-only; while :; do sleep 0.05; done";
    let alloc = service(1, "").driver("gotest", &shell(script));
    let alloc_id = with.server.place(alloc.build()).await;
    let printed = eventually("what the task sees", async || {
        let printed = with.server.log(alloc_id, LogStream::Stdout).await;
        let lines: Vec<String> = printed.lines().map(str::to_owned).collect();
        (lines.len() == 4).then_some(lines)
    })
    .await;
    let pid: u32 = printed[0].parse().unwrap();
    let root = fs::read_link(format!("/proc/{pid}/root")).unwrap();
    let begun = start_ticks(pid);

    first.shutdown(ShutdownPolicy::KeepTasks).await;
    let second = Agent::start(config()).await.unwrap();
    with.server
        .reported(alloc_id, "recovered", |task, _| {
            let mut events = task.events.iter();
            events.any(|event| event.kind == TaskEventKind::Recovered)
        })
        .await;
    let still = (start_ticks(pid), root.join("usr/bin").exists());
    with.server.stop(alloc_id).await;
    with.server.status(alloc_id, ClientStatus::Complete).await;
    let left = fs::read_to_string("/proc/self/mountinfo").unwrap();

    assert_eq!(printed[1..], ["/local", "shared", "read-only"]);
    let roots = with.machine.data().join("roots").join(alloc_id.to_string());
    assert_eq!(root, roots.join("main"));
    assert!(
        with.machine
            .alloc_dir(alloc_id)
            .join("alloc/data/ours")
            .exists()
    );
    assert_eq!(still, (begun, true));
    assert!(!left.contains(roots.to_str().unwrap()), "{left}");
    second.shutdown(ShutdownPolicy::StopTasks).await;
}

fn with_bridge(spec: &mut JobSpec, _holding: &mut Holding) {
    spec.groups[0].network = Some(GroupNetwork {
        mode: NetworkMode::Bridge,
        ports: Vec::new(),
        policy: None,
        dns: None,
        hostname: String::new(),
    });
}

/// Processes whose network namespace is `network`, as its link says.
fn processes_in(network: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_in = |pid: &u32| {
        let link = fs::read_link(format!("/proc/{pid}/ns/net"));
        link.is_ok_and(|link| link == Path::new(network))
    };
    pids.filter(is_in).collect()
}

/// Nobody may write to a program that the agent runs as its own user.
#[tokio::test(flavor = "multi_thread")]
async fn world_writable_plugin_is_not_executed() {
    let Some(with) = PluginMachine::new("world_writable_plugin_is_not_executed") else {
        return;
    };
    let mark: PathBuf = with.dir.path().join("was-run");
    with.script("open", &format!(": > {}; exit 1", mark.display()));
    let path: &Path = &with.dir.path().join("open");
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();

    let agent = with.agent().await;
    driver_of(&agent, "gotest", true).await;

    assert!(!mark.exists());
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}
