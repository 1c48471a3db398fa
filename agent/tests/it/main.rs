//! The agent with a real driver process, real cgroups and a fake server over real QUIC.

mod adopt;
mod collect;
mod run;
mod session;
mod support;
