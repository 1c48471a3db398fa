//! The hash of ids that the kernel assigns.

use std::hash::{BuildHasherDefault, Hasher};

/// Hashes ids that the kernel assigns, by one multiplication. No task can choose such an id to force collisions.
pub type IdHash = BuildHasherDefault<IdHasher>;

/// See [`IdHash`].
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // 2^64 divided by the golden ratio. The table uses the low bits for the position and the highest bits for its
        // tags.
        let spread = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
