//! `bpf_cost`: the cost for tasks of the programs that watch and restrict them.
//!
//! Two threads of a task exchange bytes on one processor ([`work`]). Exchanges through pipes consist of context
//! switches between the two threads. Exchanges by datagrams, and of single bytes on a connection over loopback,
//! consist of packets. A stream is measured too. Each workload is timed with the programs loaded and the policy of a
//! job that defines none, and with no programs loaded. A round does both.
//!
//! The subject also reports the kernel's own measurement of each program (`bpf_stats`), without its two clock reads.
//! Empty programs run beside ours at the same time, at switches and at packets. The measured time of an empty program
//! (`ns_of_measuring_…`) is subtracted.
//!
//! Then the task sends a stream to this process, which is outside of the node's tree, restricted and with no programs
//! loaded. Finally one connection sends at the rate limit of the task. It sends as much data as two seconds allow,
//! plus the burst.
//!
//! Everything runs in a network namespace of its own.

mod work;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::MetadataExt as _,
};

use anyhow::{Context as _, anyhow, ensure};
use muster_agent::bpf::{
    Bpf, BpfConfig, EmptyPrograms, ProgramCost, ensure_bpffs, measure_cost, remove_pins,
    unmount_bpffs,
};
use muster_agent::fixture::attach_plain_policy;
use muster_domain::job::BitRate;
use nix::sched::{CloneFlags, unshare};

use crate::cgroup::CgroupDir;
use crate::harness::{Context, Metric, MetricSet};
use crate::subject::child::child_command;
use work::Workload;

pub(crate) use work::{CHILD, child};

/// The rival: tasks without any programs loaded.
const NOTHING: &str = "nothing loaded";

/// The metric of the stream to another process.
const STREAM: &str = "stream_to_another_process";

/// How long the kernel measures each program. A workload runs during that time.
const WATCHED: Duration = Duration::from_secs(2);

/// Rates that a task may send at, and the metric of the rate that one connection reaches.
const RATES: [(u64, &str); 2] = [
    (10_000_000, "sent_at_10_mbit"),
    (1_000_000_000, "sent_at_1_gbit"),
];

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let dir = context.subdir()?;
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("a network namespace: are you root?")?;
            let status = Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status()?;
            ensure!(status.success(), "ip link set lo up: {status}");
            let result = measure(context, dir.path());
            unmount_bpffs(dir.path())?;
            result
        });
        measured
            .join()
            .map_err(|_panic| anyhow!("the measuring thread failed"))?
    })
}

fn measure(context: &Context, dir: &Path) -> anyhow::Result<Vec<Metric>> {
    let place = BenchTree::new(dir)?;
    let mut tally = MetricSet::default();
    for _ in 0..context.rounds() {
        place.round(context, &mut tally)?;
    }
    Ok(tally.finish())
}

/// A node's tree with one task.
struct BenchTree {
    config: BpfConfig,
    task: PathBuf,
    tree: CgroupDir,
}

