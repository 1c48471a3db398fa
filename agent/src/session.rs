//! The agent's session with a server.
//!
//! | module | subject |
//! |---|---|
//! | `clock` | time of deadlines and events |
//! | `contact` | time at which a leader last heard of the node; it survives the agent |
//! | `control` | the connection, its requests and their answers |
//! | `reports` | states of allocations on their way to a server |

pub(crate) mod clock;
pub(crate) mod contact;
pub(crate) mod control;
pub(crate) mod reports;
