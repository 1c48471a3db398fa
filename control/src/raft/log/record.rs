//! The bytes of a log file: a head, then frames of records.
//!
//! ```text
//! head    "MUSTERLG" | u32 format | u32 !format
//! frame   u32 length | u32 !length | u32 segment | u32 offset | u32 crc of these 16 bytes | record* | "end\xa5"
//! record  u32 length | u32 crc of length and body | body
//! ```
//!
//! Numbers are little endian, checksums CRC-32 (IEEE); a frame's length counts its records. Bytes that were never
//! written read as zeros. One `fdatasync` covers one frame, and the next frame is written only after it has
//! returned. So a fault *before* a whole frame is damage to durable data. Only a fault in the last place can be a
//! write that a crash interrupted: see [`next`].

use std::io;

use muster_wire::codec;
use serde::{Deserialize, Serialize};

use super::limits;
use super::state::Checkpoint;
use crate::raft::types::{Entry, LogId, Vote};

/// The format that this version writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 1;
/// Bytes before the first frame.
pub(super) const HEAD_BYTES: usize = 16;
/// Bytes of a frame besides its records.
pub(super) const FRAME_BYTES: usize = FRAME_HEAD_BYTES + END.len();
const FRAME_HEAD_BYTES: usize = 20;
const RECORD_HEAD_BYTES: usize = 8;
const MAGIC: &[u8; 8] = b"MUSTERLG";
/// The mark that closes a frame. No byte of it is zero, so an unwritten end of a frame is detected.
const END: [u8; 4] = *b"end\xa5";
/// Size of a disk sector, which is written whole or not at all.
const SECTOR_BYTES: usize = 512;

/// One record. Variants are only appended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Record {
    /// The result of all earlier files. It is the first record of each file and appears only there.
    Checkpoint(Checkpoint),
    Vote(Vote),
    Entry(Entry),
    /// A position known to be committed.
    Committed(LogId),
    /// Entries after this one are void.
    Truncate(Option<LogId>),
    /// Entries up to this one are not needed.
    Purge(LogId),
}

/// The head of a file.
pub(super) fn head() -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[12..].copy_from_slice(&(!FORMAT).to_le_bytes());
    bytes
}

/// The format in a file's head; `None` if the bytes are not a head.
pub(super) fn format(bytes: &[u8]) -> Option<u32> {
    let head = bytes.get(..HEAD_BYTES)?;
    let format = number(head, 8);
    (head.starts_with(MAGIC) && number(head, 12) == !format).then_some(format)
}

/// Appends `record` to `out`. Returns the length of its body, which is the end of `out`.
pub(super) fn push(out: &mut Vec<u8>, record: &Record) -> io::Result<u32> {
    let body = codec::encode(record).map_err(io::Error::other)?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= limits::ENTRY_BYTES_MAX)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a log record is too large"))?;
    push_body(out, &body);
    Ok(length)
}

