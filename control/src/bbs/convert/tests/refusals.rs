//! Fields that Muster does not support are refused by name, and no fault hides another.

use crate::bbs::proto::{
    Action, ActionList, CertificateProperties, LogRateLimit, Network, RunAction, TimeoutAction,
    TryAction,
};

use super::*;

/// Makes one change to a full definition and checks the names of the wrong fields.
fn check_one(change: impl FnOnce(&mut TaskDefinition), expected: &[&str]) {
    let mut message = definition::message(&full());
    change(&mut message);
    assert_eq!(read(&message).1, expected, "{message:?}");
}

#[test]
fn unsupported_fields_are_rejected_by_name() {
    let some = || vec![Anything {}];
    let text = || "x".to_owned();
    check_one(|it| it.privileged = true, &["privileged"]);
    check_one(
        |it| it.cached_dependencies = some(),
        &["cached_dependencies"],
    );
    check_one(
        |it| it.legacy_download_user = text(),
        &["legacy_download_user"],
    );
    check_one(
        |it| it.trusted_system_certificates_path = text(),
        &["trusted_system_certificates_path"],
    );
    check_one(|it| it.volume_mounts = some(), &["volume_mounts"]);
    check_one(
        |it| {
            it.network = Some(Network {
                properties: [(text(), text())].into(),
            });
        },
        &["network"],
    );
    check_one(
        |it| {
            it.certificate_properties = Some(CertificateProperties {
                organizational_unit: vec![text()],
            });
        },
        &["certificate_properties"],
    );
    check_one(|it| it.image_username = text(), &["image_username"]);
    check_one(|it| it.image_password = text(), &["image_password"]);
    check_one(|it| it.image_layers = some(), &["image_layers"]);
    check_one(
        |it| it.metric_tags = [(text(), Anything {})].into(),
        &["metric_tags"],
    );
    check_one(
        |it| it.volume_mounted_files = some(),
        &["volume_mounted_files"],
    );
    for (rate, expected) in [
        (-2, &["log_rate_limit"][..]),
        (-1, &[]),
        (0, &["log_rate_limit"]),
    ] {
        let rate = Some(LogRateLimit {
            bytes_per_second: rate,
        });
        check_one(|it| it.log_rate_limit = rate, expected);
    }
}

#[test]
fn empty_messages_are_not_refused() {
    check_one(|it| it.network = Some(Network::default()), &[]);
    check_one(
        |it| it.certificate_properties = Some(CertificateProperties::default()),
        &[],
    );
}

#[test]
fn empty_action_is_rejected_at_any_depth() {
    let set = |action| move |it: &mut TaskDefinition| it.action = action;
    let nothing = Action::default;
    check_one(set(None), &["action"]);
    check_one(set(Some(nothing())), &["action"]);
    let timeout = TimeoutAction {
        action: Some(Box::new(nothing())),
        timeout_ms: 1,
        ..TimeoutAction::default()
    };
    check_one(
        set(Some(Action {
            timeout: Some(Box::new(timeout)),
            ..nothing()
        })),
        &["action"],
    );
    check_one(
        set(Some(Action {
            r#try: Some(Box::new(TryAction::default())),
            ..nothing()
        })),
        &["action"],
    );
    let run = Action {
        run: Some(RunAction {
            path: "/bin/true".to_owned(),
            user: "vcap".to_owned(),
            ..RunAction::default()
        }),
        ..nothing()
    };
    let list = ActionList {
        actions: vec![run, nothing()],
        ..ActionList::default()
    };
    check_one(
        set(Some(Action {
            serial: Some(list),
            ..nothing()
        })),
        &["action at index 1"],
    );
}

#[test]
fn all_invalid_fields_are_listed() {
    check_one(
        |it| {
            it.action = None;
            it.image_layers = vec![Anything {}];
            it.rootfs = String::new();
        },
        &["image_layers", "action", "rootfs"],
    );
}

#[test]
fn the_first_of_several_actions_counts() {
    let mut message = definition::message(&full());
    let run = message.action.as_mut().unwrap();
    run.codependent = Some(ActionList::default());

    let (found, faults) = read(&message);

    assert_eq!(found.action.as_str(), "serial");
    assert_eq!(faults, Vec::<String>::new());
}

/// A tree without an end would overflow the stack of a recursive function.
#[test]
fn overly_deep_action_tree_is_not_decoded() {
    let mut action = Vec::new();
    for _ in 0..10_000 {
        // The tag of `try` (6), and inside it the tag of the action (1).
        for tag in [0x0a_u8, 0x32] {
            let mut outer = vec![tag];
            prost::encoding::encode_varint(action.len() as u64, &mut outer);
            outer.append(&mut action);
            action = outer;
        }
    }

    assert!(Action::decode(action.as_slice()).is_err());
}

#[test]
fn fields_ignored_by_diego_are_ignored() {
    let asked = full();
    let mut message = definition::message(&asked);
    let actions = &mut message
        .action
        .as_mut()
        .unwrap()
        .serial
        .as_mut()
        .unwrap()
        .actions;
    for action in actions {
        if let Some(download) = &mut action.download {
            download.cache_key = "key".to_owned();
        }
        if let Some(timeout) = &mut action.timeout {
            timeout.timeout_ns = 5;
        }
        if let Some(limits) = action
            .run
            .as_mut()
            .and_then(|run| run.resource_limits.as_mut())
        {
            limits.nproc = Some(5);
        }
    }

    assert_eq!(read(&message), (asked, Vec::new()));
}
