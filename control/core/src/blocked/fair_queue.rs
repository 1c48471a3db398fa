//! Turns: the order of equally important evaluations that wait for room.
//!
//! Tasks of one domain queue behind each other, and domains take turns. Let `now` be the highest turn that was served.
//! A task that begins to wait gets the turn after `now`, or after the last waiting task of its domain. So ten thousand
//! tasks of one domain delay a task of another domain by one task. A domain that submits again and again gets no more
//! than its share. A job that is not a one-off task is a domain of its own.
//!
//! An evaluation keeps its turn until it has ended, however often it is looked at. Turns are memory of the leader only:
//! the next leader assigns turns anew, by age.

use std::collections::BTreeMap;

use muster_domain::eval::Evaluation;
use muster_domain::id::EvalId;

use crate::state::State;

/// The turns of waiting evaluations.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    /// The bands by priority; only priorities with a waiting evaluation.
    levels: BTreeMap<u8, PriorityBand>,
    given: BTreeMap<EvalId, Ticket>,
}

#[derive(Debug, Default)]
struct PriorityBand {
    /// The highest turn that was served.
    now: u64,
    waiting: usize,
    /// The domains with a waiting evaluation.
    domains: BTreeMap<String, DomainQueue>,
}

#[derive(Debug, Default)]
struct DomainQueue {
    /// The last turn assigned.
    last: u64,
    waiting: usize,
}

#[derive(Debug)]
struct Ticket {
    turn: u64,
    priority: u8,
    domain: Option<String>,
}

impl FairQueue {
    /// Returns the turn of `eval`; it is the same at every call.
    pub(super) fn give(&mut self, state: &State, eval: &Evaluation) -> u64 {
        if let Some(given) = self.given.get(&eval.id) {
            return given.turn;
        }
        let level = self.levels.entry(eval.priority).or_default();
        level.waiting += 1;
        let domain = domain_of(state, eval);
        let turn = match &domain {
            Some(name) => {
                let domain = level.domains.entry(name.clone()).or_default();
                domain.waiting += 1;
                domain.last = domain.last.max(level.now) + 1;
                domain.last
            }
            None => level.now + 1,
        };
        let given = Ticket {
            turn,
            priority: eval.priority,
            domain,
        };
        self.given.insert(eval.id, given);
        turn
    }

    /// Handles the end of an evaluation; `served`: it got the room that it waited for.
    pub(super) fn end(&mut self, eval_id: &EvalId, served: bool) {
        let Some(given) = self.given.remove(eval_id) else {
            return;
        };
        let Some(level) = self.levels.get_mut(&given.priority) else {
            return;
        };
        if served {
            level.now = level.now.max(given.turn);
        }
        if let Some(name) = given.domain
            && let Some(domain) = level.domains.get_mut(&name)
        {
            domain.waiting -= 1;
            if domain.waiting == 0 {
                level.domains.remove(&name);
            }
        }
        level.waiting -= 1;
        if level.waiting == 0 {
            self.levels.remove(&given.priority);
        }
    }
}

/// Returns the domain in whose turn `eval` waits; `None`: the evaluation has a domain of its own.
fn domain_of(state: &State, eval: &Evaluation) -> Option<String> {
    let is_one_off = eval.job.is_one_off();
    let row = is_one_off.then(|| state.one_offs().get(&eval.job.job_id));
    row.flatten().map(|row| row.domain.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_domain::fixture::definition;

    use super::*;
    use crate::fixture::Cluster;
    use crate::fsm::{Entry, NewOneOff};

    /// Tasks that wait, in the order in which they were desired.
    struct Fixture {
        cluster: Cluster,
        turns: FairQueue,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                cluster: Cluster::new(),
                turns: FairQueue::default(),
            }
        }

        /// Makes a task of `domain` wait, and returns its turn.
        fn wait(&mut self, guid: &str, domain: &str) -> u64 {
            let tasks = vec![NewOneOff {
                guid: guid.to_owned(),
                domain: domain.to_owned(),
                definition: definition(),
            }];
            let at = self.cluster.now;
            self.cluster.apply(Entry::desire_one_offs(tasks, at));
            let eval = self.eval(guid);
            self.turns.give(&self.cluster.state, &eval)
        }

        fn eval(&self, guid: &str) -> Arc<Evaluation> {
            let key = muster_domain::one_off::job_key(guid);
            let mut open = self.cluster.state.evals().open_of_job(&key);
            Arc::clone(open.next().unwrap())
        }

        fn end(&mut self, guid: &str, served: bool) {
            let id = self.eval(guid).id;
            self.turns.end(&id, served);
        }
    }

    #[test]
    fn domains_take_turns() {
        let mut fixture = Fixture::new();
        let many: Vec<u64> = (1..=5)
            .map(|number| fixture.wait(&format!("many-{number}"), "many"))
            .collect();
        assert_eq!(many, [1, 2, 3, 4, 5]);
        fixture.end("many-1", true);
        fixture.end("many-2", true);

        assert_eq!(fixture.wait("few-1", "few"), 3);
        assert_eq!(fixture.wait("few-2", "few"), 4);
        fixture.end("few-1", true);
        // A waiting task keeps its turn. The next task of the domain goes to the end of the domain's own queue.
        assert_eq!(fixture.wait("few-2", "few"), 4);
        assert_eq!(fixture.wait("few-3", "few"), 5);
        assert_eq!(fixture.wait("many-6", "many"), 6);
    }

    /// A domain that submits again after each served task does not keep other domains from their turn.
    #[test]
    fn returning_domain_waits_for_its_turn() {
        let mut fixture = Fixture::new();
        fixture.wait("old-1", "old");
        fixture.wait("old-2", "old");
        for number in 1..=3 {
            let guid = format!("eager-{number}");
            assert_eq!(fixture.wait(&guid, "eager"), number);
            fixture.end(&guid, true);
        }
    }

    #[test]
    fn unserved_waiter_does_not_advance_the_turn() {
        let mut fixture = Fixture::new();
        for guid in ["a-1", "a-2", "a-3"] {
            fixture.wait(guid, "a");
        }

        fixture.end("a-3", false);

        assert_eq!(fixture.wait("b-1", "b"), 1);
    }

    #[test]
    fn turn_state_is_dropped_with_last_waiter() {
        let mut fixture = Fixture::new();
        fixture.wait("a", "x");
        fixture.wait("b", "y");
        fixture.end("a", true);
        fixture.end("b", false);
        fixture.end("b", true);

        assert!(fixture.turns.levels.is_empty());
        assert!(fixture.turns.given.is_empty());
    }
}
