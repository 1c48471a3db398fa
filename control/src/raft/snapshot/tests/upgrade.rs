//! Servers of this version together with servers of version 1: entries and a snapshot from a server of version 1.
//!
//! `testdata/upgrade.v1.txt` was recorded once and is never written again: it replaces the old server.

use super::*;
use crate::raft::machine;
use crate::raft::tests::recorded;
use crate::raft::types::EncodedCommand;

const RECORDED: &str = include_str!("../../../../testdata/upgrade.v1.txt");

/// The state that this server has after the recorded entries.
fn applied() -> State {
    let mut state = State::default();
    for ((format, body), index) in recorded(RECORDED, "entry").into_iter().zip(1..) {
        let body = body.into();
        let command = machine::decode(LogIndex(index), &EncodedCommand { format, body }).unwrap();
        fsm::apply(&mut state, LogIndex(index), command);
    }
    state
}

/// The old server made the recorded snapshot from the entries. A server that read it and a server that applied the
/// entries continue from the same state.
#[test]
fn version_1_entries_give_the_old_servers_state() {
    let (_, bytes) = recorded(RECORDED, "snapshot").remove(0);
    let size = bytes.len() as u64;

    let restored = read_from(bytes.as_slice(), size, Path::new("recorded")).unwrap();

    let applied = applied();
    assert_eq!(restored.state, applied);
    assert_eq!(restored.state.hash(), applied.hash());
    assert_eq!(
        (applied.jobs().iter().count(), applied.one_offs().len()),
        (3, 1)
    );
}

/// An old server checks its own version in the same way: it stops before it applies an entry of a newer version.
#[test]
fn an_entry_of_a_newer_version_is_refused() {
    let (_, body) = recorded(RECORDED, "entry").remove(0);
    let logged = EncodedCommand {
        format: fsm::VERSION + 1,
        body: body.into(),
    };

    let refused = machine::decode(LogIndex(1), &logged)
        .unwrap_err()
        .to_string();

    assert!(refused.contains("start the newer version"), "{refused}");
}

/// This server writes the state of the old entries in its own version, and reads it back.
#[test]
fn upgraded_state_is_written_in_the_new_version() {
    let mut bytes = Vec::new();
    let contents = Contents {
        meta: meta(6),
        state: applied(),
        restoring: None,
    };

    format::write(&mut bytes, &contents).unwrap();

    let (size, path) = (bytes.len() as u64, Path::new("upgraded"));
    let info = inspect(bytes.as_slice(), size, path).unwrap();
    let nodes = info.tables.iter().find(|table| table.name == "nodes");
    assert_eq!(nodes.map(|table| table.version), Some(2));
    let read = read_from(bytes.as_slice(), size, path).unwrap();
    assert_eq!(read.state, applied());
}
