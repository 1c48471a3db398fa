//! Leaders that die in the middle of a collection of garbage.
//!
//! The load is many slices; the leader is dropped as soon as it has applied some of them. Where the others were faster
//! than that, it is tried again.

use std::time::Duration;

use muster_control_core::fsm::{AllocCommand, JobCommand, NodeCommand};
use muster_control_core::gc::GcConfig;
use muster_control_core::limits::GC_SLICE_MAX;
use muster_control_core::state::{AllocView, State, check};
use muster_domain::alloc::{AllocReport, ClientStatus};
use muster_domain::fixture;
use muster_domain::id::{JobKey, NodeId};
use muster_domain::job::JobType;
use muster_domain::node::NodeStatus;
use serde_json::{Value, json};

use super::{Cluster, Member, leader};
use crate::fixture::{soon, until};
use crate::http::Client;

const NODES: u32 = 8;
const JOBS: u32 = 16;
/// Instances of a job. All of them together are this many slices.
const COUNT: u32 = 2_048;
/// The job that runs and stays.
const LIVES: &str = "lives";
/// A slice takes some milliseconds, and a machine that has much to do may let this test sleep for longer than all.
const TRIES: u32 = 8;

/// Three servers to whose nodes nobody listens.
async fn three() -> (Cluster, Vec<Member>) {
    let cluster = Cluster::new();
    let mut members: Vec<Member> = Vec::new();
    for name in ["s1", "s2", "s3"] {
        let first: Vec<&Member> = members.first().into_iter().collect();
        let mut config = cluster.config(name, 3, &first);
        config.heartbeat_grace = Duration::from_hours(1);
        members.push(Member::start(config).await);
    }
    for member in &members {
        member.until_voters(3).await;
    }
    (cluster, members)
}

impl Member {
    async fn until(&self, what: &str, wanted: impl Fn(&State) -> bool) -> State {
        let what = format!("{}: {what}", self.name());
        until(self.control(), &what, wanted).await
    }

    async fn place(&self, job_id: &str, count: u32) {
        let spec = fixture::job(job_id).job_type(JobType::Batch).count(count);
        let mut spec = spec.cpu_mhz(1).memory_mb(1).build();
        spec.groups[0].update = None;
        let command = JobCommand::Register {
            spec: Box::new(spec),
            check_index: None,
            places: None,
        }
        .at(self.control().now());
        self.control().propose(command).await.unwrap();
        let key = JobKey::in_default(job_id);
        self.until("all instances are placed", |state| {
            state.allocs().live_of_job(&key) == count
        })
        .await;
    }

    /// Has jobs placed and all their instances reported complete, but that of [`LIVES`].
    async fn load(&self) {
        for number in 0..NODES {
            let spec = fixture::node(&format!("n{number}"));
            let spec = spec.cpu_mhz(100_000_000).memory_mb(100_000_000).build();
            let (node_id, at) = (spec.id, self.control().now());
            let spec = Box::new(spec);
            let ready = NodeCommand::SetStatus {
                node_id,
                status: NodeStatus::Ready,
            }
            .at(at);
            for command in [NodeCommand::Register { spec }.at(at), ready] {
                self.control().propose(command).await.unwrap();
            }
        }
        self.place(LIVES, 1).await;
        for number in 0..JOBS {
            self.place(&format!("dead-{number}"), COUNT).await;
        }
        let state = self.control().state();
        for node in state.nodes().iter() {
            let node_id = node.spec.id;
            let reports = vec![(node_id, completed(&state, &node_id))];
            let at = self.control().now();
            let command = AllocCommand::Report { reports }.at(at);
            self.control().propose(command).await.unwrap();
        }
        self.until("all evaluations are done", |state| {
            state.evals().pending().next().is_none()
        })
        .await;
    }

    /// Waits until it has applied a few slices.
    async fn until_in_the_middle(&self) {
        let all = (JOBS * COUNT) as usize;
        self.until("some slices are applied", |state| {
            state.allocs().len() <= all - 3 * GC_SLICE_MAX
        })
        .await;
    }
}

fn completed(state: &State, node_id: &NodeId) -> Vec<AllocReport> {
    let lives = JobKey::in_default(LIVES);
    let dead = |alloc: &AllocView<'_>| **alloc.job_key() != lives;
    let ended = |alloc: AllocView<'_>| AllocReport {
        alloc_id: alloc.id(),
        client_status: ClientStatus::Complete,
        client_description: String::new(),
        task_states: Vec::new(),
        healthy: None,
        end: None,
        remote: Vec::new(),
    };
    state.allocs_on(node_id).filter(dead).map(ended).collect()
}

