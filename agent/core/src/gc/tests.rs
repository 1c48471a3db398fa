use muster_domain::id::LogIndex;

use super::*;

fn finished(times: &[u64]) -> Vec<Finished> {
    times
        .iter()
        .enumerate()
        .map(|(at, ms)| Finished {
            alloc_id: AllocId::at(LogIndex(1), u32::try_from(at).unwrap()),
            at: Timestamp::from_millis(*ms),
        })
        .collect()
}

/// Destroys until nothing is to be destroyed, each destroy freeing one allocation.
fn collect(
    mut dead: Vec<Finished>,
    live: usize,
    forced: bool,
    limits: GcLimits,
) -> (usize, Vec<u64>) {
    let mut order = Vec::new();
    loop {
        let usage = GcUsage {
            allocs: live + dead.len(),
            ..GcUsage::default()
        };
        let Some((alloc_id, _)) = next(&dead, forced, usage, limits) else {
            break;
        };
        let at = dead
            .iter()
            .position(|alloc| alloc.alloc_id == alloc_id)
            .unwrap();
        order.push(dead.remove(at).at.0 / 1_000_000);
    }
    (dead.len(), order)
}

/// 1 000 finished and a maximum of 50: 950 go, the oldest first, and exactly 50 stay.
#[test]
fn exactly_the_maximum_stays() {
    let times: Vec<u64> = (0..1_000).rev().collect();

    let (left, order) = collect(finished(&times), 0, false, GcLimits::default());

    assert_eq!(left, 50);
    assert_eq!(order, (0..950).collect::<Vec<u64>>());
}

#[test]
fn running_allocations_count_but_stay() {
    let (left, order) = collect(finished(&[3, 1, 2]), 49, false, GcLimits::default());

    assert_eq!((left, order), (1, vec![1, 2]));
}

#[test]
fn force_takes_all_that_finished() {
    let (left, order) = collect(finished(&[3, 1, 2]), 0, true, GcLimits::default());

    assert_eq!((left, order), (0, vec![1, 2, 3]));
}

#[test]
fn without_pressure_nothing_goes() {
    let usage = GcUsage {
        allocs: 50,
        disk_percent: 80,
        inode_percent: 70,
    };

    assert_eq!(
        next(&finished(&[1]), false, usage, GcLimits::default()),
        None
    );
}

#[test]
fn each_threshold_names_itself() {
    let reasons = [
        GcUsage {
            allocs: 51,
            ..GcUsage::default()
        },
        GcUsage {
            disk_percent: 81,
            ..GcUsage::default()
        },
        GcUsage {
            inode_percent: 71,
            ..GcUsage::default()
        },
    ]
    .map(|usage| next(&finished(&[1]), false, usage, GcLimits::default()).map(|(_, why)| why));

    assert_eq!(
        reasons,
        [
            Some(GcReason::Allocs),
            Some(GcReason::Disk),
            Some(GcReason::Inodes)
        ]
    );
}

#[test]
fn pressure_without_finished_allocations_takes_none() {
    let usage = GcUsage {
        allocs: 51,
        disk_percent: 99,
        inode_percent: 99,
    };

    assert_eq!(next(&[], false, usage, GcLimits::default()), None);
}
