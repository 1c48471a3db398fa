//! Fetches the data of an allocation that a new allocation of this node replaces, from its former node.
//!
//! A server locates the data and passes them on. The request is repeated, with growing pauses, if the server or a
//! connection fails. It is not repeated if the server reports that there are no data.

use std::path::Path;

use muster_domain::alloc::DesiredAlloc;
use muster_domain::error_chain::chain;
use muster_domain::id::AllocId;
use muster_link::frames::{FrameReceiver, FrameSender, RecvFrameError, SendFrameError};
use muster_wire::limits::DISK_TAKEN_BYTES;
use muster_wire::rpc::{AgentReply, AgentRequest, DiskAck, DiskPiece, DiskSum};
use quinn::{Connection, ConnectionError};
use tokio::sync::mpsc;

use super::import;
use super::unpack::{UnpackError, Unpacker};
use crate::limits::{
    FETCH_ALONE_MAX, FETCH_PAUSE_MAX, FETCH_PAUSE_MIN, FETCH_PIECES_MAX, FETCH_SILENCE_MAX,
    FETCH_TRIES_MAX,
};
use crate::session::SessionContext;
use crate::storage::StorageContext;
use crate::storage::disk::DiskLimit;

/// The reason why the data were not received.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    /// There is no session with a server.
    #[error("no server was in reach for {FETCH_ALONE_MAX:?}")]
    Alone,
    /// The connection to the server takes no stream.
    #[error("the connection to the server is lost")]
    Connection(#[from] ConnectionError),
    /// The request could not be sent.
    #[error("the server was not asked")]
    Send(#[from] SendFrameError),
    /// The reply could not be read.
    #[error("the server's answer broke off")]
    Receive(#[from] RecvFrameError),
    /// The reply ended too early.
    #[error("the server's answer ended before all of it had come")]
    Cut,
    #[error("nothing came for {FETCH_SILENCE_MAX:?}")]
    Silent,
    /// The server or the former node cannot provide the data at the moment.
    #[error("{0}")]
    Later(String),
    /// The server or the former node reports that the data are not available.
    #[error("{0}")]
    Gone(String),
    /// The received data could not be written.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// The directory to unpack into could not be made.
    #[error(
        "the directory to unpack into is missing; check free space and the owner of the data directory"
    )]
    Directory(#[source] std::io::Error),
    /// The thread that writes panicked.
    #[error("the thread that unpacks failed: {0}")]
    Panicked(tokio::task::JoinError),
}

impl FetchError {
    /// Whether a retry may succeed.
    fn is_retryable(&self) -> bool {
        match self {
            Self::Connection(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::Cut
            | Self::Silent
            | Self::Later(_) => true,
            Self::Alone
            | Self::Gone(_)
            | Self::Unpack(_)
            | Self::Directory(_)
            | Self::Panicked(_) => false,
        }
    }
}

/// Fetches the data of `previous`, unless they have arrived. Returns a description of the result.
///
/// # Errors
///
/// The reason why the allocation begins without the data.
pub(crate) async fn fetch(
    storage: &StorageContext,
    session: &SessionContext,
    desired: &DesiredAlloc,
    previous: AllocId,
) -> Result<String, String> {
    let transfer_limit = |group| storage.disks.transfer_limit(group);
    let limit = desired.group().map(transfer_limit).unwrap_or_default();
    let alloc = storage.data.alloc(desired.alloc_id).alloc;
    // The semaphore is never closed.
    let _place = storage.fetches.acquire().await;
    let mut pause = FETCH_PAUSE_MIN;
    let mut tries = 1;
    loop {
        let tried = fetch_once(session, (desired.alloc_id, previous), &alloc, limit).await;
        let error = match tried {
            Ok(sum) => return Ok(describe_transfer(previous, sum)),
            Err(error) if error.is_retryable() && tries < FETCH_TRIES_MAX => error,
            Err(error) => return Err(failure_message(previous, &error, tries)),
        };
        tracing::info!(
            alloc_id = %desired.alloc_id, %previous, error = chain(&error),
            "the data of an allocation did not come; they are asked for again"
        );
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(FETCH_PAUSE_MAX);
        tries += 1;
    }
}

fn describe_transfer(previous: AllocId, sum: DiskSum) -> String {
    let DiskSum {
        inodes,
        bytes,
        left,
    } = sum;
    let stayed = match left {
        0 => String::new(),
        left => format!("; {left} devices, FIFOs, sockets and mounts stayed there"),
    };
    format!(
        "the data of allocation {previous} came from its node: {inodes} files and directories, {bytes} bytes{stayed}"
    )
}

fn failure_message(previous: AllocId, error: &FetchError, tries: u32) -> String {
    let times = if error.is_retryable() {
        format!(" (tried {tries} times)")
    } else {
        String::new()
    };
    format!(
        "beginning with empty directories: the data of allocation {previous} did not come{times}: {}",
        chain(error)
    )
}

async fn fetch_once(
    session: &SessionContext,
    (alloc_id, previous): (AllocId, AllocId),
    alloc: &Path,
    limit: DiskLimit,
) -> Result<DiskSum, FetchError> {
    let connection = connection(session).await?;
    let (send, receive) = connection.open_bi().await?;
    let mut sender = FrameSender::new(send);
    sender
        .send(&AgentRequest::FetchDisk { alloc_id, previous })
        .await?;
    receive_all(sender, FrameReceiver::new(receive), alloc, limit).await
}

/// The connection of the session with a server, once there is one.
async fn connection(session: &SessionContext) -> Result<Connection, FetchError> {
    let mut server = session.standing.server();
    let connected = server.wait_for(Option::is_some);
    match tokio::time::timeout(FETCH_ALONE_MAX, connected).await {
        Ok(Ok(connection)) => connection.clone().ok_or(FetchError::Alone),
        Ok(Err(_)) | Err(_) => Err(FetchError::Alone),
    }
}

/// The next message of the stream.
enum FetchItem {
    Piece(DiskPiece),
    End(DiskSum),
}

/// Unpacks the received data, and marks them as complete.
async fn receive_all(
    mut sender: FrameSender,
    mut receiver: FrameReceiver,
    alloc: &Path,
    limit: DiskLimit,
) -> Result<DiskSum, FetchError> {
    let (to_unpack, steps) = mpsc::channel(FETCH_PIECES_MAX);
    let (unpacked, taken) = mpsc::channel(FETCH_PIECES_MAX);
    let at = alloc.to_owned();
    let mut unpacking = tokio::task::spawn_blocking(move || unpack(&at, limit, steps, &unpacked));
    let acknowledging = async {
        acknowledge(&mut sender, taken).await;
        // The unpacking has ended, and its result has the reason.
        std::future::pending::<()>().await;
    };
    let received = tokio::select! {
        received = receive(&mut receiver, to_unpack) => received,
        () = acknowledging => return Err(FetchError::Cut),
        // The unpacking ended early, so it failed.
        ended = &mut unpacking => return ended.map_err(FetchError::Panicked)?,
    };
    // A retry begins with an empty directory, so the old unpacking must have ended.
    let unpacked = unpacking.await.map_err(FetchError::Panicked)?;
    received.and(unpacked)
}

/// Passes received pieces on, until their end.
async fn receive(
    receiver: &mut FrameReceiver,
    to_unpack: mpsc::Sender<FetchItem>,
) -> Result<(), FetchError> {
    loop {
        let reply = tokio::time::timeout(FETCH_SILENCE_MAX, receiver.recv::<AgentReply>()).await;
        let (step, is_last) = match reply.map_err(|_elapsed| FetchError::Silent)?? {
            Some(AgentReply::Idle) => continue,
            Some(AgentReply::DiskPiece(piece)) => (FetchItem::Piece(piece), false),
            Some(AgentReply::DiskEnd(sum)) => (FetchItem::End(sum), true),
            Some(AgentReply::Later { reason }) => return Err(FetchError::Later(reason)),
            Some(AgentReply::Gone { reason }) => return Err(FetchError::Gone(reason)),
            None => return Err(FetchError::Cut),
        };
        // The unpacking reports itself why it ended.
        if to_unpack.send(step).await.is_err() || is_last {
            return Ok(());
        }
    }
}

/// Acknowledges unpacked data to the sender, until the unpacking ends.
async fn acknowledge(sender: &mut FrameSender, mut taken: mpsc::Receiver<u64>) {
    let mut bytes = 0;
    while let Some(cost) = taken.recv().await {
        bytes += cost;
        if bytes >= DISK_TAKEN_BYTES {
            let taken = DiskAck {
                bytes: std::mem::take(&mut bytes),
            };
            // If the server is gone, the stream that is being read ends too.
            drop(sender.send(&taken).await);
        }
    }
}

/// Writes the received data, on a thread.
fn unpack(
    alloc: &Path,
    limit: DiskLimit,
    mut steps: mpsc::Receiver<FetchItem>,
    unpacked: &mpsc::Sender<u64>,
) -> Result<DiskSum, FetchError> {
    let incoming = import::make_incoming(alloc).map_err(FetchError::Directory)?;
    let mut unpacker = Unpacker::new(&incoming, limit).map_err(FetchError::Directory)?;
    while let Some(step) = steps.blocking_recv() {
        match step {
            FetchItem::Piece(piece) => {
                let cost = piece.cost();
                unpacker.take(piece)?;
                // The acknowledgement has no receiver when the stream is over.
                let _sent = unpacked.blocking_send(cost);
            }
            FetchItem::End(sum) => {
                let sum = unpacker.finish(sum)?;
                import::complete(alloc).map_err(FetchError::Directory)?;
                return Ok(sum);
            }
        }
    }
    Err(FetchError::Cut)
}
