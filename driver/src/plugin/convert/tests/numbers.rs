//! The field numbers that released drivers and hosts use, written down a second time. The tests build messages from
//! these numbers, and each value must decode under the right name.

use prost::Message;

use crate::plugin::proto::{base, drivers, hclspec, muster, structs};

/// A text field.
fn text(number: u8, value: &str) -> Vec<u8> {
    block(number, value.as_bytes())
}

/// A field of bytes, or a nested message.
fn block(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let tag = u64::from(number) << 3 | 2;
    prost::encoding::encode_varint(tag, &mut out);
    prost::encoding::encode_varint(u64::try_from(value.len()).unwrap(), &mut out);
    out.extend_from_slice(value);
    out
}

/// A number, a truth value or an enumeration.
fn number(number: u32, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::encode_varint(u64::from(number) << 3, &mut out);
    prost::encoding::encode_varint(value, &mut out);
    out
}

/// One entry of a map of texts.
fn entry(number: u8, key: &str, value: &str) -> Vec<u8> {
    block(number, &[text(1, key), text(2, value)].concat())
}

fn read<T: Message + Default>(parts: &[Vec<u8>]) -> T {
    let bytes = parts.concat();
    let message = T::decode(bytes.as_slice()).unwrap();
    // The decoder skipped nothing: the message has every field number.
    assert_eq!(message.encoded_len(), bytes.len());
    message
}

#[test]
fn resources_have_the_numbers_of_the_field() {
    let allocated = [
        block(1, &number(1, 500)),
        block(2, &[number(2, 256), number(3, 512)].concat()),
    ]
    .concat();
    let linux = [
        number(1, 1),
        number(2, 2),
        number(3, 3),
        number(4, 4),
        text(6, "0-1"),
        text(9, "set"),
    ]
    .concat();
    let port = [
        text(1, "http"),
        number(2, 8080),
        number(3, 80),
        text(4, "10.0.0.1"),
    ]
    .concat();
    let resources = [block(1, &allocated), block(2, &linux), block(3, &port)].concat();

    let config: drivers::TaskConfig = read(&[block(6, &resources)]);

    let config = crate::plugin::convert::task_config_from_proto(config).unwrap();
    let resources = config.resources;
    assert_eq!(resources.cpu_mhz, 500);
    assert_eq!((resources.memory_mb, resources.memory_max_mb), (256, 512));
    assert_eq!(resources.linux.memory_limit_bytes, 4);
    assert_eq!(resources.linux.cpuset_cpus, "0-1");
    assert_eq!(
        (resources.ports[0].value, resources.ports[0].to),
        (8080, 80)
    );
}

#[test]
fn task_configuration_has_the_numbers_of_the_field() {
    let config: drivers::TaskConfig = read(&[
        text(1, "id"),
        text(2, "name"),
        block(3, &[0xc0]),
        entry(4, "A", "b"),
        entry(5, "C", "d"),
        block(7, &[text(1, "/t"), text(2, "/h"), number(3, 1)].concat()),
        block(
            8,
            &[text(1, "/dev/t"), text(2, "/dev/h"), text(3, "rw")].concat(),
        ),
        text(9, "user"),
        text(10, "/alloc"),
        text(11, "/out"),
        text(12, "/err"),
        text(13, "group"),
        text(14, "job"),
        text(15, "alloc"),
        block(16, &[number(1, 1), text(2, "/net")].concat()),
        block(
            17,
            &[text(1, "9.9.9.9"), text(2, "lan"), text(3, "ndots:1")].concat(),
        ),
        text(18, "job-id"),
        text(19, "ns"),
        text(20, "node"),
        text(21, "node-id"),
        text(22, "parent"),
    ]);

    let config = crate::plugin::convert::task_config_from_proto(config).unwrap();
    assert_eq!(config.id, "id");
    assert_eq!(config.task_name, "name");
    assert_eq!(
        (config.env["A"].as_str(), config.device_env["C"].as_str()),
        ("b", "d")
    );
    assert!(config.mounts[0].readonly);
    assert_eq!(config.devices[0].cgroup_permissions, "rw");
    assert_eq!(config.user, "user");
    assert_eq!(config.alloc_dir.to_str(), Some("/alloc"));
    assert_eq!(config.stdout_path.to_str(), Some("/out"));
    assert_eq!(config.stderr_path.to_str(), Some("/err"));
    assert_eq!(
        (config.group_name.as_str(), config.job_name.as_str()),
        ("group", "job")
    );
    assert_eq!(
        (config.alloc_id.as_str(), config.job_id.as_str()),
        ("alloc", "job-id")
    );
    assert_eq!(config.network.unwrap().path, "/net");
    assert_eq!(config.dns.unwrap().searches, ["lan"]);
    assert_eq!(
        (config.namespace.as_str(), config.node_name.as_str()),
        ("ns", "node")
    );
    assert_eq!(
        (config.node_id.as_str(), config.parent_job_id.as_str()),
        ("node-id", "parent")
    );
}

