//! A simulated agent: the pure agent around a mock driver, and its link to a server.
//!
//! This module stands for the shell `agent`. `agent-core` makes all decisions. This module carries out the effects on
//! a [`Host`] and keeps each report until it is committed. It holds a session with one server at a time.

mod link;
mod outbox;
mod tasks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_agent_core::alloc::{
    AllocRunner, AllocSnapshot, Event as AllocEvent, MalformedAllocError,
};
use muster_agent_core::node::{Change, Desired, DesiredUpdate};
use muster_agent_core::start_order::{self, StartDependencies};
use muster_domain::alloc::{DesiredAlloc, RemoteAlloc};
use muster_domain::id::{AllocId, LogIndex, Timestamp};

use crate::bug::Bug;
use crate::env::{Env, Event};
use crate::host::{Host, HostEvent};
use crate::limits;

use link::Link;
use outbox::Outbox;

/// An allocation that this agent runs.
#[derive(Debug)]
struct Runner {
    core: AllocRunner,
    desired: DesiredAlloc,
    /// Whether the agent adopted the allocation without a stored record. Its running processes then count as the
    /// requested tasks.
    adopted: bool,
}

/// The in-memory state of an agent.
#[derive(Debug)]
pub struct Agent {
    desired: Desired,
    runners: BTreeMap<AllocId, Runner>,
    turns: StartDependencies,
    outbox: Outbox,
    link: Link,
    /// The time at which the store writes its pending data.
    flush_at: Option<Timestamp>,
    swept: bool,
    /// Whether the agent has received the first desired set of the session completely.
    whole: bool,
    /// Earlier messages of the control plane, kept so that the simulator can repeat them.
    history: VecDeque<DesiredUpdate>,
}

impl Agent {
    /// Whether a server has committed every report of this agent and its session is live.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.outbox.is_empty() && self.link.is_live()
    }

    /// Returns the allocations that are not terminal.
    pub fn live(&self) -> impl Iterator<Item = AllocId> + use<'_> {
        self.runners
            .iter()
            .filter(|(_, runner)| !runner.core.is_terminal())
            .map(|(alloc_id, _)| *alloc_id)
    }
}

impl Host {
    /// Starts an agent with the data that the previous agent stored.
    pub fn start_agent(&mut self, env: &mut Env) {
        self.store = self.stored.clone();
        let known = self.store.allocs.values();
        let agent = Agent {
            desired: Desired::restore(known.map(|(desired, _)| desired.clone())),
            runners: BTreeMap::new(),
            turns: StartDependencies::default(),
            outbox: Outbox::default(),
            link: Link::begin(env),
            flush_at: None,
            swept: false,
            whole: false,
            history: VecDeque::new(),
        };
        self.agent = Some(agent);
        let has_begun = |snapshot: &Option<AllocSnapshot>| {
            snapshot.as_ref().is_some_and(|snapshot| snapshot.prepared)
        };
        let restored = self.store.allocs.values().cloned();
        let (begun, waiting): (Vec<_>, Vec<_>) =
            restored.partition(|(_, snapshot)| has_begun(snapshot));
        for (desired, snapshot) in begun.into_iter().chain(waiting) {
            let before = if has_begun(&snapshot) {
                BTreeSet::new()
            } else {
                self.before(&desired)
            };
            let core = match snapshot {
                Some(snapshot) => {
                    AllocRunner::restore_with(&desired, snapshot, Vec::new(), &before, env.now)
                }
                None => Self::waiting(&desired, &before, env),
            };
            self.wait(desired.alloc_id, before);
            match core {
                Ok(core) => self.run_restored(core, desired, env),
                Err(error) => env.oracle.fault(&error.to_string()),
            }
        }
    }

    /// Returns the allocations that an allocation has to wait for.
    fn before(&self, alloc: &DesiredAlloc) -> BTreeSet<AllocId> {
        let agent = self.agent.iter();
        let live = agent.flat_map(|agent| {
            let live = agent.live();
            live.filter_map(|alloc_id| agent.desired.get(alloc_id))
        });
        start_order::before(alloc, live)
    }

    fn waiting(
        desired: &DesiredAlloc,
        before: &BTreeSet<AllocId>,
        env: &Env,
    ) -> Result<AllocRunner, MalformedAllocError> {
        let remote = RemoteAlloc::none(desired.alloc_id);
        AllocRunner::taking(desired, &remote, before, env.now)
    }

    fn wait(&mut self, alloc_id: AllocId, before: BTreeSet<AllocId>) {
        if let Some(agent) = &mut self.agent {
            agent.turns.wait(alloc_id, before);
        }
    }

    fn run_restored(&mut self, core: AllocRunner, desired: DesiredAlloc, env: &mut Env) {
        if let Some(agent) = &mut self.agent {
            // The agent cannot know whether the last report of the previous agent arrived.
            agent.outbox.put(core.report());
        }
        self.run(core, desired, false, env);
    }

