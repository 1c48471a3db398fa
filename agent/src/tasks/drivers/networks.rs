//! Network namespaces of allocations that a driver makes, where the driver requires that. An example is a driver
//! that first starts a container to hold them. [`crate::network::bridge`] configures them, like all others.
//!
//! The pending request is stored before the driver receives it, and the result after it. So the next agent can
//! release the network after a crash at any point. The network is released when all tasks of the allocation have
//! ended. The release is repeated before the allocation is destroyed, until the driver succeeds.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::AllocId;
use muster_domain::job::TaskGroup;
use muster_driver::{NetworkIsolation, NetworkMode};

use super::{DriverSlot, TaskConfigError};
use tokio_util::sync::CancellationToken;

use crate::limits::{DRIVER_NETWORK_BYTES_MAX, DRIVER_START_DEADLINE, START_STOP_DEADLINE};
use crate::network::setup::NetworkSetup;
use crate::storage::store::Write;
use crate::tasks::drivers::network_error::DriverNetworkError;
use crate::tasks::drivers::network_record::{DriverNetwork, NetworkDescription};

/// Networks that drivers made for the node's allocations, which the store has, too.
#[derive(Debug, Default)]
pub(crate) struct DriverNetworks {
    known: Mutex<BTreeMap<AllocId, DriverNetwork>>,
}

impl DriverNetworks {
    /// Takes the networks that an earlier agent stored.
    pub(crate) fn new(known: BTreeMap<AllocId, DriverNetwork>) -> Self {
        Self {
            known: Mutex::new(known),
        }
    }

    /// Whether the allocation has, or may have, such a network.
    pub(crate) fn has(&self, alloc_id: AllocId) -> bool {
        self.locked().contains_key(&alloc_id)
    }

    /// Returns the network made for an allocation.
    pub(crate) fn of(&self, alloc_id: AllocId) -> Option<NetworkIsolation> {
        let known = self.locked();
        let made = known.get(&alloc_id)?.made.clone();
        made.map(NetworkDescription::isolation)
    }

    /// Returns the network of a group whose driver must make it, and requests it on the first call. `None` if there
    /// is no such driver. Once the allocation is `stopped`, the driver has little time to answer.
    pub(crate) async fn ensure(
        &self,
        setup: NetworkSetup<'_>,
        desired: &DesiredAlloc,
        group: &TaskGroup,
        hostname: &str,
        stopped: &CancellationToken,
    ) -> Result<Option<NetworkIsolation>, DriverNetworkError> {
        let alloc_id = desired.alloc_id;
        // A network that disappeared with a reboot or with its holder is made again.
        if let Some(made) = self
            .of(alloc_id)
            .filter(|made| Path::new(&made.path).exists())
        {
            return Ok(Some(made));
        }
        let Some((driver, slot)) = network_driver(setup, group).await? else {
            return Ok(None);
        };
        let mut network = DriverNetwork {
            driver: driver.to_owned(),
            hostname: hostname.to_owned(),
            made: None,
        };
        self.save_record(setup, alloc_id, &network).await;
        let given_up = async {
            stopped.cancelled().await;
            tokio::time::sleep(START_STOP_DEADLINE).await;
        };
        let made = tokio::select! {
            made = create(slot, driver, alloc_id, hostname) => made?,
            () = given_up => {
                let driver = driver.to_owned();
                return Err(DriverNetworkError::Unanswered { driver });
            }
        };
        network.made = Some(made.clone());
        self.save_record(setup, alloc_id, &network).await;
        Ok(Some(made.isolation()))
    }

