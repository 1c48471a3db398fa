use std::fmt::Write as _;

use muster_domain::fixture;

use super::*;

fn id(name: u32) -> AllocId {
    AllocId::at(LogIndex(1), name)
}

fn alloc(name: u32, index: u64) -> DesiredAlloc {
    DesiredAlloc {
        alloc_modify_index: LogIndex(index),
        ..fixture::desired(id(name), fixture::job("web").version())
    }
}

fn with_status(client_status: ClientStatus, name: u32, index: u64) -> DesiredAlloc {
    DesiredAlloc {
        client_status,
        ..alloc(name, index)
    }
}

/// Merges a message in the way that most tests need. `complete` ends the set with the allocations known then.
fn apply(
    desired: &mut Desired,
    index: u64,
    allocs: Vec<DesiredAlloc>,
    gone: &[AllocId],
    complete: Option<u32>,
) -> Vec<Change> {
    let update = DesiredUpdate {
        index: LogIndex(index),
        allocs,
        gone: gone.to_vec(),
        complete,
        ..DesiredUpdate::default()
    };
    desired.apply(update).changes
}

fn shown(changes: &[Change]) -> String {
    let mut text = String::new();
    for change in changes {
        let (word, alloc_id) = match change {
            Change::Start(alloc) => ("start", alloc.alloc_id),
            Change::Unremembered(alloc) => ("unremembered", alloc.alloc_id),
            Change::Update(alloc) => ("update", alloc.alloc_id),
            Change::Gone(alloc_id) => ("gone", *alloc_id),
        };
        let name = (0..10).find(|name| id(*name) == alloc_id).unwrap();
        write!(text, "{word} {name} ").unwrap();
    }
    text.trim_end().to_owned()
}

#[test]
fn repeated_message_changes_nothing() {
    let mut desired = Desired::default();

    let first = apply(&mut desired, 5, vec![alloc(1, 5)], &[], None);
    let second = apply(&mut desired, 5, vec![alloc(1, 5)], &[], None);

    assert_eq!(
        (shown(&first).as_str(), shown(&second).as_str()),
        ("start 1", "")
    );
}

#[test]
fn an_older_message_changes_nothing() {
    let mut desired = Desired::default();
    apply(&mut desired, 9, vec![alloc(1, 9)], &[], None);

    let late = apply(&mut desired, 5, vec![alloc(1, 5)], &[], None);

    assert_eq!(shown(&late), "");
    assert_eq!(desired.get(id(1)).unwrap().alloc_modify_index, LogIndex(9));
}

#[test]
fn a_newer_message_updates() {
    let mut desired = Desired::default();
    apply(&mut desired, 5, vec![alloc(1, 5)], &[], None);

    let changes = apply(&mut desired, 6, vec![alloc(1, 6)], &[], None);

    assert_eq!(shown(&changes), "update 1");
}

#[test]
fn gone_alloc_is_removed_once_and_stays_gone() {
    let mut desired = Desired::default();
    apply(&mut desired, 5, vec![alloc(1, 5)], &[], None);

    let gone = apply(&mut desired, 7, Vec::new(), &[id(1)], None);
    let again = apply(&mut desired, 7, vec![alloc(1, 5)], &[id(1)], None);

    assert_eq!(
        (shown(&gone).as_str(), shown(&again).as_str()),
        ("gone 1", "")
    );
}

#[test]
fn full_alloc_set_removes_unlisted_allocs() {
    let mut desired = Desired::restore([alloc(1, 3), alloc(2, 4)]);
    desired.begin_session();

    let part = apply(&mut desired, 9, vec![alloc(2, 4)], &[], None);
    let rest = apply(&mut desired, 9, vec![alloc(3, 8)], &[], Some(2));

    assert_eq!(
        (shown(&part).as_str(), shown(&rest).as_str()),
        ("", "start 3 gone 1")
    );
}

/// The server's state ends at 5; it cannot contain an allocation that was placed at 6.
#[test]
fn a_lagging_server_takes_nothing_away() {
    let mut desired = Desired::restore([alloc(1, 6)]);
    desired.begin_session();

    let silent = apply(&mut desired, 5, Vec::new(), &[], Some(0));
    let named = apply(&mut desired, 5, Vec::new(), &[id(1)], None);

    assert_eq!((shown(&silent).as_str(), shown(&named).as_str()), ("", ""));
}