/// By kind, in the order of a report: what it says was freed, or would be.
fn freed(report: &Value) -> Vec<(String, u64)> {
    let kinds = report["State"].as_array().unwrap().iter();
    let freed = kinds.map(|kind| {
        let name = kind["Kind"].as_str().unwrap().to_owned();
        (name, kind["Freed"].as_u64().unwrap())
    });
    freed.collect()
}

fn count(freed: &[(String, u64)], kind: &str) -> u64 {
    let found = freed.iter().find(|(name, _)| name == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {freed:?}")).1
}

async fn collect_on(member: &Member, flag: &str) -> Vec<(String, u64)> {
    let path = format!("/v1/system/gc?{flag}=true");
    let answer = Client::new(&member.server).put(&path, &json!({})).await;
    freed(&answer.json())
}

/// On every server what lives is left, and nothing else; all references hold, and all say the same.
async fn assert_only_the_living_are_left(members: &[Member]) {
    let newest = *members[leader(members).await].control().applied().borrow();
    let mut hashes = Vec::new();
    for member in members {
        let state = member
            .until("it has applied all", |state| state.applied() >= newest)
            .await;
        let left = [
            state.jobs().len(),
            state.evals().len(),
            state.allocs().len(),
        ];
        assert_eq!(left, [1, 1, 1], "{}", member.name());
        assert_eq!(check::broken(&state), Vec::<String>::new());
        hashes.push(state.hash().whole());
    }
    assert_eq!(hashes, vec![hashes[0]; members.len()]);
}

/// Tries until a leader died in the middle.
async fn in_time(dies: impl AsyncFn() -> bool) {
    for _ in 0..TRIES {
        if Box::pin(dies()).await {
            return;
        }
    }
    panic!("the collection was over each time before its leader died");
}

/// A client asks a follower for a collection and the leader dies. The client gets a refusal that says the collection
/// was not done. When it asks again, the next leader frees exactly the rest.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_gc_request_finishes_after_leader_crash() {
    in_time(a_leader_dies_when_asked).await;
}

/// Whether it died in the middle.
async fn a_leader_dies_when_asked() -> bool {
    let (_cluster, mut members) = Box::pin(three()).await;
    let at = leader(&members).await;
    members[at].load().await;
    let all = collect_on(&members[at], "dry_run").await;
    assert_eq!(count(&all, "allocations"), u64::from(JOBS * COUNT));
    let dying = members.remove(at);
    let client = Client::new(&members[0].server);
    let asked =
        tokio::spawn(async move { client.put("/v1/system/gc?wait=true", &json!({})).await });

    dying.until_in_the_middle().await;
    let config = dying.crash();
    let answer = soon("an answer", asked).await.unwrap();
    let next = leader(&members).await;
    let left = collect_on(&members[next], "dry_run").await;
    let allocs = count(&left, "allocations");
    if allocs == 0 {
        return false;
    }
    let rest = collect_on(&members[1 - next], "wait").await;

    assert_eq!(answer.status, 504, "{answer:?}");
    assert!(answer.text.contains("it is not known"), "{answer:?}");
    assert!(allocs < u64::from(JOBS * COUNT), "{left:?}");
    assert_eq!(rest, left);
    members.push(Member::start(config).await);
    assert_only_the_living_are_left(&members).await;
    true
}

/// The same of a collection whose time has come: the next leader needs nobody who asks.
#[tokio::test(flavor = "multi_thread")]
async fn age_based_gc_continues_at_next_leader() {
    in_time(a_leader_dies_by_age).await;
}

/// Whether it died in the middle.
async fn a_leader_dies_by_age() -> bool {
    let (_cluster, members) = Box::pin(three()).await;
    members[leader(&members).await].load().await;
    let mut configs = Vec::new();
    for member in members {
        configs.push(member.stop().await);
    }
    let mut members = Vec::new();
    for mut config in configs {
        // The first collection comes that long after a server began to lead: late enough for this test to watch.
        let (interval, threshold) = (Duration::from_secs(5), Duration::ZERO);
        config.gc = GcConfig {
            eval_interval: interval,
            job_interval: interval,
            job_threshold: threshold,
            eval_threshold: threshold,
            batch_eval_threshold: threshold,
            ..GcConfig::default()
        };
        members.push(Member::start(config).await);
    }
    let at = leader(&members).await;
    let dying = members.remove(at);

    dying.until_in_the_middle().await;
    let config = dying.crash();
    let next = leader(&members).await;
    let left = members[next].control().state().allocs().len();
    for member in &members {
        member
            .until("the rest goes", |state| state.allocs().len() == 1)
            .await;
    }

    members.push(Member::start(config).await);
    assert_only_the_living_are_left(&members).await;
    left > 1
}
