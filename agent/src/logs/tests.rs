use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use muster_domain::id::Timestamp;

use crate::logs::{
    Chunk, Fifo, FifoOwner, LogDir, LogReader, OpenFifoError, OpenLogDirError, OpenLogError,
    RotateLimits, RotatingFile,
};

fn limits(max_files: u32, max_file_bytes: u64) -> RotateLimits {
    RotateLimits {
        max_files,
        max_file_bytes,
    }
}

fn writer(dir: &Path, limits: RotateLimits) -> RotatingFile {
    RotatingFile::open(LogDir::open(dir).unwrap(), "web.stdout", limits).unwrap()
}

fn reader(dir: &Path) -> LogReader {
    LogReader::open(dir, "web.stdout").unwrap()
}

fn put(file: &mut RotatingFile, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let wrote = file.write(bytes).unwrap();
        bytes = &bytes[wrote..];
    }
}

/// Reads all bytes from the reader's offset on, with gaps as `[n]`.
fn rest(reader: &mut LogReader) -> String {
    let mut text = String::new();
    while let Some(chunk) = reader.read(7).unwrap() {
        match chunk {
            Chunk::Data { bytes, .. } => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            Chunk::Gap { bytes, .. } => write!(text, "[{bytes}]").unwrap(),
        }
    }
    text
}

fn names(dir: &Path) -> Vec<String> {
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn files_fill_exactly_and_oldest_goes_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(2, 10));

    put(&mut file, b"0123456789abcdefghijKLMNO");

    let kept = ["web.stdout.1", "web.stdout.2"];
    assert_eq!(names(dir.path()), [".web.stdout.offsets", kept[0], kept[1]]);
    assert_eq!(fs::read(dir.path().join(kept[0])).unwrap(), b"abcdefghij");
    assert_eq!(fs::read(dir.path().join(kept[1])).unwrap(), b"KLMNO");
    assert_eq!((file.end(), file.rotations()), (25, 2));
}

#[test]
fn one_file_is_enough_to_rotate() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(1, 4));

    put(&mut file, b"0123456789");

    assert_eq!(fs::read(dir.path().join("web.stdout.2")).unwrap(), b"89");
    assert_eq!(names(dir.path()), [".web.stdout.offsets", "web.stdout.2"]);
    assert_eq!(reader(dir.path()).offset(), 8);
}

#[test]
fn reopened_writer_goes_on_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    put(&mut writer(dir.path(), limits(3, 10)), b"0123456789abc");

    let mut file = writer(dir.path(), limits(3, 10));
    put(&mut file, b"def");

    assert_eq!(file.end(), 16);
    assert_eq!(rest(&mut reader(dir.path())), "0123456789abcdef");
}

/// The size of the files changes twice; offsets stay those of the stream.
#[test]
fn changed_limits_keep_the_offsets() {
    let dir = tempfile::tempdir().unwrap();
    put(&mut writer(dir.path(), limits(9, 4)), b"0123456789");
    put(&mut writer(dir.path(), limits(2, 6)), b"abcdefgh");

    let reader = reader(dir.path());

    let files = reader.files().unwrap();
    let spans: Vec<_> = files
        .iter()
        .map(|file| (file.index, file.offset, file.bytes))
        .collect();
    assert_eq!(spans, [(2, 8, 6), (3, 14, 4)]);
}

/// A kill between writing the offsets and making the file leaves a line without its file.
#[test]
fn half_made_rotation_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    put(&mut writer(dir.path(), limits(3, 4)), b"0123");
    fs::write(dir.path().join(".web.stdout.offsets"), "0 0\n1 4\n").unwrap();

    put(&mut writer(dir.path(), limits(3, 9)), b"4567");

    assert_eq!(fs::read(dir.path().join("web.stdout.1")).unwrap(), b"4567");
    assert_eq!(rest(&mut reader(dir.path())), "01234567");
}

#[test]
fn lost_offsets_are_made_up_from_lengths() {
    let dir = tempfile::tempdir().unwrap();
    put(&mut writer(dir.path(), limits(2, 4)), b"0123456789");
    fs::remove_file(dir.path().join(".web.stdout.offsets")).unwrap();

    let file = writer(dir.path(), limits(2, 4));

    assert_eq!(file.end(), 10);
    assert_eq!(reader(dir.path()).offset(), 4);
}

