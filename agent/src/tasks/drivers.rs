//! The drivers of this node, by name.
//!
//! A driver may come and go: [`DriverSlot::ready`] waits for it, and its health is a fact of the
//! node. Which process it runs in is known here alone: [`native`] is a process of its own that
//! outlives the agent; [`plugin`] runs the executables of a plugin directory in the same way;
//! drivers given in the configuration live in the agent's process.

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

/// A driver and whether it answers.
#[derive(Clone, Debug)]
pub(crate) struct DriverSlot {
    pub(crate) driver: Arc<dyn TaskDriver>,
    /// Counts its lives; 0 while it does not answer.
    lives: watch::Receiver<u64>,
    /// The facts that one of its lives told of itself.
    learned: Arc<Mutex<VersionedDriverFacts>>,
    /// It lives in this process, where an absent field is absent and not null.
    in_process: bool,
    /// Room for starts that are under way.
    starts: Arc<Semaphore>,
    /// Where its process is recorded, if it is a plugin.
    record: Option<Arc<Path>>,
}

/// The facts learned, with the number of the life that told them.
type VersionedDriverFacts = Option<(u64, Arc<DriverFacts>)>;

/// The facts that a driver tells of itself once in a life.
#[derive(Debug)]
pub(crate) struct DriverFacts {
    /// The capabilities that it implements.
    pub(crate) capabilities: Capabilities,
    schema: Schema,
}

/// Why a task's `config` is not what its driver takes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskConfigError {
    /// The driver cannot be asked.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// It makes no sense.
    #[error("{0}")]
    Wrong(String),
}

impl DriverSlot {
    /// A driver that always answers.
    pub(crate) fn in_process(driver: Arc<dyn TaskDriver>) -> Self {
        let (_sender, lives) = watch::channel(1);
        Self {
            in_process: true,
            ..Self::watched(driver, lives)
        }
    }

    /// A driver whose lives another task counts.
    pub(crate) fn watched(driver: Arc<dyn TaskDriver>, lives: watch::Receiver<u64>) -> Self {
        Self {
            driver,
            lives,
            learned: Arc::default(),
            in_process: false,
            starts: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            record: None,
        }
    }

    /// The same, in a process that is recorded at `path`.
    pub(crate) fn recorded_at(self, path: &Path) -> Self {
        let record = Some(path.into());
        Self { record, ..self }
    }

    /// The process of a plugin that runs.
    pub(crate) fn process(&self) -> Option<u32> {
        let process = plugin::process_at(self.record.as_deref()?)?;
        process.is_alive().then_some(process.pid)
    }

    /// The same, of which `max` tasks are started at once. For a driver that does no more itself, and never waits for
    /// somebody else, such as a registry of images.
    pub(crate) fn with_starts_max(self, max: usize) -> Self {
        let starts = Arc::new(Semaphore::new(max));
        Self { starts, ..self }
    }

    /// Waits for room for a start, which is taken until the answer is dropped.
    pub(crate) async fn room(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed.
        self.starts.acquire().await.ok()
    }

    /// Returns the capabilities of the driver, asked once in each of its lives.
    pub(crate) async fn learned(&self) -> Result<Arc<DriverFacts>, TaskConfigError> {
        let life = *self.lives.borrow();
        let mut known = self.learned.lock().await;
        if let Some((of, learned)) = known.as_ref()
            && *of == life
        {
            return Ok(Arc::clone(learned));
        }
        let capabilities = self.driver.capabilities().await?;
        let spec = self.driver.task_config_schema().await?;
        let schema =
            Schema::new(&spec).map_err(|error| TaskConfigError::Wrong(error.to_string()))?;
        let learned = Arc::new(DriverFacts {
            capabilities,
            schema,
        });
        tracing::debug!(life, capabilities = ?learned.capabilities, "a driver tells what it can do");
        *known = Some((life, Arc::clone(&learned)));
        Ok(learned)
    }

    /// A task's `config` as the driver takes it: checked against its schema, values turned into the
    /// types it names, and null for what is absent.
    pub(crate) async fn task_config(&self, config: &Value) -> Result<Value, TaskConfigError> {
        let learned = self.learned().await?;
        let decoded = learned.schema.decode("config", config);
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
        // Without its supervisor the agent is stopping, and calls say themselves what is wrong.
        drop(self.lives.clone().wait_for(|life| *life > 0).await);
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

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &DriverSlot)> {
        self.slots.iter().map(|(name, slot)| (name.as_str(), slot))
    }

    /// For errors: `mock, native`.
    pub(crate) fn names(&self) -> String {
        self.slots
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// Health of the drivers, as known.
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
                    note_learned(&name, &slot, &mut info).await;
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

/// Says what follows for the node from what the driver can do, whatever its fingerprint says: whether the limits of its
/// tasks can change while they run, which is so where the agent sets them, and whether it can have tasks at all.
async fn note_learned(name: &str, slot: &DriverSlot, info: &mut DriverInfo) {
    let learned = slot.learned().await.ok();
    let capabilities = learned.as_ref().map(|learned| &learned.capabilities);
    let attribute = limits_in_place(name);
    if capabilities.is_some_and(|it| it.joins_cgroup) {
        info.attributes.insert(attribute, "1".to_owned());
    } else {
        info.attributes.remove(&attribute);
    }
    if let Some(reason) = capabilities.and_then(|it| unserved(name, it)) {
        info.healthy = false;
        info.description = reason;
    }
}

/// Why no task of the driver can run here, if that is so.
pub(crate) fn unserved(name: &str, capabilities: &Capabilities) -> Option<String> {
    match capabilities.fs_isolation {
        // Nomad has FIFOs there. One kind of such a driver would fail, another make them itself and wait for a reader
        // for ever.
        FsIsolation::Unveil => Some(format!(
            "driver `{name}` isolates file systems by `unveil`: drivers of that kind (exec2) open a task's output in `logs` of its allocation's shared directory, whatever place they are told, and this agent has it where no task can write; take another driver for its tasks, such as `native` with isolation = \"contained\""
        )),
        FsIsolation::None | FsIsolation::Chroot | FsIsolation::Image => None,
    }
}

/// Asks a driver now and then whether it answers, and tells when it does not: its process may hang or be stopped.
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
    // Either way the caller looks at `stop` next.
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

/// A value as constraints compare it: yes is `1`, as Nomad has it.
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
