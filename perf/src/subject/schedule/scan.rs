//! The simple exact scheduler: dense columns, and a scan of all of them for each placement.
//!
//! The score is Nomad's. It measures how well the instance fills the node: 20 less ten to the power of each free
//! share, 0 to 18, then divided by 18. If the node already has instances of the job, the score is the mean of that
//! value and their penalty. Single precision and a polynomial for the power allow the compiler to vectorise the loop.

use anyhow::Context as _;
use muster_control_core::state::State;

/// Columns of a fleet.
#[derive(Debug)]
pub(super) struct Scan {
    cpu_free: Vec<f32>,
    memory_free: Vec<f32>,
    disk_free: Vec<f32>,
    /// The reciprocal of the node's CPU.
    cpu_share: Vec<f32>,
    memory_share: Vec<f32>,
    /// The number of instances of the current job on each node.
    siblings: Vec<f32>,
    scores: Vec<f32>,
    placed: Vec<bool>,
}

impl Scan {
    /// Reads the eligible nodes of `state`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "amounts are far below 2^24"
    )]
    pub(super) fn of(state: &State) -> Self {
        let columns: Vec<_> = state
            .nodes()
            .columns()
            .filter(|column| column.takes_work)
            .collect();
        let collect = |value: fn(&muster_control_core::state::Column) -> f64| {
            columns
                .iter()
                .map(|column| value(column) as f32)
                .collect::<Vec<f32>>()
        };
        Self {
            cpu_free: collect(|column| column.free().cpu_mhz as f64),
            memory_free: collect(|column| column.free().memory_mb as f64),
            disk_free: collect(|column| column.free().disk_mb as f64),
            cpu_share: collect(|column| 1.0 / column.total.cpu_mhz as f64),
            memory_share: collect(|column| 1.0 / column.total.memory_mb as f64),
            siblings: vec![0.0; columns.len()],
            scores: vec![0.0; columns.len()],
            placed: vec![false; columns.len()],
        }
    }

    /// Places the `count` instances of a job, each on the node with the best score.
    pub(super) fn place(&mut self, count: u32, ask: [u32; 3]) -> anyhow::Result<()> {
        self.siblings.fill(0.0);
        #[expect(clippy::cast_precision_loss, reason = "amounts are far below 2^24")]
        let (ask, count_of_job) = (ask.map(|amount| amount as f32), count as f32);
        for _ in 0..count {
            self.score(ask, count_of_job);
            let best = self.best().context("no node has room")?;
            self.cpu_free[best] -= ask[0];
            self.memory_free[best] -= ask[1];
            self.disk_free[best] -= ask[2];
            self.siblings[best] += 1.0;
            self.placed[best] = true;
        }
        Ok(())
    }

    /// Returns the number of nodes with an instance.
    pub(super) fn used(&self) -> usize {
        self.placed.iter().filter(|placed| **placed).count()
    }

    /// Scores every node. A node without room gets negative infinity.
    fn score(&mut self, ask: [f32; 3], count_of_job: f32) {
        let free = self
            .cpu_free
            .iter()
            .zip(&self.memory_free)
            .zip(&self.disk_free);
        let shares = self.cpu_share.iter().zip(&self.memory_share);
        let nodes = free.zip(shares).zip(&self.siblings);
        for (((((cpu, memory), disk), (cpu_share, memory_share)), siblings), score) in
            nodes.zip(&mut self.scores)
        {
            let [cpu, memory, disk] = [cpu - ask[0], memory - ask[1], disk - ask[2]];
            let fit = 20.0 - pow10(cpu * cpu_share) - pow10(memory * memory_share);
            let fit = fit.clamp(0.0, 18.0) / 18.0;
            let spread = (fit - (siblings + 1.0) / count_of_job) * 0.5;
            let scored = if *siblings > 0.0 { spread } else { fit };
            let room = cpu.min(memory).min(disk);
            *score = if room >= 0.0 {
                scored
            } else {
                f32::NEG_INFINITY
            };
        }
    }

    /// Returns the first node with the best score.
    fn best(&self) -> Option<usize> {
        // Eight separate maxima avoid a chain of dependent comparisons.
        let mut lanes = [f32::NEG_INFINITY; 8];
        let chunks = self.scores.chunks_exact(8);
        let rest = chunks.remainder();
        for chunk in chunks {
            for (lane, score) in lanes.iter_mut().zip(chunk) {
                *lane = if *score > *lane { *score } else { *lane };
            }
        }
        let best = lanes
            .iter()
            .chain(rest)
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        if best == f32::NEG_INFINITY {
            return None;
        }
        self.scores
            .iter()
            .position(|score| score.to_bits() == best.to_bits())
    }
}

/// Returns 10 to the power of `x`, 0 to 1, with an error below a ten-thousandth.
fn pow10(x: f32) -> f32 {
    // Adding this constant rounds to the nearest integer, which is then in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let y = x * std::f32::consts::LOG2_10;
    let rounded = y + ROUND;
    let rest = y - (rounded - ROUND);
    // This is the power series of e to the power of `rest` times ln 2.
    let cube = 0.240_226_5 + rest * (0.055_504_1 + rest * 0.009_618_1);
    let power = 1.0 + rest * (std::f32::consts::LN_2 + rest * cube);
    f32::from_bits(power.to_bits().wrapping_add(rounded.to_bits() << 23))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_power_is_close() {
        for step in 0..=1_000_u16 {
            let x = f32::from(step) / 1_000.0;

            let exact = 10_f32.powf(x);

            assert!(
                (pow10(x) - exact).abs() < exact * 1e-4,
                "{x}: {} {exact}",
                pow10(x)
            );
        }
    }

    /// Checks the choice among an empty large, an empty small and a fuller small node. The fuller small node is
    /// filled best. A node without room is not a choice.
    #[test]
    fn the_fullest_node_with_room_is_chosen() {
        let mut scan = Scan {
            cpu_free: vec![8_000.0, 2_000.0, 1_000.0, 100.0],
            memory_free: vec![8_000.0, 2_000.0, 1_000.0, 100.0],
            disk_free: vec![100.0; 4],
            cpu_share: vec![1.0 / 8_000.0, 0.0005, 0.0005, 0.0005],
            memory_share: vec![1.0 / 8_000.0, 0.0005, 0.0005, 0.0005],
            siblings: vec![0.0; 4],
            scores: vec![0.0; 4],
            placed: vec![false; 4],
        };

        scan.place(1, [500, 500, 10]).unwrap();

        assert_eq!(scan.placed, [false, false, true, false]);
    }
}
