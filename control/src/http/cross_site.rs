//! Protection of every listener against web pages.
//!
//! A web page can make a browser send requests to every address that the browser reaches. Such a request needs no
//! permission of the server as long as it looks like that of a form (CSRF). A page whose name is pointed at the
//! server's address later even reads the answers (DNS rebinding). Four headers distinguish these requests:
//!
//! | header | passes |
//! |---|---|
//! | `Host` | loopback names, the machine's addresses and host name, names of `--http-allowed-host` |
//! | `Origin` | absent, the same as `Host`, or of `--http-allowed-host` |
//! | `Sec-Fetch-Site` | absent, `same-origin`, `none`; any with an `Origin` of `--http-allowed-host` |
//! | `Content-Type` of a write | absent, or JSON or bytes |
//!
//! Ports in `Host` are not compared: a tunnel changes them, and a page cannot choose the name of another site.
//! A page cannot send the content types that pass without a preflight request, and no preflight is answered. A body
//! without a content type passes because Nomad's own clients send such bodies; a browser adds `Origin` to them.
//! `curl -d` names the type of a form, so it needs `-H 'Content-Type: application/json'`.
//!
//! The check runs in `listen`, before the routes, so that no route and no listener is without it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State as Shared};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::listen::Connection;
use super::status::ApiError;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The file in which Linux has the machine's host name.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";
/// Names that resolve to this machine everywhere; `*.localhost` does, too (RFC 6761).
const LOOPBACK_NAMES: [&str; 4] = [
    "localhost",
    "localhost.localdomain",
    "ip6-localhost",
    "ip6-loopback",
];
/// Content types of the JSON API. Snapshots are bytes.
const API_TYPES: &[&str] = &[
    "application/json",
    "application/x-ndjson",
    "application/octet-stream",
];
/// Content types of Diego's wire.
const BBS_TYPES: &[&str] = &["application/x-protobuf", "application/octet-stream"];
/// Bytes of a DNS name (RFC 1035, 2.3.4).
const NAME_BYTES_MAX: usize = 253;
/// Characters of a header that an error repeats.
const SHOWN_CHARS_MAX: usize = 100;

/// A host of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    /// In lower case, without the dot at the end.
    Name(String),
}

impl Host {
    fn parse(text: &str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']')?;
            // Clients may leave the zone of a link-local address in.
            let address = address
                .split_once('%')
                .map_or(address, |(address, _)| address);
            let address: Ipv6Addr = address.parse().ok()?;
            return Some(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(IpAddr::V4(address)));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        (!name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(fits))
            .then(|| Self::Name(name.to_ascii_lowercase()))
    }
}

/// A host and, where it is not the default one, a port: of a URL, of `Host`, or of `--http-allowed-host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    host: Host,
    port: Option<u16>,
}

/// Why a text cannot be an allowed host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a host: give a name or an address, and a port if browsers use another than 80 and 443, such as \
     muster.example.org or [2001:db8::1]:8443"
)]
pub struct AllowedHostError {
    text: String,
}

impl FromStr for AllowedHost {
    type Err = AllowedHostError;

    fn from_str(text: &str) -> Result<Self, AllowedHostError> {
        let error = || AllowedHostError {
            text: shown(text.as_bytes()),
        };
        // A bare IPv6 address has colons of its own.
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self {
                host: Host::Address(IpAddr::V6(address).to_canonical()),
                port: None,
            });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            Some(_) | None => (text, None),
        };
        let port = match port {
            None | Some("") => None,
            // `parse` takes a sign.
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(port.parse().ok().ok_or_else(error)?)
            }
            Some(_) => return Err(error()),
        };
        let host = Host::parse(host).ok_or_else(error)?;
        Ok(Self { host, port })
    }
}

