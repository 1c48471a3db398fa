//! `raft_cluster`: writes through three and five servers, and the time without writes after the death of the leader.
//!
//! All servers run in this process with the default timeouts. Each has its own log on the same disk, and they use
//! QUIC with mutual TLS over loopback. Writers propose at the leader, as in `raft_commit`. The floor of a single
//! write is one append with `fdatasync` and then one round trip of a QUIC stream.
//!
//! etcd runs as three processes, each with its own log on that disk, loaded by its own `etcdctl check perf
//! --load=xl`. In that check a thousand clients together write at most 15 000 times a second.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use muster_control::handle::Control;
use muster_control::server::{Server, ServerConfig};
use muster_control_core::fsm::Response;
use muster_link::endpoint;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject, Identity, Role};
use muster_wire::codec;

use super::raft_commit::{WriteRound, command, writes};
use crate::harness::{Context, Latencies, MetricSet, TURNS};
use crate::program::is_in_path;

const WRITERS: [usize; 3] = [1, 64, 1_024];
const SIZES: [(u32, &str); 2] = [(3, "three"), (5, "five")];
/// The longest wait for a cluster to form, or for a new leader.
const DEADLINE: Duration = Duration::from_secs(30);
/// The longest run of etcd's own check, which takes a minute.
const ETCD_CHECK_MAX: Duration = Duration::from_secs(100);
/// Pause between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The application protocol of the echo connection.
const ECHO: &[u8] = b"muster-echo/1";
/// Writes to a file before it is truncated.
const APPENDS_MAX: u32 = 50_000;

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<crate::harness::Metric>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut tally = MetricSet::default();
    for (size, word) in SIZES {
        let dir = context.subdir()?;
        let cluster = runtime.block_on(Cluster::of(dir.path(), size, |_| {}))?;
        runtime.block_on(measure(context, &cluster, word, &mut tally))?;
        runtime.block_on(cluster.shutdown());
    }
    for _ in 0..context.rounds() {
        let dir = context.subdir()?;
        let seconds = runtime.block_on(fail_over(dir.path()))?;
        tally.add_muster_value("failover", "s", seconds);
    }
    match etcd(&context.subdir()?)? {
        Some(rate) => {
            for _ in 0..context.rounds() {
                tally.add_rival_value("writes_1024_of_three", "writes/s", "etcd", rate);
            }
        }
        None => writeln!(
            std::io::stderr(),
            "raft_cluster: no etcd and etcdctl here: apt-get install etcd-server etcd-client"
        )?,
    }
    Ok(tally.finish())
}

async fn measure(
    context: &Context,
    cluster: &Cluster,
    word: &str,
    tally: &mut MetricSet,
) -> anyhow::Result<()> {
    let leader = cluster.leader().await?;
    let lasting = context.pick(Duration::from_secs(2), Duration::from_millis(700));
    writes(
        &leader,
        WRITERS[2],
        Duration::from_millis(200),
        &mut WriteRound::new()?,
    )
    .await?;
    let bytes = codec::encode(&command(0, &leader))?.len();
    let mut floor = CommitFloor::start(&cluster.dir, bytes).await?;
    for _ in 0..context.rounds() {
        for writers in WRITERS {
            let mut ours = WriteRound::new()?;
            let mut theirs = Latencies::new()?;
            for _ in 0..TURNS {
                writes(&leader, writers, lasting / TURNS, &mut ours).await?;
                if writers == 1 {
                    floor.measure(lasting / TURNS, &mut theirs).await?;
                }
            }
            for (name, unit, value) in ours.values(writers) {
                tally.add_muster_value(&format!("{name}_of_{word}"), unit, value);
            }
            if writers == 1 {
                let name = format!("p50_1_of_{word}");
                tally.add_rival_value(&name, "µs", "fdatasync and QUIC echo", theirs.micros(0.5));
            }
        }
    }
    Ok(())
}

/// Servers in this process that form a cluster.
pub(super) struct Cluster {
    pub(super) dir: PathBuf,
    pub(super) servers: Vec<Server>,
}

