use std::fs;

use super::*;

fn gap(position: u64, total: u64) -> Gap {
    Gap { position, total }
}

fn found(gaps: &[Gap], relative: u64) -> OffsetContent {
    let number = |at: u64| usize::try_from(at).unwrap();
    find(gaps.len() as u64, relative, |at| Ok(gaps[number(at)])).unwrap()
}

fn data(position: u64, until_gap: Option<u64>) -> OffsetContent {
    OffsetContent::Data {
        position,
        until_gap,
    }
}

fn writer(dir: &Path, bytes: u64) -> GapsWriter {
    GapsWriter::resume(&LogDir::open(dir).unwrap(), "web.stdout", 3, bytes).unwrap()
}

fn note(writer: &mut GapsWriter, dir: &Path, position: u64, bytes: u64) -> bool {
    writer
        .note(dir, "web.stdout", (position, bytes), 3)
        .unwrap()
}

fn written(dir: &Path) -> Vec<u8> {
    fs::read(dir.join(".web.stdout.3.gaps")).unwrap()
}

fn bytes_of(gaps: &[Gap]) -> Vec<u8> {
    gaps.iter().flat_map(|gap| gap.encode()).collect()
}

/// Five bytes missing at 0, ten at 20, one at 30: data at 5..25, 35..45 and from 46 on.
#[test]
fn positions_follow_from_offsets() {
    let gaps = [gap(0, 5), gap(20, 15), gap(30, 16)];

    assert_eq!(found(&gaps, 0), OffsetContent::Gap { left: 5 });
    assert_eq!(found(&gaps, 4), OffsetContent::Gap { left: 1 });
    assert_eq!(found(&gaps, 5), data(0, Some(20)));
    assert_eq!(found(&gaps, 24), data(19, Some(1)));
    assert_eq!(found(&gaps, 25), OffsetContent::Gap { left: 10 });
    assert_eq!(found(&gaps, 35), data(20, Some(10)));
    assert_eq!(found(&gaps, 45), OffsetContent::Gap { left: 1 });
    assert_eq!(found(&gaps, 46), data(30, None));
    assert_eq!(found(&gaps, 9_999), data(9_983, None));
    assert_eq!(found(&[], 7), data(7, None));
}

#[test]
fn gap_record_grows_until_bytes_follow() {
    let dir = tempfile::tempdir().unwrap();
    let mut gaps = writer(dir.path(), 0);

    for (position, bytes) in [(7, 1), (7, 2), (9, 4)] {
        assert!(note(&mut gaps, dir.path(), position, bytes));
    }

    assert_eq!(written(dir.path()), bytes_of(&[gap(7, 3), gap(9, 7)]));
    assert_eq!(gaps.total(), 7);
}

/// Three records at most: a fourth gap is refused, the third still grows.
#[test]
fn a_full_record_takes_no_more_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let mut gaps = writer(dir.path(), 0);

    let taken = [1, 2, 3, 4].map(|position| note(&mut gaps, dir.path(), position, 1));

    assert_eq!(taken, [true, true, true, false]);
    assert!(note(&mut gaps, dir.path(), 3, 5));
    assert_eq!(gaps.total(), 8);
}

#[test]
fn incomplete_or_damaged_gap_records_are_cut_off() {
    let sound = [gap(7, 3), gap(9, 7)];
    for damage in [vec![1, 2, 3], vec![0; 4096], bytes_of(&[gap(8, 9)])] {
        let dir = tempfile::tempdir().unwrap();
        let bytes = [bytes_of(&sound), damage].concat();
        fs::write(dir.path().join(".web.stdout.3.gaps"), bytes).unwrap();

        let mut gaps = writer(dir.path(), 100);
        note(&mut gaps, dir.path(), 100, 1);

        let expected = bytes_of(&[sound[0], sound[1], gap(100, 8)]);
        assert_eq!(written(dir.path()), expected);
    }
}

/// A power cut removed bytes of the log and left the record: the dropped bytes stay counted.
#[test]
fn gaps_of_lost_bytes_move_to_end() {
    for (bytes, expected) in [
        (8, vec![gap(7, 3), gap(8, 9)]),
        (7, vec![gap(7, 9)]),
        (3, vec![gap(3, 9)]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let record = bytes_of(&[gap(7, 3), gap(9, 7), gap(12, 9)]);
        fs::write(dir.path().join(".web.stdout.3.gaps"), record).unwrap();

        let gaps = writer(dir.path(), bytes);

        assert_eq!(written(dir.path()), bytes_of(&expected), "{bytes}");
        assert_eq!(gaps.total(), 9);
    }
}

#[test]
fn reserved_room_holds_no_records() {
    let dir = tempfile::tempdir().unwrap();

    writer(dir.path(), 0)
        .reserve(dir.path(), "web.stdout")
        .unwrap();

    assert_eq!(written(dir.path()), bytes_of(&[]));
    assert_eq!(writer(dir.path(), 0).total(), 0);
}
