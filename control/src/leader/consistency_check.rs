//! The leader's periodic comparison of all servers' states.

use muster_domain::id::LogIndex;
use tokio::task::JoinSet;

use crate::consistency_check::{self, StateHashComparison};
use crate::handle::Control;
use crate::limits;
use crate::peers::message::PeerRequest;

/// The last compared index, and the comparison under way.
#[derive(Debug)]
pub(super) struct ComparisonDuty {
    control: Control,
    /// The last index that was compared or given up.
    compared: LogIndex,
    under_way: JoinSet<()>,
}

impl ComparisonDuty {
    pub(super) fn begin(control: Control) -> Self {
        let compared = *control.applied().borrow();
        Self {
            control,
            compared,
            under_way: JoinSet::new(),
        }
    }

    pub(super) fn advance(&mut self) {
        let applied = *self.control.applied().borrow();
        let due = LogIndex(self.compared.0 + limits::STATE_COMPARE_EVERY);
        if applied < due || !self.under_way.is_empty() {
            return;
        }
        self.compared = applied;
        self.under_way.spawn(compare(self.control.clone(), applied));
    }

    /// Waits until the comparison under way has ended. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        match self.under_way.join_next().await {
            None => std::future::pending().await,
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::error!(%error, "the comparison of states failed"),
        }
    }
}

/// Compares all servers at `index`, and notifies those that differ from most.
pub(crate) async fn compare(control: Control, index: LogIndex) {
    let comparison = StateHashComparison::at(&control, index, control.known_peers()).await;
    let tables = comparison.differing();
    if tables.is_empty() {
        tracing::debug!(index = index.0, "all servers have the same state");
        return;
    }
    let Some(right) = comparison.majority_hash() else {
        tracing::error!(
            index = index.0,
            ?tables,
            "servers have different states, and no state is that of most voters: see `muster operator check`"
        );
        return;
    };
    let me = control.server_info().server_id;
    for one in comparison.reports {
        let server_id = one.server.server_id;
        if one.hash.as_ref().is_ok_and(|hash| *hash == right) || one.hash.is_err() {
            continue;
        }
        tracing::error!(
            index = index.0,
            server = one.server.node.name,
            ?tables,
            "the state of a server is wrong"
        );
        if server_id == me {
            consistency_check::stop_if_diverged(&control, index, &right);
            continue;
        }
        let request = PeerRequest::StateDiffers { index, right };
        if let Err(error) = control.peers().call(server_id, request).await {
            tracing::warn!(server = one.server.node.name, %error, "a server whose state differs could not be notified");
        }
    }
}
