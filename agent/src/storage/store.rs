//! The node's state that survives the agent: `agent.redb` in the data directory.
//!
//! One thread writes. A transaction takes every waiting write, so that a hundred tasks that start together share one
//! `fsync`. Records are read once, when the store is opened. A database that cannot be read is set aside as
//! `agent.redb.corrupt-<n>`, and a new one is created. The agent then adopts running tasks by the names of their
//! cgroups. The node's id is also kept in a file of its own, because those names depend on it.

mod lock;
mod upgrade;
mod writer;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::Instant;

use muster_agent_core::alloc::AllocSnapshot;
use muster_agent_core::task::RemoteTask;
use muster_domain::alloc::{DesiredAlloc, Exit};
use muster_domain::id::{AllocId, LogIndex, NodeId};
use muster_domain::job::NetworkPolicy;
use muster_domain::node::NodeSecret;
use muster_domain::one_off::WorkEnd;
use muster_link::private;
use muster_wire::codec;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};

use crate::limits::{
    STORE_CACHE_BYTES, STORE_CLOSE_DEADLINE, STORE_CLOSE_INTERVAL, STORES_SET_ASIDE_MAX,
};
use crate::monitoring::conditions::Conditions;
use crate::storage::leftovers::Leftover;
use crate::tasks::drivers::network_record::DriverNetwork;

pub(crate) use lock::DataDirLock;
pub use lock::LockDataDirError;
pub(crate) use writer::{CONDITION, PendingWrite, Store, Write};

/// The version of tables and records. A database of an older version is converted ([`upgrade`]). A database of another
/// version is refused with an error that names the version.
pub(crate) const SCHEMA: u32 = 2;

const FILE: &str = "agent.redb";
const NODE_ID_FILE: &str = "node-id";
/// The file with the secret of the node.
const NODE_SECRET_FILE: &str = "node-secret";
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const DESIRED: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("desired");
const SNAPSHOTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("snapshots");
const TASKS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("tasks");
/// The remote tasks that agents know, by allocation. Only allocations with remote tasks are in it.
const REMOTE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("remote");
/// The resources that drivers and the kernel did not release, by allocation and the driver's name for the task.
const LEFTOVERS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("leftovers");
/// Networks that drivers made, by allocation.
const DRIVER_NETWORKS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("driver_networks");
/// Users that the agent assigned to tasks, by allocation.
const USERS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("users");
const META_SCHEMA: &str = "schema";
const META_SERVERS: &str = "servers";
const META_APIS: &str = "apis";
const META_CLUSTER_POLICY: &str = "cluster-policy";

/// The record of a task's newest start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskRecord {
    /// The number of this start.
    pub(crate) attempt: u32,
    pub(crate) driver: String,
    /// The driver's name for the start.
    pub(crate) task_id: String,
    /// The id of the start's cgroup in the v2 hierarchy.
    pub(crate) cgroup_id: u64,
    /// The boot in which the task was started.
    pub(crate) boot_id: String,
    pub(crate) handle: Vec<u8>,
    /// The end of the start, once it is known.
    pub(crate) ended: Option<Ended>,
}

/// The record of the end of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// The exit of the task's process.
    pub(crate) exit: Exit,
    /// Details of the end, as text.
    pub(crate) detail: String,
    /// The end of a one-off task's work.
    pub(crate) end: Option<Box<WorkEnd>>,
}

/// The content of the store.
#[derive(Debug, Default)]
pub(crate) struct StoreContents {
    pub(crate) allocs: BTreeMap<AllocId, (DesiredAlloc, Option<AllocSnapshot>)>,
    /// Records of tasks by allocation and name.
    pub(crate) tasks: BTreeMap<(AllocId, String), TaskRecord>,
    /// The resources that drivers and the kernel did not release, by allocation and the driver's name for the task.
    pub(crate) leftovers: BTreeMap<AllocId, BTreeMap<String, Leftover>>,
    /// Remote tasks of allocations that have some, in the order of the group.
    pub(crate) remote: BTreeMap<AllocId, Vec<RemoteTask>>,
    /// Networks that drivers made for allocations.
    pub(crate) driver_networks: BTreeMap<AllocId, DriverNetwork>,
    /// Users that the agent assigned to tasks, by allocation and task.
    pub(crate) users: BTreeMap<AllocId, BTreeMap<String, u32>>,
    /// The last known addresses of the control plane's servers.
    pub(crate) servers: Vec<SocketAddr>,
    /// The last known addresses at which the servers listen for clients.
    pub(crate) apis: Vec<SocketAddr>,
    /// The cluster's network policy, and the index of the log entry that wrote it.
    pub(crate) cluster_policy: (LogIndex, NetworkPolicy),
    /// Whether there was no database.
    pub(crate) fresh: bool,
    /// Whether there was no database, although an agent had run on the data directory.
    pub(crate) lost: bool,
}

