use serde_json::{Value, json};

use super::*;

fn task(user: &str) -> TaskConfig {
    TaskConfig {
        task_name: "Web_1".to_owned(),
        alloc_id: "0123456789ab".to_owned(),
        user: user.to_owned(),
        alloc_dir: "/data/alloc/0123".into(),
        task_dir: "/data/alloc/0123/web".into(),
        ..TaskConfig::default()
    }
}

fn native(mut config: Value) -> NativeConfig {
    config["command"] = json!("/bin/true");
    NativeConfig::read(&config).unwrap()
}

fn decide(task: &TaskConfig, config: Value, policy: Value) -> Result<Confinement, IsolationError> {
    let policy = Policy::read(policy).unwrap();
    Confinement::decide(task, &native(config), &policy, None)
}

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        muster_driver::fixture::skipped_here("only root can contain a task; run the tests as root");
    }
    root
}

#[test]
fn raw_needs_the_nodes_word() {
    let refused = decide(&task(""), json!({"isolation": "raw"}), json!({})).unwrap_err();
    let allowed = decide(
        &task(""),
        json!({"isolation": "raw"}),
        json!({"allow_raw": true}),
    );

    assert!(matches!(refused, IsolationError::RawNotAllowed));
    assert!(refused.to_string().contains("allow_raw = true"));
    assert_eq!(allowed.unwrap().identity, None);
}

#[test]
fn default_user_is_nobody_without_capabilities() {
    if !is_root() {
        return;
    }

    let decided = decide(&task(""), json!({}), json!({})).unwrap();

    let nobody = Identity::with_one_group("nobody", None, &AllowedGroups::Any).unwrap();
    assert_eq!(decided.identity, Some(nobody));
    assert!(decided.capabilities.is_empty());
    assert_eq!(decided.hostname, "web-1-01234567");
}

#[test]
fn uid_zero_needs_the_nodes_word() {
    if !is_root() {
        return;
    }
    for user in ["root", "0", "00"] {
        let refused = decide(&task(user), json!({}), json!({})).unwrap_err();
        assert!(
            matches!(refused, IsolationError::RootNotAllowed { .. }),
            "{user}"
        );
    }

    let allowed = decide(&task("root"), json!({}), json!({"allow_uid0": true})).unwrap();

    let default = Capabilities::default_of_root().intersection(Capabilities::own());
    assert_eq!(allowed.capabilities, default);
}

#[test]
fn capabilities_are_within_the_nodes() {
    if !is_root() {
        return;
    }
    let ask = |name: &str, policy: Value| decide(&task(""), json!({"cap_add": [name]}), policy);

    let bind = ask("NET_BIND_SERVICE", json!({})).unwrap();
    assert_eq!(bind.capabilities.to_string(), "NET_BIND_SERVICE");
    let refused = ask("NET_ADMIN", json!({})).unwrap_err();
    assert!(refused.to_string().contains("NET_ADMIN"), "{refused}");
    assert!(ask("NET_ADMIN", json!({"allow_caps": ["NET_ADMIN"]})).is_ok());
    assert!(ask("NET_BIND_SERVICE", json!({"allow_caps": []})).is_err());
    assert!(ask("NO_SUCH", json!({})).is_err());
}

#[test]
fn dropping_all_leaves_added_capabilities() {
    if !is_root() {
        return;
    }
    let config = json!({"cap_drop": ["all"], "cap_add": ["CHOWN"]});

    let decided = decide(&task("root"), config, json!({"allow_uid0": true})).unwrap();

    assert_eq!(decided.capabilities.to_string(), "CHOWN");
}

#[test]
fn paths_of_the_host_become_the_tasks() {
    let task = task("");
    let contained = PathTranslation::of(&task, IsolationLevel::Contained);
    let raw = PathTranslation::of(&task, IsolationLevel::Raw);

    let host = "--dir=/data/alloc/0123/web/local/x:/data/alloc/0123/alloc";
    assert_eq!(contained.apply(host), "--dir=/local/x:/alloc");
    assert_eq!(
        contained.apply("/data/alloc/0123/web/locals"),
        "/data/alloc/0123/web/locals"
    );
    assert_eq!(raw.apply(host), host);
}

