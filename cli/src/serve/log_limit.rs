//! A bound on messages that repeat.
//!
//! Each log statement of the program may write a bounded number of messages in a period. Further messages are counted,
//! and one message reports the count. So a faulty retry loop cannot fill a disk, in any crate. Debug messages are not
//! limited, because they are only written on request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Messages of one log statement in a [`PERIOD`]. A server that starts, or loses all its nodes, writes a few dozen.
const MESSAGES_MAX: u32 = 100;
/// The interval in which counts restart and dropped messages are reported.
const PERIOD: Duration = Duration::from_secs(30);

/// The limit on messages, for each log statement.
#[derive(Clone, Debug, Default)]
pub(super) struct LogLimit(Arc<Mutex<HashMap<Identifier, CallsiteCounts>>>);

/// The messages of one place in the current period.
#[derive(Debug)]
struct CallsiteCounts {
    metadata: &'static Metadata<'static>,
    since: Instant,
    written: u32,
    left_out: u64,
}

impl LogLimit {
    /// Reports dropped messages every [`PERIOD`], from a thread that lives as long as the process.
    pub(super) fn start_summaries(&self) {
        let limit = self.clone();
        let write_summaries = move || {
            loop {
                thread::sleep(PERIOD);
                for (metadata, left_out) in limit.take_left_out(Instant::now()) {
                    tracing::warn!(
                        left_out,
                        target = metadata.target(),
                        line = metadata.line(),
                        "messages that repeat were left out"
                    );
                }
            }
        };
        // Without the thread, messages are still limited, but nothing is reported.
        drop(
            thread::Builder::new()
                .name("log-limit".to_owned())
                .spawn(write_summaries),
        );
    }

    fn allows(&self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut places = self.lock_counts();
        let counts = places.entry(metadata.callsite()).or_insert(CallsiteCounts {
            metadata,
            since: now,
            written: 0,
            left_out: 0,
        });
        if now.duration_since(counts.since) >= PERIOD {
            counts.since = now;
            counts.written = 0;
        }
        if counts.written < MESSAGES_MAX {
            counts.written += 1;
            true
        } else {
            counts.left_out += 1;
            false
        }
    }

    /// Log statements with dropped messages that were not reported yet, and their counts.
    fn take_left_out(&self, now: Instant) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut places = self.lock_counts();
        places.retain(|_, counts| counts.left_out > 0 || now.duration_since(counts.since) < PERIOD);
        let left_out = places.values_mut().filter(|counts| counts.left_out > 0);
        left_out
            .map(|counts| (counts.metadata, std::mem::take(&mut counts.left_out)))
            .collect()
    }

    fn lock_counts(&self) -> MutexGuard<'_, HashMap<Identifier, CallsiteCounts>> {
        // The map only has counters, so it stays usable after a panic elsewhere.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limit applies to all layers, so it counts each message once.
impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.allows(event.metadata(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Counts lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl io::Write for Lines {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let lines = text.split(|byte| *byte == b'\n').count() - 1;
            self.0.fetch_add(lines, Ordering::Relaxed);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_place_that_repeats_writes_so_many_lines() {
        let (limit, lines) = (LogLimit::default(), Lines::default());
        let writer = lines.clone();
        let subscriber = tracing_subscriber::registry()
            .with(limit.clone())
            .with(fmt::layer().with_writer(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..20_000 {
                tracing::warn!(number, "a server is away");
            }
            tracing::warn!("another place");
        });

        let written = MESSAGES_MAX as usize + 1;
        assert_eq!(lines.0.load(Ordering::Relaxed), written);
        let left_out = limit.take_left_out(Instant::now());
        let counts: Vec<u64> = left_out.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [20_000 - u64::from(MESSAGES_MAX)]);
        assert!(limit.take_left_out(Instant::now()).is_empty());
    }

    #[test]
    fn log_limit_period_resets_and_drops_idle_callsites() {
        let limit = LogLimit::default();
        let subscriber = tracing_subscriber::registry()
            .with(limit.clone())
            .with(fmt::layer());
        tracing::subscriber::with_default(subscriber, || tracing::info!("once"));
        let metadata = limit.lock_counts().values().next().unwrap().metadata;
        let begin = Instant::now();
        while limit.allows(metadata, begin) {}
        assert!(limit.allows(metadata, begin + PERIOD));
        limit.take_left_out(begin + PERIOD);
        limit.take_left_out(begin + 3 * PERIOD);
        assert!(limit.lock_counts().is_empty());
    }
}
