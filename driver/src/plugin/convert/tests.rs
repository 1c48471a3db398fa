use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use prost::Message;
use serde_json::json;

use super::*;
use crate::limits;
use crate::schema::Spec;
use crate::task::{
    CgroupPlacement, Device, Dns, LinuxResources, Mount, PortMapping, TaskConfig, TaskResources,
    WithoutHost,
};

mod numbers;

fn full_config() -> TaskConfig {
    TaskConfig {
        id: "alloc/web/0011aabb".to_owned(),
        task_name: "web".to_owned(),
        group_name: "front".to_owned(),
        alloc_id: "alloc".to_owned(),
        job_id: "job".to_owned(),
        job_name: "Job".to_owned(),
        parent_job_id: "parent".to_owned(),
        namespace: "default".to_owned(),
        node_id: "node".to_owned(),
        node_name: "n1".to_owned(),
        config: json!({"command": "/bin/web", "args": ["-p", 80, 1.5, null, true], "deep": {"a": []}}),
        env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        device_env: BTreeMap::from([("GPU".to_owned(), "0".to_owned())]),
        resources: TaskResources {
            cpu_mhz: 500,
            memory_mb: 256,
            memory_max_mb: 512,
            linux: LinuxResources {
                cpu_period: 1,
                cpu_quota: 2,
                cpu_shares: 3,
                memory_limit_bytes: 4,
                oom_score_adj: 5,
                cpuset_cpus: "0-1".to_owned(),
                percent_ticks: 0.5,
                cpuset_cgroup: "set".to_owned(),
            },
            ports: vec![PortMapping {
                label: "http".to_owned(),
                value: 80,
                to: 8080,
                host_ip: "127.0.0.1".to_owned(),
            }],
        },
        user: "nobody".to_owned(),
        alloc_dir: "/a".into(),
        task_dir: "/a/web".into(),
        stdout_path: "/l/out".into(),
        stderr_path: "/l/err".into(),
        mounts: vec![Mount {
            task_path: "/t".to_owned(),
            host_path: "/h".to_owned(),
            readonly: true,
            propagation_mode: "private".to_owned(),
            selinux_label: "z".to_owned(),
        }],
        devices: vec![Device {
            task_path: "/dev/t".to_owned(),
            host_path: "/dev/h".to_owned(),
            cgroup_permissions: "rw".to_owned(),
        }],
        network: Some(NetworkIsolation {
            mode: NetworkMode::Group,
            path: "/run/ns".to_owned(),
            labels: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
            hostname: "host".to_owned(),
            address: "10.0.0.1".to_owned(),
        }),
        dns: Some(Dns {
            servers: vec!["1.1.1.1".to_owned()],
            searches: vec!["example".to_owned()],
            options: vec!["ndots:1".to_owned()],
        }),
        cgroup: Some(CgroupPlacement {
            dir: "/cg/task".into(),
            joins: vec!["/v1/memory/cgroup.procs".into()],
        }),
        kill_signal: Some("SIGTERM".to_owned()),
        without_host: Some(WithoutHost {
            max: Duration::from_secs(30),
            kill_timeout: Duration::from_millis(1_500),
        }),
    }
}

#[test]
fn task_configuration_keeps_every_field() {
    let config = full_config();

    let message = task_config_to_proto(&config).unwrap();
    let bytes = message.encode_to_vec();
    let read = task_config_from_proto(drivers::TaskConfig::decode(bytes.as_slice()).unwrap());

    assert_eq!(read, Ok(config));
}

/// A foreign host has none of our fields and uses the layout of Nomad's directories.
#[test]
fn task_directory_is_below_the_allocation_by_default() {
    let message = drivers::TaskConfig {
        name: "web".to_owned(),
        alloc_dir: "/data/alloc/1".to_owned(),
        ..drivers::TaskConfig::default()
    };

    let config = task_config_from_proto(message).unwrap();

    assert_eq!(config.task_dir, PathBuf::from("/data/alloc/1/web"));
    assert_eq!(config.config, Value::Null);
    assert_eq!(config.cgroup, None);
    assert_eq!(config.kill_signal, None);
    assert_eq!(config.without_host, None);
}

/// A result from a foreign driver has no field for an unknown status: its status is known.
#[test]
fn exit_status_is_known_by_default() {
    let plain = drivers::ExitResult {
        exit_code: 7,
        ..drivers::ExitResult::default()
    };

    assert_eq!(exit_from_proto(plain), ExitResult::exited(7));
    let unknown = ExitResult::unknown("not the parent".to_owned());
    assert_eq!(exit_from_proto(exit_to_proto(&unknown)), unknown);
}