#[test]
fn task_request_fields_use_nomad_numbers() {
    let duration = number(1, 5);
    let stop: drivers::StopTaskRequest =
        read(&[text(1, "t"), block(2, &duration), text(3, "SIGTERM")]);
    assert_eq!(
        (stop.task_id.as_str(), stop.signal.as_str()),
        ("t", "SIGTERM")
    );
    assert_eq!(stop.timeout.unwrap().seconds, 5);

    let destroy: drivers::DestroyTaskRequest = read(&[text(1, "t"), number(2, 1)]);
    assert!(destroy.force);

    let exec: drivers::ExecTaskRequest = read(&[text(1, "t"), text(2, "ls"), block(3, &duration)]);
    assert_eq!(exec.command, ["ls"]);

    let handle = [
        number(1, 3),
        block(2, &text(1, "id")),
        number(3, 1),
        block(4, b"state"),
    ]
    .concat();
    let recover: drivers::RecoverTaskRequest = read(&[text(1, "t"), block(2, &handle)]);
    let handle = recover.handle.unwrap();
    assert_eq!((handle.version, handle.state), (3, 1));
    assert_eq!(
        (
            handle.config.unwrap().id.as_str(),
            handle.driver_state.as_slice()
        ),
        ("id", b"state".as_slice())
    );

    let stats: drivers::TaskStatsRequest = read(&[text(1, "t"), block(2, &duration)]);
    assert_eq!(stats.collection_interval.unwrap().seconds, 5);
}

#[test]
fn task_response_fields_use_nomad_numbers() {
    let exit = [number(1, 3), number(2, 9), number(3, 1)].concat();
    let port = block(1, &[text(1, "http"), number(2, 80)].concat());
    let network = [port, text(2, "10.0.0.2"), number(3, 1)].concat();

    let wait: drivers::WaitTaskResponse = read(&[block(1, &exit), text(2, "err")]);
    let result = wait.result.unwrap();
    assert_eq!(
        (result.exit_code, result.signal, result.oom_killed),
        (3, 9, true)
    );
    assert_eq!(wait.err, "err");

    let start: drivers::StartTaskResponse =
        read(&[number(1, 2), text(2, "no"), block(3, &number(1, 1))]);
    assert_eq!(start.result(), drivers::start_task_response::Result::Fatal);
    assert_eq!(
        (
            start.driver_error_msg.as_str(),
            start.handle.unwrap().version
        ),
        ("no", 1)
    );

    let status = [
        text(1, "id"),
        text(2, "name"),
        number(3, 2),
        block(4, &number(1, 1)),
        block(5, &number(1, 2)),
        block(6, &exit),
    ]
    .concat();
    let inspect: drivers::InspectTaskResponse =
        read(&[block(1, &status), block(2, &entry(1, "pid", "7"))]);
    let task = inspect.task.unwrap();
    assert_eq!(
        (task.id.as_str(), task.name.as_str(), task.state),
        ("id", "name", 2)
    );
    assert_eq!(
        (
            task.started_at.unwrap().seconds,
            task.completed_at.unwrap().seconds
        ),
        (1, 2)
    );
    assert_eq!(inspect.driver.unwrap().attributes["pid"], "7");

    let network: drivers::NetworkOverride = read(&[network]);
    assert_eq!(network.port_map["http"], 80);
    assert_eq!(
        (network.addr.as_str(), network.auto_advertise),
        ("10.0.0.2", true)
    );

    let exec: drivers::ExecTaskResponse =
        read(&[block(1, b"out"), block(2, b"err"), block(3, &exit)]);
    assert_eq!(
        (exec.stdout.as_slice(), exec.stderr.as_slice()),
        (b"out".as_slice(), b"err".as_slice())
    );

    let session: drivers::ExecTaskStreamingResponse = read(&[
        block(1, &block(1, b"o")),
        block(2, &block(1, b"e")),
        number(3, 1),
        block(4, &exit),
    ]);
    assert!(session.exited);
    assert_eq!(session.stdout.unwrap().data, b"o");

    let event: drivers::DriverTaskEvent = read(&[
        text(1, "t"),
        text(2, "alloc"),
        text(3, "name"),
        block(4, &number(1, 1)),
        text(5, "words"),
        entry(6, "a", "b"),
    ]);
    assert_eq!(
        (
            event.alloc_id.as_str(),
            event.task_name.as_str(),
            event.message.as_str()
        ),
        ("alloc", "name", "words")
    );
}

