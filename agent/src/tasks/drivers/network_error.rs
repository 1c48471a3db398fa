//! Errors of networks that drivers make.

use muster_driver::{DriverError, NetworkMode};

use crate::limits::{DRIVER_NETWORK_BYTES_MAX, START_STOP_DEADLINE};

/// Why a driver makes no network for an allocation.
#[derive(Debug, thiserror::Error)]
pub enum DriverNetworkError {
    /// Two drivers require it.
    #[error(
        "drivers `{one}` and `{other}` of the group both make the network of their tasks: put the tasks into groups of their own"
    )]
    TwoMakers { one: String, other: String },
    /// A driver of the group did not report its capabilities.
    #[error("driver `{driver}` cannot be asked whether it makes networks: {reason}")]
    Ask {
        driver: String,
        /// The reason given by the driver.
        reason: String,
    },
    /// The driver failed to make a network.
    #[error("driver `{driver}` made no network for the allocation")]
    Create {
        driver: String,
        #[source]
        source: DriverError,
    },
    /// The driver does not report whether it made a network, which is no longer needed.
    #[error(
        "driver `{driver}` did not answer CreateNetwork within {START_STOP_DEADLINE:?} of the stop; it is asked again when the allocation is destroyed"
    )]
    Unanswered { driver: String },
    /// The driver made a network that is not for the tasks of one allocation.
    #[error(
        "driver `{driver}` made a network of mode {mode:?} where one for the tasks of an allocation was asked for"
    )]
    Mode {
        driver: String,
        /// The mode of the network.
        mode: NetworkMode,
    },
    /// The driver's description of the network is larger than the limit.
    #[error(
        "driver `{driver}` says {bytes} bytes of the network that it made, and {DRIVER_NETWORK_BYTES_MAX} are kept"
    )]
    TooLarge {
        driver: String,
        /// Size of the description, in bytes.
        bytes: usize,
    },
    /// The driver failed to destroy the network.
    #[error("driver `{driver}` does not take the allocation's network back; see the driver's log")]
    Destroy {
        driver: String,
        #[source]
        source: DriverError,
    },
}
