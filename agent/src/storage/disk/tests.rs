use muster_domain::fixture;
use muster_domain::id::LogIndex;
use muster_domain::resources::Mb;

use super::*;

/// Longer than any measurement takes.
const DEADLINE: Duration = Duration::from_secs(30);

fn alloc_id() -> AllocId {
    AllocId::at(LogIndex(7), 0)
}

fn limit(mb: u32) -> DiskLimit {
    let mut group = fixture::group("main");
    group.ephemeral_disk.size = Mb(mb);
    DiskLimit::of(&group)
}

fn used(bytes: u64, inodes: u64) -> DiskAmount {
    DiskAmount { bytes, inodes }
}

#[test]
fn inodes_follow_from_the_size() {
    assert_eq!(
        limit(300),
        DiskLimit {
            bytes: 300 << 20,
            inodes: 76_800
        }
    );
    assert_eq!(limit(10).inodes, INODES_MIN);
}

/// A one-off task without a disk size, and one with 20 MiB.
#[test]
fn one_off_task_without_disk_is_unlimited() {
    let limit = |disk_mb| {
        let mut definition = fixture::definition();
        definition.disk_mb = disk_mb;
        let job = one_off::job("g", "d", &definition, one_off::OneOffTimings::default());
        let alloc_id = AllocId([1; 16]);
        DiskLimit::of_alloc(&fixture::desired(alloc_id, fixture::version(job))).unwrap()
    };

    assert!(!limit(0).is_exceeded(used(u64::MAX, u64::MAX)));
    assert!(limit(20).is_exceeded(used((20 << 20) + 1, 0)));
}

#[test]
fn the_limit_itself_may_be_used() {
    let limit = limit(10);

    assert!(!limit.is_exceeded(used(limit.bytes, limit.inodes)));
    assert!(limit.is_exceeded(used(limit.bytes + 1, 0)));
    assert!(limit.is_exceeded(used(0, limit.inodes + 1)));
}

#[test]
fn a_long_measurement_is_repeated_later() {
    assert_eq!(pause(Duration::from_millis(1), 0), MEASURE_INTERVAL_MIN);
    assert_eq!(pause(Duration::from_secs(3), 0), Duration::from_mins(1));
}

#[test]
fn unchanged_usage_is_measured_less_often() {
    let took = Duration::from_micros(20);

    assert_eq!(pause(took, 1), MEASURE_INTERVAL_MIN * 4);
    assert_eq!(pause(took, UNCHANGED_MAX), MEASURE_INTERVAL_MIN * 16);
    assert_eq!(pause(took, 1_000), MEASURE_INTERVAL_MIN * 16);
}

#[test]
fn filesystem_growth_is_accumulated() {
    let (mut space, begun) = (FilesystemUsage::default(), Instant::now());
    let full = |bytes, inodes| move || Some(used(bytes, inodes));
    let at = |looks: u32| begun + MEASURE_INTERVAL_MIN * looks;
    // The use before the first query is unknown.
    assert_eq!(space.measure(at(0), full(500, 9)), UsageGrowth::None);

    let asked = space.measure(at(0), || panic!("it is not asked all the time"));
    assert_eq!(asked, UsageGrowth::None);
    assert_eq!(
        space.measure(at(1), full(600, 9)),
        UsageGrowth::To(used(100, 0))
    );
    assert_eq!(
        space.measure(at(2), full(100, 12)),
        UsageGrowth::To(used(100, 3))
    );
    assert_eq!(space.measure(at(3), full(100, 12)), UsageGrowth::None);
    assert_eq!(space.measure(at(4), || None), UsageGrowth::Unknown);
    assert_eq!(
        space.measure(at(5), full(150, 11)),
        UsageGrowth::To(used(150, 3))
    );
}

