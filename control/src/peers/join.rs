//! Search of a server for its cluster. The server asks the configured servers, founds a cluster with them or joins
//! theirs. It announces a new address when it has moved.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bootstrap;
use super::message::{Hello, PeerReply, PeerRequest};
use crate::handle::Control;
use crate::limits;

/// Settings of the search for other servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct JoinConfig {
    /// Addresses of other servers: hosts and ports.
    pub(crate) join: Vec<String>,
}

/// Runs until `shutdown`.
pub(crate) async fn run(control: Control, search: JoinConfig, shutdown: CancellationToken) {
    let mut joiner = Joiner {
        control,
        search,
        logged: HashMap::new(),
        joined: false,
        led_at: Instant::now(),
    };
    loop {
        let pause = tokio::select! {
            () = shutdown.cancelled() => return,
            pause = joiner.step() => pause,
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[derive(Debug)]
struct Joiner {
    control: Control,
    search: JoinConfig,
    /// The last message logged about each address, so that it is logged once.
    logged: HashMap<String, String>,
    /// Whether this server has been a member in this run. If it is no member any more, it was removed on purpose.
    joined: bool,
    /// Time at which a leader was last known.
    led_at: Instant,
}

impl Joiner {
    /// Takes the next step of the search. Returns the pause before the following step.
    async fn step(&mut self) -> Duration {
        if self.control.removed() {
            return limits::JOIN_PAUSE_LONG;
        }
        if self.control.raft().founded() {
            self.maintain_membership().await
        } else {
            self.try_join().await
        }
    }

    /// Asks all known servers, then founds a cluster or joins one.
    async fn try_join(&mut self) -> Duration {
        let hellos = self.exchange_hellos().await;
        if let Some((addr, _)) = hellos.iter().find(|(_, hello)| hello.founded) {
            let addr = addr.clone();
            return self.join(&addr).await;
        }
        let me = self.control.hello();
        if me.expect < 2 {
            return limits::JOIN_PAUSE;
        }
        for (addr, hello) in &hellos {
            if hello.expect != me.expect && hello.expect != 0 {
                self.log_once(
                    addr,
                    &format!(
                        "{} expects {} servers, this one {}: start all with the same --bootstrap-expect",
                        hello.me.node.name, hello.expect, me.expect
                    ),
                );
            }
        }
        let hellos: Vec<Hello> = hellos.into_iter().map(|(_, hello)| hello).collect();
        let Some(servers) = bootstrap::founding_servers(&me, &hellos) else {
            return limits::JOIN_PAUSE;
        };
        match self.control.founder().found(&self.control, servers).await {
            Ok(()) => limits::JOIN_PAUSE,
            Err(error) => {
                self.log_once("", &format!("the cluster is not founded yet: {error}"));
                // A random pause keeps this server out of step with other servers that try the same.
                limits::JOIN_PAUSE + limits::JOIN_PAUSE.mul_f64(rand::random())
            }
        }
    }

    /// Maintains the membership of a server that belongs to a cluster.
    async fn maintain_membership(&mut self) -> Duration {
        let me = self.control.hello();
        let my_id = me.me.server_id;
        let member = me.members.contains(&my_id);
        if member && me.leader.is_some() {
            self.joined = true;
            self.led_at = Instant::now();
            let recorded = self
                .control
                .known_peers()
                .into_iter()
                .find(|known| known.server_id == my_id);
            if recorded.is_some_and(|recorded| recorded.node == me.me.node) {
                return limits::JOIN_PAUSE_LONG;
            }
            // The server has another address than the membership.
            return match self.control.call_leader(&PeerRequest::Join(me)).await {
                Ok(_) => limits::JOIN_PAUSE,
                Err(error) => {
                    self.log_once(
                        "",
                        &format!("the others do not know yet where this server is: {error}"),
                    );
                    limits::JOIN_PAUSE
                }
            };
        }
        if !member && self.joined {
            self.control.set_removed();
            return limits::JOIN_PAUSE_LONG;
        }
        // No server leads, or this server was away. The others may have moved, or may have removed it as lost.
        let had_leader_recently = self.led_at.elapsed() < limits::MEMBERSHIP_CHECK_AFTER;
        let hellos = self.exchange_hellos().await;
        let without_me = hellos.iter().find(|(_, hello)| {
            hello.founded && hello.leader.is_some() && !hello.members.contains(&my_id)
        });
        match without_me {
            Some((addr, _)) if !member || !had_leader_recently => {
                let addr = addr.clone();
                self.join(&addr).await
            }
            _ => limits::JOIN_PAUSE,
        }
    }

    /// Exchanges introductions with all known servers. Returns those that answered.
    async fn exchange_hellos(&mut self) -> Vec<(String, Hello)> {
        let control = self.control.clone();
        let own_addr = &control.peers().me().node.quic_addr;
        let mut addrs = self.search.join.clone();
        addrs.extend(
            control
                .peers()
                .servers()
                .into_iter()
                .map(|known| known.node.quic_addr),
        );
        addrs.sort_unstable();
        addrs.dedup();
        addrs.retain(|addr| addr != own_addr);
        let hello = control.hello();
        let asked = addrs.into_iter().map(|addr| {
            let (control, request) = (control.clone(), PeerRequest::Hello(hello.clone()));
            async move {
                let waited = limits::HELLO_WAIT;
                let reply = control.peers().call_address(&addr, request, waited).await;
                (addr, reply)
            }
        });
        let mut hellos = Vec::new();
        for (addr, reply) in futures::future::join_all(asked).await {
            match reply {
                Ok(PeerReply::Hello(hello))
                    if hello.me.server_id != control.peers().me().server_id =>
                {
                    control.peers().update_peer(&hello.me);
                    for other in &hello.others {
                        control.peers().add_if_unknown(other);
                    }
                    hellos.push((addr, hello));
                }
                // The answer comes from this server itself, at another of its addresses.
                Ok(_) => {}
                Err(super::PeerError::Refused { reason }) => {
                    self.log_once(&addr, &format!("{addr} refuses this server: {reason}"));
                }
                Err(error) => tracing::debug!(%error, addr, "no hello"),
            }
        }
        hellos
    }

    /// Asks the cluster of the server at `addr` to add this server.
    async fn join(&mut self, addr: &str) -> Duration {
        let request = PeerRequest::Join(self.control.hello());
        let waited = limits::CHANGE_SERVERS_WAIT;
        match self
            .control
            .peers()
            .call_address(addr, request, waited)
            .await
        {
            Ok(PeerReply::Done) => {
                tracing::info!(via = addr, "joined the cluster");
                self.logged.clear();
                self.led_at = Instant::now();
                limits::JOIN_PAUSE
            }
            Ok(_) => limits::JOIN_PAUSE,
            Err(error) => {
                self.log_once(
                    addr,
                    &format!("the cluster does not take this server: {error}"),
                );
                limits::JOIN_PAUSE_LONG
            }
        }
    }

    /// Logs `text` about `addr`, once.
    fn log_once(&mut self, addr: &str, text: &str) {
        if self.logged.get(addr).is_none_or(|last| last != text) {
            tracing::error!("{text}");
            self.logged.insert(addr.to_owned(), text.to_owned());
        }
    }
}
