//! Three servers of one cluster, in this process, over real sockets.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use muster_control::server::{Server, ServerConfig};
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject};
use tempfile::TempDir;

use super::{Client, until};
use crate::fixture;

/// Names of the servers.
pub(crate) const NAMES: [&str; 3] = ["s1", "s2", "s3"];

/// Three servers. One that was stopped or lost is `None`.
pub(crate) struct ThreeServers {
    pub(crate) servers: Vec<Option<Server>>,
    dir: TempDir,
    quic: Vec<SocketAddr>,
}

impl ThreeServers {
    /// Starts three servers and waits until one leads.
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("local").unwrap();
        for name in NAMES {
            let tls = dir.path().join(name).join("tls");
            let subject = CertificateSubject::Server { name, hosts: &[] };
            authority.issue(&tls, subject, CERTIFICATE_LIFE).unwrap();
            authority
                .issue(&tls, CertificateSubject::Agent, CERTIFICATE_LIFE)
                .unwrap();
            authority.save_certificate(&tls).unwrap();
        }
        let mut trio = Self {
            servers: vec![None, None, None],
            dir,
            quic: free_addresses(),
        };
        for at in 0..NAMES.len() {
            trio.begin(at).await;
        }
        trio.settled().await;
        trio
    }

    /// Where the certificates of the server `at` its place are, and of an agent.
    pub(crate) fn tls(&self, at: usize) -> PathBuf {
        self.dir.path().join(NAMES[at]).join("tls")
    }

    fn config(&self, at: usize) -> ServerConfig {
        let home: PathBuf = self.dir.path().join(NAMES[at]);
        ServerConfig {
            name: NAMES[at].to_owned(),
            quic_addr: self.quic[at],
            bootstrap_expect: 3,
            join: self.quic.iter().map(ToString::to_string).collect(),
            tls_dir: Some(self.tls(at)),
            ..fixture::config(&home.join("data"))
        }
    }

    /// Starts the server `at` its place, again if it ran before.
    pub(crate) async fn begin(&mut self, at: usize) {
        let server = fixture::soon("the server starts", async {
            loop {
                match Server::start(self.config(at)).await {
                    Ok(server) => return server,
                    // Its former self has not let go of everything yet.
                    Err(error) => {
                        tracing::debug!(%error);
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        })
        .await;
        self.servers[at] = Some(server);
    }

    /// Drops the server at once, as a crash would. A connection that a test holds keeps it alive.
    pub(crate) fn crash(&mut self, at: usize) {
        drop(self.servers[at].take());
    }

    /// Stops the server in order.
    pub(crate) async fn stop(&mut self, at: usize) {
        if let Some(server) = self.servers[at].take() {
            fixture::soon("shutdown", server.shutdown()).await;
        }
    }

    pub(crate) fn server(&self, at: usize) -> &Server {
        self.servers[at].as_ref().expect("the server runs")
    }

    pub(crate) fn client(&self, at: usize) -> Client {
        Client::new(self.server(at))
    }

    /// Places of those that run.
    pub(crate) fn running(&self) -> Vec<usize> {
        let places = 0..self.servers.len();
        places.filter(|at| self.servers[*at].is_some()).collect()
    }

    /// Waits until all that run agree on who leads, and that one runs. Its place.
    pub(crate) async fn settled(&self) -> usize {
        fixture::soon("a leader", async {
            loop {
                let leaders: Vec<Option<String>> = self
                    .running()
                    .into_iter()
                    .map(|at| self.server(at).control().leader().map(|leader| leader.name))
                    .collect();
                let first = leaders.first().cloned().flatten();
                let place = first.as_ref().and_then(|name| {
                    let place = NAMES.iter().position(|known| known == name);
                    place.filter(|at| self.servers[*at].is_some())
                });
                if let Some(place) = place.filter(|_| leaders.iter().all(|one| *one == first)) {
                    return place;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// The place of a server that runs and does not lead.
    pub(crate) async fn follower(&self) -> usize {
        let leader = self.settled().await;
        let mut running = self.running().into_iter();
        running.find(|at| *at != leader).expect("another one runs")
    }

    /// Waits until all that run vote.
    pub(crate) async fn all_vote(&self) {
        let client = self.client(self.settled().await);
        until("all servers vote", async || {
            let answer = client.get("/v1/operator/raft/configuration").await;
            answer.status == 200 && {
                let servers = answer.json()["Servers"].as_array().unwrap().clone();
                servers.len() == 3 && servers.iter().all(|server| server["Voter"] == true)
            }
        })
        .await;
    }

    pub(crate) async fn shutdown(mut self) {
        for at in 0..self.servers.len() {
            self.stop(at).await;
        }
    }
}

/// Addresses that nobody has. Somebody might take one before it is used: then the start is tried again.
fn free_addresses() -> Vec<SocketAddr> {
    let sockets: Vec<UdpSocket> = NAMES
        .iter()
        .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
        .collect();
    let addresses = sockets.iter().map(|socket| socket.local_addr().unwrap());
    addresses.collect()
}
