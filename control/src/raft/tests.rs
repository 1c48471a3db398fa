//! A Raft of one server on real files.

use muster_control_core::fsm::JobCommand;
use muster_domain::fixture::job;
use muster_domain::id::{JobKey, Timestamp};
use muster_link::endpoint;
use muster_link::tls::{self, Identity, Role};
use tempfile::TempDir;

use super::*;

pub(super) async fn start(dir: &TempDir) -> Result<(Raft, Arc<Published>), StartRaftError> {
    let (published, _) = Published::new();
    let published = Arc::new(published);
    let data_dir = Arc::new(DataDir::open(dir.path()).unwrap());
    let config = RaftConfig {
        cluster: "test".to_owned(),
        peers: peers(&data_dir),
        alone: true,
        data_dir,
    };
    Ok((
        Raft::start(config, Arc::clone(&published)).await?,
        published,
    ))
}

/// Connections to other servers, for a server without other servers.
fn peers(data_dir: &DataDir) -> Peers {
    tls::ensure_cluster(&data_dir.tls(), "test", "one").unwrap();
    let identity = Identity::load(&data_dir.tls(), Role::Server).unwrap();
    let addr = "127.0.0.1:0".parse().unwrap();
    let endpoint = endpoint::server(addr, &identity, &[]).unwrap();
    let me = PeerInfo {
        server_id: data_dir.server_id(),
        node: ServerNode {
            name: "one".to_owned(),
            quic_addr: endpoint.local_addr().unwrap().to_string(),
            http_addr: String::new(),
        },
    };
    Peers::new(endpoint, &identity, me).unwrap()
}

pub(super) fn register(name: &str) -> Entry {
    JobCommand::Register {
        spec: Box::new(job(name).build()),
        check_index: None,
        places: None,
    }
    .at(Timestamp(1))
}

/// Returns the version and the bytes of each line `name` in a recording.
pub(super) fn recorded(recording: &str, name: &str) -> Vec<(u32, Vec<u8>)> {
    let of_name = recording
        .lines()
        .filter(|line| line.split(' ').next() == Some(name));
    let mut found = Vec::new();
    for line in of_name {
        let words: Vec<&str> = line.split(' ').collect();
        let digits = words[2].as_bytes().chunks(2);
        let bytes = digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16));
        let version = words[1].trim_start_matches('v').parse().unwrap();
        found.push((version, bytes.collect::<Result<_, _>>().unwrap()));
    }
    found
}

#[tokio::test]
async fn a_write_is_seen_once_it_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let (raft, published) = start(&dir).await.unwrap();

    let (index, _) = raft.write(&register("web")).await.unwrap();

    assert!(
        published
            .state()
            .jobs()
            .get(&JobKey::in_default("web"))
            .is_some()
    );
    assert_eq!(published.state().applied(), index);
    assert_eq!(*published.applied().borrow(), index);
    raft.shutdown().await;
}

/// An entry of a newer version stops the server before it changes anything, and at every later start.
#[tokio::test]
async fn entry_of_newer_format_stops_server() {
    let dir = tempfile::tempdir().unwrap();
    let (raft, published) = start(&dir).await.unwrap();
    raft.write(&register("web")).await.unwrap();
    let newer = EncodedCommand {
        format: 99,
        body: Arc::from(&b"from the future"[..]),
    };

    let refused = raft.raft.client_write(newer).await;
    let mut failed = raft.failed();
    let reason = failed
        .wait_for(Option::is_some)
        .await
        .unwrap()
        .clone()
        .unwrap();

    assert!(refused.is_err());
    assert!(reason.contains("format 99"), "{reason}");
    assert_eq!(published.state().jobs().len(), 1);
    raft.shutdown().await;
    drop((raft, failed));
    // The entry is refused while the log is read, or when it is committed again. Either error names the version.
    let again = match start(&dir).await {
        Err(error) => error.to_string(),
        Ok((raft, _)) => raft
            .failed()
            .wait_for(Option::is_some)
            .await
            .unwrap()
            .clone()
            .unwrap(),
    };
    assert!(again.contains("format 99"), "{again}");
}

/// The log does not grow for ever, and its remaining part continues the kept snapshots.
#[tokio::test]
async fn a_purged_log_continues_its_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let (raft, _) = start(&dir).await.unwrap();
    for at in 0..10 {
        raft.write(&register(&format!("job-{at}"))).await.unwrap();
    }
    let upto = raft.snapshot().await.unwrap();
    raft.raft.trigger().purge_log(upto.0).await.unwrap();
    let purged = raft
        .raft
        .wait(Some(limits::LEAD_WAIT))
        .purged(
            Some(openraft::testing::log_id::<TypeConfig>(1, 1, upto.0)),
            "purged",
        )
        .await;
    raft.write(&register("after")).await.unwrap();
    raft.shutdown().await;
    drop(raft);

    let (raft, published) = start(&dir).await.unwrap();

    assert!(purged.is_ok(), "{purged:?}");
    assert_eq!(published.state().jobs().len(), 11);
    raft.shutdown().await;
}

/// Without the snapshot that a purged log needs, the server does not start: the state would have a hole.
#[tokio::test]
async fn a_missing_snapshot_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (raft, _) = start(&dir).await.unwrap();
    raft.write(&register("web")).await.unwrap();
    let upto = raft.snapshot().await.unwrap();
    raft.raft.trigger().purge_log(upto.0).await.unwrap();
    raft.write(&register("after")).await.unwrap();
    raft.shutdown().await;
    drop(raft);
    let snapshots = dir.path().join("raft/snapshots");
    std::fs::remove_dir_all(&snapshots).unwrap();

    let error = start(&dir).await.unwrap_err();

    assert!(
        matches!(error, StartRaftError::Snapshot { .. }),
        "{error:?}"
    );
    assert!(
        error.to_string().contains(&snapshots.display().to_string()),
        "{error}"
    );
}
