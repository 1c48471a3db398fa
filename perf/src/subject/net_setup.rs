//! `net_setup`: the cost of a network for an allocation, and of a policy for a task.
//!
//! The agent's own thread creates a network: namespace, pair of devices, addresses, routes, neighbours, settings,
//! programs, one published port for TCP and UDP. The rival makes the same netlink requests in a plain loop, without
//! the settings and the maps. Both are measured with few, some and many networks on the machine. A policy is compiled
//! from a job's specification and written. Each task has a different policy.
//!
//! Everything runs in a network namespace of its own.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, anyhow, ensure};
use muster_agent::bpf::{BpfConfig, ensure_bpffs, remove_pins, unmount_bpffs};
use muster_agent::fixture::Networks;
use muster_domain::fixture;
use nix::sched::{CloneFlags, unshare};

use crate::cgroup::CgroupDir;
use crate::harness::{Context, Metric, MetricSet};

/// Networks that are created at each count.
const NETWORKS_PER_STEP: usize = 20;
/// Rules in the policy of a task.
const RULES: u32 = 10;
/// Rules in a large policy.
const MANY_RULES: u32 = 10_000;
/// The number of tasks with a policy of their own before the last policies are timed.
const TASKS: u64 = 5_000;
/// The id of the first task. No real cgroup has this id.
const FIRST: u64 = 1 << 60;

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let dir = context.subdir()?;
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("a network namespace: are you root?")?;
            machine()?;
            let result = measure(context, dir.path());
            remove_pins(&pins(dir.path())?)?;
            unmount_bpffs(dir.path())?;
            result
        });
        measured
            .join()
            .map_err(|_panic| anyhow!("the measuring thread failed"))?
    })
}

/// Creates a machine with one network device that leads nowhere.
fn machine() -> anyhow::Result<()> {
    for command in [
        "link set lo up",
        "link add name up0 type veth peer name up1",
        "addr add 10.9.0.1/24 dev up0",
        "link set up0 up",
    ] {
        let status = Command::new("ip").args(command.split(' ')).status()?;
        ensure!(status.success(), "ip {command}: {status}");
    }
    Ok(())
}

fn pins(dir: &Path) -> anyhow::Result<std::path::PathBuf> {
    Ok(ensure_bpffs(dir)?.join("muster-perf"))
}

fn measure(context: &Context, dir: &Path) -> anyhow::Result<Vec<Metric>> {
    let cgroup = CgroupDir::create("net")?;
    let config = BpfConfig {
        pin_dir: pins(dir)?,
        cgroup_dir: cgroup.path().to_owned(),
        // No task runs in this tree.
        task_level: 2,
    };
    let mut networks = Networks::open(&config).map_err(|error| anyhow!(error))?;
    let mut tally = MetricSet::default();
    policies(&networks, context.rounds(), &mut tally).map_err(|error| anyhow!(error))?;
    let counts = context.pick([0, 500, 2_000], [0, 100, 500]);
    for count in counts {
        while networks.count() < count {
            networks.make().map_err(|error| anyhow!(error))?;
        }
        for _ in 0..context.rounds() {
            round(&mut networks, count, &mut tally).map_err(|error| anyhow!(error))?;
        }
    }
    Ok(tally.finish())
}

type SetupError = Box<dyn std::error::Error + Send + Sync>;

fn round(networks: &mut Networks, count: usize, tally: &mut MetricSet) -> Result<(), SetupError> {
    let (mut ours, mut theirs) = (0.0, 0.0);
    for _ in 0..NETWORKS_PER_STEP {
        let start = Instant::now();
        networks.make()?;
        ours += start.elapsed().as_secs_f64() * 1e6;
        let start = Instant::now();
        networks.make_bare()?;
        theirs += start.elapsed().as_secs_f64() * 1e6;
    }
    networks.remove_bare()?;
    let each = f64::from(u32::try_from(NETWORKS_PER_STEP)?);
    let mut names = vec![format!("bridge_us_{count}")];
    // The budget is about the cost among many networks.
    if count > 0 {
        names.push("bridge_us".to_owned());
    }
    for name in names {
        tally.add_muster_value(&name, "us", ours / each);
        tally.add_rival_value(&name, "us", "the same netlink calls", theirs / each);
    }
    Ok(())
}

fn policies(networks: &Networks, rounds: usize, tally: &mut MetricSet) -> Result<(), SetupError> {
    let group = fixture::group("g");
    let each = |from: u64| -> Result<f64, SetupError> {
        let start = Instant::now();
        for task in from..from + NETWORKS_PER_STEP as u64 {
            networks.attach_policy(&group, FIRST + task, RULES)?;
        }
        let took =
            start.elapsed().as_secs_f64() * 1e6 / f64::from(u32::try_from(NETWORKS_PER_STEP)?);
        for task in from..from + NETWORKS_PER_STEP as u64 {
            networks.forget(FIRST + task)?;
        }
        Ok(took)
    };
    let mut alone = Vec::new();
    for _ in 0..rounds {
        let took = each(0)?;
        tally.add_muster_value("policy_us_1", "us", took);
        alone.push(took);
    }
    for task in 0..TASKS {
        networks.attach_policy(&group, FIRST + task, RULES)?;
    }
    for alone in alone {
        tally.add_muster_value("policy_us_5000", "us", each(TASKS)?);
        tally.add_rival_value("policy_us_5000", "us", "policy_us_1", alone);
    }
    for task in 0..TASKS {
        networks.forget(FIRST + task)?;
    }
    for _ in 0..rounds {
        networks.attach_policy(&group, FIRST, RULES)?;
        let start = Instant::now();
        networks.attach_policy(&group, FIRST, MANY_RULES)?;
        let update = start.elapsed().as_secs_f64() * 1e3;
        tally.add_muster_value("policy_update_10000_rules", "ms", update);
    }
    networks.forget(FIRST)?;
    Ok(())
}
