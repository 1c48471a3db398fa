//! The order of an allocation's tasks: which tasks may start, and which must stop.
//!
//! Prestart tasks run to their end, or as sidecars until the other tasks have ended. Then the main tasks run, together
//! with the poststart tasks. Poststop tasks run when no other task is left. All of it follows from the tasks' own
//! states, so no phase is stored. A phase that was entered stays entered, because each task records whether it was ever
//! started.

use muster_domain::alloc::TaskPhase;
use muster_domain::id::Timestamp;
use muster_domain::job::{Lifecycle, LifecycleHook};

use crate::task::StopCause;

/// When a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To its end, before the main tasks start.
    Prestart,
    /// Together with the other tasks, from before the main tasks start.
    PrestartSidecar,
    /// The main work of the group.
    Main,
    /// To its end, after the main tasks have started.
    Poststart,
    /// Together with the other tasks, from after the main tasks have started.
    PoststartSidecar,
    /// To its end, after all other tasks have ended.
    Poststop,
}

impl Role {
    /// The role that a job's `lifecycle` block gives.
    #[must_use]
    pub fn of(lifecycle: Option<Lifecycle>) -> Self {
        match lifecycle {
            None => Self::Main,
            Some(Lifecycle { hook, sidecar }) => match (hook, sidecar) {
                (LifecycleHook::Prestart, false) => Self::Prestart,
                (LifecycleHook::Prestart, true) => Self::PrestartSidecar,
                (LifecycleHook::Poststart, false) => Self::Poststart,
                (LifecycleHook::Poststart, true) => Self::PoststartSidecar,
                (LifecycleHook::Poststop, _) => Self::Poststop,
            },
        }
    }

    /// Whether a task of this role that succeeded is started again. `main` is the setting for the job's main tasks.
    #[must_use]
    pub fn restarts_on_success(self, main: bool) -> bool {
        match self {
            Self::Main => main,
            Self::PrestartSidecar | Self::PoststartSidecar => true,
            Self::Prestart | Self::Poststart | Self::Poststop => false,
        }
    }

    /// Whether a task of this role runs together with the main tasks until they have ended.
    #[must_use]
    pub fn is_sidecar(self) -> bool {
        match self {
            Self::PrestartSidecar | Self::PoststartSidecar => true,
            Self::Prestart | Self::Main | Self::Poststart | Self::Poststop => false,
        }
    }
}

/// The state of a task that its sibling tasks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about the task"
)]
pub struct GroupTask {
    pub role: Role,
    /// Whether the other tasks end with it.
    pub leader: bool,
    pub phase: TaskPhase,
    /// Whether it failed for good.
    pub failed: bool,
    /// Whether a start of the task was ever requested.
    pub attempted: bool,
    /// Whether a process of the task ever ran.
    pub started: bool,
    /// Start time of the newest process; `None` if none runs.
    pub running_since: Option<Timestamp>,
}

impl GroupTask {
    fn is_dead(&self) -> bool {
        self.phase == TaskPhase::Dead
    }

    /// Whether the task no longer keeps the main tasks from starting.
    fn allows_main_start(&self) -> bool {
        match self.role {
            Role::Prestart => self.is_dead() && !self.failed,
            Role::PrestartSidecar => self.phase == TaskPhase::Running,
            Role::Main | Role::Poststart | Role::PoststartSidecar | Role::Poststop => true,
        }
    }
}

/// Whether a task of this role may have a process.
#[must_use]
pub fn may_start(role: Role, all: &[GroupTask]) -> bool {
    let mut main = all.iter().filter(|task| task.role == Role::Main);
    match role {
        Role::Prestart | Role::PrestartSidecar => true,
        // A sidecar that is being restarted does not stop main tasks that were started.
        Role::Main => {
            main.any(|task| task.attempted) || all.iter().all(GroupTask::allows_main_start)
        }
        Role::Poststart | Role::PoststartSidecar => main.all(|task| task.started),
        Role::Poststop => all
            .iter()
            .all(|task| task.role == Role::Poststop || task.is_dead()),
    }
}

/// The reason why all tasks but poststop tasks must stop, if there is one.
#[must_use]
pub fn reason_to_stop(all: &[GroupTask]) -> Option<StopCause> {
    let mut before_last = all.iter().filter(|task| task.role != Role::Poststop);
    if before_last.clone().any(|task| task.failed) {
        Some(StopCause::SiblingFailed)
    } else if before_last
        .clone()
        .any(|task| task.leader && task.is_dead())
    {
        Some(StopCause::LeaderDead)
    } else if before_last.all(|task| task.role.is_sidecar() || task.is_dead()) {
        Some(StopCause::MainDead)
    } else {
        None
    }
}
