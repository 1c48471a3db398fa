//! The place to which a callback goes: one name for a place, for each way of writing its URL.
//!
//! The result is part of applying entries, so every server must get the same result. Therefore it is computed here by
//! hand, without tables that differ between versions of a library. Deliberately absent: resolving a name. A host with
//! many names counts as many places.

// These types are in `core`, which has addresses and no sockets.
use core::net::{Ipv4Addr, Ipv6Addr};

/// Returns scheme, host and port of a URL: in lower case, without the user, the scheme's own port or the dot after a
/// name, and with an address in its usual form. A text that is not a URL is a place of its own.
#[must_use]
pub fn place_of(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let scheme = scheme.to_ascii_lowercase();
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or("");
    let authority = authority.rsplit('@').next().unwrap_or("");
    let (host, port) = parts(authority);
    let default = match scheme.as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    let host = host_of(host);
    match (port, port.parse::<u16>().ok()) {
        ("", _) => format!("{scheme}://{host}"),
        (_, Some(port)) if Some(port) == default => format!("{scheme}://{host}"),
        (_, Some(port)) => format!("{scheme}://{host}:{port}"),
        (port, None) => format!("{scheme}://{host}:{port}"),
    }
}

/// Returns host and port; the port is empty if there is none.
fn parts(authority: &str) -> (&str, &str) {
    if authority.starts_with('[')
        && let Some(end) = authority.find(']')
    {
        let (host, rest) = authority.split_at(end + 1);
        return (host, rest.strip_prefix(':').unwrap_or(rest));
    }
    authority.rsplit_once(':').unwrap_or((authority, ""))
}

fn host_of(host: &str) -> String {
    let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    if let Some(address) = inner.and_then(|it| it.parse::<Ipv6Addr>().ok()) {
        return match address.to_ipv4_mapped() {
            Some(address) => address.to_string(),
            None => format!("[{address}]"),
        };
    }
    let host = host.to_ascii_lowercase();
    let host = host.trim_end_matches('.');
    numbers(host).map_or_else(|| host.to_owned(), |address| address.to_string())
}

/// Returns an IPv4 address as resolvers read it: one to four numbers, decimal, octal or hexadecimal. The last number
/// fills all remaining bytes. Source: inet_aton(3).
fn numbers(host: &str) -> Option<Ipv4Addr> {
    let mut numbers = Vec::new();
    for part in host.split('.') {
        if numbers.len() == 4 {
            return None;
        }
        let (digits, radix) = match part.strip_prefix("0x") {
            Some(digits) => (digits, 16),
            None if part.len() > 1 && part.starts_with('0') => (part, 8),
            None => (part, 10),
        };
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        numbers.push(u32::from_str_radix(digits, radix).ok()?);
    }
    let last = numbers.pop()?;
    let before = u32::try_from(numbers.len()).ok()?;
    let left = u64::from(4 - before);
    if u64::from(last) >= 1 << (8 * left) {
        return None;
    }
    let mut address = last;
    for (number, shift) in numbers.into_iter().zip([24, 16, 8]) {
        address |= u32::from(u8::try_from(number).ok()?) << shift;
    }
    Some(Ipv4Addr::from_bits(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_has_one_name() {
        for (url, place) in [
            ("http://x/done", "http://x"),
            ("http://x", "http://x"),
            ("http://x?a@b", "http://x"),
            ("http://x#a", "http://x"),
            ("HTTP://X/done", "http://x"),
            ("http://a@x/", "http://x"),
            ("http://a:b@x/", "http://x"),
            ("http://a@b@x:80/", "http://x"),
            ("http://x:80/", "http://x"),
            ("http://x:080/", "http://x"),
            ("http://x:/", "http://x"),
            ("https://x:443/", "https://x"),
            ("http://x:443/", "http://x:443"),
            ("https://x:80/", "https://x:80"),
            ("http://x:8080/a:1", "http://x:8080"),
            ("http://x:no/", "http://x:no"),
            ("http://x./", "http://x"),
            ("http://X.Example.:80/", "http://x.example"),
            ("http://[::1]:80/", "http://[::1]"),
            ("http://[0:0:0:0:0:0:0:1]/", "http://[::1]"),
            ("http://a@[FD00::1]:8080/", "http://[fd00::1]:8080"),
            ("http://[::ffff:127.0.0.1]/", "http://127.0.0.1"),
            ("http://127.0.0.1./", "http://127.0.0.1"),
            ("http://127.1/", "http://127.0.0.1"),
            ("http://2130706433/", "http://127.0.0.1"),
            ("http://0x7F.0.0.01/", "http://127.0.0.1"),
            ("http://0177.0.1/", "http://127.0.0.1"),
            ("http://0/", "http://0.0.0.0"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(place_of(url), place, "{url}");
        }
    }

    #[test]
    fn malformed_addresses_are_treated_as_names() {
        for host in [
            "256.1.1.1",
            "1.2.3.256",
            "1.2.3.4.5",
            "4294967296",
            "1.16777216",
            "09",
            "0xg",
            "0x",
            "+1",
            "1..2",
        ] {
            assert_eq!(numbers(host), None, "{host}");
        }
    }
}
