//! Reasons for which a node cannot take an instance.

use muster_domain::id::AllocId;

/// The reason why a node cannot take an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The node takes no work.
    NotTaking {
        /// The reason, such as `down`, `ineligible` or `draining`.
        state: &'static str,
    },
    /// The node is in another pool than the job asks for.
    Pool { wanted: String, is: String },
    /// The node is in another datacenter than the job asks for.
    Datacenter { wanted: Vec<String>, is: String },
    /// The node does not meet a constraint.
    Constraint {
        /// The constraint as the job has it.
        text: String,
        /// The value of the left side on the node; `None`: the node has none.
        left: Option<String>,
        /// The value of the right side.
        right: Option<String>,
    },
    /// The named driver, volume, host network or kind of device is missing.
    Missing { what: String },
    /// The node has too little of a resource.
    Short {
        /// `cpu` (MHz), `memory` or `disk` (MiB), `cores`.
        what: &'static str,
        /// The amount that one instance needs.
        needed: u64,
        /// The amount that is free.
        free: u64,
    },
    /// A requested port is taken.
    Port {
        port: u16,
        /// The allocation that holds the port; `None`: the port is reserved on the node.
        by: Option<AllocId>,
    },
    /// The node has too few free ports or devices.
    Held {
        /// `ports` or `devices`.
        what: &'static str,
    },
    /// The job requires its instances to be apart.
    Apart {
        /// `distinct_hosts` or `distinct_property`.
        rule: &'static str,
    },
}
