//! The state machine: applies committed entries to `control-core`'s state.
//!
//! The state lives in memory. It is rebuilt at start from the newest snapshot and the log after it.
//! Proposers are answered after the state that contains their entry is published.

use std::io;
use std::sync::Arc;

use futures::{Stream, TryStreamExt};
use muster_control_core::fsm::{self, Response};
use muster_control_core::state::State;
use muster_domain::id::{ClusterTag, LogIndex};
use muster_wire::codec;
use openraft::EntryPayload;
use openraft::OptionalSend;
use openraft::storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine};

use super::reclaim::StateReclaimer;
use super::restore::step::{self, LastRestored, ReceivedChunks};
use super::snapshot::{self, Contents, RestoredSnapshot, SnapshotFile, SnapshotStore};
use super::types::{
    Answer, EncodedCommand, Entry, LogId, SnapshotMeta, StoredMembership, TypeConfig,
};
use crate::events::{self, Collections, LoggedReport, NodeCollection, ServerHealthNote};
use crate::limits;
use crate::published::{PendingResults, Published, Retired};
use crate::state_rules::PeriodicCheck;

type Snapshot = openraft::alias::SnapshotOf<TypeConfig, SnapshotFile>;

/// The state machine.
#[derive(Debug)]
pub(crate) struct Machine {
    state: State,
    last_applied: Option<LogId>,
    membership: StoredMembership,
    /// The received chunks of a saved snapshot.
    restoring: Option<ReceivedChunks>,
    restored: LastRestored,
    collections: Collections,
    outdated: StateReclaimer,
    rules: PeriodicCheck,
    published: Arc<Published>,
    snapshots: SnapshotStore,
}

/// Entries that are applied and not published, and the callers that wait for them.
#[derive(Default)]
struct UnpublishedEntries {
    entries: PendingResults,
    answers: Vec<(ApplyResponder<TypeConfig>, Answer)>,
    count: usize,
}

/// A copy of the state that is being written to a file.
#[derive(Debug)]
pub(crate) struct Builder {
    contents: Arc<Contents>,
    snapshots: SnapshotStore,
}

impl Machine {
    /// Continues from `restored`.
    pub(crate) fn new(
        published: Arc<Published>,
        snapshots: SnapshotStore,
        restored: Option<RestoredSnapshot>,
    ) -> Self {
        let mut machine = Self {
            state: State::default(),
            last_applied: None,
            membership: StoredMembership::default(),
            restoring: None,
            restored: LastRestored::default(),
            collections: Collections::default(),
            outdated: StateReclaimer::start(Arc::clone(&published)),
            rules: PeriodicCheck::default(),
            published,
            snapshots,
        };
        if let Some(restored) = restored {
            machine.take(restored);
        }
        machine
    }

    fn take(&mut self, restored: RestoredSnapshot) {
        let RestoredSnapshot { contents, file } = restored;
        tracing::info!(file = %file.path.display(), "restored the state from a snapshot");
        let Contents {
            meta,
            state,
            restoring,
        } = &*contents;
        self.state = state.clone();
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.restoring.clone_from(restoring);
        self.collections.forget();
        let outdated = self
            .published
            .publish_snapshot(self.state.clone(), self.index());
        self.outdated.take(outdated);
    }

    /// The last restore that was carried out.
    pub(super) fn restored(&self) -> LastRestored {
        self.restored.clone()
    }

    /// The last entry applied.
    fn index(&self) -> LogIndex {
        LogIndex(self.last_applied.map_or(0, |log_id| log_id.index))
    }

    fn publish(&self, entries: PendingResults) -> Retired {
        self.published
            .publish(self.state.clone(), self.index(), entries)
    }

    /// Publishes the applied entries and answers the callers that wait for them.
    fn show(&mut self, unshown: &mut UnpublishedEntries) {
        let UnpublishedEntries {
            entries,
            answers,
            count,
        } = std::mem::take(unshown);
        if count == 0 {
            return;
        }
        let (index, published) = (self.index(), Arc::clone(&self.published));
        self.rules
            .handle_applied(&self.state, index, move |reason| published.halt(reason));
        let outdated = self.publish(entries);
        for (responder, answer) in answers {
            responder.send(answer);
        }
        self.outdated.take(outdated);
    }

