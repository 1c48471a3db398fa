//! The transfer of a snapshot to a follower.
//!
//! ```text
//! leader                                 follower
//! SnapshotHeader {vote, meta, identity}  ──►
//!                                        ◄──  SnapshotStart {offset}
//! bytes of the file from `offset`        ──►
//!                                        ◄──  Raft's answer, once it is installed
//! ```
//!
//! The file is sent as it is on disk, in chunks; neither end holds more than one chunk. The received part stays in
//! a file when the stream breaks off. If the leader offers the same file again, the next attempt continues after
//! that part. Otherwise it begins again.

use std::fmt::Write as _;
use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};

use muster_link::frames::{FrameReceiver, FrameSender, RecvFrameError, SendFrameError};
use muster_link::private;
use openraft::alias::SnapshotOf;
use openraft::raft::SnapshotResponse;
use quinn::{ReadError, WriteError};
use serde::{Deserialize, Serialize};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use super::{Raft, SnapshotFile, TypeConfig};
use crate::limits;
use crate::peers::message::PeerRequest;
use crate::peers::{PeerChannel, PeerError, Peers};
use crate::raft::types::{SnapshotMeta, Vote};

/// Bytes of a file's end that distinguish it from another file of the same length. The checksum is among them.
const TAIL_BYTES: usize = 32;

/// The first frame of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotHeader {
    vote: Vote,
    meta: SnapshotMeta,
    identity: Identity,
}

/// The properties that distinguish one snapshot file from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    /// Bytes of the file.
    bytes: u64,
    /// The file's last bytes.
    tail: Vec<u8>,
}

/// The follower's answer to the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotStart {
    /// Bytes that the follower already has.
    offset: u64,
}

