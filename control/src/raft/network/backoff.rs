//! The pauses between streams of entries to one follower.
//!
//! openraft begins the next stream at once when one breaks off. It waits only before a message. So a stream that
//! breaks off before its first message would be a busy loop, and so would a repeatedly refused position.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use openraft::raft::{StreamAppendError, StreamAppendResult};

use crate::backoff::Backoff;
use crate::limits;
use crate::raft::types::{LogId, TypeConfig};

/// The count of streams to a follower without progress. Clones share everything.
#[derive(Clone, Debug)]
pub(super) struct StreamBackoff(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Consecutive streams without progress.
    unanswered: u32,
    backoff: Backoff,
    /// Time at which the next stream may begin, if it must wait.
    next_at: Option<Instant>,
    /// The position that the follower last refused.
    refused: Option<LogId>,
}

impl StreamBackoff {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            unanswered: 0,
            backoff: Backoff::new(limits::APPEND_PAUSE_MIN, limits::APPEND_PAUSE_MAX),
            next_at: None,
            refused: None,
        })))
    }

    /// Waits until a stream may begin. A caller that gives up waiting, such as a heartbeat, has not begun a
    /// stream.
    pub(super) async fn wait_for_turn(&self) {
        while let Err(wait) = self.begin(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
    }

    /// Begins a stream, or returns the wait before it. The stream counts as unanswered until the follower
    /// answers.
    fn begin(&self, now: Instant) -> Result<(), Duration> {
        let mut state = self.state();
        if let Some(next_at) = state.next_at
            && next_at > now
        {
            return Err(next_at - now);
        }
        state.unanswered = state.unanswered.saturating_add(1);
        state.next_at = if state.unanswered < limits::APPEND_RETRIES_AT_ONCE {
            None
        } else {
            Some(now + state.backoff.next_pause())
        };
        Ok(())
    }

    /// Records an answer. A position that is refused again is no progress.
    pub(super) fn answered(&self, answer: &StreamAppendResult<TypeConfig>) {
        let mut state = self.state();
        match answer {
            Err(StreamAppendError::Conflict(at)) if state.refused == Some(*at) => return,
            Err(StreamAppendError::Conflict(at)) => state.refused = Some(*at),
            Ok(_) | Err(StreamAppendError::HigherVote(_)) => state.refused = None,
        }
        state.unanswered = 0;
        state.next_at = None;
        state.backoff.reset();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The value has only counters, so a panic elsewhere leaves them usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use openraft::vote::RaftLeaderId as _;

    use super::*;

    /// The time for twenty streams, each with `answer` after it.
    fn twenty(
        backoff: &StreamBackoff,
        answer: Option<&StreamAppendResult<TypeConfig>>,
    ) -> Duration {
        let begin = Instant::now();
        let mut now = begin;
        for _ in 0..20 {
            while let Err(wait) = backoff.begin(now) {
                now += wait;
            }
            if let Some(answer) = answer {
                backoff.answered(answer);
            }
        }
        now - begin
    }

    fn refused(index: u64) -> StreamAppendResult<TypeConfig> {
        let leader_id = openraft::impls::leader_id_std::LeaderId::new(1, 1).to_committed();
        Err(StreamAppendError::Conflict(LogId::new(leader_id, index)))
    }

    /// Without pauses there were twenty thousand attempts a second.
    #[test]
    fn streams_without_answers_are_some_a_second() {
        let took = twenty(&StreamBackoff::new(), None);
        assert!(took > Duration::from_secs(4), "{took:?}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }

    #[test]
    fn answers_end_the_pauses() {
        let backoff = StreamBackoff::new();
        twenty(&backoff, None);
        backoff.answered(&Ok(None));
        assert_eq!(twenty(&backoff, Some(&Ok(None))), Duration::ZERO);
    }

    #[test]
    fn repeated_conflict_at_same_index_backs_off() {
        let backoff = StreamBackoff::new();
        let took = twenty(&backoff, Some(&refused(7)));
        assert!(took > Duration::from_secs(4), "{took:?}");
        // The search for the last common entry is progress.
        backoff.answered(&refused(6));
        assert_eq!(backoff.begin(Instant::now()), Ok(()));
    }
}
