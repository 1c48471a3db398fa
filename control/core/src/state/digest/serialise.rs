//! Hashes of all serialisable values.

use std::fmt;

use serde::ser::{self, Serialize};

use super::Digest;

/// A `Serialize` that always returns an error.
#[derive(Debug)]
pub(crate) struct RefusingSerialize;

impl fmt::Display for RefusingSerialize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value cannot be serialised")
    }
}

impl std::error::Error for RefusingSerialize {}

impl ser::Error for RefusingSerialize {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Numbers of at most 64 bits, as words.
macro_rules! words {
    ($($method:ident: $number:ty;)*) => {$(
        fn $method(self, value: $number) -> Result<(), RefusingSerialize> {
            self.word(u64::from(value));
            Ok(())
        }
    )*};
}

macro_rules! signed_words {
    ($($method:ident: $number:ty;)*) => {$(
        fn $method(self, value: $number) -> Result<(), RefusingSerialize> {
            self.word(i64::from(value).cast_unsigned());
            Ok(())
        }
    )*};
}

impl ser::Serializer for &mut Digest {
    type Ok = ();
    type Error = RefusingSerialize;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    words! {
        serialize_bool: bool;
        serialize_u8: u8;
        serialize_u16: u16;
        serialize_u32: u32;
        serialize_u64: u64;
        serialize_char: char;
    }

    signed_words! {
        serialize_i8: i8;
        serialize_i16: i16;
        serialize_i32: i32;
        serialize_i64: i64;
    }

    fn serialize_f32(self, value: f32) -> Result<(), RefusingSerialize> {
        self.word(u64::from(value.to_bits()));
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Result<(), RefusingSerialize> {
        self.word(value.to_bits());
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), RefusingSerialize> {
        self.bytes(value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), RefusingSerialize> {
        self.bytes(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), RefusingSerialize> {
        self.word(0);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), RefusingSerialize> {
        self.word(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), RefusingSerialize> {
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), RefusingSerialize> {
        Ok(())
    }

    fn serialize_unit_variant(
        self,
        _name: &'static str,
        variant: u32,
        _variant_name: &'static str,
    ) -> Result<(), RefusingSerialize> {
        self.word(u64::from(variant));
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        value: &T,
    ) -> Result<(), RefusingSerialize> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        variant: u32,
        _variant_name: &'static str,
        value: &T,
    ) -> Result<(), RefusingSerialize> {
        self.word(u64::from(variant));
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self, RefusingSerialize> {
        self.word(len.ok_or(RefusingSerialize)? as u64);
        Ok(self)
    }

    fn serialize_tuple(self, _len: usize) -> Result<Self, RefusingSerialize> {
        Ok(self)
    }

    fn serialize_tuple_struct(
        self,
        _name: &'static str,
        _len: usize,
    ) -> Result<Self, RefusingSerialize> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        variant: u32,
        _variant_name: &'static str,
        _len: usize,
    ) -> Result<Self, RefusingSerialize> {
        self.word(u64::from(variant));
        Ok(self)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self, RefusingSerialize> {
        self.word(len.ok_or(RefusingSerialize)? as u64);
        Ok(self)
    }

    fn serialize_struct(self, _name: &'static str, _len: usize) -> Result<Self, RefusingSerialize> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        variant: u32,
        _variant_name: &'static str,
        _len: usize,
    ) -> Result<Self, RefusingSerialize> {
        self.word(u64::from(variant));
        Ok(self)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Adds parts in order; no end mark follows, because the lengths come first.
macro_rules! parts {
    ($($part:ident $method:ident;)*) => {$(
        impl ser::$part for &mut Digest {
            type Ok = ();
            type Error = RefusingSerialize;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), RefusingSerialize> {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), RefusingSerialize> {
                Ok(())
            }
        }
    )*};
}

parts! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
    SerializeTupleVariant serialize_field;
}

macro_rules! fields {
    ($($part:ident;)*) => {$(
        impl ser::$part for &mut Digest {
            type Ok = ();
            type Error = RefusingSerialize;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _name: &'static str,
                value: &T,
            ) -> Result<(), RefusingSerialize> {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), RefusingSerialize> {
                Ok(())
            }
        }
    )*};
}

fields! {
    SerializeStruct;
    SerializeStructVariant;
}

impl ser::SerializeMap for &mut Digest {
    type Ok = ();
    type Error = RefusingSerialize;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), RefusingSerialize> {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(
        &mut self,
        value: &T,
    ) -> Result<(), RefusingSerialize> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), RefusingSerialize> {
        Ok(())
    }
}
