//! The drivers of this node, by name.
//!
//! A driver may come and go. [`DriverSlot::ready`] waits for it, and its health is a fact of the node. Only this
//! module distinguishes the processes of drivers. [`native`] is a separate process that outlives the agent.
//! [`plugin`] runs the executables of a plugin directory in the same way. Configured drivers run in the agent's
//! process.

mod introduce;
pub(crate) mod native;
pub(crate) mod network_error;
pub(crate) mod network_record;
pub(crate) mod networks;
pub(crate) mod nomad;
mod pause;
pub(crate) mod plugin;
pub(crate) mod task_events;
pub(crate) mod usage;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use muster_domain::node::{DriverInfo, limits_in_place};
use muster_driver::{
    Attribute, Capabilities, DriverError, Fingerprint, FsIsolation, Health, Schema, TaskDriver,
    without_nulls,
};
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use crate::limits::{
    DRIVER_ANSWER_DEADLINE, DRIVER_ANSWER_INTERVAL, DRIVER_PAUSE_MAX, DRIVER_PAUSE_MIN,
};

/// A driver, and whether it answers.
#[derive(Clone, Debug)]
pub(crate) struct DriverSlot {
    pub(crate) driver: Arc<dyn TaskDriver>,
    /// The number of the driver's process, counted from 1; 0 while it does not answer.
    generation: watch::Receiver<u64>,
    /// The facts that one process of the driver reported.
    facts: Arc<Mutex<VersionedDriverFacts>>,
    /// The driver runs in this process, where an absent field is absent and not null.
    in_process: bool,
    /// Room for starts in progress.
    starts: Arc<Semaphore>,
    /// The record of its process, if the driver is a plugin.
    record: Option<Arc<Path>>,
}

/// The facts, with the number of the process that reported them.
type VersionedDriverFacts = Option<(u64, Arc<DriverFacts>)>;

/// The facts that each process of a driver reports once.
#[derive(Debug)]
pub(crate) struct DriverFacts {
    /// The capabilities of the driver.
    pub(crate) capabilities: Capabilities,
    schema: Schema,
}

/// Why a driver does not accept a task's `config`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskConfigError {
    /// The driver cannot be asked.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The configuration is invalid.
    #[error("{0}")]
    Wrong(String),
}

impl DriverSlot {
    /// Returns a slot for a driver that always answers.
    pub(crate) fn in_process(driver: Arc<dyn TaskDriver>) -> Self {
        let (_sender, generation) = watch::channel(1);
        Self {
            in_process: true,
            ..Self::watched(driver, generation)
        }
    }

    /// Returns a slot for a driver whose processes another asynchronous task counts.
    pub(crate) fn watched(driver: Arc<dyn TaskDriver>, generation: watch::Receiver<u64>) -> Self {
        Self {
            driver,
            generation,
            facts: Arc::default(),
            in_process: false,
            starts: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            record: None,
        }
    }

    /// Adds the path of the record of the driver's process.
    pub(crate) fn recorded_at(self, path: &Path) -> Self {
        let record = Some(path.into());
        Self { record, ..self }
    }

    /// The pid of a running plugin.
    pub(crate) fn process(&self) -> Option<u32> {
        let process = plugin::process_at(self.record.as_deref()?)?;
        process.is_alive().then_some(process.pid)
    }

    /// Limits the starts in progress to `max`. It is for a driver that starts no more at a time, and never waits
    /// for another party, such as a registry of images.
    pub(crate) fn with_starts_max(self, max: usize) -> Self {
        let starts = Arc::new(Semaphore::new(max));
        Self { starts, ..self }
    }

    /// Waits for room for a start. The room is taken until the permit is dropped.
    pub(crate) async fn acquire_start(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.starts.acquire().await.ok()
    }

