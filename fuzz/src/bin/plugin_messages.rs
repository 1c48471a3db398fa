//! Messages of driver plugins.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| muster_driver::plugin::fuzz::plugin_messages(data));
