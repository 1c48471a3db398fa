use muster_domain::id::LogIndex;

use super::*;

fn id(name: u32) -> AllocId {
    AllocId::at(LogIndex(1), name)
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

/// A node over virtual time: each file system has 100 units of bytes and 100 of inodes.
struct Node {
    collector: Collector,
    now: Timestamp,
    running: BTreeSet<AllocId>,
    /// Bytes and inodes of each finished allocation, in percent.
    finished: BTreeMap<AllocId, (u8, u8)>,
    unreported: BTreeSet<AllocId>,
    /// Allocations whose driver refuses the destroy.
    broken: BTreeSet<AllocId>,
    /// The use by other files, in percent.
    others: (u8, u8),
    /// Destroyed allocations that are not deleted yet.
    trash: Vec<(u8, u8)>,
    under_way: Vec<AllocId>,
    /// Destroyed allocations in order, with the reason.
    gone: Vec<(AllocId, GcReason)>,
    most_under_way: usize,
}

impl Node {
    fn new(limits: GcLimits) -> Self {
        Self {
            collector: Collector::new(GcConfig {
                limits,
                ..GcConfig::default()
            }),
            now: at(1_000),
            running: BTreeSet::new(),
            finished: BTreeMap::new(),
            unreported: BTreeSet::new(),
            broken: BTreeSet::new(),
            others: (0, 0),
            trash: Vec::new(),
            under_way: Vec::new(),
            gone: Vec::new(),
            most_under_way: 0,
        }
    }

    fn finish(&mut self, name: u32, seconds: u64, size: (u8, u8)) {
        self.running.remove(&id(name));
        self.finished.insert(id(name), size);
        self.collector.handle_finished(id(name), at(seconds));
    }

    fn poll(&mut self) {
        let allocs = self.running.len() + self.finished.len();
        loop {
            let sizes = self.finished.values().chain(&self.trash);
            let (disk, inodes) =
                sizes.fold(self.others, |sum, size| (sum.0 + size.0, sum.1 + size.1));
            let space = GcSpace {
                disk_percent: disk,
                inode_percent: inodes,
                deleting: !self.trash.is_empty(),
            };
            let is_reported = |alloc_id| !self.unreported.contains(&alloc_id);
            let choice = self
                .collector
                .poll_destroy(allocs, is_reported, || space, self.now);
            let Some((alloc_id, reason)) = choice else {
                return;
            };
            self.gone.push((alloc_id, reason));
            self.under_way.push(alloc_id);
            self.most_under_way = self.most_under_way.max(self.under_way.len());
        }
    }

    /// Ends one destroy or one deletion; returns false if there is none.
    fn step(&mut self) -> bool {
        if let Some(alloc_id) = self.under_way.pop() {
            if self.broken.contains(&alloc_id) {
                self.gone.retain(|(gone, _)| *gone != alloc_id);
                self.collector.handle_refused(alloc_id, self.now);
            } else {
                self.trash.extend(self.finished.remove(&alloc_id));
                self.collector.handle_destroyed(alloc_id, self.now);
            }
        } else if self.trash.pop().is_none() {
            return false;
        }
        true
    }

    /// Repeats steps until no event remains. Returns the destroyed allocations and the reasons.
    fn settle(&mut self) -> Vec<(u32, GcReason)> {
        self.poll();
        while self.step() {
            self.poll();
        }
        let number = |alloc_id| (0..2_000).find(|name| id(*name) == alloc_id);
        let gone = std::mem::take(&mut self.gone).into_iter();
        gone.map(|(alloc_id, reason)| (number(alloc_id).unwrap(), reason))
            .collect()
    }
}

fn limits(allocs_max: usize) -> GcLimits {
    GcLimits {
        allocs_max,
        ..GcLimits::default()
    }
}

/// With 1 000 finished allocations and a maximum of 50, the 950 oldest are destroyed and exactly 50 stay.
#[test]
fn exactly_the_maximum_stays() {
    let mut node = Node::new(GcLimits::default());
    for name in 0..1_000 {
        node.finish(name, 1_000 - u64::from(name), (0, 0));
    }

    let gone = node.settle();

    assert_eq!(node.finished.len(), 50);
    let expected: Vec<_> = (50..1_000)
        .rev()
        .map(|name| (name, GcReason::Allocs))
        .collect();
    assert_eq!(gone, expected);
    assert_eq!(node.most_under_way, 2);
    assert_eq!(node.settle(), []);
}

/// Each row: the maximum, the use of disk and inodes by other files, the running allocations, the finished allocations
/// as (second of the end, disk, inodes), and the order of destroys.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn thresholds_decide_which_allocs_are_collected() {
    use GcReason::{Allocs, Disk, Inodes};
    type Row<'a> = (
        &'a str,
        usize,
        (u8, u8),
        u32,
        &'a [(u64, u8, u8)],
        &'a [(u32, GcReason)],
    );
    let rows: &[Row<'_>] = &[
        (
            "no pressure, however old",
            50,
            (0, 0),
            0,
            &[(1, 1, 1), (2, 1, 1)],
            &[],
        ),
        (
            "below the thresholds",
            2,
            (77, 67),
            0,
            &[(1, 1, 1), (2, 1, 1)],
            &[],
        ),
        (
            "at that of the disk",
            2,
            (78, 67),
            0,
            &[(1, 1, 1), (2, 1, 1)],
            &[(0, Disk)],
        ),
        (
            "at that of inodes",
            2,
            (77, 68),
            0,
            &[(1, 1, 1), (2, 1, 1)],
            &[(0, Inodes)],
        ),
        (
            "one too many",
            2,
            (0, 0),
            1,
            &[(2, 1, 1), (1, 1, 1)],
            &[(1, Allocs)],
        ),
        (
            "running ones count and stay",
            2,
            (0, 0),
            5,
            &[(1, 1, 1), (2, 1, 1)],
            &[(0, Allocs), (1, Allocs)],
        ),
        (
            "disk, until it is met",
            50,
            (59, 0),
            0,
            &[(3, 10, 0), (1, 5, 0), (2, 10, 0)],
            &[(1, Disk)],
        ),
        (
            "disk, one is not enough",
            50,
            (70, 0),
            0,
            &[(1, 5, 0), (2, 5, 0), (3, 5, 0)],
            &[(0, Disk), (1, Disk)],
        ),
        (
            "disk of others alone",
            50,
            (90, 0),
            0,
            &[(1, 5, 0), (2, 1, 0)],
            &[(0, Disk), (1, Disk)],
        ),
        (
            "inodes",
            50,
            (0, 64),
            0,
            &[(1, 0, 5), (2, 0, 5)],
            &[(0, Inodes)],
        ),
        (
            "number before space",
            1,
            (85, 0),
            0,
            &[(1, 0, 0), (2, 0, 0)],
            &[(0, Allocs), (1, Disk)],
        ),
        ("nothing finished", 1, (99, 99), 5, &[], &[]),
        (
            "a maximum of none",
            0,
            (0, 0),
            0,
            &[(1, 0, 0)],
            &[(0, Allocs)],
        ),
    ];
    for (name, allocs_max, others, running, finished, expected) in rows {
        let mut node = Node::new(limits(*allocs_max));
        node.others = *others;
        node.running = (1_000..1_000 + running).map(id).collect();
        for (number, (seconds, disk, inodes)) in (0..).zip(finished.iter()) {
            node.finish(number, *seconds, (*disk, *inodes));
        }

        assert_eq!(node.settle(), *expected, "{name}");
    }
}

