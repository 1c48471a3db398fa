//! HCL's numbers: binary floating point of up to 512 bits, as in go-cty.
//!
//! A number keeps its precision, because Go's `big.Float` rounds a sum to the larger precision of its operands.
//! Integers come from `num-bigint`. Rounding is implemented here. The libraries dashu-float, astro-float and bigdecimal
//! lack a precision for each value and Go's shortest decimal text.

use std::cmp::Ordering;

use muster_domain::saturating;
use num_bigint::BigUint;

use crate::limits::{NUMBER_BITS_MAX, NUMBER_TEXT_BYTES_MAX};

/// Bits of a number that was written in a file or parsed from a text.
const PARSED_BITS: u64 = 512;
/// Bits of a number that was counted, such as a length.
const COUNTED_BITS: u64 = 64;
/// Bits of a number that a function computed as a float of 64 bits.
const DOUBLE_BITS: u64 = 53;

/// A number: zero, `mantissa * 2^exponent`, or infinite.
#[derive(Clone, Debug)]
pub(crate) struct Number {
    negative: bool,
    form: NumberForm,
    /// Bits that a result of this number is rounded to.
    precision: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum NumberForm {
    Zero,
    /// The mantissa is odd.
    Finite(BigUint, i64),
    Infinite,
}

impl Number {
    fn zero(negative: bool, precision: u64) -> Self {
        Self {
            negative,
            form: NumberForm::Zero,
            precision,
        }
    }

    fn infinite(negative: bool, precision: u64) -> Self {
        Self {
            negative,
            form: NumberForm::Infinite,
            precision,
        }
    }

    /// `mantissa * 2^exponent`, rounded to `precision` bits; `None` if it is out of range.
    fn rounded(negative: bool, mantissa: BigUint, exponent: i64, precision: u64) -> Option<Self> {
        Self::rounded_sticky(negative, mantissa, exponent, precision, false)
    }

    /// As [`Self::rounded`], for a mantissa from which a remainder above zero was cut off.
    fn rounded_sticky(
        negative: bool,
        mantissa: BigUint,
        exponent: i64,
        precision: u64,
        sticky: bool,
    ) -> Option<Self> {
        let bits = mantissa.bits();
        if bits == 0 {
            return Some(Self::zero(negative, precision));
        }
        let (mut mantissa, mut exponent) = (mantissa, exponent);
        if let Some(extra) = bits.checked_sub(precision).filter(|extra| *extra > 0) {
            let is_half = mantissa.bit(extra - 1);
            let is_more = sticky
                || mantissa
                    .trailing_zeros()
                    .is_some_and(|zeros| zeros < extra - 1);
            mantissa >>= extra;
            if is_half && (is_more || mantissa.bit(0)) {
                mantissa += 1_u32;
            }
            exponent = exponent.checked_add_unsigned(extra)?;
        }
        let zeros = mantissa.trailing_zeros().unwrap_or(0);
        mantissa >>= zeros;
        exponent = exponent.checked_add_unsigned(zeros)?;
        if exponent
            .checked_add_unsigned(mantissa.bits())?
            .unsigned_abs()
            > NUMBER_BITS_MAX
        {
            return None;
        }
        Some(Self {
            negative,
            form: NumberForm::Finite(mantissa, exponent),
            precision,
        })
    }

