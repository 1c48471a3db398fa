//! The resources that a task may use, and the messages about limits that cannot be enforced.

use std::fmt;
use std::path::{Path, PathBuf};

use muster_domain::resources::IoLimits;

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::limits::PIDS_DEFAULT;

/// A task's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// CPU in MHz: a share under contention, not a ceiling. 1 000 MHz weigh as much as a group without a configured
    /// weight.
    pub cpu_mhz: u32,
    /// The most CPU time per second, in cores. `None` means no ceiling.
    pub cpu_cores_max: Option<f64>,
    /// The cores that the task runs on, sorted; empty means any.
    pub cores: Vec<u16>,
    /// The most memory, in bytes; the task is killed above it. `None` means no limit.
    pub memory_max_bytes: Option<u64>,
    /// Memory that is reclaimed last, in bytes.
    pub memory_low_bytes: Option<u64>,
    /// Memory in bytes above which the task is throttled and its memory reclaimed first; v2 only.
    pub memory_high_bytes: Option<u64>,
    /// Swap in bytes; 0 unless a job requests it, because swapping hides that a task's memory is too small.
    pub memory_swap_max_bytes: u64,
    /// The most processes and threads.
    pub pids_max: u64,
    /// The read and write rates of the task on each disk.
    pub io: IoLimits,
}

impl Default for Limits {
    /// 100 MHz, no memory limit, 4 096 processes.
    fn default() -> Self {
        Self {
            cpu_mhz: 100,
            cpu_cores_max: None,
            cores: Vec::new(),
            memory_max_bytes: None,
            memory_low_bytes: None,
            memory_high_bytes: None,
            memory_swap_max_bytes: 0,
            pids_max: PIDS_DEFAULT,
            io: IoLimits::default(),
        }
    }
}

/// A limit that this host does not enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unenforced {
    /// The controller that would enforce it.
    pub controller: Controller,
    /// A text for the operator: the limit, the reason, and a remedy.
    pub reason: String,
}

/// A limit that differed from the task's and was set again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorrectedLimit {
    /// The file that holds it.
    pub file: PathBuf,
    pub found: String,
    pub set: String,
}

impl fmt::Display for CorrectedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, found, set } = self;
        let name = file.file_name().unwrap_or_default().display();
        write!(f, "{name} was {found} and is {set} again")
    }
}

/// The reason why a limit was not set.
#[derive(Debug, thiserror::Error)]
pub enum ApplyLimitError {
    /// The kernel refused the value.
    #[error("set {controller} limit: {file} to {wanted}")]
    Set {
        /// The controller of the limit.
        controller: Controller,
        file: PathBuf,
        wanted: String,
        /// The error of cgroups-rs or of the kernel.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel accepted the value and changed it.
    #[error("{controller} limit does not hold: {file} was set to {wanted} and reads {got}")]
    ReadBack {
        /// The controller of the limit.
        controller: Controller,
        file: PathBuf,
        /// The value that was set.
        wanted: String,
        /// The value that is there.
        got: String,
    },
    /// The value could not be read back.
    #[error("read a {controller} limit back")]
    Read {
        /// The controller of the limit.
        controller: Controller,
        #[source]
        source: CgroupFileError,
    },
}

/// A controller's directory for one task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setter<'a> {
    pub(crate) controller: Controller,
    pub(crate) dir: &'a Path,
}

impl Setter<'_> {
    /// Calls `set`, and checks with `holds` the content that `file` then has.
    pub(crate) fn set(
        &self,
        file: &str,
        wanted: &str,
        set: impl FnOnce() -> cgroups_rs::fs::error::Result<()>,
        holds: impl FnOnce(&str) -> bool,
    ) -> Result<(), ApplyLimitError> {
        let Self {
            controller, dir, ..
        } = *self;
        set().map_err(|error| ApplyLimitError::Set {
            controller,
            file: dir.join(file),
            wanted: wanted.into(),
            source: error.into(),
        })?;
        self.check(file, wanted, holds)
    }

    /// [`Self::set`] by a plain write, for files that cgroups-rs does not know.
    pub(crate) fn write(&self, file: &str, wanted: &str) -> Result<(), ApplyLimitError> {
        self.write_line(file, wanted, |got| got == wanted)
    }

    /// Like [`Self::write`], for files whose read format differs from the written one. `holds` checks the content.
    pub(crate) fn write_line(
        &self,
        file: &str,
        wanted: &str,
        holds: impl FnOnce(&str) -> bool,
    ) -> Result<(), ApplyLimitError> {
        let Self {
            controller, dir, ..
        } = *self;
        file::write(dir, file, wanted).map_err(|error| ApplyLimitError::Set {
            controller,
            file: dir.join(file),
            wanted: wanted.into(),
            source: error.into(),
        })?;
        self.check(file, wanted, holds)
    }

    pub(crate) fn has(&self, file: &str) -> bool {
        self.dir.join(file).exists()
    }

    /// The content of `file`, if it exists.
    pub(crate) fn text(&self, file: &str) -> Result<Option<String>, ApplyLimitError> {
        let Self { controller, dir } = *self;
        file::read_if_any(dir, file).map_err(|source| ApplyLimitError::Read { controller, source })
    }

    pub(crate) fn number(&self, file: &str) -> Result<Option<u64>, ApplyLimitError> {
        let Self {
            controller, dir, ..
        } = *self;
        file::limit(dir, file).map_err(|source| ApplyLimitError::Read { controller, source })
    }

    fn check(
        &self,
        file: &str,
        wanted: &str,
        holds: impl FnOnce(&str) -> bool,
    ) -> Result<(), ApplyLimitError> {
        let Self {
            controller, dir, ..
        } = *self;
        let got =
            file::read(dir, file).map_err(|source| ApplyLimitError::Read { controller, source })?;
        if holds(got.trim()) {
            return Ok(());
        }
        let (file, wanted, got) = (dir.join(file), wanted.into(), got.trim().into());
        Err(ApplyLimitError::ReadBack {
            controller,
            file,
            wanted,
            got,
        })
    }
}