#[test]
fn a_tie_goes_by_id() {
    let mut node = Node::new(limits(0));
    let mut ids: Vec<AllocId> = (0..3).map(id).collect();
    for name in 0..3 {
        node.finish(name, 1, (0, 0));
    }
    ids.sort();

    node.poll();

    assert_eq!(node.under_way, ids[..2]);
}

/// A new allocation is counted before it starts, and does not wait.
#[test]
fn new_alloc_over_max_collects_oldest() {
    let mut node = Node::new(limits(2));
    node.finish(0, 1, (0, 0));
    node.finish(1, 2, (0, 0));
    assert_eq!(node.settle(), []);

    node.running.insert(id(2));

    assert_eq!(node.settle(), [(0, GcReason::Allocs)]);
}

#[test]
fn finished_alloc_over_max_is_collected() {
    let mut node = Node::new(limits(1));
    node.running.extend([id(0), id(1)]);
    assert_eq!(node.settle(), []);

    node.finish(1, 5, (0, 0));

    assert_eq!(node.settle(), [(1, GcReason::Allocs)]);
}

#[test]
fn forced_gc_collects_all_terminal_allocs_once() {
    let mut node = Node::new(limits(50));
    node.running.insert(id(9));
    for name in 0..3 {
        node.finish(name, u64::from(3 - name), (0, 0));
    }
    let all = node.collector.handle_forced();
    assert_eq!(all.len(), 3);

    let forced = [2, 1, 0].map(|name| (name, GcReason::Forced));
    assert_eq!(node.settle(), forced);

    node.finish(9, 9, (0, 0));
    assert_eq!(node.settle(), []);
}

/// An allocation whose end the control plane does not know yet stays, and is destroyed afterwards.
#[test]
fn untold_ones_stay() {
    let mut node = Node::new(limits(0));
    node.finish(0, 1, (0, 0));
    node.finish(1, 2, (0, 0));
    node.unreported.insert(id(0));
    node.collector.handle_forced();

    assert_eq!(node.settle(), [(1, GcReason::Forced)]);
    let stays = |alloc_id| {
        let is_unreported = node.unreported.contains(&alloc_id);
        is_unreported.then_some(KeptReason::Unreported)
    };
    let kept = BTreeMap::from([(KeptReason::Unreported, 1)]);
    assert_eq!(node.collector.outlook(1, stays), (0, kept));

    node.unreported.clear();
    assert_eq!(node.settle(), [(0, GcReason::Forced)]);
}

