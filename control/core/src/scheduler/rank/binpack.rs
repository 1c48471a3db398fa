//! Bin-packing: the fuller a node would be, the better. Nomad's formula, between 0 and 1.
//!
//! Powers are those of `libm`. The powers of the C library differ in the last bit between versions and between
//! processors. That would change which of two nearly equal nodes is chosen.

use muster_domain::resources::Amount;

/// Highest value of the formula before it is normalised.
const MAX: f64 = 18.0;

/// Returns the score of a node with `total` if `used` of it were used.
pub(super) fn score(total: Amount, used: Amount) -> f64 {
    (20.0 - free(total, used)).clamp(0.0, MAX) / MAX
}

/// Returns the score for the algorithm that prefers the emptier node.
pub(super) fn spread_score(total: Amount, used: Amount) -> f64 {
    (free(total, used) - 2.0).clamp(0.0, MAX) / MAX
}

/// Returns a value between 2, with nothing free, and 20, with everything free.
fn free(total: Amount, used: Amount) -> f64 {
    let free_cpu = 1.0 - used.cpu_mhz as f64 / total.cpu_mhz as f64;
    let free_memory = 1.0 - used.memory_mb as f64 / total.memory_mb as f64;
    libm::exp10(free_cpu) + libm::exp10(free_memory)
}
