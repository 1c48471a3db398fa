//! Carries out the effects of the runners with a mock driver.

use std::sync::Arc;

use muster_agent_core::alloc::{Effect, Event as AllocEvent};
use muster_agent_core::task::{TaskEffect, TaskInput};
use muster_domain::alloc::Exit;
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::job::JobType;

use crate::env::{Env, Event};
use crate::host::{Host, HostEvent, Process, Start, TaskKey};

const KILLED: Exit = Exit {
    code: 0,
    signal: 9,
    oom_killed: false,
    unknown: false,
};
const UNKNOWN: Exit = Exit {
    code: 0,
    signal: 0,
    oom_killed: false,
    unknown: true,
};

impl Host {
    /// Carries out the pending effects of the runner of `alloc_id`.
    pub(super) fn drive(&mut self, alloc_id: AllocId, env: &mut Env) {
        while let Some(effect) = self.next_effect(alloc_id) {
            self.carry_out(alloc_id, effect, env);
        }
        let Some(agent) = &mut self.agent else {
            return;
        };
        let Some(runner) = agent.runners.get(&alloc_id) else {
            return;
        };
        let (is_terminal, is_destroyed) = (runner.core.is_terminal(), runner.core.is_destroyed());
        let free = if is_terminal {
            agent.turns.handle_ended(alloc_id)
        } else {
            Vec::new()
        };
        if is_destroyed {
            agent.runners.remove(&alloc_id);
            agent.outbox.forget(alloc_id);
            self.store.allocs.remove(&alloc_id);
            self.store.started.retain(|(of, _), _| *of != alloc_id);
            self.processes.retain(|(of, _), _| *of != alloc_id);
            self.dirs.remove(&alloc_id);
            self.flush();
        }
        for next in free {
            self.send_to_runner(self.life, next, AllocEvent::TurnCame, env);
        }
    }

    fn next_effect(&mut self, alloc_id: AllocId) -> Option<Effect> {
        let agent = self.agent.as_mut()?;
        agent.runners.get_mut(&alloc_id)?.core.poll_effect()
    }

    fn carry_out(&mut self, alloc_id: AllocId, effect: Effect, env: &mut Env) {
        let (host, life) = (self.at, self.life);
        match effect {
            Effect::Persist => self.persist(alloc_id, env),
            Effect::PrepareAlloc => {
                let failed = env.fault_chance(2);
                let what = HostEvent::Prepared {
                    life,
                    alloc_id,
                    failed,
                };
                env.after(1, 200, Event::Host { host, what });
            }
            Effect::Task { task_at, effect } => {
                // If the record of a start were lost, the next agent would start the task a second time.
                self.flush();
                self.carry_out_task((alloc_id, task_at), effect, env);
            }
            Effect::Report { urgent: _ } => {
                let runner = self.agent.as_ref().and_then(|it| it.runners.get(&alloc_id));
                if runner.is_some_and(|runner| runner.core.is_terminal()) {
                    // An end must be on disk before the agent reports it, so that the next agent knows of it too.
                    self.flush();
                }
                if let Some(agent) = &mut self.agent
                    && let Some(runner) = agent.runners.get(&alloc_id)
                {
                    agent.outbox.put(runner.core.report());
                    agent.link.schedule_report(env.now);
                }
            }
            Effect::DestroyAlloc => {
                let what = HostEvent::Destroyed { life, alloc_id };
                env.after(1, 300, Event::Host { host, what });
            }
        }
    }

    fn persist(&mut self, alloc_id: AllocId, env: &mut Env) {
        let Some(agent) = &self.agent else {
            return;
        };
        if let Some(runner) = agent.runners.get(&alloc_id) {
            let snapshot = Some(runner.core.snapshot());
            let record = (runner.desired.clone(), snapshot);
            self.store.allocs.insert(alloc_id, record);
            self.flush_soon(env);
        }
    }

    fn carry_out_task(&mut self, task: TaskKey, effect: TaskEffect, env: &mut Env) {
        let (host, life) = (self.at, self.life);
        match effect {
            // A simulated task never takes over or detaches the process of another allocation.
            TaskEffect::Start { attempt } | TaskEffect::TakeOver { attempt, .. } => {
                let what = HostEvent::Start {
                    life,
                    task,
                    attempt,
                };
                env.after(1, 200, Event::Host { host, what });
            }
            TaskEffect::Recover { attempt } => {
                let what = HostEvent::Recover {
                    life,
                    task,
                    attempt,
                };
                env.after(1, 200, Event::Host { host, what });
            }
            TaskEffect::Stop { .. } | TaskEffect::Detach => self.signal(task, env),
            TaskEffect::Force => self.force(task, env),
        }
    }