#[test]
fn sessions_have_the_numbers_of_the_field() {
    let setup = [text(1, "t"), text(2, "sh"), number(3, 1)].concat();
    let first: drivers::ExecTaskStreamingRequest = read(&[block(1, &setup)]);
    let size: drivers::ExecTaskStreamingRequest =
        read(&[block(2, &[number(1, 24), number(2, 80)].concat())]);
    let input: drivers::ExecTaskStreamingRequest =
        read(&[block(3, &[block(1, b"x"), number(2, 1)].concat())]);

    let setup = first.setup.unwrap();
    assert_eq!(
        (setup.task_id.as_str(), setup.command.as_slice(), setup.tty),
        ("t", ["sh".to_owned()].as_slice(), true)
    );
    let size = size.tty_size.unwrap();
    assert_eq!((size.height, size.width), (24, 80));
    let input = input.stdin.unwrap();
    assert_eq!(
        (input.data.as_slice(), input.close),
        (b"x".as_slice(), true)
    );
}

#[test]
fn driver_info_fields_use_nomad_numbers() {
    let capabilities: drivers::CapabilitiesResponse = read(&[block(
        1,
        &[
            number(1, 1),
            number(2, 1),
            number(3, 2),
            block(4, &[1, 3]),
            number(5, 1),
            number(6, 1),
            number(7, 1),
            number(8, 1),
            number(9, 1),
            number(1000, 1),
        ]
        .concat(),
    )]);
    let capabilities =
        crate::plugin::convert::capabilities_from_proto(capabilities.capabilities.unwrap())
            .unwrap();
    assert_eq!(capabilities.fs_isolation, crate::FsIsolation::Image);
    assert_eq!(
        capabilities.network_modes,
        [crate::NetworkMode::Group, crate::NetworkMode::None]
    );
    assert!(capabilities.must_create_network && capabilities.remote_tasks);
    assert!(capabilities.joins_cgroup);
    assert_eq!(capabilities.mount_configs, crate::MountConfigs::None);

    let info: base::PluginInfoResponse = read(&[
        number(1, 2),
        text(2, "v0.1.0"),
        text(3, "1"),
        text(4, "name"),
    ]);
    assert_eq!(
        (
            info.r#type,
            info.name.as_str(),
            info.plugin_version.as_str()
        ),
        (2, "name", "1")
    );

    let config: base::SetConfigRequest = read(&[block(1, &[0xc0]), text(3, "v0.1.0")]);
    assert_eq!(config.plugin_api_version, "v0.1.0");

    let attribute = [text(1, "a"), block(2, &text(3, "x"))].concat();
    let fingerprint: drivers::FingerprintResponse = read(&[
        block(1, &attribute),
        number(2, 2),
        text(3, "well"),
        text(4, "err"),
    ]);
    assert_eq!(
        (fingerprint.health, fingerprint.health_description.as_str()),
        (2, "well")
    );
    assert_eq!(
        fingerprint.attributes["a"].value,
        Some(structs::attribute::Value::StringVal("x".to_owned()))
    );
}

