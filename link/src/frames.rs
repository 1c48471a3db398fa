//! Framed messages on a QUIC stream.

use muster_wire::codec::DecodeError;
use muster_wire::frame::{self, EncodeFrameError, HeaderError};
use quinn::{ReadExactError, RecvStream, SendStream, VarInt, WriteError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendFrameError {
    /// It cannot be put in a frame.
    #[error("the message cannot be framed")]
    Encode(#[from] EncodeFrameError),
    /// The stream or its connection is gone.
    #[error("the stream is closed")]
    Write(#[from] WriteError),
}

/// Why no message was received.
#[derive(Debug, thiserror::Error)]
pub enum RecvFrameError {
    /// The peer sent something that is no frame of ours.
    #[error("the peer's frame is refused")]
    Header(#[from] HeaderError),
    /// The frame holds no such message.
    #[error("the peer's message is malformed")]
    Decode(#[from] DecodeError),
    /// The stream or its connection ended within a frame.
    #[error("the stream ended within a frame")]
    Read(#[from] ReadExactError),
}

/// Sends messages on a stream.
#[derive(Debug)]
pub struct FrameSender(SendStream);

impl FrameSender {
    /// On `stream`.
    #[must_use]
    pub fn new(stream: SendStream) -> Self {
        Self(stream)
    }

    /// Sends `message`. Returns when the stream has taken it, which waits while the peer reads slowly.
    ///
    /// # Errors
    ///
    /// [`SendFrameError`]. The stream is not usable afterwards.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), SendFrameError> {
        let frame = frame::encode(message)?;
        self.0.write_all(&frame).await?;
        Ok(())
    }

    /// Says that no message follows.
    pub fn finish(&mut self) {
        // An error means that the stream is closed already.
        drop(self.0.finish());
    }

    /// Resolves when the peer does not want to hear more.
    pub async fn stopped(&mut self) {
        drop(self.0.stopped().await);
    }
}

/// Receives messages from a stream.
#[derive(Debug)]
pub struct FrameReceiver(RecvStream);

impl FrameReceiver {
    /// From `stream`.
    #[must_use]
    pub fn new(stream: RecvStream) -> Self {
        Self(stream)
    }

    /// The next message; `None` when the peer is done.
    ///
    /// Not cancellation safe: a message that was received in part is lost with the future.
    ///
    /// # Errors
    ///
    /// [`RecvFrameError`]. The stream is not usable afterwards.
    pub async fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, RecvFrameError> {
        let mut header = [0; frame::HEADER_BYTES];
        match self.0.read_exact(&mut header).await {
            Ok(()) => {}
            Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let mut body = vec![0; frame::body_length(header)?];
        self.0.read_exact(&mut body).await?;
        Ok(Some(frame::decode(&body)?))
    }

    /// Tells the peer to send no more.
    pub fn stop(&mut self) {
        // An error means that the stream is closed already.
        drop(self.0.stop(VarInt::from_u32(0)));
    }
}
