//! The operations of clients and their answers, and whether one server alone could have answered so.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use crate::limits;

/// A job as a read returns it: its value, and the index of its last registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobRead {
    pub(crate) value: u64,
    pub(crate) index: u64,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The job was registered, at this index.
    Done(u64),
    /// The index of the job was not the expected one.
    Refused,
    /// The outcome is unknown.
    Unknown,
}

/// An operation on one job, with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A linearizable read.
    Read(Option<JobRead>),
    /// An unconditional registration.
    Put { value: u64, outcome: Outcome },
    /// A registration if the job's index is `expected`, 0 for no job.
    Compare {
        expected: u64,
        value: u64,
        outcome: Outcome,
    },
}

/// An operation with its times.
#[derive(Clone, Copy, Debug)]
struct TimedOperation {
    key: usize,
    called: u64,
    /// Time of the answer. `None`: the operation may take effect at any time after the call.
    answered: Option<u64>,
    operation: Operation,
}

/// The recorded operations of all clients.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Number of this history. In a shared cluster each history has its own jobs.
    number: u64,
    clock: AtomicU64,
    operations: Mutex<Vec<TimedOperation>>,
}

impl Default for Recorder {
    fn default() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            clock: AtomicU64::default(),
            operations: Mutex::default(),
        }
    }
}

impl Recorder {
    /// The id of the job that this history calls `key`.
    pub(crate) fn job(&self, key: usize) -> String {
        format!("history-{}-{key}", self.number)
    }

    /// The next point in time.
    pub(crate) fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Notes an operation on `key` that was called at `called` and is answered now.
    pub(crate) fn note(&self, key: usize, called: u64, operation: Operation) {
        let unknown = matches!(
            operation,
            Operation::Put {
                outcome: Outcome::Unknown,
                ..
            } | Operation::Compare {
                outcome: Outcome::Unknown,
                ..
            }
        );
        let answered = (!unknown).then(|| self.now());
        let recorded = TimedOperation {
            key,
            called,
            answered,
            operation,
        };
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(recorded);
    }

    /// The numbers of operations, of successful writes, and of writes with an unknown outcome.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let operations = self
            .operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = |wanted: fn(Outcome) -> bool| {
            let writes = operations.iter().filter(|one| match one.operation {
                Operation::Read(_) => false,
                Operation::Put { outcome, .. } | Operation::Compare { outcome, .. } => {
                    wanted(outcome)
                }
            });
            writes.count()
        };
        let done = count(|outcome| matches!(outcome, Outcome::Done(_)));
        let unknown = count(|outcome| outcome == Outcome::Unknown);
        (operations.len(), done, unknown)
    }

    /// Fails unless the whole history is linearizable. Jobs are independent, so each is checked alone.
    pub(crate) fn check(&self) {
        let operations = self
            .operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for key in 0..limits::KEYS {
            let of_key: Vec<TimedOperation> = operations
                .iter()
                .filter(|one| one.key == key)
                .copied()
                .collect();
            if of_key.is_empty() {
                continue;
            }
            let history = History::from_actions(actions(&of_key));
            let (sender, receiver) = mpsc::sync_channel(1);
            // The search cannot be stopped: it ends with the process.
            thread::spawn(move || sender.send(WGLChecker::<Job>::is_linearizable(history)));
            match receiver.recv_timeout(limits::CHECK) {
                Ok(true) => {}
                Ok(false) => panic!("job {key}: not linearizable:\n{}", table(&of_key)),
                Err(mpsc::RecvTimeoutError::Timeout | mpsc::RecvTimeoutError::Disconnected) => {
                    panic!(
                        "job {key}: {} operations were not checked in time",
                        of_key.len()
                    )
                }
            }
        }
    }
}

/// The time of a missing answer.
const NEVER: u64 = u64::MAX;

/// Calls and answers by time, with a separate process for each operation.
fn actions(operations: &[TimedOperation]) -> Vec<(usize, Action<Operation>)> {
    let mut events = Vec::new();
    for (process, one) in operations.iter().enumerate() {
        events.push((one.called, process, Action::Call(one.operation)));
        events.push((
            one.answered.unwrap_or(NEVER),
            process,
            Action::Response(one.operation),
        ));
    }
    events.sort_by_key(|(at, process, _)| (*at, *process));
    events
        .into_iter()
        .map(|(_, process, action)| (process, action))
        .collect()
}

fn table(operations: &[TimedOperation]) -> String {
    let line = |one: &TimedOperation| {
        let answered = one.answered.map_or("never".to_owned(), |at| at.to_string());
        format!("{:>6} {answered:>6} {:?}\n", one.called, one.operation)
    };
    let mut sorted = operations.to_vec();
    sorted.sort_by_key(|one| one.called);
    sorted.iter().map(line).collect()
}

