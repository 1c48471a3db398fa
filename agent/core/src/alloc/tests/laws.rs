//! In every sequence of an allocation's events, tasks run in their order, never twice, and always make progress.

use proptest::prelude::*;

use super::*;
use crate::lifecycle::Role;

/// The state of a task's process in the simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    None,
    Starting,
    Running,
    /// A restarted agent recovers the process.
    Sought {
        runs: bool,
    },
}

/// A possible next event. An event that is not possible at the moment is skipped.
#[derive(Clone, Debug)]
enum SimulatedEvent {
    /// A start or a recovery is answered, with success or failure.
    Answer(prop::sample::Index, bool),
    /// A process ends, with success or failure.
    End(prop::sample::Index, bool),
    Timer,
    Stop,
    Disconnect,
    FillDisk,
    Destroy,
    Deploy(u32),
    /// The agent restarts. Starts under way were made, or were not.
    Reload(bool),
}

fn a_move() -> impl Strategy<Value = SimulatedEvent> {
    let index = || any::<prop::sample::Index>();
    prop_oneof![
        8 => (index(), prop::bool::weighted(0.9)).prop_map(|(at, well)| SimulatedEvent::Answer(at, well)),
        4 => (index(), prop::bool::weighted(0.7)).prop_map(|(at, well)| SimulatedEvent::End(at, well)),
        4 => Just(SimulatedEvent::Timer),
        1 => Just(SimulatedEvent::Stop),
        1 => Just(SimulatedEvent::Disconnect),
        1 => Just(SimulatedEvent::FillDisk),
        1 => Just(SimulatedEvent::Destroy),
        1 => (0..3_u32).prop_map(SimulatedEvent::Deploy),
        2 => any::<bool>().prop_map(SimulatedEvent::Reload),
    ]
}

const ROLES: [&str; 7] = [
    "",
    "leader",
    "prestart",
    "prestart+",
    "poststart",
    "poststart+",
    "poststop",
];

fn an_alloc() -> impl Strategy<Value = DesiredAlloc> {
    let shape = (0..ROLES.len(), 0..3_u32, 0..4_u64);
    let shapes = prop::collection::vec(shape, 0..4);
    (shapes, any::<bool>(), 0..4_u64).prop_map(|(mut shapes, for_ever, delay)| {
        shapes.push((0, 1, 0));
        let mut led = false;
        let names = shapes.iter().enumerate().map(|(at, (role, ..))| {
            let role = ROLES[*role];
            let second = role == "leader" && std::mem::replace(&mut led, true);
            if second {
                format!("t{at}")
            } else {
                format!("t{at}@{role}")
            }
        });
        let names: Vec<String> = names.collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut desired = if for_ever {
            service(&names)
        } else {
            batch(&names)
        };
        let group = group(&mut desired);
        group.shutdown_delay = Duration::from_secs(delay);
        for (task, (_, attempts, delay)) in group.tasks.iter_mut().zip(&shapes) {
            task.restart.attempts = *attempts;
            task.restart.delay = Duration::from_secs(*delay);
            task.shutdown_delay = Duration::from_secs(*delay);
        }
        desired
    })
}

struct SimulatedAlloc {
    desired: DesiredAlloc,
    runner: AllocRunner,
    now: Timestamp,
    processes: Vec<Process>,
    ended_well: Vec<bool>,
    prepared: bool,
    destroyed: bool,
    /// The last verdict, and the deployment that it is for.
    healthy: (Option<DeploymentId>, Option<bool>),
}

impl SimulatedAlloc {
    fn new(desired: DesiredAlloc) -> Self {
        let tasks = desired.group().unwrap().tasks.len();
        let mut world = Self {
            runner: AllocRunner::new(&desired, at(0)).unwrap(),
            healthy: (desired.deployment, None),
            desired,
            now: at(0),
            processes: vec![Process::None; tasks],
            ended_well: vec![false; tasks],
            prepared: false,
            destroyed: false,
        };
        world.settle();
        world
    }

    fn role(&self, task_at: usize) -> Role {
        Role::of(self.desired.group().unwrap().tasks[task_at].lifecycle)
    }

    /// Carries out the runner's effects, and checks that each is allowed.
    fn settle(&mut self) {
        while let Some(effect) = self.runner.poll_effect() {
            match effect {
                Effect::PrepareAlloc => {
                    self.prepared = true;
                    self.runner.handle_event(Event::Prepared, self.now);
                }
                Effect::DestroyAlloc => self.destroyed = true,
                Effect::Task {
                    task_at,
                    effect: TaskEffect::Start { attempt },
                } => self.start(task_at, attempt),
                Effect::Task {
                    effect: TaskEffect::Recover { .. },
                    ..
                }
                | Effect::Task { .. }
                | Effect::Persist
                | Effect::Report { .. } => {}
            }
        }
        self.check();
    }

    fn start(&mut self, task_at: usize, attempt: u32) {
        assert_eq!(self.processes[task_at], Process::None, "two processes");
        let roles: Vec<Role> = (0..self.processes.len()).map(|at| self.role(at)).collect();
        let mut tasks = roles.iter().enumerate();
        match self.role(task_at) {
            Role::Main if attempt == 1 => {
                let ended =
                    |(at, role): (usize, &Role)| *role != Role::Prestart || self.ended_well[at];
                assert!(tasks.all(ended), "before what comes first");
            }
            Role::Poststop => {
                let gone = |(at, role): (usize, &Role)| {
                    *role == Role::Poststop || self.processes[at] == Process::None
                };
                assert!(tasks.all(gone), "before the others ended");
            }
            Role::Main
            | Role::Prestart
            | Role::PrestartSidecar
            | Role::Poststart
            | Role::PoststartSidecar => {}
        }
        self.processes[task_at] = Process::Starting;
    }

