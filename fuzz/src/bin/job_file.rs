//! Job files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| muster_jobspec::fuzz::job_file(data));
