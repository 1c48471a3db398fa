//! Invariants of garbage collections.
//!
//! No live object is collected, and no object is collected by age before its threshold. A finished collection has
//! reached the end of every rule.
//!
//! This module does not call the rules of `fsm/garbage/rule.rs`. It states independently which results those rules
//! must never produce.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_control_core::fsm::{Command, Entry, GcCommand, GcRule, Response};
use muster_control_core::gc::Collector;
use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::ClientStatus;
use muster_domain::id::Timestamp;
use muster_domain::job::{Job, JobStatus};
use muster_domain::node::{Node, NodeStatus};
use muster_domain::one_off::{OneOff, OneOffState};

use super::Oracle;
use crate::{InterruptedCollections, limits};

/// The history of collections.
#[derive(Debug, Default)]
pub struct Collections {
    pub freed: u64,
    /// Forced collections of which a client received the answer.
    pub forced: u64,
    /// Collection slices that continued an earlier slice.
    pub slices: u64,
    /// Collections whose leader was lost before they were over.
    pub cut_short: InterruptedCollections,
    /// For each rule, the entry with which its last forced collection began.
    begun: BTreeMap<GcRule, u64>,
    /// For each rule, the entry with which its last completed forced collection began.
    swept: BTreeMap<GcRule, u64>,
    /// For each rule, the time from which its last collection by age computes ages.
    aged_at: BTreeMap<GcRule, Timestamp>,
}

impl Oracle {
    /// Records a slice that entry `index` applied.
    pub(super) fn record_slice(&mut self, command: &Command, response: &Response, index: u64) {
        let (
            Command::Gc(GcCommand::Collect {
                rule,
                before,
                after,
                ..
            }),
            Response::Collected {
                evals,
                allocs,
                jobs,
                nodes,
                deployments,
                next,
                one_offs,
                ..
            },
        ) = (command, response)
        else {
            return;
        };
        let freed = [evals, allocs, jobs, nodes, deployments, one_offs].into_iter();
        let known = &mut self.collections;
        known.freed += freed.map(|count| u64::from(*count)).sum::<u64>();
        known.slices += u64::from(after.is_some());
        let is_forced = *before == Timestamp(u64::MAX);
        if is_forced && after.is_none() {
            known.begun.insert(*rule, index);
        }
        if is_forced
            && next.is_none()
            && let Some(begun) = known.begun.get(rule)
        {
            known.swept.insert(*rule, *begun);
        }
    }

    /// Checks a forced collection that was reported as over. `min_index` was committed at the time of the request.
    pub fn collected_by_force(&mut self, min_index: u64) {
        self.collections.forced += 1;
        for command in Collector::forced(Timestamp(0)) {
            let Command::Gc(GcCommand::Collect { rule, .. }) = command.command else {
                continue;
            };
            let swept = self.collections.swept.get(&rule).copied();
            if swept.is_none_or(|begun| begun <= min_index) {
                self.fault(&format!(
                    "a collection that was asked for after {min_index} is over, and {rule:?} were last \
                     collected to their end from {swept:?} on"
                ));
            }
        }
    }

    /// Records a collection whose leader was lost: the leader died, or it lost its leadership.
    pub fn collection_cut_short(&mut self, died: bool) {
        let is_alone = self.servers == 1;
        let cut_short = &mut self.collections.cut_short;
        match (died, is_alone) {
            (false, _) => cut_short.lost_leadership += 1,
            (true, false) => cut_short.died += 1,
            (true, true) => cut_short.died_alone += 1,
        }
    }

    /// Checks the collections by age that a leader begins. `at` is the leader's wall clock, which also stamps the
    /// rows that it proposes.
    pub fn due_by_age(&mut self, due: &[Entry], at: Timestamp) {
        for Entry {
            at: entry_at,
            command,
        } in due
        {
            if let Command::Gc(GcCommand::Collect { rule, .. }) = command
                && *entry_at != at
            {
                self.fault(&format!(
                    "a collection of {rule:?} reckons ages by {entry_at:?}, but its leader's clock says {at:?}"
                ));
            }
        }
    }

    /// Checks the objects that `entry` collected between the states `before` and `after`.
    pub fn check_collected(&mut self, entry: &Entry, before: &State, after: &State) {
        self.check_collected_by_age(entry, before, after);
        self.check_collected_unused(before, after);
    }

    fn check_collected_by_age(&mut self, entry: &Entry, before: &State, after: &State) {
        let Command::Gc(GcCommand::Collect {
            rule,
            before: cutoff,
            after: cursor,
            ..
        }) = &entry.command
        else {
            return;
        };
        let is_purge = cursor
            .as_ref()
            .is_some_and(|it| Collector::purged(it).is_some());
        if *cutoff == Timestamp(u64::MAX) || is_purge {
            return;
        }
        if cursor.is_none() {
            self.collections.aged_at.insert(*rule, entry.at);
        }
        let Some(at) = self.collections.aged_at.get(rule).copied() else {
            return;
        };
        let young: Vec<String> = aged(*rule, before, after)
            .into_iter()
            .filter(|(_, ended, threshold)| ended.plus(*threshold) >= at)
            .map(|(what, ended, threshold)| {
                format!("{what} ended at {ended:?}, less than {threshold:?} before {at:?}")
            })
            .collect();
        for what in young {
            self.fault(&format!("a collection has forgotten what is young: {what}"));
        }
    }

