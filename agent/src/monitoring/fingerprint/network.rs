//! The address by which this machine is known.

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The source address of packets from this machine to `server`. No packet is sent.
pub(crate) fn address_towards(server: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if server.is_ipv4() {
        SocketAddr::from(([0, 0, 0, 0], 0))
    } else {
        SocketAddr::from(([0_u16; 8], 0))
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(server).ok()?;
    socket.local_addr().ok().map(|addr| addr.ip())
}
