//! The order of an allocation's tasks: which may start, and which must stop.
//!
//! Tasks that come first run to their end, or as sidecars until the others have ended. Then the main
//! tasks run, beside those that come after their start. What comes last runs when nothing else is left.
//! All of it follows from the tasks' own states, so nothing of it is stored: a phase that was entered
//! stays entered, because a task that was started once says so.

use muster_domain::alloc::TaskPhase;
use muster_domain::id::Timestamp;
use muster_domain::job::{Lifecycle, LifecycleHook};

use crate::task::StopCause;

/// When a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To its end, before the main tasks start.
    Prestart,
    /// Beside the others, from before the main tasks start.
    PrestartSidecar,
    /// The main work of the group.
    Main,
    /// To its end, after the main tasks have started.
    Poststart,
    /// Beside the others, from after the main tasks have started.
    PoststartSidecar,
    /// To its end, after everything else has ended.
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

    /// Whether a task of this role that ended well is started again in a job of which `main` tasks are.
    #[must_use]
    pub fn restarts_on_success(self, main: bool) -> bool {
        match self {
            Self::Main => main,
            Self::PrestartSidecar | Self::PoststartSidecar => true,
            Self::Prestart | Self::Poststart | Self::Poststop => false,
        }
    }

    /// Whether a task of this role runs beside the main tasks until they have ended.
    #[must_use]
    pub fn is_sidecar(self) -> bool {
        match self {
            Self::PrestartSidecar | Self::PoststartSidecar => true,
            Self::Prestart | Self::Main | Self::Poststart | Self::Poststop => false,
        }
    }
}

/// A task as its siblings see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about the task"
)]
pub struct GroupTask {
    pub role: Role,
    /// Whether the others end with it.
    pub leader: bool,
    pub phase: TaskPhase,
    /// Whether it failed for good.
    pub failed: bool,
    /// Whether a start of it was asked for, ever.
    pub attempted: bool,
    /// Whether a process of it ran, ever.
    pub started: bool,
    /// Start time of its newest process; `None` if none runs.
    pub running_since: Option<Timestamp>,
}

impl GroupTask {
    fn is_dead(&self) -> bool {
        self.phase == TaskPhase::Dead
    }

    /// Whether it is what the main tasks wait for, or no matter of theirs.
    fn lets_main_start(&self) -> bool {
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
        // A sidecar that is being restarted takes no main task back.
        Role::Main => main.any(|task| task.attempted) || all.iter().all(GroupTask::lets_main_start),
        Role::Poststart | Role::PoststartSidecar => main.all(|task| task.started),
        Role::Poststop => all
            .iter()
            .all(|task| task.role == Role::Poststop || task.is_dead()),
    }
}

/// Why everything but what comes last must stop, if it must.
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
