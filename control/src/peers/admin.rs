//! Changes of the membership, requested at any server and carried out by the leader.

use std::time::Duration;

use tokio::time::Instant;

use super::message::{Hello, MemberRecord, PeerInfo, PeerReply, PeerRequest};
use crate::handle::{Control, LeaderInfo, Retry};
use crate::limits;
use crate::raft::{ChangeServersError, Leadership};

impl ChangeServersError {
    /// The action that a caller can take.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::NotLeader { .. } | Self::InProgress | Self::Timeout { .. } => Retry::Later,
            Self::Refused { .. } | Self::Stopped { .. } => Retry::Never,
        }
    }
}

impl Control {
    /// The members, as the leader knows them.
    ///
    /// # Errors
    ///
    /// [`ChangeServersError::NotLeader`] if no server leads.
    pub async fn list_peers(&self) -> Result<Vec<MemberRecord>, ChangeServersError> {
        match self.call_leader(&PeerRequest::Members).await? {
            PeerReply::Members(members) => Ok(members),
            other => Err(unexpected(&other)),
        }
    }

    /// The members as this server knows them; contact and positions only if it leads. A leader without recent
    /// contact, or without a quorum, is not marked as leader.
    #[must_use]
    pub fn known_peers(&self) -> Vec<MemberRecord> {
        let leader = self.leader().map(|leader| leader.server_id);
        let mut members = self.raft().members();
        for member in &mut members {
            member.leader = leader == Some(member.server_id);
        }
        members
    }

    /// Adds the server that answers at `quic_addr`, a host and a port. It votes as soon as it has caught up.
    ///
    /// # Errors
    ///
    /// [`ChangeServersError`].
    pub async fn add_peer(&self, quic_addr: &str) -> Result<(), ChangeServersError> {
        let quic_addr = quic_addr.to_owned();
        self.done(PeerRequest::Add { quic_addr }).await
    }

    /// Removes a member. If that is the leader, it transfers leadership first.
    ///
    /// # Errors
    ///
    /// [`ChangeServersError`].
    pub async fn remove_peer(&self, server_id: u64) -> Result<(), ChangeServersError> {
        self.done(PeerRequest::Remove { server_id }).await
    }

    /// Transfers leadership to `to`, or to the most up-to-date voter. Returns the new leader.
    ///
    /// # Errors
    ///
    /// [`ChangeServersError`].
    pub async fn transfer_leadership(
        &self,
        to: Option<u64>,
    ) -> Result<LeaderInfo, ChangeServersError> {
        self.done(PeerRequest::Transfer { to }).await?;
        let mut leadership = self.leadership();
        let wanted = |now: &Leadership| {
            now.leader
                .as_ref()
                .is_some_and(|leader| to.is_none_or(|to| leader.server_id == to))
        };
        let waited = limits::TRANSFER_WAIT;
        match tokio::time::timeout(waited, leadership.wait_for(wanted)).await {
            Ok(Ok(now)) => now
                .leader
                .clone()
                .ok_or(ChangeServersError::NotLeader { leader: None }),
            _ => Err(ChangeServersError::Timeout { waited }),
        }
    }

    /// Founds a cluster of this server and all known servers that belong to none. Returns its servers.
    ///
    /// # Errors
    ///
    /// [`ChangeServersError::Refused`] if this server or one of the others belongs to a cluster.
    pub async fn init(&self) -> Result<Vec<PeerInfo>, ChangeServersError> {
        self.founder().found_now(self).await
    }