/// The reason why a snapshot was not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendSnapshotError {
    /// The file cannot be read.
    #[error("the snapshot {} cannot be read", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The stream could not be opened.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The stream broke off.
    #[error("a frame was not sent")]
    Send(#[from] SendFrameError),
    /// The stream broke off.
    #[error("the snapshot's bytes were not sent")]
    Write(#[from] WriteError),
    /// The follower's answer did not come.
    #[error("the follower's answer cannot be read")]
    Receive(#[from] RecvFrameError),
    /// The follower ended the stream.
    #[error("the follower did not take it; its messages say why")]
    Ended,
}

/// The reason why a snapshot was not received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveSnapshotError {
    /// The file cannot be written.
    #[error("the snapshot {} cannot be written", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A frame did not come.
    #[error("the leader's frame cannot be read")]
    Receive(#[from] RecvFrameError),
    /// The bytes broke off.
    #[error("the snapshot broke off; it goes on at the next attempt")]
    Read(#[from] ReadError),
    /// The leader sent too little.
    #[error("the snapshot broke off after {got} of {bytes} bytes; it goes on at the next attempt")]
    Short {
        /// Bytes that arrived.
        got: u64,
        /// Bytes of the file.
        bytes: u64,
    },
    /// An answer was not sent.
    #[error("an answer to the leader was not sent")]
    Send(#[from] SendFrameError),
    /// Raft refused the snapshot.
    #[error("the snapshot was not installed: {reason}")]
    Install { reason: String },
}

/// Sends `snapshot` to `server_id` and waits until it is installed there.
pub(super) async fn send(
    peers: &Peers,
    server_id: u64,
    vote: Vote,
    snapshot: SnapshotOf<TypeConfig, SnapshotFile>,
) -> Result<SnapshotResponse<TypeConfig>, SendSnapshotError> {
    let path = snapshot.snapshot.path.clone();
    let file_error = |source| SendSnapshotError::File {
        path: path.clone(),
        source,
    };
    // The file is held open: a newer snapshot may replace it in the directory meanwhile.
    let mut file = File::open(&path).await.map_err(file_error)?;
    let identity = Identity::of(&mut file).await.map_err(file_error)?;
    let bytes = identity.bytes;
    let (mut sender, mut receiver) = peers
        .open(server_id, PeerChannel::Snapshot, PeerRequest::RaftSnapshot)
        .await?;
    let header = SnapshotHeader {
        vote,
        meta: snapshot.meta,
        identity,
    };
    sender.send(&header).await?;
    let Some(SnapshotStart { offset }) = receiver.recv().await? else {
        return Err(SendSnapshotError::Ended);
    };
    tracing::info!(server_id, bytes, offset, "sending a snapshot");
    file.seek(SeekFrom::Start(offset.min(bytes)))
        .await
        .map_err(file_error)?;
    let mut stream = sender.into_stream();
    let mut chunk = vec![0; limits::SNAPSHOT_CHUNK_BYTES];
    loop {
        let count = file.read(&mut chunk).await.map_err(file_error)?;
        if count == 0 {
            break;
        }
        stream.write_all(&chunk[..count]).await?;
    }
    // An error means that the stream is closed; the answer reports that.
    drop(stream.finish());
    receiver.recv().await?.ok_or(SendSnapshotError::Ended)
}

impl Identity {
    async fn of(file: &mut File) -> io::Result<Self> {
        let bytes = file.metadata().await?.len();
        let tail_bytes = (TAIL_BYTES as u64).min(bytes);
        file.seek(SeekFrom::Start(bytes - tail_bytes)).await?;
        let mut tail = Vec::with_capacity(TAIL_BYTES);
        file.take(tail_bytes).read_to_end(&mut tail).await?;
        Ok(Self { bytes, tail })
    }

    /// The name of the file for the received part.
    fn file_name(&self, meta: &SnapshotMeta) -> String {
        let index = meta.last_log_id.map_or(0, |log_id| log_id.index);
        let mut name = format!("{index:020}-{}-", self.bytes);
        for byte in &self.tail {
            write!(name, "{byte:02x}").expect("a string takes everything");
        }
        name.push_str(".part");
        name
    }
}

impl Raft {
    /// Receives a snapshot and installs it.
    pub(crate) async fn take_snapshot_of(
        &self,
        peers: &Peers,
        from: u64,
        mut sender: FrameSender,
        mut receiver: FrameReceiver,
    ) -> Result<(), ReceiveSnapshotError> {
        let Some(header) = receiver.recv::<SnapshotHeader>().await? else {
            return Ok(());
        };
        // Two simultaneous attempts would write the same file.
        let _turn = self.receiving.lock().await;
        let dir = self.incoming.clone();
        let path = dir.join(header.identity.file_name(&header.meta));
        let mut file = open_part(&dir, &path)
            .await
            .map_err(|source| file_error(&path, source))?;
        let offset = file
            .seek(SeekFrom::End(0))
            .await
            .map_err(|source| file_error(&path, source))?;
        let bytes = header.identity.bytes;
        tracing::info!(from, bytes, offset, "receiving a snapshot");
        sender.send(&SnapshotStart { offset }).await?;
        let mut stream = receiver.into_stream();
        let mut got = offset;
        let copied = async {
            while got < bytes {
                let Some(chunk) = stream
                    .read_chunk(limits::SNAPSHOT_CHUNK_BYTES, true)
                    .await?
                else {
                    return Err(ReceiveSnapshotError::Short { got, bytes });
                };
                peers.note_contact(from);
                file.write_all(&chunk.bytes)
                    .await
                    .map_err(|source| file_error(&path, source))?;
                got += chunk.bytes.len() as u64;
            }
            Ok(())
        };
        let copied = copied.await;
        // The received part is kept in either case.
        file.flush()
            .await
            .map_err(|source| file_error(&path, source))?;
        drop(file);
        copied?;
        let received = {
            let (path, meta) = (path.clone(), header.meta.clone());
            let read = move || SnapshotFile::received(&path, &meta);
            tokio::task::spawn_blocking(read).await
        };
        let received = match received {
            Ok(Ok(received)) => received,
            Ok(Err(error)) => {
                // The next attempt begins with an empty file.
                drop(tokio::fs::remove_file(&path).await);
                return Err(ReceiveSnapshotError::Install {
                    reason: crate::chain(&error),
                });
            }
            Err(error) => {
                return Err(ReceiveSnapshotError::Install {
                    reason: error.to_string(),
                });
            }
        };
        let snapshot = SnapshotOf::<TypeConfig, SnapshotFile> {
            meta: header.meta,
            snapshot: received,
        };
        let installed = self.raft.install_full_snapshot(header.vote, snapshot).await;
        // An installed snapshot has another name, and a refused one is useless.
        drop(tokio::fs::remove_file(&path).await);
        match installed {
            Ok(answer) => {
                sender.send(&answer).await?;
                sender.finish();
                sender.stopped().await;
                Ok(())
            }
            Err(error) => Err(ReceiveSnapshotError::Install {
                reason: error.to_string(),
            }),
        }
    }
}

fn file_error(path: &Path, source: io::Error) -> ReceiveSnapshotError {
    ReceiveSnapshotError::File {
        path: path.to_owned(),
        source,
    }
}

/// Opens the file for the received part, and removes the files of other snapshots.
async fn open_part(dir: &Path, path: &Path) -> io::Result<File> {
    private::create_dir(dir)?;
    let mut entries = tokio::fs::read_dir(dir).await?;
    while let Some(entry) = entries.next_entry().await? {
        if entry.path() != path {
            tokio::fs::remove_file(entry.path()).await?;
        }
    }
    tokio::fs::OpenOptions::from(private::options())
        .create(true)
        .append(true)
        .read(true)
        .open(path)
        .await
}
