//! Clients' requests about one-off tasks, until they are in the log.
//!
//! A request waits while the allowed number of entries is under way. The waiting requests share the next entry. A
//! single request does not wait; many at once share entries. Several entries may be under way, so that some
//! clients get answers while others' requests commit. Each request is decided and answered on its own when the
//! entry is applied. A failure of an entry is a failure of all of its requests.
//!
//! Deliberately absent: requests with an idempotency key, and the leader's own changes. The log answers each key
//! once, so such a request has its own entry. The leader's duty gathers its own changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_control_core::fsm::{
    DesiredOneOff, Entry, NewOneOff, OneOffChange, OneOffCommand, Rejection, Response,
};
use muster_domain::id::{LogIndex, WriteKey};
use muster_wire::codec;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::handle::{Control, OneOffPlacements, ProposeError, ProposeResult};
use crate::limits;

/// The answer to one request: the entry, and the outcome of the request in it.
pub(crate) type Answer<T> = Result<(LogIndex, Result<T, Rejection>), ProposeError>;

/// A request that can share an entry with others of its kind.
pub(crate) trait Request: serde::Serialize + Sized + Send + 'static {
    /// The result of a successful request.
    type Done: std::fmt::Debug + Send + 'static;

    /// The guid of the request's task.
    fn guid(&self) -> &str;

    /// The entry for `requests`.
    fn command(control: &Control, requests: Vec<Self>) -> impl Future<Output = Entry> + Send;

    /// The outcome of each request; `None` if `response` is not about such requests.
    fn outcomes(response: Response) -> Option<Vec<Result<Self::Done, Rejection>>>;
}

impl Request for NewOneOff {
    type Done = DesiredOneOff;

    fn guid(&self) -> &str {
        &self.guid
    }

    /// On the leader, the entry also has places, if some are found: the tasks share the entry in that case.
    async fn command(control: &Control, tasks: Vec<Self>) -> Entry {
        let tasks = Arc::new(tasks);
        let found = control.places(&tasks).await;
        let tasks = Arc::unwrap_or_clone(tasks);
        let at = control.now();
        match found {
            Some(OneOffPlacements { places, seen }) if places.iter().any(Option::is_some) => {
                OneOffCommand::Desire {
                    tasks: tasks.into_iter().zip(places).collect(),
                    seen,
                }
                .at(at)
            }
            Some(_) | None => Entry::desire_one_offs(tasks, at),
        }
    }

    fn outcomes(response: Response) -> Option<Vec<Result<DesiredOneOff, Rejection>>> {
        match response {
            Response::OneOffsDesired { outcomes } => Some(outcomes),
            _ => None,
        }
    }
}

impl Request for OneOffChange {
    type Done = ();

    fn guid(&self) -> &str {
        &self.guid
    }

    async fn command(control: &Control, changes: Vec<Self>) -> Entry {
        let at = control.now();
        OneOffCommand::Change { changes }.at(at)
    }

    fn outcomes(response: Response) -> Option<Vec<Result<(), Rejection>>> {
        let Response::OneOffsChanged { outcomes } = response else {
            return None;
        };
        let outcomes = outcomes.into_iter();
        let judged =
            outcomes.map(|refusal| refusal.map_or(Ok(()), |it| Err(Rejection::OneOff(it))));
        Some(judged.collect())
    }
}

/// The queues for requests of both kinds.
#[derive(Debug)]
pub(crate) struct RequestQueues {
    pub(super) desires: BatchQueue<NewOneOff>,
    pub(super) changes: BatchQueue<OneOffChange>,
}

/// The receiving ends of the queues.
#[derive(Debug)]
pub(crate) struct QueueReceivers {
    desires: mpsc::Receiver<PendingRequest<NewOneOff>>,
    changes: mpsc::Receiver<PendingRequest<OneOffChange>>,
}

/// Creates the queues and their receiving ends.
pub(crate) fn channel() -> (RequestQueues, QueueReceivers) {
    let (desires, desires_out) = mpsc::channel(limits::ONE_OFF_REQUESTS_MAX);
    let (changes, changes_out) = mpsc::channel(limits::ONE_OFF_REQUESTS_MAX);
    let requests = RequestQueues {
        desires: BatchQueue(desires),
        changes: BatchQueue(changes),
    };
    let receivers = QueueReceivers {
        desires: desires_out,
        changes: changes_out,
    };
    (requests, receivers)
}

/// The queue for requests of one kind.
#[derive(Debug)]
pub(super) struct BatchQueue<T: Request>(mpsc::Sender<PendingRequest<T>>);

/// The sender to the caller that waits for an answer.
type Waiter<T> = oneshot::Sender<Answer<<T as Request>::Done>>;

/// A request and the caller that waits for its answer.
#[derive(Debug)]
struct PendingRequest<T: Request> {
    request: T,
    answer: Waiter<T>,
}

