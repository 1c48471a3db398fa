//! Jobs in both directions.

mod again;
mod stored;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::fault::Fault;
use muster_domain::fixture;
use muster_domain::id::LogIndex;
use muster_domain::job::{
    self as domain, Affinity, ByteRate, JobSpec, JobType, Lifecycle, LifecycleHook, LogOverflow,
    MigrateStrategy, Operand, Parameterized, PayloadUse, Periodic, Propagation, ReschedulePolicy,
    RestartMode, RestartPolicy, Scaling, Spread, SpreadTarget, UpdateStrategy, VolumeAsk,
    VolumeMount,
};
use muster_domain::resources::{CpuMhz, DeviceAsk, IoLimits, Mb};
use serde_json::{Value, json};

use super::request::{ReadJob, ReadJobError, read};
use super::table::BlockForm;
use super::{Job, RegisterRequest};
use crate::api::resources::Network;

fn read_value(body: &Value) -> Result<ReadJob, ReadJobError> {
    read(body.to_string().as_bytes())
}

/// The job that a server stores, or every fault that is found at once.
pub(in crate::api::job) fn valid(body: &Value) -> Result<JobSpec, Vec<String>> {
    let texts = |faults: Vec<Fault>| faults.iter().map(Fault::to_string).collect();
    let read = read_value(body).map_err(|error| match error {
        ReadJobError::Syntax(error) => vec![error.to_string()],
        ReadJobError::Faults(faults) => texts(faults),
    })?;
    Ok(domain::validate(read.spec).map_err(texts)?.into_spec())
}

fn faults(body: &Value) -> Vec<String> {
    match read_value(body) {
        Err(ReadJobError::Faults(faults)) => faults.iter().map(ToString::to_string).collect(),
        other => panic!("expected faults, got {other:?}"),
    }
}

fn small() -> Value {
    json!({"Job": {
        "ID": "web",
        "TaskGroups": [{"Name": "api", "Tasks": [{"Name": "main", "Driver": "native"}]}],
    }})
}

/// A job with every field set to a non-default value.
fn full() -> JobSpec {
    let mut spec = fixture::job("web")
        .job_type(JobType::Batch)
        .count(3)
        .priority(70)
        .port("http", 8080)
        .dynamic_port("admin")
        .constraint("${attr.cpu.arch}", "regexp", "^a")
        .build();
    spec.name = "the web".to_owned();
    spec.datacenters = vec!["dc1".to_owned(), "eu-*".to_owned()];
    spec.meta = BTreeMap::from([("owner".to_owned(), "ops".to_owned())]);
    let group = &mut spec.groups[0];
    group.restart.mode = RestartMode::Delay;
    group.restart.delay = Duration::from_millis(1500);
    group.ephemeral_disk.size = Mb(77);
    group.meta = BTreeMap::from([("tier".to_owned(), "1".to_owned())]);
    group.constraints = spec.constraints.clone();
    let task = &mut group.tasks[0];
    task.config_json = r#"{"args":["-c","true"],"command":"/bin/sh"}"#.to_owned();
    task.user = "nobody".to_owned();
    task.env = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
    task.resources.memory_max = Some(Mb(128));
    task.resources.cpu_hard_limit = true;
    task.resources.io = IoLimits {
        read_rate: Some(ByteRate(10 << 20)),
        write_rate: Some(ByteRate(64 << 10)),
        read_ops: Some(1_000),
        write_ops: None,
        weight: Some(300),
    };
    task.kill_timeout = Duration::from_secs(9);
    task.kill_signal = "SIGINT".to_owned();
    task.logs.max_files = 3;
    task.logs.max_file_size = Mb(2);
    task.logs.rate = Some(ByteRate(64 * 1024));
    task.logs.on_limit = LogOverflow::Drop;
    task.logs.on_full = LogOverflow::Drop;
    task.meta = BTreeMap::from([("x".to_owned(), "y".to_owned())]);
    everything_else(&mut spec);
    spec
}