    /// Returns the capabilities of the driver, asked once of each of its processes.
    pub(crate) async fn facts(&self) -> Result<Arc<DriverFacts>, TaskConfigError> {
        let generation = *self.generation.borrow();
        let mut known = self.facts.lock().await;
        if let Some((of, facts)) = known.as_ref()
            && *of == generation
        {
            return Ok(Arc::clone(facts));
        }
        let capabilities = self.driver.capabilities().await?;
        let spec = self.driver.task_config_schema().await?;
        let schema =
            Schema::new(&spec).map_err(|error| TaskConfigError::Wrong(error.to_string()))?;
        let facts = Arc::new(DriverFacts {
            capabilities,
            schema,
        });
        tracing::debug!(life = generation, capabilities = ?facts.capabilities, "a driver reported its capabilities");
        *known = Some((generation, Arc::clone(&facts)));
        Ok(facts)
    }

    /// Converts a task's `config` for the driver: checks it against the driver's schema, converts values to the
    /// schema's types, and sets absent fields to null.
    pub(crate) async fn task_config(&self, config: &Value) -> Result<Value, TaskConfigError> {
        let facts = self.facts().await?;
        let decoded = facts.schema.decode("config", config);
        let decoded = decoded.map_err(|faults| {
            TaskConfigError::Wrong(format!(
                "the task's config is wrong: {}",
                introduce::listed(&faults)
            ))
        })?;
        Ok(if self.in_process {
            without_nulls(decoded)
        } else {
            decoded
        })
    }

    /// Returns when the driver answers.
    pub(crate) async fn ready(&self) {
        // Without its supervisor the agent is stopping, and calls return the fault themselves.
        drop(
            self.generation
                .clone()
                .wait_for(|generation| *generation > 0)
                .await,
        );
    }
}

/// The drivers of this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drivers {
    slots: BTreeMap<String, DriverSlot>,
}

impl Drivers {
    /// Adds a driver.
    pub(crate) fn add(&mut self, name: &str, slot: DriverSlot) {
        self.slots.insert(name.to_owned(), slot);
    }

    /// The driver called `name`.
    pub(crate) fn named(&self, name: &str) -> Option<&DriverSlot> {
        self.slots.get(name)
    }

