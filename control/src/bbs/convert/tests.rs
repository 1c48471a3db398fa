mod numbers;
mod refusals;

use muster_domain::fault::Fault;
use muster_domain::fixture;
use muster_domain::id::{LogIndex, NodeId, Timestamp};
use muster_domain::one_off::{
    self, Action, Actions, Definition, Download, EgressRule, EmitProgress, EnvVar, IcmpInfo,
    OneOff, OneOffState, PortRange, ResourceLimits, Run, Timeout, Try, Upload, WorkEnd, check,
};
use prost::Message as _;

use super::*;
use crate::bbs::proto::{Anything, TaskDefinition};

/// Returns the definition after encoding and decoding, and the names of the wrong fields.
fn read(message: &TaskDefinition) -> (Definition, Vec<String>) {
    let message = TaskDefinition::decode(message.encode_to_vec().as_slice()).unwrap();
    let mut faults = Vec::new();
    let definition = definition(message, &mut faults);
    faults.extend(check("g", "d", &definition));
    (definition, fields(faults))
}

fn fields(faults: Vec<Fault>) -> Vec<String> {
    faults.into_iter().map(|fault| fault.path).collect()
}

fn env(name: &str) -> Vec<EnvVar> {
    vec![EnvVar {
        name: name.to_owned(),
        value: "value".to_owned(),
    }]
}

fn run() -> Run {
    Run {
        path: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), "true".to_owned()],
        dir: "/tmp".to_owned(),
        env: env("RUN"),
        resource_limits: Some(ResourceLimits { nofile: Some(7) }),
        user: "vcap".to_owned(),
        log_source: "RUN".to_owned(),
        suppress_log_output: true,
    }
}

/// Returns every kind of action, with a distinct value in every field.
fn actions() -> Vec<Action> {
    let child = || Box::new(Action::Run(run()));
    let list = |source: &str| Actions {
        actions: vec![Action::Run(run()), Action::Run(run())],
        log_source: source.to_owned(),
    };
    let text = str::to_owned;
    vec![
        Action::Download(Download {
            artifact: text("app"),
            from: text("http://from"),
            to: text("/to"),
            user: text("down"),
            log_source: text("DOWN"),
            checksum_algorithm: text("sha256"),
            checksum_value: "00ff".repeat(16),
        }),
        Action::Upload(Upload {
            artifact: text("result"),
            from: text("/from"),
            to: text("http://to"),
            user: text("up"),
            log_source: text("UP"),
        }),
        Action::Run(run()),
        Action::Timeout(Timeout {
            action: child(),
            timeout_ms: 1_500,
            log_source: text("TIME"),
        }),
        Action::EmitProgress(EmitProgress {
            action: child(),
            start_message: text("start"),
            success_message: text("success"),
            failure_message_prefix: text("failure"),
            log_source: text("EMIT"),
        }),
        Action::Try(Try {
            action: child(),
            log_source: text("TRY"),
        }),
        Action::Parallel(list("PAR")),
        Action::Serial(list("SER")),
        Action::Codependent(list("CO")),
    ]
}

fn rules() -> Vec<EgressRule> {
    let rule = |protocol: &str| EgressRule {
        protocol: protocol.to_owned(),
        destinations: vec!["0.0.0.0/0".to_owned()],
        ports: Vec::new(),
        port_range: None,
        icmp_info: None,
        log: false,
        annotations: Vec::new(),
    };
    vec![
        EgressRule {
            log: true,
            annotations: vec!["why".to_owned()],
            ..rule("all")
        },
        EgressRule {
            ports: vec![80, 443],
            ..rule("tcp")
        },
        EgressRule {
            port_range: Some(PortRange { start: 1, end: 2 }),
            ..rule("udp")
        },
        EgressRule {
            icmp_info: Some(IcmpInfo { kind: 8, code: -1 }),
            ..rule("icmp")
        },
    ]
}

/// Returns a definition that a client of Diego can request, with a distinct value in every field.
fn full() -> Definition {
    let text = str::to_owned;
    Definition {
        rootfs: text("preloaded:host"),
        env: env("TASK"),
        action: Action::Serial(Actions {
            actions: actions(),
            log_source: text("ALL"),
        }),
        disk_mb: 11,
        memory_mb: 128,
        cpu_weight: 50,
        max_pids: 12,
        privileged: false,
        log_source: text("SOURCE"),
        log_guid: text("log"),
        metrics_guid: text("metrics"),
        result_file: text("/tmp/result"),
        completion_callback_url: text("http://callback"),
        annotation: text("mine"),
        egress_rules: rules(),
        placement_tags: vec![text("b"), text("a")],
        start_timeout_ms: 0,
        retention_ms: 0,
        result_required: true,
        ..fixture::definition()
    }
}

