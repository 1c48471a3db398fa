//! Drains a node and waits until it is empty.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use muster_wire::api::alloc::Allocation;
use muster_wire::api::duration;
use muster_wire::api::node::{DrainRequest, DrainSpecRequest, Node, NodeUpdateResponse};
use serde_json::json;

use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// The wait of one query before it is repeated.
const POLL: Duration = Duration::from_secs(1);
/// The interval of reminders while nothing changes.
const REMIND: Duration = Duration::from_secs(30);
/// The time for instances to end after a drain's deadline: longer than most kill timeouts.
const END_WAIT: Duration = Duration::from_mins(10);

/// Arguments of `muster node drain`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["enable", "disable"]).required(true))]
#[command(group = ArgGroup::new("which").args(["node", "this"]).required(true))]
#[command(group = ArgGroup::new("limit").args(["deadline", "force", "no_deadline"]))]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct DrainArgs {
    /// Name or id of the node.
    pub node: Option<String>,
    /// Use the node with this machine's name.
    #[arg(long = "self", id = "this")]
    pub this: bool,
    /// Start the drain: move allocations to other nodes and place none here.
    #[arg(long)]
    pub enable: bool,
    /// End the drain. The node accepts work again.
    #[arg(long)]
    pub disable: bool,
    /// Stop remaining allocations after this time, such as 30m or 2h.
    #[arg(long, default_value = "1h", value_parser = limit, value_name = "TIME", conflicts_with = "disable")]
    pub deadline: Duration,
    /// Stop all allocations at once.
    #[arg(long, conflicts_with = "disable")]
    pub force: bool,
    /// Wait without a deadline.
    #[arg(long, conflicts_with = "disable")]
    pub no_deadline: bool,
    /// Do not stop system jobs.
    #[arg(long, conflicts_with = "disable")]
    pub ignore_system: bool,
    /// With --disable: keep the node ineligible for new work.
    #[arg(long, conflicts_with = "enable")]
    pub keep_ineligible: bool,
    /// Return as soon as the drain has begun.
    #[arg(long)]
    pub detach: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
    /// How long to wait, in seconds. Default: the deadline and 10 minutes, or no limit without a deadline.
    #[arg(long, value_name = "SECONDS", conflicts_with = "disable")]
    pub timeout: Option<u64>,
}

fn limit(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(Duration::ZERO) => Err("invalid deadline 0: use --force or --no-deadline".to_owned()),
        Ok(limit) => Ok(limit),
        Err(error) => Err(error.to_string()),
    }
}

impl DrainArgs {
    /// The limit for the duration of the drain; `None`: no limit.
    fn limit(&self) -> Option<Duration> {
        match (self.force, self.no_deadline) {
            (true, _) => Some(Duration::ZERO),
            (_, true) => None,
            (false, false) => Some(self.deadline),
        }
    }