/// Fills fields that most jobs do not set.
fn everything_else(spec: &mut JobSpec) {
    let affinity = Affinity {
        left: "${node.class}".to_owned(),
        operand: Operand::SetContainsAny,
        right: "a,b".to_owned(),
        weight: -70,
    };
    spec.all_at_once = true;
    spec.affinities = vec![affinity.clone()];
    spec.spreads = vec![Spread {
        attribute: "${node.datacenter}".to_owned(),
        weight: 70,
        targets: vec![SpreadTarget {
            value: "dc1".to_owned(),
            percent: 30,
        }],
    }];
    let group = &mut spec.groups[0];
    group.affinities = vec![affinity.clone()];
    group.disconnect.lost_after = Some(Duration::from_hours(1));
    group.disconnect.replace = false;
    group.scaling = Some(Scaling {
        min: 1,
        max: 9,
        enabled: false,
        policy_json: "{\"a\":1}".to_owned(),
    });
    group.volumes = BTreeMap::from([(
        "data".to_owned(),
        VolumeAsk {
            source: "ssd".to_owned(),
            read_only: true,
        },
    )]);
    group.shutdown_delay = Duration::from_secs(3);
    group.ephemeral_disk.sticky = true;
    group.ephemeral_disk.migrate = true;
    let task = &mut group.tasks[0];
    task.leader = true;
    task.affinities = vec![affinity.clone()];
    task.payload_file = "in.json".to_owned();
    task.volume_mounts = vec![VolumeMount {
        volume: "data".to_owned(),
        destination: "/data".to_owned(),
        read_only: true,
        propagation: Propagation::Private,
        selinux_label: String::new(),
    }];
    task.shutdown_delay = Duration::from_secs(2);
    task.resources.devices = vec![DeviceAsk {
        name: "nvidia/gpu".to_owned(),
        count: 2,
        constraints: Vec::new(),
        affinities: vec![affinity],
    }];
    let mut first = task.clone();
    first.name = "first".to_owned();
    first.leader = false;
    first.lifecycle = Some(Lifecycle {
        hook: LifecycleHook::Prestart,
        sidecar: true,
    });
    group.tasks.push(first);
}

/// `replace = false` means something without a time, too.
#[test]
fn a_disconnect_without_a_time_reads_back() {
    let mut spec = full();
    spec.groups[0].disconnect.lost_after = None;
    spec.groups[0].disconnect.replace = false;
    let written = serde_json::to_value(Job::from_spec(&spec)).unwrap();
    assert_eq!(written["TaskGroups"][0]["Disconnect"]["Replace"], false);
}

#[test]
fn jobs_that_make_others_read_back() {
    let mut spec = full();
    spec.job_type = JobType::Batch;
    for group in &mut spec.groups {
        group.update = None;
        group.migrate = None;
    }
    spec.periodic = Some(Periodic {
        enabled: false,
        specs: vec!["*/5 * * * *".to_owned(), "@daily".to_owned()],
        prohibit_overlap: true,
        time_zone: "Europe/Berlin".to_owned(),
    });
    spec.parameterized = Some(Parameterized {
        payload: PayloadUse::Required,
        meta_required: vec!["a".to_owned()],
        meta_optional: vec!["b".to_owned()],
    });

    let read = read_value(&json!({"Job": Job::from_spec(&spec)})).unwrap();

    assert_eq!(read.spec, spec);
}

#[test]
fn a_job_that_was_written_reads_back() {
    let spec = full();
    let request = RegisterRequest {
        job: Job::from_spec(&spec),
        ..RegisterRequest::default()
    };

    let read = read(&serde_json::to_vec(&request).unwrap()).unwrap();

    assert_eq!(read.spec, spec);
    assert_eq!(read.warnings, Vec::<String>::new());
    assert_eq!(read.enforce_index, None);
}

