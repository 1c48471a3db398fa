//! Writes that are valid only for the leader that decided them.

use std::sync::Arc;

use muster_control_core::fsm::{Entry, Response};
use muster_domain::id::LogIndex;
use muster_wire::codec;
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;

use super::types::EncodedCommand;
use super::{Raft, WriteError};
use crate::limits;

impl Raft {
    /// Writes `entry` if this server has led in `term` without a break. A leader may conclude a fact from silence.
    /// Its successor must not write that, nor may the leader itself in a later term, because other servers may
    /// have led meanwhile.
    pub(crate) async fn write_as_leader(
        &self,
        term: u64,
        entry: &Entry,
    ) -> Result<(LogIndex, Response), WriteError> {
        self.check_disk()?;
        let logged = EncodedCommand {
            format: entry.command.version(),
            body: Arc::from(codec::encode(entry)?),
        };
        let stopped = |reason: String| WriteError::Stopped { reason };
        let (responder, answer) = ProgressResponder::complete_only();
        let writing = async {
            let write = self
                .raft
                .write(logged)
                .with_leader(term)
                .responder(responder);
            write.await.map_err(|fatal| stopped(fatal.to_string()))?;
            answer.await.map_err(|error| stopped(error.to_string()))
        };
        let waited = limits::PROPOSE_WAIT;
        let Ok(written) = tokio::time::timeout(waited, writing).await else {
            return Err(WriteError::Unknown {
                waited,
                reason: "the other servers, or the disk, did not take it in time".to_owned(),
            });
        };
        match written? {
            Ok(answer) => {
                let response = answer
                    .data
                    .0
                    .expect("an entry with a command is answered with a response");
                Ok((LogIndex(answer.log_id.index), response))
            }
            Err(ClientWriteError::ForwardToLeader(_)) => Err(WriteError::NotLeader {
                leader: self.leader().filter(|leader| !leader.is_self),
            }),
            Err(error) => Err(WriteError::Unknown {
                waited,
                reason: error.to_string(),
            }),
        }
    }
}