/// Why a request is refused before any route sees it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CrossSiteError {
    /// There must be one `Host`.
    #[error("the request has {count} Host headers: send one")]
    HostCount {
        /// How many there are.
        count: usize,
    },
    /// The page's name resolves to this server, or the operator did not allow the name.
    #[error(
        "this server does not serve host `{host}`: use an address or the host name of its machine, or start it with \
         --http-allowed-host and that name"
    )]
    Host { host: String },
    /// The page comes from another site.
    #[error(
        "a page from {origin} may not use this server: only pages from its own address may, and those of \
         --http-allowed-host"
    )]
    Origin {
        /// The origin of the page.
        origin: String,
    },
    /// The browser marks the request as one from another site's page.
    #[error(
        "a page of another site may not use this server (Sec-Fetch-Site: {site}): open the address by hand, or start \
         the server with --http-allowed-host and the name of that site"
    )]
    FetchSite { site: String },
    /// The content type is one that forms can send.
    #[error("content type `{found}` is not accepted: use {}, or none", wanted[0])]
    ContentType {
        found: String,
        /// The types that are accepted.
        wanted: &'static [&'static str],
    },
}

/// Names of a server whose listener does not verify them by TLS.
#[derive(Debug)]
struct ServerHosts {
    /// The address that other machines use, which may be a router's.
    advertised: Option<IpAddr>,
    /// The listener binds every address.
    everywhere: bool,
}

/// Rules of a listener for requests that a browser may have sent for a page.
#[derive(Clone, Debug)]
pub(crate) struct SitePolicy {
    /// The accepted names. `None`: a handshake has verified the name already, so that a page cannot have
    /// redirected it here.
    hosts: Option<Arc<ServerHosts>>,
    allowed: Arc<[AllowedHost]>,
    content_types: &'static [&'static str],
}

impl SitePolicy {
    /// Rules of the JSON API, bound to `bound`.
    pub(crate) fn api(bound: IpAddr, advertised: Option<IpAddr>, allowed: &[AllowedHost]) -> Self {
        let hosts = ServerHosts {
            advertised,
            everywhere: bound.is_unspecified(),
        };
        Self {
            hosts: Some(Arc::new(hosts)),
            allowed: allowed.into(),
            content_types: API_TYPES,
        }
    }

    /// Rules of Diego's wire protocol. Its clients compare the name with the certificate.
    pub(crate) fn bbs() -> Self {
        Self {
            hosts: None,
            allowed: [].into(),
            content_types: BBS_TYPES,
        }
    }

    /// Whether a request that came to the address `local` of this machine may be answered.
    fn judge(&self, request: &Request, local: Option<IpAddr>) -> Result<(), CrossSiteError> {
        let headers = request.headers();
        let authority = request.uri().authority().map(Authority::as_str);
        let host = self.check_host(headers, authority, request.version(), local)?;
        self.check_site(headers, host)?;
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        if reads {
            Ok(())
        } else {
            self.check_content_type(headers)
        }
    }

