use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};
use futures::stream::StreamExt;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use super::{Client, serve};
use crate::conformance::DriverUnderTest;
use crate::mock::{self, MockDriver, MockHost, MockTask};
use crate::{DriverError, Health, Retry, TaskConfig, TaskDriver, TaskError, TaskReach};

mod go;

mod conformance {
    use super::SocketDriver;

    crate::driver_conformance!(SocketDriver::new());
}

const DEADLINE: Duration = Duration::from_secs(30);

/// A mock driver that this process serves on a separate socket.
struct SocketDriver {
    host: MockHost,
    dir: TempDir,
    sockets: Mutex<Vec<CancellationToken>>,
}

impl SocketDriver {
    fn new() -> Self {
        Self {
            host: MockHost::new(),
            dir: tempfile::tempdir().unwrap(),
            sockets: Mutex::default(),
        }
    }

    fn serve(&self) -> (PathBuf, CancellationToken) {
        let mut sockets = self.sockets.lock().unwrap();
        let path = self.dir.path().join(format!("{}.sock", sockets.len()));
        let listener = UnixListener::bind(&path).unwrap();
        let shutdown = CancellationToken::new();
        let driver = Arc::new(MockDriver::on(self.host.clone()).with_networks());
        let _serving = tokio::spawn(serve(driver, listener, shutdown.clone()));
        sockets.push(shutdown.clone());
        (path, shutdown)
    }
}

impl DriverUnderTest for SocketDriver {
    fn driver(&self) -> BoxFuture<'_, Arc<dyn TaskDriver>> {
        async {
            let (path, _) = self.serve();
            Arc::new(Client::new("mock", &path)) as Arc<dyn TaskDriver>
        }
        .boxed()
    }

    fn restart(&self, old: Arc<dyn TaskDriver>) -> BoxFuture<'_, Arc<dyn TaskDriver>> {
        drop(old);
        for socket in self.sockets.lock().unwrap().iter() {
            socket.cancel();
        }
        self.driver()
    }

    fn host_part(&self, _task_id: &str) -> TaskConfig {
        TaskConfig::default()
    }

    fn runs_for(&self, time: Duration) -> Value {
        mock::fixture::runs_for(time)
    }

    fn other_settings(&self) -> Option<Value> {
        Some(mock::fixture::other_settings())
    }

    fn exits_with(&self, code: i32) -> Value {
        mock::fixture::exits_with(code)
    }

    fn ignores_signals(&self) -> Value {
        mock::fixture::ignores_signals()
    }

    fn broken(&self) -> Value {
        mock::fixture::broken()
    }

    fn prints(&self, _text: &str) -> Vec<String> {
        vec!["print".to_owned()]
    }

    fn busy(&self) -> Option<Value> {
        Some(mock::fixture::busy())
    }

    fn complains(&self, text: &str) -> Vec<String> {
        vec!["complain".to_owned(), text.to_owned()]
    }

    fn prints_size(&self) -> Vec<String> {
        vec!["size".to_owned()]
    }

    fn streams_exec(&self) -> bool {
        true
    }
}

fn forever(id: &str) -> TaskConfig {
    TaskConfig {
        id: id.to_owned(),
        config: MockTask::forever().to_config(),
        ..TaskConfig::default()
    }
}

#[tokio::test]
async fn call_to_a_missing_socket_is_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nobody.sock");
    let client = Client::new("mock", &socket);

    let error = client.ping().await.unwrap_err();

    assert_eq!(error.retry(), Retry::Later);
    assert!(
        error.to_string().contains("nobody.sock"),
        "the message names the socket: {error}"
    );
}

/// The client is created before the driver starts, and outlives two driver processes.
#[tokio::test]
async fn client_connects_again_after_the_driver_returns() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("d.sock");
    let client = Client::new("mock", &socket);
    assert!(client.ping().await.is_err());

    for _life in 0..2 {
        let listener = UnixListener::bind(&socket).unwrap();
        let driver = Arc::new(MockDriver::new());
        let serving = tokio::spawn(serve(driver, listener, CancellationToken::new()));
        client.ping().await.unwrap();
        client.shutdown().await.unwrap();
        tokio::time::timeout(DEADLINE, serving)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        std::fs::remove_file(&socket).unwrap();
    }
}

