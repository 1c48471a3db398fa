//! Names into addresses, without those that a callback may not go to.

use std::net::{IpAddr, SocketAddr};

use muster_domain::job::METADATA_ADDRESSES;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Resolves as the machine does, and leaves addresses out. What is called is what was looked at: the name is not
/// resolved a second time.
#[derive(Debug)]
pub(super) struct Guarded {
    /// Private ones may be called.
    pub(super) private: bool,
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
                "its addresses are private, and the servers call none of these".into(),
            ));
        }
        Ok(left)
    }
}

impl Guarded {
    fn may_call(&self, address: SocketAddr) -> bool {
        // Where clouds tell a machine its secrets; no client waits for a callback there.
        let ip = address.ip().to_canonical();
        let never = METADATA_ADDRESSES.contains(&ip) || is_link_local(ip);
        !never && (self.private || !is_private(ip))
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

    #[test]
    fn what_a_cloud_tells_its_machines_is_never_called() {
        let anywhere = Guarded { private: true };
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
