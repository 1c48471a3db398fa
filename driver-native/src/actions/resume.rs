//! Goes on with a tree whose driver died: its processes outlive the driver.
//!
//! A tree goes on if exactly one action of it runs, a program whose process was noted, and if everything above that is
//! `serial`, `try` or `emit_progress`. The tree is carried out again, and every action before the noted one counts as
//! done. A `timeout` is not resumed, because the time that is left is not known. Several actions at once share one note.
//!
//! The kernel tells other processes than the parent how a process ended since Linux 6.15, if they opened it while it ran.
//! So an action that ended while no driver ran has failed.

use std::io;

use muster_domain::one_off::Action;
use muster_driver::ExitResult;

use super::executor::ActionNote;
use crate::process::{Process, ProcessEnd, tells_exits};
use crate::spawn::watch as watch_pidfd;

/// A process of an action that another driver started.
#[derive(Clone, Debug)]
pub(super) struct ResumedProcess {
    /// The action's place in its tree.
    pub(super) at: String,
    pub(super) process: Process,
}

impl ResumedProcess {
    /// The noted action of `tree`, if it runs and the tree can go on from it.
    pub(super) fn find(tree: &Action, noted: &ActionNote) -> Option<Self> {
        let (pid, start_ticks) = noted.process?;
        if !leads_to(tree, tree.as_str(), &noted.at) || !tells_exits() {
            return None;
        }
        let process = Process::find(pid, start_ticks).ok()?;
        Some(Self {
            at: noted.at.clone(),
            process,
        })
    }

    /// Waits for the end of the process.
    pub(super) async fn wait(&self) -> io::Result<ExitResult> {
        let pidfd = watch_pidfd(self.process.pidfd())?;
        while !self.process.is_over()? {
            pidfd.readable().await?.clear_ready();
        }
        match self.process.exit_of_other().await {
            Some(ProcessEnd::Exited(code)) => Ok(ExitResult::exited(code)),
            Some(ProcessEnd::Signaled(signal)) => Ok(ExitResult::signaled(signal)),
            Some(ProcessEnd::Unknown) | None => Err(io::Error::other("its exit is not known")),
        }
    }
}

/// Whether `action`, whose place is `here`, is the program at `at` or leads to it by kinds that can go on.
fn leads_to(action: &Action, here: &str, at: &str) -> bool {
    let child = |action: &Action| leads_to(action, &format!("{here}.{}", action.as_str()), at);
    match action {
        Action::Run(_) => here == at,
        Action::Try(it) => child(&it.action),
        Action::EmitProgress(it) => child(&it.action),
        Action::Serial(all) => all.actions.iter().enumerate().any(|(index, action)| {
            leads_to(action, &format!("{here}[{index}].{}", action.as_str()), at)
        }),
        Action::Download(_)
        | Action::Upload(_)
        | Action::Timeout(_)
        | Action::Parallel(_)
        | Action::Codependent(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn leads(tree: &Value, at: &str) -> bool {
        let tree: Action = serde_json::from_value(tree.clone()).unwrap();
        leads_to(&tree, tree.as_str(), at)
    }

    #[test]
    fn only_single_actions_are_resumed() {
        let run = json!({"run": {"path": "x", "user": "u"}});
        let serial = json!({"serial": {"actions": [run, {"try": {"action": run}}]}});
        assert!(leads(&run, "run"));
        assert!(leads(&serial, "serial[0].run"));
        assert!(leads(&serial, "serial[1].try.run"));
        assert!(!leads(&serial, "serial[2].run"));
        let parallel = json!({"parallel": {"actions": [run]}});
        assert!(!leads(&parallel, "parallel[0].run"));
        let timeout = json!({"timeout": {"action": run, "timeout_ms": 5}});
        assert!(!leads(&timeout, "timeout.run"));
    }
}
