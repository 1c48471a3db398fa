//! Tests of the operations that a contained and a strict task can and cannot do, from inside the task.
//!
//! `probe` is this test binary, run as a task: it makes attempts and writes down the outcome of each. The tests run
//! here and in the guest (`cargo xtask vm`), as root. Without root every test reports that it was skipped.
#![expect(
    clippy::unwrap_used,
    reason = "everything here is a test, also what stands outside of test functions"
)]

#[path = "../it/fixture.rs"]
#[expect(
    dead_code,
    reason = "shared with the other tests, and not all of it is used here"
)]
mod fixture;

mod boundary;
mod host;
mod init;
mod isolation_audits;
mod moments;
mod probe;
mod programs;
mod roots;
mod users;
