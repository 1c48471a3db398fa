//! Runs the conformance suite against the native driver: in process, through the plugin protocol, and with cgroups.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use muster_driver::conformance::DriverUnderTest;
use muster_driver::{TaskConfig, TaskDriver, plugin};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::fixture::{Cgroups, DEADLINE, allowing_driver, shell, skipped};

mod raw {
    use super::NativeSubject;

    muster_driver::driver_conformance!(NativeSubject::in_process("raw"));
}

mod contained {
    use super::NativeSubject;

    muster_driver::driver_conformance!(NativeSubject::in_process("contained"));
}

mod strict {
    use super::NativeSubject;

    muster_driver::driver_conformance!(NativeSubject::in_process("strict"));
}

mod over_socket {
    use super::NativeSubject;

    muster_driver::driver_conformance!(NativeSubject::over_socket("contained"));
}

mod raw_over_socket {
    use super::NativeSubject;

    muster_driver::driver_conformance!(NativeSubject::over_socket("raw"));
}

mod strict_over_socket {
    use super::NativeSubject;

    muster_driver::driver_conformance!(NativeSubject::over_socket("strict"));
}

/// The native driver, served or not, with a cgroup for each task or without, and a level of isolation.
struct NativeSubject {
    level: &'static str,
    dir: TempDir,
    cgroups: Option<Cgroups>,
    served: Option<Mutex<Vec<CancellationToken>>>,
    /// Whether the programs of tasks are open for writing, and the files that are open.
    writes: AtomicBool,
    writers: Mutex<Vec<File>>,
}

impl NativeSubject {
    /// Creates a subject in process. It is raw where the tests do not run as root; a message reports that.
    fn in_process(level: &'static str) -> Self {
        let root = nix::unistd::geteuid().is_root();
        if !root && level != "raw" {
            let reason = "only root can contain a task; raw ones run instead";
            skipped(&format!("conformance::{level}"), reason);
        }
        Self {
            level: if root { level } else { "raw" },
            dir: tempfile::tempdir().unwrap(),
            cgroups: None,
            served: None,
            writes: AtomicBool::new(false),
            writers: Mutex::default(),
        }
    }

    /// Creates a subject behind a socket, with cgroups if they can be created.
    fn over_socket(level: &'static str) -> Self {
        Self {
            cgroups: Cgroups::new(),
            served: Some(Mutex::default()),
            ..Self::in_process(level)
        }
    }

    fn config(&self, mut config: Value) -> Value {
        config["isolation"] = json!(self.level);
        config
    }

    /// Returns the path in the task of a file of its `local`.
    fn local(&self, name: &str) -> String {
        let root = if self.level == "raw" { "" } else { "/" };
        format!("{root}local/{name}")
    }

    fn task_dir(&self, task_id: &str) -> PathBuf {
        self.dir.path().join(task_id.replace('/', "_"))
    }
}

impl DriverUnderTest for NativeSubject {
    fn driver(&self) -> BoxFuture<'_, Arc<dyn TaskDriver>> {
        async {
            let driver = Arc::new(allowing_driver().await);
            let Some(served) = &self.served else {
                return driver as Arc<dyn TaskDriver>;
            };
            let mut served = served.lock().unwrap();
            let path = self.dir.path().join(format!("{}.sock", served.len()));
            let listener = UnixListener::bind(&path).unwrap();
            let shutdown = CancellationToken::new();
            let _serving = tokio::spawn(plugin::serve(driver, listener, shutdown.clone()));
            served.push(shutdown);
            Arc::new(plugin::Client::new("native", &path))
        }
        .boxed()
    }

    /// Within one process, the old driver's watch must end before the next one begins. Otherwise both would wait for
    /// the same child. Dropping the old driver ends the watch, also behind the socket.
    fn restart(&self, old: Arc<dyn TaskDriver>) -> BoxFuture<'_, Arc<dyn TaskDriver>> {
        async {
            drop(old);
            for shutdown in self.served.iter().flat_map(|served| {
                let served = served.lock().unwrap();
                served.clone()
            }) {
                shutdown.cancel();
            }
            self.driver().await
        }
        .boxed()
    }

    fn host_part(&self, task_id: &str) -> TaskConfig {
        let task_dir = self.task_dir(task_id);
        fs::create_dir_all(task_dir.join("local")).unwrap();
        if self.writes.load(Ordering::Relaxed) {
            let program = task_dir.join("local/written");
            let mut writer = File::create(&program).unwrap();
            writer.write_all(b"#!/bin/sh\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            self.writers.lock().unwrap().push(writer);
        }
        let mut config = TaskConfig {
            task_dir,
            cgroup: self.cgroups.as_ref().map(Cgroups::placement),
            ..TaskConfig::default()
        };
        config
            .env
            .insert("PATH".to_owned(), crate::fixture::PATH.to_owned());
        config
    }

    fn other_settings(&self) -> Option<Value> {
        Some(json!({"allow_raw": true}))
    }

    fn runs_for(&self, time: Duration) -> Value {
        self.config(json!({"command": "sleep", "args": [time.as_secs_f64().to_string()]}))
    }

    fn exits_with(&self, code: i32) -> Value {
        self.config(shell(&format!("exit {code}")))
    }

    fn ignores_signals(&self) -> Value {
        let place = self.local("ready");
        self.config(shell(&format!(
            "trap '' TERM INT HUP; echo yes > {place}; while :; do sleep 1; done"
        )))
    }

    fn broken(&self) -> Value {
        self.config(json!({"command": "no-such-command"}))
    }

    /// A program that is open for writing: the kernel executes it once it is closed.
    fn busy(&self) -> Option<Value> {
        self.writes.store(true, Ordering::Relaxed);
        Some(self.config(json!({"command": self.local("written")})))
    }

    fn prints(&self, text: &str) -> Vec<String> {
        vec!["echo".to_owned(), text.to_owned()]
    }

    fn streams_exec(&self) -> bool {
        true
    }

    fn settled<'a>(&'a self, config: &'a TaskConfig) -> BoxFuture<'a, ()> {
        async {
            let ready = config.task_dir.join("local/ready");
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
