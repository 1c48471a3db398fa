//! Ephemeral disks: the limits of an allocation's directory, in bytes and in inodes.
//!
//! A file system with project quota refuses writes beyond the limit ([`project`]). On other file systems a thread
//! measures the directories of running allocations ([`walk`]). It reports an allocation above its limit to the
//! allocation's runner, which stops and fails the allocation. The thread also checks under quota, by one system call,
//! because quota does not restrict a process with `CAP_SYS_RESOURCE`.
//!
//! Everything below `<data>/alloc/<allocation>` counts. Logs, host volumes and the mounts of a task do not count. The
//! logs' own rotation limits their size.

mod carry;
mod limits;
mod project;
mod walk;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use muster_agent_core::alloc::Event;
use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::job::TaskGroup;
use muster_domain::one_off;
use muster_domain::text_enum::TextEnum as _;
use muster_wire::rpc::AllocDisk;
use tokio::sync::mpsc;

use self::limits::{
    BYTES_PER_INODE, INODES_MIN, MEASURE_INTERVAL_MIN, MEASURE_PAUSE_FACTOR, NICENESS,
    PLACES_NAMED_MAX, ROUND_MAX, THREAD_PAUSE_FACTOR, THREAD_PAUSE_MAX, THREAD_PAUSE_MIN,
    UNCHANGED_FACTOR, UNCHANGED_MAX,
};
pub(crate) use self::limits::{DEPTH_MAX, READ_BYTES};
use self::project::Projects;
use crate::session::clock::now;
use crate::sys::IoPriority;
use crate::tasks::alloc_input::Input;

/// The operator's choice for ephemeral disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskEnforcement {
    /// The file system limits the disks if it can. Otherwise they are measured.
    #[default]
    Auto,
    /// The disks count only in placement, as in Nomad.
    Off,
}

muster_domain::text_enum!(pub DiskEnforcement: "disk enforcement" {
    Auto => "auto",
    Off => "off",
});

impl FromStr for DiskEnforcement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_name(text).ok_or_else(|| Self::unknown(text))
    }
}

/// The way in which this node enforces limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskEnforcementMode {
    /// The file system enforces the limits.
    Quota,
    /// The agent measures, because there is no quota.
    Accounted {
        reason: String,
    },
    Off,
}

impl DiskEnforcementMode {
    /// The name in attributes and statistics.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Accounted { .. } => "accounted",
            Self::Off => "off",
        }
    }
}

/// An amount of disk space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskAmount {
    /// Bytes in blocks of the file system.
    pub bytes: u64,
    pub inodes: u64,
}

impl DiskAmount {
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }

    /// Returns the part that exceeds `other`.
    fn beyond(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }
}

/// The limit of an allocation's disk; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLimit {
    /// The most bytes.
    pub bytes: u64,
    pub inodes: u64,
}

impl DiskLimit {
    /// The limit that the group's `ephemeral_disk` sets.
    pub(crate) fn of(group: &TaskGroup) -> Self {
        let bytes = u64::from(group.ephemeral_disk.size.0) << 20;
        let inodes = (bytes / BYTES_PER_INODE).max(INODES_MIN);
        Self { bytes, inodes }
    }

    /// The limit of an allocation; `None` if its job has no group for it.
    pub(crate) fn of_alloc(desired: &DesiredAlloc) -> Option<Self> {
        let group = desired.group()?;
        if one_off::has_unlimited_disk(&desired.job.spec) {
            return Some(Self::default());
        }
        Some(Self::of(group))
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }

    pub(crate) fn is_exceeded(self, used: DiskAmount) -> bool {
        !self.is_none() && (used.bytes > self.bytes || used.inodes > self.inodes)
    }
}

/// Returns the project of an allocation's directory; `None` if its file system does not limit it.
///
/// # Errors
///
/// If the project cannot be read.
pub fn project_of(dir: &Path) -> io::Result<Option<u32>> {
    project::of(dir)
}