    /// Makes the driver ask a process to end.
    fn signal(&mut self, task: TaskKey, env: &mut Env) {
        let (host, life) = (self.at, self.life);
        if env.fault_chance(5) {
            let reason = "the driver is busy".to_owned();
            let input = TaskInput::StopFailed { reason };
            let what = HostEvent::Answered { life, task, input };
            env.after(1, 50, Event::Host { host, what });
            return;
        }
        let Some(process) = self.processes.get(&task) else {
            return;
        };
        if process.ended.is_none() && !process.ignores_signal {
            let what = HostEvent::Ends {
                boot: self.boot,
                task,
                attempt: process.attempt,
                exit: Exit {
                    signal: 15,
                    ..KILLED
                },
            };
            env.after(1, 3_000, Event::Host { host, what });
        }
    }

    fn force(&mut self, task: TaskKey, env: &mut Env) {
        if let Some(process) = self.processes.get(&task) {
            let attempt = process.attempt;
            self.end(task, attempt, KILLED, env);
        }
    }

    /// Makes the driver start a process. The process exists from this moment; the agent receives the answer later.
    pub(super) fn start_task(&mut self, life: u64, task: TaskKey, attempt: u32, env: &mut Env) {
        if life != self.life {
            return;
        }
        let host = self.at;
        if env.fault_chance(8) {
            let reason = "the driver cannot start it".to_owned();
            let retryable = env.rng.chance(70);
            let input = TaskInput::StartFailed { reason, retryable };
            let what = HostEvent::Answered { life, task, input };
            env.after(1, 100, Event::Host { host, what });
            return;
        }
        let answered_at = env.now.plus(env.rng.micros(500, 300_000));
        self.check_start(task, env);
        let process = Process {
            attempt,
            noted: attempt,
            ended: None,
            ignores_signal: env.fault_chance(5),
            watched: Some((life, answered_at)),
        };
        self.processes.insert(task, process);
        self.dirs.insert(task.0);
        let start = Start {
            attempt,
            boot: self.boot,
            ended: None,
        };
        self.store.started.insert(task, start);
        self.flush_soon(env);
        let note = String::new();
        let input = TaskInput::Started { note };
        let what = HostEvent::Answered { life, task, input };
        env.at(answered_at, Event::Host { host, what });
        if let Some((at, exit)) = self.choose_exit(task.0, env) {
            let boot = self.boot;
            let what = HostEvent::Ends {
                boot,
                task,
                attempt,
                exit,
            };
            env.at(at, Event::Host { host, what });
        }
    }

    /// Returns the time and the exit with which a newly started process ends by itself.
    fn choose_exit(&self, alloc_id: AllocId, env: &mut Env) -> Option<(Timestamp, Exit)> {
        let runner = self.agent.as_ref()?.runners.get(&alloc_id)?;
        let is_batch = match runner.desired.job.spec.job_type {
            JobType::Batch | JobType::SysBatch => true,
            JobType::Service | JobType::System => false,
        };
        let fails = env.fault_chance(20);
        let at = env.now.plus(env.rng.millis(50, 40_000));
        let code = i32::from(fails);
        let exit = Exit {
            code,
            signal: 0,
            ..KILLED
        };
        (fails || is_batch).then_some((at, exit))
    }

    /// Checks that a task has at most one process, and none once its allocation is over.
    fn check_start(&self, task: TaskKey, env: &mut Env) {
        let (alloc_id, task_at) = task;
        let running = self.processes.get(&task);
        if running.is_some_and(|process| process.ended.is_none()) {
            env.oracle.fault(&format!(
                "host {}: a second process for task {task_at} of {alloc_id}",
                self.at
            ));
        }
        let runner = self.agent.as_ref().and_then(|it| it.runners.get(&alloc_id));
        let job = runner.map(|runner| Arc::clone(&runner.desired.job));
        if let Some(job) = job.filter(|job| job.spec.is_one_off()) {
            env.oracle.one_off_starts(job.spec.key(), job.create_index);
        }
        if self.ended_allocs.contains(&alloc_id) {
            env.oracle.fault(&format!(
                "host {}: {alloc_id} starts again after its end was committed",
                self.at
            ));
        }
    }

