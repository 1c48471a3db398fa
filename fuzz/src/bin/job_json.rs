//! Requests to register a job.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| muster_wire::fuzz::job_json(data));