#[test]
fn an_answer_can_be_sent_back_unchanged() {
    let job = domain::Job {
        current: fixture::job("web").version(),
        stop: false,
        status: domain::JobStatus::Running,
        stable: Vec::new(),
        tags: Vec::new(),
        scaling_events: Arc::default(),
        launched_at: None,
        modify_index: LogIndex(9),
    };

    let answer = Job::from_job(&job);
    let read =
        read_value(&json!({"Job": answer, "EnforceIndex": true, "JobModifyIndex": 7})).unwrap();

    assert_eq!(read.spec, job.current.spec);
    assert_eq!(read.enforce_index, Some(7));
    assert_eq!(
        serde_json::from_value::<Job>(serde_json::to_value(&answer).unwrap()).unwrap(),
        answer
    );
}

#[test]
fn nomads_defaults_are_filled_in() {
    let spec = read_value(&small()).unwrap().spec;

    assert_eq!((spec.job_type, spec.priority), (JobType::Service, 50));
    assert_eq!(
        (spec.namespace.as_str(), spec.name.as_str()),
        ("default", "web")
    );
    assert_eq!(spec.datacenters, ["*"]);
    assert_eq!(spec.node_pool, "default");
    let group = &spec.groups[0];
    assert_eq!(group.count, 1);
    assert_eq!(group.restart, RestartPolicy::default_for(JobType::Service));
    assert_eq!(group.ephemeral_disk.size, Mb(300));
    let task = &group.tasks[0];
    assert_eq!(
        (task.resources.cpu, task.resources.memory),
        (CpuMhz(100), Mb(300))
    );
    assert_eq!(task.kill_timeout, Duration::from_secs(5));
    assert_eq!((task.logs.max_files, task.logs.max_file_size), (10, Mb(10)));
    domain::validate(spec).unwrap();
}

#[test]
fn a_log_rate_without_a_unit_is_refused() {
    let body = |logs: Value| {
        let task = json!({"Name": "t", "Driver": "mock", "LogConfig": logs});
        json!({"Job": {"ID": "web", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}})
    };

    let faults = faults(&body(json!({"Rate": "5", "OnFull": "wait"})));
    let read = read_value(&body(json!({"Rate": "5kb", "OnLimit": "drop"}))).unwrap();

    assert!(
        faults[0].contains("`5` is not a rate such as 1mb"),
        "{faults:?}"
    );
    assert!(
        faults[1].contains("unknown overflow `wait`: use `block` or `drop`"),
        "{faults:?}"
    );
    let logs = read.spec.groups[0].tasks[0].logs;
    assert_eq!(
        (logs.rate, logs.on_limit, logs.on_full),
        (
            Some(ByteRate(5 * 1024)),
            LogOverflow::Drop,
            LogOverflow::Block
        )
    );
}

#[test]
fn logs_that_are_disabled_stay_so() {
    let body = |logs: Value| {
        let task = json!({"Name": "t", "Driver": "mock", "LogConfig": logs});
        json!({"Job": {"ID": "web", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}})
    };

    let read = read_value(&body(json!({"Disabled": true, "MaxFiles": 3}))).unwrap();
    let written = super::LogConfig::write_block(&read.spec.groups[0].tasks[0].logs);
    let again = read_value(&body(serde_json::to_value(&written).unwrap())).unwrap();
    let enabled = read_value(&body(json!({"Disabled": false}))).unwrap();
    let faults = faults(&body(json!({"MaxFiles": 0, "MaxFileSizeMB": 0})));

    assert!(written.disabled);
    assert_eq!(
        again.spec.groups[0].tasks[0].logs,
        domain::LogConfig::DISABLED
    );
    assert_eq!(
        enabled.spec.groups[0].tasks[0].logs,
        domain::LogConfig::default()
    );
    assert!(faults[0].contains("`Disabled` keeps nothing"), "{faults:?}");
}

#[test]
fn limits_of_disks_are_read_with_their_faults() {
    let body = |io: Value| {
        let resources = json!({"CPU": 100, "CPUHardLimit": true, "IO": io});
        let task = json!({"Name": "t", "Driver": "mock", "Resources": resources});
        json!({"Job": {"ID": "web", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}})
    };

    let read = read_value(&body(json!({"ReadRate": "5mb", "WriteOps": 50}))).unwrap();
    let faults = faults(&body(
        json!({"ReadRate": "5", "WriteOps": -1, "Latency": 7}),
    ));

    let resources = &read.spec.groups[0].tasks[0].resources;
    assert!(resources.cpu_hard_limit);
    assert_eq!(
        resources.io,
        IoLimits {
            read_rate: Some(ByteRate(5 << 20)),
            write_ops: Some(50),
            ..IoLimits::default()
        }
    );
    let text = faults.join("\n");
    for part in ["`5` is not a rate such as 1mb", "WriteOps", "Latency"] {
        assert!(text.contains(part), "{text}");
    }
}