    /// Looks for the process of a start that a previous agent made.
    pub(super) fn recover_task(&mut self, life: u64, task: TaskKey, attempt: u32, env: &mut Env) {
        if life != self.life {
            return;
        }
        let Some(runner) = self.agent.as_ref().and_then(|a| a.runners.get(&task.0)) else {
            return;
        };
        let adopted = runner.adopted;
        let answered_at = env.now.plus(env.rng.micros(500, 100_000));
        let recorded = self.store.started.get(&task).copied();
        let recorded = recorded.filter(|start| start.attempt == attempt);
        let ended = recorded.and_then(|start| start.ended);
        let rebooted = recorded.is_some_and(|start| start.boot != self.boot);
        let siblings = self.processes.keys().any(|(of, _)| *of == task.0);
        if !adopted && let Some(stray) = self.processes.get(&task) {
            // The process belongs to no recorded start. A real agent ends all processes in the cgroup.
            let (of, is_known) = (stray.attempt, stray.noted == attempt);
            if !is_known {
                self.end(task, of, KILLED, env);
            }
        }
        let process = self.processes.get_mut(&task);
        let process = process.filter(|process| adopted || process.noted == attempt);
        let input = match process {
            _ if ended.is_some() => TaskInput::Exited {
                exit: ended.unwrap_or(UNKNOWN),
                detail: String::new(),
                end: None,
            },
            _ if rebooted => TaskInput::Lost {
                reason: "the machine was rebooted while the task ran".to_owned(),
            },
            Some(process) => match note(process, attempt).ended {
                Some(exit) => TaskInput::Exited {
                    exit,
                    detail: String::new(),
                    end: None,
                },
                None => {
                    process.watched = Some((life, answered_at));
                    TaskInput::Recovered
                }
            },
            None if !adopted => TaskInput::NeverStarted,
            None if siblings => TaskInput::Exited {
                exit: UNKNOWN,
                detail: String::new(),
                end: None,
            },
            None => TaskInput::Lost {
                reason: "nothing of it was found".to_owned(),
            },
        };
        let host = self.at;
        let what = HostEvent::Answered { life, task, input };
        env.at(answered_at, Event::Host { host, what });
    }

    /// Stores the end of a start on disk before the runner receives it.
    pub(super) fn store_end(&mut self, life: u64, task: TaskKey, input: &TaskInput) {
        if life != self.life {
            return;
        }
        if let (TaskInput::Exited { exit, .. }, Some(start)) =
            (input, self.store.started.get_mut(&task))
        {
            start.ended = Some(*exit);
            self.flush();
        }
    }

    /// Removes the processes of allocations that the agent has no record of.
    pub(super) fn sweep(&mut self) {
        let Some(agent) = &self.agent else {
            return;
        };
        self.processes
            .retain(|(alloc_id, _), _| agent.runners.contains_key(alloc_id));
    }

    /// Records the allocations whose end is committed. They must not start again.
    pub(super) fn record_ended_allocs(&mut self) {
        let Some(agent) = &self.agent else {
            return;
        };
        for (alloc_id, runner) in &agent.runners {
            if runner.core.is_terminal() && agent.outbox.is_reported(*alloc_id) {
                self.ended_allocs.insert(*alloc_id);
            }
        }
    }

    /// Asks the runners to destroy each allocation whose end is committed.
    pub(super) fn destroy_all_over(&mut self, env: &mut Env) {
        let life = self.life;
        let Some(agent) = &self.agent else {
            return;
        };
        let over: Vec<AllocId> = agent
            .runners
            .iter()
            .filter(|(alloc_id, runner)| {
                runner.core.is_terminal() && agent.outbox.is_reported(**alloc_id)
            })
            .map(|(alloc_id, _)| *alloc_id)
            .collect();
        for alloc_id in over {
            self.send_to_runner(life, alloc_id, AllocEvent::DestroyAsked, env);
        }
    }
}

/// Writes the number of the current start to the process's cgroup.
fn note(process: &mut Process, attempt: u32) -> &mut Process {
    process.noted = attempt;
    process
}
