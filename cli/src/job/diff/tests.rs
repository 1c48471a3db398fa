//! Differences as people see them.

use expect_test::{Expect, expect};
use muster_wire::api::diff::{annotate, annotate_updates, jobs};
use serde_json::{Value, json};

use super::text;

fn job() -> Value {
    json!({
        "ID": "web", "Priority": 50, "TaskGroups": [{
            "Name": "api", "Count": 2,
            "Tasks": [
                {"Name": "main", "Driver": "native", "Config": {"command": "/bin/a"},
                 "Resources": {"CPU": 100, "MemoryMB": 64}},
                {"Name": "side", "Driver": "native"},
            ],
        }],
    })
}

fn check(old: Option<&Value>, new: &Value, verbose: bool, expected: Expect) {
    let mut diff = jobs(old, Some(new), true).unwrap();
    annotate(&mut diff);
    let updates = [
        ("create/destroy update".to_owned(), 2),
        ("create".to_owned(), 1),
    ];
    let updates = [("api".to_owned(), updates.into())];
    annotate_updates(&mut diff, updates.into());
    expected.assert_eq(&text(&diff, verbose));
}

#[test]
fn a_change_is_marked_where_it_is() {
    let mut new = job();
    new["Priority"] = json!(60);
    new["TaskGroups"][0]["Count"] = json!(3);
    let task = &mut new["TaskGroups"][0]["Tasks"][0];
    task["Config"] = json!({"command": "/bin/b", "args": ["-v"]});
    task["Resources"]["MemoryMB"] = json!(128);

    check(Some(&job()), &new, false, expect![[r#""#]]);
}

#[test]
fn what_is_new_is_not_listed_line_by_line() {
    check(None, &job(), false, expect![[r#""#]]);
}

#[test]
fn what_is_new_is_listed_if_asked_for() {
    check(None, &job(), true, expect![[r#""#]]);
}

/// A value moves no cursor.
#[test]
fn control_characters_are_quoted() {
    let mut new = job();
    new["Meta"] = json!({"a": "\u{1b}[2J"});

    let diff = jobs(Some(&job()), Some(&new), true).unwrap();

    assert!(!text(&diff, false).contains('\u{1b}'));
}
