//! Lossless conversions of numbers.

/// The count of things in memory, such as the length of a list.
///
/// # Panics
///
/// At 2^32 elements. Limits keep every list below that, and no machine has the memory for it.
#[must_use]
pub fn count(length: usize) -> u32 {
    u32::try_from(length).expect("limits keep every list below 2^32 items")
}

/// A length or position in bytes, as an index.
#[must_use]
pub const fn index(bytes: u64) -> usize {
    const {
        assert!(
            usize::BITS == u64::BITS,
            "only 64-bit machines are supported"
        );
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "both have 64 bits, as asserted above"
    )]
    {
        bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_lose_nothing() {
        assert_eq!(count(u32::MAX as usize), u32::MAX);
        assert_eq!(index(u64::MAX), usize::MAX);
    }

    #[test]
    #[should_panic(expected = "below 2^32 items")]
    fn impossible_count_is_no_other_count() {
        let _count = count(1 << 32);
    }
}