/// A job recorded from a running Nomad 1.1.2 is valid here, except for its driver. The defaults of Nomad are also the
/// defaults here.
#[test]
fn a_job_recorded_from_nomad_is_read() {
    let job: Value =
        serde_json::from_str(include_str!("../../../testdata/nomad_job.json")).unwrap();

    let read = read_value(&json!({"Job": job})).unwrap();

    assert_eq!(read.spec.groups[0].tasks[0].resources.cpu, CpuMhz(20));
    assert_eq!(read.spec.groups[0].count, 2);
    assert_eq!(read.warnings, Vec::<String>::new());
    let group = &read.spec.groups[0];
    assert_eq!(group.update, Some(UpdateStrategy::default()));
    assert_eq!(group.migrate, Some(MigrateStrategy::default()));
    assert_eq!(
        group.reschedule,
        ReschedulePolicy::default_for(JobType::Service)
    );
}

#[test]
fn group_inherits_unset_fields_from_job() {
    let mut body = small();
    body["Job"]["Update"] = json!({"MaxParallel": 3, "Canary": 1});
    body["Job"]["Reschedule"] = json!({"Delay": "1m"});
    body["Job"]["TaskGroups"][0]["Update"] = json!({"MaxParallel": 5});

    let ReadJob { spec, warnings, .. } = read_value(&body).unwrap();

    let update = spec.groups[0].update.unwrap();
    assert_eq!((update.max_parallel, update.canary), (5, 1));
    assert_eq!(update.min_healthy_time, Duration::from_secs(10));
    assert_eq!(spec.groups[0].reschedule.delay, Duration::from_mins(1));
    assert!(spec.groups[0].reschedule.unlimited);
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn every_fault_is_found_with_its_path() {
    let mut body = small();
    body["Job"]["Priorty"] = json!(3);
    body["Job"]["TaskGroups"][0]["Count"] = json!("two");
    body["Job"]["TaskGroups"][0]["Services"] = json!([{"Name": "web"}]);
    body["Job"]["TaskGroups"][0]["Tasks"][0]["Resources"] = json!({"CPU": -1, "MemoryMB": 1.5});
    body["Job"]["TaskGroups"][0]["Tasks"][0]["Config"] = json!([1]);
    body["Job"]["TaskGroups"][0]["Tasks"][0]["Env"] = json!({"A": 1});

    assert_eq!(
        faults(&body),
        [
            "Job.TaskGroups[0].Count: expected a whole number from 0 to 4294967295, got the text \"two\"",
            "Job.TaskGroups[0].Tasks[0].Config: expected an object, got a list",
            "Job.TaskGroups[0].Tasks[0].Env.A: expected a text, got the number 1",
            "Job.TaskGroups[0].Tasks[0].Resources.CPU: expected a whole number from 0 to 4294967295, got the number -1",
            "Job.TaskGroups[0].Tasks[0].Resources.MemoryMB: expected a whole number from 0 to 4294967295, got the number 1.5",
            "Job.TaskGroups[0].Services: is not supported: this version does not have it; leave it out",
            "Job.Priorty: unknown field: did you mean `Priority`?",
        ],
    );
}

#[test]
fn an_unsupported_field_that_is_empty_passes() {
    let mut body = small();
    let task = &mut body["Job"]["TaskGroups"][0]["Tasks"][0];
    task["Services"] = json!([]);
    task["Vault"] = Value::Null;
    task["Leader"] = json!(false);
    task["ShutdownDelay"] = json!(0);
    task["Kind"] = json!("");
    task["Resources"] = json!({"CPU": 1, "Cores": 0, "DiskMB": 5, "IOPS": 5, "Networks": null});
    body["Job"]["Affinities"] = Value::Null;

    let read = read_value(&body).unwrap();

    assert_eq!(read.warnings, Vec::<String>::new());
}

#[test]
fn task_overrides_group_restart_policy() {
    let mut body = small();
    body["Job"]["TaskGroups"][0]["RestartPolicy"] = json!({"Attempts": 7});
    body["Job"]["TaskGroups"][0]["Tasks"][0]["RestartPolicy"] = json!({"Delay": "16s"});

    let spec = read_value(&body).unwrap().spec;

    assert_eq!(spec.groups[0].restart.attempts, 7);
    let restart = spec.groups[0].tasks[0].restart;
    assert_eq!((restart.attempts, restart.delay.as_secs()), (7, 16));
}

#[test]
fn unknown_operand_error_lists_valid_operands() {
    let mut body = small();
    body["Job"]["Constraints"] = json!([
        {"LTarget": "${attr.x}", "RTarget": "1", "Operand": "version"},
        {"LTarget": "${attr.x}", "RTarget": "1", "Operand": "~"},
    ]);

    let faults = faults(&body);

    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("unknown operand `~`"), "{faults:?}");
    assert!(faults[0].contains("set_contains_any"), "{faults:?}");
}

