//! QUIC endpoints with mutual TLS and framed streams: what both ends of the agent link share.