    fn check_collected_unused(&mut self, before: &State, after: &State) {
        let mut live: Vec<String> = Vec::new();
        let allocs = before.allocs().iter();
        for alloc in allocs.filter(|alloc| after.allocs().get(&alloc.id()).is_none()) {
            if let Some(why) = alloc_is_needed(before, after, alloc) {
                live.push(format!("allocation {} {why}", alloc.id()));
            }
        }
        let evals = before.evals().iter();
        for eval in evals.filter(|eval| after.evals().get(&eval.id).is_none()) {
            if !eval.status.is_terminal() {
                let status = eval.status.as_str();
                live.push(format!("evaluation {} is {status}", eval.id));
            }
        }
        let jobs = before.jobs().iter();
        for job in jobs.filter(|job| after.jobs().get(&job.key()).is_none()) {
            if !job_is_over(job) {
                live.push(format!("job {} is {:?}", job.key(), job.status));
            }
        }
        let deployments = before.deployments().iter();
        for row in deployments.filter(|row| after.deployments().get(&row.id).is_none()) {
            if row.status.is_active() {
                live.push(format!("deployment {} is {:?}", row.id, row.status));
            }
        }
        let nodes = before.nodes().iter();
        for node in nodes.filter(|node| after.nodes().get(&node.spec.id).is_none()) {
            if !node_is_gone(before, node) {
                live.push(format!("node {} is {:?}", node.spec.name, node.status));
            }
        }
        let one_offs = before.one_offs().iter();
        for row in one_offs.filter(|row| after.one_offs().get(&row.guid).is_none()) {
            if row.state != OneOffState::Completed || row.owes_callback() {
                live.push(format!("task {} is {:?}", row.guid, row.phase));
            }
        }
        for what in live {
            self.fault(&format!("a collection has forgotten what is live: {what}"));
        }
    }
}

/// Returns the objects that a slice collected by age, each with the time of its end and the required age.
fn aged(rule: GcRule, before: &State, after: &State) -> Vec<(String, Timestamp, Duration)> {
    let config = limits::gc_config();
    let mut gone = Vec::new();
    let of_evals = |is_batch: bool| match rule {
        GcRule::Jobs => config.job_threshold,
        _ if is_batch => config.batch_eval_threshold,
        _ => config.eval_threshold,
    };
    let evals = before.evals().iter();
    for eval in evals.filter(|eval| after.evals().get(&eval.id).is_none()) {
        let threshold = of_evals(eval.job_type.is_batch());
        let what = format!("evaluation {}", eval.id);
        gone.push((what, eval.modify_time, threshold));
    }
    let allocs = before.allocs().iter();
    for alloc in allocs.filter(|alloc| after.allocs().get(&alloc.id()).is_none()) {
        let eval = before.evals().get(&alloc.eval_id());
        let again = before.jobs().get(alloc.job_key());
        // Allocations of an earlier batch job of the same name are collected by the age of their evaluation.
        if alloc.job().spec.job_type.is_batch()
            && again.is_some_and(|job| alloc.job().create_index < job.current.create_index)
        {
            continue;
        }
        let threshold = of_evals(eval.is_some_and(|eval| eval.job_type.is_batch()));
        let what = format!("allocation {}", alloc.id());
        gone.push((what, alloc.modify_time(), threshold));
    }
    let jobs = before.jobs().iter();
    for job in jobs.filter(|job| after.jobs().get(&job.key()).is_none()) {
        let what = format!("job {}", job.key());
        gone.push((what, job.current.submit_time, config.job_threshold));
    }
    // A deployment of a collected job is removed whatever its age.
    let deployments = before.deployments().iter().filter(|_| rule != GcRule::Jobs);
    for row in deployments.filter(|row| after.deployments().get(&row.id).is_none()) {
        let what = format!("deployment {}", row.id);
        gone.push((what, row.modify_time, config.deployment_threshold));
    }
    let nodes = before.nodes().iter();
    for node in nodes.filter(|node| after.nodes().get(&node.spec.id).is_none()) {
        let what = format!("node {}", node.spec.name);
        gone.push((what, node.status_at, config.node_threshold));
    }
    gone
}

/// Returns the reason why an allocation may not be collected, if there is one.
fn alloc_is_needed(before: &State, after: &State, alloc: AllocView<'_>) -> Option<String> {
    let status = alloc.client_status();
    let may_run = match status {
        ClientStatus::Running | ClientStatus::Unknown => {
            before.nodes().get(&alloc.node_id()).is_some()
        }
        ClientStatus::Pending
        | ClientStatus::Complete
        | ClientStatus::Failed
        | ClientStatus::Lost => false,
    };
    let task = before.one_offs().get(&alloc.job_key().job_id);
    let runs_it =
        |row: &Arc<OneOff>| row.alloc_id == Some(alloc.id()) && row.state == OneOffState::Running;
    if alloc.job_key().is_one_off() && task.is_some_and(runs_it) {
        return Some("is a one-off task's that has not ended".to_owned());
    }
    let job = after.jobs().get(alloc.job_key());
    let is_batch = alloc.job().spec.job_type.is_batch();
    let is_earlier = |job: &Job| alloc.job().create_index < job.current.create_index;
    // Allocations of a batch job that was purged and registered again are collected once their desired status is
    // stop, as in Nomad.
    let is_left = is_batch && job.is_some_and(|job| is_earlier(job));
    if !alloc.is_terminal() || (may_run && !is_left) {
        let desired = alloc.desired().as_str();
        return Some(format!("is {} and told to {desired}", status.as_str()));
    }
    let is_result = is_batch && job.is_some_and(|job| !job.stop && !is_earlier(job));
    is_result.then(|| "is the result of a batch job".to_owned())
}

fn job_is_over(job: &Job) -> bool {
    job.status == JobStatus::Dead && (job.stop || job.current.spec.job_type.is_batch())
}

fn node_is_gone(before: &State, node: &Node) -> bool {
    let mut allocs = before.allocs_on(&node.spec.id);
    node.status == NodeStatus::Down && allocs.all(AllocView::is_terminal)
}