impl BenchTree {
    fn new(dir: &Path) -> anyhow::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let own = own.context("this machine has no cgroup v2 hierarchy")?;
        let tree = CgroupDir::create("cost")?;
        let task = tree.path().join("alloc/task");
        fs::create_dir_all(&task)?;
        let config = BpfConfig {
            pin_dir: ensure_bpffs(dir)?.join("muster-perf"),
            cgroup_dir: tree.path().to_owned(),
            task_level: u32::try_from(Path::new(own).components().count())? + 3,
        };
        Ok(Self { config, task, tree })
    }

    fn round(&self, context: &Context, tally: &mut MetricSet) -> anyhow::Result<()> {
        let mut without = Vec::new();
        for (name, work) in works(context) {
            without.push((name, self.time(work)?));
        }
        let mebibytes = context.pick(8_192, 2_048);
        tally.add_rival_value(STREAM, "MiB/s", NOTHING, self.throughput(mebibytes)?);
        let bpf = Bpf::open(&self.config)?;
        let result = self.watched(&bpf, context, &without, tally);
        remove_pins(&self.config.pin_dir)?;
        result
    }

    fn watched(
        &self,
        bpf: &Bpf,
        context: &Context,
        without: &[(&str, f64)],
        tally: &mut MetricSet,
    ) -> anyhow::Result<()> {
        let id = fs::metadata(&self.task)?.ino();
        bpf.watch(id)?;
        attach_plain_policy(bpf, id, None).map_err(|error| anyhow!(error))?;
        for ((name, work), (_, without)) in works(context).into_iter().zip(without) {
            tally.add_muster_value(name, "us", self.time(work)?);
            tally.add_rival_value(name, "us", NOTHING, *without);
        }
        let mebibytes = context.pick(8_192, 2_048);
        tally.add_muster_value(STREAM, "MiB/s", self.throughput(mebibytes)?);
        for (work, programs, (empty, of_measuring)) in WATCHED_WORKS {
            let costs = self.costs(*work)?;
            let nanos = |program: &str| -> anyhow::Result<f64> {
                let mut ran = costs.iter().filter(|cost| cost.runs > 0);
                let cost = ran.find(|cost| cost.name == program);
                let cost = cost.with_context(|| format!("`{program}` did not run"))?;
                Ok(cost.nanos())
            };
            let measuring = nanos(empty)?;
            tally.add_muster_value(of_measuring, "ns", measuring);
            for (program, name) in *programs {
                tally.add_muster_value(name, "ns", nanos(program)? - measuring);
            }
        }
        for (bits, name) in RATES {
            attach_plain_policy(bpf, id, Some(BitRate(bits))).map_err(|error| anyhow!(error))?;
            // The data for two seconds, and the burst.
            let mebibytes = (bits / 8 * 9 / 4) >> 20;
            let us = self.sent(mebibytes)?;
            tally.add_muster_value(name, "Mbit/s", mebibytes as f64 * 8.0 * 1.048_576e6 / us);
        }
        Ok(())
    }

    /// Returns the throughput in mebibytes per second of a stream from the task to this process.
    fn throughput(&self, mebibytes: u64) -> anyhow::Result<f64> {
        Ok(mebibytes as f64 * 1e6 / self.sent(mebibytes)?)
    }

    /// Returns the microseconds in which the task sends `mebibytes` to this process.
    fn sent(&self, mebibytes: u64) -> anyhow::Result<f64> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let kind = work::Transport::Send(listener.local_addr()?.port());
        let mut child = self.start(Workload {
            kind,
            times: mebibytes,
        })?;
        let (mut from, _) = listener.accept()?;
        let start = Instant::now();
        std::io::copy(&mut from, &mut std::io::sink())?;
        let took = start.elapsed();
        child.wait()?;
        Ok(took.as_secs_f64() * 1e6)
    }

    /// Returns the microseconds of one exchange.
    fn time(&self, work: Workload) -> anyhow::Result<f64> {
        let output = self.start(work)?.wait_with_output()?;
        ensure!(
            output.status.success(),
            "{work:?} ended with {}",
            output.status
        );
        let nanos: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
        Ok(nanos / 1e3 / work.times as f64)
    }

    /// Returns the kernel's measured costs of our programs and of the empty ones while the task works.
    fn costs(&self, work: Workload) -> anyhow::Result<Vec<ProgramCost>> {
        let _empty = EmptyPrograms::attach(self.tree.path())?;
        let mut child = self.start(work)?;
        let costs = measure_cost(WATCHED);
        child.kill()?;
        child.wait()?;
        Ok(costs?)
    }

    /// Starts `work` as the task.
    fn start(&self, work: Workload) -> anyhow::Result<std::process::Child> {
        let words = work.words();
        let program = child_command(CHILD, words.iter().map(AsRef::as_ref))?;
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo 0 >\"$0\" && exec \"$@\""])
            .arg(self.task.join("cgroup.procs"))
            .arg(program.get_program())
            .args(program.get_args());
        for (name, value) in program.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        Ok(command.stdout(Stdio::piped()).spawn()?)
    }
}

impl Drop for BenchTree {
    fn drop(&mut self) {
        // The drop of the tree removes the tree itself.
        drop(fs::remove_dir(&self.task));
        drop(fs::remove_dir(self.tree.path().join("alloc")));
    }
}

/// Returns the timed works, each with the name of its metric.
fn works(context: &Context) -> [(&'static str, Workload); 4] {
    let of = |kind: work::Transport, times: u64| Workload { kind, times };
    [
        (
            "us_per_switches",
            of(work::Transport::Pipe, context.pick(200_000, 50_000)),
        ),
        (
            "us_per_datagrams",
            of(work::Transport::Udp, context.pick(100_000, 30_000)),
        ),
        (
            "us_per_segments",
            of(work::Transport::Tcp, context.pick(100_000, 30_000)),
        ),
        (
            "us_per_mebibyte",
            of(work::Transport::Stream, context.pick(8_192, 2_048)),
        ),
    ]
}

/// A program, and the name of its metric.
type ProgramMetric = (&'static str, &'static str);

/// A workload under measurement, the programs measured during it, and the empty program beside them.
type WatchedWork = (Workload, &'static [ProgramMetric], ProgramMetric);

const WATCHED_WORKS: &[WatchedWork] = &[
    (
        Workload {
            kind: work::Transport::Pipe,
            times: u64::MAX,
        },
        &[("sched_switch", "ns_per_switch")],
        (EmptyPrograms::SWITCH, "ns_of_measuring_switches"),
    ),
    (
        Workload {
            kind: work::Transport::Udp,
            times: u64::MAX,
        },
        &[
            ("net_egress", "ns_per_datagram_sent"),
            ("net_ingress", "ns_per_datagram_received"),
        ],
        (EmptyPrograms::PACKET, "ns_of_measuring_datagrams"),
    ),
    (
        Workload {
            kind: work::Transport::Tcp,
            times: u64::MAX,
        },
        &[
            ("net_egress", "ns_per_segment_sent"),
            ("net_ingress", "ns_per_segment_received"),
        ],
        (EmptyPrograms::PACKET, "ns_of_measuring_segments"),
    ),
];
