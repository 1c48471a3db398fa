//! How many instances a job and a namespace may have.

use muster_domain::job::{Parameterized, PayloadUse};
use muster_domain::limits::{JOB_INSTANCES_MAX, NAMESPACE_INSTANCES_MAX};

use super::*;

/// A job of `groups` groups of `count` instances each.
fn many(id: &str, groups: usize, count: u32) -> JobSpec {
    let mut spec = job(id).count(count).build();
    for number in 1..groups {
        let mut group = spec.groups[0].clone();
        group.name = format!("group-{number}");
        spec.groups.push(group);
    }
    spec
}

fn why(response: Response) -> String {
    let Response::Rejected(rejection) = response else {
        panic!("it was not refused: {response:?}")
    };
    rejection.to_string()
}

/// A namespace whose jobs want as many instances as they may, less `room`.
fn full(room: u32) -> Cluster {
    let mut cluster = Cluster::new();
    let most = u32::try_from(JOB_INSTANCES_MAX).unwrap();
    let jobs = u32::try_from(NAMESPACE_INSTANCES_MAX).unwrap() / most;
    for number in 0..jobs {
        let count = if number == 0 { most - room } else { most };
        let response = register(&mut cluster, many(&format!("job-{number}"), 1, count), None);
        assert!(matches!(response, Response::JobRegistered { .. }));
    }
    cluster
}

#[test]
fn a_job_of_too_many_instances_is_refused() {
    let mut cluster = Cluster::new();
    let refused = why(register(&mut cluster, many("web", 64, 1_000_000), None));
    assert!(refused.contains("64000000 instances"), "{refused}");
    assert!(cluster.state.jobs().is_empty());
}

#[test]
fn a_namespace_has_so_many_instances() {
    let mut cluster = full(10);
    let refused = why(register(&mut cluster, many("web", 1, 11), None));
    assert!(refused.contains("namespace default"), "{refused}");
    assert!(refused.contains("at most 4000000"), "{refused}");

    register(&mut cluster, many("web", 1, 10), None);
    let scale = |count| Command::ScaleJob {
        key: JobKey::in_default("web"),
        group: job("web").build().groups[0].name.clone(),
        count,
        check_index: None,
        at: Timestamp(1),
    };
    let refused = why(cluster.apply(scale(11)));
    assert!(refused.contains("namespace default"), "{refused}");
    // Less is always allowed, and makes room.
    let response = cluster.apply(scale(5));
    assert!(matches!(response, Response::JobRegistered { .. }));
    cluster.stop("job-1");
    register(&mut cluster, many("other", 1, 1_000_000), None);
    assert_eq!(
        crate::state::check::broken(&cluster.state),
        Vec::<String>::new()
    );
}

#[test]
fn a_dispatch_counts_and_its_template_does_not() {
    let mut cluster = full(10);
    let mut template = many("template", 1, 6);
    template.job_type = JobType::Batch;
    template.parameterized = Some(Parameterized {
        payload: PayloadUse::Optional,
        meta_required: Vec::new(),
        meta_optional: Vec::new(),
    });
    register(&mut cluster, template, None);
    let mut dispatch = |suffix: &str| {
        cluster.apply(Command::DispatchJob {
            key: JobKey::in_default("template"),
            suffix: suffix.to_owned(),
            payload: Vec::new(),
            meta: BTreeMap::new(),
            idempotency_token: String::new(),
            at: Timestamp(1),
        })
    };
    let first = dispatch("a");
    assert!(matches!(first, Response::JobLaunched { .. }), "{first:?}");
    let refused = why(dispatch("b"));
    assert!(refused.contains("namespace default"), "{refused}");
}

#[test]
fn going_back_to_too_many_is_refused() {
    let mut cluster = full(10);
    register(&mut cluster, many("web", 1, 10), None);
    register(&mut cluster, many("web", 1, 1), None);
    register(&mut cluster, many("other", 1, 9), None);
    let refused = why(cluster.apply(Command::RevertJob {
        key: JobKey::in_default("web"),
        version: 0,
        check_version: None,
        at: Timestamp(1),
    }));
    assert!(refused.contains("namespace default"), "{refused}");
}
