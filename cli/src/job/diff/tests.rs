//! Differences in human-readable form.

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

/// The plan's effect on instances overrides the usual effect of a change.
#[test]
fn in_place_update_is_annotated() {
    let mut new = job();
    new["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"] = json!(200);
    let mut diff = jobs(Some(&job()), Some(&new), true).unwrap();
    annotate(&mut diff);
    let in_place = ("in-place update".to_owned(), 2);
    annotate_updates(&mut diff, [("api".to_owned(), [in_place].into())].into());

    let text = text(&diff, false);

    assert!(text.contains("\"main\" (forces in-place update)"), "{text}");
}

#[test]
fn a_change_is_marked_where_it_is() {
    let mut new = job();
    new["Priority"] = json!(60);
    new["TaskGroups"][0]["Count"] = json!(3);
    let task = &mut new["TaskGroups"][0]["Tasks"][0];
    task["Config"] = json!({"command": "/bin/b", "args": ["-v"]});
    task["Resources"]["MemoryMB"] = json!(128);

    check(
        Some(&job()),
        &new,
        false,
        expect![[r#"
        +/- Job: "web"
        +/- Priority: "50" => "60"

        +/- Task Group: "api" (1 create, 2 create/destroy update)
          +/- Count: "2" => "3" (forces create)
          +/- Task: "main" (forces create/destroy update)
            +/- Config {
                  +   args[0]: "-v"
                  +/- command: "/bin/a" => "/bin/b"
                }
            +/- Resources {
                      CPU:      "100"
                  +/- MemoryMB: "64" => "128"
                }
              Task: "side"
    "#]],
    );
}

#[test]
fn new_task_group_diff_omits_field_lines() {
    check(
        None,
        &job(),
        false,
        expect![[r#"
        + Job: "web"
        + Task Group: "api" (1 create, 2 create/destroy update)
          + Task: "main" (forces create)
          + Task: "side" (forces create)
    "#]],
    );
}

#[test]
fn verbose_diff_lists_a_new_job() {
    check(
        None,
        &job(),
        true,
        expect![[r#"
        + Job: "web"
        + Priority: "50"

        + Task Group: "api" (1 create, 2 create/destroy update)
          + Count: "2" (forces create)
          + Task: "main" (forces create)
            + Driver: "native"
            + Config {
                + command: "/bin/a"
              }
            + Resources {
                + CPU:      "100"
                + MemoryMB: "64"
              }
          + Task: "side" (forces create)
            + Driver: "native"
    "#]],
    );
}

/// A value moves no cursor.
#[test]
fn control_characters_are_quoted() {
    let mut new = job();
    new["Meta"] = json!({"a": "\u{1b}[2J"});

    let diff = jobs(Some(&job()), Some(&new), true).unwrap();

    assert!(!text(&diff, false).contains('\u{1b}'));
}
