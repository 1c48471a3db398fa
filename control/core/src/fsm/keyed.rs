//! Writes that carry a key, so that a retry is applied once.
//!
//! A client that got no answer cannot know whether its write was applied. With a key it sends the same
//! again: the first time it is applied and its answer kept, every other time the answer is given again,
//! a refusal too. The answer is part of the state, so that it holds after a fail-over and in a
//! restored snapshot.

use std::cell::Cell;

use muster_domain::id::{LogIndex, Timestamp, WriteKey};
use muster_domain::saturating;
use serde::{Deserialize, Deserializer, Serialize};

use super::{ApplyResult, Command, Rejection, Response};
use crate::limits;
use crate::state::{Answer, Digest, State};

/// Makes a write apply only once. It carries the bounds of the table that remembers the write: servers of different
/// versions then forget alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteDedup {
    /// Chosen by the client, once for each write.
    pub key: WriteKey,
    /// A hash of the write, without its time. The proposer computes it once, so that servers of different versions
    /// remember the same hash.
    pub fingerprint: u64,
    /// Answers kept at most.
    pub answers_max: u32,
    /// Answers from before are forgotten.
    pub forget_before: Timestamp,
}

/// The command of a keyed write. Never keyed itself: decoding refuses that, so that no bytes make it
/// recurse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnkeyedCommand(Box<Command>);

impl UnkeyedCommand {
    /// The command.
    #[must_use]
    pub fn command(&self) -> &Command {
        &self.0
    }

    pub(super) fn command_mut(&mut self) -> &mut Command {
        &mut self.0
    }
}

thread_local! {
    /// Whether a keyed command is being read: `Deserialize` has no other way to tell its inner part.
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

impl Command {
    /// This command under `key`, with the usual bounds. A command that has a key keeps it.
    #[must_use]
    pub fn keyed(mut self, key: WriteKey) -> Self {
        if matches!(self, Self::Keyed { .. }) {
            return self;
        }
        let age = saturating::nanos(limits::ANSWER_AGE_MAX);
        let once = WriteDedup {
            key,
            fingerprint: self.fingerprint(),
            answers_max: limits::ANSWERS_MAX,
            forget_before: Timestamp(self.at().0.saturating_sub(age)),
        };
        Self::Keyed {
            once,
            command: UnkeyedCommand(Box::new(self)),
        }
    }

    /// Hashes everything that distinguishes two writes. It leaves out the values that a server adds to each try. Those
    /// are the time, the end of a dispatched job's id, the time of a forced launch, the end of a claim and the places.
    fn fingerprint(&mut self) -> u64 {
        if let Self::DesireOneOffs { tasks, seen, .. } = self
            && *seen != LogIndex(0)
        {
            // Where there is room is found anew each time.
            let tasks = tasks.iter().map(|(task, _)| task.clone()).collect();
            return Self::desire_one_offs(tasks, Timestamp(0)).fingerprint();
        }
        if let Self::ChangeOneOffs { changes, .. } = self
            && changes.iter().any(|change| change.step.ends_later())
        {
            let mut changes = changes.clone();
            for change in &mut changes {
                change.step = change.step.without_end();
            }
            let at = Timestamp(0);
            return Self::ChangeOneOffs { changes, at }.fingerprint();
        }
        if let Self::RegisterJob {
            spec,
            places: Some(_),
            check_index,
            ..
        } = self
        {
            let at = Timestamp(0);
            let (spec, check_index) = (spec.clone(), *check_index);
            return Self::RegisterJob {
                spec,
                places: None,
                at,
                check_index,
            }
            .fingerprint();
        }
        let at = std::mem::take(self.at_mut());
        let (mut suffix, mut due) = (String::new(), Timestamp(0));
        self.swap_added(&mut suffix, &mut due);
        let fingerprint = Digest::of(self);
        self.swap_added(&mut suffix, &mut due);
        *self.at_mut() = at;
        fingerprint
    }

    fn swap_added(&mut self, other_suffix: &mut String, other_due: &mut Timestamp) {
        if let Self::DispatchJob { suffix, .. } = self {
            std::mem::swap(suffix, other_suffix);
        }
        if let Self::LaunchPeriodic {
            due, forced: true, ..
        } = self
        {
            std::mem::swap(due, other_due);
        }
    }
}

/// Applies `command` unless `once` was answered before.
pub(super) fn apply(
    state: &mut State,
    index: LogIndex,
    once: WriteDedup,
    command: UnkeyedCommand,
) -> ApplyResult {
    let command = *command.0;
    let at = command.at();
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
    let applied = super::apply(state, index, command);
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
