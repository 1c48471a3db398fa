//! Search for ids by their first digits.

use muster_domain::id::{DeploymentId, EvalId, NodeId};

/// An id of 16 bytes, which determine its order.
pub trait PrefixId {
    fn of_bytes(bytes: [u8; 16]) -> Self;
}

impl PrefixId for DeploymentId {
    fn of_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl PrefixId for EvalId {
    fn of_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl PrefixId for NodeId {
    fn of_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Returns the lowest and the highest id that begin with `text`: hexadecimal digits, dashes ignored. `None` if no id
/// can begin with it.
pub(super) fn bounds(text: &str) -> Option<([u8; 16], [u8; 16])> {
    let mut low = [0x00; 16];
    let mut high = [0xff; 16];
    for (at, letter) in text.chars().filter(|letter| *letter != '-').enumerate() {
        let digit = u8::try_from(letter.to_digit(16)?).ok()?;
        let (low, high) = (low.get_mut(at / 2)?, high.get_mut(at / 2)?);
        if at % 2 == 0 {
            *low = digit << 4;
            *high = (digit << 4) | 0x0f;
        } else {
            *low |= digit;
            *high = (*high & 0xf0) | digit;
        }
    }
    Some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_digit_spans_sixteen_values() {
        let (low, high) = bounds("0a-b").unwrap();

        assert_eq!((low[0], low[1]), (0x0a, 0xb0));
        assert_eq!((high[0], high[1], high[2]), (0x0a, 0xbf, 0xff));
    }

    #[test]
    fn invalid_id_prefixes_have_no_bounds() {
        assert_eq!(bounds("web"), None);
        assert_eq!(bounds(&"0".repeat(33)), None);
    }
}
