//! Sockets on which server processes of this machine listen, as the kernel lists them.
//!
//! A server reports the addresses that it advertises. It may listen on others, such as on every address of its
//! machine. Tasks on that machine reach those.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use muster_domain::job::PolicyProtocol;

/// The name of the program in `/proc/PID/comm`.
const PROGRAM: &str = "muster";
/// The commands of the program that run a server.
const SERVER_COMMANDS: [&str; 2] = ["server", "dev"];
/// The state of a listening TCP socket in `/proc/net/tcp`, and of an unconnected UDP socket.
const TCP_LISTEN: &str = "0A";
const UDP_UNCONNECTED: &str = "07";

/// A socket on which a server listens. The address may be unspecified.
pub(super) type Listener = (PolicyProtocol, SocketAddr);

/// The sockets of all servers in this process's network namespace. Unreadable entries are left out, because a
/// process may end at any moment.
pub(super) fn of_servers() -> Vec<Listener> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let here = fs::read_link("/proc/self/ns/net").ok();
    let mut listeners: Vec<Listener> = processes
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|process| is_server(process) && fs::read_link(process.join("ns/net")).ok() == here)
        .flat_map(|process| of_process(&process))
        .collect();
    // The order is fixed, so that the same sockets do not count as a change.
    listeners.sort_unstable_by_key(|(protocol, socket)| (*socket, *protocol as u8));
    listeners.dedup();
    listeners
}

fn is_server(process: &Path) -> bool {
    let name = process.file_name().and_then(|name| name.to_str());
    if !name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        return false;
    }
    let is_program = fs::read_to_string(process.join("comm"))
        .is_ok_and(|comm| comm.trim_end().starts_with(PROGRAM));
    is_program
        && fs::read(process.join("cmdline")).is_ok_and(|line| {
            let mut words = line.split(|byte| *byte == 0).skip(1);
            words.any(|word| {
                SERVER_COMMANDS
                    .iter()
                    .any(|command| command.as_bytes() == word)
            })
        })
}

fn of_process(process: &Path) -> Vec<Listener> {
    let inodes = socket_inodes(process);
    let tables = [
        ("tcp", PolicyProtocol::Tcp, TCP_LISTEN),
        ("tcp6", PolicyProtocol::Tcp, TCP_LISTEN),
        ("udp", PolicyProtocol::Udp, UDP_UNCONNECTED),
        ("udp6", PolicyProtocol::Udp, UDP_UNCONNECTED),
    ];
    let mut listeners = Vec::new();
    for (table, protocol, state) in tables {
        let text = fs::read_to_string(process.join("net").join(table)).unwrap_or_default();
        let rows = text.lines().skip(1).filter_map(|row| parse_row(row, state));
        let own = rows.filter(|(_, inode)| inodes.contains(inode));
        listeners.extend(own.map(|(address, _)| (protocol, address)));
    }
    listeners
}

fn socket_inodes(process: &Path) -> BTreeSet<u64> {
    let Ok(files) = fs::read_dir(process.join("fd")) else {
        return BTreeSet::new();
    };
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    links
        .filter_map(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?;
            inode.strip_suffix(']')?.parse().ok()
        })
        .collect()
}

/// The local address and the inode of a row of `/proc/net/tcp` and its like, if the socket is in `state`.
fn parse_row(row: &str, state: &str) -> Option<(SocketAddr, u64)> {
    let mut words = row.split_ascii_whitespace();
    let (local, _remote) = (words.nth(1)?, words.next()?);
    if words.next()? != state {
        return None;
    }
    let inode = words.nth(5)?.parse().ok()?;
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(parse_address(address)?, port), inode))
}

/// An address as the kernel writes it: words of 32 bits in the order of the machine.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |text: &str| Some(u32::from_str_radix(text, 16).ok()?.to_ne_bytes());
    if text.len() == 8 {
        return Some(Ipv4Addr::from(word(text)?).into());
    }
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, chunk) in bytes.chunks_exact_mut(4).enumerate() {
        chunk.copy_from_slice(&word(text.get(8 * at..8 * at + 8)?)?);
    }
    Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_a_listening_socket_is_read() {
        let row = "   0: 0100007F:1226 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 40012 1";
        let all = "   1: 00000000000000000000000000000000:1226 00000000000000000000000000000000:0000 0A \
                   00000000:00000000 00:00000000 00000000     0        0 7 1";

        let (address, inode) = parse_row(row, TCP_LISTEN).unwrap();
        assert_eq!(
            (address.to_string().as_str(), inode),
            ("127.0.0.1:4646", 40_012)
        );
        let (address, _) = parse_row(all, TCP_LISTEN).unwrap();
        assert!(address.ip().is_unspecified() && address.port() == 4_646);
        assert_eq!(parse_row(row, UDP_UNCONNECTED), None);
        assert_eq!(parse_row("sl local_address", TCP_LISTEN), None);
    }

    #[test]
    fn own_listener_is_in_the_tables() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();

        let own = of_process(Path::new("/proc/self"));

        assert!(own.contains(&(PolicyProtocol::Tcp, address)), "{own:?}");
    }
}
