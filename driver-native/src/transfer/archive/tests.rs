//! Tests of untrusted archives, and of the messages that are sent for them.

use std::io::Write as _;

use ::tar::{EntryType, Header};
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use rawzip::{CompressionMethod, ZipArchiveWriter};

use super::*;

const BOUNDS: ArchiveLimits = ArchiveLimits {
    entries: 10,
    bytes: 10_000,
};

/// Returns the messages to a porter, one for each line, and the result.
fn unpacked_within(
    archive: &[u8],
    bounds: ArchiveLimits,
) -> (Vec<String>, Result<(), UnpackError>) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(archive).unwrap();
    file.rewind().unwrap();
    let (mut messages, stop) = (Vec::new(), CancellationToken::new());
    let name = Name::read(b"plain");
    let ended = unpack(file, name.as_ref(), bounds, &stop, &mut messages);
    (lines(&messages), ended)
}

fn unpacked(archive: &[u8]) -> Vec<String> {
    let (lines, ended) = unpacked_within(archive, BOUNDS);
    ended.unwrap();
    lines
}

/// Parses the messages as the porter does.
fn lines(mut messages: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while !messages.is_empty() {
        let (head, rest) = messages.split_at(24);
        let number = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let mode = u32::from_le_bytes(head[8..12].try_into().unwrap());
        let size = u64::from_le_bytes(head[16..24].try_into().unwrap());
        let (name, rest) = rest.split_at(number(2));
        let (link, rest) = rest.split_at(number(4));
        let (data, rest) = rest.split_at(usize::try_from(size).unwrap().min(rest.len()));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\0', "");
        let kind = char::from(head[0]);
        let line = format!(
            "{kind} {} {mode:o} {}{}",
            text(name),
            text(link),
            text(data)
        );
        lines.push(line.trim_end().to_owned());
        messages = rest;
    }
    lines
}

fn header(kind: EntryType, name: &str, size: usize) -> Header {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o7_751);
    header.set_size(size as u64);
    header.set_cksum();
    header
}

fn entry(kind: EntryType, name: &str, data: &[u8]) -> Vec<u8> {
    let padding = vec![0; (512 - data.len() % 512) % 512];
    [header(kind, name, data.len()).as_bytes(), data, &padding].concat()
}

fn file(name: &str, data: &str) -> Vec<u8> {
    entry(EntryType::Regular, name, data.as_bytes())
}

fn link(kind: EntryType, name: &str, target: &str) -> Vec<u8> {
    let mut header = header(kind, name, 0);
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 1_024]].concat()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns POSIX attributes: length, key and value, each attribute in a line.
fn attributes(of: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in of {
        let rest = format!(" {key}={value}\n");
        let length = (rest.len()..1_000).find(|n| n.to_string().len() + rest.len() == *n);
        bytes.extend(format!("{}{rest}", length.unwrap()).bytes());
    }
    entry(EntryType::XHeader, "attributes", &bytes)
}

