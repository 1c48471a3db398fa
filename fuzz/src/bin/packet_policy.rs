//! The packet policy compiler.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| muster_agent_core::policy::fuzz::packet_policy(data));