#[test]
fn schemas_have_the_numbers_of_the_field() {
    use hclspec::spec::Block;
    let attr = block(3, &[text(1, "n"), text(2, "string"), number(3, 1)].concat());
    let nodes = [
        (1, entry_of(1, "n", &attr)),
        (2, block(1, &attr)),
        (4, [text(1, "n"), number(2, 1), block(3, &attr)].concat()),
        (5, [text(1, "n"), text(2, "string"), number(3, 1)].concat()),
        (
            6,
            [text(1, "n"), number(2, 1), number(3, 2), block(4, &attr)].concat(),
        ),
        (
            7,
            [text(1, "n"), number(2, 1), number(3, 2), block(4, &attr)].concat(),
        ),
        (
            8,
            [text(1, "n"), text(2, "label"), block(3, &attr)].concat(),
        ),
        (
            9,
            [block(1, &attr), block(2, &block(10, &text(1, "5")))].concat(),
        ),
        (10, text(1, "5")),
    ];
    for (field, bytes) in nodes {
        let spec: hclspec::Spec = read(&[block(field, &bytes)]);
        let found = match spec.block.unwrap() {
            Block::Object(_) => 1,
            Block::Array(_) => 2,
            Block::Attr(_) => 3,
            Block::BlockValue(_) => 4,
            Block::BlockAttrs(_) => 5,
            Block::BlockList(_) => 6,
            Block::BlockSet(_) => 7,
            Block::BlockMap(_) => 8,
            Block::Default(_) => 9,
            Block::Literal(_) => 10,
        };
        assert_eq!(found, field);
    }
}

/// One entry of a map of messages.
fn entry_of(number: u8, key: &str, value: &[u8]) -> Vec<u8> {
    block(number, &[text(1, key), block(2, value)].concat())
}

#[test]
fn host_info_fields_use_nomad_numbers() {
    use crate::host::{Core, HostInfo, Topology};

    // The grade of a fast core is 0, and zero values are not sent. The grade is field 4.
    let core = [
        number(1, 1),
        number(2, 2),
        number(3, 3),
        number(5, 1),
        number(8, 2_500),
    ]
    .concat();
    let topology = [
        block(1, &[0, 2]),
        block(2, &[number(1, 2), block(2, &[10, 20, 20, 10])].concat()),
        block(3, &core),
        number(5, 500),
    ]
    .concat();
    let driver = [number(1, 14_512), number(2, 14_000), block(3, &topology)].concat();

    let message = crate::plugin::convert::host_to_proto(&HostInfo::new(Topology {
        numa_nodes: vec![0, 2],
        distances: vec![vec![10, 20], vec![20, 10]],
        cores: vec![Core {
            id: 3,
            numa_node: 2,
            socket: 1,
            mhz: 2_500,
            is_reserved: true,
        }],
        withheld_mhz: 500,
    }));

    assert_eq!(message.encode_to_vec(), block(1, &driver));
}

/// Drivers index by the dimension, and would crash beyond the sent values.
#[test]
fn distances_that_are_no_square_are_not_sent() {
    use crate::host::{HostInfo, Topology};

    for distances in [Vec::new(), vec![vec![10, 20]], vec![vec![10], vec![20, 10]]] {
        let message = crate::plugin::convert::host_to_proto(&HostInfo::new(Topology {
            distances,
            ..Topology::default()
        }));

        assert_eq!(message.driver.unwrap().topology.unwrap().distances, None);
    }
}

/// An unknown answer of a later driver is no answer.
#[test]
fn task_reach_has_own_proto_values() {
    let reach = |value| {
        let answer: muster::TaskReachResponse = read(&[number(1, value)]);
        crate::plugin::convert::reach_from_proto(answer)
    };

    assert_eq!(reach(1), crate::TaskReach::Itself);
    assert_eq!(reach(2), crate::TaskReach::Machine);
    assert_eq!(reach(3), crate::TaskReach::Network);
    let silent = muster::TaskReachResponse::default();
    assert_eq!(
        crate::plugin::convert::reach_from_proto(silent),
        crate::TaskReach::Network
    );
}
