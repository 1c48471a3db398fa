use std::fs;

use super::*;

const MS: u64 = 1_000_000;

fn record(offset: u64, at_ms: u64) -> Record {
    Record {
        offset,
        at: Timestamp(at_ms * MS),
    }
}

fn found(records: &[Record], offset: u64) -> (Option<u64>, Option<u64>) {
    let number = |at: u64| usize::try_from(at).unwrap();
    let count = records.len() as u64;
    let taken = find(count, 100, offset, |at| Ok(records[number(at)])).unwrap();
    (taken.at.map(|at| at.0 / MS), taken.until)
}

fn note(times: &mut TimesWriter, dir: &Path, offset: u64, at_ms: u64) {
    times.note(dir, "web.stdout", 3, record(offset, at_ms), 8);
}

fn written(dir: &Path) -> Vec<(u64, u64)> {
    let file = File::open(dir.join(".web.stdout.3.times")).unwrap();
    let records = all(&file, 100).unwrap();
    records
        .iter()
        .map(|record| (record.offset, record.at.0 / MS))
        .collect()
}

#[test]
fn bytes_fall_under_the_record_before_them() {
    let records = [record(100, 1), record(120, 2), record(150, 3)];

    assert_eq!(found(&records, 99), (None, Some(100)));
    assert_eq!(found(&records, 100), (Some(1), Some(120)));
    assert_eq!(found(&records, 119), (Some(1), Some(120)));
    assert_eq!(found(&records, 120), (Some(2), Some(150)));
    assert_eq!(found(&records, 9_999), (Some(3), None));
    assert_eq!(found(&[], 100), (None, None));
}

/// A block of zeros, as a power cut leaves it: offset 0 is before the file, time 0 is none.
#[test]
fn records_of_zeros_are_no_times() {
    let records = [record(0, 0), record(0, 0)];

    assert_eq!(found(&records, 100), (None, None));
}

#[test]
fn first_record_young_enough_begins_the_answer() {
    let records = [record(100, 10), record(120, 20), record(150, 30)];
    let asked = |ms| among(&records, 100, Timestamp(ms * MS));

    assert_eq!(asked(9), SinceStart::All);
    assert_eq!(asked(11), SinceStart::From(120));
    assert_eq!(asked(20), SinceStart::From(120));
    assert_eq!(asked(31), SinceStart::Older);
}

#[test]
fn records_come_apart_and_only_with_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = TimesWriter::default();

    // 99 ms later is too early; at 300 nothing had come since 200.
    for (offset, at) in [(7, 100), (8, 199), (9, 200), (9, 300), (20, 400)] {
        note(&mut times, dir.path(), offset, at);
    }

    assert_eq!(written(dir.path()), [(7, 100), (9, 300), (20, 400)]);
}

#[test]
fn a_clock_set_back_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = TimesWriter::default();

    note(&mut times, dir.path(), 7, 1_000);
    note(&mut times, dir.path(), 8, 500);

    assert_eq!(written(dir.path()), [(7, 1_000), (8, 500)]);
}

/// The file has eight records at most. The ninth leaves four, and later records are at least 200 ms apart.
#[test]
fn full_times_file_is_thinned_and_stops_growing() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = TimesWriter::default();
    for n in 0..9 {
        note(&mut times, dir.path(), 10 * n, 100 * n);
    }
    assert_eq!(
        written(dir.path()),
        [(0, 0), (20, 200), (40, 400), (60, 600), (80, 800)]
    );

    for n in 9..10_000 {
        note(&mut times, dir.path(), 10 * n, 100 * n);
    }

    let kept = written(dir.path());
    assert!(kept.len() <= 8 && kept.is_sorted(), "{kept:?}");
    let names = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 1);
}

/// Returns the time that a reader of this process finds at `offset`, in milliseconds.
fn time_at(dir: &Path, offset: u64) -> Option<u64> {
    let dir = LogDir::open(dir).unwrap();
    let taken = taken(&dir, "web.stdout", 3, 0, offset);
    taken.at.map(|at| at.0 / MS)
}

#[test]
fn held_records_are_read_before_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = TimesWriter::default();
    note(&mut times, dir.path(), 7, 100);
    times.hold();

    for (offset, at) in [(9, 300), (9, 400), (20, 500)] {
        note(&mut times, dir.path(), offset, at);
    }

    assert_eq!(written(dir.path()), [(7, 100)]);
    assert_eq!(
        [8, 9, 19, 20].map(|at| time_at(dir.path(), at)),
        [Some(100), Some(400), Some(400), Some(500)]
    );
    let young = since(
        &LogDir::open(dir.path()).unwrap(),
        "web.stdout",
        3,
        0,
        Timestamp(450 * MS),
    );
    assert_eq!(young.unwrap(), SinceStart::From(20));
    times.flush("web.stdout");
    assert_eq!(written(dir.path()), [(7, 100), (9, 400), (20, 500)]);
    assert_eq!(time_at(dir.path(), 20), Some(500));
}

/// The replaced record was written already, and no bytes followed it.
#[test]
fn held_record_replaces_last_written_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = TimesWriter::default();
    note(&mut times, dir.path(), 7, 100);
    times.hold();

    note(&mut times, dir.path(), 7, 300);

    assert_eq!(time_at(dir.path(), 7), Some(300));
    drop(times);
    assert_eq!(written(dir.path()), [(7, 300)]);
}

#[test]
fn only_so_many_records_are_held() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = TimesWriter::default();
    times.hold();

    for n in 0..TIME_RECORDS_HELD_MAX as u64 - 1 {
        note(&mut times, dir.path(), 10 * n, 100 * n);
    }
    assert_eq!(written(dir.path()), []);
    let last = TIME_RECORDS_HELD_MAX as u64 - 1;
    note(&mut times, dir.path(), 10 * last, 100 * last);

    assert_eq!(written(dir.path()).len(), TIME_RECORDS_HELD_MAX);
}

/// The result is the same as without held records: see `full_times_file_is_thinned_and_stops_growing`.
#[test]
fn full_times_file_is_thinned_with_held_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = TimesWriter::default();
    times.hold();

    for n in 0..10_000 {
        note(&mut times, dir.path(), 10 * n, 100 * n);
    }
    drop(times);

    let kept = written(dir.path());
    assert!(kept.len() <= 8 && kept.is_sorted(), "{kept:?}");
    assert_eq!(kept[0], (0, 0));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_torn_end_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    note(&mut TimesWriter::default(), dir.path(), 7, 100);
    let path = dir.path().join(".web.stdout.3.times");
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([1, 2, 3]);
    fs::write(&path, bytes).unwrap();

    note(&mut TimesWriter::default(), dir.path(), 9, 200);

    assert_eq!(written(dir.path()), [(7, 100), (9, 200)]);
}

/// The log was cut after its times were written: they would be about other bytes.
#[test]
fn times_of_bytes_that_are_gone_begin_anew() {
    let dir = tempfile::tempdir().unwrap();
    note(&mut TimesWriter::default(), dir.path(), 900, 100);

    note(&mut TimesWriter::default(), dir.path(), 9, 200);

    assert_eq!(written(dir.path()), [(9, 200)]);
}

#[test]
fn a_link_in_their_place_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join(".web.stdout.3.times")).unwrap();

    note(&mut TimesWriter::default(), dir.path(), 7, 100);

    assert_eq!(fs::read(victim).unwrap(), b"precious");
    let open = LogDir::open(dir.path()).unwrap();
    assert_eq!(taken(&open, "web.stdout", 3, 0, 7), TakenTime::default());
}
