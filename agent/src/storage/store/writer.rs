//! The thread that writes the store, many records per transaction.
//!
//! After an I/O error a database refuses every later write, so the thread closes it and opens it again. Failed writes
//! are kept, at most one for each record, until one transaction takes them all. Meanwhile the node has the condition
//! [`CONDITION`] and starts no task.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use muster_agent_core::alloc::AllocSnapshot;
use muster_agent_core::task::RemoteTask;
use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::{AllocId, LogIndex};
use muster_domain::job::NetworkPolicy;
use muster_wire::codec;
use redb::{Database, ReadableTable as _};
use tokio::sync::{mpsc, oneshot};

use super::{
    DESIRED, DRIVER_NETWORKS, LEFTOVERS, META, META_APIS, META_CLUSTER_POLICY, META_SERVERS,
    REMOTE, SNAPSHOTS, TASKS, TaskRecord, USERS, task_key,
};
use crate::limits::{
    STORE_GATHER, STORE_LOOK_INTERVAL, STORE_QUEUE_MAX, STORE_REOPEN_MAX, STORE_REOPEN_MIN,
};
use crate::monitoring::conditions::Conditions;
use crate::storage::leftovers::Leftover;
use crate::tasks::drivers::network_record::DriverNetwork;

/// The node's condition while the store cannot be written.
pub(crate) const CONDITION: &str = "store";

/// One change of the store.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    /// The control plane's desired state of an allocation.
    Desired(Box<DesiredAlloc>),
    /// The state of an allocation's runner.
    Snapshot(AllocId, Box<AllocSnapshot>),
    /// The allocation's remote tasks; an empty list removes the record.
    Remote(AllocId, Vec<RemoteTask>),
    /// A start of a task.
    Task(AllocId, String, Box<TaskRecord>),
    /// The resources of a task that its driver or the kernel did not release.
    Leftover(AllocId, Box<Leftover>),
    /// The resources of the start with this driver's name were released.
    LeftoverGone(AllocId, String),
    /// The network that a driver makes, or made, for an allocation; `None` if the driver has removed it.
    DriverNetwork(AllocId, Option<Box<DriverNetwork>>),
    /// The users that the agent assigned to the allocation's tasks, by task.
    Users(AllocId, BTreeMap<String, u32>),
    /// The addresses of the control plane's servers.
    Servers(Vec<SocketAddr>),
    /// The addresses at which the servers listen for clients.
    Apis(Vec<SocketAddr>),
    /// The cluster's network policy, and the index of the log entry that wrote it.
    ClusterPolicy(Box<(LogIndex, NetworkPolicy)>),
    /// Forget an allocation and its tasks.
    Remove(AllocId),
}

/// The store could not write, and unwritten records are lost when the agent ends.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the agent's store cannot be written: {reason}; check free space in the data directory")]
pub(crate) struct WriteStoreError {
    reason: String,
}

impl WriteStoreError {
    fn ended() -> Self {
        Self {
            reason: "its thread has ended".into(),
        }
    }
}

#[derive(Debug)]
struct WriteBatch {
    writes: Vec<Write>,
    done: oneshot::Sender<Result<(), WriteStoreError>>,
}

/// The handle of the writing thread. The thread ends, and closes the database, when the handle is dropped.
#[derive(Debug)]
pub(crate) struct Store {
    jobs: mpsc::Sender<WriteBatch>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    pub(super) fn start(path: PathBuf, database: Database, conditions: Conditions) -> Self {
        let (jobs, inbox) = mpsc::channel(STORE_QUEUE_MAX);
        let spawned = std::thread::Builder::new()
            .name("muster-store".into())
            .spawn(move || Writer::new(path, database, conditions).run(inbox));
        let thread = spawned
            .inspect_err(|error| tracing::error!(%error, "the store's thread cannot be started"))
            .ok();
        Self { jobs, thread }
    }

    /// Writes all waiting records and closes the database.
    pub(crate) fn close(self) {
        let Self { jobs, thread } = self;
        drop(jobs);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the store's thread had panicked");
        }
    }

    /// Writes, and returns when the records are on disk.
    pub(crate) async fn write(&self, writes: Vec<Write>) -> Result<(), WriteStoreError> {
        self.submit(writes).await?.stored().await
    }

    /// Submits `writes`. They are on disk when the returned value resolves. Earlier submissions are on disk before
    /// them.
    pub(crate) async fn submit(&self, writes: Vec<Write>) -> Result<PendingWrite, WriteStoreError> {
        let (done, answer) = oneshot::channel();
        let sent = self.jobs.send(WriteBatch { writes, done }).await;
        sent.map_err(|_closed| WriteStoreError::ended())?;
        Ok(PendingWrite { answer })
    }
}

/// Writes on their way to the disk.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    answer: oneshot::Receiver<Result<(), WriteStoreError>>,
}

