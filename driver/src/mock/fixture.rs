//! The mock driver as a subject of the conformance suite.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use serde_json::{Value, json};

use crate::conformance::DriverUnderTest;
use crate::mock::{MockDriver, MockHost, MockTask};
use crate::task::TaskConfig;
use crate::task_driver::TaskDriver;

/// The output of a command; the mock's tasks print the output in their `config`.
pub(crate) const PRINTED: &str = "hello from inside";

pub(crate) fn runs_for(time: Duration) -> Value {
    MockTask {
        exec_stdout: PRINTED.to_owned(),
        ..MockTask::exits(time, 0)
    }
    .to_config()
}

pub(crate) fn exits_with(code: i32) -> Value {
    MockTask::exits(Duration::ZERO, code).to_config()
}

pub(crate) fn ignores_signals() -> Value {
    MockTask {
        ignore_signals: true,
        ..MockTask::forever()
    }
    .to_config()
}

pub(crate) fn busy() -> Value {
    MockTask {
        start_error_recoverable: true,
        ..MockTask::broken("not now")
    }
    .to_config()
}

pub(crate) fn broken() -> Value {
    MockTask::broken("nothing works").to_config()
}

/// The driver itself.
pub(crate) struct InProcessDriver {
    host: MockHost,
}

impl InProcessDriver {
    pub(crate) fn new() -> Self {
        Self {
            host: MockHost::new(),
        }
    }
}

impl DriverUnderTest for InProcessDriver {
    fn driver(&self) -> BoxFuture<'_, Arc<dyn TaskDriver>> {
        async { Arc::new(MockDriver::on(self.host.clone()).with_networks()) as Arc<dyn TaskDriver> }
            .boxed()
    }

    fn restart(&self, old: Arc<dyn TaskDriver>) -> BoxFuture<'_, Arc<dyn TaskDriver>> {
        drop(old);
        self.driver()
    }

    fn host_part(&self, _task_id: &str) -> TaskConfig {
        TaskConfig::default()
    }

    fn runs_for(&self, time: Duration) -> Value {
        runs_for(time)
    }

    fn other_settings(&self) -> Option<Value> {
        Some(other_settings())
    }

    fn exits_with(&self, code: i32) -> Value {
        exits_with(code)
    }

    fn ignores_signals(&self) -> Value {
        ignores_signals()
    }

    fn broken(&self) -> Value {
        broken()
    }

    fn prints(&self, _text: &str) -> Vec<String> {
        vec!["print".to_owned()]
    }
    fn busy(&self) -> Option<Value> {
        Some(busy())
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

/// Settings that [`MockDriver`] reports in its fingerprint.
pub(crate) fn other_settings() -> Value {
    json!({"description": "set otherwise"})
}
