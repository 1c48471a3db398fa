//! Replies to a server's requests that could not be served.

use muster_link::frames::{FrameSender, SendFrameError};
use muster_wire::rpc::{FailureKind, NodeReply};

/// A reply with `reason` and no particular kind of failure.
pub(super) fn failed(reason: String) -> NodeReply {
    NodeReply::Failed {
        reason,
        kind: FailureKind::Other,
    }
}

/// Sends the reason for which a request is refused, as the last message.
///
/// # Errors
///
/// If the connection broke.
pub(crate) async fn fail(
    sender: &mut FrameSender,
    reason: String,
    kind: FailureKind,
) -> Result<(), SendFrameError> {
    sender.send(&NodeReply::Failed { reason, kind }).await?;
    sender.finish();
    Ok(())
}
