//! The node ends with the desired state of the newest index, for every loss, repetition and order of messages.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{alloc, id};
use crate::node::{Change, Desired, DesiredUpdate};
use muster_domain::id::{AllocId, LogIndex};

/// Allocations of the node by name, with the index of their last change.
type State = BTreeMap<u32, u64>;

/// An entry for one allocation.
#[derive(Clone, Copy, Debug)]
enum LogEntry {
    Put(u32),
    Remove(u32),
}

/// A session with a server.
#[derive(Clone, Debug)]
struct Session {
    /// The server's position in the history, as a part of it, when the session begins and later.
    states: [prop::sample::Index; 2],
    /// The connection breaks after this part of the messages.
    cut: prop::sample::Index,
    /// Messages that are repeated later.
    repeats: Vec<prop::sample::Index>,
}

fn entry() -> impl Strategy<Value = LogEntry> {
    prop_oneof![
        3 => (0..6_u32).prop_map(LogEntry::Put),
        1 => (0..6_u32).prop_map(LogEntry::Remove),
    ]
}

fn session() -> impl Strategy<Value = Session> {
    let states = any::<[prop::sample::Index; 2]>();
    let repeats = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    (states, any::<prop::sample::Index>(), repeats).prop_map(|(states, cut, repeats)| Session {
        states,
        cut,
        repeats,
    })
}

/// The states after each entry. A returning name gets a new allocation id, because an id is never used twice.
fn history(entries: &[LogEntry]) -> Vec<State> {
    let mut state = State::new();
    let mut lives = BTreeMap::new();
    let mut states = vec![state.clone()];
    for (at, entry) in entries.iter().enumerate() {
        let index = at as u64 + 1;
        match entry {
            LogEntry::Put(name) => {
                let life: u32 = *lives.entry(*name).or_insert(0);
                state.insert(name + 10 * life, index);
            }
            LogEntry::Remove(name) => {
                let life: &mut u32 = lives.entry(*name).or_insert(0);
                state.remove(&(name + 10 * *life));
                *life += 1;
            }
        }
        states.push(state.clone());
    }
    states
}

/// The messages of a server that has sent everything of `before` and is at `now`. `known` is for a new session.
fn server_messages(
    index: usize,
    now: &State,
    before: Option<&State>,
    known: u64,
) -> Vec<DesiredUpdate> {
    let is_new = |name: &u32, at: u64| match before {
        Some(before) => before.get(name) != Some(&at),
        None => at > known,
    };
    let changed: Vec<_> = now.iter().filter(|(name, at)| is_new(name, **at)).collect();
    let same = now.keys().filter(|name| !is_new(name, now[name]));
    let gone = before.into_iter().flat_map(State::keys);
    let index = LogIndex(index as u64);
    let update = || DesiredUpdate {
        index,
        ..DesiredUpdate::default()
    };
    let mut messages = Vec::new();
    if before.is_none() {
        let unchanged = same.map(|name| id(*name)).collect();
        messages.push(DesiredUpdate {
            unchanged,
            ..update()
        });
    }
    for pair in changed.chunks(2) {
        let allocs = pair.iter().map(|(name, at)| alloc(**name, **at)).collect();
        messages.push(DesiredUpdate { allocs, ..update() });
    }
    messages.push(DesiredUpdate {
        gone: gone
            .filter(|name| !now.contains_key(name))
            .map(|name| id(*name))
            .collect(),
        complete: Some(u32::try_from(now.len()).unwrap()),
        ..update()
    });
    messages
}

/// A node, and all changes that it applied.
#[derive(Default)]
struct Node {
    desired: Desired,
    started: BTreeSet<AllocId>,
}

impl Node {
    fn apply_update(&mut self, update: &DesiredUpdate) -> bool {
        let merged = self.desired.apply(update.clone());
        for change in merged.changes {
            if let Change::Start(alloc) = change {
                assert!(self.started.insert(alloc.alloc_id), "started twice");
            }
        }
        merged.ask_again
    }

    /// Applies `messages` in order, and repeats some of them.
    fn hold(&mut self, messages: &[DesiredUpdate], session: &Session) {
        for (at, update) in messages.iter().enumerate() {
            assert!(
                !self.apply_update(update),
                "a server that is asked right knows what is known"
            );
            for repeat in &session.repeats {
                let earlier = repeat.index(at + 1);
                assert!(!self.apply_update(&messages[earlier]));
            }
        }
    }

    fn knows(&self) -> State {
        let name = |wanted: AllocId| (0..600).find(|name| id(*name) == wanted).unwrap();
        self.desired
            .iter()
            .map(|alloc| (name(alloc.alloc_id), alloc.alloc_modify_index.0))
            .collect()
    }
}

proptest! {
    /// Sessions break at any point, with servers at different positions.
    #[test]
    fn the_newest_state_wins(
        entries in prop::collection::vec(entry(), 1..40),
        sessions in prop::collection::vec(session(), 0..6),
    ) {
        let states = history(&entries);
        let mut node = Node::default();
        for session in &sessions {
            let known = node.desired.index().0;
            let mut at = session.states.map(|at| at.index(states.len()));
            at.sort_unstable();
            // A server waits until its state is as new as the node's.
            let begin = at[0].max(usize::try_from(known).unwrap());
            let later = at[1].max(begin);
            let mut messages = server_messages(begin, &states[begin], None, known);
            messages.extend(server_messages(later, &states[later], Some(&states[begin]), 0));
            node.desired.begin_session();
            let cut = session.cut.index(messages.len() + 1);
            node.hold(&messages[..cut], session);
            prop_assert!(node.desired.index().0 >= known);
        }

        let newest = states.len() - 1;
        let known = node.desired.index().0;
        node.desired.begin_session();
        for update in server_messages(newest, &states[newest], None, known) {
            prop_assert!(!node.apply_update(&update));
        }

        prop_assert_eq!(node.knows(), states[newest].clone());
        prop_assert_eq!(node.desired.index(), LogIndex(newest as u64));
    }

    /// All messages of a session arrive, in any order and some twice, and none is lost.
    #[test]
    fn any_order_ends_alike(
        entries in prop::collection::vec(entry(), 1..30),
        begin in any::<prop::sample::Index>(),
        order in any::<u64>(),
    ) {
        let states = history(&entries);
        let newest = states.len() - 1;
        let begin = begin.index(states.len());
        let mut messages = server_messages(begin, &states[begin], None, 0);
        messages.extend(server_messages(newest, &states[newest], Some(&states[begin]), 0));
        messages.extend(messages.clone());
        let mut random = order;
        let mut node = Node::default();
        node.desired.begin_session();

        while !messages.is_empty() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(random >> 33).unwrap() % messages.len();
            let update = messages.swap_remove(at);
            node.apply_update(&update);
        }

        prop_assert_eq!(node.knows(), states[newest].clone());
    }
}
