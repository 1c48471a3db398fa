//! QUIC endpoints with mutual TLS 1.3.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{Endpoint, EndpointConfig, IdleTimeout, TokioRuntime, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;

use crate::tls::Identity;

/// Silence after which a connection is closed. Three keep-alive intervals fit in it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which an idle client sends a keep-alive.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Streams that a peer may have open at once. An idle connection costs about 30 kB with this limit and 112 kB with a
/// limit of 1 000. Each log reader of a node needs one stream.
const STREAMS_MAX: u32 = 64;
/// Bytes a stream may have in flight: one full frame.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
/// Bytes a connection may have in flight, over all its streams.
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// Bytes of the socket's buffers. The kernel's default of 208 KiB loses packets under heavy load.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// The reason why an endpoint could not be created.
#[derive(Debug, thiserror::Error)]
pub enum OpenEndpointError {
    /// The address cannot be bound.
    #[error(
        "UDP {addr} cannot be bound: another process may hold it; choose another with --quic, or see `ss -ulpn`"
    )]
    Bind {
        addr: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// The certificates cannot be used.
    #[error("the certificates cannot be used")]
    Tls(#[from] rustls::Error),
    /// The authority's certificate cannot be used.
    #[error("the authority's certificate cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The crypto provider has no cipher suite for QUIC's initial packets.
    #[error("the TLS library lacks QUIC's initial cipher suite")]
    Suite(#[from] NoInitialCipherSuite),
}

/// Creates a server's endpoint on `addr`, for peers that use one of `protocols`.
///
/// The endpoint can open connections to other servers as well: see [`client_config`].
///
/// # Errors
///
/// [`OpenEndpointError`].
pub fn server(
    addr: SocketAddr,
    identity: &Identity,
    protocols: &[&[u8]],
) -> Result<Endpoint, OpenEndpointError> {
    let endpoint = Endpoint::new(
        endpoint_config(identity),
        Some(server_config(identity, protocols)?),
        socket(addr)?,
        Arc::new(TokioRuntime),
    );
    endpoint.map_err(|source| OpenEndpointError::Bind { addr, source })
}

/// Returns the configuration that accepts connections with one of `protocols`. An endpoint needs a new one when its
/// certificate was replaced.
///
/// # Errors
///
/// [`OpenEndpointError`].
pub fn server_config(
    identity: &Identity,
    protocols: &[&[u8]],
) -> Result<quinn::ServerConfig, OpenEndpointError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(roots(&identity.authority)?);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build()?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())?;
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // Early data could be replayed, and not all of our messages are idempotent.
    tls.max_early_data_size = 0;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(Arc::new(transport()));
    config.migration(false);
    Ok(config)
}

/// Creates an endpoint that only opens connections, with the protocol `protocol`.
///
/// # Errors
///
/// [`OpenEndpointError`].
pub fn client(identity: &Identity, protocol: &[u8]) -> Result<Endpoint, OpenEndpointError> {
    let addr = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut endpoint = Endpoint::new(
        EndpointConfig::default(),
        None,
        socket(addr)?,
        Arc::new(TokioRuntime),
    )
    .map_err(|source| OpenEndpointError::Bind { addr, source })?;
    endpoint.set_default_client_config(client_config(identity, protocol)?);
    Ok(endpoint)
}

/// Returns the configuration that opens a connection with the protocol `protocol`. The caller connects to the name
/// `Role::Server.dns_name(&identity.cluster)`.
///
/// # Errors
///
/// [`OpenEndpointError`].
pub fn client_config(
    identity: &Identity,
    protocol: &[u8],
) -> Result<quinn::ClientConfig, OpenEndpointError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots(&identity.authority)?)
        .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?;
    tls.alpn_protocols = vec![protocol.to_vec()];
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    let mut transport = transport();
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Returns the settings of an endpoint. After a restart with the same key, the endpoint can reset the connections of
/// its previous process. Otherwise peers would wait for [`IDLE_TIMEOUT`].
fn endpoint_config(identity: &Identity) -> EndpointConfig {
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, identity.key.secret_der());
    let derive = |purpose: &[u8]| ring::hmac::sign(&secret, purpose);
    let reset = ring::hmac::Key::new(
        ring::hmac::HMAC_SHA256,
        derive(b"muster stateless reset").as_ref(),
    );
    let mut config = EndpointConfig::new(Arc::new(reset));
    let tag = derive(b"muster connection ids");
    let mut key = [0; 8];
    key.copy_from_slice(&tag.as_ref()[..8]);
    // The default generator draws a key per process and drops packets of a previous process's connections.
    config.cid_generator(move || {
        Box::new(quinn_proto::HashedConnectionIdGenerator::from_key(
            u64::from_le_bytes(key),
        ))
    });
    config
}

pub(crate) fn roots(authority: &CertificateDer<'static>) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    Ok(roots)
}

fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    let idle = IdleTimeout::try_from(IDLE_TIMEOUT).expect("ten seconds fit in a QUIC varint");
    transport
        .max_idle_timeout(Some(idle))
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(u64::from(CONNECTION_WINDOW_BYTES));
    transport
}

fn socket(addr: SocketAddr) -> Result<UdpSocket, OpenEndpointError> {
    let open = || {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(addr),
            socket2::Type::DGRAM,
            Some(socket2::Protocol::UDP),
        )?;
        // Without CAP_NET_ADMIN the kernel grants less than requested. A smaller buffer is slower, but it still
        // works.
        drop(socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES));
        drop(socket.set_send_buffer_size(SOCKET_BUFFER_BYTES));
        socket.set_nonblocking(true)?;
        socket.bind(&addr.into())?;
        Ok(UdpSocket::from(socket))
    };
    open().map_err(|source| OpenEndpointError::Bind { addr, source })
}