    fn run(&mut self, core: AllocRunner, desired: DesiredAlloc, adopted: bool, env: &mut Env) {
        let alloc_id = desired.alloc_id;
        let runner = Runner {
            core,
            desired,
            adopted,
        };
        if let Some(agent) = &mut self.agent {
            agent.runners.insert(alloc_id, runner);
        }
        self.drive(alloc_id, env);
    }

    /// Describes the agent's view of an allocation and the machine's processes of it.
    #[must_use]
    pub fn describe(&self, alloc_id: AllocId) -> String {
        let processes = self.processes.iter().filter(|((of, _), _)| *of == alloc_id);
        let processes: Vec<_> = processes.map(|(_, process)| process).collect();
        let agent = self.agent.as_ref();
        let runner = agent.and_then(|agent| agent.runners.get(&alloc_id));
        let core = runner.map(|runner| (runner.core.snapshot(), runner.core.client_status()));
        let wanted = agent.and_then(|agent| agent.desired.get(alloc_id));
        let wanted = wanted.map(|wanted| (wanted.desired, wanted.alloc_modify_index));
        let reported = agent.map(|agent| agent.outbox.describe(alloc_id));
        format!("told {reported:?}, wanted {wanted:?}, processes {processes:?}, runner {core:?}")
    }

    /// Handles an event of the machine.
    pub fn handle_event(&mut self, event: HostEvent, env: &mut Env) {
        match event {
            HostEvent::Ends {
                boot,
                task,
                attempt,
                exit,
            } => {
                if boot == self.boot {
                    self.end(task, attempt, exit, env);
                }
            }
            HostEvent::Prepared {
                life,
                alloc_id,
                failed,
            } => {
                let event = if failed {
                    let reason = "the disk is full".to_owned();
                    AllocEvent::PrepareFailed { reason }
                } else {
                    AllocEvent::Prepared
                };
                self.send_to_runner(life, alloc_id, event, env);
            }
            HostEvent::Answered { life, task, input } => {
                self.store_end(life, task, &input);
                let (alloc_id, task_at) = task;
                let event = AllocEvent::Task { task_at, input };
                self.send_to_runner(life, alloc_id, event, env);
            }
            HostEvent::Start {
                life,
                task,
                attempt,
            } => self.start_task(life, task, attempt, env),
            HostEvent::Recover {
                life,
                task,
                attempt,
            } => self.recover_task(life, task, attempt, env),
            HostEvent::Destroyed { life, alloc_id } => {
                self.send_to_runner(life, alloc_id, AllocEvent::Destroyed, env);
            }
            HostEvent::Sweep { life } if life == self.life => self.sweep(),
            HostEvent::Sweep { .. } => {}
        }
    }

    fn send_to_runner(&mut self, life: u64, alloc_id: AllocId, event: AllocEvent, env: &mut Env) {
        if life != self.life {
            return;
        }
        let runners = self.agent.as_mut().map(|agent| &mut agent.runners);
        if let Some(runner) = runners.and_then(|runners| runners.get_mut(&alloc_id)) {
            runner.core.handle_event(event, env.now);
            self.drive(alloc_id, env);
        }
    }

    /// Handles an update of the desired state from the control plane.
    fn handle_desired_update(&mut self, desired_update: DesiredUpdate, env: &mut Env) {
        let (host, life) = (self.at, self.life);
        let Some(agent) = &mut self.agent else {
            return;
        };
        env.trace.note(env.now, desired_update.index.0);
        if env.has_bug(Bug::OlderDesired) {
            agent.desired = with_reset_indexes(&agent.desired);
        }
        let merged = agent.desired.apply(desired_update.clone());
        agent.whole |= merged.whole;
        if merged.whole && !agent.swept {
            agent.swept = true;
            let delay = if std::mem::take(&mut self.store_lost) {
                limits::SWEEP_DELAY_AFTER_LOSS
            } else {
                std::time::Duration::ZERO
            };
            let what = HostEvent::Sweep { life };
            env.at(env.now.plus(delay), Event::Host { host, what });
        }
        if merged.ask_again {
            agent.link.restart_session(env);
        }
        for change in merged.changes {
            self.change(change, env);
        }
        self.repeat_history(desired_update, env);
    }

    /// Repeats an old message at random: a repeated message changes nothing.
    fn repeat_history(&mut self, desired_update: DesiredUpdate, env: &mut Env) {
        let Some(agent) = &mut self.agent else {
            return;
        };
        // The end of a set counts only for the session in which it was sent.
        agent.history.push_back(DesiredUpdate {
            complete: None,
            ..desired_update
        });
        if agent.history.len() > limits::HISTORY_MAX {
            agent.history.pop_front();
        }
        if !env.rng.chance(10) || env.has_bug(Bug::OlderDesired) || !agent.whole {
            return;
        }
        let at = env.rng.below(agent.history.len());
        let again = agent.history[at].clone();
        let index = again.index;
        let merged = agent.desired.apply(again);
        if !merged.changes.is_empty() {
            env.oracle.fault(&format!(
                "host {}: the message of {} changed something when it came again: {:?}",
                self.at, index.0, merged.changes
            ));
        }
    }