impl Cluster {
    /// Starts `count` servers, each in its own directory, with certificates for their agents beside it. `configure`
    /// changes the default configuration.
    pub(super) async fn of(
        dir: &Path,
        size: u32,
        configure: impl Fn(&mut ServerConfig),
    ) -> anyhow::Result<Self> {
        let authority = Authority::generate("local")?;
        let mut servers: Vec<Server> = Vec::new();
        for number in 1..=size {
            let name = format!("s{number}");
            let tls_dir = dir.join(format!("{name}-tls"));
            let subject = CertificateSubject::Server {
                name: &name,
                hosts: &[],
            };
            authority.issue(&tls_dir, subject, CERTIFICATE_LIFE)?;
            authority.issue(&tls_dir, CertificateSubject::Agent, CERTIFICATE_LIFE)?;
            authority.save_certificate(&tls_dir)?;
            let free: SocketAddr = ([127, 0, 0, 1], 0).into();
            let first = servers
                .first()
                .map(|server| server.info().quic_addr.to_string());
            let mut config = ServerConfig {
                http_addr: free,
                quic_addr: free,
                bootstrap_expect: size,
                join: first.into_iter().collect(),
                tls_dir: Some(tls_dir),
                name: name.clone(),
                ..ServerConfig::new(dir.join(&name))
            };
            configure(&mut config);
            servers.push(Server::start(config).await?);
        }
        let cluster = Self {
            dir: dir.to_owned(),
            servers,
        };
        cluster.leader().await?;
        Ok(cluster)
    }

