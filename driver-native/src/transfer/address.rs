//! Checks the addresses that the driver may connect to for a task.
//!
//! The driver makes a transfer from the host, with the host's network, for a task that may have no network. A task
//! must not use this to reach addresses that only the host can reach. These are the metadata service of a cloud, and
//! services that listen only for this machine. Private networks are allowed, because file stores are there.

use std::io;
use std::net::{IpAddr, SocketAddr};

use muster_domain::job::METADATA_ADDRESSES;
use thiserror::Error;
use tokio::net::{TcpStream, lookup_host};

/// The reason why no connection is made.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("look up {host}")]
    Lookup {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error("{host} is {address}: transfers to this kind of address are refused")]
    Never { host: String, address: IpAddr },
    #[error(
        "{host} is this machine; the operator may allow that: allow_local_transfers of the native driver's configuration"
    )]
    Local { host: String },
    #[error("connect to {host}")]
    Connect {
        host: String,
        #[source]
        source: io::Error,
    },
}

/// Connects to the first address of `host` that answers. The checked address is the one that is used: the name is not
/// looked up a second time.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    allow_local: bool,
) -> Result<TcpStream, ConnectError> {
    let host_name = || host.to_owned();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found = lookup_host((bare, port)).await;
    let addresses = found.map_err(|source| ConnectError::Lookup {
        host: host_name(),
        source,
    })?;
    let mut refused = None;
    for address in addresses {
        match check_address(address, host, allow_local) {
            Ok(()) => {}
            Err(error) => {
                refused = Some(error);
                continue;
            }
        }
        match TcpStream::connect(address).await {
            // The machine has addresses that are not loopback and that the driver cannot list.
            Ok(stream) if !allow_local && is_own(&stream) => {
                refused = Some(ConnectError::Local { host: host_name() });
            }
            Ok(stream) => return Ok(stream),
            Err(source) => {
                refused = Some(ConnectError::Connect {
                    host: host_name(),
                    source,
                });
            }
        }
    }
    Err(refused.unwrap_or_else(|| ConnectError::Lookup {
        host: host_name(),
        source: io::ErrorKind::NotFound.into(),
    }))
}

fn check_address(address: SocketAddr, host: &str, allow_local: bool) -> Result<(), ConnectError> {
    let ip = address.ip().to_canonical();
    if is_never(ip) {
        return Err(ConnectError::Never {
            host: host.to_owned(),
            address: ip,
        });
    }
    if is_local(ip) && !allow_local {
        return Err(ConnectError::Local {
            host: host.to_owned(),
        });
    }
    Ok(())
}

/// Returns whether the connection leads from an address to the same address.
fn is_own(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(own), Ok(peer)) => own.ip().to_canonical() == peer.ip().to_canonical(),
        // The connection has already ended.
        (Err(_), _) | (_, Err(_)) => true,
    }
}

/// Returns whether `ip` is a cloud's metadata service, another link-local address, or no unicast address.
fn is_never(ip: IpAddr) -> bool {
    if METADATA_ADDRESSES.contains(&ip) {
        return true;
    }
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    }
}

fn is_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn forbidden_and_local_addresses_are_refused() {
        let judged = |ip: &str, allow_local| {
            let address = SocketAddr::new(ip.parse().unwrap(), 80);
            check_address(address, "host", allow_local)
        };
        for ip in [
            "169.254.169.254",
            "fe80::1",
            "::ffff:169.254.169.254",
            "fd00:ec2::254",
            "100.100.100.200",
            "192.0.0.192",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            let error = judged(ip, true).unwrap_err();
            assert!(matches!(error, ConnectError::Never { .. }), "{ip}: {error}");
        }
        for ip in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "::1",
            "::",
            "::ffff:127.0.0.1",
        ] {
            let error = judged(ip, false).unwrap_err();
            assert!(matches!(error, ConnectError::Local { .. }), "{ip}: {error}");
            judged(ip, true).unwrap();
        }
        for ip in [
            "10.1.2.3",
            "192.168.0.1",
            "1.1.1.1",
            "fd00::1",
            "2606:4700::1111",
        ] {
            judged(ip, false).unwrap();
        }
    }

    #[tokio::test]
    async fn own_addresses_are_known_by_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();

        let stream = TcpStream::connect(address).await.unwrap();
        let refused = connect("127.0.0.1", address.port(), false).await;
        let allowed = connect("localhost", address.port(), true).await;

        assert!(is_own(&stream));
        assert!(matches!(refused, Err(ConnectError::Local { .. })));
        assert!(allowed.is_ok());
    }

    /// The machine's address in its own network, if it has one, is not a loopback address.
    #[tokio::test]
    async fn a_machine_is_itself_at_all_its_addresses() {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        // This sends nothing: the kernel only selects the source address.
        let routed = socket
            .connect("192.0.2.1:9")
            .and_then(|()| socket.local_addr());
        let Ok(own) = routed else { return };
        let listener = TcpListener::bind((own.ip(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();

        let refused = connect(&address.ip().to_string(), address.port(), false).await;

        assert!(
            matches!(refused, Err(ConnectError::Local { .. })),
            "{address}: {refused:?}"
        );
    }
}
