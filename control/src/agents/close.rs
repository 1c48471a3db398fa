//! Reasons to close an agent's connection.

use quinn::VarInt;

/// The reason why the server closed a connection, as the code of QUIC's close frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Close {
    /// The peer may not connect here.
    Refused,
    /// A newer connection of the same node took its place.
    Replaced,
    /// The session has ended.
    Ended,
}

impl Close {
    pub(super) fn code(self) -> VarInt {
        VarInt::from_u32(match self {
            Self::Refused => 2,
            Self::Replaced => 3,
            Self::Ended => 4,
        })
    }
}
