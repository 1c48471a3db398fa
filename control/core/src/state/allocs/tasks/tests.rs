use muster_domain::fixture::job;
use muster_domain::job::JobSpec;
use muster_domain::limits;
use proptest::prelude::*;

use super::*;

const BASE: Timestamp = Timestamp(1_700_000_000_000_000_000);

fn spec() -> JobSpec {
    job("web").build()
}

fn event(after_ms: u64, kind: TaskEventKind, message: &str) -> TaskEvent {
    TaskEvent {
        at: BASE.plus(Duration::from_millis(after_ms)),
        kind,
        message: message.to_owned(),
    }
}

/// The state that an agent reports for a task that it started.
fn running(name: &str) -> TaskState {
    let mut state = TaskState::pending(name);
    state.phase = TaskPhase::Running;
    state.push(event(41, TaskEventKind::Received, "the agent has the task"));
    let setup = "cgroup, FIFOs and directories are being made";
    state.push(event(43, TaskEventKind::Setup, setup));
    state.push(event(59, TaskEventKind::Started, "the process runs"));
    state.started_at = Some(BASE.plus(Duration::from_millis(59)));
    state
}

#[test]
fn a_task_that_runs_needs_no_allocation() {
    let spec = spec();
    let group = &spec.groups[0];
    let states = [running(&group.tasks[0].name)];

    let tasks = Tasks::pack(&states, group, BASE);

    assert!(
        matches!(tasks, Tasks::Inline { len, .. } if len <= 24),
        "{tasks:?}"
    );
    assert_eq!(tasks.unpack(group, BASE).unwrap(), states);
}

#[test]
fn oversized_task_network_is_dropped() {
    let spec = spec();
    let group = &spec.groups[0];
    let mut state = running(&group.tasks[0].name);
    state.network = Some(Box::new(TaskNetwork {
        address: "a".repeat(limits::TASK_NETWORK_NAME_CHARS_MAX),
        ports: (0..limits::TASK_NETWORK_PORTS_MAX)
            .map(|at| (at.to_string(), 80))
            .collect(),
        auto_advertise: true,
    }));
    let unpacked = |state: &TaskState| {
        let tasks = Tasks::pack(std::slice::from_ref(state), group, BASE);
        tasks.unpack(group, BASE).unwrap().remove(0).network
    };

    assert_eq!(unpacked(&state), state.network);
    for edit in [
        |network: &mut TaskNetwork| network.address.push('a'),
        |network: &mut TaskNetwork| {
            network.ports.insert("one more".to_owned(), 80);
        },
    ] {
        let mut large = state.clone();
        edit(large.network.as_mut().unwrap());
        assert_eq!(unpacked(&large), None);
    }
}

#[test]
fn bytes_that_lie_are_malformed() {
    let spec = spec();
    let group = &spec.groups[0];
    let whole = Tasks::pack(&[running("other")], group, BASE);

    for cut in 1..whole.as_slice().len() {
        let cut = Tasks::from_bytes(&whole.as_slice()[..cut]);
        assert_eq!(cut.unpack(group, BASE), Err(Malformed));
    }
    let many = Tasks::from_bytes(&[0xff, 0xff, 0xff, 0xff, 0x0e]);
    assert_eq!(many.unpack(group, BASE), Err(Malformed));
}

fn any_time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![any::<u64>(), BASE.0 - 9..BASE.0 + 90_000_000_000].prop_map(Timestamp)
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("the process runs".to_owned()),
        ".{0,60}"
    ]
}

fn any_kind() -> impl Strategy<Value = TaskEventKind> {
    prop_oneof![
        Just(TaskEventKind::Received),
        Just(TaskEventKind::Setup),
        Just(TaskEventKind::Started),
        Just(TaskEventKind::Recovered),
        Just(TaskEventKind::DriverFailure),
        (any::<i32>(), any::<i32>(), any::<bool>(), any::<bool>()).prop_map(
            |(code, signal, oom_killed, unknown)| TaskEventKind::Terminated(Exit {
                code,
                signal,
                oom_killed,
                unknown
            })
        ),
        (any::<u64>(), 0_u32..1_000_000_000).prop_map(|(seconds, nanos)| {
            TaskEventKind::Restarting {
                delay: Duration::new(seconds, nanos),
            }
        }),
        Just(TaskEventKind::NotRestarting),
        Just(TaskEventKind::Killing),
        Just(TaskEventKind::Killed),
        Just(TaskEventKind::SiblingFailed),
        Just(TaskEventKind::Driver),
        Just(TaskEventKind::DiskExceeded),
    ]
}

fn any_state() -> impl Strategy<Value = TaskState> {
    let phase = prop_oneof![
        Just(TaskPhase::Pending),
        Just(TaskPhase::Running),
        Just(TaskPhase::Dead)
    ];
    let name = prop_oneof![Just("main".to_owned()), "[a-z]{0,5}"];
    let event = (any_time(), any_kind(), any_text()).prop_map(|(at, kind, message)| TaskEvent {
        at,
        kind,
        message,
    });
    let times = (
        proptest::option::of(any_time()),
        proptest::option::of(any_time()),
        proptest::option::of(any_time()),
    );
    let events = proptest::collection::vec(event, 0..6);
    let ports = proptest::collection::btree_map("[a-z]{0,5}", any::<u16>(), 0..3);
    let network =
        (any_text(), ports, any::<bool>()).prop_map(|(address, ports, auto_advertise)| {
            Box::new(TaskNetwork {
                address,
                ports,
                auto_advertise,
            })
        });
    let network = proptest::option::of(network);
    (
        name,
        phase,
        any::<bool>(),
        any::<u32>(),
        times,
        events,
        network,
    )
        .prop_map(
            |(name, phase, failed, restarts, times, events, network)| TaskState {
                name,
                phase,
                failed,
                restarts,
                last_restart: times.0,
                started_at: times.1,
                finished_at: times.2,
                events,
                network,
            },
        )
}

proptest! {
    #[test]
    fn packed_tasks_are_unpacked_unchanged(states in proptest::collection::vec(any_state(), 0..4)) {
        let spec = spec();
        let group = &spec.groups[0];

        let tasks = Tasks::pack(&states, group, BASE);

        prop_assert_eq!(tasks.unpack(group, BASE).unwrap(), states);
        prop_assert_eq!(Tasks::from_bytes(tasks.as_slice()), tasks);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let spec = spec();
        drop(Tasks::from_bytes(&bytes).unpack(&spec.groups[0], BASE));
    }
}
