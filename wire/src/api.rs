//! HTTP bodies, with Nomad's field names. One file per noun.
//!
//! This file registers a noun: its module, its routes in [`routes`], its [`Topic`] of events and the [`Payload`].
//!
//! Requests are read field by field by `block`, so each unknown, unsupported or mistyped field is reported with its
//! path. Responses are structs, one per shape. Our command line parses responses with the same structs and ignores
//! unknown fields.
//!
//! Conventions of all shapes: durations are whole nanoseconds, an empty list or map is `null`, points in
//! time are nanoseconds since the epoch (`SubmitTime`, `CreateTime`) or RFC 3339 texts (`StartedAt`).
//!
//! Deliberately absent: routes' behaviour, status codes and headers. They are in `control::http`.

pub mod agent;
pub mod alloc;
mod block;
pub mod deployment;
pub mod diff;
pub mod duration;
pub mod eval;
pub mod event;
pub mod exec;
pub mod history;
pub mod job;
pub mod logs;
pub mod network;
pub mod node;
pub mod null;
pub mod operator;
pub mod policy;
mod read_error;
pub mod resources;
pub mod route;
pub mod search;
pub mod stats;
pub mod task;
pub mod time;
pub mod why;

use serde::{Deserialize, Serialize};

use alloc::Allocation;
use deployment::Deployment;
use eval::Evaluation;
use event::ServerHealthChange;
use job::Job;
use node::Node;
use operator::{GcRound, NodeGcRound};
use route::Route;
use task::Task;

/// Every route, by noun.
pub fn routes() -> impl Iterator<Item = &'static Route> {
    let nouns = [
        job::ROUTES,
        eval::ROUTES,
        alloc::ROUTES,
        node::ROUTES,
        deployment::ROUTES,
        task::ROUTES,
        stats::ROUTES,
        history::ROUTES,
        network::ROUTES,
        exec::ROUTES,
        logs::ROUTES,
        agent::ROUTES,
        operator::ROUTES,
        search::ROUTES,
        event::ROUTES,
    ];
    nouns.into_iter().flatten()
}

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Topic {
    Job,
    Allocation,
    Evaluation,
    Node,
    Deployment,
    /// Reserved: there are no services yet.
    Service,
    /// One-off tasks. Nomad has no such topic.
    Task,
    /// Collections of garbage: on servers by rule, on nodes by node. Nomad has no such topic.
    GarbageCollection,
    /// Health of servers. Nomad has no such topic.
    Server,
}

muster_domain::text_enum!(pub Topic: "topic" {
    Job => "Job",
    Allocation => "Allocation",
    Evaluation => "Evaluation",
    Node => "Node",
    Deployment => "Deployment",
    Service => "Service",
    Task => "Task",
    GarbageCollection => "GarbageCollection",
    Server => "Server",
});

/// The row, under the name of its topic. A deleted row is `null`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Payload {
    Job(Option<Box<Job>>),
    /// An allocation without its job, which has events of its own.
    Allocation(Box<Allocation>),
    Evaluation(Box<Evaluation>),
    Node(Option<Box<Node>>),
    Deployment(Box<Deployment>),
    Task(Option<Box<Task>>),
    GarbageCollection(Box<GcRound>),
    /// An event of type `NodeGarbageCollected`, also of the topic `GarbageCollection`.
    NodeGarbageCollection(Box<NodeGcRound>),
    Server(Box<ServerHealthChange>),
}
