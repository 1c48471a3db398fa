//! Users: programs that register, update and stop jobs, and read. A client has one request under way at a time. If no
//! answer comes, it repeats the request under the same key and asks a different server each time.

use std::time::Duration;

use muster_control_core::fsm::{DeploymentChange, NewOneOff, OneOffChange, OneOffStep};
use muster_domain::fixture;
use muster_domain::id::{DeploymentId, JobKey, NodeId, Timestamp, WriteKey};
use muster_domain::job::{JobSpec, JobType, UpdateStrategy};
use muster_domain::node::Eligibility;

use crate::env::{Env, Event};
use crate::limits;
use crate::message::{Answer, Ask, ClientRequest, Endpoint, Message};
use crate::rng::SimRng;

#[derive(Debug)]
struct Request {
    number: u64,
    ask: Ask,
    /// The least index that a read must see, or after which a collection must begin. It was acknowledged or committed
    /// when the request began.
    min_index: u64,
    tries: u32,
    until: Timestamp,
}

/// A client that sends one request after the other.
#[derive(Debug)]
pub struct Client {
    at: usize,
    next: u64,
    request: Option<Request>,
    /// The deployments that were active at the client's last read.
    deployments: Vec<DeploymentId>,
}

impl Client {
    /// Creates a client without a request.
    #[must_use]
    pub fn new(at: usize) -> Self {
        Self {
            at,
            next: 0,
            request: None,
            deployments: Vec::new(),
        }
    }

    /// Whether the client waits for an answer.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.request.is_some()
    }

    /// Sends a new request, or repeats the request that is under way.
    pub fn act(&mut self, nodes: &[NodeId], env: &mut Env) {
        let client = self.at;
        match &mut self.request {
            Some(request) if request.until > env.now => {
                env.at(request.until, Event::Client(client));
            }
            Some(request) if request.tries >= limits::CLIENT_TRIES_MAX => {
                env.trace_line(format_args!("client {client} gives up"));
                self.request = None;
                env.after(100, 1_000, Event::Client(client));
            }
            Some(_) => self.send(env),
            None if env.is_calm => {}
            None => {
                self.next += 1;
                let ask = self.choose(nodes, &mut env.rng);
                let min_index = match ask {
                    Ask::Collect => env.oracle.committed_index(),
                    Ask::Write { .. } | Ask::ReadLinearizable => env.oracle.acknowledged(),
                };
                self.request = Some(Request {
                    number: self.next,
                    ask,
                    min_index,
                    tries: 0,
                    until: env.now,
                });
                self.send(env);
            }
        }
    }

    fn send(&mut self, env: &mut Env) {
        let Some(request) = &mut self.request else {
            return;
        };
        request.tries += 1;
        request.until = env.now.plus(limits::CLIENT_WAIT);
        let server = env.rng.below(env.oracle.servers());
        let message = Message::Ask {
            request: request.number,
            ask: request.ask.clone(),
        };
        env.at(request.until, Event::Client(self.at));
        env.send(Endpoint::Client(self.at), Endpoint::Server(server), message);
    }

    /// Handles the answer of a server.
    pub fn handle_answer(&mut self, number: u64, answer: Answer, env: &mut Env) {
        let client = self.at;
        let Some(request) = self.request.as_mut().filter(|r| r.number == number) else {
            return;
        };
        match (&request.ask, answer) {
            (_, Answer::Unavailable) => {
                request.until = env.now.plus(env.rng.millis(50, 500));
                env.at(request.until, Event::Client(client));
            }
            (Ask::Write { key, .. }, Answer::Written { index, response }) => {
                env.oracle.acknowledge(key, index, &response);
                self.request = None;
                env.after(10, 4_000, Event::Client(client));
            }
            (Ask::ReadLinearizable, Answer::Read { index, deployments }) => {
                env.oracle.read(request.min_index, index);
                self.deployments = deployments;
                self.request = None;
                env.after(5, 400, Event::Client(client));
            }
            (Ask::Collect, Answer::Collected) => {
                env.oracle.collected_by_force(request.min_index);
                self.request = None;
                env.after(10, 4_000, Event::Client(client));
            }
            (_, answer) => env
                .oracle
                .fault(&format!("client {client} got the wrong answer {answer:?}")),
        }
    }

    fn choose(&self, nodes: &[NodeId], rng: &mut SimRng) -> Ask {
        if rng.chance(60) {
            return Ask::ReadLinearizable;
        }
        let deployment = rng.pick(&self.deployments).copied();
        let wish = match rng.below(34) {
            0..=9 => ClientRequest::Register(Box::new(job(rng))),
            10..=12 => ClientRequest::Deregister {
                key: some_job(rng),
                purge: rng.chance(25),
            },
            13..=15 => ClientRequest::Evaluate(some_job(rng)),
            20..=22 => ClientRequest::Desire(Box::new(task(rng))),
            23..=25 => ClientRequest::Task(step(rng)),
            26..=27 => return Ask::Collect,
            28..=33 if let Some(id) = deployment => ClientRequest::Deployment(id, change(rng)),
            _ => ClientRequest::SetEligibility {
                node_id: rng.pick(nodes).copied().unwrap_or(NodeId([0; 16])),
                eligibility: if rng.chance(75) {
                    Eligibility::Eligible
                } else {
                    Eligibility::Ineligible
                },
            },
        };
        let text = format!("{}-{}", self.at, self.next);
        let key = WriteKey::new(text).expect("the key is short");
        Ask::Write { key, wish }
    }
}