/// The pause is a second, then doubles each time, up to five minutes.
#[test]
fn refused_destroy_backs_off_without_blocking_others() {
    let mut node = Node::new(limits(0));
    for name in 0..3 {
        node.finish(name, u64::from(name), (0, 0));
    }
    node.broken.insert(id(0));

    // The refused allocation still counts, so another is destroyed in its place.
    assert_eq!(
        node.settle(),
        [(1, GcReason::Allocs), (2, GcReason::Allocs)]
    );
    assert_eq!(node.settle(), []);
    let mut pauses = Vec::new();
    for _try in 0..11 {
        let (until, _) = node.collector.poll_timeout(node.now).unwrap();
        pauses.push(until.since(node.now).as_secs());
        node.now = until;
        assert_eq!(node.settle(), []);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    assert_eq!(node.collector.state().refusals, 12);

    node.broken.clear();
    node.collector.handle_forced();
    assert_eq!(node.settle(), [(0, GcReason::Forced)]);
}

/// Without pressure a refused destroy is not tried again.
#[test]
fn refused_ones_stay_when_the_pressure_is_gone() {
    let mut node = Node::new(limits(50));
    node.others = (85, 0);
    node.finish(0, 1, (0, 0));
    node.broken.insert(id(0));
    assert_eq!(node.settle(), []);

    node.broken.clear();
    node.others = (10, 0);
    node.now = at(9_000);

    assert_eq!(node.settle(), []);
    assert_eq!(node.collector.poll_timeout(node.now), None);
}

/// An allocation that the control plane removes is destroyed independently of the others, and counts as gone.
#[test]
fn removed_allocs_free_slots_and_count_as_collected() {
    let mut node = Node::new(limits(2));
    for name in 0..4 {
        node.finish(name, u64::from(name), (0, 0));
    }
    node.collector.handle_removed(id(2));
    node.collector.handle_removed(id(3));

    assert_eq!(node.settle(), []);
    let state = node.collector.state();
    assert_eq!((state.finished, state.under_way), (4, 2));

    // The driver refuses, so the allocations still count.
    node.collector.handle_refused(id(3), node.now);
    assert_eq!(node.settle(), [(0, GcReason::Allocs)]);
}

/// A removed allocation that runs may take long to stop, and others do not wait for it.
#[test]
fn removed_running_alloc_delays_no_collection() {
    let mut node = Node::new(limits(50));
    node.others = (85, 0);
    node.running.insert(id(7));
    node.finish(0, 1, (1, 0));

    node.collector.handle_removed(id(7));

    assert_eq!(node.settle(), [(0, GcReason::Disk)]);
}

/// Space is not measured before the last deletion is over.
#[test]
fn allocs_are_chosen_only_after_deletions_end() {
    let mut node = Node::new(limits(50));
    node.others = (74, 0);
    node.finish(0, 1, (5, 0));
    node.finish(1, 2, (5, 0));
    node.trash.push((5, 0));

    node.poll();
    assert_eq!(node.under_way, []);

    node.trash.clear();
    assert_eq!(node.settle(), [(0, GcReason::Disk)]);
}

#[test]
fn disk_usage_is_not_measured_during_destroy() {
    let mut node = Node::new(limits(50));
    node.others = (85, 0);
    node.finish(0, 1, (1, 0));
    node.finish(1, 2, (1, 0));
    node.poll();
    assert_eq!(node.under_way, [id(0)]);

    let measure = || panic!("space is measured");
    let choice = node.collector.poll_destroy(2, |_| true, measure, node.now);

    assert_eq!(choice, None);
}

#[test]
fn state_counts_collected_allocs() {
    let mut node = Node::new(limits(1));
    for name in 0..3 {
        node.finish(name, u64::from(name), (0, 0));
    }
    node.settle();

    let state = node.collector.state();

    assert_eq!(state.destroyed, BTreeMap::from([(GcReason::Allocs, 2)]));
    assert_eq!((state.finished, state.under_way, state.refused), (1, 0, 0));
    assert_eq!(state.last, Some((node.now, GcReason::Allocs)));
}

#[test]
fn the_outlook_adds_up() {
    let mut node = Node::new(limits(50));
    node.running.insert(id(8));
    for name in 0..3 {
        node.finish(name, u64::from(name), (0, 0));
    }
    node.collector.handle_refused(id(0), node.now);

    node.finish(3, 3, (0, 0));
    let stays = |alloc_id| match alloc_id {
        one if one == id(1) => Some(KeptReason::Unreported),
        one if one == id(3) => Some(KeptReason::DataAwaited),
        _ => None,
    };

    let (free, kept) = node.collector.outlook(5, stays);

    let all = [
        KeptReason::Running,
        KeptReason::Unreported,
        KeptReason::DataAwaited,
        KeptReason::Refused,
    ];
    assert_eq!((free, kept), (1, all.map(|reason| (reason, 1)).into()));
}
