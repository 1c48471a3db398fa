//! Callers that wait for the end of a collection.

/// A caller that waits for the end of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// A client of the leader.
    Client {
        client: usize,
        /// The client's number of the request.
        request: u64,
    },
    Server {
        server: usize,
        /// The server's number of the forwarded request.
        request: u64,
    },
}