#[test]
fn dropped_bytes_are_a_gap_for_readers() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(5, 100));

    put(&mut file, b"before ");
    file.drop_bytes(1_000);
    file.drop_bytes(1);
    put(&mut file, b" after");

    assert_eq!(rest(&mut reader(dir.path())), "before [1001] after");
    assert_eq!(writer(dir.path(), limits(5, 100)).end(), 7 + 1_001 + 6);
}

#[test]
fn rotated_bytes_are_a_gap_for_readers() {
    let dir = tempfile::tempdir().unwrap();
    put(&mut writer(dir.path(), limits(2, 4)), b"0123456789");
    let mut reader = reader(dir.path());

    reader.seek(1);

    assert_eq!(rest(&mut reader), "[3]456789");
}

#[test]
fn slow_reader_keeps_the_file_it_has_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(1, 4));
    put(&mut file, b"0123");
    let mut reader = reader(dir.path());
    let first = reader.read(2).unwrap();

    put(&mut file, b"456789");

    assert_eq!(
        first,
        Some(Chunk::Data {
            offset: 0,
            bytes: b"01".to_vec()
        })
    );
    assert_eq!(rest(&mut reader), "23[4]89");
}

#[test]
fn tail_begins_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    put(&mut writer(dir.path(), limits(3, 4)), b"0123456789");
    let mut reader = reader(dir.path());

    reader.seek_from_end(5).unwrap();
    assert_eq!(rest(&mut reader), "56789");

    reader.seek_from_end(1_000).unwrap();
    assert_eq!(rest(&mut reader), "0123456789");
}

#[test]
fn last_lines_are_found_across_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(9, 5));
    put(&mut file, b"one\ntwo\nthree\nfour\n");
    let mut reader = reader(dir.path());

    for (lines, text) in [
        (0, ""),
        (1, "four\n"),
        (2, "three\nfour\n"),
        (9, "one\ntwo\nthree\nfour\n"),
    ] {
        reader.seek_last_lines(lines).unwrap();
        assert_eq!(rest(&mut reader), text, "{lines}");
    }
    put(&mut file, b"fi");
    reader.seek_last_lines(2).unwrap();
    assert_eq!(rest(&mut reader), "four\nfi");
}

const SECOND: u64 = 1_000_000_000;

/// Writes each text as taken at its second.
fn put_at(file: &mut RotatingFile, texts: &[(u64, &str)]) {
    for (second, text) in texts {
        file.set_time(Timestamp(second * SECOND));
        put(file, text.as_bytes());
    }
}

/// Reads all bytes from the reader's offset on, each piece after its second.
fn timed(reader: &mut LogReader) -> String {
    let mut text = String::new();
    while let Some((chunk, at)) = reader.read_timed(1_000).unwrap() {
        match at {
            Some(at) => write!(text, "{}:", at.0 / SECOND).unwrap(),
            None => text.push('?'),
        }
        match chunk {
            Chunk::Data { bytes, .. } => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            Chunk::Gap { bytes, cause, .. } => write!(text, "[{bytes} {cause:?}]").unwrap(),
        }
    }
    text.replace('\n', "/")
}

/// Files of 8 bytes: `two` begins in file 0 and ends in file 1.
#[test]
fn pieces_have_the_time_they_were_taken_at() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(9, 8));

    put_at(&mut file, &[(1, "one\n"), (2, "twotwo\n"), (3, "three\n")]);

    let text = timed(&mut reader(dir.path()));
    assert_eq!(text, "1:one/2:twot2:wo/3:three3:/");
}

#[test]
fn without_times_the_bytes_are_there() {
    let dir = tempfile::tempdir().unwrap();
    put_at(
        &mut writer(dir.path(), limits(9, 8)),
        &[(1, "one\n"), (2, "twotwo\n")],
    );

    fs::remove_file(dir.path().join(".web.stdout.0.times")).unwrap();
    fs::write(dir.path().join(".web.stdout.1.times"), [0xff; 1000]).unwrap();

    assert_eq!(timed(&mut reader(dir.path())), "?one/twot?wo/");
}