#[test]
fn invalid_jobs_are_refused() {
    assert_eq!(read(b"").unwrap_err().to_string(), "Request body is empty");
    assert!(
        read(b"{\"Job\":")
            .unwrap_err()
            .to_string()
            .starts_with("request body: line 1, column 7: ")
    );
    assert!(
        read(b"[]")
            .unwrap_err()
            .to_string()
            .contains("expected an object, got a list")
    );
    assert!(
        read(b"{}")
            .unwrap_err()
            .to_string()
            .contains("Job: is missing")
    );
    assert!(read(b"{\"Job\":{\"ID\":\"\xff\"}}").is_err());
    assert_eq!(
        faults(&json!({"Job": 5})),
        ["Job: expected an object, got the number 5"]
    );
}

/// A million empty tasks fit in a body. They must not cost memory or cause a response of their size.
#[test]
fn oversized_list_is_rejected_unread() {
    let mut body = small();
    body["Job"]["TaskGroups"][0]["Tasks"] = Value::Array(vec![json!({}); 100_000]);

    assert_eq!(
        faults(&body),
        ["Job.TaskGroups[0].Tasks: 100000 are too many: at most 64"]
    );
}

#[test]
fn countless_faults_are_counted() {
    let mut body = small();
    for number in 0..10_000 {
        body["Job"][format!("Field{number}")] = json!(1);
    }

    let faults = faults(&body);

    assert_eq!(faults.len(), crate::limits::FAULTS_MAX + 1);
    assert_eq!(faults.last().unwrap(), "request body: has 9900 more faults");
}

