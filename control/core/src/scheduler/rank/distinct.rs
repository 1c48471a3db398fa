//! Nodes (`distinct_hosts`) and values (`distinct_property`) that instances must not share.

use muster_domain::job::{Constraint, JobSpec, Operand, TaskGroup};

use super::values::Values;

/// No other instance of the job, or of the group, on the same node.
pub(super) const HOSTS: &str = "distinct_hosts";
/// A limited number of instances with the same value.
pub(super) const PROPERTY: &str = "distinct_property";

/// Whether instances need separate nodes, and from which other instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostRule {
    Shared,
    /// Separate from other instances of their group.
    OwnInGroup,
    /// Separate from other instances of their job.
    OwnInJob,
}

impl HostRule {
    pub(super) fn of(job: &JobSpec, group: &TaskGroup) -> Self {
        // `distinct_hosts = false` switches the rule off.
        let wants = |constraint: &Constraint| {
            constraint.operand == Operand::DistinctHosts && constraint.right != "false"
        };
        if job.constraints.iter().any(wants) {
            Self::OwnInJob
        } else if of_group(group).any(wants) {
            Self::OwnInGroup
        } else {
            Self::Shared
        }
    }

    /// Returns whether a node with so many instances of the group and of the job may get one more.
    pub(super) fn allow(self, of_group: u32, of_job: u32) -> bool {
        match self {
            Self::Shared => true,
            Self::OwnInGroup => of_group == 0,
            Self::OwnInJob => of_job == 0,
        }
    }
}

fn of_group(group: &TaskGroup) -> impl Iterator<Item = &Constraint> {
    let tasks = group.tasks.iter().flat_map(|task| &task.constraints);
    group.constraints.iter().chain(tasks)
}

/// A limit on the number of instances on nodes with the same value.
#[derive(Debug)]
pub(super) struct PropertyRule<'a> {
    pub(super) attribute: &'a str,
    /// Whether the rule holds for the whole job, not for the group.
    pub(super) of_job: bool,
    max: u32,
    pub(super) values: Values,
    used: Vec<u32>,
}

/// The properties that instances of `group` must not share.
pub(super) fn properties<'a>(job: &'a JobSpec, group: &'a TaskGroup) -> Vec<PropertyRule<'a>> {
    let of_job = job.constraints.iter().map(|constraint| (constraint, true));
    let of_group = of_group(group).map(|constraint| (constraint, false));
    let mut properties: Vec<PropertyRule<'_>> = Vec::new();
    for (constraint, of_job) in of_job.chain(of_group) {
        if constraint.operand == Operand::DistinctProperty {
            properties.push(PropertyRule {
                attribute: &constraint.left,
                of_job,
                max: constraint.right.parse().unwrap_or(1),
                values: Values::of(&constraint.left),
                used: Vec::new(),
            });
        }
    }
    properties
}

impl PropertyRule<'_> {
    /// Prepares the counts after all candidates are known: nothing is used yet.
    pub(super) fn ready(&mut self) {
        self.used = vec![0; self.values.names.len()];
    }

    /// Counts an instance that came to a node with this value, or left it. Returns whether other nodes with the value
    /// are allowed or refused because of that.
    pub(super) fn count(&mut self, value: Option<u32>, by: i32) -> bool {
        let Some(value) = value else { return false };
        let used = &mut self.used[value as usize];
        let was_full = *used >= self.max;
        *used = used.saturating_add_signed(by);
        was_full != (*used >= self.max)
    }

    /// Returns whether the candidate at this position may get one more instance. A node without the value is refused.
    pub(super) fn allows(&self, at: usize) -> bool {
        self.values.of[at].is_some_and(|value| self.used[value as usize] < self.max)
    }
}
