//! Conversions to a smaller number type that saturate at its largest value.
//!
//! They are for values that are displayed, estimated or only compared. Counts of elements in memory use
//! [`number::count`](crate::number::count), which never returns a wrong value.

use std::time::Duration;

/// Whole nanoseconds, up to 584 years.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    to_u64(duration.as_nanos())
}

/// Whole microseconds.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    to_u64(duration.as_micros())
}

/// Whole milliseconds.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    to_u64(duration.as_millis())
}

macro_rules! conversions {
    ($($name:ident: $type:ty,)+) => {
        $(
            #[doc = concat!("`number`, which is not negative, as `", stringify!($type), "`.")]
            #[must_use]
            pub fn $name(number: impl TryInto<$type>) -> $type {
                number.try_into().unwrap_or(<$type>::MAX)
            }
        )+
    };
}

conversions! {
    to_u8: u8,
    to_u16: u16,
    to_u32: u32,
    to_u64: u64,
    to_i32: i32,
    to_i64: i64,
    to_usize: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_above_are_the_largest() {
        assert_eq!((to_u8(255_u64), to_u8(256_u64)), (255, 255));
        assert_eq!(to_i32(1_u64 << 31), i32::MAX);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
    }

    #[test]
    fn units_are_whole() {
        let time = Duration::from_nanos(1_999_999);

        assert_eq!(
            (nanos(time), micros(time), millis(time)),
            (1_999_999, 1_999, 1)
        );
    }
}
