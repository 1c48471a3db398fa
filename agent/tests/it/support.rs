//! A fake server, an agent in this process or in one that can be killed, and allocations to run.

mod agent;
mod alloc;
mod server;
mod volume;
pub(crate) mod words;

use std::future::Future;
use std::time::{Duration, Instant};

pub(crate) use agent::{KilledAgent, Machine, OOM_SCORE_ADJ, TestAgent, ended, kill, start_ticks};
pub(crate) use alloc::{AllocBuilder, batch, one_off, service};
pub(crate) use server::FakeServer;
pub(crate) use volume::{make_ext4, mount};

/// Longest wait for something that takes milliseconds on an idle machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Looks until `look` has an answer.
pub(crate) async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = look().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) use muster_domain::fixture::recorded::skipped;

/// Whether an agent can run here; says so if not.
pub(crate) fn privileged(name: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skipped(
            name,
            "needs root for cgroups; run: sudo -E cargo test -p muster-agent --test it",
        );
    }
    root
}