    /// The number that `text` is, as in a file: decimal, with a fraction and an exponent if there are any.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (negative, unsigned) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        if text.len() > NUMBER_TEXT_BYTES_MAX {
            return None;
        }
        if matches!(unsigned, "Inf" | "inf") {
            return Some(Self::infinite(negative, PARSED_BITS));
        }
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (digits, exponent) = unsigned.split_at(end.unwrap_or(unsigned.len()));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return None;
        }
        let (mut ten, mut two) = (-i64::try_from(fraction.len()).ok()?, 0_i64);
        if !exponent.is_empty() {
            let mut marked = exponent.chars();
            let marker = marked.next()?;
            let written = marked.as_str();
            let unsigned = written.strip_prefix(['+', '-']).unwrap_or(written);
            if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            let value: i64 = written.parse().ok()?;
            match marker {
                'e' | 'E' => ten = ten.checked_add(value)?,
                'p' | 'P' => two = value,
                _ => return None,
            }
        }
        let mantissa = BigUint::parse_bytes(format!("{whole}{fraction}").as_bytes(), 10)?;
        if mantissa.bits() == 0 {
            return Some(Self::zero(negative, PARSED_BITS));
        }
        if ten.unsigned_abs().checked_mul(4)? > NUMBER_BITS_MAX {
            return None;
        }
        let exponent = two.checked_add(ten)?;
        let five = power_of_five(ten.unsigned_abs(), PARSED_BITS + 64)?;
        let NumberForm::Finite(five, five_exponent) = five.form else {
            return None;
        };
        if ten >= 0 {
            let exponent = exponent.checked_add(five_exponent)?;
            Self::rounded(negative, mantissa * five, exponent, PARSED_BITS)
        } else {
            let exponent = exponent.checked_sub(five_exponent)?;
            quotient(negative, mantissa, &five, exponent, PARSED_BITS)
        }
    }

    /// A number that a function counted.
    pub(crate) fn counted(count: usize) -> Self {
        Self::unsigned(count as u64)
    }

    /// `whole` with the precision of a 64-bit integer.
    pub(crate) fn integer(whole: i64) -> Self {
        let mut number = Self::unsigned(whole.unsigned_abs());
        number.negative = whole < 0;
        number
    }

    /// `whole` with the precision of a 64-bit integer.
    pub(crate) fn unsigned(whole: u64) -> Self {
        Self::rounded(false, BigUint::from(whole), 0, COUNTED_BITS)
            .unwrap_or_else(|| Self::zero(false, COUNTED_BITS))
    }

    /// A whole number of any size, with a precision that represents it exactly.
    pub(crate) fn big(negative: bool, whole: BigUint) -> Option<Self> {
        let precision = whole.bits().max(COUNTED_BITS);
        Self::rounded(negative, whole, 0, precision)
    }

    /// A float of 64 bits; `None` if it is not a number.
    pub(crate) fn double(real: f64) -> Option<Self> {
        if real.is_nan() {
            return None;
        }
        let negative = real.is_sign_negative();
        if real.is_infinite() {
            return Some(Self::infinite(negative, DOUBLE_BITS));
        }
        let bits = real.to_bits();
        let fraction = bits & ((1 << 52) - 1);
        let biased = i64::try_from((bits >> 52) & 0x7ff).ok()?;
        let (mantissa, exponent) = match biased {
            0 => (fraction, -1074),
            biased => (fraction | (1 << 52), biased - 1075),
        };
        Self::rounded(negative, BigUint::from(mantissa), exponent, DOUBLE_BITS)
    }

    /// The nearest float of 64 bits.
    pub(crate) fn to_double(&self) -> f64 {
        self.text().parse().unwrap_or(f64::NAN)
    }

    /// Whether the number is below zero, or negative zero.
    pub(crate) fn is_negative(&self) -> bool {
        self.negative && self.form != NumberForm::Zero
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.form == NumberForm::Zero
    }

    pub(crate) fn is_infinite(&self) -> bool {
        self.form == NumberForm::Infinite
    }

    /// Whether the number has no fraction.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.form {
            NumberForm::Zero => true,
            NumberForm::Finite(_, exponent) => *exponent >= 0,
            NumberForm::Infinite => false,
        }
    }

    /// The absolute value without the fraction; `None` if the number is infinite.
    pub(crate) fn truncated(&self) -> Option<BigUint> {
        match &self.form {
            NumberForm::Zero => Some(BigUint::ZERO),
            NumberForm::Finite(mantissa, exponent) if *exponent >= 0 => {
                Some(mantissa << exponent.unsigned_abs())
            }
            NumberForm::Finite(mantissa, exponent) => Some(mantissa >> exponent.unsigned_abs()),
            NumberForm::Infinite => None,
        }
    }

    /// The number as `i64`, if it is whole and fits.
    pub(crate) fn as_i64(&self) -> Option<i64> {
        let size = self.as_size()?;
        if self.negative {
            0_i64.checked_sub_unsigned(size)
        } else {
            i64::try_from(size).ok()
        }
    }

    /// The number as `u64`, if it is whole and fits.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        self.as_size().filter(|size| !self.negative || *size == 0)
    }

    fn as_size(&self) -> Option<u64> {
        let whole = self.truncated().filter(|_| self.is_whole())?;
        u64::try_from(&whole).ok()
    }

    /// The number with the opposite sign.
    pub(crate) fn negated(&self) -> Self {
        Self {
            negative: !self.negative,
            ..self.clone()
        }
    }

    /// The absolute value.
    pub(crate) fn absolute(&self) -> Self {
        Self {
            negative: false,
            ..self.clone()
        }
    }

    /// The sum; `None` if it is out of range or undefined.
    pub(crate) fn plus(&self, other: &Self) -> Option<Self> {
        let precision = self.precision.max(other.precision);
        let as_is = |number: &Self| match &number.form {
            NumberForm::Finite(mantissa, exponent) => {
                Self::rounded(number.negative, mantissa.clone(), *exponent, precision)
            }
            NumberForm::Zero | NumberForm::Infinite => Some(Self {
                precision,
                ..number.clone()
            }),
        };
        match (&self.form, &other.form) {
            (NumberForm::Infinite, NumberForm::Infinite) if self.negative != other.negative => None,
            (NumberForm::Infinite, _) | (NumberForm::Finite(..), NumberForm::Zero) => as_is(self),
            (_, NumberForm::Infinite) | (NumberForm::Zero, NumberForm::Finite(..)) => as_is(other),
            (NumberForm::Zero, NumberForm::Zero) => {
                Some(Self::zero(self.negative && other.negative, precision))
            }
            (NumberForm::Finite(a, a_exponent), NumberForm::Finite(b, b_exponent)) => {
                let exponent = *a_exponent.min(b_exponent);
                let a = a << (a_exponent - exponent).unsigned_abs();
                let b = b << (b_exponent - exponent).unsigned_abs();
                let (negative, sum) = if self.negative == other.negative {
                    (self.negative, a + b)
                } else {
                    match a.cmp(&b) {
                        Ordering::Equal => return Some(Self::zero(false, precision)),
                        Ordering::Greater => (self.negative, a - b),
                        Ordering::Less => (other.negative, b - a),
                    }
                };
                Self::rounded(negative, sum, exponent, precision)
            }
        }
    }

    /// The difference; `None` if it is out of range or undefined.
    pub(crate) fn minus(&self, other: &Self) -> Option<Self> {
        self.plus(&other.negated())
    }

    /// The product, rounded to `precision`.
    fn product(&self, other: &Self, precision: u64) -> Option<Self> {
        let negative = self.negative != other.negative;
        match (&self.form, &other.form) {
            (NumberForm::Infinite, NumberForm::Zero) | (NumberForm::Zero, NumberForm::Infinite) => {
                None
            }
            (NumberForm::Infinite, _) | (_, NumberForm::Infinite) => {
                Some(Self::infinite(negative, precision))
            }
            (NumberForm::Zero, _) | (_, NumberForm::Zero) => Some(Self::zero(negative, precision)),
            (NumberForm::Finite(a, a_exponent), NumberForm::Finite(b, b_exponent)) => {
                Self::rounded(negative, a * b, a_exponent + b_exponent, precision)
            }
        }
    }

    /// The product as in go-cty: of 512 bits at most, and of fewer if they represent it exactly.
    pub(crate) fn times(&self, other: &Self) -> Option<Self> {
        let mut product = self.product(other, PARSED_BITS)?;
        let needed = match &product.form {
            NumberForm::Finite(mantissa, _) => mantissa.bits(),
            NumberForm::Zero | NumberForm::Infinite => 0,
        };
        product.precision = self.precision.max(other.precision).max(needed);
        Some(product)
    }

    /// The quotient. Division by zero is infinite. `None` if the quotient is undefined.
    pub(crate) fn divided(&self, other: &Self) -> Option<Self> {
        let precision = self.precision.max(other.precision);
        let negative = self.negative != other.negative;
        match (&self.form, &other.form) {
            (NumberForm::Infinite, NumberForm::Infinite) | (NumberForm::Zero, NumberForm::Zero) => {
                None
            }
            (NumberForm::Infinite, _) | (_, NumberForm::Zero) => {
                Some(Self::infinite(negative, precision))
            }
            (NumberForm::Zero, _) | (_, NumberForm::Infinite) => {
                Some(Self::zero(negative, precision))
            }
            (NumberForm::Finite(a, a_exponent), NumberForm::Finite(b, b_exponent)) => {
                quotient(negative, a.clone(), b, a_exponent - b_exponent, precision)
            }
        }
    }

    /// The remainder of a division with a quotient truncated to a whole number.
    pub(crate) fn modulo(&self, other: &Self) -> Option<Self> {
        if other.is_zero() {
            return Some(self.clone());
        }
        if self.is_infinite() || other.is_infinite() {
            return None;
        }
        let ratio = self.divided(other)?;
        let whole = ratio.truncated()?;
        let whole = Self::rounded(ratio.negative, whole, 0, self.precision)?;
        let whole = if whole.is_zero() {
            Self::zero(false, self.precision)
        } else {
            whole
        };
        self.minus(&other.product(&whole, self.precision)?)
    }

    /// The number without fraction, towards minus infinity.
    pub(crate) fn floor(&self) -> Option<Self> {
        self.whole_towards(true)
    }

    /// The number without fraction, towards infinity.
    pub(crate) fn ceil(&self) -> Option<Self> {
        self.whole_towards(false)
    }

    fn whole_towards(&self, down: bool) -> Option<Self> {
        let Some(mut whole) = self.truncated() else {
            return Some(self.clone());
        };
        if !self.is_whole() && self.negative == down {
            whole += 1_u32;
        }
        let negative = self.negative && whole.bits() > 0;
        Self::rounded(negative, whole, 0, self.precision)
    }

    /// The order of two numbers.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let class = |number: &Self| match (&number.form, number.negative) {
            (NumberForm::Infinite, true) => -2,
            (NumberForm::Finite(..), true) => -1,
            (NumberForm::Zero, _) => 0,
            (NumberForm::Finite(..), false) => 1,
            (NumberForm::Infinite, false) => 2,
        };
        let by_class = class(self).cmp(&class(other));
        let (NumberForm::Finite(a, a_exponent), NumberForm::Finite(b, b_exponent)) =
            (&self.form, &other.form)
        else {
            return by_class;
        };
        if by_class != Ordering::Equal {
            return by_class;
        }
        let exponent = a_exponent.min(b_exponent);
        let size = (a << (a_exponent - exponent).unsigned_abs())
            .cmp(&(b << (b_exponent - exponent).unsigned_abs()));
        if self.negative { size.reverse() } else { size }
    }

    /// The shortest digits without an exponent that identify the number.
    pub(crate) fn text(&self) -> String {
        self.fixed(None)
    }

    /// The digits with `precision` decimals, or the shortest digits that identify the number.
    pub(crate) fn fixed(&self, precision: Option<usize>) -> String {
        if self.is_infinite() {
            return if self.negative { "-Inf" } else { "+Inf" }.to_owned();
        }
        let mut decimal = self.decimal();
        match precision {
            None => self.shorten(&mut decimal),
            Some(precision) => {
                let places = saturating::to_i64(precision);
                decimal.round(decimal.point.saturating_add(places));
            }
        }
        let sign = if self.negative { "-" } else { "" };
        let count = saturating::to_i64(decimal.digits.len());
        let places =
            precision.unwrap_or_else(|| usize::try_from(count - decimal.point).unwrap_or(0));
        let mut text = sign.to_owned();
        if decimal.point > 0 {
            text.extend((0..decimal.point).map(|at| decimal.digit(at)));
        } else {
            text.push('0');
        }
        if places > 0 {
            text.push('.');
            let places = saturating::to_i64(places);
            text.extend((0..places).map(|at| decimal.digit(decimal.point.saturating_add(at))));
        }
        text
    }

    /// The digits with an exponent and `precision` decimals.
    pub(crate) fn exponential(&self, precision: Option<usize>) -> String {
        if self.is_infinite() {
            return self.fixed(None);
        }
        let mut decimal = self.decimal();
        match precision {
            None => self.shorten(&mut decimal),
            Some(precision) => {
                decimal.round(saturating::to_i64(precision).saturating_add(1));
            }
        }
        let places = precision.unwrap_or_else(|| decimal.digits.len().saturating_sub(1));
        self.with_exponent(&decimal, places)
    }

    fn with_exponent(&self, decimal: &Decimal, places: usize) -> String {
        let mut text = if self.negative { "-" } else { "" }.to_owned();
        text.push(decimal.digit(0));
        if places > 0 {
            text.push('.');
            let places = saturating::to_i64(places);
            text.extend((1..=places).map(|at| decimal.digit(at)));
        }
        let exponent = if decimal.digits.is_empty() {
            0
        } else {
            decimal.point - 1
        };
        let sign = if exponent < 0 { '-' } else { '+' };
        text + &format!("e{sign}{:02}", exponent.unsigned_abs())
    }

    /// The digits, with an exponent if that is shorter, as Go's `%g`.
    pub(crate) fn general(&self, precision: Option<usize>) -> String {
        if self.is_infinite() {
            return self.fixed(None);
        }
        let mut decimal = self.decimal();
        let precision = precision.map(|precision| precision.max(1));
        match precision {
            None => self.shorten(&mut decimal),
            Some(precision) => decimal.round(saturating::to_i64(precision)),
        }
        let count = saturating::to_i64(decimal.digits.len());
        let shown = precision.map_or(6, saturating::to_i64);
        // `%e` is used if the exponent from the conversion is less than -4 or at least the precision.
        let mut bound = shown;
        if bound > count && count >= decimal.point {
            bound = count;
        }
        if precision.is_none() {
            bound = 6;
        }
        let exponent = decimal.point - 1;
        if !self.is_zero() && (exponent < -4 || exponent >= bound) {
            let places = match precision {
                Some(precision) => precision.min(decimal.digits.len()).saturating_sub(1),
                None => decimal.digits.len().saturating_sub(1),
            };
            return self.with_exponent(&decimal, places);
        }
        let places = usize::try_from((count - decimal.point).max(0)).unwrap_or(0);
        let places = if decimal.digits.is_empty() { 0 } else { places };
        let mut text = if self.negative { "-" } else { "" }.to_owned();
        if decimal.point > 0 {
            text.extend((0..decimal.point).map(|at| decimal.digit(at)));
        } else {
            text.push('0');
        }
        if places > 0 {
            text.push('.');
            let places = saturating::to_i64(places);
            text.extend((0..places).map(|at| decimal.digit(decimal.point + at)));
        }
        text
    }

    /// The exact decimal digits.
    fn decimal(&self) -> Decimal {
        match &self.form {
            NumberForm::Finite(mantissa, exponent) => Decimal::new(mantissa, *exponent),
            NumberForm::Zero | NumberForm::Infinite => Decimal::default(),
        }
    }

    /// Rounds `decimal`, the exact digits, to the shortest digits that identify the number.
    ///
    /// The interval and its comparison digit by digit follow Go's `math/big`.
    fn shorten(&self, decimal: &mut Decimal) {
        let NumberForm::Finite(mantissa, exponent) = &self.form else {
            return;
        };
        // The lowest bit is half of the distance to a neighbour.
        let wanted = self.precision + 1;
        let bits = mantissa.bits();
        let shift = wanted.saturating_sub(bits);
        let half = mantissa << shift;
        let exponent = exponent.saturating_sub_unsigned(shift);
        let lower = Decimal::new(&(&half - 1_u32), exponent);
        let upper = Decimal::new(&(&half + 1_u32), exponent);
        let inclusive = !half.bit(1);
        for at in 0..decimal.digits.len() {
            let here = decimal.digits[at];
            let index = saturating::to_i64(at);
            let (low, high) = (lower.byte(index), upper.byte(index));
            let may_cut = low != here || (inclusive && at + 1 == lower.digits.len());
            let may_raise =
                here != high && (inclusive || here + 1 < high || at + 1 < upper.digits.len());
            match (may_cut, may_raise) {
                (true, true) => return decimal.round(index + 1),
                (true, false) => return decimal.cut(at + 1),
                (false, true) => return decimal.raise(at + 1),
                (false, false) => {}
            }
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.order(other) == Ordering::Equal
    }
}

