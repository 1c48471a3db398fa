//! The fuzz target of the log: bytes on a disk, which are read, treated as an interrupted write, or reported as
//! damage.

use super::record::{self, ScannedFrame};

/// The number of the segment that the frames belong to.
const SEGMENT: u32 = 3;

/// Reads `data` as the bytes after the head of a segment. Then reads `data` as bodies of records in one whole
/// frame, each after its length in two bytes.
///
/// # Panics
///
/// If a frame does not read back.
pub(crate) fn raft_log(data: &[u8]) {
    let mut file = record::head().to_vec();
    file.extend_from_slice(data);
    read_frames(&file);

    let mut frame = record::unsealed();
    let mut count = 0;
    let mut rest = data;
    while let Some((length, behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length));
        let Some((body, behind)) = behind.split_at_checked(length) else {
            break;
        };
        record::push_body(&mut frame, body);
        count += 1;
        rest = behind;
    }
    if count == 0 {
        return;
    }
    let mut file = record::head().to_vec();
    let offset = u32::try_from(file.len()).expect("a head is short");
    record::seal(&mut frame, SEGMENT, offset);
    file.extend_from_slice(&frame);
    assert_eq!(read_frames(&file), count, "a whole frame is read");
}

/// Reads all frames of a segment and their records. Returns how many records there are.
fn read_frames(file: &[u8]) -> usize {
    let mut offset = record::HEAD_BYTES;
    let mut count = 0;
    while let ScannedFrame::Frame { bodies, end } = record::next(file, SEGMENT, offset) {
        assert!(end > offset && end <= file.len(), "a frame is in its file");
        for (start, length) in bodies {
            let head = start - record::record_head_bytes();
            // Reading refuses a body that is not a record.
            drop(record::read(&file[head..start + length]));
            count += 1;
        }
        offset = end;
    }
    count
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture::corpus::replay;

    #[test]
    fn logs_of_the_corpus_are_read_or_refused() {
        replay("raft_log", super::raft_log);
    }
}
