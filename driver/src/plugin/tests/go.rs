//! Our host against a driver in Go, which uses the common plugin library on its side of the protocol.
//!
//! The driver passes the cases of the conformance suite that its protocol can express. The protocol cannot express
//! kinds of refusal that differ only in text. These are a used id, a task that is not running or still runs, an
//! unknown signal, and a handle's version. The protocol also lacks listing tasks and terminals.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::DEADLINE;
use crate::conformance::{self, DriverUnderTest};
use crate::fixture::skipped;
use crate::go::{self, BuildGoError};
use crate::plugin::{Client, PluginCommand};
use crate::schema::Schema;
use crate::task::TaskConfig;
use crate::task_driver::TaskDriver;
use crate::{Attribute, Core, Health, HostInfo, RecoverTaskError, StartTaskError, Topology};

/// The driver processes of one test; they end with the test.
struct GoDriver {
    program: PathBuf,
    dir: TempDir,
    processes: Mutex<Vec<tokio::process::Child>>,
    next: AtomicU32,
}

impl GoDriver {
    /// Returns `None` if the driver cannot be built; then the test is skipped.
    fn new(name: &str) -> Option<Self> {
        match go::program("driver") {
            Ok(program) => Some(Self {
                program,
                dir: tempfile::tempdir().unwrap(),
                processes: Mutex::default(),
                next: AtomicU32::new(0),
            }),
            Err(error @ BuildGoError::Missing { .. }) => {
                skipped(name, &error.to_string());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn launch(&self) -> Client {
        let ordinal = self.next.fetch_add(1, Ordering::Relaxed);
        let launch = PluginCommand {
            program: self.program.clone(),
            args: Vec::new(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            dir: self.dir.path().to_owned(),
            name: format!("go{ordinal}"),
        };
        let mut child = launch.spawn().unwrap();
        let socket = launch.handshake(&mut child, DEADLINE).await.unwrap();
        self.processes.lock().await.push(child);
        let client = Client::new("gotest", &socket).of_host(a_host());
        client.ping().await.unwrap();
        client
    }

    /// Kills the driver processes (`kill -9`); their tasks continue.
    async fn kill_all(&self) {
        for mut child in self.processes.lock().await.drain(..) {
            child.kill().await.unwrap();
        }
    }

    fn task(&self, config: Value) -> TaskConfig {
        let ordinal = self.next.fetch_add(1, Ordering::Relaxed);
        TaskConfig {
            task_name: "web".to_owned(),
            config,
            ..self.host_part(&format!("alloc/web/{ordinal:08x}"))
        }
    }
}

impl Drop for GoDriver {
    fn drop(&mut self) {
        for child in self.processes.get_mut() {
            drop(child.start_kill());
        }
    }
}

/// Returns facts about a host. The driver accepts no configuration from a host that does not send them.
fn a_host() -> Arc<HostInfo> {
    let core = |id| Core {
        id,
        mhz: 2_000,
        ..Core::default()
    };
    Arc::new(HostInfo::new(Topology {
        numa_nodes: vec![0],
        distances: vec![vec![10]],
        cores: vec![core(0), core(1)],
        withheld_mhz: 0,
    }))
}

fn shell(script: &str) -> Value {
    json!({"command": "/bin/sh", "args": ["-c", script]})
}

impl DriverUnderTest for GoDriver {
    fn driver(&self) -> BoxFuture<'_, Arc<dyn TaskDriver>> {
        async { Arc::new(self.launch().await) as Arc<dyn TaskDriver> }.boxed()
    }

    fn restart(&self, old: Arc<dyn TaskDriver>) -> BoxFuture<'_, Arc<dyn TaskDriver>> {
        async {
            drop(old);
            self.kill_all().await;
            self.driver().await
        }
        .boxed()
    }

    fn host_part(&self, task_id: &str) -> TaskConfig {
        let mut config = TaskConfig {
            id: task_id.to_owned(),
            ..TaskConfig::default()
        };
        config
            .env
            .insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        config.env.insert(
            "READY".to_owned(),
            self.ready(task_id).display().to_string(),
        );
        config
    }

    fn runs_for(&self, time: Duration) -> Value {
        json!({"command": "/bin/sleep", "args": [time.as_secs_f64().to_string()]})
    }

    fn exits_with(&self, code: i32) -> Value {
        shell(&format!("exit {code}"))
    }

    fn ignores_signals(&self) -> Value {
        shell("trap '' TERM INT HUP; : > $READY; while :; do sleep 1; done")
    }

    fn broken(&self) -> Value {
        json!({"command": "/no/such/command"})
    }

    fn busy(&self) -> Option<Value> {
        Some(json!({"command": "/bin/true", "refuse": "now"}))
    }

    fn prints(&self, text: &str) -> Vec<String> {
        vec!["echo".to_owned(), text.to_owned()]
    }

    fn streams_exec(&self) -> bool {
        true
    }

    fn settled<'a>(&'a self, config: &'a TaskConfig) -> BoxFuture<'a, ()> {
        async {
            let ready = self.ready(&config.id);
            let waiting = async {
                while !ready.exists() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(DEADLINE, waiting)
                .await
                .expect("the task sets its traps");
        }
        .boxed()
    }
}

impl GoDriver {
    fn ready(&self, task_id: &str) -> PathBuf {
        self.dir.path().join(task_id.replace('/', "_"))
    }
}

macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let name = concat!("plugin::tests::go::", stringify!($case));
                if let Some(subject) = GoDriver::new(name) {
                    conformance::$case(&subject).await;
                }
            }
        )+
    };
}