/// `5^exponent`, computed in floats of `precision` bits by Go's order of steps.
fn power_of_five(exponent: u64, precision: u64) -> Option<Number> {
    /// The largest power that Go has in a table.
    const TABLE_MAX: u64 = 27;
    let small = |exponent: u64| 5_u64.pow(u32::try_from(exponent).unwrap_or(0));
    let as_float = |value: u64, bits| Number::rounded(false, BigUint::from(value), 0, bits);
    if exponent <= TABLE_MAX {
        return as_float(small(exponent), precision);
    }
    let mut power = as_float(small(TABLE_MAX), precision)?;
    let mut left = exponent - TABLE_MAX;
    let mut factor = as_float(5, precision + 64)?;
    while left > 0 {
        if left & 1 != 0 {
            power = power.product(&factor, precision)?;
        }
        factor = factor.product(&factor, precision + 64)?;
        left >>= 1;
    }
    Some(power)
}

/// `a / b * 2^exponent`, rounded to `precision` bits.
fn quotient(
    negative: bool,
    a: BigUint,
    b: &BigUint,
    exponent: i64,
    precision: u64,
) -> Option<Number> {
    let shift = (precision + 2 + b.bits()).saturating_sub(a.bits());
    let a = a << shift;
    let (whole, rest) = (&a / b, &a % b);
    let exponent = exponent.checked_sub_unsigned(shift)?;
    Number::rounded_sticky(negative, whole, exponent, precision, rest.bits() > 0)
}