    fn request(&self, node_id: &str) -> DrainRequest {
        let spec = DrainSpecRequest {
            deadline: match self.limit() {
                None => 0,
                Some(Duration::ZERO) => -1,
                Some(limit) => duration::nanos(limit),
            },
            ignore_system_jobs: self.ignore_system,
        };
        DrainRequest {
            node_id: node_id.to_owned(),
            drain_spec: self.enable.then_some(spec),
            mark_eligible: self.disable && !self.keep_ineligible,
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        let given = self.timeout.map(Duration::from_secs);
        given.or_else(|| self.limit().map(|limit| limit.saturating_add(END_WAIT)))
    }
}

/// Begins or ends a drain, and waits until the node is empty.
///
/// # Errors
///
/// [`CliError`].
pub(super) fn run(client: &Client, json: bool, args: &DrainArgs) -> CliResult {
    let name = match &args.node {
        Some(name) => name.clone(),
        None => super::this_machine()?,
    };
    let node = names::node(client, &name, names::Access::Change)?;
    if args.enable && !args.yes {
        let question = format!(
            "Move everything off node {} ({})?",
            output::clean(&node.name),
            output::short_id(&node.id)
        );
        names::confirm(&question, || {
            CliError::new(
                Exit::Usage,
                "a drain must be confirmed, and standard input is not a terminal",
            )
            .help("say --yes to do without")
        })?;
    }
    let path = format!("/v1/node/{}/drain", node.id);
    let answer: NodeUpdateResponse = client.put(&path, &args.request(&node.id))?;
    if args.disable || args.detach {
        if json {
            output::print_json(&answer)?;
            return Ok(Exit::Done);
        }
        let node = output::clean(&node.name);
        output::print(&match (args.disable, args.keep_ineligible) {
            (true, false) => format!("Node {node} is drained no more and takes work.\n"),
            (true, true) => format!("Node {node} is drained no more; it takes no work.\n"),
            (false, _) => format!(
                "Node {node} is being drained.   see: muster node status {node}   undo: muster node drain --disable {node}\n"
            ),
        })?;
        return Ok(Exit::Done);
    }
    let mut wait = DrainMonitor::new(client, &node.id, args);
    let drained = wait.wait_until_empty()?;
    if json {
        output::print_json(&json!({
            "NodeID": node.id,
            "Drained": drained,
            "Ended": wait.states.values().filter(|state| **state == State::Ended).count(),
        }))?;
    } else if drained {
        output::print(&format!(
            "Node {} is drained; it takes no work.   undo: muster node drain --disable {}\n",
            output::clean(&node.name),
            output::clean(&node.name)
        ))?;
    } else {
        output::print("Somebody ended the drain: the node takes work again.\n")?;
    }
    Ok(if drained { Exit::Done } else { Exit::Failed })
}

/// The state of an instance on a node that is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The instance waits because others of its group migrate first.
    Waits,
    /// The instance was asked to migrate.
    Moves,
    /// The instance was asked to stop.
    Stops,
    /// The instance has ended.
    Ended,
}

impl State {
    fn of(alloc: &Allocation) -> Self {
        let is_live = matches!(alloc.client_status.as_str(), "pending" | "running");
        match (is_live, alloc.desired_status.as_str()) {
            (false, _) => Self::Ended,
            (true, "run") if alloc.desired_transition.migrate == Some(true) => Self::Moves,
            (true, "run") => Self::Waits,
            (true, _) => Self::Stops,
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Waits => "waits for its turn",
            Self::Moves => "is to go elsewhere",
            Self::Stops => "is stopping",
            Self::Ended => "has ended",
        }
    }
}

/// A wait for a node to become empty.
struct DrainMonitor<'a> {
    client: &'a Client,
    node_id: &'a str,
    ignore_system: bool,
    patience: Option<Duration>,
    /// The last printed state of each instance.
    states: BTreeMap<String, State>,
}

impl<'a> DrainMonitor<'a> {
    fn new(client: &'a Client, node_id: &'a str, args: &DrainArgs) -> Self {
        Self {
            client,
            node_id,
            ignore_system: args.ignore_system,
            patience: args.wait_limit(),
            states: BTreeMap::new(),
        }
    }

    /// Waits until the drain is over and no instance is left. False if an operator ended the drain.
    fn wait_until_empty(&mut self) -> Result<bool, CliError> {
        let began = Instant::now();
        let path = format!("/v1/node/{}", self.node_id);
        let allocs_path = format!("{path}/allocations");
        let mut index = 0;
        let mut printed_at = Instant::now();
        loop {
            let answer = self
                .client
                .get_after::<Vec<Allocation>>(&allocs_path, index, POLL)?;
            let node: Node = self.client.get(&path)?;
            let left: Vec<&Allocation> = answer
                .value
                .iter()
                .filter(|alloc| self.counts(alloc) && State::of(alloc) != State::Ended)
                .collect();
            if self.print_changes(&answer.value) {
                printed_at = Instant::now();
            }
            if !node.drain && node.scheduling_eligibility == "eligible" {
                return Ok(false);
            }
            if !node.drain && left.is_empty() {
                return Ok(true);
            }
            if self
                .patience
                .is_some_and(|patience| began.elapsed() >= patience)
            {
                return Err(self.timeout_error(&node, &left, began.elapsed()));
            }
            if printed_at.elapsed() >= REMIND {
                output::eprint(&describe_remaining(&node, &left));
                printed_at = Instant::now();
            }
            index = answer.index;
        }
    }

