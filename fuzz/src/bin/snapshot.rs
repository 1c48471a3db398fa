//! Snapshots of the state.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| muster_control::fuzz::snapshot(data));