#[test]
fn times_go_with_their_file() {
    let dir = tempfile::tempdir().unwrap();

    put_at(
        &mut writer(dir.path(), limits(1, 4)),
        &[(1, "one\n"), (2, "two\n"), (3, "six\n")],
    );

    assert_eq!(
        names(dir.path()),
        [".web.stdout.2.times", ".web.stdout.offsets", "web.stdout.2"]
    );
}

#[test]
fn lines_since_a_time_are_found_across_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(9, 8));
    put_at(
        &mut file,
        &[
            (1, "one\n"),
            (3, "three\nthi"),
            (4, "rd\nfour\n"),
            (9, "nine"),
        ],
    );
    let mut reader = reader(dir.path());

    for (second, text) in [
        (0, "one\nthree\nthird\nfour\nnine"),
        (2, "three\nthird\nfour\nnine"),
        (3, "three\nthird\nfour\nnine"),
        // The line that began before is not included.
        (4, "four\nnine"),
        (5, "nine"),
        (10, ""),
    ] {
        reader.seek_since(Timestamp(second * SECOND)).unwrap();
        assert_eq!(rest(&mut reader), text, "{second}");
    }
}

/// The files were written to just now.
#[test]
fn lines_of_unknown_time_are_rather_shown() {
    let dir = tempfile::tempdir().unwrap();
    put(&mut writer(dir.path(), limits(9, 4)), b"one\ntwo\n");
    let mut reader = reader(dir.path());

    reader.seek_since(Timestamp(SECOND)).unwrap();
    assert_eq!(rest(&mut reader), "one\ntwo\n");

    reader.seek_since(Timestamp(u64::MAX)).unwrap();
    assert_eq!(rest(&mut reader), "");
}

#[test]
fn gaps_have_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(2, 10));
    put_at(&mut file, &[(1, "a\n")]);
    file.drop_bytes(5);
    put_at(&mut file, &[(2, "b\n")]);
    let mut reader = reader(dir.path());
    assert_eq!(timed(&mut reader), "1:a/?[5 Dropped]2:b/");

    put(&mut file, &[b'x'; 26]);
    let late = timed(&mut reader);

    assert!(late.ends_with("xx"), "{late}");
    reader.seek(3);
    assert!(timed(&mut reader).starts_with("?[12 Rotated]"));
}

/// A thousand drops leave one file: they push no other file out.
#[test]
fn dropping_often_rotates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(2, 1 << 20));

    let mut expected = String::new();
    for n in 1..=200 {
        put(&mut file, b"x");
        file.drop_bytes(n);
        write!(expected, "x[{n}]").unwrap();
    }

    assert_eq!(names(dir.path()), [".web.stdout.0.gaps", "web.stdout.0"]);
    assert_eq!(rest(&mut reader(dir.path())), expected);
    assert_eq!((file.end(), file.rotations()), (200 + 200 * 201 / 2, 0));
}

/// 256 records are the minimum for a log file. The next gap begins another file, as it does where no gap can be
/// recorded.
#[test]
fn gap_limit_starts_next_log_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(9, 1_000));

    for _ in 0..300 {
        put(&mut file, b"x");
        file.drop_bytes(1);
    }

    assert_eq!(file.rotations(), 1);
    let record = fs::metadata(dir.path().join(".web.stdout.0.gaps")).unwrap();
    assert_eq!(record.len(), 256 * 16);
    assert_eq!(rest(&mut reader(dir.path())), "x[1]".repeat(300));
}

#[test]
fn gap_without_a_record_begins_the_next_file() {
    let dir = tempfile::tempdir().unwrap();
    // The directory simulates a disk without space for a record.
    let taken = dir.path().join(".web.stdout.1.gaps");
    fs::create_dir(&taken).unwrap();
    let mut file = writer(dir.path(), limits(9, 4));

    put(&mut file, b"0123ab");
    file.drop_bytes(7);
    file.drop_bytes(1);
    put(&mut file, b"cd");
    fs::remove_dir(taken).unwrap();

    assert_eq!(rest(&mut reader(dir.path())), "0123ab[8]cd");
    assert_eq!(file.rotations(), 2);
}