    async fn done(&self, request: PeerRequest) -> Result<(), ChangeServersError> {
        match self.call_leader(&request).await? {
            PeerReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends `request` to the leader; waits a limited time for a leader.
    pub(crate) async fn call_leader(
        &self,
        request: &PeerRequest,
    ) -> Result<PeerReply, ChangeServersError> {
        let deadline = Instant::now() + limits::ELECTION_WAIT;
        let waited = limits::CHANGE_SERVERS_WAIT + limits::TRANSFER_WAIT;
        let mut leadership = self.leadership();
        loop {
            let leader = leadership.borrow_and_update().leader.clone();
            let reply = match leader {
                None => PeerReply::NotLeader,
                Some(leader) if leader.is_self => match self.handle_as_leader(request).await {
                    Err(ChangeServersError::NotLeader { .. }) => PeerReply::NotLeader,
                    answered => return answered,
                },
                Some(leader) => {
                    let calling =
                        self.peers()
                            .call_within(leader.server_id, request.clone(), waited);
                    match calling.await {
                        Ok(reply) => reply,
                        Err(super::PeerError::Refused { reason }) => {
                            return Err(ChangeServersError::Refused { reason });
                        }
                        Err(error) if error.is_not_executed() => PeerReply::NotLeader,
                        Err(_) => return Err(ChangeServersError::Timeout { waited }),
                    }
                }
            };
            match reply {
                PeerReply::NotLeader if Instant::now() < deadline => {
                    crate::raft::wait_for_leadership_change(&mut leadership, deadline).await;
                }
                PeerReply::NotLeader => {
                    return Err(ChangeServersError::NotLeader {
                        leader: self.leader(),
                    });
                }
                reply => return Ok(reply),
            }
        }
    }

    /// Answers another server's request for the leader.
    pub(crate) async fn serve_as_leader(&self, request: &PeerRequest) -> PeerReply {
        match self.handle_as_leader(request).await {
            Ok(reply) => reply,
            Err(ChangeServersError::NotLeader { .. }) => PeerReply::NotLeader,
            Err(error) => PeerReply::Refused {
                reason: error.to_string(),
            },
        }
    }

    /// Carries out a request that only the leader may carry out.
    async fn handle_as_leader(
        &self,
        request: &PeerRequest,
    ) -> Result<PeerReply, ChangeServersError> {
        let raft = self.raft();
        if !self.leads() {
            return Err(ChangeServersError::NotLeader {
                leader: self.leader(),
            });
        }
        match request {
            PeerRequest::Members => return Ok(PeerReply::Members(raft.members())),
            PeerRequest::Join(hello) => self.add_or_update_member(hello).await?,
            PeerRequest::Add { quic_addr } => {
                let hello = self.request_hello(quic_addr).await?;
                self.add_or_update_member(&hello).await?;
            }
            PeerRequest::Remove { server_id } => self.remove_member(*server_id).await?,
            PeerRequest::Transfer { to } => drop(raft.transfer(*to).await?),
            _ => {
                return Err(ChangeServersError::refused(
                    "this server does not know the request: it is of another version",
                ));
            }
        }
        Ok(PeerReply::Done)
    }

    /// Whether this server leads.
    pub(crate) fn leads(&self) -> bool {
        self.leader().is_some_and(|leader| leader.is_self)
    }

    /// Asks the server at `quic_addr` for its introduction.
    async fn request_hello(&self, quic_addr: &str) -> Result<Hello, ChangeServersError> {
        let request = PeerRequest::Hello(self.hello());
        let waited = limits::PEER_CALL_WAIT;
        match self.peers().call_address(quic_addr, request, waited).await {
            Ok(PeerReply::Hello(hello)) => Ok(hello),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(ChangeServersError::refused(format!(
                "{error}; is a server of this cluster running there, started with --join and a certificate of its own?"
            ))),
        }
    }

    /// Makes a server a member, or records its newer address.
    async fn add_or_update_member(&self, hello: &Hello) -> Result<(), ChangeServersError> {
        let members = self.raft().members();
        if let Some(reason) = join_refusal(hello, &members) {
            return Err(ChangeServersError::Refused { reason });
        }
        let known = members
            .iter()
            .find(|member| member.server_id == hello.me.server_id);
        if known.is_some_and(|member| member.node == hello.me.node) {
            return Ok(());
        }
        let name = &hello.me.node.name;
        tracing::info!(
            name,
            addr = hello.me.node.quic_addr,
            known = known.is_some(),
            "a server joins"
        );
        self.peers().update_peer(&hello.me);
        self.raft().add_learner(hello.me.clone()).await
    }

    /// Removes a member.
    async fn remove_member(&self, server_id: u64) -> Result<(), ChangeServersError> {
        let members = self.raft().members();
        let Some(member) = members.iter().find(|member| member.server_id == server_id) else {
            return Err(ChangeServersError::refused(format!(
                "server {server_id} is not a member: see `muster operator raft list-peers`"
            )));
        };
        if member.voter && members.iter().filter(|member| member.voter).count() == 1 {
            return Err(ChangeServersError::refused(format!(
                "{} is the only voter: the cluster needs it",
                member.node.name
            )));
        }
        if server_id == self.peers().me().server_id {
            // The caller then asks the new leader.
            let leader = self.raft().transfer(None).await?;
            return Err(ChangeServersError::NotLeader {
                leader: Some(leader),
            });
        }
        self.raft().remove(server_id).await?;
        tracing::info!(name = member.node.name, server_id, "a server was removed");
        // The removed server should start no useless election. One that misses this message is stopped or will be.
        let addr = &member.node.quic_addr;
        let answer = self
            .peers()
            .call_address(addr, PeerRequest::Removed { server_id }, REMOVED_WAIT)
            .await;
        if let Err(error) = answer {
            tracing::debug!(%error, "a removed server was not notified");
        }
        Ok(())
    }
}

/// How long a removed server may take to receive the notification.
const REMOVED_WAIT: Duration = Duration::from_secs(1);

/// The reason why a server cannot be a member of the cluster of `members`.
fn join_refusal(hello: &Hello, members: &[MemberRecord]) -> Option<String> {
    let name = &hello.me.node.name;
    let of_name = members.iter().find(|member| member.node.name == *name);
    if let Some(former) = of_name.filter(|member| member.server_id != hello.me.server_id) {
        return Some(format!(
            "{name} is a member with another data directory (server {}): if that one is lost, run `muster operator raft remove {name}`, and this \
             server joins; else give this server another --name, or its old --data-dir",
            former.server_id
        ));
    }
    let of_id = members
        .iter()
        .find(|member| member.server_id == hello.me.server_id);
    if let Some(former) = of_id.filter(|member| member.node.name != *name) {
        return Some(format!(
            "the data directory of {name} belongs to the member {}: start it with --name {}, or with an empty --data-dir",
            former.node.name, former.node.name
        ));
    }
    let strange = hello.founded
        && !members
            .iter()
            .any(|member| hello.members.contains(&member.server_id));
    strange.then(|| {
        format!(
            "{name} belongs to another cluster, with a state of its own: start it with an empty --data-dir to have it join this one"
        )
    })
}

fn unexpected(reply: &PeerReply) -> ChangeServersError {
    ChangeServersError::refused(format!(
        "another server answered {reply:?}: is it of another version?"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::message::ServerNode;
    use super::*;

    fn member(server_id: u64, name: &str) -> MemberRecord {
        MemberRecord {
            server_id,
            node: node(name),
            voter: true,
            leader: false,
            last_contact_ms: None,
            log_index: None,
            behind: 0,
            stalled_ms: 0,
        }
    }

    fn node(name: &str) -> ServerNode {
        ServerNode {
            name: name.to_owned(),
            quic_addr: format!("{name}:4647"),
            http_addr: format!("{name}:4646"),
        }
    }

    fn hello(server_id: u64, name: &str, members: &[u64]) -> Hello {
        Hello {
            me: PeerInfo {
                server_id,
                node: node(name),
            },
            expect: 0,
            founded: !members.is_empty(),
            others: Vec::new(),
            members: members.to_vec(),
            leader: None,
            promised: None,
        }
    }

    #[test]
    fn wiped_server_is_rejected_with_recovery_hint() {
        let members = [member(1, "one"), member(2, "two")];

        let reason = join_refusal(&hello(9, "two", &[]), &members).unwrap();

        assert!(
            reason.contains("muster operator raft remove two"),
            "{reason}"
        );
        assert_eq!(join_refusal(&hello(9, "three", &[]), &members), None);
        assert_eq!(join_refusal(&hello(2, "two", &[1, 2]), &members), None);
    }

    #[test]
    fn a_server_of_another_cluster_is_refused() {
        let members = [member(1, "one"), member(2, "two")];

        assert!(join_refusal(&hello(9, "three", &[9]), &members).is_some());
        // A removed server returns with its old data.
        assert_eq!(join_refusal(&hello(9, "three", &[1, 2, 9]), &members), None);
    }

    #[test]
    fn a_renamed_server_is_refused() {
        let reason = join_refusal(&hello(1, "new", &[1]), &[member(1, "old")]).unwrap();

        assert!(reason.contains("--name old"), "{reason}");
    }
}