/// Decimal digits: `0.d1d2d3… * 10^point`, without zeros at the end.
#[derive(Clone, Debug, Default)]
struct Decimal {
    digits: Vec<u8>,
    point: i64,
}

impl Decimal {
    /// `mantissa * 2^exponent`.
    fn new(mantissa: &BigUint, exponent: i64) -> Self {
        if mantissa.bits() == 0 {
            return Self::default();
        }
        let size = exponent.unsigned_abs();
        let (digits, shift) = if exponent >= 0 {
            (mantissa << size, 0)
        } else {
            // Trailing zero bits of the mantissa need no digits.
            let zeros = mantissa.trailing_zeros().unwrap_or(0).min(size);
            let size = size - zeros;
            let five = BigUint::from(5_u32).pow(saturating::to_u32(size));
            ((mantissa >> zeros) * five, saturating::to_i64(size))
        };
        let digits = digits.to_string().into_bytes();
        let point = saturating::to_i64(digits.len()) - shift;
        let mut decimal = Self { digits, point };
        decimal.trim();
        decimal
    }

    fn trim(&mut self) {
        while self.digits.last() == Some(&b'0') {
            self.digits.pop();
        }
        if self.digits.is_empty() {
            self.point = 0;
        }
    }

    fn byte(&self, at: i64) -> u8 {
        let at = usize::try_from(at).ok();
        at.and_then(|at| self.digits.get(at))
            .copied()
            .unwrap_or(b'0')
    }