/// A writer that follows a killed one continues at the same offset, whatever was written. The gap is reported once,
/// with bytes behind it or without.
#[test]
fn gaps_outlive_their_writer() {
    let dir = tempfile::tempdir().unwrap();
    let open = || writer(dir.path(), limits(5, 10));

    open().drop_bytes(3);
    assert_eq!(open().end(), 3);
    put(&mut open(), b"abc");
    open().drop_bytes(4);
    open().drop_bytes(5);
    assert_eq!(open().end(), 15);
    put(&mut open(), b"defghij");
    open().drop_bytes(6);
    put(&mut open(), b"klm");

    assert_eq!(open().end(), 31);
    assert_eq!(rest(&mut reader(dir.path())), "[3]abc[9]defghij[6]klm");
    let files = reader(dir.path()).files().unwrap();
    let spans: Vec<_> = files.iter().map(|file| (file.offset, file.bytes)).collect();
    assert_eq!(spans, [(0, 10), (28, 3)]);
}

/// The writer was killed in a rotation that a full disk delayed, with bytes dropped since. The line has 4, but the
/// offset is 9.
#[test]
fn half_made_rotation_begins_behind_the_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(3, 4));
    put(&mut file, b"0123");
    file.drop_bytes(5);
    fs::write(dir.path().join(".web.stdout.offsets"), "0 0\n1 4\n").unwrap();

    put(&mut writer(dir.path(), limits(3, 9)), b"4567");

    assert_eq!(rest(&mut reader(dir.path())), "0123[5]4567");
}

#[test]
fn lost_offsets_follow_from_gaps_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(3, 4));
    put(&mut file, b"01");
    file.drop_bytes(10);
    put(&mut file, b"23ab");
    fs::remove_file(dir.path().join(".web.stdout.offsets")).unwrap();

    let file = writer(dir.path(), limits(3, 4));

    assert_eq!(file.end(), 16);
    assert_eq!(rest(&mut reader(dir.path())), "01[10]23ab");
}

#[test]
fn any_offset_is_found_among_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(9, 5));
    put(&mut file, b"ab");
    file.drop_bytes(3);
    put(&mut file, b"cde");
    file.drop_bytes(2);
    put(&mut file, b"f");
    let mut reader = reader(dir.path());

    for (offset, text) in [
        (0, "ab[3]cde[2]f"),
        (1, "b[3]cde[2]f"),
        (2, "[3]cde[2]f"),
        (4, "[1]cde[2]f"),
        (5, "cde[2]f"),
        (8, "[2]f"),
        (9, "[1]f"),
        (10, "f"),
        (11, ""),
    ] {
        reader.seek(offset);
        assert_eq!(rest(&mut reader), text, "{offset}");
    }
    reader.seek_from_end(4).unwrap();
    assert_eq!(rest(&mut reader), "e[2]f");
}

/// A gap at the end is reported, and reported again as it grows.
#[test]
fn trailing_gap_is_reported_as_it_grows() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(9, 100));
    put(&mut file, b"last");
    let mut reader = reader(dir.path());

    file.drop_bytes(3);
    assert_eq!(rest(&mut reader), "last[3]");
    file.drop_bytes(4);
    assert_eq!(rest(&mut reader), "[4]");
    put(&mut file, b"more");
    assert_eq!(rest(&mut reader), "more");
    reader.seek(0);
    assert_eq!(rest(&mut reader), "last[7]more");
    reader.seek_from_end(0).unwrap();
    assert_eq!(reader.offset(), file.end());
}

/// The parts of a line with a gap in it are two lines.
#[test]
fn last_lines_are_counted_around_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(9, 9));
    put(&mut file, b"one\ntw");
    file.drop_bytes(1_000);
    put(&mut file, b"o\nthree\n");
    let mut reader = reader(dir.path());

    for (lines, text) in [
        (0, ""),
        (1, "three\n"),
        (2, "o\nthree\n"),
        (3, "tw[1000]o\nthree\n"),
        (4, "one\ntw[1000]o\nthree\n"),
        (9, "one\ntw[1000]o\nthree\n"),
    ] {
        reader.seek_last_lines(lines).unwrap();
        assert_eq!(rest(&mut reader), text, "{lines}");
    }
}

