//! Founding of exactly one cluster by several servers, for any order of starts and any crashes.
//!
//! The server with the lowest number among the expected ones is the *founder*. It asks each of them for a promise
//! to help to found this cluster and no other. A promise is on disk before it is given. When all have promised,
//! each of them may begin with the same list of servers. That is safe for any number of them.
//!
//! A founder that dies asks again when it is back. A founder that is refused withdraws its own promise, on disk,
//! before it tries another list. A server that promised to it asks it, learns of the withdrawal, and is free
//! again.
//!
//! A server that belongs to a cluster gives no promise. A server that finds a cluster joins it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::message::{BootstrapProposal, Hello, PeerInfo, PeerReply, PeerRequest};
use crate::data_dir::DataDir;
use crate::handle::Control;
use crate::limits;
use crate::raft::ChangeServersError;

/// The file with the promise, within the data directory.
const FILE: &str = "raft/founding.json";

/// This server's promise to found a cluster.
#[derive(Debug)]
pub(crate) struct Bootstrap {
    data_dir: Arc<DataDir>,
    promised: Mutex<Option<BootstrapProposal>>,
    /// A lock that allows one founding at a time.
    founding_lock: tokio::sync::Mutex<()>,
}

impl Bootstrap {
    /// Reads the earlier promise from disk.
    pub(crate) fn open(data_dir: Arc<DataDir>) -> Self {
        let promised = data_dir.read(FILE).and_then(|text| {
            serde_json::from_str(&text)
                .inspect_err(
                    |error| tracing::warn!(%error, file = FILE, "cannot be read; taken for none"),
                )
                .ok()
        });
        Self {
            data_dir,
            promised: Mutex::new(promised),
            founding_lock: tokio::sync::Mutex::new(()),
        }
    }

    /// This server's promise, if the cluster is not founded yet.
    pub(crate) fn promised(&self) -> Option<BootstrapProposal> {
        self.lock().clone()
    }

    /// Promises `founding`, unless another cluster is promised.
    pub(crate) async fn promise(
        &self,
        control: &Control,
        founding: &BootstrapProposal,
    ) -> Result<(), ChangeServersError> {
        let _guard = self.founding_lock.lock().await;
        self.promise_locked(control, founding).await
    }

    async fn promise_locked(
        &self,
        control: &Control,
        founding: &BootstrapProposal,
    ) -> Result<(), ChangeServersError> {
        if control.raft().founded() {
            return Err(ChangeServersError::refused(format!(
                "{} belongs to a cluster already",
                control.peers().me().node.name
            )));
        }
        if let Some(former) = self.promised()
            && former.founder != founding.founder
            && self.may_still_found(control, &former).await
        {
            return Err(ChangeServersError::refused(format!(
                "{} has promised to found a cluster with other servers; if those are gone for good, empty its data directory",
                control.peers().me().node.name
            )));
        }
        self.save_proposal(Some(founding.clone()))
    }

    /// Whether the founder of `former` may still found its cluster.
    async fn may_still_found(&self, control: &Control, former: &BootstrapProposal) -> bool {
        let Some(founder) = former
            .servers
            .iter()
            .find(|known| known.server_id == former.founder)
        else {
            return false;
        };
        let request = PeerRequest::Hello(control.hello());
        let addr = &founder.node.quic_addr;
        let asked = control
            .peers()
            .call_address(addr, request, limits::PEER_CALL_WAIT)
            .await;
        match asked {
            Ok(PeerReply::Hello(hello)) if hello.me.server_id == former.founder => {
                hello.founded || hello.promised.as_ref() == Some(former)
            }
            // The founder did not answer, so its plan is unknown and the promise holds.
            _ => true,
        }
    }

    /// Founds the cluster after all promises.
    pub(crate) async fn begin(
        &self,
        control: &Control,
        founding: &BootstrapProposal,
    ) -> Result<(), ChangeServersError> {
        if !control.raft().founded() && self.promised().as_ref() != Some(founding) {
            return Err(ChangeServersError::refused(
                "this server has promised something else",
            ));
        }
        control.raft().found(&founding.servers).await
    }