cases!(
    task_goes_through_its_life,
    exit_code_is_reported,
    wait_answers_at_once_for_an_ended_task,
    all_waiters_get_the_same_answer,
    destroyed_task_is_not_found,
    unknown_task_is_not_found,
    stop_ends_a_task_and_keeps_it,
    ignored_stop_ends_in_a_kill,
    stop_of_an_ended_task_succeeds,
    signal_reaches_the_task,
    failed_start_leaves_nothing,
    recovered_task_is_the_same_task,
    recovery_of_a_known_task_changes_nothing,
    ended_task_is_not_recovered,
    stored_handle_still_recovers,
    fifty_tasks_run_at_once,
    two_hundred_tasks_live_at_once,
    concurrent_calls_agree,
    stats_end_with_the_task,
    stats_come_at_the_interval,
    fingerprint_comes_at_once,
    schema_is_an_object,
    command_runs_in_the_task,
    command_that_takes_too_long_is_ended,
    session_carries_input_and_output,
    session_keeps_outputs_apart_and_tells_the_exit,
    session_in_no_task_is_not_found,
    events_are_of_their_own_task,
    network_is_made_once,
    settings_may_come_more_than_once,
    start_that_may_pass_says_so,
);

#[tokio::test]
async fn go_driver_reports_info_and_schemas() {
    let Some(subject) = GoDriver::new("go_driver_reports_info_and_schemas") else {
        return;
    };
    let driver = subject.launch().await;

    let info = driver.plugin_info().await.unwrap();
    let own = Schema::new(&driver.config_schema().await.unwrap().unwrap()).unwrap();
    let tasks = Schema::new(&driver.task_config_schema().await.unwrap()).unwrap();
    let capabilities = driver.capabilities().await.unwrap();

    assert_eq!(info.name, "gotest");
    assert_eq!(info.api_versions, ["v0.1.0"]);
    assert!(capabilities.send_signals && capabilities.exec && !capabilities.remote_tasks);
    assert_eq!(
        own.decode("config", &Value::Null),
        Ok(json!({
            "chroot": null, "enabled": null, "greeting": "hello", "networks": null, "users": null
        }))
    );
    assert_eq!(
        tasks.decode(
            "config",
            &json!({"command": "x", "label": [{"a": {"value": 1}}]})
        ),
        Ok(json!({
            "args": null, "command": "x", "label": {"a": {"value": "1"}}, "limits": null, "refuse": ""
        }))
    );
}