#[test]
fn times_and_gaps_go_together() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(9, 100));
    put_at(&mut file, &[(1, "one\n")]);
    file.drop_bytes(5);
    put_at(&mut file, &[(3, "three\n")]);
    let mut reader = reader(dir.path());

    assert_eq!(timed(&mut reader), "1:one/?[5 Dropped]3:three/");
    reader.seek_since(Timestamp(2 * SECOND)).unwrap();
    reader.read_timed(3).unwrap();
    assert_eq!((reader.file(), reader.offset()), (Some((0, 7)), 12));
    assert_eq!(rest(&mut reader), "ee\n");
}

#[test]
fn gaps_go_with_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(1, 4));
    file.reserve_gaps().unwrap();
    put(&mut file, b"01");
    file.drop_bytes(3);

    put(&mut file, b"23abcdef");

    let gaps = ".web.stdout.2.gaps";
    assert_eq!(
        names(dir.path()),
        [gaps, ".web.stdout.offsets", "web.stdout.2"]
    );
    assert_eq!(fs::metadata(dir.path().join(gaps)).unwrap().len(), 0);
}

/// The reader has read two bytes of a file that is then filled, with a gap, and rotated away; or without one.
#[test]
fn slow_reader_survives_rotated_gaps() {
    for (dropped, text) in [(5, "23[7]cdef"), (0, "23ab[0]cdef")] {
        let dir = tempfile::tempdir().unwrap();
        let mut file = writer(dir.path(), limits(1, 6));
        put(&mut file, b"0123");
        let mut reader = reader(dir.path());
        reader.read(2).unwrap();

        file.drop_bytes(dropped);
        put(&mut file, b"abcdef");

        assert_eq!(rest(&mut reader), text.replace("[0]", ""), "{dropped}");
    }
}

/// The writer was killed between removing a log file and its small files.
#[test]
fn leftovers_of_a_killed_rotation_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    put(&mut writer(dir.path(), limits(1, 4)), b"0123ab");
    fs::write(dir.path().join(".web.stdout.0.gaps"), [1; 16]).unwrap();
    fs::write(dir.path().join(".web.stdout.0.times"), [1; 16]).unwrap();

    drop(writer(dir.path(), limits(1, 4)));

    assert_eq!(names(dir.path()), [".web.stdout.offsets", "web.stdout.1"]);
}

#[tokio::test]
async fn follower_sees_new_bytes_and_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut reader = reader(dir.path());
    let soon = Duration::from_millis(1);
    assert_eq!(reader.follow(10, soon).await.unwrap(), None);
    let path = dir.path().to_owned();

    let write = tokio::task::spawn_blocking(move || {
        put(&mut writer(&path, limits(3, 4)), b"012345");
    });

    let late = Duration::from_secs(10);
    let mut text = Vec::new();
    while text.len() < 6 {
        match reader
            .follow(100, late)
            .await
            .unwrap()
            .expect("bytes before the deadline")
        {
            Chunk::Data { bytes, .. } => text.extend(bytes),
            gap @ Chunk::Gap { .. } => panic!("{gap:?}"),
        }
    }
    write.await.unwrap();
    assert_eq!(text, b"012345");
}

fn first(dir: &Path, limits: RotateLimits) -> RotatingFile {
    RotatingFile::new(dir.to_owned(), "web.stdout", limits).unwrap()
}

#[test]
fn stream_without_a_byte_has_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(2, 10));
    let mut never_begun = first(dir.path(), limits(2, 10));

    file.set_time(Timestamp(SECOND));
    file.flush_times();
    file.rest();
    never_begun.rest();

    assert_eq!(names(dir.path()), Vec::<String>::new());
    assert_eq!((file.end(), never_begun.end()), (0, 0));
    let mut reader = reader(dir.path());
    assert_eq!(reader.files().unwrap(), []);
    assert_eq!(rest(&mut reader), "");
    reader.seek_from_end(5).unwrap();
    reader.seek_last_lines(3).unwrap();
    reader.seek_since(Timestamp(0)).unwrap();
    assert_eq!(reader.offset(), 0);
}

