//! Resolution of names into addresses, without addresses that callbacks must not reach.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use ipnet::IpNet;
use muster_domain::job::METADATA_ADDRESSES;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::TasksConfig;
use crate::peers::Peers;

/// A resolver that uses the machine's resolver and removes forbidden addresses. The call goes to the checked
/// addresses: the name is not resolved a second time.
#[derive(Debug)]
pub(super) struct FilteredResolver {
    /// Whether private addresses may be called, unless a list decides otherwise.
    private: bool,
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
    servers: ServerAddresses,
}

/// The addresses of the cluster's servers. A callback never goes to one, because a task could change the cluster
/// with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerAddresses {
    /// The ports on which this server listens, on any address of its machine.
    pub(crate) own_ports: Vec<u16>,
    pub(crate) peers: Option<Peers>,
}

impl ServerAddresses {
    fn contains(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        if self.own_ports.contains(&address.port()) && is_of_this_machine(ip) {
            return true;
        }
        let Some(peers) = &self.peers else {
            return false;
        };
        // Servers of a cluster usually listen on the same ports. Servers do not exchange their ports for Diego's
        // clients.
        peers.servers().iter().any(|peer| {
            let addresses = [&peer.node.http_addr, &peer.node.quic_addr];
            let mut addresses = addresses
                .into_iter()
                .filter_map(|text| text.parse::<SocketAddr>().ok());
            addresses.any(|of_peer| {
                of_peer.ip().to_canonical() == ip
                    && (of_peer.port() == address.port()
                        || self.own_ports.contains(&address.port()))
            })
        })
    }
}

/// Whether `ip` is an address of this machine: a socket can be bound to it.
fn is_of_this_machine(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || UdpSocket::bind((ip, 0)).is_ok()
}

impl Resolver for FilteredResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let all = DefaultResolver::default().resolve(uri, config, timeout)?;
        let mut left = self.empty();
        for address in all.iter().filter(|address| self.may_call(**address)) {
            left.push(*address);
        }
        if left.is_empty() && !all.is_empty() {
            return Err(ureq::Error::Other(
                "callbacks may not go to any of its addresses: see the flags --task-callback-*; addresses of servers and of cloud metadata are never called"
                    .into(),
            ));
        }
        Ok(left)
    }
}

impl FilteredResolver {
    pub(super) fn new(config: &TasksConfig, servers: ServerAddresses) -> Self {
        Self {
            servers,
            private: config.callback_private,
            allow: config.callback_allow.clone(),
            deny: config.callback_deny.clone(),
        }
    }

    fn may_call(&self, address: SocketAddr) -> bool {
        if self.servers.contains(address) {
            return false;
        }
        // Clouds serve a machine's secrets at these addresses. No client waits for a callback there, so the lists
        // do not apply.
        let ip = address.ip().to_canonical();
        if METADATA_ADDRESSES.contains(&ip) || is_link_local(ip) {
            return false;
        }
        let longest = |list: &[IpNet]| {
            let holds = list.iter().filter(|net| net.contains(&ip));
            holds.map(IpNet::prefix_len).max()
        };
        match (longest(&self.allow), longest(&self.deny)) {
            (None, None) => self.private || !is_private(ip),
            (allowed, denied) => allowed > denied,
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            let is_shared = first == 100 && (64..128).contains(&second);
            ip.is_private()
                || ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_broadcast()
                || is_shared
        }
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_loopback() || ip.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(private: bool, allow: &[&str], deny: &[&str]) -> FilteredResolver {
        let nets = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect();
        let config = TasksConfig {
            callback_private: private,
            callback_allow: nets(allow),
            callback_deny: nets(deny),
            ..TasksConfig::default()
        };
        FilteredResolver::new(&config, ServerAddresses::default())
    }

    #[test]
    fn servers_are_never_called() {
        let servers = ServerAddresses {
            own_ports: vec![4646],
            peers: None,
        };
        let config = TasksConfig {
            callback_allow: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
            ..TasksConfig::default()
        };
        let guarded = FilteredResolver::new(&config, servers);
        for own in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "::1",
            "::ffff:127.0.0.1",
        ] {
            let ip: IpAddr = own.parse().unwrap();
            assert!(!guarded.may_call((ip, 4646).into()), "{own}");
            assert!(guarded.may_call((ip, 4000).into()), "{own}");
        }
        assert!(guarded.may_call(([192, 0, 2, 1], 4646).into()));
    }

    #[test]
    fn longest_prefix_decides_and_deny_wins_ties() {
        for (guarded, ip, may) in [
            (guarded(true, &[], &[]), "10.0.0.1", true),
            (guarded(false, &[], &[]), "10.0.0.1", false),
            (guarded(false, &["10.0.0.0/8"], &[]), "10.0.0.1", true),
            (
                guarded(false, &["10.0.0.0/8"], &[]),
                "::ffff:10.0.0.1",
                true,
            ),
            (guarded(false, &["10.0.0.0/8"], &[]), "192.168.0.1", false),
            (guarded(false, &["10.0.0.0/8"], &[]), "1.1.1.1", true),
            (guarded(true, &[], &["10.0.0.0/8"]), "10.0.0.1", false),
            (
                guarded(true, &["10.1.0.0/16"], &["10.0.0.0/8"]),
                "10.1.0.1",
                true,
            ),
            (
                guarded(true, &["10.1.0.0/16"], &["10.0.0.0/8"]),
                "10.2.0.1",
                false,
            ),
            (
                guarded(true, &["10.0.0.0/8"], &["10.1.0.0/16"]),
                "10.1.0.1",
                false,
            ),
            (
                guarded(true, &["10.0.0.0/8"], &["10.0.0.0/8"]),
                "10.1.0.1",
                false,
            ),
            (
                guarded(true, &["1.0.0.0/8"], &["0.0.0.0/0"]),
                "2.2.2.2",
                false,
            ),
            (guarded(true, &["fd00::/8"], &["::/0"]), "fd00::1", true),
            (
                guarded(true, &["fd00::/8"], &["::/0"]),
                "2606:4700::1",
                false,
            ),
        ] {
            let address = (ip.parse::<IpAddr>().unwrap(), 80).into();
            assert_eq!(guarded.may_call(address), may, "{guarded:?} {ip}");
        }
    }

    #[test]
    fn cloud_metadata_addresses_are_never_called() {
        let anywhere = guarded(true, &["0.0.0.0/0", "::/0", "169.254.0.0/16"], &[]);
        for ip in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "100.100.100.200",
            "fd00:ec2::254",
        ] {
            assert!(
                !anywhere.may_call((ip.parse::<IpAddr>().unwrap(), 80).into()),
                "{ip}"
            );
        }
        assert!(anywhere.may_call(([10, 0, 0, 1], 80).into()));
    }

    #[test]
    fn private_and_link_local_addresses_are_recognised() {
        let private = [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "fd00::1",
            "::ffff:10.0.0.1",
        ];
        for ip in private {
            assert!(is_private(ip.parse().unwrap()), "{ip}");
        }
        for ip in ["1.1.1.1", "172.32.0.1", "2606:4700::1111", "100.128.0.1"] {
            assert!(!is_private(ip.parse().unwrap()), "{ip}");
        }
        for ip in ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254"] {
            assert!(is_link_local(ip.parse().unwrap()), "{ip}");
        }
    }
}