/// A foreign host reads only the fields of Nomad's protocol. None of them may report an unknown end as a success.
#[test]
fn unknown_exit_is_not_success_in_protocol() {
    let unknown = ExitResult::unknown("not the parent".to_owned());

    let message = wait_to_proto(&unknown);
    let inspected = exit_to_proto(&unknown);

    assert_eq!(message.err, "not the parent");
    let result = message.result.clone().unwrap();
    assert_eq!((result.exit_code, result.signal), (UNKNOWN_EXIT_CODE, 0));
    assert_ne!(inspected.exit_code, 0);
    assert_eq!(wait_from_proto(message), unknown);
}

#[test]
fn an_end_of_actions_is_carried_whole() {
    let result = ExitResult {
        actions: Some(Box::new(ActionsEnd {
            failure_reason: "why".to_owned(),
            failed_action: "serial[1].run".to_owned(),
            exited: true,
            result: "r".to_owned(),
            result_truncated: true,
            result_note: "note".to_owned(),
        })),
        ..ExitResult::exited(3)
    };

    assert_eq!(exit_from_proto(exit_to_proto(&result)), result);
}

#[test]
fn schema_keeps_every_kind_of_node() {
    let attr = || Box::new(Spec::required("a", "list(string)"));
    let spec = Spec::object([
        ("attr", Spec::optional("attr", "bool")),
        (
            "array",
            Spec::Array(vec![Spec::Literal("\"x\"".to_owned())]),
        ),
        (
            "block",
            Spec::Block {
                name: "block".to_owned(),
                required: true,
                nested: attr(),
            },
        ),
        (
            "attrs",
            Spec::BlockAttrs {
                name: "attrs".to_owned(),
                type_expr: "string".to_owned(),
                required: false,
            },
        ),
        (
            "list",
            Spec::BlockList {
                name: "list".to_owned(),
                items_min: 1,
                items_max: 2,
                nested: attr(),
            },
        ),
        (
            "set",
            Spec::BlockSet {
                name: "set".to_owned(),
                items_min: 0,
                items_max: 0,
                nested: attr(),
            },
        ),
        (
            "map",
            Spec::BlockMap {
                name: "map".to_owned(),
                labels: vec!["l".to_owned()],
                nested: attr(),
            },
        ),
        (
            "default",
            Spec::Default {
                primary: attr(),
                default: Box::new(Spec::Literal("1".to_owned())),
            },
        ),
    ]);

    assert_eq!(spec_from_proto(spec_to_proto(&spec)), Ok(Some(spec)));
}

#[test]
fn schema_without_end_is_refused() {
    let mut spec = Spec::Literal("1".to_owned());
    for _ in 0..=limits::SCHEMA_DEPTH_MAX {
        spec = Spec::Block {
            name: "b".to_owned(),
            required: false,
            nested: Box::new(spec),
        };
    }

    let read = spec_from_proto(spec_to_proto(&spec));

    assert!(
        matches!(read, Err(DriverError::Protocol { .. })),
        "{read:?}"
    );
}

#[test]
fn deeply_nested_configuration_is_refused() {
    let mut bytes = vec![0x91; 1_000];
    bytes.push(0xc0);

    let read = config_from_msgpack(&bytes);

    assert!(
        matches!(read, Err(DriverError::Protocol { .. })),
        "{read:?}"
    );
}

#[test]
fn configuration_that_is_no_msgpack_is_refused() {
    let read = config_from_msgpack(&[0xc1, 0xff]);

    assert!(
        matches!(read, Err(DriverError::Protocol { .. })),
        "{read:?}"
    );
}

/// The stored form of a handle. These bytes are on disks: a change needs a new version of handles. Hosts write handles
/// with and without [`TaskConfig::without_host`].
#[test]
fn handles_keep_their_bytes() {
    let unset = TaskConfig {
        without_host: None,
        ..full_config()
    };
    let mut golden = String::new();
    for (name, config) in [
        ("without_host_unset", unset),
        ("without_host", full_config()),
    ] {
        let handle = TaskHandle {
            version: 1,
            driver: "native".to_owned(),
            config,
            state: TaskState::Running,
            driver_state: b"{\"pid\":7}".to_vec(),
        };
        let bytes = handle.encode().unwrap();
        assert_eq!(TaskHandle::decode(&bytes).unwrap(), handle);
        write!(golden, "{name} ").unwrap();
        for byte in &bytes {
            write!(golden, "{byte:02x}").unwrap();
        }
        golden.push('\n');
    }

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/handle.v1.txt");
    // `expect-test` uses the same variable, so that one switch updates all golden files.
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &golden).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), golden);
}