/// The reason why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    /// The store was written by a newer Muster.
    #[error(
        "{}: the data has format {found}, this version reads up to {SCHEMA}; start a newer muster, or give another --data-dir",
        path.display()
    )]
    Newer { path: PathBuf, found: u32 },
    /// The store was written by an older Muster, whose format this version does not read.
    #[error(
        "{}: the data has format {found}, this version reads formats {} to {SCHEMA}; stop the node's tasks with the older muster that wrote it, or give another --data-dir",
        path.display(),
        upgrade::OLDEST_FORMAT
    )]
    Older { path: PathBuf, found: u32 },
    /// The data directory cannot be used.
    #[error("{}: the data directory cannot be used; check its owner and free space", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// Another process has the store open, although no agent holds the data directory.
    #[error("{}: another process has the database open; find it with `fuser {}`", path.display(), path.display())]
    Open { path: PathBuf },
    /// `node-id` is not an id.
    #[error("{}: not a node id; restore the file, or remove it to become a new node", path.display())]
    NodeId {
        path: PathBuf,
        /// The fault in the id.
        #[source]
        source: muster_domain::id::ParseIdError,
    },
    /// `node-secret` is not a secret.
    #[error("{}: not 64 hexadecimal digits; restore the file, or remove it and node-id to become a new node", path.display())]
    NodeSecret { path: PathBuf },
}

enum ReadError {
    Newer(u32),
    Older(u32),
    /// Another handle has the database open, for example an agent of this process that is being dropped.
    Open,
    /// The file may be intact, but cannot be accessed.
    Io(std::io::Error),
    /// The file is not a database of Muster.
    Unreadable(String),
}

impl<E: Into<redb::Error>> From<E> for ReadError {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::DatabaseAlreadyOpen => Self::Open,
            // The kernel's refusal (EIO, EMFILE, ENOSPC) does not mean that the file's content is damaged.
            redb::Error::Io(error) if error.raw_os_error().is_some() => Self::Io(error),
            other => Self::Unreadable(other.to_string()),
        }
    }
}

/// Returns the node's id: the one in `node-id`, or `fresh`, which is then stored.
pub(crate) fn node_id(data_dir: &Path, fresh: NodeId) -> Result<NodeId, OpenStoreError> {
    let path = data_dir.join(NODE_ID_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => text
            .trim()
            .parse()
            .map_err(|source| OpenStoreError::NodeId { path, source }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            write_whole(data_dir, NODE_ID_FILE, &format!("{fresh}\n"))
                .map_err(|source| OpenStoreError::Io { path, source })?;
            Ok(fresh)
        }
        Err(source) => Err(OpenStoreError::Io { path, source }),
    }
}

/// Returns the secret with which the node registers: the one in the file `node-secret`, or `fresh`, which is then
/// stored.
pub(crate) fn node_secret(
    data_dir: &Path,
    fresh: NodeSecret,
) -> Result<NodeSecret, OpenStoreError> {
    let path = data_dir.join(NODE_SECRET_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => parse_secret(text.trim()).ok_or(OpenStoreError::NodeSecret { path }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut text = String::new();
            for byte in fresh.0 {
                write!(text, "{byte:02x}").expect("a string takes any text");
            }
            text.push('\n');
            write_whole(data_dir, NODE_SECRET_FILE, &text)
                .map_err(|source| OpenStoreError::Io { path, source })?;
            Ok(fresh)
        }
        Err(source) => Err(OpenStoreError::Io { path, source }),
    }
}

/// Reads 64 hexadecimal digits.
fn parse_secret(text: &str) -> Option<NodeSecret> {
    let mut secret = [0; 32];
    if text.len() != 2 * secret.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(NodeSecret(secret))
}

/// Writes a temporary file and renames it to `name`, so that a crash leaves no partial file.
fn write_whole(data_dir: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let beside = data_dir.join(format!("{name}.new"));
    let file = private::create(&beside)?;
    std::io::Write::write_all(&mut &file, text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, data_dir.join(name))
}

