//! HTTP bodies, with Nomad's field names. One file per noun.
//!
//! Two directions with two manners. What comes *in* is read field by field by `block`, so that every
//! unknown, unsupported or mistyped field is named with its path. What goes *out* is a struct per shape;
//! the same structs read answers back in our own command line and skip what they do not know.
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

use route::Route;

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
