//! A task that runs on another system: which handle it has, and who manages it.

use serde::{Deserialize, Serialize};

/// The state of a remote task that an agent keeps besides everything else. It survives the agent in its own record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteTask {
    /// It runs already: with this handle it is taken over, not started.
    pub take: Option<Vec<u8>>,
    /// It runs, started or taken over here, and this is its handle.
    pub running: Option<Vec<u8>>,
    /// Another allocation was given the task of this handle.
    pub leave: Option<Vec<u8>>,
    /// The control plane has forgotten the allocation: who manages the task is not known here.
    pub forgotten: bool,
}

impl RemoteTask {
    /// The handle of the task that runs, whether it was taken over yet or not.
    #[must_use]
    pub fn held(&self) -> Option<&[u8]> {
        self.running.as_deref().or(self.take.as_deref())
    }

    /// Whether a stop that the control plane wants leaves the task running: it is another allocation's now, or may
    /// be. One that was started anew since is not meant.
    #[must_use]
    pub fn is_left(&self) -> bool {
        let held = self.held();
        held.is_some() && (self.forgotten || held == self.leave.as_deref())
    }

    /// Whether it must be taken over before it can be stopped.
    #[must_use]
    pub fn must_be_taken(&self) -> bool {
        self.take.is_some() && self.running.is_none() && !self.is_left()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_detaches_only_handles_owned_elsewhere() {
        let handle = |number: u8| (number > 0).then(|| vec![number]);
        for (take, running, leave, forgotten, is_left, must_be_taken) in [
            (0, 0, 0, false, false, false),
            (0, 0, 1, false, false, false),
            (0, 0, 0, true, false, false),
            (0, 1, 0, false, false, false),
            (0, 1, 1, false, true, false),
            (0, 2, 1, false, false, false),
            (0, 1, 0, true, true, false),
            (1, 0, 0, false, false, true),
            (1, 0, 1, false, true, false),
            (1, 0, 2, false, false, true),
            (1, 0, 0, true, true, false),
            (1, 2, 1, false, false, false),
        ] {
            let task = RemoteTask {
                take: handle(take),
                running: handle(running),
                leave: handle(leave),
                forgotten,
            };

            assert_eq!(task.is_left(), is_left, "{task:?}");
            assert_eq!(task.must_be_taken(), must_be_taken, "{task:?}");
        }
    }
}
