//! Commands that change the cluster's settings.

use std::sync::Arc;

use muster_domain::id::LogIndex;
use muster_domain::job::NetworkPolicy;
use muster_domain::scheduling::SchedulerConfig;
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::effect::Effect;
use super::rejection::{ConfigRejection, Rejection};
use super::response::Response;

/// A change of the cluster's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigCommand {
    /// An operator changes the scheduler's settings.
    SetScheduler {
        config: SchedulerConfig,
        /// Refuse unless they were last changed by this entry.
        check_index: Option<LogIndex>,
    },
    /// An operator changes the traffic that tasks of every node may send and receive, as long as neither job nor node
    /// sets it.
    SetClusterPolicy {
        policy: Box<NetworkPolicy>,
        /// Refuse unless it was last changed by this entry.
        check_index: Option<LogIndex>,
    },
}

impl ConfigCommand {
    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::SetScheduler { .. } => "SchedulerConfigUpdated",
            Self::SetClusterPolicy { .. } => "NetworkPolicyUpdated",
        }
    }
}

pub(super) fn apply(
    change: &mut Change<'_>,
    command: ConfigCommand,
) -> Result<Response, Rejection> {
    match command {
        ConfigCommand::SetScheduler {
            config,
            check_index,
        } => set_scheduler(change, config, check_index),
        ConfigCommand::SetClusterPolicy {
            policy,
            check_index,
        } => set_cluster_policy(change, *policy, check_index),
    }
}

fn set_scheduler(
    change: &mut Change<'_>,
    config: SchedulerConfig,
    check_index: Option<LogIndex>,
) -> Result<Response, Rejection> {
    let actual = change.state.config.modify_index;
    if let Some(expected) = check_index.filter(|expected| *expected != actual) {
        return Err(Rejection::Config(ConfigRejection::Index {
            expected,
            actual,
        }));
    }
    let row = &mut change.state.config;
    if row.create_index == LogIndex(0) {
        row.create_index = change.index;
    }
    row.modify_index = change.index;
    let is_eased = row.scheduler.preemption.is_eased_by(&config.preemption);
    row.scheduler = config;
    change.effect(Effect::DutiesDue);
    if is_eased {
        change.effect(Effect::RulesEased);
    }
    Ok(Response::Done)
}

fn set_cluster_policy(
    change: &mut Change<'_>,
    policy: NetworkPolicy,
    check_index: Option<LogIndex>,
) -> Result<Response, Rejection> {
    let index = change.index;
    let row = &mut change.state.network;
    let actual = row.modify_index;
    if let Some(expected) = check_index.filter(|expected| *expected != actual) {
        return Err(Rejection::Config(ConfigRejection::Index {
            expected,
            actual,
        }));
    }
    if row.create_index == LogIndex(0) {
        row.create_index = index;
    }
    row.modify_index = index;
    row.policy = Arc::new(policy);
    change.effect(Effect::ClusterPolicyChanged);
    Ok(Response::Done)
}
