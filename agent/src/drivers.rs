//! The drivers of this node, by name.
//!
//! A driver may come and go: [`DriverSlot::ready`] waits for it, and its health is a fact of the
//! node. Which process it runs in is known here alone: [`native`] is a process of its own that
//! outlives the agent; drivers given in the configuration live in the agent's process.

pub(crate) mod native;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use muster_domain::node::DriverInfo;
use muster_driver::{Attribute, Fingerprint, Health, TaskDriver};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::limits::{DRIVER_PAUSE_MAX, DRIVER_PAUSE_MIN};

/// A driver and whether it answers.
#[derive(Clone, Debug)]
pub(crate) struct DriverSlot {
    /// The driver.
    pub(crate) driver: Arc<dyn TaskDriver>,
    /// Counts its lives; 0 while it does not answer.
    lives: watch::Receiver<u64>,
}

impl DriverSlot {
    /// A driver that always answers.
    pub(crate) fn in_process(driver: Arc<dyn TaskDriver>) -> Self {
        let (_sender, lives) = watch::channel(1);
        Self { driver, lives }
    }

    /// A driver whose lives another task counts.
    pub(crate) fn watched(driver: Arc<dyn TaskDriver>, lives: watch::Receiver<u64>) -> Self {
        Self { driver, lives }
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
                    publish(&health, &name, info(fingerprint));
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
