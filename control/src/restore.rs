//! The restore of a saved snapshot at any server: the server sends the bytes to the leader, which restores them.

use muster_domain::id::LogIndex;
use muster_link::frames::{FrameReceiver, FrameSender};

use crate::handle::Control;
use crate::peers::PeerChannel;
use crate::peers::message::{PeerReply, PeerRequest};
use crate::snapshot::{ReadSnapshotError, RestoreSnapshotError, SavedSnapshot};

/// The reason why a snapshot was not restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// This server leads and the restore failed.
    #[error(transparent)]
    Local(#[from] RestoreSnapshotError),
    #[error("no server leads, so nothing is restored: try again when one does")]
    NoLeader,
    /// The leader refused the restore.
    #[error("the leader has not restored it: {reason}")]
    Leader { reason: String },
    /// The connection to the leader was lost.
    #[error(
        "the leader was lost, and may have restored it or not: {reason}; look at the cluster before trying again"
    )]
    Lost { reason: String },
}

/// Replaces the state of all servers by `saved`. Returns the index of the entry that replaced the state.
pub(crate) async fn restore(
    control: &Control,
    saved: SavedSnapshot,
) -> Result<LogIndex, RestoreError> {
    match control.leader() {
        None => Err(RestoreError::NoLeader),
        Some(leader) if leader.is_self => Ok(control.restore_snapshot(saved).await?),
        Some(leader) => send_to_leader(control, leader.server_id, saved).await,
    }
}

async fn send_to_leader(
    control: &Control,
    leader: u64,
    saved: SavedSnapshot,
) -> Result<LogIndex, RestoreError> {
    let refused = |error: &dyn std::error::Error| RestoreError::Leader {
        reason: crate::chain(error),
    };
    let mut reader = saved.reader().map_err(|error| refused(&error))?;
    let opened = control
        .peers()
        .open(leader, PeerChannel::Forwarded, PeerRequest::Restore)
        .await;
    let (mut sender, mut receiver) = opened.map_err(|error| refused(&error))?;
    while let Some(chunk) =
        tokio::task::block_in_place(|| reader.next_chunk()).map_err(|error| refused(&error))?
    {
        // If the stream breaks off, the leader's reason may have arrived already.
        if sender.send(&chunk.to_vec()).await.is_err() {
            break;
        }
    }
    sender.finish();
    match receiver.recv::<PeerReply>().await {
        Ok(Some(PeerReply::Restored(index))) => Ok(index),
        Ok(Some(PeerReply::Refused { reason })) => Err(RestoreError::Leader { reason }),
        Ok(Some(other)) => Err(RestoreError::Lost {
            reason: format!("it answered {other:?}"),
        }),
        Ok(None) => Err(RestoreError::Lost {
            reason: "it ended its answer before it began".to_owned(),
        }),
        Err(error) => Err(RestoreError::Lost {
            reason: crate::chain(&error),
        }),
    }
}

/// Receives a snapshot from another server and restores it, as the leader.
pub(crate) async fn serve_restore(
    control: &Control,
    mut sender: FrameSender,
    receiver: FrameReceiver,
) {
    let reply = match receive(control, receiver).await {
        Ok(index) => PeerReply::Restored(index),
        Err(error) => PeerReply::Refused {
            reason: crate::chain(&*error),
        },
    };
    if sender.send(&reply).await.is_ok() {
        sender.finish();
        sender.stopped().await;
    }
}

async fn receive(
    control: &Control,
    mut receiver: FrameReceiver,
) -> Result<LogIndex, Box<dyn std::error::Error + Send + Sync>> {
    let mut writer = control.receive_snapshot()?;
    while let Some(chunk) = receiver.recv::<Vec<u8>>().await? {
        tokio::task::block_in_place(|| writer.write_chunk(&chunk))?;
    }
    let saved: Result<SavedSnapshot, ReadSnapshotError> =
        tokio::task::block_in_place(|| writer.finish());
    Ok(control.restore_snapshot(saved?).await?)
}