#[test]
fn a_definition_comes_back_as_it_was_given() {
    let asked = full();

    let (found, faults) = read(&definition::message(&asked));

    assert_eq!(found, asked);
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn every_action_comes_back_as_it_was_given() {
    for action in actions() {
        let asked = Definition { action, ..full() };

        let (found, faults) = read(&definition::message(&asked));

        assert_eq!(found, asked);
        assert_eq!(faults, Vec::<String>::new(), "{}", asked.action.as_str());
    }
}

/// Rows in every state of a task that failed.
#[test]
fn task_contains_its_state_and_end() {
    let at = Timestamp;
    let pending = OneOff::new(
        "g".to_owned(),
        "d".to_owned(),
        full().into(),
        LogIndex(7),
        at(1),
    );
    let node_id = NodeId::at(LogIndex(5), 0);
    let pending = OneOff {
        rejections: 2,
        rejection: "no room".to_owned(),
        ..pending
    };
    let running = OneOff {
        state: OneOffState::Running,
        node_id: Some(node_id),
        updated_at: at(2),
        ..pending.clone()
    };
    let completed = OneOff {
        state: OneOffState::Completed,
        end: Some(WorkEnd {
            result: "half".to_owned(),
            ..WorkEnd::failure("boom", at(3))
        }),
        first_completed_at: Some(at(3)),
        updated_at: at(4),
        ..running.clone()
    };

    let (waits, runs, ended) = (task(&pending), task(&running), task(&completed));

    assert_eq!(
        (
            waits.state(),
            waits.rejection_count,
            waits.rejection_reason.as_str()
        ),
        (State::Pending, 2, "no room")
    );
    assert_eq!(
        (waits.task_guid.as_str(), waits.domain.as_str()),
        ("g", "d")
    );
    assert_eq!(
        (runs.state(), runs.cell_id),
        (State::Running, node_id.to_string())
    );
    assert_eq!(
        (runs.created_at, runs.updated_at, runs.first_completed_at),
        (1, 2, 0)
    );
    assert_eq!(
        (ended.state(), ended.cell_id.as_str()),
        (State::Completed, "")
    );
    assert_eq!((ended.updated_at, ended.first_completed_at), (4, 3));
    assert!(ended.failed);
    assert_eq!(
        (ended.failure_reason.as_str(), ended.result.as_str()),
        ("boom", "half")
    );
    assert_eq!(ended.definition, Some(definition::message(&full())));
}

/// An ended task with that failure reason and a result, on a node.
fn failed(state: OneOffState, reason: &str) -> Task {
    let mut row = OneOff::new(
        "a".to_owned(),
        "apps".to_owned(),
        std::sync::Arc::new(fixture::definition()),
        LogIndex(1),
        Timestamp(1),
    );
    row.state = state;
    row.node_id = Some(NodeId([7; 16]));
    row.end = Some(WorkEnd {
        result: "42".to_owned(),
        ..WorkEnd::failure(reason, Timestamp(2))
    });
    task(&row)
}

#[test]
fn lost_task_keeps_its_cell() {
    let cell = NodeId([7; 16]).to_string();
    for state in [OneOffState::Completed, OneOffState::Resolving] {
        assert_eq!(failed(state, one_off::NODE_GONE).cell_id, cell);
        assert_eq!(failed(state, "exit status 1").cell_id, "");
    }
}

#[test]
fn cancelled_task_has_no_result() {
    let state = OneOffState::Completed;
    assert_eq!(failed(state, one_off::CANCELLED).result, "");
    assert_eq!(failed(state, "exit status 1").result, "42");
}

/// Diego's clients may set several kinds: the one with the lowest number counts.
#[test]
fn first_kind_of_an_action_wins() {
    let of = |action: &Action| action::message(action);
    let several = crate::bbs::proto::Action {
        upload: of(&actions()[1]).upload,
        serial: of(&actions()[7]).serial,
        ..crate::bbs::proto::Action::default()
    };
    let message = TaskDefinition {
        rootfs: "preloaded:host".to_owned(),
        action: Some(several),
        ..TaskDefinition::default()
    };

    assert_eq!(
        read(&message),
        (
            Definition {
                action: actions()[1].clone(),
                ..read(&message).0
            },
            Vec::new(),
        )
    );
}