impl PendingWrite {
    /// Returns when the writes are on disk.
    pub(crate) async fn stored(self) -> Result<(), WriteStoreError> {
        self.answer
            .await
            .map_err(|_closed| WriteStoreError::ended())?
    }
}

/// The key of a record that a write changes: its allocation, its table, its name. The removal of an allocation is
/// ordered before later writes about it.
type RecordKey = (Option<AllocId>, u8, String);

fn key(write: &Write) -> RecordKey {
    let of = |alloc_id: &AllocId, table, name: &str| (Some(*alloc_id), table, name.to_owned());
    match write {
        Write::Remove(alloc_id) => of(alloc_id, 0, ""),
        Write::Desired(alloc) => of(&alloc.alloc_id, 1, ""),
        Write::Snapshot(alloc_id, _) => of(alloc_id, 2, ""),
        Write::Remote(alloc_id, _) => of(alloc_id, 3, ""),
        Write::Task(alloc_id, task, _) => of(alloc_id, 4, task),
        Write::Leftover(alloc_id, leftover) => of(alloc_id, 5, &leftover.task_id),
        Write::LeftoverGone(alloc_id, task_id) => of(alloc_id, 5, task_id),
        Write::DriverNetwork(alloc_id, _) => of(alloc_id, 6, ""),
        Write::Users(alloc_id, _) => of(alloc_id, 7, ""),
        Write::Servers(_) => (None, 1, String::new()),
        Write::Apis(_) => (None, 2, String::new()),
        Write::ClusterPolicy(_) => (None, 3, String::new()),
    }
}

/// The newest write of each record that is not on disk.
#[derive(Debug, Default)]
struct QueuedWrites(BTreeMap<RecordKey, Write>);

impl QueuedWrites {
    fn add(&mut self, write: Write) {
        if let Write::Remove(alloc_id) = &write {
            self.0.retain(|(of, ..), _| *of != Some(*alloc_id));
        }
        self.0.insert(key(&write), write);
    }
}

struct Writer {
    path: PathBuf,
    /// The open database; `None` after an error, until it was opened again.
    database: Option<Database>,
    unwritten: QueuedWrites,
    conditions: Conditions,
    /// The reason of the last error, and the time of the next attempt.
    failed: Option<(WriteStoreError, Instant)>,
    /// The pause before the attempt after the next one.
    pause: Duration,
}

impl Writer {
    fn new(path: PathBuf, database: Database, conditions: Conditions) -> Self {
        Self {
            path,
            database: Some(database),
            unwritten: QueuedWrites::default(),
            conditions,
            failed: None,
            pause: STORE_REOPEN_MIN,
        }
    }

    fn run(mut self, mut inbox: mpsc::Receiver<WriteBatch>) {
        let mut is_shared = false;
        while let Some(first) = self.next(&mut inbox) {
            if is_shared {
                // If several callers write, more of them soon will, and each waits for every transaction.
                std::thread::sleep(STORE_GATHER);
            }
            let mut jobs = vec![first];
            while jobs.len() < STORE_QUEUE_MAX
                && let Ok(job) = inbox.try_recv()
            {
                jobs.push(job);
            }
            is_shared = jobs.len() > 1;
            let written = self.write(&jobs);
            for job in jobs {
                // The caller may have stopped waiting because the agent stops.
                drop(job.done.send(written.clone()));
            }
        }
        if self.failed.is_some() {
            self.write_again();
        }
    }

    /// Returns the next batch. After an error the store is retried at its time.
    fn next(&mut self, inbox: &mut mpsc::Receiver<WriteBatch>) -> Option<WriteBatch> {
        while let Some((_, at)) = &self.failed {
            if Instant::now() >= *at {
                self.write_again();
                continue;
            }
            match inbox.try_recv() {
                Ok(job) => return Some(job),
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
                Err(mpsc::error::TryRecvError::Empty) => std::thread::sleep(STORE_LOOK_INTERVAL),
            }
        }
        inbox.blocking_recv()
    }

    fn write(&mut self, jobs: &[WriteBatch]) -> Result<(), WriteStoreError> {
        let writes = || jobs.iter().flat_map(|job| &job.writes);
        if let Some((error, _)) = &self.failed {
            let error = error.clone();
            writes().for_each(|write| self.unwritten.add(write.clone()));
            return Err(error);
        }
        let Err(error) = self.commit(writes()) else {
            return Ok(());
        };
        writes().for_each(|write| self.unwritten.add(write.clone()));
        Err(self.handle_failed(&*error))
    }

    /// Opens the database again if it is closed, and writes the queued records.
    fn write_again(&mut self) {
        let unwritten = std::mem::take(&mut self.unwritten);
        let written = self.commit(unwritten.0.values());
        match written {
            Ok(()) => {
                self.failed = None;
                self.pause = STORE_REOPEN_MIN;
                self.conditions.clear(CONDITION);
            }
            Err(error) => {
                self.unwritten = unwritten;
                self.handle_failed(&*error);
            }
        }
    }

