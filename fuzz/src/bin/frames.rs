//! Frames between agents and servers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| muster_wire::fuzz::frames(data));
