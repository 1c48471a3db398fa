//! `raft_commit`: writes through the durable log of one server, and their latency.
//!
//! A writer proposes, waits until its entry is on disk, committed and applied, and proposes again. The command is a
//! node's registration that changes nothing, so that applying costs next to nothing. The rival writes the same number
//! of bytes for the same number of writers to a file, and calls `fdatasync` once for all of them. That is the least
//! cost of durability on this disk. With one writer, each call covers one entry.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::ensure;
use muster_control::handle::Control;
use muster_control::server::{Server, ServerConfig};
use muster_control_core::fsm::{Entry, NodeCommand, Response};
use muster_domain::fixture;
use muster_wire::codec;

use crate::harness::{Context, Latencies, Metric, MetricSet, TURNS};

const WRITERS: [usize; 3] = [1, 64, 1_024];
/// Bytes after which the rival truncates its file, as the log begins a new one.
const FILE_BYTES: usize = 64 << 20;

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let dir = context.subdir()?;
    let mut config = ServerConfig::new(dir.path().join("server"));
    config.http_addr = ([127, 0, 0, 1], 0).into();
    config.quic_addr = ([127, 0, 0, 1], 0).into();
    let server = runtime.block_on(Server::start(config))?;
    let control = server.control().clone();

    let lasting = context.pick(Duration::from_secs(2), Duration::from_millis(700));
    let bytes = codec::encode(&command(0, &control))?.len();
    let mut tally = MetricSet::default();
    // The warm-up registers the node of every writer.
    let warm = Duration::from_millis(200);
    runtime.block_on(writes(&control, WRITERS[2], warm, &mut WriteRound::new()?))?;
    let floor = dir.path().join("floor");
    for _ in 0..context.rounds() {
        for writers in WRITERS {
            let (mut ours, mut theirs) = (WriteRound::new()?, WriteRound::new()?);
            for _ in 0..TURNS {
                runtime.block_on(writes(&control, writers, lasting / TURNS, &mut ours))?;
                group_commits(&floor, writers, bytes, lasting / TURNS, &mut theirs)?;
            }
            let rival = match writers {
                1 => "append and fdatasync".to_owned(),
                _ => format!("group commit of {writers}"),
            };
            for ((name, unit, value), (_, _, their_value)) in
                ours.values(writers).into_iter().zip(theirs.values(writers))
            {
                tally.add_muster_value(&name, unit, value);
                tally.add_rival_value(&name, unit, &rival, their_value);
            }
        }
    }
    runtime.block_on(server.shutdown());
    Ok(tally.finish())
}

/// The result of a round of writes: count, wall time, latencies.
pub(super) struct WriteRound {
    writes: u64,
    wall: Duration,
    latencies: Latencies,
}

impl WriteRound {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            writes: 0,
            wall: Duration::ZERO,
            latencies: Latencies::new()?,
        })
    }

    pub(super) fn values(&self, writers: usize) -> [(String, &'static str, f64); 3] {
        [
            (
                format!("writes_{writers}"),
                "writes/s",
                self.writes as f64 / self.wall.as_secs_f64(),
            ),
            (format!("p50_{writers}"), "µs", self.latencies.micros(0.5)),
            (format!("p99_{writers}"), "µs", self.latencies.micros(0.99)),
        ]
    }
}

pub(super) fn command(writer: usize, control: &Control) -> Entry {
    let spec = Box::new(fixture::node(&format!("writer-{writer}")).build());
    NodeCommand::Register { spec }.at(control.now())
}

/// Writes for the duration `lasting` and adds the results to `timed`.
pub(super) async fn writes(
    control: &Control,
    writers: usize,
    lasting: Duration,
    timed: &mut WriteRound,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let control = control.clone();
            tokio::spawn(async move {
                let command = command(writer, &control);
                let mut latencies = Latencies::new()?;
                let mut count = 0;
                while begun.elapsed() < lasting {
                    let proposing = Instant::now();
                    let (_, response) = control.propose(command.clone()).await?;
                    latencies.add(proposing.elapsed());
                    count += 1;
                    ensure!(
                        response == Response::NodeRegistered,
                        "answered with {response:?}"
                    );
                }
                Ok((count, latencies))
            })
        })
        .collect();
    for task in tasks {
        let (count, latencies) = task.await??;
        timed.writes += count;
        timed.latencies.merge(&latencies)?;
    }
    timed.wall += begun.elapsed();
    Ok(())
}

/// Repeatedly appends `batch` entries of `bytes` and makes them durable together. Adds the results to `timed`.
fn group_commits(
    path: &std::path::Path,
    batch: usize,
    bytes: usize,
    lasting: Duration,
    timed: &mut WriteRound,
) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    let mut written = 0;
    let entries = vec![7_u8; batch * bytes];
    let begun = Instant::now();
    while begun.elapsed() < lasting {
        let writing = Instant::now();
        file.write_all(&entries)?;
        file.sync_data()?;
        timed.latencies.add(writing.elapsed());
        timed.writes += batch as u64;
        written += entries.len();
        if written > FILE_BYTES {
            file = File::create(path)?;
            written = 0;
        }
    }
    timed.wall += begun.elapsed();
    Ok(())
}