/// Collects pointers to every value of `value`, starting with `value` itself.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                pointers(value, &format!("{at}/{key}"), found);
            }
        }
        Value::Array(list) => {
            for (ordinal, value) in list.iter().enumerate() {
                pointers(value, &format!("{at}/{ordinal}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A pointer as faults write it: `Job.TaskGroups[0].Name`.
fn path(pointer: &str) -> String {
    let part = |part: &str| match part.parse::<usize>() {
        Ok(ordinal) => format!("[{ordinal}]"),
        Err(_) => format!(".{part}"),
    };
    let path: String = pointer.split('/').skip(1).map(part).collect();
    path.trim_start_matches('.').to_owned()
}

/// Any value at any place is accepted, or is refused with a fault at that place, within it, or around it.
#[test]
fn any_value_is_accepted_or_rejected_by_path() {
    let mut job = Job::from_spec(&full());
    // The fault would otherwise name the task's copy of the policy instead of the group's.
    job.task_groups[0].tasks[0].restart_policy = None;
    let whole = json!({"Job": job, "EnforceIndex": true, "JobModifyIndex": 7});
    let mut places = Vec::new();
    pointers(&whole, "", &mut places);
    let values = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("\0"),
        json!([]),
        json!([null]),
        json!([{}]),
        json!({}),
        json!({"x": {"x": 1}}),
    ];

    for place in places {
        for value in &values {
            let mut body = whole.clone();
            *body.pointer_mut(&place).unwrap() = value.clone();
            match read_value(&body) {
                Ok(read) => drop(domain::validate(read.spec)),
                Err(ReadJobError::Faults(faults)) => {
                    let path = path(&place);
                    let is_named = faults.iter().any(|fault| {
                        let named = fault.path.as_str();
                        named.starts_with(&path) || path.starts_with(named)
                    });
                    assert!(is_named, "{value} at {path}: {faults:?}");
                }
                Err(error @ ReadJobError::Syntax(_)) => panic!("{value} at {place}: {error}"),
            }
        }
    }
}

#[test]
fn cni_networks_are_read_and_shown() {
    let mut body = small();
    let network = json!({"Mode": "cni/lab", "CNI": {"Args": {"COLOR": "blue"}}, "DNS": {"Servers": ["10.0.0.53"]}});
    body["Job"]["TaskGroups"][0]["Networks"] = json!([network]);

    let read = read_value(&body).unwrap();

    let mode = &read.spec.groups[0].network.as_ref().unwrap().mode;
    let cni = mode.cni().unwrap();
    assert_eq!(
        (cni.name.as_str(), cni.args["COLOR"].as_str()),
        ("lab", "blue")
    );
    assert_eq!(mode.as_str(), "cni/lab");
    let network = read.spec.groups[0].network.as_ref().unwrap();
    let shown = serde_json::to_value(Network::write_block(network)).unwrap();
    assert_eq!(shown["Mode"], "cni/lab");
    assert_eq!(shown["CNI"], json!({"Args": {"COLOR": "blue"}}));
}

#[test]
fn faulty_cni_networks_are_refused() {
    for (network, words) in [
        (json!({"Mode": "cni/"}), "unknown CNI network \"\""),
        (json!({"Mode": "cni/a b"}), "unknown CNI network \"a b\""),
        (
            json!({"Mode": "vpn"}),
            "unknown network mode `vpn`: use `host`, `bridge`, `none` or `cni/NAME`",
        ),
        (
            json!({"Mode": "bridge", "CNI": {"Args": {"A": "b"}}}),
            "unused CNI arguments with mode `bridge`",
        ),
        (
            json!({"Mode": "cni/lab", "CNI": {"Args": {"A": "b;c=d"}}}),
            "invalid CNI argument \"A\"",
        ),
        (
            json!({"Mode": "cni/lab", "CNI": {"Args": {"A=B": "c"}}}),
            "invalid CNI argument \"A=B\"",
        ),
        (json!({"Mode": "cni/lab", "CNI": {"Argz": {}}}), "Argz"),
    ] {
        let mut body = small();
        body["Job"]["TaskGroups"][0]["Networks"] = json!([network]);
        let found = match read_value(&body) {
            Ok(read) => domain::validate(read.spec).unwrap_err(),
            Err(ReadJobError::Faults(faults)) => faults,
            Err(error) => panic!("{error}"),
        };
        let found = super::request::lines(&found);
        assert!(found.contains(words), "{network}: {found}");
    }
}

#[test]
fn mount_options_of_other_drivers_are_warned_of() {
    let mut body = small();
    body["Job"]["TaskGroups"][0]["Volumes"] = json!({"data": {"Type": "host", "Source": "data"}});
    body["Job"]["TaskGroups"][0]["Tasks"][0]["VolumeMounts"] = json!([{
        "Volume": "data",
        "Destination": "/data",
        "PropagationMode": "bidirectional",
        "SELinuxLabel": "z",
    }]);

    let read = read_value(&body).unwrap();

    for name in ["PropagationMode", "SELinuxLabel"] {
        let of_field = |warning: &&String| warning.contains(name);
        assert_eq!(read.warnings.iter().filter(of_field).count(), 1, "{name}");
    }
}
