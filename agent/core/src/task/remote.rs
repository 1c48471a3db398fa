//! The state of a task that runs on another system: its handle, and the allocation that manages it.

use serde::{Deserialize, Serialize};

/// The state of a remote task. It survives the agent in a record of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteTask {
    /// The handle of a task that runs already. The driver takes the task over by this handle instead of starting it.
    pub take: Option<Vec<u8>>,
    /// The handle of a task that runs and that this allocation started or took over.
    pub running: Option<Vec<u8>>,
    /// The handle of a task that was given to another allocation.
    pub leave: Option<Vec<u8>>,
    /// Whether the control plane has forgotten the allocation. The agent then has no record of the task's manager.
    pub forgotten: bool,
}

impl RemoteTask {
    /// The handle of the task that runs, whether it was taken over yet or not.
    #[must_use]
    pub fn current_handle(&self) -> Option<&[u8]> {
        self.running.as_deref().or(self.take.as_deref())
    }

    /// Whether a stop that the control plane wants leaves the task running, because another allocation manages it or
    /// may manage it. A task that was started anew since is stopped.
    #[must_use]
    pub fn survives_stop(&self) -> bool {
        let handle = self.current_handle();
        handle.is_some() && (self.forgotten || handle == self.leave.as_deref())
    }

    /// Whether the task must be taken over before it can be stopped.
    #[must_use]
    pub fn must_take_over(&self) -> bool {
        self.take.is_some() && self.running.is_none() && !self.survives_stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_detaches_only_handles_owned_elsewhere() {
        let handle = |number: u8| (number > 0).then(|| vec![number]);
        for (take, running, leave, forgotten, survives_stop, must_take_over) in [
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

            assert_eq!(task.survives_stop(), survives_stop, "{task:?}");
            assert_eq!(task.must_take_over(), must_take_over, "{task:?}");
        }
    }
}
