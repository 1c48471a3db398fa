//! Addresses and their ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Args, CallFault, Function, Outcome, argument, function, said};

pub(super) const FUNCTIONS: &[Function] = &[
    function("cidrhost", 2, 2, cidrhost),
    function("cidrnetmask", 1, 1, cidrnetmask),
    function("cidrsubnet", 3, 3, cidrsubnet),
];

/// A range of addresses.
#[derive(Clone, Copy, Debug)]
struct Range {
    /// The first address, in the low bits.
    first: u128,
    /// Bits that all addresses share.
    prefix: u32,
    /// Bits of an address.
    bits: u32,
}

impl Range {
    fn read(args: &Args<'_>) -> Result<Self, CallFault> {
        let text = args.text(0)?;
        let failed = || argument(0, format!("`{text}` is no range such as 10.0.0.0/16"));
        let (address, prefix) = text.split_once('/').ok_or_else(failed)?;
        let (address, bits) = match address.parse().map_err(|_unparsed| failed())? {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        let prefix: u32 = prefix.parse().map_err(|_unparsed| failed())?;
        if prefix > bits {
            return Err(failed());
        }
        Ok(Self {
            first: address & !low(bits - prefix),
            prefix,
            bits,
        })
    }

    fn text(self, address: u128) -> String {
        match u32::try_from(address) {
            Ok(address) if self.bits == 32 => Ipv4Addr::from(address).to_string(),
            Ok(_) | Err(_) => Ipv6Addr::from(address).to_string(),
        }
    }
}

/// The lowest `bits` bits.
fn low(bits: u32) -> u128 {
    1_u128.checked_shl(bits).map_or(u128::MAX, |next| next - 1)
}

/// An address of a range; a negative number counts from its end.
fn cidrhost(args: &Args<'_>) -> Outcome {
    let (range, number) = (Range::read(args)?, args.whole(1)?);
    let last = low(range.bits - range.prefix);
    let distance = u128::from(number.unsigned_abs());
    let host = if number < 0 {
        last.checked_add(1).unwrap_or(last).checked_sub(distance)
    } else {
        Some(distance).filter(|host| *host <= last)
    };
    let host = host.ok_or_else(|| argument(1, "the range has no such address"))?;
    said(range.text(range.first | host))
}

fn cidrnetmask(args: &Args<'_>) -> Outcome {
    let range = Range::read(args)?;
    if range.bits != 32 {
        return Err(argument(0, "only IPv4 has masks"));
    }
    said(range.text(low(32) & !low(32 - range.prefix)))
}

fn cidrsubnet(args: &Args<'_>) -> Outcome {
    let range = Range::read(args)?;
    let (more, number) = (args.count(1)?, args.count(2)?);
    let more = u32::try_from(more).unwrap_or(u32::MAX);
    let prefix = range
        .prefix
        .checked_add(more)
        .filter(|prefix| *prefix <= range.bits)
        .ok_or_else(|| argument(1, "the range has not so many bits left"))?;
    let number = u128::try_from(number).unwrap_or(u128::MAX);
    if number > low(more) {
        return Err(argument(2, "there is no subnet of that number"));
    }
    let shifted = number.checked_shl(range.bits - prefix).unwrap_or(0);
    said(format!("{}/{prefix}", range.text(range.first | shifted)))
}