    /// Asks all of `servers` for their promise, and founds the cluster if all give it.
    pub(crate) async fn found(
        &self,
        control: &Control,
        servers: Vec<PeerInfo>,
    ) -> Result<(), ChangeServersError> {
        let _guard = self.founding_lock.lock().await;
        let me = control.peers().me().server_id;
        let founding = BootstrapProposal {
            founder: me,
            servers,
        };
        self.promise_locked(control, &founding).await?;
        let others = || {
            let others = founding.servers.iter();
            others.filter(|known| known.server_id != me)
        };
        for known in others() {
            let request = PeerRequest::Promise(founding.clone());
            control.peers().add_if_unknown(known);
            let waited = limits::PEER_CALL_WAIT + limits::PEER_CALL_WAIT;
            match control
                .peers()
                .call_within(known.server_id, request, waited)
                .await
            {
                Ok(PeerReply::Done) => {}
                Ok(other) => {
                    self.save_proposal(None)?;
                    return Err(ChangeServersError::refused(format!("{other:?}")));
                }
                Err(super::PeerError::Refused { reason }) => {
                    self.save_proposal(None)?;
                    return Err(ChangeServersError::Refused { reason });
                }
                // The server may have promised, so the founder must ask for the same list again.
                Err(error) => return Err(ChangeServersError::refused(error.to_string())),
            }
        }
        tracing::info!(servers = founding.servers.len(), "founding a cluster");
        control.raft().found(&founding.servers).await?;
        for known in others() {
            let request = PeerRequest::Found(founding.clone());
            // A server that misses this request gets the cluster from the log.
            if let Err(error) = control.peers().call(known.server_id, request).await {
                tracing::debug!(%error, "a server was not notified that the cluster is founded");
            }
        }
        Ok(())
    }

    /// Founds a cluster of this server and all known servers that belong to none.
    pub(crate) async fn found_now(
        &self,
        control: &Control,
    ) -> Result<Vec<PeerInfo>, ChangeServersError> {
        if control.raft().founded() {
            return Err(ChangeServersError::refused(
                "this server belongs to a cluster already: add others with `muster operator raft add`",
            ));
        }
        let mut servers = vec![control.peers().me().clone()];
        for known in control.peers().servers() {
            let request = PeerRequest::Hello(control.hello());
            match control.peers().call(known.server_id, request).await {
                Ok(PeerReply::Hello(hello)) if hello.founded => {
                    return Err(ChangeServersError::refused(format!(
                        "{} belongs to a cluster: this server joins that by itself, if it is started with --join",
                        hello.me.node.name
                    )));
                }
                Ok(PeerReply::Hello(hello)) => servers.push(hello.me),
                Ok(_) | Err(_) => {
                    return Err(ChangeServersError::refused(format!(
                        "{} at {} does not answer: start it, or start this server without it",
                        known.node.name, known.node.quic_addr
                    )));
                }
            }
        }
        servers.sort_unstable_by_key(|known| known.server_id);
        self.found(control, servers.clone()).await?;
        Ok(servers)
    }

    fn save_proposal(&self, founding: Option<BootstrapProposal>) -> Result<(), ChangeServersError> {
        let mut promised = self.lock();
        let kept = match &founding {
            Some(founding) => {
                let text = serde_json::to_string(founding)
                    .expect("numbers and names are always valid JSON");
                self.data_dir.write(FILE, &text)
            }
            None => self.data_dir.remove_durably(FILE),
        };
        if let Err(error) = kept {
            return Err(ChangeServersError::refused(crate::chain(&error)));
        }
        *promised = founding;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<BootstrapProposal>> {
        // The value is replaced in one assignment, so a panic elsewhere leaves it whole.
        self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the servers that `me` should found a cluster with, if it is their founder. They are the `expect` servers
/// with the lowest numbers among those that expect as many. `None` if `me` is not the founder, or some are missing.
pub(super) fn founding_servers(me: &Hello, hellos: &[Hello]) -> Option<Vec<PeerInfo>> {
    let mut servers: Vec<PeerInfo> = hellos
        .iter()
        .filter(|other| !other.founded && other.expect == me.expect)
        .map(|other| other.me.clone())
        .chain([me.me.clone()])
        .collect();
    servers.sort_unstable_by_key(|known| known.server_id);
    servers.dedup_by_key(|known| known.server_id);
    if servers.len() < me.expect as usize {
        return None;
    }
    servers.truncate(me.expect as usize);
    (servers.first()?.server_id == me.me.server_id).then_some(servers)
}
