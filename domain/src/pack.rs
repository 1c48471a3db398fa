//! A compact encoding of numbers and texts.
//!
//! Bytes of a [`Writer`] are persisted; [`Reader`] accepts any bytes and never panics.

/// Writes values one after another without separators. The reader must read the same types in the same order.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Returns the written bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// The bytes written so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Writes one byte.
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Writes a number as LEB128: seven bits per byte, lowest first. The eighth bit is set if another byte follows.
    pub fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(low_seven(value) | 0x80);
            value >>= 7;
        }
        self.0.push(low_seven(value));
    }

    /// Writes a signed number. Numbers near zero take few bytes.
    pub fn signed(&mut self, value: i64) {
        self.number(zigzag(value));
    }

    /// Writes `value` as its distance from `base`.
    pub fn near(&mut self, value: u64, base: u64) {
        self.signed(value.wrapping_sub(base).cast_signed());
    }

    /// Writes bytes with their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Writes bytes whose length the reader knows.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// The error for bytes that end early, or that are not a valid number or text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("packed bytes are malformed")]
pub struct Malformed;

/// Reads values that a [`Writer`] wrote.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Creates a reader at the first of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all bytes were read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads one byte.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if there is none.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    /// See [`Writer::number`].
    ///
    /// # Errors
    ///
    /// [`Malformed`] if the bytes end early or the number has more than 64 bits.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    /// Reads a number that fits a smaller type.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if it does not.
    pub fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        T::try_from(self.number()?).map_err(|_too_large| Malformed)
    }

    /// See [`Writer::signed`].
    ///
    /// # Errors
    ///
    /// As [`Self::number`].
    pub fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    /// See [`Writer::near`].
    ///
    /// # Errors
    ///
    /// As [`Self::number`].
    pub fn near(&mut self, base: u64) -> Result<u64, Malformed> {
        Ok(base.wrapping_add(self.signed()?.cast_unsigned()))
    }

    /// See [`Writer::bytes`].
    ///
    /// # Errors
    ///
    /// [`Malformed`] if there are fewer.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.small::<usize>()?;
        self.raw(len)
    }

    /// See [`Writer::raw`].
    ///
    /// # Errors
    ///
    /// [`Malformed`] if there are fewer.
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads bytes as text.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if they are not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_not_utf8| Malformed)
    }
}

/// Maps signed numbers near zero to small unsigned numbers.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn low_seven(value: u64) -> u8 {
    value.to_le_bytes()[0] & 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_small_ones_are_short() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut writer = Writer::default();
            writer.number(value);
            writer.signed(value.cast_signed());
            writer.near(value, 77);
            let bytes = writer.finish();

            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.number(), Ok(value));
            assert_eq!(reader.signed(), Ok(value.cast_signed()));
            assert_eq!(reader.near(77), Ok(value));
            assert!(reader.is_empty());
        }
        let mut writer = Writer::default();
        writer.signed(-64);
        assert_eq!(writer.finish().len(), 1);
    }

    #[test]
    fn cut_or_too_large_values_are_malformed() {
        assert_eq!(Reader::new(&[]).byte(), Err(Malformed));
        assert_eq!(Reader::new(&[0x80]).number(), Err(Malformed));
        assert_eq!(Reader::new(&[0xff; 11]).number(), Err(Malformed));
        assert_eq!(Reader::new(&[5, b'x']).bytes(), Err(Malformed));
        assert_eq!(Reader::new(&[1, 0xff]).text(), Err(Malformed));
        assert_eq!(Reader::new(&[0x80, 0x04]).small::<u8>(), Err(Malformed));
    }
}