    /// Returns the leader's handle after a write through it is committed.
    pub(super) async fn leader(&self) -> anyhow::Result<Control> {
        let begun = Instant::now();
        loop {
            let leader = self.servers.iter().find(|server| {
                server
                    .control()
                    .leader()
                    .is_some_and(|leader| leader.is_self)
            });
            if let Some(server) = leader {
                let control = server.control();
                if control.propose(command(0, control)).await.is_ok() {
                    return Ok(control.clone());
                }
            }
            ensure!(begun.elapsed() < DEADLINE, "no leader within {DEADLINE:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    pub(super) async fn shutdown(self) {
        // The servers shut down together, because a single one would wait for others to take over.
        futures::future::join_all(self.servers.into_iter().map(Server::shutdown)).await;
    }
}

/// Returns the seconds from the death of the leader of three to the next committed write.
async fn fail_over(dir: &Path) -> anyhow::Result<f64> {
    let mut cluster = Cluster::of(dir, 3, |_| {}).await?;
    cluster.leader().await?;
    let at = cluster
        .servers
        .iter()
        .position(|server| {
            server
                .control()
                .leader()
                .is_some_and(|leader| leader.is_self)
        })
        .context("the leader went between two looks")?;
    drop(cluster.servers.swap_remove(at));
    let died = Instant::now();
    let control = cluster.servers[0].control().clone();
    while !matches!(
        control.propose(command(0, &control)).await,
        Ok((_, Response::NodeRegistered))
    ) {
        ensure!(
            died.elapsed() < DEADLINE,
            "no new leader within {DEADLINE:?}"
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let seconds = died.elapsed().as_secs_f64();
    cluster.shutdown().await;
    Ok(seconds)
}

/// An append with `fdatasync`, then a round trip of a QUIC stream.
struct CommitFloor {
    path: PathBuf,
    file: File,
    appends: u32,
    entry: Vec<u8>,
    sender: FrameSender,
    receiver: FrameReceiver,
    _endpoints: Vec<Box<dyn std::any::Any + Send>>,
}

impl CommitFloor {
    async fn start(dir: &Path, bytes: usize) -> anyhow::Result<Self> {
        let tls_dir = dir.join("s1-tls");
        let identity = Identity::load(&tls_dir, Role::Server)?;
        let free: SocketAddr = ([127, 0, 0, 1], 0).into();
        let serving = endpoint::server(free, &identity, &[ECHO])?;
        let addr = serving.local_addr()?;
        let accepting = serving.clone();
        tokio::spawn(async move {
            let connection = accepting.accept().await?.await.ok()?;
            let (send, receive) = connection.accept_bi().await.ok()?;
            let (mut sender, mut receiver) = (FrameSender::new(send), FrameReceiver::new(receive));
            while let Ok(Some(bytes)) = receiver.recv::<Vec<u8>>().await {
                sender.send(&bytes).await.ok()?;
            }
            Some(())
        });
        let client = endpoint::client(&identity, ECHO)?;
        let connection = client
            .connect(addr, &Role::Server.dns_name("local"))?
            .await?;
        let (send, receive) = connection.open_bi().await?;
        let path = dir.join("floor");
        Ok(Self {
            file: File::create(&path)?,
            path,
            appends: 0,
            entry: vec![7; bytes],
            sender: FrameSender::new(send),
            receiver: FrameReceiver::new(receive),
            _endpoints: vec![Box::new(serving), Box::new(client), Box::new(connection)],
        })
    }

    async fn measure(&mut self, lasting: Duration, times: &mut Latencies) -> anyhow::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < lasting {
            let one = Instant::now();
            self.file.write_all(&self.entry)?;
            self.file.sync_data()?;
            self.sender.send(&self.entry).await?;
            let echo: Option<Vec<u8>> = self.receiver.recv().await?;
            times.add(one.elapsed());
            ensure!(
                echo.as_deref() == Some(self.entry.as_slice()),
                "the echo differs"
            );
            self.appends += 1;
            if self.appends > APPENDS_MAX {
                self.file = File::create(&self.path)?;
                self.appends = 0;
            }
        }
        Ok(())
    }
}

/// Child processes that are killed when this value is dropped.
struct ChildProcesses(Vec<Child>);

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Returns the writes per second of three etcd servers, or `None` if this machine has no etcd.
fn etcd(dir: &tempfile::TempDir) -> anyhow::Result<Option<f64>> {
    if !(is_in_path("etcd") && is_in_path("etcdctl")) {
        return Ok(None);
    }
    let ports: Vec<(u16, u16)> = (0..3)
        .map(|_| Ok((free_port()?, free_port()?)))
        .collect::<anyhow::Result<_>>()?;
    let member = |at: usize| format!("e{at}=http://127.0.0.1:{}", ports[at].1);
    let members = [member(0), member(1), member(2)].join(",");
    let mut servers = ChildProcesses(Vec::new());
    for (at, (client, peer)) in ports.iter().enumerate() {
        let (client, peer) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let child = Process::new("etcd")
            .args(["--name", &format!("e{at}")])
            .arg("--data-dir")
            .arg(dir.path().join(format!("etcd-{at}")))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args([
                "--initial-cluster",
                &members,
                "--initial-cluster-state",
                "new",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start etcd")?;
        servers.0.push(child);
    }
    let endpoints: Vec<String> = ports
        .iter()
        .map(|(client, _)| format!("127.0.0.1:{client}"))
        .collect();
    let ctl = |args: &[&str]| {
        // The check of etcd takes a minute and has no option for a deadline.
        Process::new("timeout")
            .arg(ETCD_CHECK_MAX.as_secs().to_string())
            .arg("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &endpoints.join(",")])
            .args(args)
            .output()
            .context("run etcdctl")
    };
    let begun = Instant::now();
    while !ctl(&["endpoint", "health"])?.status.success() {
        ensure!(
            begun.elapsed() < DEADLINE,
            "etcd did not come up within {DEADLINE:?}"
        );
        std::thread::sleep(POLL_INTERVAL);
    }
    let output = ctl(&["check", "perf", "--load=xl"])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rate = text
        .split(" writes/s")
        .next()
        .filter(|before| before.len() < text.len())
        .and_then(|before| before.rsplit(' ').next()?.parse().ok());
    match rate {
        Some(rate) => Ok(Some(rate)),
        None => bail!("`etcdctl check perf` printed no writes/s: {text}"),
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?
        .local_addr()?
        .port())
}
