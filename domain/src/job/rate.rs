//! Rates as job files write them: a whole number and a unit.

use std::fmt;

/// Names of units with their factors, the largest first.
pub(super) type UnitTable = [(&'static str, u64); 3];

/// Reads `100mbit`.
pub(super) fn read(text: &str, units: &UnitTable) -> Option<u64> {
    let text = text.trim();
    units.iter().find_map(|(unit, amount)| {
        let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(*amount)
    })
}

/// Writes `amount` in the largest unit that divides it, else in `ones`.
pub(super) fn write(
    f: &mut fmt::Formatter<'_>,
    amount: u64,
    units: &UnitTable,
    ones: &str,
) -> fmt::Result {
    match units.iter().find(|(_, unit)| amount.is_multiple_of(*unit)) {
        Some((name, unit)) => write!(f, "{}{name}", amount / unit),
        None => write!(f, "{amount}{ones}"),
    }
}