    /// Returns the value of `Host`, if every name of the server in the request is one of its own. `authority`
    /// comes from a target with a scheme. It takes precedence over `Host` (RFC 9112, 3.2.2), so both are checked.
    fn check_host<'a>(
        &self,
        headers: &'a HeaderMap,
        authority: Option<&'a str>,
        version: Version,
        local: Option<IpAddr>,
    ) -> Result<Option<&'a [u8]>, CrossSiteError> {
        let count = headers.get_all(header::HOST).iter().count();
        // Clients of HTTP/1.0 may omit it, and no browser uses HTTP/1.0.
        if count > 1 || (count == 0 && version >= Version::HTTP_11) {
            return Err(CrossSiteError::HostCount { count });
        }
        let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
        for host in host.into_iter().chain(authority.map(str::as_bytes)) {
            if !self.is_ours(host, local) {
                return Err(CrossSiteError::Host { host: shown(host) });
            }
        }
        Ok(authority.map(str::as_bytes).or(host))
    }

    fn is_ours(&self, host: &[u8], local: Option<IpAddr>) -> bool {
        let Some(hosts) = &self.hosts else {
            return true;
        };
        let named = std::str::from_utf8(host).ok();
        let Some(named) = named.and_then(|host| host.parse::<AllowedHost>().ok()) else {
            return false;
        };
        if self
            .allowed
            .iter()
            .any(|allowed| allowed.host == named.host)
        {
            return true;
        }
        match named.host {
            Host::Address(address) => {
                address.is_loopback()
                    || local == Some(address)
                    || hosts.advertised == Some(address)
                    || (address.is_unspecified() && hosts.everywhere)
                    || is_machines(address)
            }
            Host::Name(name) => {
                LOOPBACK_NAMES.contains(&name.as_str())
                    || name.ends_with(".localhost")
                    || is_host_name(&name)
            }
        }
    }

    fn check_site(&self, headers: &HeaderMap, host: Option<&[u8]>) -> Result<(), CrossSiteError> {
        let mut configured = false;
        for origin in headers.get_all(header::ORIGIN) {
            let origin = origin.as_bytes();
            let from = authority_of(origin);
            if from
                .as_ref()
                .is_some_and(|from| self.allowed.contains(from))
            {
                configured = true;
            } else if from.is_none() || from != host.and_then(parse) {
                let origin = shown(origin);
                return Err(CrossSiteError::Origin { origin });
            }
        }
        let foreign = |site: &&HeaderValue| !matches!(site.as_bytes(), b"same-origin" | b"none");
        match headers.get_all(SEC_FETCH_SITE).iter().find(foreign) {
            Some(site) if !configured => Err(CrossSiteError::FetchSite {
                site: shown(site.as_bytes()),
            }),
            Some(_) | None => Ok(()),
        }
    }

    fn check_content_type(&self, headers: &HeaderMap) -> Result<(), CrossSiteError> {
        for value in headers.get_all(header::CONTENT_TYPE) {
            let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
            let essence = text.split(';').next().unwrap_or_default().trim();
            if !self.content_types.contains(&essence) {
                return Err(CrossSiteError::ContentType {
                    found: shown(value.as_bytes()),
                    wanted: self.content_types,
                });
            }
        }
        Ok(())
    }
}

/// Answers a request by its route, or refuses it. Forbids browsers to guess the type of an answer.
pub(super) async fn check(
    Shared(policy): Shared<SitePolicy>,
    request: Request,
    next: Next,
) -> Response {
    let local = request
        .extensions()
        .get::<Connection>()
        .and_then(Connection::local_ip);
    let mut response = match policy.judge(&request, local) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            tracing::debug!(%error, "a request is refused");
            ApiError::from(error).into_response()
        }
    };
    let nosniff = HeaderValue::from_static("nosniff");
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

/// The host and port of an origin; `None` for `null` and every other value that is not a web page's.
fn authority_of(origin: &[u8]) -> Option<AllowedHost> {
    let text = std::str::from_utf8(origin).ok()?;
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"))?;
    parse(rest.as_bytes())
}

fn parse(host: &[u8]) -> Option<AllowedHost> {
    std::str::from_utf8(host).ok()?.parse().ok()
}

/// Whether `address` is one of this machine's: only those can be bound.
fn is_machines(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && UdpSocket::bind((address, 0)).is_ok()
}

/// Whether this machine's host name is `name`, with or without its domain. Reads it anew, because it may change.
fn is_host_name(name: &str) -> bool {
    let read = std::fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
    let host_name = read.trim().to_ascii_lowercase();
    let label = host_name.split('.').next().unwrap_or_default();
    !label.is_empty() && (name == host_name || name == label)
}

/// The beginning of a header, for an error.
fn shown(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    text.chars()
        .take(SHOWN_CHARS_MAX)
        .map(|letter| if letter.is_control() { '?' } else { letter })
        .collect()
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            Host::Address(address) => write!(f, "{address}")?,
            Host::Name(name) => f.write_str(name)?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