    /// Applies one entry. An unreadable entry stops Raft before it changes anything. Earlier entries are published
    /// first if this one takes long.
    fn apply_entry(
        &mut self,
        entry: Entry,
        unshown: &mut UnpublishedEntries,
    ) -> io::Result<Option<Response>> {
        let index = LogIndex(entry.log_id.index);
        let response = match entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Membership(membership) => {
                // The log has the random numbers of the first servers, so every server derives the same tag.
                if self.membership == StoredMembership::default() {
                    let servers = membership.nodes().map(|(server_id, _)| *server_id);
                    self.state.set_cluster(ClusterTag::of_servers(servers));
                }
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                None
            }
            EntryPayload::Normal(logged) if logged.format == step::FORMAT => {
                match step::step(&mut self.restoring, &logged.body)? {
                    step::Outcome::Noted => {}
                    step::Outcome::Restore { attempt, contents } => {
                        self.show(unshown);
                        self.state = contents.state;
                        self.state.restored_at(index);
                        self.collections.forget();
                        let outdated = self.published.publish_snapshot(self.state.clone(), index);
                        self.outdated.take(outdated);
                        self.restored.set(attempt);
                    }
                }
                None
            }
            EntryPayload::Normal(logged) => {
                let logged = decode(index, &logged)?;
                let cause = logged.command.cause();
                let slice = events::CollectionSlice::of(&logged);
                if slice.is_some() {
                    self.show(unshown);
                }
                let collections = NodeCollection::all_of(&logged, &self.state);
                let noted = ServerHealthNote::of(&logged);
                if let Some(note) = &noted {
                    let (server_id, is_well) = (note.server_id(), note.is_well());
                    self.published.note_server_health(server_id, is_well);
                }
                let mut applied = fsm::apply(&mut self.state, index, logged);
                let response = std::mem::replace(&mut applied.response, Response::Done);
                let ended =
                    slice.map_or_else(Vec::new, |slice| self.collections.follow(slice, &response));
                let ended = ended.into_iter().map(LoggedReport::Collection);
                let over = ended
                    .chain(collections.into_iter().map(LoggedReport::NodeCollection))
                    .chain(noted.map(LoggedReport::ServerHealth))
                    .collect();
                let term = entry.log_id.committed_leader_id().term;
                let entries = &mut unshown.entries;
                entries.add((index, term), cause, &self.state, applied, over);
                Some(response)
            }
        };
        self.last_applied = Some(entry.log_id);
        Ok(response)
    }

    fn builder(&self) -> Builder {
        let contents = Contents {
            meta: SnapshotMeta {
                last_log_id: self.last_applied,
                last_membership: self.membership.clone(),
            },
            state: self.state.clone(),
            restoring: self.restoring.clone(),
        };
        Builder {
            contents: Arc::new(contents),
            snapshots: self.snapshots.clone(),
        }
    }
}

/// Whether `error` reports a full disk.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Decodes the entry in `logged`.
pub(super) fn decode(index: LogIndex, logged: &EncodedCommand) -> io::Result<fsm::Entry> {
    if logged.format > fsm::VERSION {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "log entry {} has command format {}; this server understands up to {}: start the newer version that wrote it",
                index.0,
                logged.format,
                fsm::VERSION
            ),
        ));
    }
    codec::decode(&logged.body).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("log entry {} cannot be applied: {error}", index.0),
        )
    })
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.last_applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        let mut unshown = UnpublishedEntries::default();
        while let Some((entry, responder)) = entries.try_next().await? {
            if let Some(reason) = self.published.halted() {
                return Err(io::Error::other(reason.to_owned()));
            }
            let response = self.apply_entry(entry, &mut unshown)?;
            if let Some(responder) = responder {
                unshown.answers.push((responder, Answer(response)));
            }
            unshown.count += 1;
            if unshown.count == limits::APPLY_BATCH_MAX {
                self.show(&mut unshown);
            }
        }
        self.show(&mut unshown);
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        self.builder()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        received: SnapshotFile,
    ) -> io::Result<()> {
        let snapshots = self.snapshots.clone();
        let meta = meta.clone();
        let restored = blocking(move || {
            let restored = SnapshotStore::read(&received).map_err(io::Error::other)?;
            snapshots.adopt(&meta, &received)?;
            Ok(restored)
        })
        .await?;
        self.take(restored);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let newest = self.snapshots.current();
        Ok(newest.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotFile;

    /// A full disk is waited out, because openraft treats an error as fatal.
    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let mut is_logged = false;
        loop {
            let (snapshots, contents) = (self.snapshots.clone(), Arc::clone(&self.contents));
            match snapshot::in_background(move || snapshots.write(&contents)).await {
                Ok(snapshot) => {
                    return Ok(Snapshot {
                        meta: self.contents.meta.clone(),
                        snapshot,
                    });
                }
                Err(error) if is_full(&error) => {
                    if !is_logged {
                        tracing::error!(%error, "the disk has no room for a snapshot; it is tried again until it has");
                        is_logged = true;
                    }
                    tokio::time::sleep(snapshot::limits::FULL_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Runs disk work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use muster_control_core::fsm::{GcCommand, GcRule};
    use muster_domain::id::Timestamp;
    use openraft::entry::RaftEntry as _;

    use super::*;
    use crate::raft::tests::register;

    fn entry(index: u64, entry: &fsm::Entry) -> EntryResponder<TypeConfig> {
        let logged = EncodedCommand {
            format: fsm::VERSION,
            body: codec::encode(entry).unwrap().into(),
        };
        let log_id = openraft::testing::log_id::<TypeConfig>(1, 1, index);
        (Entry::new_normal(log_id, logged), None)
    }

    #[tokio::test]
    async fn state_before_gc_slice_is_published_first() {
        let dir = tempfile::tempdir().unwrap();
        let published = Arc::new(Published::new().0);
        let snapshots = SnapshotStore::open(dir.path()).unwrap();
        let mut machine = Machine::new(Arc::clone(&published), snapshots, None);
        let slice = GcCommand::Collect {
            rule: GcRule::Jobs,
            before: Timestamp(2),
            batch_before: Timestamp(2),
            after: None,
        }
        .at(Timestamp(2));
        let all = [register("web"), slice, register("db")];

        let shown = published.applied();
        let mut shown_at_each = Vec::new();
        let entries = all.iter().zip(1..).map(|(command, index)| {
            shown_at_each.push(*shown.borrow());
            Ok(entry(index, command))
        });
        machine.apply(futures::stream::iter(entries)).await.unwrap();

        assert_eq!(shown_at_each, [0, 0, 1].map(LogIndex));
        assert_eq!(*shown.borrow(), LogIndex(3));
    }
}