/// More waits than the HTTP library allows by default must not block a stop.
#[tokio::test]
async fn three_hundred_waits_hold_up_no_other_call() {
    let subject = SocketDriver::new();
    let (path, _) = subject.serve();
    let client = Client::new("mock", &path);
    let ids: Vec<String> = (0..300).map(|n| format!("a/t/{n:08x}")).collect();
    for id in &ids {
        client.start_task(forever(id)).await.unwrap();
    }

    let waits: Vec<_> = ids
        .iter()
        .map(|id| {
            let (client, id) = (client.clone(), id.clone());
            tokio::spawn(async move { client.wait_task(&id).await })
        })
        .collect();
    tokio::time::timeout(DEADLINE, async {
        for id in &ids {
            client
                .stop_task(id, Duration::ZERO, "SIGKILL")
                .await
                .unwrap();
        }
    })
    .await
    .expect("stops come through");

    let results = tokio::time::timeout(DEADLINE, join_all(waits))
        .await
        .unwrap();
    assert!(
        results
            .iter()
            .all(|result| result.as_ref().is_ok_and(Result::is_ok))
    );
}

/// A large environment needs more than the 4 MiB that the library takes by default.
#[tokio::test]
async fn large_configuration_comes_through() {
    let subject = SocketDriver::new();
    let (path, _) = subject.serve();
    let client = Client::new("mock", &path);
    let mut config = forever("a/large/00000001");
    config.env.insert("BIG".to_owned(), "x".repeat(8 << 20));

    let started = client.start_task(config.clone()).await.unwrap();

    assert_eq!(started.handle.config, config);
}

#[tokio::test]
async fn streams_carry_health_and_events() {
    let subject = SocketDriver::new();
    let (path, _) = subject.serve();
    let client = Client::new("mock", &path);

    let mut fingerprints = client.fingerprint().await.unwrap();
    let mut events = client.task_events().await.unwrap();
    let health = tokio::time::timeout(DEADLINE, fingerprints.next())
        .await
        .unwrap()
        .unwrap()
        .health;
    client.start_task(forever("a/t/00000001")).await.unwrap();
    let event = tokio::time::timeout(DEADLINE, events.next())
        .await
        .unwrap()
        .unwrap();

    assert_eq!(health, Health::Healthy);
    assert_eq!(event.task_id, "a/t/00000001");
    assert_eq!(event.message, "started");
}

#[tokio::test]
async fn missing_function_is_unsupported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let _serving = tokio::spawn(serve(
        Arc::new(MockDriver::new()),
        listener,
        CancellationToken::new(),
    ));
    let client = Client::new("mock", &path);

    let network = client.create_network("a", "host").await;

    assert_eq!(network, Err(DriverError::unsupported("CreateNetwork")));
}

/// A driver that does not report the reach of tasks returns "unsupported"; the reach of any other driver is returned.
#[tokio::test]
async fn task_reach_is_exposed_over_plugin_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let mut answers = Vec::new();
    for (name, driver) in [
        ("silent", MockDriver::new()),
        ("network", MockDriver::new().reaching(TaskReach::Network)),
        ("itself", MockDriver::new().reaching(TaskReach::Itself)),
        ("machine", MockDriver::new().reaching(TaskReach::Machine)),
    ] {
        let path = dir.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let _serving = tokio::spawn(serve(Arc::new(driver), listener, CancellationToken::new()));
        let client = Client::new("mock", &path);
        answers.push(client.task_reach(forever("a/t/00000001")).await);
    }

    let silent = DriverError::unsupported("TaskReach");
    let reaches = [TaskReach::Network, TaskReach::Itself, TaskReach::Machine].map(Ok);
    assert_eq!(answers, [[Err(silent)].as_slice(), &reaches].concat());
}

/// A caller that hangs up during a start leaves a complete task, not a partial one.
#[tokio::test]
async fn start_goes_on_when_the_caller_hangs_up() {
    let subject = SocketDriver::new();
    let (path, _) = subject.serve();
    let slow = TaskConfig {
        id: "a/slow/00000001".to_owned(),
        config: MockTask {
            start_for_ms: 100,
            ..MockTask::forever()
        }
        .to_config(),
        ..TaskConfig::default()
    };
    let caller = Client::new("mock", &path);
    caller.ping().await.unwrap();

    let hung_up = tokio::time::timeout(Duration::from_millis(30), caller.start_task(slow)).await;
    drop(caller);

    assert!(hung_up.is_err());
    let other = Client::new("mock", &path);
    let found = tokio::time::timeout(DEADLINE, async {
        loop {
            match other.inspect_task("a/slow/00000001").await {
                Err(TaskError::NotFound { .. }) => tokio::task::yield_now().await,
                found => return found,
            }
        }
    })
    .await
    .expect("the start ends");
    assert!(found.is_ok());
}