impl<T: Request> BatchQueue<T> {
    /// Writes `request`, together with other waiting requests. A request with a `key` is written alone.
    pub(super) async fn put(
        &self,
        control: &Control,
        key: Option<WriteKey>,
        request: T,
    ) -> Answer<T::Done> {
        if let Some(key) = key {
            let command = T::command(control, vec![request]).await;
            let proposed = control.propose_keyed(key.clone(), command).await;
            // A repeated request gets the first answer, with the index of the first entry: that index may be a
            // claim's number.
            let state = control.state();
            let first = state.answers().get(&key).map(|answer| answer.index);
            let proposed = proposed
                .map(|(index, response)| (first.map_or(index, |it| it.min(index)), response));
            return split::<T>(proposed, 1).remove(0);
        }
        let waited = limits::PROPOSE_WAIT;
        let (sender, answer) = oneshot::channel();
        let place = tokio::time::timeout(waited, self.0.reserve()).await;
        let place = place.map_err(|_elapsed| ProposeError::Overloaded {
            waiting: limits::ONE_OFF_REQUESTS_MAX,
            waited,
        })?;
        let place = place.map_err(|error| ProposeError::Stopped {
            reason: error.to_string(),
        })?;
        place.send(PendingRequest {
            request,
            answer: sender,
        });
        answer.await.unwrap_or_else(|_dropped| {
            Err(ProposeError::Timeout {
                waited,
                reason: "its entry's task has ended".to_owned(),
            })
        })
    }
}

/// Writes queued requests until `stop`.
pub(crate) async fn write(control: Control, receivers: QueueReceivers, stop: CancellationToken) {
    let QueueReceivers { desires, changes } = receivers;
    let both = async { tokio::join!(drain(&control, desires), drain(&control, changes)) };
    // Answers to requests under way are dropped here, and their callers see the closed channel.
    stop.run_until_cancelled(both).await;
}

async fn drain<T: Request>(control: &Control, mut queue: mpsc::Receiver<PendingRequest<T>>) {
    let mut waiting = Vec::new();
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() >= limits::ONE_OFF_ENTRIES_MAX {
            ended(under_way.join_next().await);
        }
        while let Some(result) = under_way.try_join_next() {
            ended(Some(result));
        }
        let room = limits::ONE_OFF_REQUESTS_PER_ENTRY_MAX.saturating_sub(waiting.len());
        if waiting.is_empty() {
            if queue.recv_many(&mut waiting, room).await == 0 {
                return;
            }
        } else {
            let more = std::iter::from_fn(|| queue.try_recv().ok()).take(room);
            waiting.extend(more);
        }
        let (requests, answers) = take(&mut waiting);
        if !requests.is_empty() {
            under_way.spawn(commit(control.clone(), requests, answers));
        }
    }
}

/// Writes `requests` as one entry and answers each.
async fn commit<T: Request>(control: Control, requests: Vec<T>, answers: Vec<Waiter<T>>) {
    let command = T::command(&control, requests).await;
    let outcomes = split::<T>(control.propose(command).await, answers.len());
    for (answer, outcome) in answers.into_iter().zip(outcomes) {
        // The caller may have gone away, but the request is carried out.
        drop(answer.send(outcome));
    }
}

/// Logs the panic of an entry's task. Its callers get an unknown outcome.
fn ended(result: Option<Result<(), JoinError>>) {
    if let Some(Err(error)) = result {
        tracing::error!(%error, "the entry of requests about one-off tasks failed");
    }
}

/// Takes the first of `waiting` that fit into one entry, at most one for each task. So readers of events receive a
/// task after each change. Drops requests whose callers have gone.
fn take<T: Request>(waiting: &mut Vec<PendingRequest<T>>) -> (Vec<T>, Vec<Waiter<T>>) {
    waiting.retain(|waiting| !waiting.answer.is_closed());
    let mut bytes = 0;
    let mut guids = BTreeSet::new();
    let fitting = waiting.iter().take_while(|waiting| {
        // The log refuses a request that cannot be encoded.
        bytes += codec::encoded_bytes(&waiting.request).unwrap_or(0);
        let fits = bytes <= limits::ONE_OFF_BYTES_PER_ENTRY_MAX || guids.is_empty();
        fits && guids.insert(waiting.request.guid())
    });
    let count = fitting.count();
    let taken = waiting.drain(..count);
    taken
        .map(|waiting| (waiting.request, waiting.answer))
        .unzip()
}

