//! Pauses between attempts that fail.

use std::time::Duration;

/// A pause that doubles with each failure and varies by a random part, so that servers differ.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses from `first` to `longest`.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// The pause after another failure: up to a quarter shorter or longer than its nominal length.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let doubled = 2_u32.saturating_pow(self.failures);
        let nominal = self.first.saturating_mul(doubled).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        nominal.mul_f64(0.75 + rand::random::<f64>() / 2.0)
    }

    /// Records a success: the next pause is the first one again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let first = Duration::from_millis(100);
        let longest = Duration::from_millis(800);
        let mut backoff = Backoff::new(first, longest);
        for nominal in [100, 200, 400, 800, 800].map(Duration::from_millis) {
            let pause = backoff.next_pause();
            let range = nominal.mul_f64(0.74)..nominal.mul_f64(1.26);
            assert!(range.contains(&pause), "{pause:?} for {nominal:?}");
        }
        for _ in 0..100 {
            assert!(backoff.next_pause() <= longest.mul_f64(1.26));
        }
        backoff.reset();
        assert!(backoff.next_pause() < first.mul_f64(1.26));
    }
}
