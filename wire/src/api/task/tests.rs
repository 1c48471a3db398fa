//! Tests of reading bodies, of refusals that name the fault, and of the form of a task.

use muster_domain::fixture::definition;
use muster_domain::id::{LogIndex, Timestamp};
use std::sync::Arc;

use super::*;

const MINIMAL: &str = r#"{"task_guid":"a","domain":"d","task_definition":
    {"rootfs":"preloaded:host","action":{"run":{"path":"/bin/true","user":"vcap"}}}}"#;

#[test]
fn few_fields_are_enough() {
    let read = read_desire(MINIMAL.as_bytes()).unwrap();

    assert_eq!(read.task_definition.priority, 50);
    assert_eq!(read.task_definition.memory_mb, 0);
}

#[test]
fn null_counts_as_left_out() {
    let text = MINIMAL.replace(
        r#""rootfs""#,
        r#""egress_rules":null,"env":null,"placement_tags":null,"rootfs""#,
    );

    assert_eq!(
        read_desire(text.as_bytes()).unwrap(),
        read_desire(MINIMAL.as_bytes()).unwrap()
    );
}

#[test]
fn unknown_fields_are_named() {
    for (from, to, named) in [
        (
            "\"domain\"",
            "\"volume_mounts\":[],\"domain\"",
            "volume_mounts",
        ),
        (
            "\"rootfs\"",
            "\"image_layers\":[{}],\"rootfs\"",
            "image_layers",
        ),
        ("\"path\"", "\"nice\":1,\"path\"", "nice"),
        ("\"run\"", "\"walk\"", "walk"),
        ("\"/bin/true\"", "7", "integer `7`"),
    ] {
        let error = read_desire(MINIMAL.replace(from, to).as_bytes()).unwrap_err();
        assert!(error.to_string().contains(named), "{named}: {error}");
    }
    assert!(read_desire(b"{").is_err());
    assert!(read_desire(&[b'['; 1_000]).is_err());
}

#[test]
fn an_action_is_of_one_kind() {
    let run = r#"{"run":{"path":"/bin/true","user":"vcap"}}"#;
    for (action, at) in [
        ("{}", "action"),
        (r#"{"run":null}"#, "action"),
        (
            r#"{"timeout":{"timeout_ms":1,"action":{}}}"#,
            "action.timeout.action",
        ),
        (
            r#"{"serial":{"actions":[RUN,{}]}}"#,
            "action.serial.actions[1]",
        ),
        (
            r#"{"try":{"action":{"parallel":{"actions":[{}]}}}}"#,
            "action.try.action.parallel.actions[0]",
        ),
        (r#"{"run":{},"download":{}}"#, "action"),
    ] {
        let text = MINIMAL.replace(run, &action.replace("RUN", run));
        let at = at.to_owned();
        assert_eq!(
            read_desire(text.as_bytes()),
            Err(ReadDesireError::Action { at }),
            "{text}"
        );
    }
}

#[test]
fn a_task_is_flat() {
    let row = OneOff::new(
        "a".to_owned(),
        "d".to_owned(),
        Arc::new(definition()),
        LogIndex(7),
        Timestamp(9),
    );

    let value = serde_json::to_value(Task::from(&row)).unwrap();

    assert_eq!(value["rootfs"], "preloaded:host");
    assert_eq!(value["action"]["run"]["path"], "/bin/true");
    assert_eq!(value["state"], "Pending");
    assert_eq!(value["created_at"], 9);
    assert_eq!(value["generation"], 7);
}

#[test]
fn callback_body_matches_diego() {
    let mut row = OneOff::new(
        "a".to_owned(),
        "d".to_owned(),
        Arc::new(definition()),
        LogIndex(7),
        Timestamp(9),
    );
    row.end = Some(WorkEnd::failure("why", Timestamp(10)));

    let text = serde_json::to_string(&CallbackBody::from(&row)).unwrap();

    assert_eq!(
        text,
        r#"{"task_guid":"a","failed":true,"failure_reason":"why","result":"","annotation":"","created_at":9}"#
    );
}

#[test]
fn faults_are_formatted_as_in_diego() {
    let text = invalid_fields(["rootfs", "annotation"].into_iter());

    assert_eq!(text, "Invalid field: rootfs, Invalid field: annotation");
}