/// The answer of each of `count` requests that were one entry.
fn split<T: Request>(proposed: ProposeResult, count: usize) -> Vec<Answer<T::Done>> {
    let of_all = |answer: &dyn Fn() -> Answer<T::Done>| (0..count).map(|_| answer()).collect();
    match proposed {
        Err(error) => of_all(&|| Err(error.clone())),
        Ok((index, Response::Rejected(rejection))) => {
            of_all(&|| Ok((index, Err(rejection.clone()))))
        }
        Ok((index, response)) => match T::outcomes(response) {
            Some(outcomes) if outcomes.len() == count => {
                let each = outcomes.into_iter();
                each.map(|outcome| Ok((index, outcome))).collect()
            }
            _ => of_all(&|| {
                Err(ProposeError::Timeout {
                    waited: limits::PROPOSE_WAIT,
                    reason: "the log's answer is about something else".to_owned(),
                })
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use muster_control_core::fsm::{JobRejection, OneOffRefusal};
    use muster_domain::fixture;

    use super::*;
    use crate::server::{Server, ServerConfig};

    type Receiver = oneshot::Receiver<Answer<DesiredOneOff>>;

    fn waiting(guid: &str, bytes: usize) -> (PendingRequest<NewOneOff>, Receiver) {
        let mut definition = fixture::definition();
        definition.annotation = "x".repeat(bytes);
        let request = NewOneOff {
            guid: guid.to_owned(),
            domain: "apps".to_owned(),
            definition,
        };
        let (answer, receiver) = oneshot::channel();
        (PendingRequest { request, answer }, receiver)
    }

    fn taken(waiting: &mut Vec<PendingRequest<NewOneOff>>) -> Vec<String> {
        let (requests, answers) = take(waiting);
        assert_eq!(requests.len(), answers.len());
        requests.into_iter().map(|request| request.guid).collect()
    }

    #[test]
    fn entry_batch_is_bounded_and_unique_per_task() {
        let half = limits::ONE_OFF_BYTES_PER_ENTRY_MAX / 2;
        let (mut queue, _receivers): (Vec<_>, Vec<_>) = [
            waiting("a", 1),
            waiting("b", half),
            waiting("c", half),
            waiting("c", 1),
            waiting("d", 3 * half),
        ]
        .into_iter()
        .unzip();

        assert_eq!(taken(&mut queue), ["a", "b"]);
        assert_eq!(taken(&mut queue), ["c"]);
        assert_eq!(taken(&mut queue), ["c"]);
        // A single request goes alone, at any size: the log decides whether to accept it.
        assert_eq!(taken(&mut queue), ["d"]);
        assert!(taken(&mut queue).is_empty());
    }

    #[test]
    fn abandoned_changes_are_not_written() {
        let (gone, receiver) = waiting("gone", 1);
        let (here, _receiver) = waiting("here", 1);
        drop(receiver);

        assert_eq!(taken(&mut vec![gone, here]), ["here"]);
    }

    /// The test runs on one thread, so that all requests are put before any is written.
    #[tokio::test]
    async fn requests_at_the_same_time_share_an_entry() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = ServerConfig::new(dir.path());
        config.http_addr = ([127, 0, 0, 1], 0).into();
        config.quic_addr = ([127, 0, 0, 1], 0).into();
        let server = Server::start(config).await.unwrap();
        let control = server.control();
        let desire = |number: u32| {
            let (waiting, _) = waiting(&format!("t-{number}"), 1);
            super::super::desire(control, None, waiting.request)
        };

        let answers = futures::future::join_all((0..100).map(desire)).await;

        let entries: BTreeSet<LogIndex> = answers
            .into_iter()
            .map(|answer| {
                let (index, desired) = answer.unwrap();
                assert_eq!(desired.unwrap().generation, index);
                index
            })
            .collect();
        assert_eq!(entries.len(), 1, "{entries:?}");
        assert_eq!(control.state().one_offs().iter().count(), 100);
        server.shutdown().await;
    }

    #[test]
    fn batched_requests_get_individual_outcomes() {
        let refusal = OneOffRefusal::Unknown("b".to_owned());
        let response = Response::OneOffsChanged {
            outcomes: vec![None, Some(refusal.clone())],
        };
        let (index, refused) = (LogIndex(7), Rejection::OneOff(refusal));

        let answers = split::<OneOffChange>(Ok((index, response)), 2);

        let [Ok(done), Ok(other)] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!(*done, (index, Ok(())));
        assert_eq!(*other, (index, Err(refused)));
    }

    #[test]
    fn entry_failure_applies_to_all_batched_requests() {
        let failed = ProposeError::NotLeader { leader: None };
        let answers = split::<NewOneOff>(Err(failed), 2);
        assert_eq!(answers.len(), 2);
        for answer in answers {
            assert!(matches!(answer, Err(ProposeError::NotLeader { .. })));
        }

        let rejected = Response::Rejected(Rejection::Job(JobRejection::RegistrationOff));
        let answers = split::<NewOneOff>(Ok((LogIndex(7), rejected)), 2);
        for answer in answers {
            assert!(matches!(
                answer,
                Ok((_, Err(Rejection::Job(JobRejection::RegistrationOff))))
            ));
        }

        let other = Ok((LogIndex(7), Response::Done));
        assert!(split::<NewOneOff>(other, 1)[0].is_err());
    }
}