    fn digit(&self, at: i64) -> char {
        char::from(self.byte(at))
    }

    /// Rounds to `count` digits, to nearest, half to even.
    fn round(&mut self, count: i64) {
        let Ok(count) = usize::try_from(count) else {
            *self = Self::default();
            return;
        };
        let Some(&next) = self.digits.get(count) else {
            return;
        };
        let is_half = next == b'5' && count + 1 == self.digits.len();
        let is_up = if is_half {
            count > 0 && !self.digits[count - 1].is_multiple_of(2)
        } else {
            next >= b'5'
        };
        if is_up {
            self.raise(count);
        } else {
            self.cut(count);
        }
    }

    fn cut(&mut self, count: usize) {
        self.digits.truncate(count);
        self.trim();
    }

    fn raise(&mut self, count: usize) {
        self.digits.truncate(count);
        while self.digits.last() == Some(&b'9') {
            self.digits.pop();
        }
        match self.digits.last_mut() {
            Some(last) => *last += 1,
            None => {
                self.digits.push(b'1');
                self.point += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        Number::parse(text).unwrap()
    }

    #[test]
    fn decimal_sums_are_exact() {
        assert_eq!(number("0.1").plus(&number("0.2")), Some(number("0.3")));
        assert_eq!(
            number("1.15")
                .times(&number("100"))
                .unwrap()
                .floor()
                .unwrap()
                .text(),
            "115"
        );
        assert_eq!(number("1").divided(&number("3")).unwrap().text().len(), 157);
    }

    #[test]
    fn texts_have_no_exponent() {
        for (written, text) in [
            ("1e21", "1000000000000000000000"),
            ("1.50", "1.5"),
            ("-0", "-0"),
            ("1e-7", "0.0000001"),
            (".5", "0.5"),
            ("1p3", "8"),
        ] {
            assert_eq!(number(written).text(), text);
        }
    }

    #[test]
    fn other_texts_are_not_numbers() {
        for text in [
            "",
            "-",
            ".",
            "1.2.3",
            "1e",
            "abc",
            "0x10",
            "1 ",
            "1😀",
            "1e999999999999",
        ] {
            assert!(Number::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn numbers_have_go_formats() {
        assert_eq!(number("1234.5").exponential(Some(6)), "1.234500e+03");
        assert_eq!(number("1.005").fixed(Some(2)), "1.00");
        assert_eq!(number("1000000").general(None), "1e+06");
        assert_eq!(number("0.5").general(None), "0.5");
        assert_eq!(number("100000").general(None), "100000");
    }

    #[test]
    fn zero_divides_to_infinity() {
        assert!(number("1").divided(&number("0")).unwrap().is_infinite());
        assert!(number("0").divided(&number("0")).is_none());
        assert_eq!(number("7").modulo(&number("-3")), Some(number("1")));
    }
}
