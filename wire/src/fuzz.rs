//! Fuzz targets for bytes that a peer or a client sends. Each input is refused, or reads back the same.

use muster_domain::job::validate;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::job::request::{self, ReadJobError};
use crate::api::job::{Job, RegisterRequest};
use crate::limits;
use crate::rpc::{
    AgentReply, AgentRequest, DiskAck, DiskPiece, ExecInput, ExecPiece, FromAgent, LogAck,
    LogPiece, NodeReply, NodeRequest, ToAgent,
};
use crate::{codec, frame};

/// One check per kind of message. The corpus refers to a kind by its position: append new kinds.
const MESSAGES: [fn(&[u8]); 12] = [
    reads_back::<FromAgent>,
    reads_back::<ToAgent>,
    reads_back::<NodeRequest>,
    reads_back::<NodeReply>,
    reads_back::<AgentRequest>,
    reads_back::<AgentReply>,
    reads_back::<DiskPiece>,
    reads_back::<DiskAck>,
    reads_back::<ExecInput>,
    reads_back::<ExecPiece>,
    reads_back::<LogPiece>,
    reads_back::<LogAck>,
];

/// Reads `data` as a byte that names a kind of message, and a stream of frames.
///
/// # Panics
///
/// If a frame above the limit is accepted, or a message does not read back.
pub fn frames(data: &[u8]) {
    let Some((kind, mut stream)) = data.split_first() else {
        return;
    };
    let check = MESSAGES[usize::from(*kind) % MESSAGES.len()];
    while let Some((header, behind)) = stream.split_first_chunk() {
        let Ok(length) = frame::body_length(*header) else {
            return;
        };
        assert!(length <= limits::FRAME_BYTES_MAX, "the limit holds");
        let Some((body, behind)) = behind.split_at_checked(length) else {
            return;
        };
        check(body);
        stream = behind;
    }
}

/// A number may be written in several ways, so the bytes of the second reading are compared.
fn reads_back<T: Serialize + DeserializeOwned>(body: &[u8]) {
    let Ok(message) = frame::decode::<T>(body) else {
        return;
    };
    let written = codec::encode(&message).expect("a message that was read can be written");
    let again: T = codec::decode(&written).expect("a message that was written can be read");
    let again = codec::encode(&again).expect("it can be written twice");
    assert_eq!(again, written, "a message reads back");
}

/// Reads `data` as the body of a request to register a job.
///
/// # Panics
///
/// If more faults are returned than the limit allows, or a valid job does not read back from the API's
/// form and from the log's.
pub fn job_json(data: &[u8]) {
    let read = match request::read(data) {
        Ok(read) => read,
        Err(ReadJobError::Faults(faults)) => return check_count(faults.len()),
        Err(ReadJobError::Syntax(_)) => return,
    };
    let Ok(valid) = validate(read.spec) else {
        return;
    };
    let spec = valid.into_spec();
    let logged = codec::encode(&spec).expect("a job can be written");
    assert_eq!(codec::decode(&logged).ok().as_ref(), Some(&spec), "log");
    let body = RegisterRequest {
        job: Job::from_spec(&spec),
        ..RegisterRequest::default()
    };
    let body = serde_json::to_vec(&body).expect("a job can be written");
    let again = request::read(&body).map(|read| read.spec);
    assert_eq!(again, Ok(spec), "API");
}

/// The one fault above the limit counts the omitted faults.
fn check_count(faults: usize) {
    assert!((1..=limits::FAULTS_MAX + 1).contains(&faults), "{faults}");
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture::corpus::replay;

    #[test]
    fn frames_of_the_corpus_are_read_or_refused() {
        replay("frames", super::frames);
    }

    #[test]
    fn jobs_of_the_corpus_read_back() {
        replay("job_json", super::job_json);
    }
}
