//! Emptiness as Go writes it: `null`.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A field that is always `null`: something Nomad has and this version has not.
///
/// Reads back from anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Null;

impl Serialize for Null {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Null {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// Writes `value`, or `null` if it is empty. For `#[serde(with = "null")]` on lists and maps.
///
/// # Errors
///
/// Those of `serializer`.
pub fn serialize<T, S>(value: &T, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Default + PartialEq + Serialize,
    S: Serializer,
{
    if *value == T::default() {
        serializer.serialize_unit()
    } else {
        value.serialize(serializer)
    }
}

/// Reads a value; `null` is the empty one.
///
/// # Errors
///
/// Those of `deserializer`.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}