    fn counts(&self, alloc: &Allocation) -> bool {
        let kind = alloc.job.as_ref().map_or("", |job| job.job_type.as_str());
        !(self.ignore_system && matches!(kind, "system" | "sysbatch"))
    }

    /// Prints changes. True if there were any.
    fn print_changes(&mut self, allocs: &[Allocation]) -> bool {
        let mut news = Vec::new();
        for alloc in allocs.iter().filter(|alloc| self.counts(alloc)) {
            let state = State::of(alloc);
            let before = self.states.get(&alloc.id).copied();
            // An instance that had ended before the drain is not reported.
            if before == Some(state) || (before.is_none() && state == State::Ended) {
                continue;
            }
            output::eprint(&format!(
                "{}  {} {}",
                output::short_id(&alloc.id),
                output::clean(&alloc.name),
                state.description()
            ));
            news.push((alloc.id.clone(), state));
        }
        let has_changes = !news.is_empty();
        self.states.extend(news);
        has_changes
    }

    fn timeout_error(&self, node: &Node, left: &[&Allocation], waited: Duration) -> CliError {
        let node_id = output::short_id(self.node_id);
        CliError::new(
            Exit::TimedOut,
            format!(
                "after {}: {}",
                output::span(waited),
                describe_remaining(node, left)
            ),
        )
        .help(format!(
            "the drain goes on; see it with `muster node status {node_id}`"
        ))
    }
}

fn describe_remaining(node: &Node, left: &[&Allocation]) -> String {
    let due = node.drain_strategy.as_ref();
    let due = due.and_then(|strategy| strategy.force_deadline);
    let due = due.map_or_else(String::new, |at| {
        format!("; what is left is stopped {}", output::time_until(at.0.0))
    });
    match left {
        [] => format!("waiting for the servers to end the drain{due}"),
        [first, ..] => format!(
            "waiting for {} to end, {} first, which {}{due}",
            output::count_with_noun(left.len(), "allocation"),
            output::clean(&first.name),
            State::of(first).description()
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestArgs {
        #[command(flatten)]
        args: DrainArgs,
    }

    fn request(line: &str) -> Result<DrainRequest, clap::Error> {
        let words = std::iter::once("drain").chain(line.split_whitespace());
        TestArgs::try_parse_from(words).map(|line| line.args.request("n"))
    }

    #[test]
    fn drain_deadline_is_duration_none_or_forced() {
        for (line, nanos) in [
            ("--enable n", 3_600_000_000_000),
            ("--enable --deadline 30m n", 1_800_000_000_000),
            ("--enable --force n", -1),
            ("--enable --no-deadline --self", 0),
        ] {
            let spec = request(line).unwrap().drain_spec.unwrap();
            assert_eq!(spec.deadline, nanos, "{line}");
        }
    }

    #[test]
    fn drain_disable_may_keep_node_ineligible() {
        assert!(request("--disable n").unwrap().mark_eligible);
        assert!(
            !request("--disable --keep-ineligible n")
                .unwrap()
                .mark_eligible
        );
        assert_eq!(request("--disable n").unwrap().drain_spec, None);
    }

    #[test]
    fn flags_that_do_not_fit_are_refused() {
        for line in [
            "n",
            "--enable",
            "--enable --disable n",
            "--enable --self n",
            "--enable --force --no-deadline n",
            "--enable --deadline 0 n",
            "--enable --keep-ineligible n",
            "--disable --force n",
        ] {
            assert!(request(line).is_err(), "{line}");
        }
    }

    #[test]
    fn an_instance_goes_through_four_states() {
        let mut alloc = Allocation {
            client_status: "running".to_owned(),
            desired_status: "run".to_owned(),
            ..Allocation::default()
        };
        let mut states = vec![State::of(&alloc)];

        alloc.desired_transition.migrate = Some(true);
        states.push(State::of(&alloc));
        alloc.desired_status = "stop".to_owned();
        states.push(State::of(&alloc));
        alloc.client_status = "complete".to_owned();
        states.push(State::of(&alloc));

        assert_eq!(
            states,
            [State::Waits, State::Moves, State::Stops, State::Ended]
        );
    }
}
