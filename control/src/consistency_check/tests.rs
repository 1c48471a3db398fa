//! The choice of the right state, and the stop of a server with another state.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use muster_control_core::fsm::JobCommand;
use muster_domain::id::WriteKey;
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject};

use super::*;
use crate::leader;
use crate::server::{Server, ServerConfig, StartServerError};

fn hash(nodes: u64) -> StateHash {
    StateHash {
        nodes,
        ..StateHash::default()
    }
}

/// Creates voters with these states; 0 is a voter without an answer.
fn comparison(states: &[u64]) -> StateHashComparison {
    let reports = states
        .iter()
        .zip(1..)
        .map(|(state, server_id)| StateHashReport {
            server: PeerInfo {
                server_id,
                node: crate::peers::message::ServerNode::default(),
            },
            voter: true,
            hash: match state {
                0 => Err("away".to_owned()),
                state => Ok(hash(*state)),
            },
        });
    StateHashComparison {
        index: LogIndex(7),
        reports: reports.collect(),
    }
}

#[test]
fn hash_of_most_voters_is_right() {
    assert_eq!(comparison(&[1, 1, 2]).majority_hash(), Some(hash(1)));
    assert_eq!(comparison(&[2, 1, 1]).majority_hash(), Some(hash(1)));
    assert_eq!(comparison(&[1]).majority_hash(), Some(hash(1)));
    assert_eq!(comparison(&[1, 1, 0]).majority_hash(), Some(hash(1)));
}

/// Half of the voters is no majority, and a voter without an answer counts against it.
#[test]
fn no_hash_is_right_without_a_majority() {
    assert_eq!(comparison(&[1, 2]).majority_hash(), None);
    assert_eq!(comparison(&[1, 0, 0]).majority_hash(), None);
    assert_eq!(comparison(&[1, 2, 3]).majority_hash(), None);
    assert_eq!(comparison(&[]).majority_hash(), None);
}

#[test]
fn a_learner_does_not_vote_on_state() {
    let mut comparison = comparison(&[1, 2, 2]);
    comparison.reports[1].voter = false;

    assert_eq!(comparison.majority_hash(), None);
}

#[test]
fn tables_that_differ_are_named() {
    assert_eq!(comparison(&[1, 1, 2]).differing(), ["nodes"]);
    assert!(comparison(&[1, 1, 0]).differing().is_empty());
}

#[test]
fn a_directory_that_differed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(check_data_dir(dir.path()).is_ok());

    std::fs::write(dir.path().join(MARK_FILE), "it differs").unwrap();

    let error = check_data_dir(dir.path()).unwrap_err();
    assert!(error.to_string().starts_with("it differs"), "{error}");
}

/// The time limit for each step on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

fn config(dir: &Path, name: &str, join: &[String]) -> ServerConfig {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    ServerConfig {
        name: name.to_owned(),
        http_addr: free,
        quic_addr: free,
        bootstrap_expect: 3,
        join: join.to_vec(),
        tls_dir: Some(dir.join(format!("{name}-tls"))),
        ..ServerConfig::new(dir.join(name))
    }
}

async fn until(what: &str, wanted: impl Fn() -> bool) {
    let looking = async {
        while !wanted() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let looked = tokio::time::timeout(STEP_TIMEOUT, looking).await;
    assert!(looked.is_ok(), "{what}: not within {STEP_TIMEOUT:?}");
}

/// Starts three voters.
async fn three(dir: &Path) -> Vec<Server> {
    let authority = Authority::generate("local").unwrap();
    let mut servers: Vec<Server> = Vec::new();
    for name in ["s1", "s2", "s3"] {
        let tls = dir.join(format!("{name}-tls"));
        let subject = CertificateSubject::Server { name, hosts: &[] };
        authority.issue(&tls, subject, CERTIFICATE_LIFE).unwrap();
        authority.save_certificate(&tls).unwrap();
        let first = servers
            .first()
            .map(|server| server.info().quic_addr.to_string());
        let join: Vec<String> = first.into_iter().collect();
        servers.push(Server::start(config(dir, name, &join)).await.unwrap());
    }
    for server in &servers {
        until("three voters and a leader", || {
            let members = server.control().known_peers();
            members.iter().filter(|member| member.voter).count() == 3
                && server.control().leader().is_some()
        })
        .await;
    }
    servers
}

/// Applies a command on all servers. Returns the index that all servers have applied.
///
/// The command has a key: during an election, a write without a key may end without an answer.
async fn write(servers: &[Server], key: &str) -> LogIndex {
    let control = servers[0].control();
    let key = WriteKey::new(key).unwrap();
    let command = JobCommand::Register {
        spec: Box::new(muster_domain::fixture::job("web").count(0).build()),
        check_index: None,
        places: None,
    }
    .at(control.now());
    let (index, _) = control.propose_keyed(key, command).await.unwrap();
    for server in servers {
        until("it is applied", || {
            *server.control().applied().borrow() >= index
        })
        .await;
    }
    index
}

fn leading(servers: &[Server]) -> usize {
    let leads = |server: &Server| {
        let leader = server.control().leader();
        leader.is_some_and(|leader| leader.is_self)
    };
    servers.iter().position(leads).expect("one leads")
}

/// A follower with damaged memory stops, names the table, and does not start again.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_state_differs_stops_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path()).await;
    let index = write(&servers, "1").await;
    let leader = leading(&servers);
    let wrong = (leader + 1) % 3;
    servers[wrong].control().published().corrupt_hash(index);

    leader::consistency_check::compare(servers[leader].control().clone(), index).await;

    let reason = tokio::time::timeout(STEP_TIMEOUT, servers[wrong].failed())
        .await
        .unwrap();
    assert!(reason.contains("in table nodes"), "{reason}");
    let config = config(dir.path(), &servers[wrong].info().name, &[]);
    servers.remove(wrong).shutdown().await;
    let again = Server::start(config).await.unwrap_err();
    assert!(matches!(again, StartServerError::Diverged(_)), "{again:?}");
    // The other two servers continue.
    write(&servers, "2").await;
    for server in servers {
        assert!(server.control().failed().borrow().is_none());
        server.shutdown().await;
    }
}

/// The leader has the wrong state: it stops itself, and the others elect another leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_state_differs_stops_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path()).await;
    let index = write(&servers, "3").await;
    let leader = leading(&servers);
    servers[leader].control().published().corrupt_hash(index);

    leader::consistency_check::compare(servers[leader].control().clone(), index).await;

    let failed = tokio::time::timeout(STEP_TIMEOUT, servers[leader].failed()).await;
    assert!(failed.unwrap().contains("differs"));
    servers.remove(leader).shutdown().await;
    write(&servers, "4").await;
    for server in servers {
        server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_agree_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let servers = three(dir.path()).await;
    let index = write(&servers, "5").await;

    leader::consistency_check::compare(servers[leading(&servers)].control().clone(), index).await;

    for server in servers {
        assert!(server.control().failed().borrow().is_none());
        server.shutdown().await;
    }
}