fn guid(rng: &mut SimRng) -> String {
    format!("task-{}", rng.below(4))
}

fn task(rng: &mut SimRng) -> NewOneOff {
    let mut definition = fixture::definition();
    definition.start_timeout_ms = u64::from(rng.between(5, 60)) * 1_000;
    definition.retention_ms = u64::from(rng.between(5, 30)) * 1_000;
    if rng.chance(40) {
        definition.completion_callback_url = format!("http://endpoint-{}/", rng.below(2));
    }
    definition.memory_mb = i32::try_from(rng.between(1, 8) * 64).unwrap_or(64);
    NewOneOff {
        guid: guid(rng),
        domain: "apps".to_owned(),
        definition,
    }
}

/// Returns a change of a deployment. A promotion is refused unless the deployment waits for it.
fn change(rng: &mut SimRng) -> DeploymentChange {
    match rng.below(10) {
        0 => DeploymentChange::Fail,
        1 => DeploymentChange::Pause,
        2..=3 => DeploymentChange::Resume,
        _ => DeploymentChange::Promote(None),
    }
}

fn step(rng: &mut SimRng) -> OneOffChange {
    let step = match rng.below(4) {
        0 => OneOffStep::Cancel,
        // The claim ends either immediately or not before the end of the storm.
        1 => OneOffStep::Claim {
            until: Timestamp(u64::from(rng.between(0, 1)) * (u64::MAX >> 1)),
            for_callback: false,
        },
        2 => OneOffStep::Resolve,
        _ => OneOffStep::Delete { claim: None },
    };
    OneOffChange {
        guid: guid(rng),
        generation: None,
        step,
    }
}

/// Returns the name and the type of a job. The name contains the type, so that a job keeps its type.
fn name(rng: &mut SimRng) -> (String, JobType) {
    if rng.chance(35) {
        (format!("batch-{}", rng.below(3)), JobType::Batch)
    } else {
        (format!("web-{}", rng.below(5)), JobType::Service)
    }
}

fn some_job(rng: &mut SimRng) -> JobKey {
    let (name, kind) = name(rng);
    fixture::job(&name).job_type(kind).build().key()
}

fn job(rng: &mut SimRng) -> JobSpec {
    let (name, kind) = name(rng);
    let mut job = fixture::job(&name)
        .job_type(kind)
        .count(rng.between(0, 6))
        .cpu_mhz(rng.between(1, 8) * 100)
        .memory_mb(rng.between(1, 8) * 64);
    if rng.chance(20) {
        job = job.dynamic_port("http");
    }
    if rng.chance(10) {
        job = job.port("fixed", 8_080);
    }
    if rng.chance(20) {
        job = job.constraint("${attr.zone}", "=", "a");
    }
    let mut spec = job.build();
    spec.priority = u8::try_from(rng.between(1, 100)).unwrap_or(50);
    for group in &mut spec.groups {
        group.restart.attempts = rng.between(0, 2);
        group.restart.delay = rng.millis(500, 8_000);
        if kind == JobType::Service && rng.chance(60) {
            group.update = Some(update(rng));
        }
    }
    spec
}

/// Returns a rolling update. It is so fast that a deployment can end before the job's next version.
fn update(rng: &mut SimRng) -> UpdateStrategy {
    let healthy_deadline = rng.millis(4_000, 12_000);
    let canary = if rng.chance(40) { rng.between(1, 2) } else { 0 };
    UpdateStrategy {
        max_parallel: rng.between(1, 3),
        min_healthy_time: rng.millis(100, 3_000),
        healthy_deadline,
        progress_deadline: if rng.chance(30) {
            Duration::ZERO
        } else {
            healthy_deadline + rng.millis(1_000, 15_000)
        },
        auto_revert: rng.chance(60),
        auto_promote: canary > 0 && rng.chance(30),
        canary,
        ..UpdateStrategy::default()
    }
}
