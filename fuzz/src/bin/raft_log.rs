//! Segments of Raft's log.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| muster_control::fuzz::raft_log(data));
