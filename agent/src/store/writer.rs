//! The thread that writes, many records a transaction.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::JoinHandle;

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
use crate::drivers::networks::DriverNetwork;
use crate::gc::Leftover;
use crate::limits::{STORE_GATHER, STORE_QUEUE_MAX};

/// One change of the store.
#[derive(Debug)]
pub(crate) enum Write {
    /// What the control plane wants of an allocation.
    Desired(Box<DesiredAlloc>),
    /// Where an allocation's runner is.
    Snapshot(AllocId, Box<AllocSnapshot>),
    /// Its remote tasks; none forgets what is there.
    Remote(AllocId, Vec<RemoteTask>),
    /// A start of a task.
    Task(AllocId, String, Box<TaskRecord>),
    /// What its driver or the kernel did not let go of.
    Leftover(AllocId, Box<Leftover>),
    /// It did, of the start that the driver calls so.
    LeftoverGone(AllocId, String),
    /// The network that a driver makes, or made, for an allocation; `None`: it has taken it back.
    DriverNetwork(AllocId, Option<Box<DriverNetwork>>),
    /// The users that its tasks were given, by task.
    Users(AllocId, BTreeMap<String, u32>),
    /// Where the control plane's servers are.
    Servers(Vec<SocketAddr>),
    /// Where they listen for clients.
    Apis(Vec<SocketAddr>),
    /// The cluster's network policy, and the entry that wrote it.
    ClusterPolicy(Box<(LogIndex, NetworkPolicy)>),
    /// Forget an allocation and its tasks.
    Remove(AllocId),
}

/// The store could not write, and what it should hold is lost with the agent.
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
struct Job {
    writes: Vec<Write>,
    done: oneshot::Sender<Result<(), WriteStoreError>>,
}

/// The way to the writing thread. The thread ends, and closes the database, when it is dropped.
#[derive(Debug)]
pub(crate) struct Store {
    jobs: mpsc::Sender<Job>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    pub(super) fn start(database: Database) -> Self {
        let (jobs, inbox) = mpsc::channel(STORE_QUEUE_MAX);
        let spawned = std::thread::Builder::new()
            .name("muster-store".into())
            .spawn(move || run(&database, inbox));
        let thread = spawned
            .inspect_err(|error| tracing::error!(%error, "the store's thread cannot be started"))
            .ok();
        Self { jobs, thread }
    }

    /// Writes what waits and closes the database.
    pub(crate) fn close(self) {
        let Self { jobs, thread } = self;
        drop(jobs);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the store's thread had panicked");
        }
    }

    /// Writes, and returns when it is on disk.
    pub(crate) async fn write(&self, writes: Vec<Write>) -> Result<(), WriteStoreError> {
        self.submit(writes).await?.stored().await
    }

    /// Hands `writes` over; they are on disk when the answer says so. What was handed over before is
    /// on disk before.
    pub(crate) async fn submit(&self, writes: Vec<Write>) -> Result<Pending, WriteStoreError> {
        let (done, answer) = oneshot::channel();
        let sent = self.jobs.send(Job { writes, done }).await;
        sent.map_err(|_closed| WriteStoreError::ended())?;
        Ok(Pending { answer })
    }
}

/// Writes on their way to the disk.
#[derive(Debug)]
pub(crate) struct Pending {
    answer: oneshot::Receiver<Result<(), WriteStoreError>>,
}

impl Pending {
    /// Returns when they are there.
    pub(crate) async fn stored(self) -> Result<(), WriteStoreError> {
        self.answer
            .await
            .map_err(|_closed| WriteStoreError::ended())?
    }
}

fn run(database: &Database, mut inbox: mpsc::Receiver<Job>) {
    let mut is_shared = false;
    while let Some(first) = inbox.blocking_recv() {
        if is_shared {
            // Where many write, more of them soon will, and all of them pay for each transaction.
            std::thread::sleep(STORE_GATHER);
        }
        let mut jobs = vec![first];
        while jobs.len() < STORE_QUEUE_MAX
            && let Ok(job) = inbox.try_recv()
        {
            jobs.push(job);
        }
        is_shared = jobs.len() > 1;
        let writes = jobs.iter().flat_map(|job| &job.writes);
        let written = commit(database, writes).map_err(|reason| WriteStoreError {
            reason: reason.to_string(),
        });
        if let Err(error) = &written {
            tracing::error!(%error, "a change of the node's state was not stored");
        }
        for job in jobs {
            // Nobody waits any more when the agent stops.
            drop(job.done.send(written.clone()));
        }
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
