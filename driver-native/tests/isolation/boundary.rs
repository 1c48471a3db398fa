//! Compares the results of the probe at each level with the expected ones.

use serde_json::json;

use crate::probe::{HOST_ONLY, HOST_TREES, Outcomes, probe};

/// The outcomes for a user other than root that are the same at every level.
const ALWAYS: &[(&str, &str)] = &[
    ("groups", ""),
    ("cap_inheritable", "0000000000000000"),
    ("cap_permitted", "0000000000000000"),
    ("cap_effective", "0000000000000000"),
    ("cap_bounding", "0000000000000000"),
    ("cap_ambient", "0000000000000000"),
    ("no_new_privs", "1"),
    ("seccomp", "2"),
    ("descriptors", "[0, 1, 2]"),
    ("core_limit", "(0, 0)"),
    ("pid", "1"),
    ("work_dir", "/"),
    ("namespace_cgroup", "own"),
    ("namespace_ipc", "own"),
    ("namespace_mnt", "own"),
    ("namespace_pid", "own"),
    ("namespace_uts", "own"),
    ("processes_seen", "1"),
    ("signal_to_the_host", "ESRCH"),
    ("host_tgkill", "ESRCH"),
    ("host_pidfd_open", "ESRCH"),
    ("host_ptrace", "ESRCH"),
    ("host_prlimit", "ESRCH"),
    ("host_setpriority", "ESRCH"),
    ("host_group", "ESRCH"),
    ("host_scheduler", "ESRCH"),
    ("host_compare", "EPERM"),
    ("host_environ", "ENOENT"),
    ("host_root", "ENOENT"),
    ("host_mem", "ENOENT"),
    ("host_namespace", "ENOENT"),
    ("fsconfig", "EPERM"),
    ("fsmount", "EPERM"),
    ("fspick", "EPERM"),
    ("mount_setattr", "EPERM"),
    ("move_mount", "EPERM"),
    ("mount", "EPERM"),
    ("umount", "EPERM"),
    ("pivot_root", "EPERM"),
    ("open_tree", "EPERM"),
    ("fsopen", "EPERM"),
    ("unshare_user", "EPERM"),
    ("unshare_mount", "EPERM"),
    ("clone_user", "EPERM"),
    ("clone3", "ENOSYS"),
    ("setns", "EPERM"),
    ("bpf", "EPERM"),
    ("perf_event_open", "EPERM"),
    ("io_uring_setup", "EPERM"),
    ("io_uring_enter", "EPERM"),
    ("keyctl", "EPERM"),
    ("init_module", "EPERM"),
    ("delete_module", "EPERM"),
    ("kexec_load", "EPERM"),
    ("reboot", "EPERM"),
    ("swapon", "EPERM"),
    ("open_by_handle_at", "EPERM"),
    ("userfaultfd", "EPERM"),
    ("fanotify_init", "EPERM"),
    ("iopl", "EPERM"),
    ("syslog", "EPERM"),
    ("settimeofday", "EPERM"),
    ("sethostname", "EPERM"),
    ("quotactl", "EPERM"),
    ("personality", "EPERM"),
    ("pidfd_getfd", "EPERM"),
    ("chroot", "EPERM"),
    ("setuid_0", "EPERM"),
    ("socket_packet", "EPERM"),
    ("socket_alg", "EPERM"),
    ("socket_vsock", "EPERM"),
    ("socket_raw", "EPERM"),
    ("socket_tcp", "ok"),
    ("socket_unix", "ok"),
    (
        "dev",
        "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero",
    ),
    ("write_dev_null", "ok"),
    ("create_in_dev", "EROFS"),
    ("create_in_root", "EROFS"),
    ("create_in_usr", "EROFS"),
    ("create_in_etc", "EROFS"),
    // The kernel checks the owner first.
    ("write_passwd", "EACCES"),
    ("read_shadow", "ENOENT"),
    ("read_own_secret", "ok"),
    ("create_in_local", "ok"),
    ("create_in_tmp", "ok"),
    ("create_in_shm", "ok"),
    ("create_in_run", "ok"),
    ("open_pty", "ok"),
    ("make_block_device", "EPERM"),
    ("open_block_device", "ENOENT"),
    ("open_mem", "ENOENT"),
    ("open_kmsg", "ENOENT"),
    ("see_the_hosts_task_dir", "ENOENT"),
    ("see_the_hosts_home", ""),
    ("write_core_pattern", "EACCES"),
    ("see_firmware", ""),
    ("connect_to_a_path_of_the_host", "ENOENT"),
    ("connect_to_own_loopback", "ok"),
    ("connect_to_an_abstract_name_of_its_own", "ok"),
    ("write_oom_score", "ok"),
];