/// The id that `data_dir` belongs to, if an agent ever ran on it.
pub(crate) fn known_node_id(data_dir: &Path) -> Option<NodeId> {
    std::fs::read_to_string(data_dir.join(NODE_ID_FILE))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Opens the store in `data_dir` and reads all of it.
pub(crate) fn open(
    data_dir: &Path,
    conditions: Conditions,
) -> Result<(Store, StoreContents), OpenStoreError> {
    let path = data_dir.join(FILE);
    let existed = path.exists();
    match open_once_closed(&path, existed) {
        Ok((database, mut loaded)) => {
            loaded.fresh = !existed;
            Ok((Store::start(path, database, conditions), loaded))
        }
        Err(ReadError::Newer(found)) => Err(OpenStoreError::Newer { path, found }),
        Err(ReadError::Older(found)) => Err(OpenStoreError::Older { path, found }),
        Err(ReadError::Open) => Err(OpenStoreError::Open { path }),
        Err(ReadError::Io(source)) => Err(OpenStoreError::Io { path, source }),
        Err(ReadError::Unreadable(reason)) => {
            let aside = set_aside(&path)?;
            tracing::error!(
                reason, aside = %aside.display(),
                "the agent's store cannot be read and was set aside; running tasks are adopted by cgroup"
            );
            let (database, loaded) = open_existing(&path, false).map_err(|error| {
                let source = match error {
                    ReadError::Io(source) => source,
                    ReadError::Unreadable(reason) => std::io::Error::other(reason),
                    ReadError::Newer(_) | ReadError::Older(_) | ReadError::Open => {
                        std::io::ErrorKind::ResourceBusy.into()
                    }
                };
                OpenStoreError::Io {
                    path: path.clone(),
                    source,
                }
            })?;
            Ok((
                Store::start(path, database, conditions),
                StoreContents {
                    fresh: true,
                    ..loaded
                },
            ))
        }
    }
}

fn open_once_closed(path: &Path, existed: bool) -> Result<(Database, StoreContents), ReadError> {
    let deadline = Instant::now() + STORE_CLOSE_DEADLINE;
    loop {
        // The database's own code may panic on a file that is not a database.
        let opened = std::panic::catch_unwind(AssertUnwindSafe(|| open_existing(path, existed)));
        match opened {
            Ok(Err(ReadError::Open)) if Instant::now() < deadline => {
                std::thread::sleep(STORE_CLOSE_INTERVAL);
            }
            Ok(result) => return result,
            Err(_panic) => return Err(ReadError::Unreadable("the database is damaged".into())),
        }
    }
}

/// Opens the database again that this agent had open before an I/O error. It is never set aside, because its content is
/// needed.
fn open_again(path: &Path) -> Result<Database, Box<dyn std::error::Error>> {
    let opened = std::panic::catch_unwind(|| {
        let mut builder = Database::builder();
        builder.set_cache_size(STORE_CACHE_BYTES);
        builder.open(path)
    });
    match opened {
        Ok(opened) => Ok(opened?),
        Err(_panic) => Err("the database is damaged".into()),
    }
}

fn open_existing(path: &Path, existed: bool) -> Result<(Database, StoreContents), ReadError> {
    let mut builder = Database::builder();
    builder.set_cache_size(STORE_CACHE_BYTES);
    // The file contains jobs, and with them the secrets in their environment.
    let database = if existed {
        private::restrict_at(path).map_err(ReadError::Io)?;
        builder.open(path)?
    } else {
        private::create(path).map_err(ReadError::Io)?;
        builder.create(path)?
    };
    if existed {
        convert(&database)?;
    } else {
        let transaction = database.begin_write()?;
        transaction
            .open_table(META)?
            .insert(META_SCHEMA, SCHEMA.to_le_bytes().as_slice())?;
        transaction.open_table(DESIRED)?;
        transaction.open_table(SNAPSHOTS)?;
        transaction.open_table(TASKS)?;
        transaction.open_table(LEFTOVERS)?;
        transaction.open_table(REMOTE)?;
        transaction.open_table(DRIVER_NETWORKS)?;
        transaction.open_table(USERS)?;
        transaction.commit()?;
    }
    let loaded = load(&database)?;
    Ok((database, loaded))
}

/// Converts a database of an older format to this one; refuses other formats.
fn convert(database: &Database) -> Result<(), ReadError> {
    let meta = database.begin_read()?.open_table(META)?;
    let bytes = meta.get(META_SCHEMA)?.map(|bytes| bytes.value().to_vec());
    let found = bytes
        .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok())
        .map(u32::from_le_bytes)
        .ok_or_else(|| ReadError::Unreadable("it has no format number".into()))?;
    match found {
        SCHEMA => Ok(()),
        1 => upgrade::from_1(database),
        newer if newer > SCHEMA => Err(ReadError::Newer(newer)),
        older => Err(ReadError::Older(older)),
    }
}

