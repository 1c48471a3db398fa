//! The result of one walk over a node's groups. It has the same values as the groups' files, at about a twentieth of
//! the cost.
//!
//! Kinds of memory are not included, because the kernel sums them up when the file is read. Pressure is as the kernel
//! last summed it up, at most two seconds ago.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use muster_ebpf_common::group::{
    GroupRow, HAS_CPU, HAS_KERNEL, HAS_MEMORY, HAS_PIDS, HAS_PRESSURE, HAS_SWAP,
};

use crate::bpf::GroupRows;
use crate::resources::cgroup::memory;
use crate::resources::cgroup::open_files::GroupHierarchy;
use crate::resources::cgroup::stats::{CpuStats, MemoryStats, Pressure, PressureStats};
use crate::resources::cgroup::tree::NodeTree;

/// The rows of all tasks.
#[derive(Debug, Default)]
pub struct CgroupRows {
    /// The rows by root; controllers of v1 may share one root.
    rows: Vec<GroupRows>,
    /// The index of the rows of each controller, and of the v2 hierarchy.
    places: BTreeMap<GroupHierarchy, usize>,
    /// Whether v2 counts swap.
    counts_swap: bool,
}

impl NodeTree {
    /// Walks over the tasks' groups in each hierarchy. `below` walks one hierarchy, and gets its root and whether it is
    /// v2.
    ///
    /// # Errors
    ///
    /// The error of `below`.
    pub fn walk(
        &self,
        mut below: impl FnMut(&Path, bool) -> io::Result<GroupRows>,
    ) -> io::Result<CgroupRows> {
        let mut walked = CgroupRows {
            counts_swap: memory::counts_swap(self.v2_dir()),
            ..CgroupRows::default()
        };
        for (place, root) in self.roots().into_iter().enumerate() {
            let is_v2 = place == 0;
            walked.rows.push(below(root, is_v2)?);
            if is_v2 {
                walked.places.insert(None, place);
                continue;
            }
            let here = self.bound().iter();
            let here = here.filter(|(_, bound)| !bound.v2 && bound.root == root);
            let here = here.map(|(controller, _)| (Some(*controller), place));
            walked.places.extend(here);
        }
        Ok(walked)
    }
}

impl CgroupRows {
    /// The row of the group with this id at `at`.
    pub(crate) fn row(&self, at: GroupHierarchy, id: u64) -> Option<&GroupRow> {
        self.rows.get(*self.places.get(&at)?)?.get(&id)
    }

    /// The memory use in the row, for memory controlled at `at`. `kinds` comes from a file.
    pub(crate) fn memory(
        &self,
        row: &GroupRow,
        at: GroupHierarchy,
        kinds: MemoryStats,
    ) -> Option<MemoryStats> {
        if row.has & HAS_MEMORY == 0 {
            return None;
        }
        let is_v2 = at.is_none();
        let swap =
            (is_v2 && self.counts_swap && row.has & HAS_SWAP != 0).then(|| bytes(row.swap_pages));
        let kernel = (!is_v2 && row.has & HAS_KERNEL != 0).then(|| bytes(row.kernel_pages));
        Some(MemoryStats {
            current_bytes: bytes(row.memory_pages),
            peak_bytes: Some(bytes(row.memory_peak_pages)),
            limit_bytes: Some(bytes(row.memory_limit_pages)).filter(|max| memory::is_limit(*max)),
            swap_bytes: swap.or(kinds.swap_bytes),
            kernel_bytes: kernel.or(kinds.kernel_bytes),
            high_events: is_v2.then_some(row.high_events),
            max_events: is_v2.then_some(row.max_events),
            oom_kills: row.oom_kills,
            ..kinds
        })
    }
}

/// Bytes of memory charged.
pub(crate) fn memory_bytes(row: &GroupRow) -> Option<u64> {
    (row.has & HAS_MEMORY != 0).then(|| bytes(row.memory_pages))
}

pub(crate) fn pids(row: &GroupRow) -> Option<u64> {
    (row.has & HAS_PIDS != 0).then_some(row.pids)
}