    /// Makes the driver destroy the network of an allocation that has no running task. May be repeated.
    pub(crate) async fn release(
        &self,
        setup: NetworkSetup<'_>,
        alloc_id: AllocId,
    ) -> Result<(), DriverNetworkError> {
        let known = self.locked().get(&alloc_id).cloned();
        let Some(DriverNetwork {
            driver,
            hostname,
            made,
        }) = known
        else {
            return Ok(());
        };
        match setup.drivers.named(&driver) {
            Some(slot) => {
                // The agent died during the request, or stopped waiting for the answer. A repeated request returns
                // the existing network.
                let made = match made {
                    Some(made) => made,
                    None => {
                        let asking = create(slot, &driver, alloc_id, &hostname);
                        let asked = tokio::time::timeout(START_STOP_DEADLINE, asking).await;
                        asked.map_err(|_elapsed| DriverNetworkError::Unanswered {
                            driver: driver.clone(),
                        })??
                    }
                };
                let id = alloc_id.to_string();
                let destroyed = slot.driver.destroy_network(&id, made.isolation()).await;
                destroyed.map_err(|source| DriverNetworkError::Destroy {
                    driver: driver.clone(),
                    source,
                })?;
            }
            None => tracing::warn!(
                %alloc_id, driver,
                "the node has no such driver any more: the network that it made for the allocation stays where it is"
            ),
        }
        self.locked().remove(&alloc_id);
        let gone = vec![Write::DriverNetwork(alloc_id, None)];
        // The store's thread reports the error to the operator. A second release of a network does no harm.
        drop(setup.store.submit(gone).await);
        Ok(())
    }

    async fn save_record(
        &self,
        setup: NetworkSetup<'_>,
        alloc_id: AllocId,
        network: &DriverNetwork,
    ) {
        self.locked().insert(alloc_id, network.clone());
        let write = Write::DriverNetwork(alloc_id, Some(Box::new(network.clone())));
        // The store's thread reports the error to the operator; this agent has the record in memory.
        drop(setup.store.write(vec![write]).await);
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<AllocId, DriverNetwork>> {
        // A panic elsewhere leaves the map whole: each change of it is one call.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The driver among those of the group's tasks that must make the network.
async fn network_driver<'a>(
    setup: NetworkSetup<'a>,
    group: &'a TaskGroup,
) -> Result<Option<(&'a str, &'a DriverSlot)>, DriverNetworkError> {
    let mut network_driver: Option<(&str, &DriverSlot)> = None;
    for task in &group.tasks {
        let driver = task.driver.as_str();
        // The start of its task reports a driver that is not there.
        let Some(slot) = setup.drivers.named(driver) else {
            continue;
        };
        if network_driver.is_some_and(|(known, _)| known == driver)
            || !must_make(slot, driver).await?
        {
            continue;
        }
        if let Some((one, _)) = network_driver {
            return Err(DriverNetworkError::TwoMakers {
                one: one.to_owned(),
                other: driver.to_owned(),
            });
        }
        network_driver = Some((driver, slot));
    }
    Ok(network_driver)
}

async fn must_make(slot: &DriverSlot, driver: &str) -> Result<bool, DriverNetworkError> {
    let failed = |reason| DriverNetworkError::Ask {
        driver: driver.to_owned(),
        reason,
    };
    let ready = tokio::time::timeout(DRIVER_START_DEADLINE, slot.ready()).await;
    ready.map_err(|_elapsed| {
        failed(format!(
            "it did not answer within {DRIVER_START_DEADLINE:?}"
        ))
    })?;
    let facts = slot.facts().await;
    let facts = facts
        .map_err(|error: TaskConfigError| failed(muster_domain::error_chain::chain(&error)))?;
    Ok(facts.capabilities.must_create_network)
}

async fn create(
    slot: &DriverSlot,
    driver: &str,
    alloc_id: AllocId,
    hostname: &str,
) -> Result<NetworkDescription, DriverNetworkError> {
    let id = alloc_id.to_string();
    let created = slot.driver.create_network(&id, hostname).await;
    let created = created.map_err(|source| DriverNetworkError::Create {
        driver: driver.to_owned(),
        source,
    })?;
    let NetworkIsolation {
        mode,
        path,
        labels,
        hostname,
        address,
    } = created.isolation;
    if mode != NetworkMode::Group {
        return Err(DriverNetworkError::Mode {
            driver: driver.to_owned(),
            mode,
        });
    }
    let notes = labels.iter().map(|(name, value)| name.len() + value.len());
    let bytes = notes.sum::<usize>() + path.len() + hostname.len() + address.len();
    if bytes > DRIVER_NETWORK_BYTES_MAX {
        return Err(DriverNetworkError::TooLarge {
            driver: driver.to_owned(),
            bytes,
        });
    }
    Ok(NetworkDescription {
        path,
        labels,
        hostname,
        address,
    })
}
