//! Several servers in one process, with real QUIC between them and real disks.

mod changes;
mod collection;
mod failover;
mod forming;
mod identity;
mod snapshot;

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use muster_control::handle::{Consistency, Control, ProposeError};
use muster_control::server::{Server, ServerConfig, StartServerError};
use muster_control_core::fsm::{Entry, JobCommand, Response};
use muster_control_core::state::State;
use muster_domain::fixture::job;
use muster_domain::id::{JobKey, LogIndex};
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject};
use tempfile::TempDir;

use crate::fixture::{self, soon};

/// A pause between two looks at something that has no way to be waited for.
const LOOK: Duration = Duration::from_millis(20);

/// A cluster's authority and its servers' directories.
pub(crate) struct Cluster {
    dir: TempDir,
    authority: Authority,
}

/// A server of it.
pub(crate) struct Member {
    server: Server,
    config: ServerConfig,
}

impl Cluster {
    /// No server yet.
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            authority: Authority::generate("local").unwrap(),
        }
    }

    /// A configuration on free ports, with a certificate.
    fn config(&self, name: &str, expect: u32, join: &[&Member]) -> ServerConfig {
        let tls_dir = self.dir.path().join(format!("{name}-tls"));
        let subject = CertificateSubject::Server { name, hosts: &[] };
        self.authority
            .issue(&tls_dir, subject, CERTIFICATE_LIFE)
            .unwrap();
        self.authority.save_certificate(&tls_dir).unwrap();
        ServerConfig {
            name: name.to_owned(),
            bootstrap_expect: expect,
            join: join.iter().map(|member| member.quic_addr()).collect(),
            tls_dir: Some(tls_dir),
            ..fixture::config(&self.dir.path().join(name))
        }
    }

    /// `count` servers that have found each other, and lead and vote.
    fn of(count: u32) -> Pin<Box<dyn Future<Output = (Self, Vec<Member>)>>> {
        Box::pin(async move {
            let cluster = Self::new();
            let mut members: Vec<Member> = Vec::new();
            for number in 1..=count {
                let first: Vec<&Member> = members.first().into_iter().collect();
                let config = cluster.config(&format!("s{number}"), count, &first);
                members.push(Member::start(config).await);
            }
            for member in &members {
                member.until_voters(count as usize).await;
            }
            (cluster, members)
        })
    }
}

impl Member {
    async fn start(config: ServerConfig) -> Self {
        let server = soon("the directory is free", async {
            loop {
                match Server::start(config.clone()).await {
                    Ok(server) => return server,
                    Err(
                        StartServerError::DataDir(muster_control::OpenDataDirError::InUse {
                            ..
                        })
                        | StartServerError::BindQuic(_)
                        | StartServerError::BindHttp { .. },
                    ) => tokio::time::sleep(LOOK).await,
                    Err(error) => panic!("{error:?}"),
                }
            }
        })
        .await;
        // Started again it is found where it was.
        let info = server.info();
        let config = ServerConfig {
            http_addr: info.http_addr,
            quic_addr: info.quic_addr,
            ..config
        };
        Self { server, config }
    }

    /// Dropped at once, as by a crash. What to start it with again.
    fn crash(self) -> ServerConfig {
        drop(self.server);
        self.config
    }

    async fn stop(self) -> ServerConfig {
        soon("shutdown", self.server.shutdown()).await;
        self.config
    }

    fn control(&self) -> &Control {
        self.server.control()
    }

    fn id(&self) -> u64 {
        self.server.info().server_id
    }

    fn name(&self) -> &str {
        &self.server.info().name
    }

    fn quic_addr(&self) -> String {
        self.server.info().quic_addr.to_string()
    }

    fn leads(&self) -> bool {
        self.control().leader().is_some_and(|leader| leader.is_self)
    }

    /// Waits until it knows of so many voters and of a leader.
    async fn until_voters(&self, count: usize) {
        soon(&format!("{} knows {count} voters", self.name()), async {
            loop {
                let voters = self.control().known_peers();
                let voters = voters.iter().filter(|member| member.voter).count();
                if voters == count && self.control().leader().is_some() {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        })
        .await;
    }

    /// Registers a job through this server. Another leader may be elected meanwhile: then it tries again, because
    /// nobody knows whether the job was registered, and to register it twice is the same.
    async fn register(&self, name: &str) -> LogIndex {
        let (index, response) = soon("a write", async {
            loop {
                let registration = registration(self.control(), name);
                match self.control().propose(registration).await {
                    Err(ProposeError::Timeout { .. }) => {}
                    result => return result.unwrap(),
                }
            }
        })
        .await;
        assert!(
            matches!(response, Response::JobRegistered { .. }),
            "{response:?}"
        );
        assert!(
            has(&self.control().state(), name),
            "a write is seen where it was made"
        );
        index
    }

    async fn read(&self, consistency: Consistency) -> State {
        soon("a read", self.control().read(consistency))
            .await
            .unwrap()
            .state
    }

    /// Waits until its own state has the job.
    async fn until_has(&self, name: &str) {
        let mut applied = self.control().applied();
        soon(&format!("{} has {name}", self.name()), async {
            while !has(&self.control().state(), name) {
                applied.changed().await.unwrap();
            }
        })
        .await;
    }
}

fn registration(control: &Control, name: &str) -> Entry {
    JobCommand::Register {
        spec: Box::new(job(name).count(0).build()),
        check_index: None,
        places: None,
    }
    .at(control.now())
}

fn has(state: &State, job: &str) -> bool {
    state.jobs().get(&JobKey::in_default(job)).is_some()
}

/// Waits until one of `members` leads and all of them agree. Its place in the list.
async fn leader(members: &[Member]) -> usize {
    soon("a leader", async {
        loop {
            let agreed: Vec<Option<u64>> = members
                .iter()
                .map(|member| member.control().leader().map(|leader| leader.server_id))
                .collect();
            let at = members.iter().position(Member::leads);
            if let Some(at) = at
                && agreed
                    .iter()
                    .all(|leader| *leader == Some(members[at].id()))
            {
                return at;
            }
            tokio::time::sleep(LOOK).await;
        }
    })
    .await
}

/// A port that nobody holds at the moment.
fn free_addr() -> SocketAddr {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
}