/// Reads a database of this format.
fn load(database: &Database) -> Result<StoreContents, ReadError> {
    let transaction = database.begin_read()?;
    let mut loaded = StoreContents::default();
    if let Some(servers) = transaction.open_table(META)?.get(META_SERVERS)? {
        loaded.servers = decoded(servers.value())?;
    }
    if let Some(apis) = transaction.open_table(META)?.get(META_APIS)? {
        loaded.apis = decoded(apis.value())?;
    }
    if let Some(policy) = transaction.open_table(META)?.get(META_CLUSTER_POLICY)? {
        loaded.cluster_policy = decoded(policy.value())?;
    }
    let snapshots = transaction.open_table(SNAPSHOTS)?;
    for row in transaction.open_table(DESIRED)?.iter()? {
        let (key, value) = row?;
        let desired: DesiredAlloc = decoded(value.value())?;
        let snapshot = match snapshots.get(key.value())? {
            Some(bytes) => Some(decoded(bytes.value())?),
            None => None,
        };
        loaded.allocs.insert(desired.alloc_id, (desired, snapshot));
    }
    for row in transaction.open_table(TASKS)?.iter()? {
        let (key, value) = row?;
        loaded
            .tasks
            .insert(parse_task_key(key.value())?, decoded(value.value())?);
    }
    for row in transaction.open_table(LEFTOVERS)?.iter()? {
        let (key, value) = row?;
        let (alloc_id, task_id) = parse_task_key(key.value())?;
        let of_alloc = loaded.leftovers.entry(alloc_id).or_default();
        of_alloc.insert(task_id, decoded(value.value())?);
    }
    loaded.remote = by_alloc(&transaction, REMOTE)?;
    loaded.driver_networks = by_alloc(&transaction, DRIVER_NETWORKS)?;
    loaded.users = by_alloc(&transaction, USERS)?;
    Ok(loaded)
}

/// Reads the rows of a table that is keyed by allocation.
fn by_alloc<T: serde::de::DeserializeOwned>(
    transaction: &redb::ReadTransaction,
    table: TableDefinition<'_, &[u8], &[u8]>,
) -> Result<BTreeMap<AllocId, T>, ReadError> {
    let mut rows = BTreeMap::new();
    for row in transaction.open_table(table)?.iter()? {
        let (key, value) = row?;
        let (alloc_id, _) = parse_task_key(key.value())?;
        rows.insert(alloc_id, decoded(value.value())?);
    }
    Ok(rows)
}

fn decoded<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, ReadError> {
    codec::decode(bytes).map_err(|error| ReadError::Unreadable(error.to_string()))
}

fn encoded(record: &impl Serialize) -> Result<Vec<u8>, ReadError> {
    codec::encode(record).map_err(|error| ReadError::Unreadable(error.to_string()))
}

fn task_key(alloc_id: AllocId, task: &str) -> Vec<u8> {
    [alloc_id.0.as_slice(), task.as_bytes()].concat()
}

fn parse_task_key(key: &[u8]) -> Result<(AllocId, String), ReadError> {
    let malformed = || ReadError::Unreadable("the key of a task is malformed".into());
    let (alloc_id, name) = key.split_first_chunk().ok_or_else(malformed)?;
    let name = str::from_utf8(name).map_err(|_error| malformed())?;
    Ok((AllocId(*alloc_id), name.to_owned()))
}

/// Renames the database to the first free name.
fn set_aside(path: &Path) -> Result<PathBuf, OpenStoreError> {
    let name = |number: u32| path.with_file_name(format!("{FILE}.corrupt-{number}"));
    let aside = (1..STORES_SET_ASIDE_MAX)
        .map(name)
        .find(|aside| !aside.exists())
        .unwrap_or_else(|| name(STORES_SET_ASIDE_MAX));
    std::fs::rename(path, &aside).map_err(|source| OpenStoreError::Io {
        path: aside.clone(),
        source,
    })?;
    Ok(aside)
}

#[cfg(test)]
mod tests;