/// The driver's own decoder reads the configuration that the host sent.
#[tokio::test]
async fn settings_reach_a_driver_in_go() {
    let Some(subject) = GoDriver::new("settings_reach_a_driver_in_go") else {
        return;
    };
    let driver = subject.launch().await;
    let schema = Schema::new(&driver.config_schema().await.unwrap().unwrap()).unwrap();

    let config = schema
        .decode("config", &json!({"greeting": "grüezi"}))
        .unwrap();
    driver.set_config(config).await.unwrap();
    let mut fingerprints = driver.fingerprint().await.unwrap();
    let first = futures::StreamExt::next(&mut fingerprints).await.unwrap();

    assert_eq!(first.health, Health::Healthy);
    assert_eq!(
        first.attributes["driver.gotest.greeting"],
        Attribute::Text("grüezi".to_owned())
    );
}

/// A label of a block in the job becomes a variable of the task, which tests the whole path of a nested value.
#[tokio::test]
async fn nested_configuration_reaches_a_task_in_go() {
    let Some(subject) = GoDriver::new("nested_configuration_reaches_a_task_in_go") else {
        return;
    };
    let driver = subject.launch().await;
    let schema = Schema::new(&driver.task_config_schema().await.unwrap()).unwrap();
    let config = json!({
        "command": "/bin/sh", "args": ["-c", "exit $LABEL_code"],
        "label": [{"code": [{"value": "42"}]}], "limits": [{"files": 10}],
    });
    let task = subject.task(schema.decode("config", &config).unwrap());

    driver.start_task(task.clone()).await.unwrap();
    let result = driver.wait_task(&task.id).await.unwrap();

    assert_eq!(result.exit_code, 42);
}

#[tokio::test]
async fn failures_of_a_driver_in_go_are_understood() {
    let Some(subject) = GoDriver::new("failures_of_a_driver_in_go_are_understood") else {
        return;
    };
    let driver = subject.launch().await;
    let task = subject.task(json!({"command": "/bin/true", "refuse": "always"}));
    let running = subject.task(subject.runs_for(Duration::from_mins(10)));
    let handle = driver.start_task(running.clone()).await.unwrap().handle;

    let fatal = driver.start_task(task).await.unwrap_err();
    subject.kill_all().await;
    let driver = subject.launch().await;
    let mut other = handle.clone();
    other.version = 7;
    let refused = driver.recover_task(other).await.unwrap_err();
    driver.recover_task(handle).await.unwrap();
    driver.destroy_task(&running.id, true).await.unwrap();

    assert_eq!(
        fatal,
        StartTaskError::Fatal {
            message: "not ever".to_owned()
        }
    );
    // Nomad's protocol has no kinds of failed recoveries. The task is lost, with the driver's message.
    assert!(
        matches!(&refused, RecoverTaskError::Gone { reason, .. } if reason.contains('7')),
        "{refused:?}"
    );
}

/// A plugin that shuts down on request leaves its tasks running.
#[tokio::test]
async fn go_driver_shutdown_leaves_tasks_running() {
    let Some(subject) = GoDriver::new("go_driver_shutdown_leaves_tasks_running") else {
        return;
    };
    let driver = subject.launch().await;
    let task = subject.task(subject.runs_for(Duration::from_mins(10)));
    let handle = driver.start_task(task.clone()).await.unwrap().handle;

    driver.shutdown().await.unwrap();
    let mut child = subject.processes.lock().await.pop().unwrap();
    let status = tokio::time::timeout(DEADLINE, child.wait()).await.unwrap();
    let next = subject.launch().await;
    next.recover_task(handle).await.unwrap();
    next.destroy_task(&task.id, true).await.unwrap();

    assert!(status.unwrap().success());
}