/// A possible state of one job: its value, and its index if known. `None`: the job does not exist.
type PossibleState = Option<(u64, Option<u64>)>;

/// The model of one job. Its state is the set of possible states, because an unknown answer leaves several.
struct Job;

impl Specification for Job {
    type State = BTreeSet<PossibleState>;
    type Operation = Operation;

    fn init() -> Self::State {
        BTreeSet::from([None])
    }

    fn apply(operation: &Operation, state: &Self::State) -> (bool, Self::State) {
        let after: Self::State = state
            .iter()
            .flat_map(|possible| step(operation, *possible))
            .collect();
        (!after.is_empty(), after)
    }
}

/// The possible states of a job after `operation`, if its state was `before`. Empty if the answer contradicts `before`.
fn step(operation: &Operation, before: PossibleState) -> Vec<PossibleState> {
    let index_before = before.map_or(Some(0), |(_, index)| index);
    let grows = |index: u64| index_before.is_none_or(|before| before < index);
    match *operation {
        Operation::Read(None) => before.is_none().then_some(None).into_iter().collect(),
        Operation::Read(Some(seen)) => match before {
            Some((value, index))
                if value == seen.value && index.is_none_or(|index| index == seen.index) =>
            {
                vec![Some((value, Some(seen.index)))]
            }
            _ => Vec::new(),
        },
        Operation::Put { value, outcome } => match outcome {
            Outcome::Done(index) if grows(index) => vec![Some((value, Some(index)))],
            Outcome::Done(_) | Outcome::Refused => Vec::new(),
            Outcome::Unknown => vec![Some((value, None))],
        },
        Operation::Compare {
            expected,
            value,
            outcome,
        } => {
            let may_match = index_before.is_none_or(|index| index == expected);
            let may_differ = index_before.is_none_or(|index| index != expected);
            match outcome {
                Outcome::Done(index) if may_match && grows(index) => {
                    vec![Some((value, Some(index)))]
                }
                Outcome::Done(_) => Vec::new(),
                Outcome::Refused => may_differ.then_some(before).into_iter().collect(),
                Outcome::Unknown => {
                    let done = may_match.then_some(Some((value, None)));
                    let refused = may_differ.then_some(before);
                    done.into_iter().chain(refused).collect()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(operations: &[(u64, u64, Operation)]) -> Recorder {
        let recorder = Recorder::default();
        for (called, answered, operation) in operations {
            recorder.operations.lock().unwrap().push(TimedOperation {
                key: 0,
                called: *called,
                answered: (*answered != 0).then_some(*answered),
                operation: *operation,
            });
        }
        recorder
    }

    const fn seen(value: u64, index: u64) -> Operation {
        Operation::Read(Some(JobRead { value, index }))
    }

    const fn put(value: u64, outcome: Outcome) -> Operation {
        Operation::Put { value, outcome }
    }

    #[test]
    fn an_orderly_history_passes() {
        let compare = Operation::Compare {
            expected: 7,
            value: 2,
            outcome: Outcome::Done(9),
        };
        let refused = Operation::Compare {
            expected: 7,
            value: 3,
            outcome: Outcome::Refused,
        };

        recorded(&[
            (1, 2, Operation::Read(None)),
            (3, 4, put(1, Outcome::Done(7))),
            (5, 6, compare),
            (7, 8, refused),
            (9, 10, seen(2, 9)),
        ])
        .check();
    }

    /// A write with an unknown outcome may take effect, or not, or later.
    #[test]
    fn an_unknown_write_may_happen_or_not() {
        recorded(&[
            (1, 0, put(1, Outcome::Unknown)),
            (2, 3, Operation::Read(None)),
            (4, 5, seen(1, 7)),
        ])
        .check();
        recorded(&[
            (1, 0, put(1, Outcome::Unknown)),
            (2, 3, Operation::Read(None)),
        ])
        .check();
    }

    #[test]
    #[should_panic(expected = "not linearizable")]
    fn a_stale_read_is_found() {
        recorded(&[
            (1, 2, put(1, Outcome::Done(7))),
            (3, 4, put(2, Outcome::Done(9))),
            (5, 6, seen(1, 7)),
        ])
        .check();
    }

    #[test]
    #[should_panic(expected = "not linearizable")]
    fn a_lost_write_is_found() {
        recorded(&[
            (1, 2, put(1, Outcome::Done(7))),
            (3, 4, Operation::Read(None)),
        ])
        .check();
    }

    /// Two writers that both saw the same index cannot both have their way.
    #[test]
    #[should_panic(expected = "not linearizable")]
    fn a_lost_update_is_found() {
        let compare = |value, index| Operation::Compare {
            expected: 7,
            value,
            outcome: Outcome::Done(index),
        };
        recorded(&[
            (1, 2, put(1, Outcome::Done(7))),
            (3, 6, compare(2, 8)),
            (4, 5, compare(3, 9)),
        ])
        .check();
    }
}