/// Appends a record's encoding, which is below 4 GiB, with its head.
pub(super) fn push_body(out: &mut Vec<u8>, body: &[u8]) {
    let length = u32::try_from(body.len()).expect("a record is below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&checksum(body).to_le_bytes());
    out.extend_from_slice(body);
}

/// Closes the frame in `frame`, which has space for its head, and its records.
pub(super) fn seal(frame: &mut Vec<u8>, segment: u32, offset: u32) {
    let length = u32::try_from(frame.len() - FRAME_HEAD_BYTES).expect("a frame is below 4 GiB");
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[4..8].copy_from_slice(&(!length).to_le_bytes());
    frame[8..12].copy_from_slice(&segment.to_le_bytes());
    frame[12..16].copy_from_slice(&offset.to_le_bytes());
    let crc = crc32fast::hash(&frame[..16]);
    frame[16..20].copy_from_slice(&crc.to_le_bytes());
    frame.extend_from_slice(&END);
}

/// Returns a frame without records, for [`push`].
pub(super) fn unsealed() -> Vec<u8> {
    vec![0; FRAME_HEAD_BYTES]
}

/// The contents of a file at an offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScannedFrame {
    /// A whole frame: the offsets and lengths of its records' bodies, and its end.
    Frame {
        /// The offsets and lengths of the bodies.
        bodies: Vec<(usize, usize)>,
        /// The offset at which the frame ends.
        end: usize,
    },
    /// Only zeros follow.
    Nothing,
    /// A write that was interrupted; it ends before this offset.
    Torn {
        /// The first offset after which there are only zeros.
        end: usize,
    },
    /// Durable data is damaged.
    Damaged { offset: usize, reason: &'static str },
}

/// Reads the file `bytes` with number `segment` at `offset`.
pub(super) fn next(bytes: &[u8], segment: u32, offset: usize) -> ScannedFrame {
    let (broken, reason) = match frame(bytes, segment, offset) {
        Ok((bodies, end)) => return ScannedFrame::Frame { bodies, end },
        Err(found) => found,
    };
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    if end <= offset {
        return ScannedFrame::Nothing;
    }
    let followed = (offset + 1..end).any(|at| frame(bytes, segment, at).is_ok());
    if followed || !interrupted(bytes, segment, offset, end) {
        return ScannedFrame::Damaged {
            offset: broken,
            reason,
        };
    }
    ScannedFrame::Torn { end }
}

/// Whether the bytes from `offset` to `end` can be a write that did not fully reach the disk. Its end is missing,
/// or a whole sector in it still has its earlier content. A complete frame with a fault was damaged later.
fn interrupted(bytes: &[u8], segment: u32, offset: usize, end: usize) -> bool {
    let mut at = offset;
    while at < end {
        let sector_end = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
        if bytes[at..sector_end.min(end)].iter().all(|byte| *byte == 0) {
            return true;
        }
        at = sector_end;
    }
    match head_at(bytes, segment, offset) {
        Ok(length) => end < offset + FRAME_HEAD_BYTES + length + END.len(),
        Err(_) => !bytes[offset..end].ends_with(&END),
    }
}

type Frame = (Vec<(usize, usize)>, usize);

/// Returns the frame at `offset`, or the position and kind of its fault.
fn frame(bytes: &[u8], segment: u32, offset: usize) -> Result<Frame, (usize, &'static str)> {
    let length = head_at(bytes, segment, offset).map_err(|reason| (offset, reason))?;
    let start = offset + FRAME_HEAD_BYTES;
    let stop = start + length;
    if bytes.get(stop..stop + END.len()) != Some(&END[..]) {
        return Err((offset, "a frame has no end"));
    }
    let mut bodies = Vec::new();
    let mut at = start;
    while at < stop {
        let Some(head) = bytes[..stop].get(at..at + RECORD_HEAD_BYTES) else {
            return Err((at, "a record is cut"));
        };
        let body = at + RECORD_HEAD_BYTES;
        let length = number(head, 0) as usize;
        match bytes[..stop].get(body..body.saturating_add(length)) {
            Some(found) if checksum(found) == number(head, 4) => {}
            _ => return Err((at, "a record's checksum is wrong")),
        }
        bodies.push((body, length));
        at = body + length;
    }
    Ok((bodies, stop + END.len()))
}

/// The length of the records of the frame at `offset`, if its head is valid.
fn head_at(bytes: &[u8], segment: u32, offset: usize) -> Result<usize, &'static str> {
    let head = bytes
        .get(offset..offset + FRAME_HEAD_BYTES)
        .ok_or("the head of a frame is cut")?;
    let length = number(head, 0);
    let sum = crc32fast::hash(&head[..16]);
    if length == 0 || number(head, 4) != !length || number(head, 16) != sum {
        return Err("the head of a frame is wrong");
    }
    if number(head, 8) != segment || number(head, 12) as usize != offset {
        return Err("a frame belongs elsewhere");
    }
    Ok(length as usize)
}

/// Decodes the record in `with_head`, whose checksum is before its body.
pub(super) fn read(with_head: &[u8]) -> io::Result<Record> {
    let damaged = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let (head, body) = with_head
        .split_at_checked(RECORD_HEAD_BYTES)
        .ok_or_else(|| damaged("a record is cut".to_owned()))?;
    if number(head, 0) as usize != body.len() || number(head, 4) != checksum(body) {
        return Err(damaged("a record's checksum is wrong".to_owned()));
    }
    codec::decode(body).map_err(|error| damaged(error.to_string()))
}

/// Bytes of a record before its body.
pub(super) const fn record_head_bytes() -> usize {
    RECORD_HEAD_BYTES
}

