//! The frame around every message on a QUIC stream.
//!
//! A frame has a `u32` body length (little-endian), a `u16` version and the body. A frame of another version, or above
//! its protocol's limit, ends the connection before its body is read.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{self, DecodeError, EncodeError};
use crate::limits;

/// The version of the messages in [`crate::rpc`]. A peer with another version gets an error and is disconnected.
pub const AGENT_VERSION: u16 = 1;
/// The version of the messages among servers. A peer with another version gets an error and is disconnected.
pub const SERVER_VERSION: u16 = 1;
/// Bytes before the body.
pub const HEADER_BYTES: usize = 6;

/// The parameters of a stream, the same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The name of the protocol in error messages.
    pub name: &'static str,
    /// The version of the messages.
    pub version: u16,
    /// Bytes of one body.
    pub bytes_max: usize,
}

/// Between an agent and a server.
pub const AGENT: Protocol = Protocol {
    name: "agent",
    version: AGENT_VERSION,
    bytes_max: limits::FRAME_BYTES_MAX,
};
/// Among servers. A frame holds at least one log entry, however large that is.
pub const SERVER: Protocol = Protocol {
    name: "server",
    version: SERVER_VERSION,
    bytes_max: limits::ENTRY_BYTES_MAX,
};

/// A frame's header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The body is too large.
    #[error("a frame of {bytes} bytes is above the limit of {max}")]
    TooLarge {
        /// The size in the header.
        bytes: usize,
        max: usize,
    },
    /// The peer uses another version.
    #[error(
        "the peer speaks version {theirs} of the {protocol} protocol, this is version {ours}: upgrade the older one"
    )]
    Version {
        protocol: &'static str,
        /// The version in the header.
        theirs: u16,
        ours: u16,
    },
}

/// The reason why a frame cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeFrameError {
    /// The body is too large.
    #[error("a message of {bytes} bytes is above the limit of {max}")]
    TooLarge { bytes: usize, max: usize },
    /// The message cannot be encoded.
    #[error("the message cannot be encoded")]
    Encode(#[from] EncodeError),
}

/// The bytes of `message` in a frame between an agent and a server.
///
/// # Errors
///
/// [`EncodeFrameError::TooLarge`] above [`limits::FRAME_BYTES_MAX`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, EncodeFrameError> {
    AGENT.encode(message)
}

/// The length of the body that follows `header`, between an agent and a server.
///
/// # Errors
///
/// [`HeaderError`] for a body above the limit or another version.
pub fn body_length(header: [u8; HEADER_BYTES]) -> Result<usize, HeaderError> {
    AGENT.body_length(header)
}

impl Protocol {
    /// The bytes of `message` in a frame.
    ///
    /// # Errors
    ///
    /// [`EncodeFrameError::TooLarge`] above the protocol's limit.
    pub fn encode<T: Serialize>(&self, message: &T) -> Result<Vec<u8>, EncodeFrameError> {
        // Most messages fit.
        const USUAL_BYTES: usize = 512;
        let mut frame = Vec::with_capacity(USUAL_BYTES);
        frame.extend([0; HEADER_BYTES]);
        codec::encode_behind(&mut frame, message)?;
        let bytes = frame.len() - HEADER_BYTES;
        let length = u32::try_from(bytes)
            .ok()
            .filter(|_| bytes <= self.bytes_max)
            .ok_or(EncodeFrameError::TooLarge {
                bytes,
                max: self.bytes_max,
            })?;
        let (length_at, version_at) = frame[..HEADER_BYTES].split_at_mut(size_of::<u32>());
        length_at.copy_from_slice(&length.to_le_bytes());
        version_at.copy_from_slice(&self.version.to_le_bytes());
        Ok(frame)
    }

    /// The length of the body that follows `header`.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] for a body above the limit or another version.
    pub fn body_length(&self, header: [u8; HEADER_BYTES]) -> Result<usize, HeaderError> {
        let [a, b, c, d, low, high] = header;
        let theirs = u16::from_le_bytes([low, high]);
        if theirs != self.version {
            return Err(HeaderError::Version {
                protocol: self.name,
                theirs,
                ours: self.version,
            });
        }
        let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        if bytes > self.bytes_max {
            return Err(HeaderError::TooLarge {
                bytes,
                max: self.bytes_max,
            });
        }
        Ok(bytes)
    }
}

/// The message in the body of a frame.
///
/// # Errors
///
/// [`DecodeError`] for anything but exactly one message.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    codec::decode(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reads_back() {
        let frame = encode(&"hello".to_owned()).unwrap();

        let length = body_length(frame[..HEADER_BYTES].try_into().unwrap()).unwrap();

        assert_eq!(length, frame.len() - HEADER_BYTES);
        assert_eq!(decode::<String>(&frame[HEADER_BYTES..]).unwrap(), "hello");
    }

    #[test]
    fn another_version_is_refused_before_its_body() {
        assert_eq!(
            body_length([0, 0, 0, 0, 9, 0]),
            Err(HeaderError::Version {
                protocol: "agent",
                theirs: 9,
                ours: AGENT_VERSION,
            })
        );
    }

    #[test]
    fn a_length_above_the_limit_is_refused() {
        assert!(matches!(
            body_length([255, 255, 255, 255, 1, 0]),
            Err(HeaderError::TooLarge { .. })
        ));
    }
}