#[test]
fn alloc_possibly_over_disk_limit_is_measured() {
    let (inbox, _inputs) = mpsc::channel(1);
    let later = Instant::now() + DEADLINE;
    let (mb, held) = (1 << 20, |mb: u64| Some((now(), used(mb << 20, 5))));
    let watched = |unchanged_count, last_use| MeasuredAlloc {
        dir: PathBuf::new(),
        limit: limit(10),
        quota: false,
        due: later,
        last_use,
        grown: used(100, 0),
        unchanged_count,
        inbox: inbox.clone(),
    };
    let all = [
        watched(2, held(1)),
        watched(2, held(8)),
        watched(0, held(8)),
        watched(2, None),
    ];
    let all: BTreeMap<_, _> = (1..).map(|byte| AllocId([byte; 16])).zip(all).collect();
    let due = |growth| {
        let mut all = all.clone();
        handle_growth(&mut all, growth);
        all.values()
            .map(|watched| watched.due < later)
            .collect::<Vec<_>>()
    };

    assert_eq!(due(UsageGrowth::None), [false; 4]);
    assert_eq!(
        due(UsageGrowth::To(used(2 * mb + 100, 0))),
        [false, false, false, true]
    );
    assert_eq!(
        due(UsageGrowth::To(used(2 * mb + 101, 0))),
        [false, true, false, true]
    );
    assert_eq!(
        due(UsageGrowth::To(used(100, INODES_MIN))),
        [true, true, false, true]
    );
    assert_eq!(due(UsageGrowth::Unknown), [true, true, false, true]);
}

#[test]
fn those_that_are_due_longest_come_first() {
    let (inbox, _inputs) = mpsc::channel(1);
    let begun = Instant::now();
    let watched = |due: u32| MeasuredAlloc {
        dir: PathBuf::new(),
        limit: limit(10),
        quota: false,
        due: begun + MEASURE_INTERVAL_MIN * due,
        last_use: None,
        grown: DiskAmount::default(),
        unchanged_count: 0,
        inbox: inbox.clone(),
    };
    let all = (1..=40_u8).map(|byte| (AllocId([byte; 16]), watched(u32::from(100 - byte))));
    let mut all: BTreeMap<_, _> = all.collect();

    let none = due(&mut all, begun, used(7, 7));
    let some = due(&mut all, begun + MEASURE_INTERVAL_MIN * 62, used(7, 7));
    let many = due(&mut all, begun + MEASURE_INTERVAL_MIN * 90, used(7, 7));

    let bytes = |found: &[(AllocId, MeasuredAlloc)]| {
        found.iter().map(|(id, _)| id.0[0]).collect::<Vec<_>>()
    };
    assert_eq!(bytes(&none), [0; 0]);
    assert_eq!(bytes(&some), [40, 39, 38]);
    assert_eq!(bytes(&many), (25..=40).rev().collect::<Vec<u8>>());
    assert!(many.iter().all(|(_, watched)| watched.grown == used(7, 7)));
}

#[test]
fn small_measurements_are_rested_from_together() {
    let mut debt = MeasureDebt::default();
    let small = THREAD_PAUSE_MIN / THREAD_PAUSE_FACTOR / 4 + Duration::from_micros(1);

    let rests = [small; 8].map(|took| debt.add_measurement(took));

    let together = small * THREAD_PAUSE_FACTOR * 4;
    let expected = [None, None, None, Some(together)];
    assert_eq!(rests[..4], expected);
    assert_eq!(rests[4..], expected, "what was rested is not owed again");
}

#[test]
fn expensive_measurement_rests_immediately_up_to_max() {
    let mut debt = MeasureDebt::default();

    assert_eq!(debt.add_measurement(Duration::from_micros(1)), None);
    assert_eq!(
        debt.add_measurement(Duration::from_mins(1)),
        Some(THREAD_PAUSE_MAX)
    );
    assert_eq!(debt.add_measurement(Duration::from_micros(1)), None);
}

#[test]
fn the_message_names_limit_use_and_places() {
    let place = |name: &str, mb: u64| (name.to_owned(), used(mb << 20, 5));
    let look = Measurement {
        used: used((12 << 20) + 1, 40),
        enforced_limit: None,
        by_place: [
            place("web/tmp", 1),
            place("alloc/data", 9),
            place("web/local", 2),
            place("alloc/tmp", 0),
        ]
        .into(),
        too_deep: false,
    };

    assert_eq!(
        exceeded(&look, limit(10)),
        "the ephemeral disk is exceeded: 12.1 MiB of 10 MiB and 40 of 4096 inodes in use; most in alloc/data 9 MiB, \
         web/local 2 MiB, web/tmp 1 MiB; raise ephemeral_disk.size of the group, or write less"
    );
}

