//! The field numbers of existing clients, repeated here independently. The tests build bytes by number and decode
//! them under the right names. Every message must encode to the same bytes.

use std::fmt::Debug;

use crate::bbs::proto::error::Kind;
use crate::bbs::proto::{
    Action, ActionList, CellCapacity, CellPresence, CellsResponse, CertificateProperties,
    DesireTaskRequest, DomainsResponse, DownloadAction, EmitProgressAction, EnvironmentVariable,
    Error, IcmpInfo, LogRateLimit, Network, PingResponse, PortRange, Provider, ResourceLimits,
    RunAction, SecurityGroupRule, StartTaskResponse, Task, TaskChangedEvent, TaskCreatedEvent,
    TaskDefinition, TaskGuidRequest, TaskLifecycleResponse, TaskRemovedEvent, TaskResponse,
    TasksRequest, TasksResponse, TimeoutAction, TryAction, UploadAction, UpsertDomainRequest,
    UpsertDomainResponse,
};

use super::*;

/// A text or a nested message.
fn block(number: u32, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    let mut out = Vec::new();
    prost::encoding::encode_varint(u64::from(number) << 3 | 2, &mut out);
    prost::encoding::encode_varint(value.len() as u64, &mut out);
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

/// Checks that `parts`, in order, decode to `message`, and that `message` encodes to `parts`.
fn check_bytes<T: prost::Message + Default + PartialEq + Debug>(parts: &[Vec<u8>], message: &T) {
    let bytes = parts.concat();
    assert_eq!(&T::decode(bytes.as_slice()).unwrap(), message);
    assert_eq!(message.encode_to_vec(), bytes, "{message:?}");
}

fn text(value: &str) -> String {
    value.to_owned()
}

fn variable() -> EnvironmentVariable {
    EnvironmentVariable {
        name: text("N"),
        value: text("v"),
    }
}

/// The bytes of [`variable`].
fn variable_bytes() -> Vec<u8> {
    [block(1, "N"), block(2, "v")].concat()
}

#[test]
fn a_definition_has_the_numbers_of_the_field() {
    let entry = [block(1, "k"), block(2, "v")].concat();
    let anything = || vec![Anything {}];
    check_bytes(
        &[
            block(1, "rootfs"),
            block(2, variable_bytes()),
            block(3, ""),
            number(4, 4),
            number(5, 5),
            number(6, 6),
            number(7, 1),
            block(8, "8"),
            block(9, "9"),
            block(10, "10"),
            block(11, "11"),
            block(12, "12"),
            block(13, "13"),
            block(14, block(1, "tcp")),
            block(15, ""),
            block(16, "16"),
            block(17, "17"),
            block(18, ""),
            block(19, block(1, entry)),
            block(20, "20"),
            number(21, 21),
            block(22, block(1, "unit")),
            block(23, "23"),
            block(24, "24"),
            block(25, ""),
            block(26, number(1, 26)),
            block(27, block(1, "k")),
            block(28, ""),
        ],
        &TaskDefinition {
            rootfs: text("rootfs"),
            env: vec![variable()],
            action: Some(Action::default()),
            disk_mb: 4,
            memory_mb: 5,
            cpu_weight: 6,
            privileged: true,
            log_source: text("8"),
            log_guid: text("9"),
            metrics_guid: text("10"),
            result_file: text("11"),
            completion_callback_url: text("12"),
            annotation: text("13"),
            egress_rules: vec![SecurityGroupRule {
                protocol: text("tcp"),
                ..SecurityGroupRule::default()
            }],
            cached_dependencies: anything(),
            legacy_download_user: text("16"),
            trusted_system_certificates_path: text("17"),
            volume_mounts: anything(),
            network: Some(Network {
                properties: [(text("k"), text("v"))].into(),
            }),
            placement_tags: vec![text("20")],
            max_pids: 21,
            certificate_properties: Some(CertificateProperties {
                organizational_unit: vec![text("unit")],
            }),
            image_username: text("23"),
            image_password: text("24"),
            image_layers: anything(),
            log_rate_limit: Some(LogRateLimit {
                bytes_per_second: 26,
            }),
            metric_tags: [(text("k"), Anything {})].into(),
            volume_mounted_files: anything(),
        },
    );
}

#[test]
fn a_rule_has_the_numbers_of_the_field() {
    check_bytes(
        &[
            block(1, "tcp"),
            block(2, "1.1.1.1"),
            number(3, 80),
            number(3, 443),
            block(4, [number(1, 1), number(2, 2)].concat()),
            block(5, [number(1, 8), number(2, u64::MAX)].concat()),
            number(6, 1),
            block(7, "note"),
        ],
        &SecurityGroupRule {
            protocol: text("tcp"),
            destinations: vec![text("1.1.1.1")],
            ports: vec![80, 443],
            port_range: Some(PortRange { start: 1, end: 2 }),
            icmp_info: Some(IcmpInfo {
                r#type: 8,
                code: -1,
            }),
            log: true,
            annotations: vec![text("note")],
        },
    );
}

/// A message that is refused when present decodes with any contents.
#[test]
fn unread_bbs_message_accepts_any_content() {
    let layer = [block(1, "name"), number(4, 2), block(7, "digest")].concat();
    let tag = [block(1, "k"), block(2, number(2, 1))].concat();
    let bytes = [block(25, layer), block(27, tag)].concat();

    let found = TaskDefinition::decode(bytes.as_slice()).unwrap();

    assert_eq!((found.image_layers.len(), found.metric_tags.len()), (1, 1));
}

#[test]
fn ports_are_also_read_packed() {
    let found = SecurityGroupRule::decode(block(3, [80, 81]).as_slice()).unwrap();

    assert_eq!(found.ports, [80, 81]);
}

#[test]
fn a_task_has_the_numbers_of_the_field() {
    use State::{Completed, Invalid, Pending, Resolving, Running};

    check_bytes(
        &[
            block(1, block(1, "r")),
            block(2, "2"),
            block(3, "3"),
            number(4, 4),
            number(5, 5),
            number(6, 6),
            number(7, 4),
            block(8, "8"),
            block(9, "9"),
            number(10, 1),
            block(11, "11"),
            number(12, 12),
            block(13, "13"),
        ],
        &Task {
            definition: Some(TaskDefinition {
                rootfs: text("r"),
                ..TaskDefinition::default()
            }),
            task_guid: text("2"),
            domain: text("3"),
            created_at: 4,
            updated_at: 5,
            first_completed_at: 6,
            state: Resolving.into(),
            cell_id: text("8"),
            result: text("9"),
            failed: true,
            failure_reason: text("11"),
            rejection_count: 12,
            rejection_reason: text("13"),
        },
    );
    let states = [Invalid, Pending, Running, Completed, Resolving].map(i32::from);
    assert_eq!(states, [0, 1, 2, 3, 4]);
}

#[test]
fn simple_actions_have_the_numbers_of_the_field() {
    check_bytes(
        &(1..9)
            .map(|at| block(at, at.to_string()))
            .collect::<Vec<_>>(),
        &DownloadAction {
            artifact: text("1"),
            from: text("2"),
            to: text("3"),
            cache_key: text("4"),
            log_source: text("5"),
            user: text("6"),
            checksum_algorithm: text("7"),
            checksum_value: text("8"),
        },
    );
    check_bytes(
        &(1..6)
            .map(|at| block(at, at.to_string()))
            .collect::<Vec<_>>(),
        &UploadAction {
            artifact: text("1"),
            from: text("2"),
            to: text("3"),
            log_source: text("4"),
            user: text("5"),
        },
    );
    check_bytes(
        &[
            block(1, "1"),
            block(2, "2"),
            block(3, "3"),
            block(4, variable_bytes()),
            block(5, [number(1, 0), number(2, 9)].concat()),
            block(6, "6"),
            block(7, "7"),
            number(8, 1),
            block(9, ""),
        ],
        &RunAction {
            path: text("1"),
            args: vec![text("2")],
            dir: text("3"),
            env: vec![variable()],
            // A limit without a value differs from no limit.
            resource_limits: Some(ResourceLimits {
                nofile: Some(0),
                nproc: Some(9),
            }),
            user: text("6"),
            log_source: text("7"),
            suppress_log_output: true,
            volume_mounted_files: vec![Anything {}],
        },
    );
}

#[test]
fn nested_actions_use_bbs_field_numbers() {
    let below = || Some(Box::new(Action::default()));
    check_bytes(
        &[block(1, ""), number(2, 2), block(3, "3"), number(4, 4)],
        &TimeoutAction {
            action: below(),
            timeout_ns: 2,
            log_source: text("3"),
            timeout_ms: 4,
        },
    );
    check_bytes(
        &[
            block(1, ""),
            block(2, "2"),
            block(3, "3"),
            block(4, "4"),
            block(5, "5"),
        ],
        &EmitProgressAction {
            action: below(),
            start_message: text("2"),
            success_message: text("3"),
            failure_message_prefix: text("4"),
            log_source: text("5"),
        },
    );
    check_bytes(
        &[block(1, ""), block(2, "2")],
        &TryAction {
            action: below(),
            log_source: text("2"),
        },
    );
    check_bytes(
        &[block(1, ""), block(1, ""), block(2, "2")],
        &ActionList {
            actions: vec![Action::default(), Action::default()],
            log_source: text("2"),
        },
    );
    check_bytes(
        &(1..10).map(|at| block(at, "")).collect::<Vec<_>>(),
        &Action {
            download: Some(DownloadAction::default()),
            upload: Some(UploadAction::default()),
            run: Some(RunAction::default()),
            timeout: Some(Box::default()),
            emit_progress: Some(Box::default()),
            r#try: Some(Box::default()),
            parallel: Some(ActionList::default()),
            serial: Some(ActionList::default()),
            codependent: Some(ActionList::default()),
        },
    );
}

#[test]
fn requests_have_the_numbers_of_the_field() {
    check_bytes(
        &[block(1, ""), block(2, "guid"), block(3, "domain")],
        &DesireTaskRequest {
            task_definition: Some(TaskDefinition::default()),
            task_guid: text("guid"),
            domain: text("domain"),
        },
    );
    check_bytes(
        &[block(1, "domain"), block(2, "cell")],
        &TasksRequest {
            domain: text("domain"),
            cell_id: text("cell"),
        },
    );
    check_bytes(
        &[block(1, "guid")],
        &TaskGuidRequest {
            task_guid: text("guid"),
        },
    );
    check_bytes(
        &[block(1, "domain"), number(2, 60)],
        &UpsertDomainRequest {
            domain: text("domain"),
            ttl: 60,
        },
    );
}

#[test]
fn answers_have_the_numbers_of_the_field() {
    let error = || {
        Some(Error {
            kind: Kind::ResourceExists.into(),
            message: text("m"),
        })
    };
    let error_block = block(1, [number(1, 12), block(2, "m")].concat());
    let task = || Task {
        task_guid: text("g"),
        ..Task::default()
    };
    let of_task = |number| block(number, block(2, "g"));
    let alone = [error_block.clone()];
    check_bytes(&alone, &TaskLifecycleResponse { error: error() });
    check_bytes(&alone, &UpsertDomainResponse { error: error() });
    check_bytes(
        &[error_block.clone(), number(2, 1)],
        &StartTaskResponse {
            error: error(),
            should_start: true,
        },
    );
    check_bytes(
        &[error_block.clone(), of_task(2), of_task(2)],
        &TasksResponse {
            error: error(),
            tasks: vec![task(), task()],
        },
    );
    check_bytes(
        &[error_block.clone(), of_task(2)],
        &TaskResponse {
            error: error(),
            task: Some(task()),
        },
    );
    check_bytes(
        &[error_block, block(2, "d")],
        &DomainsResponse {
            error: error(),
            domains: vec![text("d")],
        },
    );
    check_bytes(&[number(1, 1)], &PingResponse { available: true });
    check_bytes(&[of_task(1)], &TaskCreatedEvent { task: Some(task()) });
    check_bytes(&[of_task(1)], &TaskRemovedEvent { task: Some(task()) });
    check_bytes(
        &[of_task(1), of_task(2)],
        &TaskChangedEvent {
            before: Some(task()),
            after: Some(task()),
        },
    );
}

#[test]
fn cells_have_the_numbers_of_the_field() {
    let capacity = [number(1, 1), number(2, 2), number(3, 3)].concat();
    let cell = [
        block(1, "1"),
        block(2, "2"),
        block(3, "3"),
        block(4, capacity),
        block(5, [block(1, "p"), block(2, "q")].concat()),
        block(6, "6"),
        block(7, "7"),
        block(8, "8"),
    ]
    .concat();
    check_bytes(
        &[block(2, cell)],
        &CellsResponse {
            error: None,
            cells: vec![CellPresence {
                cell_id: text("1"),
                rep_address: text("2"),
                zone: text("3"),
                capacity: Some(CellCapacity {
                    memory_mb: 1,
                    disk_mb: 2,
                    containers: 3,
                }),
                rootfs_providers: vec![Provider {
                    name: text("p"),
                    properties: vec![text("q")],
                }],
                placement_tags: vec![text("6")],
                optional_placement_tags: vec![text("7")],
                rep_url: text("8"),
            }],
        },
    );
}

#[test]
fn errors_have_the_numbers_of_the_field() {
    use Kind::{
        InvalidRequest, InvalidStateTransition, ResourceExists, ResourceNotFound, Timeout, Unknown,
    };
    let kinds = [
        Unknown,
        InvalidRequest,
        InvalidStateTransition,
        ResourceExists,
        ResourceNotFound,
        Timeout,
    ];

    assert_eq!(kinds.map(i32::from), [0, 4, 9, 12, 13, 31]);
}
