//! The maximum number of instances of a job and of a namespace.

use muster_domain::job::{JobSpec, Parameterized, PayloadUse, ScalingEvent};
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

/// Returns a namespace whose jobs want as many instances as they may, less `room`.
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
    let scale = |count| {
        JobCommand::ScaleGroup {
            key: JobKey::in_default("web"),
            scaling: Box::new(GroupScaling {
                group: job("web").build().groups[0].name.clone(),
                count: Some(count),
                ..GroupScaling::default()
            }),
            check_index: None,
        }
        .at(Timestamp(1))
    };
    let refused = why(cluster.apply(scale(11)));
    assert!(refused.contains("namespace default"), "{refused}");
    // Fewer instances are always allowed, and make room.
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
        cluster.apply(
            JobCommand::Dispatch {
                key: JobKey::in_default("template"),
                suffix: suffix.to_owned(),
                payload: Vec::new(),
                meta: BTreeMap::new(),
                idempotency_token: String::new(),
                priority: None,
            }
            .at(Timestamp(1)),
        )
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
    let refused = why(cluster.apply(
        JobCommand::Revert {
            key: JobKey::in_default("web"),
            version: 0,
            check_version: None,
        }
        .at(Timestamp(1)),
    ));
    assert!(refused.contains("namespace default"), "{refused}");
}

fn dispatch_at(cluster: &mut Cluster, suffix: &str, priority: Option<u8>) -> Response {
    let (key, suffix) = (JobKey::in_default("template"), suffix.to_owned());
    let (payload, meta, idempotency_token) = (Vec::new(), BTreeMap::new(), String::new());
    let at = Timestamp(1);
    cluster.apply(
        JobCommand::Dispatch {
            key,
            suffix,
            payload,
            meta,
            idempotency_token,
            priority,
        }
        .at(at),
    )
}

#[test]
fn a_dispatch_may_have_its_own_priority() {
    let mut cluster = Cluster::new();
    let mut template = many("template", 1, 1);
    template.job_type = JobType::Batch;
    template.priority = 30;
    template.parameterized = Some(Parameterized {
        payload: PayloadUse::Optional,
        meta_required: Vec::new(),
        meta_optional: Vec::new(),
    });
    register(&mut cluster, template, None);

    for (suffix, priority, expected) in [("a", None, 30), ("b", Some(70), 70)] {
        let Response::JobLaunched { job_id, eval_id } = dispatch_at(&mut cluster, suffix, priority)
        else {
            panic!("{priority:?}")
        };
        let job = cluster.state.jobs().get(&JobKey::in_default(job_id));
        assert_eq!(job.unwrap().current.spec.priority, expected);
        let eval = cluster.state.evals().get(&eval_id.unwrap());
        assert_eq!(eval.unwrap().priority, expected);
    }
    let refused = why(dispatch_at(&mut cluster, "c", Some(101)));
    assert!(refused.contains("outside 1 to 100"), "{refused}");
}

/// An action of `count`, or an event without one.
fn scale_group(cluster: &mut Cluster, count: Option<u32>, message: &str) -> Response {
    cluster.apply(
        JobCommand::ScaleGroup {
            key: JobKey::in_default("web"),
            scaling: Box::new(GroupScaling {
                group: job("web").build().groups[0].name.clone(),
                count,
                error: count.is_none(),
                message: message.to_owned(),
                meta_json: String::new(),
            }),
            check_index: None,
        }
        .at(Timestamp(1)),
    )
}

fn scaling_events(cluster: &Cluster) -> Vec<ScalingEvent> {
    let job = cluster
        .state
        .jobs()
        .get(&JobKey::in_default("web"))
        .unwrap();
    let group = &job.current.spec.groups[0].name;
    job.scaling_events.get(group).cloned().unwrap_or_default()
}

#[test]
fn scaling_is_recorded_newest_first() {
    let mut cluster = Cluster::new();
    register(&mut cluster, many("web", 1, 1), None);

    scale_group(&mut cluster, Some(3), "more load");
    let before = cluster.state.jobs().versions(&JobKey::in_default("web"));
    scale_group(&mut cluster, None, "no metrics");
    let refused = why(scale_group(&mut cluster, Some(u32::MAX), "too many"));

    assert!(refused.contains("is above"), "{refused}");
    let events = scaling_events(&cluster);
    let shown: Vec<_> = events
        .iter()
        .map(|event| {
            let has_eval = event.eval_id.is_some();
            (event.count, event.previous_count, event.error, has_eval)
        })
        .collect();
    assert_eq!(
        shown,
        [(None, 3, true, false), (Some(3), 1, false, true)],
        "a refused action is not recorded"
    );
    assert_eq!(events[0].message, "no metrics");
    let after = cluster.state.jobs().versions(&JobKey::in_default("web"));
    assert_eq!(before.len(), after.len(), "an event makes no version");

    for number in 0..30 {
        scale_group(&mut cluster, None, &format!("event {number}"));
    }
    let events = scaling_events(&cluster);
    assert_eq!(events.len(), limits::SCALING_EVENTS_MAX);
    assert_eq!(events[0].message, "event 29");
    assert_eq!(
        crate::state::check::broken(&cluster.state),
        Vec::<String>::new()
    );
}

#[test]
fn scaling_events_outlive_versions_until_group_removal() {
    let mut cluster = Cluster::new();
    let spec = many("web", 1, 1);
    register(&mut cluster, spec.clone(), None);
    scale_group(&mut cluster, Some(3), "more load");
    register(&mut cluster, spec.clone(), None);
    assert_eq!(scaling_events(&cluster).len(), 1);

    let mut renamed = spec;
    renamed.groups[0].name = "other".to_owned();
    register(&mut cluster, renamed, None);
    cluster.apply(
        JobCommand::ScaleGroup {
            key: JobKey::in_default("web"),
            scaling: Box::new(GroupScaling {
                group: "other".to_owned(),
                count: Some(2),
                error: false,
                message: String::new(),
                meta_json: String::new(),
            }),
            check_index: None,
        }
        .at(Timestamp(1)),
    );

    let job = cluster.state.jobs().get(&JobKey::in_default("web"));
    let groups: Vec<_> = job.unwrap().scaling_events.keys().cloned().collect();
    assert_eq!(groups, ["other"]);
}