#[test]
fn complete_without_a_session_takes_nothing_away() {
    let mut desired = Desired::restore([alloc(1, 3)]);

    let changes = apply(&mut desired, 9, Vec::new(), &[], Some(0));

    assert_eq!(shown(&changes), "");
}

/// A node that lost its record must not run an allocation a second time.
#[test]
fn allocs_that_ran_are_never_started_again() {
    let mut desired = Desired::default();
    let sent = vec![
        with_status(ClientStatus::Pending, 1, 5),
        with_status(ClientStatus::Running, 2, 5),
        with_status(ClientStatus::Unknown, 3, 5),
        with_status(ClientStatus::Complete, 4, 5),
        with_status(ClientStatus::Failed, 5, 5),
        with_status(ClientStatus::Lost, 6, 5),
    ];

    let changes = apply(&mut desired, 5, sent, &[], Some(6));

    assert_eq!(shown(&changes), "start 1 unremembered 2 unremembered 3");
}

#[test]
fn any_order_of_messages_ends_alike() {
    let messages = [
        alloc(1, 5),
        alloc(1, 6),
        alloc(1, 7),
        alloc(1, 6),
        alloc(1, 5),
    ];
    let mut forward = Desired::default();
    let mut backward = Desired::default();

    for message in messages.clone() {
        apply(&mut forward, 9, vec![message], &[], None);
    }
    for message in messages.into_iter().rev() {
        apply(&mut backward, 9, vec![message], &[], None);
    }

    assert!(forward.iter().eq(backward.iter()));
}

#[test]
fn tombstones_are_bounded() {
    let mut desired = Desired::default();

    for name in 0..u32::try_from(TOMBSTONES_MAX).unwrap() + 10 {
        apply(&mut desired, 9, Vec::new(), &[id(name)], None);
    }

    assert_eq!(desired.tombstones.len(), TOMBSTONES_MAX);
    assert_eq!(desired.tombstone_order.len(), TOMBSTONES_MAX);
}

/// The last message of a set overtakes another one.
#[test]
fn alloc_set_completes_despite_reordered_messages() {
    let mut desired = Desired::restore([alloc(1, 3), alloc(2, 4)]);
    desired.begin_session();

    let last = apply(&mut desired, 9, vec![alloc(2, 4)], &[], Some(2));
    assert_eq!((shown(&last).as_str(), desired.index()), ("", LogIndex(0)));
    let first = apply(&mut desired, 9, vec![alloc(1, 3)], &[], None);

    assert_eq!((shown(&first).as_str(), desired.index()), ("", LogIndex(9)));
}

#[test]
fn unchanged_allocs_stay() {
    let mut desired = Desired::restore([alloc(1, 3), alloc(2, 4)]);
    desired.begin_session();

    let merged = desired.apply(DesiredUpdate {
        index: LogIndex(9),
        unchanged: vec![id(2)],
        complete: Some(1),
        ..DesiredUpdate::default()
    });

    assert_eq!(shown(&merged.changes), "gone 1");
    assert!(merged.whole);
}

#[test]
fn unchanged_but_unknown_allocs_are_requested_again() {
    let mut desired = Desired::restore([alloc(1, 3)]);
    desired.begin_session();

    let merged = desired.apply(DesiredUpdate {
        index: LogIndex(9),
        unchanged: vec![id(1), id(2)],
        complete: Some(2),
        ..DesiredUpdate::default()
    });

    assert!(merged.ask_again);
    assert_eq!(shown(&merged.changes), "");
    assert_eq!(desired.index(), LogIndex(0));
}

#[test]
fn the_index_follows_whole_sets_only() {
    let mut desired = Desired::default();
    desired.begin_session();
    apply(&mut desired, 5, vec![alloc(1, 5)], &[], Some(1));
    assert_eq!(desired.index(), LogIndex(5));

    apply(&mut desired, 7, vec![alloc(2, 6)], &[], None);
    assert_eq!(desired.index(), LogIndex(5));
    apply(&mut desired, 7, vec![alloc(3, 7)], &[], Some(3));
    assert_eq!(desired.index(), LogIndex(7));
    apply(&mut desired, 6, Vec::new(), &[], Some(2));

    assert_eq!(desired.index(), LogIndex(7));
}

mod laws;
