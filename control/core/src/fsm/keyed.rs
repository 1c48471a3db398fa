//! Writes that carry a key, so that a retry is applied once.
//!
//! A client that got no answer cannot find out whether its write was applied. With a key it sends the same write again.
//! The first time, the write is applied and its answer is kept. Every other time the kept answer is returned, even if
//! it is a refusal. The answer is part of the state, so that it is still there after a fail-over and in a restored
//! snapshot.

use std::cell::Cell;

use muster_domain::id::{LogIndex, Timestamp, WriteKey};
use muster_domain::saturating;
use serde::{Deserialize, Deserializer, Serialize};

use super::effect::ApplyResult;
use super::rejection::Rejection;
use super::response::Response;
use super::{Command, Entry};
use crate::limits;
use crate::state::{Answer, Digest, State};

/// Makes a write apply only once. It carries the bounds of the table of answers, so that servers of different versions
/// remove the same answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteDedup {
    /// Chosen by the client, once for each write.
    pub key: WriteKey,
    /// A hash of the write, without its time. The proposer computes it once, so that servers of different versions
    /// remember the same hash.
    pub fingerprint: u64,
    /// The maximum number of kept answers.
    pub answers_max: u32,
    /// Answers from before this time are removed.
    pub forget_before: Timestamp,
}

/// The command of a keyed write. It is never keyed itself: decoding refuses that, so that no bytes cause a recursion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnkeyedCommand(Box<Command>);

impl UnkeyedCommand {
    /// The command.
    #[must_use]
    pub fn command(&self) -> &Command {
        &self.0
    }
}

thread_local! {
    /// Whether a keyed command is being read: `Deserialize` offers no other way to find out that this is its inner
    /// part.
    static READING: Cell<bool> = const { Cell::new(false) };
}

impl<'de> Deserialize<'de> for UnkeyedCommand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if READING.replace(true) {
            return Err(serde::de::Error::custom(
                "a keyed command inside a keyed one",
            ));
        }
        let command = Box::<Command>::deserialize(deserializer);
        READING.set(false);
        command.map(Self)
    }
}

impl Entry {
    /// Returns this entry under `key`, with the usual bounds. A command that has a key keeps it.
    #[must_use]
    pub fn keyed(self, key: WriteKey) -> Self {
        let Self { at, command } = self;
        if matches!(command, Command::Keyed { .. }) {
            return Self { at, command };
        }
        let age = saturating::nanos(limits::ANSWER_AGE_MAX);
        let once = WriteDedup {
            key,
            fingerprint: command.fingerprint(),
            answers_max: limits::ANSWERS_MAX,
            forget_before: Timestamp(at.0.saturating_sub(age)),
        };
        let command = UnkeyedCommand(Box::new(command));
        Self {
            at,
            command: Command::Keyed { once, command },
        }
    }
}

impl Command {
    /// Hashes everything that distinguishes two writes.
    fn fingerprint(&self) -> u64 {
        match self.without_added() {
            Some(plain) => Digest::of(&plain),
            None => Digest::of(self),
        }
    }
}

/// Applies `command` unless the key in `once` has an answer already.
pub(super) fn apply(
    state: &mut State,
    (index, at): (LogIndex, Timestamp),
    once: WriteDedup,
    command: UnkeyedCommand,
) -> ApplyResult {
    let command = *command.0;
    let WriteDedup {
        key,
        fingerprint,
        answers_max,
        forget_before,
    } = once;
    let known = state.answers.get(&key).map(|answer| {
        if answer.fingerprint == fingerprint {
            answer.response.clone()
        } else {
            Response::Rejected(Rejection::KeyReused {
                key: key.clone(),
                index: answer.index,
            })
        }
    });
    if let Some(response) = known {
        state.applied = index;
        return ApplyResult::without_change(response);
    }
    let applied = super::apply(state, index, Entry { at, command });
    state.answers.put(Answer {
        key,
        fingerprint,
        index,
        at,
        response: applied.response.clone(),
    });
    state.answers.shrink(answers_max, forget_before);
    applied
}

#[cfg(test)]
mod tests;
