//! The `muster` command line: client commands, and the entry points of the long-running processes.
//!
//! [`Command`] lists the commands and the command families. A new family is a module and a variant here.
//!
//! | module | content |
//! |---|---|
//! | [`client`], [`names`], [`output`], [`exit`] | code that client commands share |
//! | [`job`], [`deployment`], [`alloc`], [`node`], [`eval`], [`events`], [`task`], [`top`], [`system`], [`operator`] | a file per command family |
//! | [`serve`] | the composition root: server, agent, dev, driver |
//! | [`doctor`] | the capabilities of this machine, and fixes for missing ones |
//!
//! Job files are read by the crate `jobspec`. Client commands use `wire` and it only; [`serve`], [`doctor`] and the offline parts of [`operator`] are the only modules
//! that see more.

#![forbid(unsafe_code)]

pub mod alloc;
pub mod client;
pub mod deployment;
pub mod doctor;
pub mod eval;
pub mod events;
pub mod exit;
pub mod job;
pub mod logs;
pub mod names;
pub mod net;
pub mod node;
pub mod operator;
pub mod output;
mod reason;
pub mod serve;
pub mod system;
pub mod task;
pub mod top;
pub mod usage;
pub mod why;

use clap::{Parser, Subcommand};

use crate::alloc::AllocCommand;
use crate::client::{Client, DEFAULT_ADDRESS};
use crate::deployment::DeploymentCommand;
use crate::doctor::DoctorArgs;
use crate::eval::EvalCommand;
use crate::events::EventsArgs;
use crate::exit::CliResult;
use crate::job::JobCommand;
use crate::net::NetArgs;
use crate::node::NodeCommand;
use crate::operator::OperatorCommand;
use crate::serve::{AgentArgs, DevArgs, DriverCommand, ServerArgs};
use crate::system::SystemCommand;
use crate::task::TaskCommand;
use crate::top::TopArgs;
use crate::why::WhyArgs;

/// Meaning of the exit codes, shown by `muster --help`.
const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 usage, 3 partly placed, 4 not found, 5 refused, \
6 cannot reach a server, 7 timed out, 130 interrupted.

Try it: sudo muster dev, then muster job run examples/web.hcl and muster top in another terminal.";

/// Runs jobs on fleets of bare-metal Linux machines.
#[derive(Debug, Parser)]
#[command(name = "muster", version, after_help = EXIT_CODES)]
pub struct Args {
    /// HTTP addresses of servers (http://HOST:PORT or HOST:PORT), separated by commas. Any that answers is used.
    #[arg(long, global = true, env = "MUSTER_ADDR", default_value = DEFAULT_ADDRESS, value_name = "URL", value_parser = client::parse_addresses)]
    pub address: String,
    /// Print JSON instead of tables.
    #[arg(long, global = true)]
    pub json: bool,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// A command of `muster`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a cluster in one process: one server and one agent, without configuration.
    Dev(DevArgs),
    /// Run a server.
    Server(Box<ServerArgs>),
    /// Run the agent of this machine, or remove what it left.
    Agent(AgentArgs),
    /// Run a task driver. The agent starts it.
    Driver {
        /// The driver.
        #[command(subcommand)]
        driver: DriverCommand,
    },
    /// Check this machine for missing features and print how to fix them.
    Doctor(DoctorArgs),
    /// Run, show and stop jobs.
    Job {
        /// The command on jobs.
        #[command(subcommand)]
        command: JobCommand,
    },
    /// Show, promote, pause and fail deployments.
    Deployment {
        /// The command on deployments.
        #[command(subcommand)]
        command: DeploymentCommand,
    },
    /// Show and stop allocations, print their output, run commands in them.
    Alloc {
        /// The command on allocations.
        #[command(subcommand)]
        command: AllocCommand,
    },
    /// Run, list, cancel and resolve one-off tasks.
    Task {
        /// The command on one-off tasks.
        #[command(subcommand)]
        command: TaskCommand,
    },
    /// Show and drain nodes.
    Node {
        /// The command on nodes.
        #[command(subcommand)]
        command: NodeCommand,
    },
    /// Show evaluations: the decisions of the scheduler.
    Eval {
        /// The command on evaluations.
        #[command(subcommand)]
        command: EvalCommand,
    },
    /// Explain for every node why it can or cannot run an instance, and name the smallest change that helps.
    ///
    /// Example: muster why web/api
    Why(WhyArgs),
    /// Show the traffic that network policies allowed and refused, by rule.
    ///
    /// Example: muster net web --denied --follow
    Net(NetArgs),
    /// Show the resource usage of every task, live from eBPF.
    Top(TopArgs),
    /// Follow changes as they happen.
    ///
    /// Example: muster events --topic Job --topic Allocation:web
    Events(EventsArgs),
    /// Manage servers: Raft, scheduler, snapshots, certificates, checks.
    Operator {
        /// The command for operators.
        #[command(subcommand)]
        command: OperatorCommand,
    },
    /// Manage the cluster as a whole.
    System {
        /// The command on the whole system.
        #[command(subcommand)]
        command: SystemCommand,
    },
    /// Print the completions of a shell.
    ///
    /// Example: muster completions bash > /etc/bash_completion.d/muster
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Runs the command in `args`.
///
/// # Errors
///
/// [`exit::CliError`].
pub fn run(args: &Args) -> CliResult {
    let client = Client::new(&args.address);
    match &args.command {
        Command::Dev(dev) => serve::dev(dev),
        Command::Server(server) => serve::server(server),
        Command::Agent(agent) => serve::agent(agent),
        Command::Driver { driver } => serve::driver(driver),
        Command::Doctor(doctor) => doctor::run(args.json, doctor),
        Command::Job { command } => job::run(&client, args.json, command),
        Command::Deployment { command } => deployment::run(&client, args.json, command),
        Command::Alloc { command } => alloc::run(&client, args.json, command),
        Command::Task { command } => task::run(&client, args.json, command),
        Command::Node { command } => node::run(&client, args.json, command),
        Command::Eval { command } => eval::run(&client, args.json, command),
        Command::Why(why) => why::run(&client, args.json, why),
        Command::Net(net) => net::run(&client, args.json, net),
        Command::Top(top) => top::run(&client, args.json, top),
        Command::Events(follow) => events::run(&client, args.json, follow),
        Command::Operator { command } => operator::run(&client, args.json, command),
        Command::System { command } => system::run(&client, args.json, command),
        Command::Completions { shell } => completions(*shell),
    }
}

fn completions(shell: clap_complete::Shell) -> CliResult {
    use clap::CommandFactory as _;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "muster", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(exit::Exit::Done)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Args;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself() {
        fn walk(command: &clap::Command, path: &str) {
            for sub in command
                .get_subcommands()
                .filter(|sub| sub.get_name() != "help")
            {
                let path = format!("{path} {}", sub.get_name());
                assert!(sub.get_about().is_some(), "{path} has no help");
                walk(sub, &path);
            }
        }
        walk(&Args::command(), "muster");
    }
}
