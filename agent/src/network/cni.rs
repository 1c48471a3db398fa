//! Networks that CNI plugins set up, for groups with mode `cni/NAME`.
//!
//! Each allocation has a network namespace with a path below the data directory. The plugins of the network's
//! configuration run there one after the other with ADD. They run in reverse order with DEL at the end of the
//! allocation, and after an ADD that failed. Each call has a deadline, and its output has a bound.
//!
//! | file | content |
//! |---|---|
//! | `config.rs` | configurations in `cni_config_dir` |
//! | `exec.rs` | runs one plugin |
//! | `fingerprint.rs` | attributes of the node |
//! | `namespace.rs` | network namespaces with a path |
//! | `record.rs` | records of networks on disk |
//! | `request.rs` | arguments and configurations for plugins |
//! | `result.rs` | results of plugins |

mod config;
mod exec;
mod fingerprint;
mod namespace;
mod record;
mod request;
mod result;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::AllocId;
use muster_domain::job::{CniNetwork, DnsConfig, TaskGroup};
use tokio::sync::OnceCell;

use muster_domain::error_chain::chain;
use tokio_util::sync::CancellationToken;

use crate::limits::{CNI_PLUGIN_DEADLINE, CNI_REMOVALS_MAX};
use crate::network::alloc_network::AllocNetwork;
use crate::network::names::{clean_name, host_name};
use crate::network::namespace::namespace_at;
use crate::network::setup::NetworkSetup;
use crate::tasks::drivers::network_error::DriverNetworkError;
use crate::tasks::task_env::TaskEnv;
use config::{NetworkList, WITH_CHECK, WITH_GC};
use exec::{PluginError, PluginFault, PluginInvocation};
use record::{CniRecord, RecordDir};
use request::{Command, Request};
use result::AddResult;

/// The directories of CNI plugins and configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniSettings {
    /// Directories of plugins, in the order in which they are searched.
    pub path: Vec<PathBuf>,
    /// Directory of network configurations.
    pub config_dir: PathBuf,
    /// Time for one call of a plugin.
    pub plugin_deadline: Duration,
}

impl Default for CniSettings {
    /// Nomad's defaults.
    fn default() -> Self {
        Self {
            path: vec!["/opt/cni/bin".into(), "/usr/libexec/cni".into()],
            config_dir: "/opt/cni/config".into(),
            plugin_deadline: CNI_PLUGIN_DEADLINE,
        }
    }
}