#[test]
fn only_two_words_are_known() {
    assert_eq!("auto".parse(), Ok(DiskEnforcement::Auto));
    assert_eq!("off".parse(), Ok(DiskEnforcement::Off));
    assert!("on".parse::<DiskEnforcement>().is_err());
}

/// Disks that are measured, even if the file system of the tests has quota.
fn accounted(dir: &Path) -> Disks {
    let mut disks = Disks::start(dir, DiskEnforcement::Off).unwrap();
    assert_eq!(disks.stats(alloc_id()), None);
    let shared = DiskState {
        mode: DiskEnforcementMode::Accounted {
            reason: "a test".to_owned(),
        },
        allocs: dir.to_owned(),
        projects: Projects::default(),
        watched: Mutex::default(),
        wakeup: Condvar::new(),
        stop: AtomicBool::new(false),
    };
    disks.shared = Arc::new(shared);
    let measured = Arc::clone(&disks.shared);
    disks.thread = Some(std::thread::spawn(move || measured.run()));
    disks
}

fn exceeded_message(inputs: &mut mpsc::Receiver<Input>) -> String {
    let begun = Instant::now();
    while begun.elapsed() < DEADLINE {
        match inputs.try_recv() {
            Ok(Input::Event(event)) => match *event {
                Event::DiskExceeded { message } => return message,
                other => panic!("{other:?}"),
            },
            Ok(other) => panic!("{other:?}"),
            Err(_empty) => std::thread::yield_now(),
        }
    }
    panic!("nobody was told within {DEADLINE:?}");
}

#[test]
fn runner_is_notified_of_too_many_bytes() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(temp.path().join("web/local")).unwrap();
    std::fs::write(temp.path().join("web/local/large"), vec![1; 11 << 20]).unwrap();
    let disks = accounted(temp.path());
    let (inbox, mut inputs) = mpsc::channel(1);

    disks.watch(alloc_id(), temp.path(), limit(10), &inbox);

    let message = exceeded_message(&mut inputs);
    assert!(message.contains("of 10 MiB"), "{message}");
    assert!(message.contains("most in web/local 11"), "{message}");
    let stats = disks.stats(alloc_id()).unwrap();
    assert_eq!(stats.enforcement, "accounted");
    assert!(stats.used_bytes.unwrap() > 11 << 20, "{stats:?}");
}

#[test]
fn runner_is_notified_of_too_many_inodes() {
    let temp = tempfile::tempdir().unwrap();
    for name in 0..=INODES_MIN {
        std::fs::write(temp.path().join(name.to_string()), "").unwrap();
    }
    let disks = accounted(temp.path());
    let (inbox, mut inputs) = mpsc::channel(1);

    disks.watch(alloc_id(), temp.path(), limit(10), &inbox);

    let message = exceeded_message(&mut inputs);
    assert!(message.contains("of 4096 inodes"), "{message}");
}

/// A limit lowered by an update below the measured use is reported at once.
#[test]
fn a_changed_limit_counts_at_once() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("large"), vec![1; 11 << 20]).unwrap();
    let disks = accounted(temp.path());
    let (inbox, mut inputs) = mpsc::channel(1);
    disks.watch(alloc_id(), temp.path(), limit(12), &inbox);
    let begun = Instant::now();
    while disks.stats(alloc_id()).unwrap().used_bytes.is_none() {
        assert!(begun.elapsed() < DEADLINE);
        std::thread::yield_now();
    }
    assert!(inputs.try_recv().is_err());

    disks.watch(alloc_id(), temp.path(), limit(10), &inbox);

    exceeded_message(&mut inputs);
    disks.forget(alloc_id());
    assert_eq!(disks.stats(alloc_id()), None);
}