/// Each reader was opened before its stream had a byte.
#[test]
fn first_byte_or_drop_creates_log_file() {
    for (dropped, text, made) in [
        (0, "word", &["web.stdout.0"][..]),
        (3, "[3]word", &[".web.stdout.0.gaps", "web.stdout.0"][..]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut reader = reader(dir.path());
        let mut file = first(dir.path(), limits(2, 10));
        assert_eq!(rest(&mut reader), "");

        file.drop_bytes(dropped);
        put(&mut file, b"word");

        assert_eq!(names(dir.path()), made);
        assert_eq!(rest(&mut reader), text);
    }
}

/// The stream had bytes before. The writer continues like one that was opened on existing files.
#[test]
fn first_byte_goes_behind_existing_bytes() {
    for before in ["", "0123", "0123456789"] {
        let dir = tempfile::tempdir().unwrap();
        put(&mut writer(dir.path(), limits(2, 4)), before.as_bytes());

        let mut file = first(dir.path(), limits(2, 4));
        put(&mut file, b"ab");

        assert_eq!(file.end(), before.len() as u64 + 2);
        let text = rest(&mut reader(dir.path()));
        let kept = format!("{before}ab");
        assert_eq!(text, kept[kept.len() - text.len()..]);
    }
}

/// The action of [`file_after_write`] between two texts.
enum WriterAction {
    Nothing,
    Rest,
    Restart,
}

/// Writes texts, gaps and times through two rotations, with or without reserved space for gaps.
fn file_after_write(dir: &Path, between: &WriterAction, reserves: bool) -> RotatingFile {
    let limits = limits(3, 10);
    let open = || {
        let mut file = writer(dir, limits);
        file.hold_times();
        if reserves {
            file.reserve_gaps().unwrap();
        }
        file
    };
    let mut file = open();
    let words = [
        "0123",
        "45",
        "",
        "678901",
        "a",
        "bcdefghijk",
        "l",
        "mno",
        "p",
    ];
    for (second, word) in (1..).zip(words) {
        put_at(&mut file, &[(second, word)]);
        if second % 3 == 0 {
            file.drop_bytes(second);
        }
        match between {
            WriterAction::Nothing => {}
            WriterAction::Rest => file.rest(),
            WriterAction::Restart => {
                drop(file);
                file = open();
            }
        }
    }
    file
}

fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| (name.clone(), fs::read(dir.join(name)).unwrap());
    names(dir).into_iter().map(read).collect()
}

#[test]
fn reopened_files_continue_as_if_kept_open() {
    for reserves in [false, true] {
        let written = [
            WriterAction::Nothing,
            WriterAction::Rest,
            WriterAction::Restart,
        ]
        .map(|between| {
            let dir = tempfile::tempdir().unwrap();
            let mut file = file_after_write(dir.path(), &between, reserves);
            file.rest();
            (
                contents(dir.path()),
                file.end(),
                timed(&mut reader(dir.path())),
            )
        });

        let [open, closed, restarted] = written;
        assert_eq!(closed, open);
        assert_eq!(closed, restarted);
    }
}

/// Descriptors of this process below `dir`.
fn descriptors(dir: &Path) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let links = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.starts_with(dir)).count()
}

/// A busy writer has the log file, its times and its gaps open. The directory is not kept open.
#[test]
fn writer_at_rest_keeps_no_file_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = writer(dir.path(), limits(3, 100));
    file.reserve_gaps().unwrap();
    put_at(&mut file, &[(1, "word")]);
    assert_eq!(descriptors(dir.path()), 3);

    file.rest();

    assert_eq!(descriptors(dir.path()), 0);
    let _taken_again = writer(dir.path(), limits(3, 100));
    assert_eq!(descriptors(dir.path()), 0);
}

