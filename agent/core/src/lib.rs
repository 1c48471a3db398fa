//! The pure agent: allocation and task runners, restart policy, kill sequence.