/// Returns the amount that the file system of `dir` charges to a project, and the limit of that project.
///
/// # Errors
///
/// If the file system has no quota.
pub fn project_quota(dir: &Path, project: u32) -> io::Result<(DiskAmount, DiskLimit)> {
    project::quota(dir, project)
}

/// The ephemeral disks of a node, and the thread that measures them.
#[derive(Debug)]
pub(crate) struct Disks {
    shared: Arc<DiskState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct DiskState {
    mode: DiskEnforcementMode,
    /// The parent directory of all allocations' directories.
    allocs: PathBuf,
    projects: Projects,
    watched: Mutex<BTreeMap<AllocId, MeasuredAlloc>>,
    /// Notified when an allocation is to be measured, and when the thread is to end.
    wakeup: Condvar,
    stop: AtomicBool,
}

/// A running allocation.
#[derive(Clone, Debug)]
struct MeasuredAlloc {
    dir: PathBuf,
    limit: DiskLimit,
    /// Whether the file system enforces the limit.
    quota: bool,
    due: Instant,
    last_use: Option<(Timestamp, DiskAmount)>,
    /// The value of [`FilesystemUsage::grown`] when the last measurement began.
    grown: DiskAmount,
    /// The number of consecutive measurements with the same result as the one before.
    unchanged_count: u32,
    inbox: mpsc::Sender<Input>,
}

/// One measurement of an allocation.
struct Measurement {
    used: DiskAmount,
    /// The limit that the quota enforces.
    enforced_limit: Option<DiskLimit>,
    by_place: BTreeMap<String, DiskAmount>,
    too_deep: bool,
}

impl Disks {
    /// Starts the thread for the allocations below `allocs`.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub(crate) fn start(allocs: &Path, wanted: DiskEnforcement) -> io::Result<Self> {
        let mode = match wanted {
            DiskEnforcement::Off => DiskEnforcementMode::Off,
            DiskEnforcement::Auto => match project::unsupported(allocs) {
                None => DiskEnforcementMode::Quota,
                Some(reason) => DiskEnforcementMode::Accounted { reason },
            },
        };
        let shared = Arc::new(DiskState {
            mode,
            allocs: allocs.to_owned(),
            projects: Projects::default(),
            watched: Mutex::default(),
            wakeup: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let measured = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("muster-disk".to_owned())
            .spawn(move || measured.run())?;
        let thread = Some(thread);
        Ok(Self { shared, thread })
    }

    /// The way in which limits are enforced.
    pub(crate) fn means(&self) -> &DiskEnforcementMode {
        &self.shared.mode
    }

    /// Returns the most data that an allocation may receive from another place.
    pub(crate) fn transfer_limit(&self, group: &TaskGroup) -> DiskLimit {
        match self.shared.mode {
            DiskEnforcementMode::Quota | DiskEnforcementMode::Accounted { .. } => {
                DiskLimit::of(group)
            }
            DiskEnforcementMode::Off => DiskLimit {
                bytes: u64::MAX,
                inodes: u64::MAX,
            },
        }
    }

    /// Limits an allocation's directory, which must be empty unless it was limited before.
    ///
    /// # Errors
    ///
    /// If the file system has quota and refuses this one.
    pub(crate) fn limit(&self, dir: &Path, limit: DiskLimit) -> io::Result<()> {
        match self.shared.mode {
            DiskEnforcementMode::Quota => self.shared.projects.limit(dir, limit).map(drop),
            DiskEnforcementMode::Accounted { .. } | DiskEnforcementMode::Off => Ok(()),
        }
    }

    /// Charges a tree to the allocation whose directory is `dir`, before the tree is moved there.
    ///
    /// # Errors
    ///
    /// If a part of the tree cannot be charged, because there is not enough room or an entry cannot be read.
    pub(crate) fn carry(&self, tree: OwnedFd, dir: &Path) -> io::Result<()> {
        match self.shared.mode {
            DiskEnforcementMode::Quota => project::charge_tree(tree, dir),
            DiskEnforcementMode::Accounted { .. } | DiskEnforcementMode::Off => Ok(()),
        }
    }

    /// Takes in that an allocation runs, or that its limit may have changed. The thread measures the allocation from
    /// now on, and reports an excess to `inbox`.
    pub(crate) fn watch(
        &self,
        alloc_id: AllocId,
        dir: &Path,
        limit: DiskLimit,
        inbox: &mpsc::Sender<Input>,
    ) {
        let quota = match self.shared.mode {
            DiskEnforcementMode::Accounted { .. } => false,
            DiskEnforcementMode::Off => {
                Self::remove_old_limits(dir);
                false
            }
            DiskEnforcementMode::Quota => match self.shared.projects.limit(dir, limit) {
                Ok(limited) => limited,
                Err(error) => {
                    tracing::error!(%alloc_id, %error, "the quota of an ephemeral disk cannot be set; it is measured instead");
                    false
                }
            },
        };
        let mut watched = self.shared.locked();
        let last_use = watched.get(&alloc_id).and_then(|known| known.last_use);
        watched.insert(
            alloc_id,
            MeasuredAlloc {
                dir: dir.to_owned(),
                limit,
                quota,
                due: Instant::now(),
                last_use,
                grown: DiskAmount::default(),
                unchanged_count: 0,
                inbox: inbox.clone(),
            },
        );
        drop(watched);
        self.shared.wakeup.notify_all();
    }

    /// Removes the limits that an earlier agent has set.
    fn remove_old_limits(dir: &Path) {
        if let Ok(Some(_project)) = project::of(dir)
            && let Err(error) = project::release(dir)
        {
            tracing::warn!(dir = %dir.display(), %error, "the quota of an ephemeral disk cannot be lifted");
        }
    }

    /// Takes in that no process of an allocation runs any more.
    pub(crate) fn forget(&self, alloc_id: AllocId) {
        self.shared.locked().remove(&alloc_id);
    }

    /// Takes in that an allocation's directory will be removed. Its project is free as soon as the directory's content
    /// is deleted.
    pub(crate) fn release(&self, dir: &Path) {
        if self.shared.mode != DiskEnforcementMode::Quota {
            return;
        }
        if let Err(error) = project::release(dir) {
            tracing::warn!(dir = %dir.display(), %error, "the quota of a directory that goes is left");
        }
    }

    /// Returns the state of a running allocation's disk.
    pub(crate) fn stats(&self, alloc_id: AllocId) -> Option<AllocDisk> {
        let MeasuredAlloc {
            dir,
            limit,
            quota,
            last_use,
            ..
        } = self.shared.locked().get(&alloc_id)?.clone();
        let mode = &self.shared.mode;
        // Under quota the current value is available at once.
        let fresh = quota.then(|| project::usage(&dir).ok().flatten()).flatten();
        let (last_use, limit) = match fresh {
            Some((used, limit)) => (Some((now(), used)), limit),
            None => (last_use, limit),
        };
        let (enforcement, reason) = match mode {
            DiskEnforcementMode::Quota if !quota => (
                "accounted",
                "the allocation is older than the quota of its file system".to_owned(),
            ),
            DiskEnforcementMode::Accounted { reason } => (mode.as_str(), reason.clone()),
            DiskEnforcementMode::Quota => (mode.as_str(), String::new()),
            DiskEnforcementMode::Off => (mode.as_str(), "disk_enforcement = \"off\"".to_owned()),
        };
        Some(AllocDisk {
            enforcement: enforcement.to_owned(),
            reason,
            limit_bytes: limit.bytes,
            limit_inodes: limit.inodes,
            used_bytes: last_use.map(|(_, used)| used.bytes),
            used_inodes: last_use.map(|(_, used)| used.inodes),
            measured_at: last_use.map(|(at, _)| at),
        })
    }

    /// Returns the message about a task that failed while its disk was full to the last block. Returns `None` if the
    /// disk was not full, or has no limit.
    pub(crate) fn full(&self, alloc_id: AllocId) -> Option<String> {
        let MeasuredAlloc { dir, quota, .. } = self.shared.locked().get(&alloc_id)?.clone();
        let (used, limit) = quota
            .then(|| project::usage(&dir).ok().flatten())
            .flatten()?;
        let full =
            used.bytes.saturating_add(BYTES_PER_INODE) > limit.bytes || used.inodes >= limit.inodes;
        full.then(|| format!("its ephemeral disk is full: {}", UsageText(used, limit)))
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        {
            // Under the lock, every thread that read the old flag is already waiting for the notification.
            let _watched = self.shared.locked();
            self.shared.wakeup.notify_all();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that measures ephemeral disks had panicked");
        }
    }
}

impl DiskState {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<AllocId, MeasuredAlloc>> {
        // A panic elsewhere leaves the map valid, because each change of it is one call.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The main loop of the thread.
    fn run(&self) {
        if self.mode == DiskEnforcementMode::Off {
            return;
        }
        if let Err(error) = crate::sys::set_io_priority(rustix::thread::gettid(), IoPriority::Idle)
        {
            tracing::debug!(%error, "disks are measured with the disk priority of everybody else");
        }
        // On Linux niceness applies to a single thread.
        if let Err(error) = rustix::process::nice(NICENESS) {
            tracing::debug!(%error, "disks are measured with the processor priority of everybody else");
        }
        let mut space = FilesystemUsage::default();
        let mut debt = MeasureDebt::default();
        while let Some(due) = self.next(&mut space) {
            for (alloc_id, watched) in due {
                let begun = Instant::now();
                let measurement = self.measure(&watched);
                let took = begun.elapsed();
                self.record_measurement(alloc_id, &watched, measurement, took);
                if let Some(pause) = debt.add_measurement(begun.elapsed()) {
                    self.sleep(pause);
                }
            }
        }
    }

