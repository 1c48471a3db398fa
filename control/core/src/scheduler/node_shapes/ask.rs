//! The request of one instance relative to the size of nodes, and the score that follows from a sum.

use muster_domain::resources::Amount;
use muster_domain::scheduling::Algorithm;

/// Number of cached sizes. Machines have few sizes. With more sizes than these, a search would cost as much as a power
/// of ten.
const SIZES_MAX: usize = 8;

/// The request of one instance, for nodes of one kind.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct ScaledRequest {
    pub(super) cpu: i32,
    pub(super) memory: i32,
    pub(super) disk: i32,
    pub(super) cpu_factor: f32,
    pub(super) memory_factor: f32,
}

/// The request of one instance, for kinds of all sizes.
#[derive(Debug)]
pub(in crate::scheduler) struct RequestFactors {
    ask: Amount,
    /// `None`: the amounts are too large for blocks.
    amounts: Option<[i32; 3]>,
    algorithm: Algorithm,
    cpu: FactorCache,
    memory: FactorCache,
}

/// The last factors by total amount, because many kinds have the same total of one resource.
#[derive(Debug, Default)]
struct FactorCache {
    rows: [Option<(u64, f32)>; SIZES_MAX],
    next: usize,
}

impl RequestFactors {
    pub(in crate::scheduler) fn new(ask: Amount, algorithm: Algorithm) -> Self {
        let bounded = |amount: u64| i32::try_from(amount).ok();
        let amounts = || {
            let (cpu, memory) = (bounded(ask.cpu_mhz)?, bounded(ask.memory_mb)?);
            Some([cpu, memory, bounded(ask.disk_mb)?])
        };
        Self {
            ask,
            amounts: amounts(),
            algorithm,
            cpu: FactorCache::default(),
            memory: FactorCache::default(),
        }
    }

    /// Returns the request for nodes with `total`. `None`: it is too large for blocks.
    pub(in crate::scheduler) fn ask(&mut self, total: Amount) -> Option<ScaledRequest> {
        let [cpu, memory, disk] = self.amounts?;
        let algorithm = self.algorithm;
        Some(ScaledRequest {
            cpu,
            memory,
            disk,
            cpu_factor: factor(&mut self.cpu, self.ask.cpu_mhz, total.cpu_mhz, algorithm),
            memory_factor: factor(
                &mut self.memory,
                self.ask.memory_mb,
                total.memory_mb,
                algorithm,
            ),
        })
    }
}

/// Returns the factor by which an instance that asks for `ask` of `total` changes a power of ten.
fn factor(known: &mut FactorCache, ask: u64, total: u64, algorithm: Algorithm) -> f32 {
    let mut rows = known.rows.iter().flatten();
    if let Some((_, factor)) = rows.find(|(other, _)| *other == total) {
        return *factor;
    }
    let factor = narrow(libm::exp10(-(ask as f64) / total as f64));
    let factor = match algorithm {
        Algorithm::Binpack => factor,
        Algorithm::Spread => -factor,
    };
    known.rows[known.next] = Some((total, factor));
    known.next = (known.next + 1) % SIZES_MAX;
    factor
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the error is what `SUM_ERROR_MAX` bounds"
)]
pub(super) fn narrow(value: f64) -> f32 {
    value as f32
}

/// Returns the score of a least sum.
pub(in crate::scheduler) fn fit(least: f32, algorithm: Algorithm) -> f64 {
    match algorithm {
        Algorithm::Binpack => (20.0 - f64::from(least)) / 18.0,
        Algorithm::Spread => (-f64::from(least) - 2.0) / 18.0,
    }
}

/// Returns the approximate sum of a score.
pub(in crate::scheduler) fn sum(fit: f64, algorithm: Algorithm) -> f32 {
    match algorithm {
        Algorithm::Binpack => narrow(20.0 - 18.0 * fit),
        Algorithm::Spread => narrow(-2.0 - 18.0 * fit),
    }
}