/// Why an allocation has no CNI network.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CniError {
    #[error("unknown CNI network `{name}`: put its configuration into {}{faults}", dir.display())]
    Unknown {
        name: String,
        dir: PathBuf,
        /// Files that cannot be used, with a separator in front.
        faults: String,
    },
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error(
        "the CNI network `{name}` gave the allocation no address: add a plugin with `ipam` to its configuration"
    )]
    NoAddress { name: String },
    #[error("the allocation's network namespace cannot be used: {action} failed: {source}")]
    Namespace {
        action: &'static str,
        source: io::Error,
    },
    #[error("the driver's network namespace cannot be used")]
    DriverNamespace(#[from] crate::network::bridge::error::BridgeError),
    #[error(transparent)]
    Driver(#[from] DriverNetworkError),
    #[error("the record of the allocation's CNI network cannot be written: {0}")]
    Record(io::Error),
    #[error("the files of names of the allocation cannot be written: {0}")]
    Names(io::Error),
}

impl CniError {
    fn namespace(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Namespace { action, source }
    }
}

/// The CNI network that the group asks for.
pub(crate) fn wanted(group: &TaskGroup) -> Option<&CniNetwork> {
    group.network.as_ref()?.mode.cni()
}

type NetworkCell = Arc<OnceCell<Arc<AllocNetwork>>>;

/// CNI networks of the node's allocations.
#[derive(Debug)]
pub(crate) struct CniNetworks {
    settings: CniSettings,
    dir: RecordDir,
    networks: Mutex<BTreeMap<AllocId, NetworkCell>>,
    /// The records on disk.
    records: Mutex<BTreeMap<AllocId, CniRecord>>,
    /// A lock for each network: its plugins run for one allocation at a time, because they race for bridges and
    /// chains.
    network_locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    fingerprint: fingerprint::Fingerprint,
}

impl CniNetworks {
    /// Loads the networks that earlier agents recorded below `data_dir`.
    pub(crate) fn open(data_dir: &Path, settings: CniSettings) -> Self {
        let dir = RecordDir::new(data_dir);
        Self {
            records: Mutex::new(dir.read_all()),
            fingerprint: fingerprint::Fingerprint::default(),
            networks: Mutex::default(),
            network_locks: Mutex::default(),
            settings,
            dir,
        }
    }

    /// Whether the allocation has, or may have, a CNI network.
    pub(crate) fn has(&self, alloc_id: AllocId) -> bool {
        locked(&self.records).contains_key(&alloc_id)
    }

    /// The current network of an allocation.
    pub(crate) fn of(&self, alloc_id: AllocId) -> Option<Arc<AllocNetwork>> {
        locked(&self.networks).get(&alloc_id)?.get().map(Arc::clone)
    }

    /// Returns the network of an allocation whose group asks for one, and sets it up if necessary. All tasks of the
    /// allocation share it.
    pub(crate) async fn ensure(
        &self,
        setup: NetworkSetup<'_>,
        desired: &DesiredAlloc,
        stopped: &CancellationToken,
    ) -> Result<Option<Arc<AllocNetwork>>, CniError> {
        let Some((group, cni)) = desired.group().and_then(|it| Some((it, wanted(it)?))) else {
            return Ok(None);
        };
        let cell = self.cell(desired.alloc_id);
        let network = cell
            .get_or_try_init(|| self.set_up(setup, desired, (group, cni), stopped))
            .await?;
        Ok(Some(Arc::clone(network)))
    }

    async fn set_up(
        &self,
        setup: NetworkSetup<'_>,
        desired: &DesiredAlloc,
        (group, cni): (&TaskGroup, &CniNetwork),
        stopped: &CancellationToken,
    ) -> Result<Arc<AllocNetwork>, CniError> {
        let alloc_id = desired.alloc_id;
        // An earlier start, or an earlier agent, may have left a half-made network.
        self.tear_down(alloc_id).await?;
        let (list, text) = self.find(&cni.name)?;
        let env = TaskEnv::of_alloc(desired, setup.spec);
        let host = host_name(desired, group, &env);
        let networks = setup.driver_networks;
        let by_driver = networks.ensure(setup, desired, group, &host, stopped);
        let by_driver = by_driver.await?;

        let args = request::args(desired, group, cni, &env);
        let runtime = request::runtime(desired, group, &setup.spec.address, &env);
        let mut record = CniRecord::new(text, args, runtime);
        record.path.clone_from(&self.settings.path);
        record.driver_namespace = by_driver.as_ref().map(|made| made.path.clone());
        self.dir.prepare().map_err(CniError::Record)?;
        let (namespace, result) = self.make_and_add(alloc_id, &list, &mut record).await?;
        let opened = Self::opened(setup, desired, group, namespace, &result);
        match opened {
            Ok(mut network) => {
                network.made_by_driver(by_driver);
                Ok(Arc::new(network))
            }
            Err(error) => {
                self.undo(alloc_id).await;
                Err(error)
            }
        }
    }

    /// Makes the namespace and runs the plugins in it, or leaves no part of it.
    async fn make_and_add(
        &self,
        alloc_id: AllocId,
        list: &NetworkList,
        record: &mut CniRecord,
    ) -> Result<(OwnedFd, AddResult), CniError> {
        let added = async {
            self.keep(alloc_id, record).await?;
            let namespace = self.namespace(alloc_id, record).await?;
            let result = self.add(alloc_id, list, record).await?;
            record.result = Some(result.value.clone());
            self.keep(alloc_id, record).await?;
            Ok((namespace, result))
        };
        let added = added.await;
        if added.is_err() {
            self.undo(alloc_id).await;
        }
        added
    }

    async fn undo(&self, alloc_id: AllocId) {
        if let Err(left) = self.tear_down(alloc_id).await {
            warn_network_left(alloc_id, &left);
        }
    }

    /// The allocation's namespace, with its loopback device up.
    async fn namespace(&self, alloc_id: AllocId, record: &CniRecord) -> Result<OwnedFd, CniError> {
        if let Some(path) = &record.driver_namespace {
            let namespace = namespace_at(path)?;
            let opened = blocking(move || {
                namespace::set_loopback_up(&namespace)?;
                Ok(namespace)
            });
            return opened
                .await
                .map_err(CniError::namespace("waking its loopback device"));
        }
        let path = self.dir.namespace(alloc_id);
        let made = blocking(move || namespace::make(&path)).await;
        made.map_err(CniError::namespace("making it"))
    }

    /// Runs the plugins with ADD.
    async fn add(
        &self,
        alloc_id: AllocId,
        list: &NetworkList,
        record: &CniRecord,
    ) -> Result<AddResult, CniError> {
        let request = self.request(alloc_id, list, record, Command::Add);
        let network_lock = self.network_lock(&list.name);
        let _guard = network_lock.lock().await;
        let mut result: Option<AddResult> = None;
        for plugin in &list.plugins {
            let before = result.as_ref().map(|result| &result.value);
            let printed = self.call(&request, plugin, before).await?;
            let parsed = AddResult::parse(&printed)
                .map_err(|reason| PluginError::invalid_output(&plugin.kind, reason, &printed))?;
            result = Some(parsed);
            if let Some(record) = locked(&self.records).get_mut(&alloc_id) {
                record.added += 1;
            }
        }
        let result = result.filter(|result| result.address().is_some());
        result.ok_or_else(|| CniError::NoAddress {
            name: list.name.clone(),
        })
    }

    /// The network of an allocation as its tasks see it.
    fn opened(
        setup: NetworkSetup<'_>,
        desired: &DesiredAlloc,
        group: &TaskGroup,
        namespace: OwnedFd,
        result: &AddResult,
    ) -> Result<AllocNetwork, CniError> {
        let address = result.address().ok_or_else(|| CniError::NoAddress {
            name: wanted(group).map_or_else(String::new, |cni| cni.name.clone()),
        })?;
        let of_plugins = result.dns();
        let dns: Option<&DnsConfig> = group
            .network
            .as_ref()
            .and_then(|network| network.dns.as_ref())
            .or(of_plugins.as_ref());
        let env = TaskEnv::of_alloc(desired, setup.spec);
        let host = host_name(desired, group, &env);
        let group_name = clean_name(&group.name);
        let names = [&*host, &group_name];
        let dir = setup.data.alloc(desired.alloc_id).names();
        let files = crate::network::bridge::files::write(&dir, address, &names, dns, &env)
            .map_err(CniError::Names)?;
        Ok(AllocNetwork::behind_plugins(
            address, files, host, namespace,
        ))
    }

    /// Takes over the network that an earlier agent set up for an allocation, and has its plugins check it.
    pub(crate) async fn adopt(&self, setup: NetworkSetup<'_>, desired: &DesiredAlloc) {
        let Some(group) = desired.group().filter(|group| wanted(group).is_some()) else {
            return;
        };
        let alloc_id = desired.alloc_id;
        let Some(record) = locked(&self.records).get(&alloc_id).cloned() else {
            return;
        };
        // The next start sets up a network without a result again.
        let Some(value) = record.result.clone() else {
            return;
        };
        let adopted = async {
            let result = AddResult::parse(value.to_string().as_bytes()).map_err(io::Error::other);
            let result = result.map_err(CniError::Record)?;
            let namespace = self.existing(alloc_id, &record)?;
            let Some(namespace) = namespace else {
                return Ok(None);
            };
            let mut network = Self::opened(setup, desired, group, namespace, &result)?;
            network.made_by_driver(setup.driver_networks.of(alloc_id));
            Ok::<_, CniError>(Some(network))
        };
        match adopted.await {
            Ok(Some(network)) => {
                let cell = self.cell(alloc_id);
                drop(cell.set(Arc::new(network)));
            }
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%alloc_id, error = chain(&error),
                    "the CNI network of a running allocation is not found: it is set up anew with its next start");
                return;
            }
        }
        // The tasks keep their network. Some versions of `portmap` refuse every network without IPv6.
        if let Err(error) = self.check(alloc_id, &record).await {
            tracing::warn!(%alloc_id, error = chain(&error),
                "CHECK of the CNI network of a running allocation fails; if it is not reached, restart the allocation");
        }
    }

    /// The namespace of a record, if it is there.
    fn existing(&self, alloc_id: AllocId, record: &CniRecord) -> Result<Option<OwnedFd>, CniError> {
        let path = match &record.driver_namespace {
            Some(path) => PathBuf::from(path),
            None => self.dir.namespace(alloc_id),
        };
        namespace::open(&path).map_err(CniError::namespace("opening it"))
    }

    /// Runs the plugins with CHECK, which older configurations do not have.
    async fn check(&self, alloc_id: AllocId, record: &CniRecord) -> Result<(), CniError> {
        let Some(list) = Self::list(alloc_id, record) else {
            return Ok(());
        };
        if list.version < WITH_CHECK || list.disable_check {
            return Ok(());
        }
        let request = self.request(alloc_id, &list, record, Command::Check);
        let network_lock = self.network_lock(&list.name);
        let _guard = network_lock.lock().await;
        for plugin in &list.plugins {
            self.call(&request, plugin, record.result.as_ref()).await?;
        }
        Ok(())
    }

    /// Removes the network of an allocation that has no running task. The next call removes any remains.
    pub(crate) async fn release(&self, alloc_id: AllocId) -> Result<(), CniError> {
        locked(&self.networks).remove(&alloc_id);
        self.tear_down(alloc_id).await
    }

    /// Runs the plugins with DEL in reverse order, and removes the namespace and the record. May be repeated.
    ///
    /// The first plugin that fails ends it: an address must not be free while ports still lead to it.
    async fn tear_down(&self, alloc_id: AllocId) -> Result<(), CniError> {
        let Some(record) = locked(&self.records).get(&alloc_id).cloned() else {
            return Ok(());
        };
        if let Some(list) = Self::list(alloc_id, &record) {
            let request = self.request(alloc_id, &list, &record, Command::Del);
            let before = record.result.as_ref();
            let before = before.filter(|_| list.version >= WITH_CHECK);
            let network_lock = self.network_lock(&list.name);
            let _guard = network_lock.lock().await;
            for (at, plugin) in list.plugins.iter().enumerate().rev() {
                let Err(error) = self.call(&request, plugin, before).await else {
                    continue;
                };
                // A plugin whose ADD is not known to be complete may have nothing to remove.
                let may_fail = record.result.is_none() && at >= record.added;
                let is_missing = matches!(error.reason, PluginFault::Missing { .. });
                if !may_fail && !is_missing && !self.count_failed_removal(alloc_id) {
                    return Err(error.into());
                }
                tracing::warn!(%alloc_id, error = chain(&error),
                    "if this plugin set something up for the allocation, it stays where it is");
            }
        }
        let (dir, path) = (self.dir.clone(), self.dir.namespace(alloc_id));
        let removed = blocking(move || {
            namespace::remove(&path)?;
            dir.remove(alloc_id)
        });
        removed.await.map_err(CniError::namespace("removing it"))?;
        locked(&self.records).remove(&alloc_id);
        Ok(())
    }

    /// Counts a failed removal. Returns whether the limit is reached.
    fn count_failed_removal(&self, alloc_id: AllocId) -> bool {
        let mut records = locked(&self.records);
        records.get_mut(&alloc_id).is_none_or(|record| {
            record.failures += 1;
            record.failures >= CNI_REMOVALS_MAX
        })
    }

    /// Removes the networks that killed agents left for `orphans`.
    pub(crate) async fn recover(&self, orphans: Vec<AllocId>) {
        for alloc_id in orphans {
            if let Err(error) = self.tear_down(alloc_id).await {
                warn_network_left(alloc_id, &error);
            }
        }
        let dir = self.dir.clone();
        let namespaces = blocking(move || Ok(dir.namespaces())).await;
        // The list is compared after the files were listed, because a record is written before its namespace is
        // made.
        let mut namespaces = namespaces.unwrap_or_default();
        namespaces.retain(|alloc_id| !self.has(*alloc_id));
        let dir = self.dir.clone();
        let swept = blocking(move || {
            let mut paths = namespaces.into_iter().map(|it| dir.namespace(it));
            paths.try_for_each(|path| namespace::remove(&path))
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "a network namespace that no allocation has is left");
        }
    }

    /// Allocations with records that are not among the `known`.
    pub(crate) fn orphans(&self, known: &BTreeSet<AllocId>) -> Vec<AllocId> {
        let records = locked(&self.records);
        let ids = records.keys().filter(|alloc_id| !known.contains(alloc_id));
        ids.copied().collect()
    }

    /// Runs the plugins with GC: they remove resources that belong to no allocation of this node.
    pub(crate) async fn collect(&self) {
        for (list, text) in config::read_dir(&self.settings.config_dir).networks {
            if list.version < WITH_GC || list.disable_gc {
                continue;
            }
            let network_lock = self.network_lock(&list.name);
            let _guard = network_lock.lock().await;
            let mut valid = Vec::new();
            for (alloc_id, record) in &*locked(&self.records) {
                let of = NetworkList::parse(&record.config);
                if of.is_ok_and(|of| of.name == list.name) {
                    valid.push(*alloc_id);
                }
            }
            let record = CniRecord::new(text, String::new(), BTreeMap::new());
            let request = Request::collect(&list, &record, &self.settings.path, &valid);
            for plugin in &list.plugins {
                if let Err(error) = self.call(&request, plugin, None).await {
                    tracing::warn!(
                        network = list.name,
                        error = chain(&error),
                        "a CNI plugin did not collect its garbage"
                    );
                }
            }
        }
    }

    /// Runs one plugin.
    async fn call(
        &self,
        request: &Request<'_>,
        plugin: &config::Plugin,
        previous: Option<&serde_json::Value>,
    ) -> Result<Vec<u8>, PluginError> {
        let program = request::program(&self.settings.path, &plugin.kind);
        let program = program.ok_or_else(|| {
            let dirs = request::joined(&self.settings.path);
            PluginError::new(&plugin.kind, PluginFault::Missing { dirs })
        })?;
        let input = request.input(plugin, previous);
        let call = PluginInvocation {
            plugin: &plugin.kind,
            program: &program,
            env: request.env(),
            input: input.as_bytes(),
            deadline: self.settings.plugin_deadline,
        };
        call.run().await
    }

    fn request<'a>(
        &self,
        alloc_id: AllocId,
        list: &'a NetworkList,
        record: &'a CniRecord,
        command: Command,
    ) -> Request<'a> {
        let namespace = match self.existing(alloc_id, record) {
            // The namespace is gone after a reboot. Plugins then remove their resources elsewhere.
            Ok(None) | Err(_) if command == Command::Del => String::new(),
            _ => match &record.driver_namespace {
                Some(path) => path.clone(),
                None => self.dir.namespace(alloc_id).display().to_string(),
            },
        };
        Request::new(
            command,
            list,
            record,
            alloc_id,
            namespace,
            &self.settings.path,
        )
    }

    /// The configuration with which the plugins ran.
    fn list(alloc_id: AllocId, record: &CniRecord) -> Option<NetworkList> {
        let list = NetworkList::parse(&record.config);
        let log_unreadable = |reason: &String| {
            tracing::error!(%alloc_id, reason,
                "the recorded CNI configuration cannot be read: its plugins are not run");
        };
        list.inspect_err(log_unreadable).ok()
    }

    fn find(&self, name: &str) -> Result<(NetworkList, String), CniError> {
        let config::NetworkDir { networks, faults } = config::read_dir(&self.settings.config_dir);
        let mut networks = networks.into_iter();
        networks.find(|(list, _)| list.name == name).ok_or_else(|| {
            let faults = faults
                .iter()
                .map(|(path, reason)| format!("; {}: {reason}", path.display()));
            CniError::Unknown {
                name: name.to_owned(),
                dir: self.settings.config_dir.clone(),
                faults: faults.collect(),
            }
        })
    }

    async fn keep(&self, alloc_id: AllocId, record: &CniRecord) -> Result<(), CniError> {
        locked(&self.records).insert(alloc_id, record.clone());
        let (dir, record) = (self.dir.clone(), record.clone());
        let written = blocking(move || dir.write(alloc_id, &record)).await;
        written.map_err(CniError::Record)
    }

    fn cell(&self, alloc_id: AllocId) -> NetworkCell {
        Arc::clone(locked(&self.networks).entry(alloc_id).or_default())
    }

    fn network_lock(&self, network: &str) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(
            locked(&self.network_locks)
                .entry(network.to_owned())
                .or_default(),
        )
    }

    /// Attributes of the node: versions of plugins, and networks.
    pub(crate) async fn attributes(&self) -> BTreeMap<String, String> {
        self.fingerprint.attributes(&self.settings).await
    }
}

/// Removes the CNI networks of a node whose agent does not run. Returns their number.
pub(crate) async fn undo(data_dir: &Path) -> Result<usize, CniError> {
    let mut networks = CniNetworks::open(data_dir, CniSettings::default());
    let records = locked(&networks.records).clone();
    for (alloc_id, record) in &records {
        networks.settings.path.clone_from(&record.path);
        networks.tear_down(*alloc_id).await?;
    }
    networks.recover(Vec::new()).await;
    Ok(records.len())
}

fn warn_network_left(alloc_id: AllocId, error: &CniError) {
    crate::network::bridge::warn_network_left(alloc_id, &chain(error));
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let worked = tokio::task::spawn_blocking(work).await;
    worked.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves the map whole: each change of it is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
