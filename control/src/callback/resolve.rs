//! Names into addresses, without those that a callback may not go to.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use muster_domain::job::METADATA_ADDRESSES;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::TasksConfig;

/// Resolves as the machine does, and leaves addresses out. What is called is what was looked at: the name is not
/// resolved a second time.
#[derive(Debug)]
pub(super) struct Guarded {
    /// Private ones may be called, unless a list says otherwise.
    private: bool,
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
}

impl Resolver for Guarded {
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
                "the servers are configured to call none of its addresses, or they are never called"
                    .into(),
            ));
        }
        Ok(left)
    }
}

impl Guarded {
    pub(super) fn new(config: &TasksConfig) -> Self {
        Self {
            private: config.callback_private,
            allow: config.callback_allow.clone(),
            deny: config.callback_deny.clone(),
        }
    }

    fn may_call(&self, address: SocketAddr) -> bool {
        // Where clouds tell a machine its secrets; no client waits for a callback there, whatever a list says.
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

    fn guarded(private: bool, allow: &[&str], deny: &[&str]) -> Guarded {
        let nets = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect();
        Guarded::new(&TasksConfig {
            callback_private: private,
            callback_allow: nets(allow),
            callback_deny: nets(deny),
            ..TasksConfig::default()
        })
    }

    #[test]
    fn the_longest_prefix_decides_and_a_refusal_of_the_same() {
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
    fn what_a_cloud_tells_its_machines_is_never_called() {
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
    fn private_addresses_are_told_from_others() {
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
