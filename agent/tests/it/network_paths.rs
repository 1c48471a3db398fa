//! The ways out of a task: each is tried from inside, in every mode of its network and at every level of isolation,
//! with a policy that allows everything and with one that allows nothing, and compared with `testdata/egress-paths.md`.
//!
//! The outcome of a way is decided by the other end outside (`machine`), not by the words of the task (`tried`).
//! `tests/vm/network_paths.rs` and `tests/vm/policy.rs` test policies in detail.

mod inward;
mod machine;
mod tried;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use muster_agent::node::{Agent, AgentConfig, ShutdownPolicy};
use muster_domain::alloc::{ClientStatus, TaskState};
use muster_domain::job::{DirectionPolicy, GroupNetwork, NetworkMode, NetworkPolicy, PolicyAction};
use muster_wire::rpc::LogStream;
use serde_json::json;

use self::machine::{Outside, with_machine};
use self::tried::{API, EgressAttempt, PORT, PROGRAM, Reach, SERVER, VARIABLE, WAYS};
use crate::support::{AllocBuilder, FakeServer, Machine, batch, eventually, privileged, skipped};

/// The verdict on every way, to read and to test against.
const TABLE: &str = include_str!("../../testdata/egress-paths.md");

/// A level of isolation in a network mode.
type Column = (&'static str, NetworkMode);

/// Levels of isolation in the network modes that they go with, in the order of the tables' columns.
const PLACES: [Column; 6] = [
    ("raw", NetworkMode::Host),
    ("contained", NetworkMode::Host),
    ("contained", NetworkMode::None),
    ("contained", NetworkMode::Bridge),
    ("strict", NetworkMode::Host),
    ("strict", NetworkMode::None),
];
/// Those that do not go together, and words of the refusal.
const REFUSED: [(&str, NetworkMode, &str); 3] = [
    (
        "raw",
        NetworkMode::None,
        "isolation = \"raw\" is in the host's",
    ),
    (
        "raw",
        NetworkMode::Bridge,
        "isolation = \"raw\" is in the host's",
    ),
    (
        "strict",
        NetworkMode::Bridge,
        "`config.isolation`: \"strict\" has no network",
    ),
];

/// The attribute of a node on which contained tasks reach no abstract sockets of the host.
const SCOPE: &str = "driver.native.isolation.abstract_sockets";

/// The words of a task, by way.
type AttemptResults = BTreeMap<String, String>;

/// The outcome of one way under one policy.
#[derive(Debug)]
struct Outcome {
    word: String,
    arrived: bool,
}

#[test]
fn every_egress_path_matches_verdict_table() {
    let name = "network_paths::every_egress_path_matches_verdict_table";
    if !privileged(name) {
        return;
    }
    with_machine(name, |outside| async move {
        let machine = Machine::new();
        let server = machine.server();
        server.send_servers(vec![server.addr(), (target(SERVER), PORT).into()]);
        server.send_apis(vec![(target(API), PORT).into()]);
        let agent = Agent::start(config(&machine, &server)).await.unwrap();
        let driver = machine.data().join("drivers/native.sock");
        eventually("the driver to listen", async || {
            driver.exists().then_some(())
        })
        .await;
        let reach = |mode: &NetworkMode| outside.reach(mode, &driver);
        let mut names = 0..;
        let mut columns = Vec::new();

        for (level, mode) in PLACES {
            let mut under = Vec::new();
            for action in [PolicyAction::Allow, PolicyAction::Deny] {
                let alloc = task(
                    names.next().unwrap(),
                    (level, mode.clone()),
                    action,
                    &reach(&mode),
                );
                outside.forget();
                under.push(outcomes(&server, alloc, &outside).await);
            }
            let [open, closed] = under.try_into().unwrap();
            columns.push(open.into_iter().zip(closed).collect::<Vec<_>>());
        }
        for (level, mode, words) in REFUSED {
            let alloc = task(
                names.next().unwrap(),
                (level, mode.clone()),
                PolicyAction::Deny,
                &reach(&mode),
            );
            let task = failed(&server, alloc).await;
            let is_reported = task
                .events
                .iter()
                .any(|event| event.message.contains(words));
            assert!(is_reported, "{level} {mode:?}: {:?}", task.events);
        }

        let node = server
            .node(|node| node.attributes.contains_key(SCOPE))
            .await;
        let has_scope = node.attributes[SCOPE] == "1";
        agent.shutdown(ShutdownPolicy::StopTasks).await;
        compare(&columns, has_scope);
    });
}

/// Where the way of this name leads.
fn target(name: &str) -> IpAddr {
    let at = WAYS.iter().position(|way| way.name == name).unwrap();
    WAYS[at].target(at)
}

/// Raw tasks and the probe's program are allowed.
fn config(machine: &Machine, server: &FakeServer) -> AgentConfig {
    let mut config = machine.config(server);
    let this = std::env::current_exe().unwrap();
    let settings = config.plugins.get_mut("native").unwrap();
    settings.config["allow_paths"] = json!([this.parent().unwrap()]);
    config
}

/// The driver's configuration with which this program runs `entry` at this level.
fn native(level: &str, entry: &str) -> serde_json::Value {
    let this = std::env::current_exe().unwrap();
    let raw = level == "raw";
    let program = if raw {
        this.as_path()
    } else {
        Path::new(PROGRAM)
    };
    let mut native = json!({
        "command": program,
        "args": ["--ignored", "--exact", "--nocapture", entry],
        "isolation": level,
    });
    if !raw {
        native["mount"] = json!([{"source": this, "target": PROGRAM}]);
    }
    native
}

/// A task that tries every way.
fn task(
    name: u32,
    (level, mode): (&str, NetworkMode),
    action: PolicyAction,
    reach: &Reach,
) -> AllocBuilder {
    let native = native(level, "network_paths::tried::probe_entry");
    batch(name, "").driver("native", &native).with(|spec, _| {
        let group = &mut spec.groups[0];
        group.network = Some(GroupNetwork {
            mode,
            ports: Vec::new(),
            policy: None,
            dns: None,
            hostname: String::new(),
        });
        let task = &mut group.tasks[0];
        task.env.insert(VARIABLE.to_owned(), reach.to_json());
        task.policy = Some(NetworkPolicy {
            egress: DirectionPolicy {
                default: Some(action),
                ..DirectionPolicy::default()
            },
            ingress: DirectionPolicy::default(),
        });
    })
}

async fn failed(server: &FakeServer, alloc: AllocBuilder) -> TaskState {
    let alloc_id = server.place(alloc.build()).await;
    server.status(alloc_id, ClientStatus::Failed).await
}

/// The outcome of each way, in their order.
async fn outcomes(server: &FakeServer, alloc: AllocBuilder, outside: &Outside) -> Vec<Outcome> {
    let alloc_id = server.place(alloc.build()).await;
    let ended = |_: &TaskState, status: ClientStatus| {
        [ClientStatus::Complete, ClientStatus::Failed].contains(&status)
    };
    let task = server
        .reported(alloc_id, "the end of the probe", ended)
        .await;
    let log = server.log(alloc_id, LogStream::Stdout).await;
    assert!(!task.failed, "{:?}\n{log}", task.events);
    let words: AttemptResults = log
        .lines()
        .filter_map(|line| line.strip_prefix(tried::MARK)?.split_once('='))
        .map(|(name, word)| (name.to_owned(), word.to_owned()))
        .collect();
    let seen = outside.seen();
    let outcome = |(at, way): (usize, &EgressAttempt)| Outcome {
        word: words
            .get(way.name)
            .unwrap_or_else(|| panic!("{}: {log}", way.name))
            .clone(),
        arrived: seen.contains(&way.target(at)),
    };
    WAYS.iter().enumerate().map(outcome).collect()
}

/// The verdict in one cell.
fn verdict(open: &Outcome, closed: &Outcome) -> String {
    let word = |outcome: &Outcome| outcome.word.clone();
    match (open.arrived, closed.arrived) {
        (_, true) => return "out".to_owned(),
        (true, false) => return "policy".to_owned(),
        (false, false) => {}
    }
    match (word(open).as_str(), word(closed).as_str()) {
        ("done", "done") => "allowed".to_owned(),
        ("done", "send EPERM") => "policy".to_owned(),
        ("send EPERM", "send EPERM") => "policy, always".to_owned(),
        // A connection is refused before there is a way to look for.
        (open, closed) if open != closed && closed != "send EPERM" => {
            format!("{open}, then {closed}")
        }
        (word, _) => match word.split_once(' ') {
            Some((wall @ ("seccomp" | "capability" | "scope"), "EPERM")) => wall.to_owned(),
            Some(("namespace", _) | (_, "ENETUNREACH" | "EADDRNOTAVAIL" | "ENODEV")) => {
                "namespace".to_owned()
            }
            _ => word.to_owned(),
        },
    }
}

/// Whether the kernel lacks the feature that the way needs.
fn is_lacking(outcome: &Outcome) -> bool {
    let lacking = [
        "EAFNOSUPPORT",
        "EPROTONOSUPPORT",
        "ENOPROTOOPT",
        "ENOSYS",
        "seccomp EPERM",
    ];
    lacking.iter().any(|word| outcome.word.ends_with(word))
}

/// Compares with the table, of which every row and cell counts. Without a scope those ways are open that it closes.
fn compare(columns: &[Vec<(Outcome, Outcome)>], has_scope: bool) {
    let mut found = String::new();
    let table = if has_scope {
        TABLE.to_owned()
    } else {
        let reason = "this kernel's Landlock has no scopes, or it is not switched on";
        skipped("network_paths::every_way_out(scope)", reason);
        TABLE.replace("| scope |", "| out |")
    };
    let mut expected: BTreeMap<&str, &str> = table.lines().filter_map(row).collect();
    let mut wrong = Vec::new();
    for (at, way) in WAYS.iter().enumerate() {
        let mut line = format!("| {} |", way.name);
        for column in columns {
            let (open, closed) = &column[at];
            write!(line, " {} |", verdict(open, closed)).unwrap();
        }
        let wanted = expected.remove(way.name);
        // Nothing but the kernel refuses a raw task.
        if is_lacking(&columns[0][at].0) {
            let reason = format!("this kernel does not have it: {}", columns[0][at].0.word);
            skipped(
                &format!("network_paths::every_way_out({})", way.name),
                &reason,
            );
        } else if wanted != Some(line.as_str()) {
            wrong.push(format!(
                "{line}\n  wanted {wanted:?}\n  {:?}",
                column_words(columns, at)
            ));
        }
        writeln!(found, "{line}").unwrap();
    }
    wrong.extend(expected.values().map(|line| format!("nobody tries {line}")));
    assert!(
        wrong.is_empty(),
        "{}\nall that was found:\n{found}",
        wrong.join("\n")
    );
}

/// A row of the table with its way.
fn row(line: &str) -> Option<(&str, &str)> {
    let (name, _) = line.strip_prefix("| ")?.split_once(" |")?;
    let is_head = name == "way" || name.starts_with('-');
    (!is_head).then_some((name, line))
}

fn column_words(columns: &[Vec<(Outcome, Outcome)>], at: usize) -> Vec<(&str, bool, &str, bool)> {
    let cells = columns.iter().map(|column| &column[at]);
    cells
        .map(|(open, closed)| {
            (
                open.word.as_str(),
                open.arrived,
                closed.word.as_str(),
                closed.arrived,
            )
        })
        .collect()
}
