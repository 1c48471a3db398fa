//! Reasons for which a node cannot take an instance.

use muster_domain::id::AllocId;

/// The reason why a node cannot take an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The node takes no work: what it is instead.
    NotTaking {
        /// Such as `down`, `ineligible` or `draining`.
        state: &'static str,
    },
    /// It is in another pool than the job asks for.
    Pool { wanted: String, is: String },
    /// It is in another datacenter than the job asks for.
    Datacenter { wanted: Vec<String>, is: String },
    /// It does not meet a constraint.
    Constraint {
        /// The constraint as the job says it.
        text: String,
        /// The value of the left side on the node; `None`: it has none.
        left: Option<String>,
        /// The value of the right side.
        right: Option<String>,
    },
    /// A driver, volume, host network or kind of device is missing: which.
    Missing { what: String },
    /// There is too little of something.
    Short {
        /// `cpu` (MHz), `memory` or `disk` (MiB), `cores`.
        what: &'static str,
        /// The amount that one instance needs.
        needed: u64,
        /// The amount that is free.
        free: u64,
    },
    /// A port that it asks for is taken.
    Port {
        port: u16,
        /// The allocation that holds it; `None`: it is kept from tasks.
        by: Option<AllocId>,
    },
    /// Too few free ports or devices that it asks for.
    Held {
        /// `ports` or `devices`.
        what: &'static str,
    },
    /// The job wants its instances apart.
    Apart {
        /// `distinct_hosts` or `distinct_property`.
        rule: &'static str,
    },
}