    /// Iterates over all drivers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &DriverSlot)> {
        self.slots.iter().map(|(name, slot)| (name.as_str(), slot))
    }

    /// Returns the names for error messages: `mock, native`.
    pub(crate) fn names(&self) -> String {
        self.slots
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// The last known health of the drivers.
pub(crate) type DriverHealth = BTreeMap<String, DriverInfo>;

/// Follows the fingerprint of one driver until the agent stops.
pub(crate) async fn follow_fingerprint(
    name: String,
    slot: DriverSlot,
    health: watch::Sender<DriverHealth>,
    stop: CancellationToken,
) {
    let mut pause = DRIVER_PAUSE_MIN;
    while !stop.is_cancelled() {
        slot.ready().await;
        match slot.driver.fingerprint().await {
            Ok(mut stream) => {
                while let Some(Some(fingerprint)) = stop.run_until_cancelled(stream.next()).await {
                    pause = DRIVER_PAUSE_MIN;
                    let mut info = info(fingerprint);
                    add_driver_facts(&name, &slot, &mut info).await;
                    publish(&health, &name, info);
                }
            }
            Err(error) => publish(&health, &name, unreachable(&error.to_string())),
        }
        if stop.is_cancelled() {
            return;
        }
        publish(
            &health,
            &name,
            unreachable("the driver's process is being started again"),
        );
        wait(pause, &stop).await;
        pause = (pause * 2).min(DRIVER_PAUSE_MAX);
    }
}

/// Adds facts from the driver's capabilities, independent of its fingerprint. One fact is whether limits can change
/// while a task runs, which holds where the agent sets them. The other is whether the driver can have tasks at all.
async fn add_driver_facts(name: &str, slot: &DriverSlot, info: &mut DriverInfo) {
    let facts = slot.facts().await.ok();
    let capabilities = facts.as_ref().map(|facts| &facts.capabilities);
    let attribute = limits_in_place(name);
    if capabilities.is_some_and(|it| it.joins_cgroup) {
        info.attributes.insert(attribute, "1".to_owned());
    } else {
        info.attributes.remove(&attribute);
    }
    if let Some(reason) = capabilities.and_then(|it| unsupported_reason(name, it)) {
        info.healthy = false;
        info.description = reason;
    }
}

/// The reason why no task of the driver can run here, if there is one.
pub(crate) fn unsupported_reason(name: &str, capabilities: &Capabilities) -> Option<String> {
    match capabilities.fs_isolation {
        // Nomad has FIFOs there. One kind of such a driver would fail. Another would make them itself and wait for
        // a reader for ever.
        FsIsolation::Unveil => Some(format!(
            "driver `{name}` isolates file systems by `unveil`: drivers of that kind (exec2) open a task's output in `logs` of its allocation's shared directory, whatever place they are told, and this agent has it where no task can write; take another driver for its tasks, such as `native` with isolation = \"contained\""
        )),
        FsIsolation::None | FsIsolation::Chroot | FsIsolation::Image => None,
    }
}

/// Checks at intervals whether a driver answers, and reports when it does not. Its process may hang or be stopped.
/// Never returns.
pub(crate) async fn watch_answers(
    client: &muster_driver::plugin::Client,
    name: &str,
    health: &watch::Sender<DriverHealth>,
) {
    let mut before: Option<DriverInfo> = None;
    loop {
        tokio::time::sleep(DRIVER_ANSWER_INTERVAL).await;
        let asked = tokio::time::timeout(DRIVER_ANSWER_DEADLINE, client.ping()).await;
        match (asked, &before) {
            (Err(_elapsed), None) => {
                let reason = format!(
                    "the driver's process does not answer within {DRIVER_ANSWER_DEADLINE:?}: it hangs or was stopped"
                );
                tracing::error!(driver = name, reason);
                before = health.borrow().get(name).cloned();
                publish(health, name, unreachable(&reason));
            }
            (Ok(Ok(())), Some(_)) => {
                tracing::info!(driver = name, "the driver's process answers again");
                if let Some(info) = before.take() {
                    publish(health, name, info);
                }
            }
            // A process that has ended is seen by its supervisor.
            (Ok(_), _) | (Err(_), Some(_)) => {}
        }
    }
}

/// Sleeps, unless the agent stops first.
pub(crate) async fn wait(pause: Duration, stop: &CancellationToken) {
    // In both cases, the caller checks `stop` next.
    let _slept = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
}

fn publish(health: &watch::Sender<DriverHealth>, name: &str, info: DriverInfo) {
    health.send_if_modified(|known| {
        let changed = known.get(name) != Some(&info);
        known.insert(name.to_owned(), info);
        changed
    });
}

fn info(fingerprint: Fingerprint) -> DriverInfo {
    let (detected, healthy, word) = match fingerprint.health {
        Health::Undetected => (false, false, "Undetected"),
        Health::Unhealthy => (true, false, "Unhealthy"),
        Health::Healthy => (true, true, "Healthy"),
    };
    let description = [
        fingerprint.err.unwrap_or_default(),
        fingerprint.health_description,
    ]
    .into_iter()
    .find(|text| !text.is_empty())
    .unwrap_or_else(|| word.to_owned());
    let attributes = fingerprint
        .attributes
        .into_iter()
        .map(|(name, value)| (name, text(value)))
        .collect();
    DriverInfo {
        detected,
        healthy,
        description,
        attributes,
    }
}

/// Converts a value to the form that constraints compare: true is `1`, as in Nomad.
fn text(value: Attribute) -> String {
    match value {
        Attribute::Bool(yes) => if yes { "1" } else { "0" }.to_owned(),
        Attribute::Int(number, unit) => format!("{number}{unit}"),
        Attribute::Float(number, unit) => format!("{number}{unit}"),
        Attribute::Text(text) => text,
    }
}

fn unreachable(why: &str) -> DriverInfo {
    DriverInfo {
        detected: true,
        healthy: false,
        description: why.to_owned(),
        attributes: BTreeMap::new(),
    }
}