/// A foreign host has no isolation levels and passes every task of this driver the paths in a separate root.
#[test]
fn raw_task_paths_are_translated_to_host() {
    let mut task = task("");
    task.env = [("NOMAD_TASK_DIR", "/local"), ("NOMAD_ALLOC_DIR", "/alloc")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let raw = PathTranslation::of(&task, IsolationLevel::Raw);
    let contained = PathTranslation::of(&task, IsolationLevel::Contained);

    for (argument, there) in [
        ("/local", "/data/alloc/0123/web/local"),
        ("/secrets/", "/data/alloc/0123/web/secrets/"),
        (
            "--dir=/alloc/x:/local",
            "--dir=/data/alloc/0123/alloc/x:/data/alloc/0123/web/local",
        ),
        ("/usr/local/bin", "/usr/local/bin"),
        ("/locals /local.d", "/locals /local.d"),
        ("/tmp", "/tmp"),
    ] {
        assert_eq!(raw.apply(argument), there);
        assert_eq!(contained.apply(argument), argument);
    }
}

#[test]
fn strict_never_has_a_network() {
    let mut task = task("");
    let strict = native(json!({"isolation": "strict"}));
    let contained = native(json!({}));
    assert!(matches!(network(&task, &contained), Ok(TaskNetwork::Host)));
    assert!(matches!(network(&task, &strict), Ok(TaskNetwork::Empty)));

    task.network = Some(muster_driver::NetworkIsolation {
        mode: NetworkMode::Group,
        path: "/proc/self/ns/net".to_owned(),
        ..muster_driver::NetworkIsolation::default()
    });

    assert!(network(&task, &strict).is_err());
    assert!(matches!(
        network(&task, &contained),
        Ok(TaskNetwork::Joined(_))
    ));
}

/// The tasks of an allocation with its own network may communicate through abstract sockets.
#[test]
fn only_tasks_in_the_hosts_network_are_scoped() {
    let mut task = task("");
    let scoped = |task: &TaskConfig, config: Value| {
        let policy = Policy::read(json!({"allow_raw": true})).unwrap();
        let native = native(config);
        Confinement::of(task, &native, &policy, None)
            .unwrap()
            .scoped
    };
    assert!(scoped(&task, json!({})));
    assert!(!scoped(&task, json!({"network": "none"})));
    assert!(!scoped(&task, json!({"isolation": "raw"})));
    assert!(!scoped(&task, json!({"isolation": "strict"})));

    task.network = Some(muster_driver::NetworkIsolation {
        mode: NetworkMode::Group,
        path: "/proc/self/ns/net".to_owned(),
        ..muster_driver::NetworkIsolation::default()
    });

    assert!(!scoped(&task, json!({})));
}

#[test]
fn group_without_a_network_gives_an_empty_one() {
    let mut task = task("");
    task.network = Some(muster_driver::NetworkIsolation {
        mode: NetworkMode::None,
        ..muster_driver::NetworkIsolation::default()
    });

    let contained = network(&task, &native(json!({})));
    let raw = network(&task, &native(json!({"isolation": "raw"})));

    assert!(matches!(contained, Ok(TaskNetwork::Empty)));
    assert!(matches!(raw, Err(IsolationError::RawInNetwork)));
}

/// Such a network comes with name files, which the job must not remove.
#[test]
fn raw_task_in_group_network_is_rejected() {
    let mut task = task("");
    task.network = Some(muster_driver::NetworkIsolation {
        mode: NetworkMode::Group,
        path: "/proc/self/ns/net".to_owned(),
        ..muster_driver::NetworkIsolation::default()
    });
    task.mounts = vec![muster_driver::Mount {
        task_path: "/etc/hosts".to_owned(),
        host_path: "/etc/hosts".to_owned(),
        ..muster_driver::Mount::default()
    }];
    let raw = json!({"isolation": "raw"});

    let refused = decide(&task, raw, json!({"allow_raw": true})).unwrap_err();

    let error = refused.to_string();
    assert!(error.contains("mode \"bridge\""), "{error}");
    assert!(error.contains("use \"contained\""), "{error}");
}

/// The reported reach of a configuration is its actual reach, or the reason for its refusal.
#[test]
fn task_reach_follows_from_configuration() {
    let of = |group: Option<(NetworkMode, &str)>, config: Value| {
        let mut task = task("");
        task.network = group.map(|(mode, path)| muster_driver::NetworkIsolation {
            mode,
            path: path.to_owned(),
            ..muster_driver::NetworkIsolation::default()
        });
        reach(&task, &native(config)).map_err(|error| error.to_string())
    };
    let (none, group) = (
        Some((NetworkMode::None, "")),
        Some((NetworkMode::Group, "/proc/self/ns/none")),
    );

    assert_eq!(of(None, json!({})), Ok(TaskReach::Network));
    assert_eq!(of(group, json!({})), Ok(TaskReach::Network));
    assert_eq!(of(None, json!({"network": "host"})), Ok(TaskReach::Network));
    assert_eq!(of(none, json!({})), Ok(TaskReach::Itself));
    assert_eq!(of(group, json!({"network": "none"})), Ok(TaskReach::Itself));
    assert_eq!(
        of(None, json!({"isolation": "strict"})),
        Ok(TaskReach::Itself)
    );
    assert_eq!(
        of(None, json!({"isolation": "raw"})),
        Ok(TaskReach::Machine)
    );
    for isolation in ["raw", "strict"] {
        let refused = of(group, json!({"isolation": isolation})).unwrap_err();
        assert!(refused.contains("`config.isolation`"), "{refused}");
    }
}