/// The throttling in the row; the used CPU time is not in the row.
pub(crate) fn cpu(row: &GroupRow) -> Option<CpuStats> {
    (row.has & HAS_CPU != 0).then(|| CpuStats {
        periods: Some(row.periods),
        throttled_periods: Some(row.throttled_periods),
        throttled_us: Some(row.throttled_ns / 1_000),
        ..CpuStats::default()
    })
}

/// The pressure in a row of the v2 hierarchy.
pub(crate) fn pressure(row: &GroupRow) -> Option<PressureStats> {
    let [
        io_some,
        io_full,
        memory_some,
        memory_full,
        cpu_some,
        cpu_full,
    ] = row.pressure_ns.map(|ns| ns / 1_000);
    let of = |some_us, full_us| Pressure {
        some_us,
        full_us: Some(full_us),
    };
    (row.has & HAS_PRESSURE != 0).then(|| PressureStats {
        cpu: of(cpu_some, cpu_full),
        memory: of(memory_some, memory_full),
        io: of(io_some, io_full),
    })
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::cgroup::Controller;

    fn row() -> GroupRow {
        GroupRow {
            group: 7,
            memory_pages: 3,
            memory_peak_pages: 4,
            memory_limit_pages: u64::MAX / 8_192,
            swap_pages: 5,
            kernel_pages: 6,
            high_events: 8,
            max_events: 9,
            oom_kills: 10,
            pids: 11,
            throttled_ns: 12_999,
            pressure_ns: [1_000, 2_000, 3_000, 4_000, 5_000, 6_000],
            ..GroupRow::default()
        }
    }

    fn kinds() -> MemoryStats {
        MemoryStats {
            rss_bytes: Some(1),
            swap_bytes: Some(2),
            kernel_bytes: Some(3),
            ..MemoryStats::default()
        }
    }

    #[test]
    fn metrics_without_controller_are_absent() {
        let row = row();

        assert_eq!(CgroupRows::default().memory(&row, None, kinds()), None);
        assert_eq!((memory_bytes(&row), pids(&row)), (None, None));
        assert_eq!((cpu(&row), pressure(&row)), (None, None));
    }

    #[test]
    fn memory_stats_follow_the_cgroup_version() {
        let walked = CgroupRows {
            counts_swap: true,
            ..CgroupRows::default()
        };
        let row = GroupRow {
            has: HAS_MEMORY | HAS_SWAP | HAS_KERNEL,
            ..row()
        };
        let page = rustix::param::page_size() as u64;

        let v2 = walked.memory(&row, None, kinds()).unwrap();
        let v1 = walked
            .memory(&row, Some(Controller::Memory), kinds())
            .unwrap();

        assert_eq!(
            (v2.current_bytes, v2.peak_bytes),
            (3 * page, Some(4 * page))
        );
        assert_eq!(v2.limit_bytes, None);
        assert_eq!((v2.swap_bytes, v2.kernel_bytes), (Some(5 * page), Some(3)));
        assert_eq!((v2.high_events, v2.max_events), (Some(8), Some(9)));
        assert_eq!((v1.swap_bytes, v1.kernel_bytes), (Some(2), Some(6 * page)));
        assert_eq!((v1.high_events, v1.max_events), (None, None));
        let uncounted = CgroupRows::default().memory(&row, None, MemoryStats::default());
        assert_eq!(uncounted.unwrap().swap_bytes, None);
    }

    #[test]
    fn pressure_is_in_the_kernel_s_order() {
        let row = GroupRow {
            has: HAS_PRESSURE | HAS_CPU | HAS_PIDS,
            ..row()
        };

        let pressure = pressure(&row).unwrap();

        assert_eq!((pressure.io.some_us, pressure.io.full_us), (1, Some(2)));
        assert_eq!(
            (pressure.memory.some_us, pressure.cpu.full_us),
            (3, Some(6))
        );
        assert_eq!(cpu(&row).unwrap().throttled_us, Some(12));
        assert_eq!(pids(&row), Some(11));
    }
}