/// Returns a zip file of entries: name, Unix mode, content. Content is deflated unless it is empty.
fn zip(entries: &[(&str, u32, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut archive = ZipArchiveWriter::new(&mut bytes);
    for (name, mode, content) in entries {
        if name.ends_with('/') {
            archive.new_dir(*name).create().unwrap();
            continue;
        }
        let method = if content.is_empty() {
            CompressionMethod::STORE
        } else {
            CompressionMethod::DEFLATE
        };
        let builder = archive.new_file(*name).compression_method(method);
        let (mut entry, config) = builder.unix_permissions(*mode).start().unwrap();
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content.as_bytes()).unwrap();
        let packed = encoder.finish().unwrap();
        let mut summed = config.wrap(io::sink());
        summed.write_all(content.as_bytes()).unwrap();
        let (_, descriptor) = summed.finish().unwrap();
        if !content.is_empty() {
            entry.write_all(&packed).unwrap();
        }
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    bytes
}

/// Returns a zip file with a name that usual programs do not write.
fn renamed(name: &str, hostile: &str) -> Vec<u8> {
    let mut bytes = zip(&[(name, 0o100_644, "x")]);
    let places = 0..bytes.len() - name.len();
    for at in places {
        if bytes[at..].starts_with(name.as_bytes()) {
            bytes[at..at + name.len()].copy_from_slice(hostile.as_bytes());
        }
    }
    bytes
}

#[test]
fn tar_files_are_known_by_their_content() {
    let plain = tar(&[
        entry(EntryType::Directory, "./", b""),
        entry(EntryType::Directory, "bin/", b""),
        file("bin/a", "text"),
        file("empty", ""),
        entry(EntryType::Regular, "old/", b""),
        link(EntryType::Symlink, "bin/l", "../empty"),
        link(EntryType::Link, "hard", "./bin/a"),
    ]);
    let expected = [
        "d bin 751",
        "f bin/a 751 text",
        "f empty 751",
        "d old 751",
        "l bin/l 0 ../empty",
        "h hard 0 bin/a",
        "e  0",
    ];
    assert_eq!(unpacked(&plain), expected);
    assert_eq!(unpacked(&gz(&plain)), expected);
    // Many programs write no end blocks.
    assert_eq!(unpacked(&plain[..plain.len() - 1_024]), expected);
}

#[test]
fn zip_files_are_known_by_their_content() {
    let archive = zip(&[
        ("dir/", 0, ""),
        ("dir/a", 0o100_755, "text"),
        ("empty", 0o100_644, ""),
        ("dir/l", 0o120_777, "../empty"),
    ]);

    let found = unpacked(&archive);

    assert!(found[0].starts_with("d dir 7"), "{found:?}");
    assert_eq!(
        found[1..],
        [
            "f dir/a 755 text",
            "f empty 644",
            "l dir/l 0 ../empty",
            "e  0"
        ]
    );
}

#[test]
fn unknown_archive_formats_are_plain_files() {
    for content in [&b"text"[..], b"", b"\x1f\x8bno", b"PK", &[0; 2_048]] {
        let found = unpacked(content);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("f plain 644"), "{found:?}");
    }
    assert!(unpacked(&gz(b"text"))[0].starts_with("f plain 644"));
}

#[test]
fn gnu_and_pax_long_names_are_supported() {
    let long = "d/".repeat(120) + "f";
    let target = "t/".repeat(120) + "f";
    let mut zero = long.clone();
    zero.push('\0');
    let archive = tar(&[
        entry(EntryType::GNULongName, "././@LongLink", zero.as_bytes()),
        file("short", "gnu"),
        attributes(&[("path", &long), ("mtime", "1.5")]),
        file("short", "posix"),
        attributes(&[("linkpath", &target)]),
        link(EntryType::Symlink, "l", "short"),
        entry(EntryType::XGlobalHeader, "g", b"12 a=b c=d\n\n"),
        file("short", "own"),
    ]);

    let found = unpacked(&archive);

    let expected = [
        format!("f {long} 751 gnu"),
        format!("f {long} 751 posix"),
        format!("l l 0 {target}"),
        "f short 751 own".to_owned(),
        "e  0".to_owned(),
    ];
    assert_eq!(found, expected);
}

/// An entry that leaves the directory, is no file, or contradicts its header is not sent.
#[test]
fn hostile_entries_are_refused_by_name() {
    let sparse = [("GNU.sparse.major", "1"), ("path", "sparse")];
    let huge = entry(EntryType::GNULongName, "x", &vec![b'x'; 100_000]);
    let wrong_sum = {
        let mut bytes = file("f", "x");
        bytes[0] = b'g';
        [file("first", ""), bytes].concat()
    };
    let table = [
        (file("../f", "x"), "\"../f\" is not a name"),
        (file("a/../../f", "x"), "\"a/../../f\" is not a name"),
        (file("/etc/f", "x"), "\"/etc/f\" is not a name"),
        (file("./", ""), ""),
        (link(EntryType::Symlink, "./", "a"), "\"./\" is not a name"),
        (
            link(EntryType::Symlink, "l", "/etc"),
            "\"l\" links to \"/etc\", which leads out",
        ),
        (link(EntryType::Symlink, "l", "a/../.."), "\"l\" links to"),
        (
            link(EntryType::Symlink, "a/l", "../../x"),
            "\"a/l\" links to",
        ),
        (link(EntryType::Symlink, "l", ""), "\"l\" links to"),
        (link(EntryType::Link, "l", "/etc/passwd"), "\"l\" links to"),
        (link(EntryType::Link, "l", "../x"), "\"l\" links to"),
        (link(EntryType::Link, "l", "./l"), "\"l\" links to"),
        (entry(EntryType::Char, "d", b""), "\"d\" is a device"),
        (entry(EntryType::Block, "d", b""), "\"d\" is a device"),
        (entry(EntryType::Fifo, "d", b""), "\"d\" is a FIFO"),
        (
            entry(EntryType::GNUSparse, "d", b""),
            "\"d\" is a sparse file",
        ),
        (attributes(&sparse), " is a sparse file"),
        (
            entry(EntryType::new(b'V'), "v", b""),
            "\"v\" is of an unknown kind",
        ),
        (
            [attributes(&[("size", "9")]), file("f", "x")].concat(),
            "\"f\" is of a size",
        ),
        (
            [attributes(&[("path", "../f")]), file("f", "x")].concat(),
            "\"../f\" is not a name",
        ),
        (
            huge,
            "it cannot be read: a name or its attributes have more than 65536 bytes",
        ),
        (
            wrong_sum,
            "it cannot be read: the sum over a header is wrong",
        ),
    ];
    for (bytes, reason) in table {
        for archive in [
            tar(std::slice::from_ref(&bytes)),
            gz(&tar(std::slice::from_ref(&bytes))),
        ] {
            let (lines, ended) = unpacked_within(&archive, BOUNDS);
            if reason.is_empty() {
                ended.unwrap();
                continue;
            }
            let error = ended.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
            assert!(lines.iter().all(|line| line == "f first 751"), "{lines:?}");
        }
    }
}

#[test]
fn hostile_zip_files_are_refused_by_name() {
    let table = [
        (renamed("aa/f", "../f"), "\"../f\" is not a name"),
        (renamed("a/aa/f", "a/../f"), "\"a/../f\" is not a name"),
        (renamed("aetc/f", "/etc/f"), "\"/etc/f\" is not a name"),
        (zip(&[("l", 0o120_777, "/etc")]), "\"l\" links to \"/etc\""),
        (
            zip(&[("l", 0o120_777, &"x".repeat(5_000))]),
            "\"l\" links to",
        ),
        (zip(&[("d", 0o060_666, "x")]), "\"d\" is neither a file"),
    ];
    for (archive, reason) in table {
        let (lines, ended) = unpacked_within(&archive, BOUNDS);
        let error = ended.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(lines.is_empty(), "{lines:?}");
    }
    // One bit of the content is changed.
    let mut changed = zip(&[("f", 0o100_644, &"text ".repeat(40))]);
    changed[35] ^= 1;
    let (_, ended) = unpacked_within(&changed, BOUNDS);
    assert!(
        matches!(
            ended,
            Err(UnpackError::Content(_) | UnpackError::Cut { .. })
        ),
        "{ended:?}"
    );
}

#[test]
fn every_cut_of_an_archive_is_noticed() {
    let text = "text ".repeat(300);
    let archive = tar(&[file("f", &text)]);
    for archive in [gz(&archive), zip(&[("f", 0o100_644, &text)])] {
        for cut in [24, archive.len() / 2, archive.len() - 1] {
            let (lines, ended) = unpacked_within(&archive[..cut], BOUNDS);
            // A file that is cut before its format is recognizable is a plain file.
            let is_plain = lines
                .first()
                .is_some_and(|line| line.starts_with("f plain"));
            assert!(ended.is_err() || is_plain && cut == 24, "{cut}: {lines:?}");
        }
    }
    for cut in [513, 1_000, 512 + text.len()] {
        let (_, ended) = unpacked_within(&archive[..cut], BOUNDS);
        assert!(
            matches!(
                ended,
                Err(UnpackError::Cut { .. } | UnpackError::Content(_))
            ),
            "{cut}: {ended:?}"
        );
    }
}

/// A bomb is refused before it is unpacked, both by its claimed size and by its real size.
#[test]
fn bombs_are_cut_at_their_bounds() {
    let zeros = "0".repeat(20_000);
    let half = "0".repeat(6_000);
    let table = [
        (gz(&tar(&[file("f", &zeros)])), 0),
        (zip(&[("f", 0o100_644, &zeros)]), 0),
        (gz(&tar(&[file("a", &half), file("b", &half)])), 1),
        (zip(&[("a", 0o100_644, &half), ("b", 0o100_644, &half)]), 1),
        // The content of a directory entry is discarded.
        (
            gz(&tar(&[entry(EntryType::Directory, "d", zeros.as_bytes())])),
            1,
        ),
    ];
    for (archive, before) in table {
        let (lines, ended) = unpacked_within(&archive, BOUNDS);
        assert!(
            matches!(ended, Err(UnpackError::Bytes { max: 10_000 })),
            "{ended:?}"
        );
        assert_eq!(lines.len(), before);
    }
    let endless = [tar(&[file("f", "x")]), vec![0; 2 << 20]].concat();
    let (_, ended) = unpacked_within(&gz(&endless), BOUNDS);
    assert!(matches!(ended, Err(UnpackError::Content(_))), "{ended:?}");
    let (_, ended) = unpacked_within(zeros.as_bytes(), BOUNDS);
    assert!(
        matches!(ended, Err(UnpackError::Bytes { max: 10_000 })),
        "{ended:?}"
    );
}

/// Entries that describe other entries also count, because reading them costs as much.
#[test]
fn entries_are_cut_at_their_bound() {
    let many: Vec<_> = (0..11).map(|n| file(&n.to_string(), "")).collect();
    let long = vec![entry(EntryType::GNULongName, "x", b"name\0"); 11];
    let names: Vec<_> = (0..11).map(|n| n.to_string()).collect();
    let zipped: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), 0o100_644, ""))
        .collect();
    for archive in [tar(&many), gz(&tar(&long)), zip(&zipped)] {
        let (lines, ended) = unpacked_within(&archive, BOUNDS);
        assert!(
            matches!(ended, Err(UnpackError::Entries { max: 10 })),
            "{ended:?}"
        );
        assert!(lines.len() <= 10);
    }
    assert_eq!(unpacked(&tar(&many[..10])).len(), 11);
}

#[test]
fn stop_ends_unpacking_between_chunks() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&tar(&[self::file("f", "x")])).unwrap();
    file.rewind().unwrap();
    let stop = CancellationToken::new();
    stop.cancel();

    let ended = unpack(file, None, BOUNDS, &stop, io::sink());

    assert!(matches!(ended, Err(UnpackError::Stopped)), "{ended:?}");
}