    fn commit<'a>(
        &mut self,
        writes: impl Iterator<Item = &'a Write>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let database = match self.database.take() {
            Some(database) => database,
            None => super::open_again(&self.path)?,
        };
        commit(&database, writes)?;
        self.database = Some(database);
        Ok(())
    }

    fn handle_failed(&mut self, error: &dyn std::error::Error) -> WriteStoreError {
        let error = WriteStoreError {
            reason: error.to_string(),
        };
        self.conditions.set(CONDITION, &error.to_string());
        tracing::debug!(%error, unwritten = self.unwritten.0.len(), "the store is tried again");
        self.failed = Some((error.clone(), Instant::now() + self.pause));
        self.pause = (self.pause * 2).min(STORE_REOPEN_MAX);
        error
    }
}

fn commit<'a>(
    database: &Database,
    writes: impl Iterator<Item = &'a Write>,
) -> Result<(), Box<dyn std::error::Error>> {
    let transaction = database.begin_write()?;
    {
        let mut desired = transaction.open_table(DESIRED)?;
        let mut snapshots = transaction.open_table(SNAPSHOTS)?;
        let mut tasks = transaction.open_table(TASKS)?;
        let mut leftovers = transaction.open_table(LEFTOVERS)?;
        let mut remotes = transaction.open_table(REMOTE)?;
        let mut networks = transaction.open_table(DRIVER_NETWORKS)?;
        let mut users = transaction.open_table(USERS)?;
        for write in writes {
            match write {
                Write::Desired(alloc) => {
                    desired.insert(
                        alloc.alloc_id.0.as_slice(),
                        codec::encode(alloc)?.as_slice(),
                    )?;
                }
                Write::Snapshot(alloc_id, snapshot) => {
                    snapshots.insert(alloc_id.0.as_slice(), codec::encode(snapshot)?.as_slice())?;
                }
                Write::Remote(alloc_id, remote) if remote.is_empty() => {
                    remotes.remove(alloc_id.0.as_slice())?;
                }
                Write::Remote(alloc_id, remote) => {
                    remotes.insert(alloc_id.0.as_slice(), codec::encode(remote)?.as_slice())?;
                }
                Write::Task(alloc_id, task, record) => {
                    let key = task_key(*alloc_id, task);
                    tasks.insert(key.as_slice(), codec::encode(record)?.as_slice())?;
                }
                Write::Leftover(alloc_id, leftover) => {
                    let key = task_key(*alloc_id, &leftover.task_id);
                    leftovers.insert(key.as_slice(), codec::encode(leftover)?.as_slice())?;
                }
                Write::LeftoverGone(alloc_id, task_id) => {
                    let key = task_key(*alloc_id, task_id);
                    leftovers.remove(key.as_slice())?;
                }
                Write::DriverNetwork(alloc_id, Some(network)) => {
                    networks.insert(alloc_id.0.as_slice(), codec::encode(network)?.as_slice())?;
                }
                Write::DriverNetwork(alloc_id, None) => {
                    networks.remove(alloc_id.0.as_slice())?;
                }
                Write::Users(alloc_id, of_tasks) => {
                    users.insert(alloc_id.0.as_slice(), codec::encode(of_tasks)?.as_slice())?;
                }
                Write::Servers(servers) => {
                    transaction
                        .open_table(META)?
                        .insert(META_SERVERS, codec::encode(servers)?.as_slice())?;
                }
                Write::Apis(apis) => {
                    transaction
                        .open_table(META)?
                        .insert(META_APIS, codec::encode(apis)?.as_slice())?;
                }
                Write::ClusterPolicy(policy) => {
                    transaction
                        .open_table(META)?
                        .insert(META_CLUSTER_POLICY, codec::encode(policy)?.as_slice())?;
                }
                Write::Remove(alloc_id) => {
                    desired.remove(alloc_id.0.as_slice())?;
                    snapshots.remove(alloc_id.0.as_slice())?;
                    remotes.remove(alloc_id.0.as_slice())?;
                    networks.remove(alloc_id.0.as_slice())?;
                    users.remove(alloc_id.0.as_slice())?;
                    remove_all(&mut tasks, *alloc_id)?;
                    remove_all(&mut leftovers, *alloc_id)?;
                }
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Removes every row of `table` whose key begins with the allocation.
fn remove_all(
    table: &mut redb::Table<'_, &[u8], &[u8]>,
    alloc_id: AllocId,
) -> Result<(), redb::StorageError> {
    let rows = table.range(alloc_id.0.as_slice()..)?;
    let keys = rows.map_while(|row| match row {
        Ok((key, _)) => {
            let key = key.value();
            key.starts_with(&alloc_id.0).then(|| Ok(key.to_vec()))
        }
        Err(error) => Some(Err(error)),
    });
    let keys: Vec<Vec<u8>> = keys.collect::<Result<_, _>>()?;
    for key in keys {
        table.remove(key.as_slice())?;
    }
    Ok(())
}
