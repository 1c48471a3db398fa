//! Reasons for which the node takes no new work.
//!
//! A part of the agent that cannot serve new tasks sets a condition, and clears it once it can. During a condition,
//! every driver of the node is registered as unhealthy with the reason. So the scheduler places nothing there.
//! `muster node status` and the metric `muster_node_condition` show the reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The node's conditions by name. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    reasons: Arc<watch::Sender<BTreeMap<&'static str, String>>>,
}

impl Conditions {
    /// Sets the condition `name`. A change of state is logged once; a new reason for the same condition is not.
    pub(crate) fn set(&self, name: &'static str, reason: &str) {
        self.reasons.send_if_modified(|known| {
            let before = known.insert(name, reason.to_owned());
            if before.is_none() {
                tracing::error!(
                    condition = name,
                    reason,
                    "the node takes no new tasks until this is over"
                );
            }
            before.as_deref() != Some(reason)
        });
    }

    /// Clears the condition `name`.
    pub(crate) fn clear(&self, name: &'static str) {
        self.reasons.send_if_modified(|known| {
            let was_set = known.remove(name).is_some();
            if was_set {
                tracing::info!(condition = name, "the condition of the node is over");
            }
            was_set
        });
    }

    /// The reason of the condition `name`, if it is set.
    pub(crate) fn reason(&self, name: &str) -> Option<String> {
        self.reasons.borrow().get(name).cloned()
    }

    /// All set conditions, with their reasons.
    pub(crate) fn all(&self) -> BTreeMap<String, String> {
        let reasons = self.reasons.borrow();
        let reasons = reasons.iter();
        reasons
            .map(|(name, reason)| ((*name).to_owned(), reason.clone()))
            .collect()
    }

    /// Returns a channel with each change.
    pub(crate) fn changes(&self) -> watch::Receiver<BTreeMap<&'static str, String>> {
        self.reasons.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_condition_is_no_change() {
        let conditions = Conditions::default();
        let mut changes = conditions.changes();
        conditions.set("store", "full");
        changes.mark_unchanged();

        conditions.set("store", "full");
        assert!(!changes.has_changed().unwrap());

        conditions.clear("store");
        assert!(changes.has_changed().unwrap());
        assert_eq!(conditions.all(), BTreeMap::new());
    }
}