/// The outcomes that depend on the machine or the kernel.
const WHERE_IT_IS: &[(&str, &[&str])] = &[
    ("write_sysrq", &["EROFS", "EACCES", "ENOENT"]),
    ("write_sys", &["EROFS", "EACCES", "ENOENT"]),
    ("read_kcore", &["empty", "ENOENT"]),
    ("read_keys", &["empty", "ENOENT"]),
    ("read_timer_list", &["empty", "ENOENT"]),
    ("see_acpi", &["", "absent"]),
    ("make_cgroup", &["EROFS", "EPERM", "ENOENT"]),
    ("leave_cgroup", &["EROFS", "EACCES", "ENOENT"]),
    ("trace_the_first", &["ok"]),
    ("make_a_scope", &["ok", "E2BIG", "ENOSYS", "EOPNOTSUPP"]),
];

/// Targets that no task reaches at any level, by the kind of attempt. The devices, sockets and trees of `probe` are
/// added to them.
const OUT_OF_REACH: [(&str, &[&str]); 5] = [
    (
        "reach",
        &[
            "connect_to_a_path_of_the_host",
            "socket_packet",
            "socket_raw",
            "socket_vsock",
        ],
    ),
    (
        "see",
        &[
            "see_the_hosts_task_dir",
            "see_the_hosts_home",
            "see_firmware",
            "see_acpi",
            "read_shadow",
            "read_kcore",
            "read_keys",
            "read_timer_list",
            "host_environ",
            "host_group",
            "syslog",
            "perf_event_open",
        ],
    ),
    (
        "signal",
        &[
            "signal_to_the_host",
            "host_tgkill",
            "host_pidfd_open",
            "host_ptrace",
            "host_prlimit",
            "host_setpriority",
            "host_scheduler",
        ],
    ),
    (
        "mount",
        &[
            "mount",
            "umount",
            "pivot_root",
            "open_tree",
            "move_mount",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "mount_setattr",
            "unshare_mount",
            "unshare_user",
            "setns",
        ],
    ),
    (
        "open",
        &[
            "open_by_handle_at",
            "open_mem",
            "open_kmsg",
            "open_block_device",
            "host_root",
            "host_mem",
            "host_namespace",
            "write_core_pattern",
            "write_sysrq",
            "write_sys",
            "leave_cgroup",
            "create_in_usr",
            "create_in_etc",
            "create_in_root",
            "create_in_dev",
            "write_passwd",
        ],
    ),
];

/// At least forty targets, each of which must be refused, absent or empty.
#[test]
fn more_than_forty_things_are_out_of_reach() {
    let is_nothing =
        |value: &&str| value.starts_with('E') || ["", "absent", "empty"].contains(value);
    let mut count = 0;
    for name in OUT_OF_REACH.iter().flat_map(|(_, names)| names.iter()) {
        let always = ALWAYS.iter().find(|(known, _)| known == name);
        let always = always.map(|(_, value)| vec![*value]);
        let wanted = always.or_else(|| {
            let one_of = WHERE_IT_IS.iter().find(|(known, _)| known == name);
            one_of.map(|(_, values)| values.to_vec())
        });
        let wanted = wanted.unwrap_or_else(|| panic!("{name} is not looked at"));
        assert!(wanted.iter().all(is_nothing), "{name}: {wanted:?}");
        count += 1;
    }

    assert!(count >= 40, "{count}");
}

fn compare(outcomes: &Outcomes, expected: &[&[(&str, &str)]], left_out: &[&str]) {
    let mut wrong = Vec::new();
    let mut known: Vec<&str> = left_out.to_vec();
    for (name, value) in expected.iter().rev().flat_map(|list| list.iter()) {
        if known.contains(name) {
            continue;
        }
        known.push(name);
        let found = outcomes.get(*name).map_or("nothing", String::as_str);
        if found != *value {
            wrong.push(format!("{name}: found {found:?}, wanted {value:?}"));
        }
    }
    for (name, values) in WHERE_IT_IS {
        if known.contains(name) {
            continue;
        }
        known.push(name);
        let found = outcomes.get(*name).map_or("nothing", String::as_str);
        if !values.contains(&found) {
            wrong.push(format!("{name}: found {found:?}, wanted one of {values:?}"));
        }
    }
    for path in HOST_ONLY {
        let found = &outcomes[&format!("open {path}")];
        if found != "ENOENT" {
            wrong.push(format!("open {path}: found {found:?}, wanted nothing"));
        }
    }
    for path in HOST_TREES {
        let found = &outcomes[&format!("see {path}")];
        if !["", "absent"].contains(&found.as_str()) {
            wrong.push(format!("see {path}: found {found:?}, wanted nothing"));
        }
    }
    let is_path = |name: &str| name.starts_with("open /") || name.starts_with("see /");
    let unknown = outcomes
        .keys()
        .filter(|name| !known.contains(&name.as_str()) && !is_path(name));
    wrong.extend(unknown.map(|name| format!("{name}: found {:?}, not looked at", outcomes[name])));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn nobody(outcomes: &Outcomes) {
    let user = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    assert_eq!(outcomes["uid"], vec![user.uid.to_string(); 4].join(" "));
    assert_eq!(outcomes["gid"], vec![user.gid.to_string(); 4].join(" "));
}

/// Returns the expected outcome for the host's abstract sockets in a contained task in the host's network. Landlock
/// blocks access to them if the kernel supports that scope.
fn others_abstract_sockets(outcomes: &Outcomes) -> &'static str {
    match outcomes["make_a_scope"].as_str() {
        "ok" => "EPERM",
        _ => "ok",
    }
}