/// The checksum of a body and of its length.
fn checksum(body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&(body.len() as u64).to_le_bytes());
    crc.update(body);
    crc.finalize()
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(
        bytes[at..at + 4]
            .try_into()
            .expect("four bytes were sliced"),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Write as _;
    use std::sync::Arc;

    use expect_test::expect_file;
    use openraft::Membership;
    use openraft::entry::RaftEntry;

    use super::*;
    use crate::peers::message::ServerNode;
    use crate::raft::types::{EncodedCommand, TypeConfig};

    const GOLDEN: &str = include_str!("../../../testdata/log.v1.txt");

    fn at(index: u64) -> LogId {
        openraft::testing::log_id::<TypeConfig>(2, 1, index)
    }

    fn command() -> Entry {
        Entry::new_normal(
            at(300),
            EncodedCommand {
                format: 1,
                body: Arc::from(&b"four score and seven"[..]),
            },
        )
    }

    fn one_frame(record: &Record) -> Vec<u8> {
        let mut frame = unsealed();
        push(&mut frame, record).unwrap();
        seal(&mut frame, 3, 16);
        frame
    }

    /// The records of the golden file, with their names.
    fn golden_records() -> Vec<(&'static str, Record)> {
        let node = ServerNode {
            name: "s1".to_owned(),
            quic_addr: "127.0.0.1:4647".to_owned(),
            http_addr: "127.0.0.1:4646".to_owned(),
        };
        let members = [(7, node)];
        let members = Membership::new(vec![[7].into()], BTreeMap::from(members)).unwrap();
        let checkpoint = Checkpoint {
            segment: 3,
            before: 77,
            vote: Some(Vote::new(2, 7)),
            committed: Some(at(299)),
            purged: Some(at(9)),
            last: Some(at(300)),
        };
        let membership = Entry::new_membership(at(0), members);
        vec![
            ("checkpoint", Record::Checkpoint(checkpoint)),
            ("vote", Record::Vote(Vote::new(2, 7))),
            ("entry_blank", Record::Entry(Entry::new_blank(at(1)))),
            ("entry_command", Record::Entry(command())),
            ("entry_membership", Record::Entry(membership)),
            ("committed", Record::Committed(at(300))),
            ("truncate", Record::Truncate(Some(at(300)))),
            ("purge", Record::Purge(at(300))),
        ]
    }

    fn line(golden: &mut String, name: &str, bytes: &[u8]) {
        write!(golden, "{name} ").unwrap();
        for byte in bytes {
            write!(golden, "{byte:02x}").unwrap();
        }
        golden.push('\n');
    }

    /// The bytes of the golden file's line `name`.
    fn golden_bytes(name: &str) -> Vec<u8> {
        let mut lines = GOLDEN.lines().filter_map(|line| line.split_once(' '));
        let (_, digits) = lines.find(|(found, _)| *found == name).unwrap();
        let pairs = digits.as_bytes().chunks(2);
        pairs
            .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    /// Disks have these bytes: a change needs a new version of the log's format.
    #[test]
    fn the_bytes_on_disk_stay_as_they_are() {
        let mut golden = String::new();

        line(&mut golden, "head", &head());
        for (name, record) in golden_records() {
            line(&mut golden, name, &one_frame(&record));
        }

        expect_file!["../../../testdata/log.v1.txt"].assert_eq(&golden);
    }

    /// An upgraded server finds these bytes in its log.
    #[test]
    fn golden_bytes_are_read_as_their_records() {
        assert_eq!(format(&golden_bytes("head")), Some(1));
        for (name, record) in golden_records() {
            let mut file = golden_bytes("head");
            file.extend(golden_bytes(name));

            let ScannedFrame::Frame { bodies, end } = next(&file, 3, HEAD_BYTES) else {
                panic!("{name}: {:?}", next(&file, 3, HEAD_BYTES))
            };

            assert_eq!(end, file.len(), "{name}");
            let (offset, length) = bodies[0];
            let found = read(&file[offset - RECORD_HEAD_BYTES..offset + length]).unwrap();
            assert_eq!(found, record, "{name}");
        }
    }

    /// A file with one frame at 16 and space after it.
    fn file() -> Vec<u8> {
        let mut bytes = head().to_vec();
        bytes.extend(one_frame(&Record::Entry(command())));
        bytes.resize(4 * SECTOR_BYTES, 0);
        bytes
    }

    #[test]
    fn a_frame_reads_back() {
        let bytes = file();

        let ScannedFrame::Frame { bodies, end } = next(&bytes, 3, HEAD_BYTES) else {
            panic!("{:?}", next(&bytes, 3, HEAD_BYTES))
        };

        let (offset, length) = bodies[0];
        let record = read(&bytes[offset - RECORD_HEAD_BYTES..offset + length]).unwrap();
        assert_eq!(record, Record::Entry(command()));
        assert_eq!(next(&bytes, 3, end), ScannedFrame::Nothing);
    }

    /// Damage to the last frame never counts as an interrupted write, for any flipped bit: the frame may have been
    /// acknowledged.
    #[test]
    fn no_flipped_bit_is_an_interrupted_write() {
        let whole = file();
        let ScannedFrame::Frame { end, .. } = next(&whole, 3, HEAD_BYTES) else {
            panic!("the frame is whole")
        };

        for bit in HEAD_BYTES * 8..end * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let found = next(&damaged, 3, HEAD_BYTES);
            assert!(
                matches!(found, ScannedFrame::Damaged { .. }),
                "bit {bit}: {found:?}"
            );
        }
    }

    /// A crash can cut a frame anywhere. Each cut reads as an interrupted write, never as damage.
    #[test]
    fn every_cut_is_an_interrupted_write() {
        let whole = file();
        let ScannedFrame::Frame { end, .. } = next(&whole, 3, HEAD_BYTES) else {
            panic!("the frame is whole")
        };

        for cut in HEAD_BYTES + 1..end {
            let mut zeroed = whole.clone();
            zeroed[cut..].fill(0);
            for bytes in [&zeroed[..], &whole[..cut]] {
                assert!(
                    matches!(next(bytes, 3, HEAD_BYTES), ScannedFrame::Torn { .. }),
                    "cut at {cut}"
                );
            }
        }
    }
}