    fn check(&mut self) {
        let idle = self
            .processes
            .iter()
            .all(|process| *process == Process::None);
        if self.runner.is_terminal() {
            assert!(idle, "terminal while a process may run");
        } else if idle {
            assert!(self.runner.poll_timeout().is_some(), "nothing goes on");
        }
        let (asked, answer) = (self.desired.deployment, self.runner.report().healthy);
        if self.healthy.0 == asked && self.healthy.1.is_some() {
            assert_eq!(answer, self.healthy.1, "an answer was taken back");
        }
        self.healthy = (asked, answer);
    }

    fn apply_event(&mut self, event: Event) {
        self.runner.handle_event(event, self.now);
        self.settle();
    }

    fn input(&mut self, task_at: usize, process: Process, input: TaskInput) {
        self.processes[task_at] = process;
        self.apply_event(Event::Task { task_at, input });
    }

    fn answer(&mut self, task_at: usize, well: bool) {
        let note = String::new();
        let reason = String::new();
        match (self.processes[task_at], well) {
            (Process::Starting, true) => {
                self.input(task_at, Process::Running, TaskInput::Started { note });
            }
            (Process::Starting, false) => {
                let failed = TaskInput::StartFailed {
                    reason,
                    retryable: true,
                };
                self.input(task_at, Process::None, failed);
            }
            (Process::Sought { runs: true }, true) => {
                self.input(task_at, Process::Running, TaskInput::Recovered);
            }
            (Process::Sought { runs: true }, false) => self.end(task_at, false),
            (Process::Sought { runs: false }, _) => {
                self.input(task_at, Process::None, TaskInput::NeverStarted);
            }
            (Process::None | Process::Running, _) => {}
        }
    }

    fn end(&mut self, task_at: usize, well: bool) {
        self.ended_well[task_at] |= well;
        let exit = Exit {
            code: i32::from(!well),
            ..Exit::default()
        };
        let detail = String::new();
        let end = None;
        self.input(
            task_at,
            Process::None,
            TaskInput::Exited { exit, detail, end },
        );
    }

    fn timer(&mut self) {
        let Some((due, why)) = self.runner.poll_timeout() else {
            return;
        };
        self.now = self.now.max(due);
        self.apply_event(Event::TimerFired);
        let next = self.runner.poll_timeout();
        assert!(
            next.is_none_or(|(next, _)| next > self.now),
            "busy to {why}"
        );
    }

    fn reload(&mut self, made: bool) {
        let snapshot = self.runner.snapshot();
        self.runner = AllocRunner::restore(&self.desired, snapshot, self.now).unwrap();
        for process in &mut self.processes {
            *process = match *process {
                Process::None => Process::None,
                Process::Starting => Process::Sought { runs: made },
                Process::Running => Process::Sought { runs: true },
                sought @ Process::Sought { .. } => sought,
            };
        }
        self.settle();
    }

    fn pick(&self, at: prop::sample::Index, wanted: impl Fn(Process) -> bool) -> Option<usize> {
        let tasks = 0..self.processes.len();
        let fit: Vec<usize> = tasks.filter(|at| wanted(self.processes[*at])).collect();
        (!fit.is_empty()).then(|| fit[at.index(fit.len())])
    }

    fn carry_out(&mut self, step: &SimulatedEvent) {
        match step {
            SimulatedEvent::Answer(at, well) => {
                let open = |process| matches!(process, Process::Starting | Process::Sought { .. });
                if let Some(task_at) = self.pick(*at, open) {
                    self.answer(task_at, *well);
                }
            }
            SimulatedEvent::End(at, well) => {
                if let Some(task_at) = self.pick(*at, |process| process == Process::Running) {
                    self.end(task_at, *well);
                }
            }
            SimulatedEvent::Timer => self.timer(),
            SimulatedEvent::Stop => self.apply_event(Event::DesiredChanged(DesiredStatus::Stop)),
            SimulatedEvent::Disconnect => self.apply_event(Event::Disconnected),
            SimulatedEvent::FillDisk => self.apply_event(Event::DiskExceeded {
                message: String::new(),
            }),
            SimulatedEvent::Destroy => self.apply_event(Event::DestroyAsked),
            SimulatedEvent::Deploy(name) => {
                self.desired.deployment = Some(DeploymentId::at(LogIndex(1), *name));
                self.runner.handle_update(&self.desired, self.now).unwrap();
                self.apply_event(Event::DesiredChanged(DesiredStatus::Run));
            }
            SimulatedEvent::Reload(made) => self.reload(*made),
        }
    }

    /// Every start is answered and every process ends, until nothing is left.
    fn wind_up(&mut self) {
        self.apply_event(Event::DestroyAsked);
        for _ in 0..200 {
            for task_at in 0..self.processes.len() {
                self.answer(task_at, true);
                if self.processes[task_at] == Process::Running {
                    self.end(task_at, true);
                }
            }
            if self.destroyed {
                return;
            }
            self.timer();
        }
        panic!("never destroyed: {:?}", self.runner);
    }
}

proptest! {
    #[test]
    fn tasks_keep_lifecycle_order_and_reach_terminal_state(
        desired in an_alloc(),
        moves in prop::collection::vec(a_move(), 0..60),
    ) {
        let mut world = SimulatedAlloc::new(desired);
        for step in &moves {
            world.carry_out(step);
        }
        world.wind_up();
        prop_assert!(world.runner.is_terminal());
    }
}