    fn change(&mut self, change: Change, env: &mut Env) {
        match change {
            // Processes found here are already running, even if the lost store and the servers have no record of
            // them.
            Change::Start(desired)
                if !self.has_processes(desired.alloc_id) && !self.may_have_run(&desired) =>
            {
                let before = self.before(&desired);
                let core = Self::waiting(&desired, &before, env);
                self.wait(desired.alloc_id, before);
                self.begin(core, *desired, false, env);
            }
            Change::Start(desired) | Change::Unremembered(desired) => {
                let core = AllocRunner::adopt(&desired, env.now);
                self.begin(core, *desired, true, env);
            }
            Change::Update(desired) => self.update(*desired, env),
            Change::Gone(alloc_id) => {
                let life = self.life;
                self.send_to_runner(life, alloc_id, AllocEvent::DestroyAsked, env);
            }
        }
    }

    /// Whether a one-off task may have run here although no record of it exists: its directories are present. Such a
    /// task runs at most once.
    fn may_have_run(&self, desired: &DesiredAlloc) -> bool {
        desired.job.spec.is_one_off() && self.dirs.contains(&desired.alloc_id)
    }

    fn begin(
        &mut self,
        core: Result<AllocRunner, MalformedAllocError>,
        desired: DesiredAlloc,
        adopted: bool,
        env: &mut Env,
    ) {
        self.store_desired(&desired, env);
        match core {
            Ok(core) => self.run(core, desired, adopted, env),
            Err(error) => env.oracle.fault(&error.to_string()),
        }
    }

    fn update(&mut self, desired: DesiredAlloc, env: &mut Env) {
        let (life, alloc_id, wanted) = (self.life, desired.alloc_id, desired.desired);
        let Some(agent) = &mut self.agent else {
            return;
        };
        let Some(runner) = agent.runners.get_mut(&alloc_id) else {
            return;
        };
        match runner.core.handle_update(&desired, env.now) {
            Ok(()) => {
                if runner.desired.deployment != desired.deployment {
                    agent.outbox.force_report(alloc_id);
                }
                runner.desired = desired.clone();
                self.store_desired(&desired, env);
            }
            Err(error) => env.oracle.fault(&error.to_string()),
        }
        let event = AllocEvent::DesiredChanged(wanted);
        self.send_to_runner(life, alloc_id, event, env);
    }

    fn store_desired(&mut self, desired: &DesiredAlloc, env: &mut Env) {
        let entry = self.store.allocs.entry(desired.alloc_id);
        let (stored, _) = entry.or_insert_with(|| (desired.clone(), None));
        stored.clone_from(desired);
        self.flush_soon(env);
    }

    fn flush_soon(&mut self, env: &mut Env) {
        if let Some(agent) = &mut self.agent
            && agent.flush_at.is_none()
        {
            agent.flush_at = Some(env.now.plus(env.rng.micros(500, 200_000)));
        }
    }

    /// Does the work that is due at the current time.
    pub fn handle_timeout(&mut self, env: &mut Env) {
        let Some(agent) = &mut self.agent else {
            return;
        };
        if agent.flush_at.is_some_and(|at| at <= env.now) {
            agent.flush_at = None;
            self.flush();
        }
        let now = env.now;
        let Some(agent) = &mut self.agent else {
            return;
        };
        let due: Vec<AllocId> = agent
            .runners
            .iter()
            .filter(|(_, runner)| runner.core.poll_timeout().is_some_and(|(at, _)| at <= now))
            .map(|(alloc_id, _)| *alloc_id)
            .collect();
        let life = self.life;
        for alloc_id in due {
            self.send_to_runner(life, alloc_id, AllocEvent::TimerFired, env);
        }
        self.advance_link(env);
    }

    /// Returns the time at which the next work is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let agent = self.agent.as_ref()?;
        let runners = agent
            .runners
            .values()
            .filter_map(|runner| runner.core.poll_timeout().map(|(at, _)| at));
        let at = runners.fold(agent.link.poll_timeout(), Timestamp::min);
        Some(agent.flush_at.into_iter().fold(at, Timestamp::min))
    }
}

/// Returns the same allocations with modify index 0, so that the next message replaces each of them.
fn with_reset_indexes(desired: &Desired) -> Desired {
    Desired::restore(desired.iter().map(|alloc| DesiredAlloc {
        alloc_modify_index: LogIndex(0),
        ..alloc.clone()
    }))
}
