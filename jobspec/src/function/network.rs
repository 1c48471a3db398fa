//! Addresses and their ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::call::{
    Args, CallFault, Function, Outcome, Param, argument, function, text_answer, variadic,
};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    function("cidrhost", &[Param::Text, Param::Number], cidrhost),
    function("cidrnetmask", &[Param::Text], |args| {
        let range = Range::read(args)?;
        text_answer(
            range.text(low_bits_mask(range.bits) & !low_bits_mask(range.bits - range.prefix)),
        )
    }),
    function(
        "cidrsubnet",
        &[Param::Text, Param::Number, Param::Number],
        cidrsubnet,
    ),
    variadic("cidrsubnets", &[Param::Text], Param::Number, cidrsubnets),
];

/// The most bits that a subnet may add to its prefix, in Nomad.
const MORE_BITS_MAX: u32 = 32;

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
        let failed = || argument(0, format!("`{text}` is not a range such as 10.0.0.0/16"));
        let (address, prefix) = text.split_once('/').ok_or_else(failed)?;
        let (address, bits) = match address.parse().map_err(|_unparsed| failed())? {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u32 = prefix.parse().map_err(|_unparsed| failed())?;
        if prefix > bits || !is_number {
            return Err(failed());
        }
        Ok(Self {
            first: address & !low_bits_mask(bits - prefix),
            prefix,
            bits,
        })
    }

    fn last(self) -> u128 {
        self.first | low_bits_mask(self.bits - self.prefix)
    }

    fn text(self, address: u128) -> String {
        match u32::try_from(address) {
            Ok(address) if self.bits == 32 => Ipv4Addr::from(address).to_string(),
            Ok(_) | Err(_) => Ipv6Addr::from(address).to_string(),
        }
    }

    /// The prefix of a subnet that is smaller by the bits in argument `at`.
    fn extended(self, args: &Args<'_>, at: usize) -> Result<u32, CallFault> {
        let more = args.count(at)?;
        let more = u32::try_from(more)
            .ok()
            .filter(|more| *more <= MORE_BITS_MAX)
            .ok_or_else(|| argument(at, format!("at most {MORE_BITS_MAX} bits")))?;
        self.prefix
            .checked_add(more)
            .filter(|prefix| *prefix <= self.bits)
            .ok_or_else(|| argument(at, "the range has fewer bits left"))
    }
}

/// The lowest `bits` bits.
fn low_bits_mask(bits: u32) -> u128 {
    1_u128.checked_shl(bits).map_or(u128::MAX, |next| next - 1)
}

/// An address in a range; a negative number counts from the end of the range.
fn cidrhost(args: &Args<'_>) -> Outcome {
    let (range, number) = (Range::read(args)?, args.whole(1)?);
    let last = low_bits_mask(range.bits - range.prefix);
    let distance = u128::from(number.unsigned_abs());
    let host = if number < 0 {
        last.checked_sub(distance - 1)
    } else {
        Some(distance).filter(|host| *host <= last)
    };
    let host = host.ok_or_else(|| argument(1, "the range has no such address"))?;
    text_answer(range.text(range.first | host))
}

fn cidrsubnet(args: &Args<'_>) -> Outcome {
    let range = Range::read(args)?;
    let prefix = range.extended(args, 1)?;
    let number = u128::try_from(args.count(2)?).unwrap_or(u128::MAX);
    if number > low_bits_mask(prefix - range.prefix) {
        return Err(argument(2, "no subnet has that number"));
    }
    let shifted = number.checked_shl(range.bits - prefix).unwrap_or(0);
    text_answer(format!("{}/{prefix}", range.text(range.first | shifted)))
}

/// Subnets one after the other, each aligned to its own size.
fn cidrsubnets(args: &Args<'_>) -> Outcome {
    let range = Range::read(args)?;
    let mut subnets = Vec::new();
    let mut next = Some(range.first);
    for at in 1..args.len() {
        if args.whole(at)? < 1 {
            return Err(argument(
                at,
                "a subnet is smaller than its range: at least 1 bit",
            ));
        }
        let prefix = range.extended(args, at)?;
        let size = low_bits_mask(range.bits - prefix);
        let first = next.and_then(|next| {
            let aligned = if next & size == 0 {
                Some(next)
            } else {
                (next | size).checked_add(1)
            };
            // Go treats the address zero as an overflow.
            aligned.filter(|first| *first != 0 && *first <= range.last())
        });
        let first = first.ok_or_else(|| argument(at, "the range has no room for this subnet"))?;
        subnets.push(format!("{}/{prefix}", range.text(first)));
        next = (first | size).checked_add(1);
    }
    Ok(Value::texts(subnets))
}
