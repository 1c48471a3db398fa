//! Sends an allocation's data to a server, which passes them to the node of the replacing allocation.

use std::path::PathBuf;
use std::sync::Arc;

use muster_domain::error_chain::chain;
use muster_domain::id::AllocId;
use muster_link::frames::{FrameReceiver, FrameSender, SendFrameError};
use muster_link::window::Window;
use muster_wire::limits::DISK_WINDOW_BYTES;
use muster_wire::rpc::{DiskAck, DiskPiece, DiskRequest, DiskSum, FailureKind, NodeReply};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;

use super::dir_leases::DirLease;
use super::pack::{self, PackError};
use crate::context::AgentContext;
use crate::limits::{IDLE_INTERVAL, LENDING_PIECES_MAX, LENDING_STALL_MAX, LENDINGS_WAITING_MAX};
use crate::session::{SessionContext, failure};
use crate::storage::StorageContext;
use crate::tasks::live::LiveTasks;

/// Answers one request. That may take long, so short requests do not wait for it.
///
/// # Errors
///
/// If the requesting node has gone.
pub(crate) async fn send_alloc_dir(
    context: &AgentContext,
    request: DiskRequest,
    mut sender: FrameSender,
    receiver: FrameReceiver,
    place: OwnedSemaphorePermit,
) -> Result<(), SendFrameError> {
    let leases = &context.storage.dir_leases;
    let Ok(_waiter) = leases.queue.try_acquire() else {
        let reason = format!(
            "its node sends data of {LENDINGS_WAITING_MAX} allocations, or is to, the most it takes"
        );
        return fail(&mut sender, reason, FailureKind::TooMany).await;
    };
    drop(place);
    let alloc_id = request.alloc_id;
    let Some(lease) = leases.lease(alloc_id) else {
        return fail(
            &mut sender,
            PackError::Nothing.to_string(),
            FailureKind::NotFound,
        )
        .await;
    };
    if may_write(&context.session, &context.tasks.live, alloc_id) {
        let reason = format!("allocation {alloc_id} has not ended on its node");
        return fail(&mut sender, reason, FailureKind::Other).await;
    }
    let window = Window::new(DISK_WINDOW_BYTES);
    let sending = async {
        let turn = wait_for_turn(&context.storage, &mut sender).await?;
        let alloc = context.storage.data.alloc(alloc_id).alloc;
        send(request, alloc, (lease, turn), &mut sender, &window).await
    };
    tokio::select! {
        sent = sending => sent,
        () = receive_acknowledgements(receiver, &window) => Ok(()),
    }
}

/// Whether a task of the allocation has a process, or may get one.
fn may_write(session: &SessionContext, tasks: &LiveTasks, alloc_id: AllocId) -> bool {
    session.outbox.is_unfinished(alloc_id) || !tasks.of(Some(alloc_id)).is_empty()
}

/// Receives acknowledgements of unpacked data until the requesting node has gone.
async fn receive_acknowledgements(mut receiver: FrameReceiver, window: &Window) {
    while let Ok(Some(DiskAck { bytes })) = receiver.recv().await {
        window.give(bytes);
    }
}

/// Waits for a permit to read.
async fn wait_for_turn(
    storage: &StorageContext,
    sender: &mut FrameSender,
) -> Result<Option<OwnedSemaphorePermit>, SendFrameError> {
    let turn = Arc::clone(&storage.dir_leases.read_permits).acquire_owned();
    tokio::pin!(turn);
    loop {
        match tokio::time::timeout(IDLE_INTERVAL, &mut turn).await {
            // The semaphore is never closed.
            Ok(turn) => return Ok(turn.ok()),
            Err(_elapsed) => sender.send(&NodeReply::Idle).await?,
        }
    }
}

/// The lease and the permit that are held while directories are read.
type ReadGuard = (DirLease, Option<OwnedSemaphorePermit>);

async fn send(
    request: DiskRequest,
    alloc: PathBuf,
    held: ReadGuard,
    sender: &mut FrameSender,
    window: &Window,
) -> Result<(), SendFrameError> {
    let alloc_id = request.alloc_id;
    let (mut pieces, packed) = read(request, alloc, held);
    loop {
        match tokio::time::timeout(IDLE_INTERVAL, pieces.recv()).await {
            Ok(Some(piece)) => {
                // A receiver that makes no progress blocks a permit, and the removal of the directories.
                let room = window.take(piece.cost());
                if tokio::time::timeout(LENDING_STALL_MAX, room).await.is_err() {
                    let reason = format!("nothing was unpacked for {LENDING_STALL_MAX:?}");
                    tracing::warn!(%alloc_id, reason, "the data of an allocation are sent no further");
                    return fail(sender, reason, FailureKind::Other).await;
                }
                sender.send(&NodeReply::DiskPiece(piece)).await?;
            }
            Ok(None) => break,
            Err(_elapsed) => sender.send(&NodeReply::Idle).await?,
        }
    }
    match packed.await {
        Ok(Ok(sum)) => {
            sender.send(&NodeReply::DiskEnd(sum)).await?;
            sender.finish();
            // Otherwise the receiver would treat the end of this stream as an interruption.
            sender.stopped().await;
            Ok(())
        }
        Ok(Err(error)) => {
            tracing::warn!(%alloc_id, error = chain(&error), "the data of an allocation are not sent to another node");
            let kind = match error {
                PackError::Nothing => FailureKind::NotFound,
                _ => FailureKind::Other,
            };
            fail(sender, chain(&error), kind).await
        }
        Err(panic) => fail(sender, panic.to_string(), FailureKind::Other).await,
    }
}

/// Reads the directories on a thread.
fn read(
    request: DiskRequest,
    alloc: PathBuf,
    held: ReadGuard,
) -> (
    mpsc::Receiver<DiskPiece>,
    JoinHandle<Result<DiskSum, PackError>>,
) {
    let (to_send, pieces) = mpsc::channel(LENDING_PIECES_MAX);
    let packed = tokio::task::spawn_blocking(move || {
        let packed = pack::pack(&alloc, &request.tasks, &mut |piece| {
            to_send.blocking_send(piece).is_ok()
        });
        drop(held);
        packed
    });
    (pieces, packed)
}

/// Sends the reason why no data, or no more data, are sent.
async fn fail(
    sender: &mut FrameSender,
    reason: String,
    kind: FailureKind,
) -> Result<(), SendFrameError> {
    failure::fail(sender, reason, kind).await?;
    // Otherwise the receiver would treat the end of this stream as an interruption.
    sender.stopped().await;
    Ok(())
}