    /// Waits for allocations that are due, and returns the first of them; `None` when the agent stops.
    fn next(&self, space: &mut FilesystemUsage) -> Option<Vec<(AllocId, MeasuredAlloc)>> {
        let mut watched = self.locked();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let growth = space.measure(Instant::now(), || in_use(&self.allocs));
            handle_growth(&mut watched, growth);
            let now = Instant::now();
            let due = due(&mut watched, now, space.grown);
            if !due.is_empty() {
                return Some(due);
            }
            let Some(first) = watched.values().map(|watched| watched.due).min() else {
                let waited = self.wakeup.wait(watched);
                watched = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let pause = (first - now).min(MEASURE_INTERVAL_MIN);
            let waited = self.wakeup.wait_timeout(watched, pause);
            watched = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn sleep(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let mut watched = self.locked();
        while !self.stop.load(Ordering::Relaxed)
            && let Some(left) = until.checked_duration_since(Instant::now())
        {
            let waited = self.wakeup.wait_timeout(watched, left);
            watched = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn measure(&self, watched: &MeasuredAlloc) -> io::Result<Measurement> {
        if watched.quota
            && let Some((used, limit)) = project::usage(&watched.dir)?
        {
            let mut measurement = Measurement {
                used,
                enforced_limit: Some(limit),
                by_place: BTreeMap::new(),
                too_deep: false,
            };
            if watched.limit.is_exceeded(used) {
                // This walk only finds the largest directories for the message.
                let walked = walk::measure(&watched.dir, u64::MAX, &self.stop)?;
                measurement.by_place = walked.by_place;
            }
            return Ok(measurement);
        }
        let walk::TreeUsage {
            all,
            by_place,
            too_deep,
        } = walk::measure(&watched.dir, watched.limit.inodes, &self.stop)?;
        Ok(Measurement {
            used: all,
            enforced_limit: None,
            by_place,
            too_deep,
        })
    }

    /// Stores the result of a measurement, and reports an excess to the runner.
    fn record_measurement(
        &self,
        alloc_id: AllocId,
        measured: &MeasuredAlloc,
        measurement: io::Result<Measurement>,
        took: Duration,
    ) {
        let mut all = self.locked();
        let Some(watched) = all.get_mut(&alloc_id) else {
            return;
        };
        let unchanged_count = match (&measurement, watched.last_use) {
            (Ok(measurement), Some((_, before))) if measurement.used == before => {
                watched.unchanged_count + 1
            }
            _ => 0,
        };
        watched.unchanged_count = unchanged_count;
        watched.due = Instant::now() + pause(took, unchanged_count);
        let measurement = match measurement {
            Ok(measurement) => measurement,
            // The allocation and its runner ended during the measurement.
            Err(_gone) if watched.inbox.is_closed() || !watched.dir.exists() => {
                all.remove(&alloc_id);
                return;
            }
            Err(error) => {
                tracing::debug!(%alloc_id, %error, "an ephemeral disk cannot be measured");
                return;
            }
        };
        watched.last_use = Some((now(), measurement.used));
        let limit = watched.limit;
        if limit != measured.limit {
            watched.due = Instant::now();
            return;
        }
        if measurement
            .enforced_limit
            .is_some_and(|enforced_limit| enforced_limit != limit)
        {
            tracing::warn!(%alloc_id, "the quota of an ephemeral disk was changed; it is set again");
            if let Err(error) = self.projects.limit(&watched.dir, limit) {
                tracing::error!(%alloc_id, %error, "the quota of an ephemeral disk cannot be set");
            }
        }
        if limit.is_none() || (!limit.is_exceeded(measurement.used) && !measurement.too_deep) {
            return;
        }
        let message = exceeded(&measurement, limit);
        tracing::warn!(%alloc_id, message, "an allocation is stopped");
        let event = Event::DiskExceeded { message }.into();
        // A runner whose inbox is full gets the report after the next measurement.
        if let Err(error) = watched.inbox.try_send(event) {
            tracing::debug!(%alloc_id, %error, "the allocation's runner does not hear of its disk yet");
        }
    }
}

/// The use of the file system, as far as it was queried.
#[derive(Debug, Default)]
struct FilesystemUsage {
    last_query: Option<(Instant, DiskAmount)>,
    /// The growth of the use since the thread began, summed over the queries. Space that was freed between two queries
    /// hides an equal growth.
    grown: DiskAmount,
}

/// The pauses that measurements require and that the thread has not made yet.
#[derive(Debug, Default)]
struct MeasureDebt(Duration);

impl MeasureDebt {
    /// Adds the pause for a measurement that took `took`. Returns the pause to make now, if it is long enough to be
    /// worth a wake-up.
    fn add_measurement(&mut self, took: Duration) -> Option<Duration> {
        self.0 += took
            .saturating_mul(THREAD_PAUSE_FACTOR)
            .min(THREAD_PAUSE_MAX);
        (self.0 >= THREAD_PAUSE_MIN).then(|| std::mem::take(&mut self.0).min(THREAD_PAUSE_MAX))
    }
}

/// The change of the file system's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UsageGrowth {
    /// The use was not queried, or did not grow.
    None,
    /// The growth since the thread began.
    To(DiskAmount),
    /// The file system does not report its use.
    Unknown,
}

impl FilesystemUsage {
    /// Queries the use, if the last query is long enough ago.
    fn measure(&mut self, now: Instant, ask: impl FnOnce() -> Option<DiskAmount>) -> UsageGrowth {
        let before = self.last_query;
        if before.is_some_and(|(at, _)| now < at + MEASURE_INTERVAL_MIN) {
            return UsageGrowth::None;
        }
        let Some(used) = ask() else {
            return UsageGrowth::Unknown;
        };
        self.last_query = Some((now, used));
        let more = before.map_or(DiskAmount::default(), |(_, before)| used.beyond(before));
        if more == DiskAmount::default() {
            return UsageGrowth::None;
        }
        self.grown.add(more);
        UsageGrowth::To(self.grown)
    }
}

/// Returns the amount in use in the file system of `dir`; `None` if the file system does not report it.
fn in_use(dir: &Path) -> Option<DiskAmount> {
    let space = rustix::fs::statvfs(dir).ok()?;
    Some(DiskAmount {
        bytes: space.f_blocks.saturating_sub(space.f_bfree) * space.f_frsize,
        inodes: space.f_files.saturating_sub(space.f_ffree),
    })
}

/// Handles a growth of the file system. An allocation whose last measurements had the same result is measured now, if
/// the growth alone could take it beyond its limit.
fn handle_growth(watched: &mut BTreeMap<AllocId, MeasuredAlloc>, growth: UsageGrowth) {
    let may_exceed = |watched: &MeasuredAlloc| match (growth, watched.last_use) {
        (UsageGrowth::None, _) => false,
        (UsageGrowth::Unknown, _) | (_, None) => true,
        (UsageGrowth::To(grown), Some((_, mut used))) => {
            used.add(grown.beyond(watched.grown));
            watched.limit.is_exceeded(used)
        }
    };
    let now = Instant::now();
    let unchanged = watched
        .values_mut()
        .filter(|watched| watched.unchanged_count > 0);
    for watched in unchanged.filter(|watched| may_exceed(watched)) {
        watched.unchanged_count = 0;
        watched.due = now;
    }
}

/// The allocations that are due at `now`, the longest due first, at most [`ROUND_MAX`]. Finding them is a walk over all
/// allocations.
fn due(
    watched: &mut BTreeMap<AllocId, MeasuredAlloc>,
    now: Instant,
    grown: DiskAmount,
) -> Vec<(AllocId, MeasuredAlloc)> {
    let due = watched.iter_mut().filter(|(_, watched)| watched.due <= now);
    let mut due: Vec<_> = due.collect();
    due.sort_by_key(|(_, watched)| watched.due);
    let first = due.into_iter().take(ROUND_MAX);
    let begin = |(alloc_id, watched): (&AllocId, &mut MeasuredAlloc)| {
        watched.grown = grown;
        (*alloc_id, watched.clone())
    };
    first.map(begin).collect()
}

/// The pause between the end of a measurement and the next one of the same allocation. The last `unchanged_count`
/// measurements had the same result.
fn pause(took: Duration, unchanged_count: u32) -> Duration {
    took.saturating_mul(MEASURE_PAUSE_FACTOR)
        .max(MEASURE_INTERVAL_MIN * UNCHANGED_FACTOR.pow(unchanged_count.min(UNCHANGED_MAX)))
}

/// Formats the message to the operator.
fn exceeded(measurement: &Measurement, limit: DiskLimit) -> String {
    let mut message = format!(
        "the ephemeral disk is exceeded: {}",
        UsageText(measurement.used, limit)
    );
    if measurement.too_deep {
        message.push_str(", and directories are nested deeper than can be measured");
    }
    let by_inodes = measurement.used.bytes <= limit.bytes;
    let mut places: Vec<(&String, &DiskAmount)> = measurement.by_place.iter().collect();
    places.sort_by_key(|(_, used)| {
        std::cmp::Reverse(if by_inodes { used.inodes } else { used.bytes })
    });
    let named: Vec<String> = places
        .into_iter()
        .take(PLACES_NAMED_MAX)
        .map(|(place, used)| {
            let used = if by_inodes {
                format!("{} inodes", used.inodes)
            } else {
                mib(used.bytes)
            };
            format!("{place} {used}")
        })
        .collect();
    if !named.is_empty() {
        message.push_str("; most in ");
        message.push_str(&named.join(", "));
    }
    message.push_str("; raise ephemeral_disk.size of the group, or write less");
    message
}

/// The use of a limit, as text.
struct UsageText(DiskAmount, DiskLimit);

impl fmt::Display for UsageText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(used, limit) = self;
        let (bytes, bytes_max) = (mib(used.bytes), mib(limit.bytes));
        let (inodes, inodes_max) = (used.inodes, limit.inodes);
        write!(
            f,
            "{bytes} of {bytes_max} and {inodes} of {inodes_max} inodes in use"
        )
    }
}

/// Formats bytes in MiB with one digit, rounded up, so that a value above a limit also looks above it.
fn mib(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10).div_ceil(1 << 20);
    match tenths % 10 {
        0 => format!("{} MiB", tenths / 10),
        digit => format!("{}.{digit} MiB", tenths / 10),
    }
}

#[cfg(test)]
mod tests;