#[tokio::test]
async fn contained_task_reaches_nothing_of_its_host() {
    let Some(outcomes) = probe(json!({}), json!({}), "").await else {
        return;
    };
    let level = [
        ("namespace_net", "host"),
        ("namespace_user", "host"),
        ("uid_map", "host"),
        ("hostname", "web"),
        // The agent, not the driver, enforces a network policy on the host's network.
        ("connect_to_the_hosts_loopback", "ok"),
        (
            "connect_to_an_abstract_name",
            others_abstract_sockets(&outcomes),
        ),
    ];

    nobody(&outcomes);
    compare(&outcomes, &[ALWAYS, &level], &["uid", "gid", "root"]);
}

#[tokio::test]
async fn strict_task_has_own_ids_and_network() {
    let Some(outcomes) = probe(json!({"isolation": "strict"}), json!({}), "").await else {
        return;
    };
    let level = [
        ("namespace_net", "own"),
        ("namespace_user", "own"),
        ("uid_map", "own"),
        ("hostname", "web"),
        ("connect_to_the_hosts_loopback", "ECONNREFUSED"),
        ("connect_to_an_abstract_name", "ECONNREFUSED"),
    ];

    nobody(&outcomes);
    compare(&outcomes, &[ALWAYS, &level], &["uid", "gid", "root"]);
}

#[tokio::test]
async fn contained_task_with_network_none_is_isolated() {
    let config = json!({"network": "none", "hostname": "lonely"});
    let Some(outcomes) = probe(config, json!({}), "").await else {
        return;
    };
    let level = [
        ("namespace_net", "own"),
        ("namespace_user", "host"),
        ("uid_map", "host"),
        ("hostname", "lonely"),
        ("connect_to_the_hosts_loopback", "ECONNREFUSED"),
        ("connect_to_an_abstract_name", "ECONNREFUSED"),
    ];

    compare(&outcomes, &[ALWAYS, &level], &["uid", "gid", "root"]);
}

/// Root in a contained task has the same rights as root in a container, and reaches as little.
#[tokio::test]
async fn contained_root_is_not_the_hosts_root() {
    let policy = json!({"allow_uid0": true});
    let Some(outcomes) = probe(json!({}), policy, "root").await else {
        return;
    };
    let kept = "00000000a80405fb";
    let level = [
        ("uid", "0 0 0 0"),
        ("gid", "0 0 0 0"),
        ("namespace_net", "host"),
        ("namespace_user", "host"),
        ("uid_map", "host"),
        ("hostname", "web"),
        ("cap_permitted", kept),
        ("cap_effective", kept),
        ("cap_bounding", kept),
        ("setuid_0", "ok"),
        ("chroot", "ok"),
        ("write_passwd", "EROFS"),
        ("write_core_pattern", "EROFS"),
        // The device node can be created, but not opened.
        ("make_block_device", "ok"),
        ("open_block_device", "EACCES"),
        ("connect_to_the_hosts_loopback", "ok"),
        (
            "connect_to_an_abstract_name",
            others_abstract_sockets(&outcomes),
        ),
    ];

    compare(&outcomes, &[ALWAYS, &level], &["root"]);
}

#[tokio::test]
async fn added_capability_works_for_non_root_user() {
    let config = json!({"cap_add": ["NET_BIND_SERVICE"]});
    let Some(outcomes) = probe(config, json!({}), "nobody").await else {
        return;
    };

    let only = "0000000000000400";
    for set in [
        "cap_permitted",
        "cap_effective",
        "cap_bounding",
        "cap_ambient",
    ] {
        assert_eq!(outcomes[set], only, "{set}");
    }
}
