//! The random numbers of a run, all drawn from one seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A seeded random number generator.
#[derive(Debug)]
pub struct SimRng(StdRng);

impl SimRng {
    /// Creates the generator for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 {
            0
        } else {
            self.0.random_range(0..end)
        }
    }

    /// Returns a number from `low` to `high`.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        self.0.random_range(low..=high)
    }

    /// Returns true in `percent` of cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    /// Returns a duration between `low` and `high` milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.0.random_range(low..=high))
    }

    /// Returns a duration between `low` and `high` microseconds.
    pub fn micros(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.0.random_range(low..=high))
    }

    /// Returns one of `choices`, or `None` if there are none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }
}
