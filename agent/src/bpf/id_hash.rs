//! The hash of ids that the kernel gives.

use std::hash::{BuildHasherDefault, Hasher};

/// Hashes ids that the kernel gives, which nobody chooses, by one multiplication.
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
        // 2^64 by the golden ratio. The table takes low bits for the place and the highest ones for its tags.
        let spread = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