/// Held records are written when the files are closed.
#[test]
fn times_are_whole_at_rest() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = first(dir.path(), limits(3, 100));
    file.hold_times();
    put_at(&mut file, &[(1, "one "), (2, "two "), (3, "three")]);
    let times = dir.path().join(".web.stdout.0.times");
    assert_eq!(fs::metadata(&times).unwrap().len(), 0);

    file.rest();

    assert_eq!(fs::metadata(&times).unwrap().len(), 3 * 16);
    put_at(&mut file, &[(9, " nine")]);
    assert_eq!(timed(&mut reader(dir.path())), "1:one 2:two 3:three9: nine");
}

/// Another program truncated the file, or removed all files, while none was open. The missing bytes are a gap, and
/// no offset is used twice.
#[test]
fn files_changed_at_rest_leave_a_gap() {
    for (cut, text) in [(Some(4), "word[6]more"), (None, "[10]more")] {
        let dir = tempfile::tempdir().unwrap();
        let mut file = first(dir.path(), limits(3, 100));
        put(&mut file, b"word by me");
        file.rest();
        let path = dir.path().join("web.stdout.0");
        match cut {
            Some(bytes) => fs::OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|file| file.set_len(bytes))
                .unwrap(),
            None => fs::remove_file(path).unwrap(),
        }

        put(&mut file, b"more");

        assert_eq!(file.end(), 14);
        let mut reader = reader(dir.path());
        reader.seek(0);
        assert_eq!(rest(&mut reader), text);
    }
}

/// Ten thousand tasks have twice as many writers. With its files open, one had 288 bytes before they could be closed.
#[test]
fn writer_at_rest_is_small() {
    let bytes = size_of::<RotatingFile>();
    assert!(bytes <= 200, "{bytes}");
}

#[test]
fn unusable_limits_and_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str, limits| {
        RotatingFile::open(LogDir::open(dir.path()).unwrap(), name, limits).unwrap_err()
    };

    assert!(matches!(
        open("a", limits(0, 1)),
        OpenLogError::Limits { .. }
    ));
    assert!(matches!(
        open("a", limits(1, 0)),
        OpenLogError::Limits { .. }
    ));
    assert!(matches!(
        open("../a", limits(1, 1)),
        OpenLogError::Name { .. }
    ));
    assert!(matches!(
        open(".a", limits(1, 1)),
        OpenLogError::Name { .. }
    ));
}

#[test]
fn log_file_that_is_a_link_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("victim");
    fs::write(&target, "precious").unwrap();
    symlink(&target, dir.path().join("web.stdout.0")).unwrap();
    let open = LogDir::open(dir.path()).unwrap();

    let refused = RotatingFile::open(open, "web.stdout", limits(1, 100)).unwrap_err();

    assert!(matches!(refused, OpenLogError::Io { .. }), "{refused}");
    assert_eq!(fs::read(target).unwrap(), b"precious");
}

#[test]
fn directory_that_is_a_link_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();

    let refused = LogDir::open(&link).unwrap_err();

    assert!(matches!(refused, OpenLogDirError::Open { .. }), "{refused}");
}

#[test]
fn fifo_is_private_roomy_and_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = LogDir::create(&dir.path().join("fifos")).unwrap();
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();

    let fifo = Fifo::create(&log_dir, "web.stdout", Some(FifoOwner { uid, gid })).unwrap();
    rustix::io::write(&fifo, b"waits").unwrap();
    let again = Fifo::create(&log_dir, "web.stdout", None).unwrap();

    let meta = fs::symlink_metadata(fifo.path()).unwrap();
    assert!(meta.file_type().is_fifo());
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    assert!(again.capacity() >= 64 * 1024, "{}", again.capacity());
    assert_eq!(again.waiting().unwrap(), 5);
}

#[test]
fn fifo_replaced_by_link_or_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = LogDir::open(dir.path()).unwrap();
    let real = Fifo::create(&log_dir, "real", None).unwrap();
    symlink(real.path(), dir.path().join("link")).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();

    let link = Fifo::open(&log_dir, "link").unwrap_err();
    let file = Fifo::create(&log_dir, "file", None).unwrap_err();

    assert!(matches!(link, OpenFifoError::Open { .. }), "{link}");
    assert!(matches!(file, OpenFifoError::NotFifo { .. }), "{file}");
}
