//! Checks of promises against observations.

use std::fmt::Display;

use anyhow::bail;

/// Counts the promises that held and those that did not.
#[derive(Debug, Default)]
pub(crate) struct CheckCounts {
    held: usize,
    broken: Vec<String>,
    skipped: usize,
}

impl CheckCounts {
    /// Prints `promise` with the observation `found`, and counts whether it `held`.
    pub(crate) fn record(&mut self, promise: &str, held: bool, found: &impl Display) {
        if held {
            self.held += 1;
            println!("  ✓ {promise}: {found}");
        } else {
            println!("  ✗ {promise}: {found}");
            self.broken.push(promise.to_owned());
        }
    }

    /// Prints that `promise` cannot be shown on this machine.
    pub(crate) fn skipped(&mut self, promise: &str, reason: &str) {
        self.skipped += 1;
        println!("  – {promise}: not shown here, {reason}");
    }

    /// Whether any promise did not hold.
    pub(crate) fn has_failed(&self) -> bool {
        !self.broken.is_empty()
    }

    /// Prints the sum of the checks.
    ///
    /// # Errors
    ///
    /// When any promise did not hold.
    pub(crate) fn result(&self) -> anyhow::Result<()> {
        println!(
            "\n{} checks held, {} did not, {} could not be shown here",
            self.held,
            self.broken.len(),
            self.skipped
        );
        if self.has_failed() {
            bail!("the demo did not hold: {}", self.broken.join("; "));
        }
        Ok(())
    }
}
