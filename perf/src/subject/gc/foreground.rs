//! Requests that run both with and without a collection: placements of jobs, reads of the state, heartbeats.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use muster_control::handle::{Consistency, Control};
use muster_domain::fixture;
use muster_domain::id::LogIndex;
use muster_domain::job::JobType;
use muster_domain::node::NodeSecret;
use muster_link::endpoint;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_link::tls::{DEFAULT_CLUSTER, Identity, Role};
use muster_wire::rpc::{ALPN_AGENT, FromAgent, ToAgent};
use tokio::task::JoinHandle;

use super::{register, wait_for_allocs};
use crate::harness::Latencies;

/// Pause between two requests of one kind, and between two heartbeats of a node.
const PAUSE: Duration = Duration::from_millis(2);
/// The number of nodes that send heartbeats, spread over the servers.
const HEARTBEATING_NODES: usize = 6;

/// The requests under way.
pub(super) struct Foreground {
    stop: Arc<AtomicBool>,
    placing: JoinHandle<anyhow::Result<Latencies>>,
    reading: JoinHandle<anyhow::Result<Latencies>>,
    heartbeating: Vec<JoinHandle<anyhow::Result<(Latencies, HeartbeatingNode)>>>,
}

/// The latencies of those requests.
pub(super) struct ForegroundLatency {
    pub(super) placements: Latencies,
    pub(super) reads: Latencies,
    pub(super) heartbeats: Latencies,
}

impl Foreground {
    pub(super) fn start(
        control: &Control,
        prefix: &'static str,
        heartbeating: Vec<HeartbeatingNode>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (placer, stopped) = (control.clone(), Arc::clone(&stop));
        let placing = tokio::spawn(async move {
            let mut latencies = Latencies::new()?;
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let job_id = format!("{prefix}-{number}");
                register(&placer, &job_id, JobType::Batch, 1).await?;
                wait_for_allocs(&placer, &job_id, 1).await?;
                latencies.add(begun.elapsed());
                number += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Ok(latencies)
        });
        let (reader, stopped) = (control.clone(), Arc::clone(&stop));
        let reading = tokio::spawn(async move {
            let mut latencies = Latencies::new()?;
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                reader.read(Consistency::Linearizable).await?;
                latencies.add(begun.elapsed());
                tokio::time::sleep(PAUSE).await;
            }
            Ok(latencies)
        });
        let heartbeating = heartbeating.into_iter().map(|node| {
            let stopped = Arc::clone(&stop);
            tokio::spawn(node.send_heartbeats(stopped))
        });
        Self {
            placing,
            reading,
            heartbeating: heartbeating.collect(),
            stop,
        }
    }

    /// Waits for the requests under way. Returns the latencies and the nodes.
    pub(super) async fn end(self) -> anyhow::Result<(ForegroundLatency, Vec<HeartbeatingNode>)> {
        self.stop.store(true, Ordering::Relaxed);
        let placements = self.placing.await??;
        let reads = self.reading.await??;
        let mut heartbeats = Latencies::new()?;
        let mut nodes = Vec::new();
        for heartbeating in self.heartbeating {
            let (latencies, node) = heartbeating.await??;
            heartbeats.merge(&latencies)?;
            nodes.push(node);
        }
        let foreground = ForegroundLatency {
            placements,
            reads,
            heartbeats,
        };
        Ok((foreground, nodes))
    }
}

/// A node that only sends heartbeats. No job uses its datacenter.
pub(super) struct HeartbeatingNode {
    sender: FrameSender,
    receiver: FrameReceiver,
    number: u64,
    _endpoint: quinn::Endpoint,
}

impl HeartbeatingNode {
    /// Registers such nodes, with each of `servers` in turn.
    pub(super) async fn join(
        identity: &Identity,
        servers: &[SocketAddr],
    ) -> anyhow::Result<Vec<Self>> {
        let endpoint = endpoint::client(identity, ALPN_AGENT)?;
        let mut nodes = Vec::new();
        for (number, server) in servers.iter().cycle().take(HEARTBEATING_NODES).enumerate() {
            nodes.push(Self::join_one(&endpoint, *server, number).await?);
        }
        Ok(nodes)
    }

    async fn join_one(
        endpoint: &quinn::Endpoint,
        server: SocketAddr,
        number: usize,
    ) -> anyhow::Result<Self> {
        let connection = endpoint
            .connect(server, &Role::Server.dns_name(DEFAULT_CLUSTER))?
            .await
            .context("connect")?;
        let (send, receive) = connection.open_bi().await?;
        let (mut sender, mut receiver) = (FrameSender::new(send), FrameReceiver::new(receive));
        let node = fixture::node(&format!("beating-{number}")).datacenter("elsewhere");
        let register = FromAgent::Register {
            node: Box::new(node.build()),
            known: LogIndex(0),
            secret: NodeSecret::default(),
        };
        sender.send(&register).await?;
        match receiver.recv::<ToAgent>().await? {
            Some(ToAgent::Registered { .. }) => {}
            other => bail!("the registration was answered with {other:?}"),
        }
        Ok(Self {
            sender,
            receiver,
            number: 0,
            _endpoint: endpoint.clone(),
        })
    }

    /// Sends heartbeats until `stopped` is set, and waits for each answer. An answer also covers all earlier
    /// heartbeats.
    async fn send_heartbeats(
        mut self,
        stopped: Arc<AtomicBool>,
    ) -> anyhow::Result<(Latencies, Self)> {
        let sent: Mutex<VecDeque<(u64, Instant)>> = Mutex::default();
        let last = AtomicU64::new(u64::MAX);
        let (sender, receiver) = (&mut self.sender, &mut self.receiver);
        let mut number = self.number;
        let sending = async {
            let mut ticks = tokio::time::interval(PAUSE);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            loop {
                ticks.tick().await;
                number += 1;
                let is_last = stopped.load(Ordering::Relaxed);
                if is_last {
                    last.store(number, Ordering::Relaxed);
                }
                sent.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_back((number, Instant::now()));
                sender.send(&FromAgent::Heartbeat { number }).await?;
                if is_last {
                    return anyhow::Ok(());
                }
            }
        };
        let receiving = async {
            let mut latencies = Latencies::new()?;
            loop {
                let answered = match receiver.recv::<ToAgent>().await? {
                    Some(ToAgent::HeartbeatAck { number, .. }) => number,
                    Some(_) => continue,
                    None => bail!("the server has ended a node's session"),
                };
                let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
                while let Some((_, at)) = sent.pop_front_if(|(beat, _)| *beat <= answered) {
                    latencies.add(at.elapsed());
                }
                if answered >= last.load(Ordering::Relaxed) {
                    return Ok(latencies);
                }
            }
        };
        let ((), latencies) = tokio::try_join!(sending, receiving)?;
        self.number = number;
        Ok((latencies, self))
    }
}
