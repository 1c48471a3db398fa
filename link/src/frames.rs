//! Framed messages on a QUIC stream.

use muster_wire::codec::DecodeError;
use muster_wire::frame::{self, EncodeFrameError, HeaderError, Protocol};
use quinn::{ReadExactError, RecvStream, SendStream, VarInt, WriteError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The reason why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendFrameError {
    /// The message cannot be put in a frame.
    #[error("the message cannot be framed")]
    Encode(#[from] EncodeFrameError),
    /// The stream or its connection is closed.
    #[error("the stream is closed")]
    Write(#[from] WriteError),
}

/// The reason why no message was received.
#[derive(Debug, thiserror::Error)]
pub enum RecvFrameError {
    /// The peer sent bytes that are not a frame of this protocol.
    #[error("the peer's frame is refused")]
    Header(#[from] HeaderError),
    /// The frame does not contain a message of the expected type.
    #[error("the peer's message is malformed")]
    Decode(#[from] DecodeError),
    /// The stream or its connection ended within a frame.
    #[error("the stream ended within a frame")]
    Read(#[from] ReadExactError),
}

impl RecvFrameError {
    /// Returns the reason for closing the connection of a peer that has another version. A close has the same form in
    /// all versions, so the peer can show the reason.
    #[must_use]
    pub fn version_refusal(&self) -> Option<String> {
        match self {
            Self::Header(HeaderError::Version {
                protocol,
                theirs,
                ours,
            }) => Some(format!(
                "got version {theirs} of the {protocol} protocol, expected version {ours}: upgrade the older one"
            )),
            Self::Header(HeaderError::TooLarge { .. }) | Self::Decode(_) | Self::Read(_) => None,
        }
    }
}

/// Sends messages on a stream.
#[derive(Debug)]
pub struct FrameSender {
    stream: SendStream,
    protocol: Protocol,
}

impl FrameSender {
    /// Creates a sender on `stream`, between an agent and a server.
    #[must_use]
    pub fn new(stream: SendStream) -> Self {
        Self::speaking(frame::AGENT, stream)
    }

    /// Creates a sender on `stream` for messages of `protocol`.
    #[must_use]
    pub fn speaking(protocol: Protocol, stream: SendStream) -> Self {
        Self { stream, protocol }
    }

    /// Sends `message`. Returns when the stream has accepted it, which waits while the peer reads slowly.
    ///
    /// # Errors
    ///
    /// [`SendFrameError`]. The stream is not usable afterwards.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), SendFrameError> {
        let frame = self.protocol.encode(message)?;
        self.stream.write_all(&frame).await?;
        Ok(())
    }

    /// Ends the stream: no message follows.
    pub fn finish(&mut self) {
        // An error means that the stream is closed already.
        drop(self.stream.finish());
    }

    /// Resolves when the peer has asked this side to stop sending.
    pub async fn stopped(&mut self) {
        drop(self.stream.stopped().await);
    }

    /// Sets the priority of this stream. Data of a stream with a higher number is sent first. The default is 0.
    pub fn prioritise(&mut self, priority: i32) {
        // An error means that the stream is closed already.
        drop(self.stream.set_priority(priority));
    }

    /// Returns the stream, for bytes that are not framed messages.
    #[must_use]
    pub fn into_stream(self) -> SendStream {
        self.stream
    }
}

/// Receives messages from a stream.
#[derive(Debug)]
pub struct FrameReceiver {
    stream: RecvStream,
    protocol: Protocol,
}

impl FrameReceiver {
    /// Creates a receiver on `stream`, between an agent and a server.
    #[must_use]
    pub fn new(stream: RecvStream) -> Self {
        Self::speaking(frame::AGENT, stream)
    }

    /// Creates a receiver on `stream` for messages of `protocol`.
    #[must_use]
    pub fn speaking(protocol: Protocol, stream: RecvStream) -> Self {
        Self { stream, protocol }
    }

    /// Receives the next message. Returns `None` when the peer has ended the stream.
    ///
    /// Not cancellation safe: a message that was received in part is lost with the future.
    ///
    /// # Errors
    ///
    /// [`RecvFrameError`]. The stream is not usable afterwards.
    pub async fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, RecvFrameError> {
        let mut header = [0; frame::HEADER_BYTES];
        match self.stream.read_exact(&mut header).await {
            Ok(()) => {}
            Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let mut body = vec![0; self.protocol.body_length(header)?];
        self.stream.read_exact(&mut body).await?;
        Ok(Some(frame::decode(&body)?))
    }

    /// Asks the peer to stop sending.
    pub fn stop(&mut self) {
        // An error means that the stream is closed already.
        drop(self.stream.stop(VarInt::from_u32(0)));
    }

    /// Returns the stream, for bytes that are not framed messages.
    #[must_use]
    pub fn into_stream(self) -> RecvStream {
        self.stream
    }
}
