//! Each test checks one fault.

use super::*;
use crate::fixture::job;

fn reasons(spec: JobSpec) -> Vec<String> {
    validate(spec)
        .expect_err("has faults")
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn the_fixture_job_is_valid() {
    assert!(validate(job("web").build()).is_ok());
}

#[test]
fn every_fault_is_reported_with_its_path() {
    let mut spec = job("web").build();
    spec.priority = 0;
    spec.groups[0].tasks[0].resources.memory.0 = 1;
    spec.groups[0].tasks[0].kill_signal = "SIGNOPE".to_owned();

    let reasons = reasons(spec);

    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(
        reasons[0].starts_with("job \"web\" → priority"),
        "{reasons:?}"
    );
    assert!(reasons[1].starts_with("group \"main\" → task \"main\" → resources.memory"));
    assert!(reasons[2].contains("SIGTERM"));
}

/// The number above the highest id means "leave it". A process that is started with it stays root.
#[test]
fn users_are_ids_or_names() {
    let with = |user: &str| {
        let mut spec = job("web").build();
        user.clone_into(&mut spec.groups[0].tasks[0].user);
        spec
    };

    for user in ["", "0", "nobody", "4294967294"] {
        assert!(validate(with(user)).is_ok(), "{user}");
    }
    for user in ["4294967295", "4294967296", "-1", "+0", "a:b", "root\n"] {
        let reasons = reasons(with(user));
        assert!(reasons[0].contains("task \"main\" → user"), "{reasons:?}");
    }
}

#[test]
fn limits_of_disks_are_in_their_bounds() {
    let with = |io: IoLimits| {
        let mut spec = job("web").build();
        spec.groups[0].tasks[0].resources.io = io;
        spec
    };
    let all = |rate: ByteRate, ops: u32, weight: u16| IoLimits {
        read_rate: Some(rate),
        write_rate: Some(rate),
        read_ops: Some(ops),
        write_ops: Some(ops),
        weight: Some(weight),
    };

    for (rate, weight) in [(IoLimits::RATE_MIN, 1), (IoLimits::RATE_MAX, 10_000)] {
        assert!(validate(with(all(rate, IoLimits::OPS_MIN, weight))).is_ok());
    }
    let reasons = reasons(with(all(ByteRate(4_095), 9, 10_001)));
    let fields = ["read_rate", "write_rate", "read_ops", "write_ops", "weight"];
    assert_eq!(reasons.len(), fields.len(), "{reasons:?}");
    for (reason, field) in reasons.iter().zip(fields) {
        assert!(
            reason.contains(&format!("resources.io.{field}")),
            "{reason}"
        );
    }
}

/// Exclusive cores are a limit already.
#[test]
fn a_hard_limit_beside_cores_is_refused() {
    let mut spec = job("web").build();
    let resources = &mut spec.groups[0].tasks[0].resources;
    resources.cpu_hard_limit = true;
    assert!(validate(spec.clone()).is_ok());

    spec.groups[0].tasks[0].resources.cores = 1;

    assert!(reasons(spec)[0].contains("resources.cpu_hard_limit"));
}

#[test]
fn log_rate_bounds_and_on_limit_are_validated() {
    let with = |rate: Option<u64>, on_limit| {
        let mut spec = job("web").build();
        let logs = &mut spec.groups[0].tasks[0].logs;
        logs.rate = rate.map(ByteRate);
        logs.on_limit = on_limit;
        logs.on_full = LogOverflow::Drop;
        spec
    };

    for rate in [1_024, 1 << 30] {
        assert!(validate(with(Some(rate), LogOverflow::Drop)).is_ok());
    }
    for rate in [0, 1_023, (1 << 30) + 1] {
        let reasons = reasons(with(Some(rate), LogOverflow::Drop));
        assert!(
            reasons[0].ends_with("is not from 1kb to 1gb"),
            "{reasons:?}"
        );
    }
    let reasons = reasons(with(None, LogOverflow::Drop));
    assert!(reasons[0].contains("logs → on_limit"), "{reasons:?}");
}

#[test]
fn logs_are_kept_or_disabled() {
    let with = |logs| {
        let mut spec = job("web").build();
        spec.groups[0].tasks[0].logs = logs;
        spec
    };
    let half = LogConfig {
        max_files: 0,
        ..LogConfig::default()
    };

    assert!(validate(with(LogConfig::DISABLED)).is_ok());
    assert!(reasons(with(half))[0].contains("`disabled = true`"));
}

#[test]
fn task_name_cannot_shadow_alloc_directory() {
    for name in ["alloc", "..", "a/b", "secrets"] {
        let mut spec = job("web").build();
        spec.groups[0].tasks[0].name = name.to_owned();

        assert!(!reasons(spec).is_empty(), "{name}");
    }
}

#[test]
fn the_same_static_port_twice_is_refused() {
    let spec = job("web").port("a", 8080).port("b", 8080).build();

    assert!(reasons(spec)[0].contains("8080 is asked for twice"));
}

#[test]
fn a_broken_regular_expression_is_refused() {
    let spec = job("web")
        .constraint("${attr.os.name}", "regexp", "(")
        .build();

    assert!(reasons(spec)[0].contains("not a regular expression"));
}

/// The scheduler chooses no nodes for system jobs, so it would ignore a preference.
#[test]
fn system_jobs_have_no_affinities() {
    let affinity = || Affinity {
        left: "${node.class}".to_owned(),
        operand: Operand::Equal,
        right: "big".to_owned(),
        weight: 50,
    };
    let faults = |job_type: JobType, place: usize| {
        let mut spec = job("web").job_type(job_type).build();
        match place {
            0 => spec.affinities.push(affinity()),
            1 => spec.groups[0].affinities.push(affinity()),
            _ => spec.groups[0].tasks[0].affinities.push(affinity()),
        }
        validate(spec).err().unwrap_or_default().len()
    };

    for place in 0..3 {
        for job_type in [JobType::System, JobType::SysBatch] {
            assert_eq!(faults(job_type, place), 1, "{job_type} {place}");
        }
        assert_eq!(faults(JobType::Service, place), 0, "{place}");
    }
}
