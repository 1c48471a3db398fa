//! Users: they run, stop and look at jobs, and drain nodes.

use muster_control_core::fsm::Command;
use muster_domain::fixture;
use muster_domain::id::JobKey;
use muster_domain::job::{JobSpec, JobType};
use muster_domain::node::Eligibility;

use super::{Event, World};

impl World {
    pub(super) fn user(&mut self) {
        if self.calm {
            return;
        }
        self.after(200, 15_000, Event::User);
        let at = self.now;
        let command = match self.dice.below(10) {
            0..=5 => Command::RegisterJob {
                spec: Box::new(self.job()),
                at,
                check_index: None,
            },
            6 | 7 => {
                let Some(key) = self.some_job() else { return };
                Command::DeregisterJob {
                    key,
                    purge: self.dice.chance(30),
                    at,
                }
            }
            8 => {
                let Some(key) = self.some_job() else { return };
                Command::EvaluateJob { key, at }
            }
            _ => {
                let node = self.dice.below(self.agents.len());
                let eligibility = if self.dice.chance(60) {
                    Eligibility::Eligible
                } else {
                    Eligibility::Ineligible
                };
                Command::SetEligibility {
                    node_id: self.agents[node].spec.id,
                    eligibility,
                    at,
                }
            }
        };
        self.propose(command);
    }

    fn some_job(&mut self) -> Option<JobKey> {
        let keys: Vec<JobKey> = self
            .server
            .state
            .jobs()
            .iter()
            .map(|job| job.key())
            .collect();
        self.dice.pick(&keys).cloned()
    }

    fn job(&mut self) -> JobSpec {
        let (number, is_batch) = (self.dice.below(5), self.dice.chance(40));
        // A job keeps its type.
        let (name, kind) = if is_batch {
            ("batch", JobType::Batch)
        } else {
            ("web", JobType::Service)
        };
        let cpu = self.dice.between(1, 8) * 100;
        let memory = self.dice.between(1, 8) * 64;
        let mut job = fixture::job(&format!("{name}-{number}"))
            .job_type(kind)
            .count(self.dice.between(0, 8))
            .cpu_mhz(cpu)
            .memory_mb(memory);
        if self.dice.chance(20) {
            job = job.dynamic_port("http");
        }
        if self.dice.chance(15) {
            job = job.port("fixed", 8_080);
        }
        if self.dice.chance(20) {
            job = job.constraint("${attr.zone}", "=", "a");
        }
        let mut spec = job.build();
        spec.priority = u8::try_from(self.dice.between(1, 100)).unwrap_or(50);
        spec
    }
}
