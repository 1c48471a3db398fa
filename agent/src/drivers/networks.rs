//! Network namespaces of allocations that a driver makes, where the driver must: a container that it starts first holds
//! them, say. What is in them is made by [`crate::bridge`], as in every other one.
//!
//! That a driver is about to be asked is stored before it is asked, and what it made after it: so that the next agent
//! can give the network back, whatever happened in between. It is given back when everything of the allocation has
//! ended, and again before the allocation is destroyed, until the driver takes it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::AllocId;
use muster_domain::job::TaskGroup;
use muster_driver::{DriverError, NetworkIsolation, NetworkMode};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{DriverSlot, TaskConfigError};
use crate::context::AgentContext;
use crate::limits::{DRIVER_NETWORK_BYTES_MAX, DRIVER_START_DEADLINE, START_STOP_DEADLINE};
use crate::store::Write;

/// A network that a driver makes, or made: as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DriverNetwork {
    pub(crate) driver: String,
    /// The host's name in it.
    pub(crate) hostname: String,
    /// The network that was made; `None` while that is not known.
    pub(crate) made: Option<NetworkDescription>,
}

/// The description that a driver gives of a network that it made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkDescription {
    /// File that stands for the namespace.
    pub(crate) path: String,
    /// The driver's own notes.
    pub(crate) labels: BTreeMap<String, String>,
    /// Name of the host in it.
    pub(crate) hostname: String,
    /// Address for that name.
    pub(crate) address: String,
}

/// Why a driver makes no network for an allocation.
#[derive(Debug, thiserror::Error)]
pub enum DriverNetworkError {
    /// Two drivers want to.
    #[error(
        "drivers `{one}` and `{other}` of the group both make the network of their tasks: put the tasks into groups of their own"
    )]
    TwoMakers { one: String, other: String },
    /// A driver of the group cannot be asked what it can do.
    #[error("driver `{driver}` cannot be asked whether it makes networks: {reason}")]
    Ask {
        driver: String,
        /// The reason given by the driver.
        reason: String,
    },
    /// It does not make one.
    #[error("driver `{driver}` made no network for the allocation")]
    Create {
        driver: String,
        #[source]
        source: DriverError,
    },
    /// It does not say whether it made one, and nobody needs it any more.
    #[error(
        "driver `{driver}` did not answer CreateNetwork within {START_STOP_DEADLINE:?} of the stop; it is asked again when the allocation is destroyed"
    )]
    Unanswered { driver: String },
    /// The driver made a network that is not for the tasks of one allocation.
    #[error(
        "driver `{driver}` made a network of mode {mode:?} where one for the tasks of an allocation was asked for"
    )]
    Mode {
        driver: String,
        /// The mode of the network.
        mode: NetworkMode,
    },
    /// The driver's description of the network is larger than the limit.
    #[error(
        "driver `{driver}` says {bytes} bytes of the network that it made, and {DRIVER_NETWORK_BYTES_MAX} are kept"
    )]
    TooLarge {
        driver: String,
        /// Size of the description, in bytes.
        bytes: usize,
    },
    /// It does not take one back.
    #[error("driver `{driver}` does not take the allocation's network back; see the driver's log")]
    Destroy {
        driver: String,
        #[source]
        source: DriverError,
    },
}

/// Networks that drivers made for the node's allocations: in the store too.
#[derive(Debug, Default)]
pub(crate) struct DriverNetworks {
    known: Mutex<BTreeMap<AllocId, DriverNetwork>>,
}

impl DriverNetworks {
    /// Begins with the networks that an earlier agent knew.
    pub(crate) fn new(known: BTreeMap<AllocId, DriverNetwork>) -> Self {
        Self {
            known: Mutex::new(known),
        }
    }

    /// Whether there is, or may be, one of the allocation.
    pub(crate) fn has(&self, alloc_id: AllocId) -> bool {
        self.locked().contains_key(&alloc_id)
    }

    /// Returns the network made for an allocation.
    pub(crate) fn of(&self, alloc_id: AllocId) -> Option<NetworkIsolation> {
        let known = self.locked();
        let made = known.get(&alloc_id)?.made.clone();
        made.map(NetworkDescription::isolation)
    }

    /// Has the driver of a group that must make its network make it; `None` if there is no such driver. The same
    /// however often it is asked for. Once the allocation is `stopped`, the driver has little time to answer.
    pub(crate) async fn ensure(
        &self,
        context: &AgentContext,
        desired: &DesiredAlloc,
        group: &TaskGroup,
        hostname: &str,
        stopped: &CancellationToken,
    ) -> Result<Option<NetworkIsolation>, DriverNetworkError> {
        let alloc_id = desired.alloc_id;
        // What went with a reboot, or with whatever held it, is made anew.
        if let Some(made) = self
            .of(alloc_id)
            .filter(|made| Path::new(&made.path).exists())
        {
            return Ok(Some(made));
        }
        let Some((driver, slot)) = maker(context, group).await? else {
            return Ok(None);
        };
        let mut network = DriverNetwork {
            driver: driver.to_owned(),
            hostname: hostname.to_owned(),
            made: None,
        };
        self.save_record(context, alloc_id, &network).await;
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
        self.save_record(context, alloc_id, &network).await;
        Ok(Some(made.isolation()))
    }

    /// Has the driver take back what it made for an allocation of which nothing runs. May be repeated.
    pub(crate) async fn release(
        &self,
        context: &AgentContext,
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
        match context.drivers.named(&driver) {
            Some(slot) => {
                // The agent died while the driver was asked, or no longer waited for the answer: the driver names what
                // there is when it is asked again.
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
        // The store's thread tells the operator. A network that is given back twice is gone all the same.
        drop(context.store.submit(gone).await);
        Ok(())
    }

    async fn save_record(
        &self,
        context: &AgentContext,
        alloc_id: AllocId,
        network: &DriverNetwork,
    ) {
        self.locked().insert(alloc_id, network.clone());
        let write = Write::DriverNetwork(alloc_id, Some(Box::new(network.clone())));
        // The store's thread tells the operator; this agent knows it.
        drop(context.store.write(vec![write]).await);
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<AllocId, DriverNetwork>> {
        // A panic elsewhere leaves the map whole: each change of it is one call.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NetworkDescription {
    fn isolation(self) -> NetworkIsolation {
        let Self {
            path,
            labels,
            hostname,
            address,
        } = self;
        NetworkIsolation {
            mode: NetworkMode::Group,
            path,
            labels,
            hostname,
            address,
        }
    }
}

/// The driver among those of the group's tasks that must make their network.
async fn maker<'a>(
    context: &'a AgentContext,
    group: &'a TaskGroup,
) -> Result<Option<(&'a str, &'a DriverSlot)>, DriverNetworkError> {
    let mut maker: Option<(&str, &DriverSlot)> = None;
    for task in &group.tasks {
        let driver = task.driver.as_str();
        // The start of its task reports a driver that is not there.
        let Some(slot) = context.drivers.named(driver) else {
            continue;
        };
        if maker.is_some_and(|(known, _)| known == driver) || !must_make(slot, driver).await? {
            continue;
        }
        if let Some((one, _)) = maker {
            return Err(DriverNetworkError::TwoMakers {
                one: one.to_owned(),
                other: driver.to_owned(),
            });
        }
        maker = Some((driver, slot));
    }
    Ok(maker)
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
    let learned = slot.learned().await;
    let learned = learned.map_err(|error: TaskConfigError| failed(crate::task::chain(&error)))?;
    Ok(learned.capabilities.must_create_network)
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
