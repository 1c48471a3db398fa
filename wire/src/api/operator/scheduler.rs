//! Settings of the scheduler.

use muster_domain::id::LogIndex;
use muster_domain::scheduling as domain;
use muster_domain::scheduling::Algorithm;
use serde::{Deserialize, Serialize};

use crate::api::block::{self, Block, FieldNames};
use crate::api::read_error::ReadJobError;

/// The answer to `GET /v1/operator/scheduler/configuration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SchedulerResponse {
    pub scheduler_config: SchedulerConfig,
    pub index: u64,
    pub last_contact: u64,
    pub known_leader: bool,
}

/// The settings of the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SchedulerConfig {
    /// `binpack` or `spread`.
    pub scheduler_algorithm: String,
    pub preemption_config: PreemptionConfig,
    pub memory_oversubscription_enabled: bool,
    pub reject_job_registration: bool,
    /// Look at no evaluations.
    pub pause_eval_broker: bool,
    /// 0 while these are the defaults.
    pub create_index: u64,
    pub modify_index: u64,
}

/// The job types that may preempt others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "the shape is Nomad's")]
pub struct PreemptionConfig {
    pub system_scheduler_enabled: bool,
    pub sys_batch_scheduler_enabled: bool,
    pub batch_scheduler_enabled: bool,
    pub service_scheduler_enabled: bool,
}

impl SchedulerConfig {
    /// `config`, first written by `created` and last by `modified`.
    #[must_use]
    pub fn new(config: domain::SchedulerConfig, created: LogIndex, modified: LogIndex) -> Self {
        let domain::SchedulerConfig {
            algorithm,
            preemption:
                domain::PreemptionConfig {
                    system,
                    sysbatch,
                    batch,
                    service,
                },
            memory_oversubscription,
            reject_job_registration,
            pause_broker,
        } = config;
        Self {
            scheduler_algorithm: algorithm.as_str().to_owned(),
            preemption_config: PreemptionConfig {
                system_scheduler_enabled: system,
                sys_batch_scheduler_enabled: sysbatch,
                batch_scheduler_enabled: batch,
                service_scheduler_enabled: service,
            },
            memory_oversubscription_enabled: memory_oversubscription,
            reject_job_registration,
            pause_eval_broker: pause_broker,
            create_index: created.0,
            modify_index: modified.0,
        }
    }
}

/// The answer to `PUT /v1/operator/scheduler/configuration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SchedulerSetResponse {
    /// False if the settings were changed since the index that `?cas=` names.
    pub updated: bool,
    pub index: u64,
}

/// The settings in the body of `PUT /v1/operator/scheduler/configuration`. They replace all current settings, so
/// omitted settings are off, as in Nomad.
///
/// # Errors
///
/// [`ReadJobError`] for malformed bodies and for an unknown algorithm.
pub fn read_scheduler(body: &[u8]) -> Result<domain::SchedulerConfig, ReadJobError> {
    const KNOWN: FieldNames = FieldNames {
        derived: &["CreateIndex", "ModifyIndex"],
        harmless: &[],
        unsupported: &[],
        rows: &[],
    };
    block::read(body, &KNOWN, |block| {
        let algorithm = algorithm(block);
        let preemption = block.block("PreemptionConfig").map(preemption);
        let mut flag = |name| block.boolean(name).unwrap_or_default();
        Some(domain::SchedulerConfig {
            algorithm,
            preemption: preemption.unwrap_or(NO_PREEMPTION),
            memory_oversubscription: flag("MemoryOversubscriptionEnabled"),
            reject_job_registration: flag("RejectJobRegistration"),
            pause_broker: flag("PauseEvalBroker"),
        })
    })
}

const NO_PREEMPTION: domain::PreemptionConfig = domain::PreemptionConfig {
    system: false,
    sysbatch: false,
    batch: false,
    service: false,
};

fn algorithm(block: &mut Block<'_>) -> Algorithm {
    block.choice("SchedulerAlgorithm").unwrap_or_default()
}

fn preemption(mut block: Block<'_>) -> domain::PreemptionConfig {
    const KNOWN: FieldNames = FieldNames {
        derived: &[],
        harmless: &[],
        unsupported: &[],
        rows: &[],
    };
    let mut flag = |name| block.boolean(name).unwrap_or_default();
    let config = domain::PreemptionConfig {
        system: flag("SystemSchedulerEnabled"),
        sysbatch: flag("SysBatchSchedulerEnabled"),
        batch: flag("BatchSchedulerEnabled"),
        service: flag("ServiceSchedulerEnabled"),
    };
    block.finish(&KNOWN);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_read_back() {
        let config = domain::SchedulerConfig {
            algorithm: Algorithm::Spread,
            memory_oversubscription: true,
            ..domain::SchedulerConfig::default()
        };
        let shown = SchedulerConfig::new(config, LogIndex(5), LogIndex(7));

        let read = read_scheduler(&serde_json::to_vec(&shown).unwrap()).unwrap();

        assert_eq!(read, config);
    }

    #[test]
    fn omitted_settings_are_off() {
        let read = read_scheduler(b"{}").unwrap();

        assert_eq!(read.preemption, NO_PREEMPTION);
        assert_eq!(read.algorithm, Algorithm::Binpack);
    }

    #[test]
    fn unknown_value_error_lists_allowed_values() {
        for (body, part) in [
            (
                r#"{"SchedulerAlgorithm":"random"}"#,
                "use `binpack` or `spread`",
            ),
            (
                r#"{"PreemptionConfig":{"SysBatchEnabled":true}}"#,
                "SysBatchSchedulerEnabled",
            ),
            (r#"{"PauseEvalBroker":"yes"}"#, "true or false"),
        ] {
            let error = read_scheduler(body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
