//! Messages by the numbers of their fields.

use std::collections::BTreeMap;

/// The fields of a message, each as often as it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields(BTreeMap<u64, Vec<Value>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Fields {
    /// Takes a message apart.
    pub(super) fn read(mut bytes: &[u8]) -> Self {
        let mut fields = Self::default();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let value = match tag & 7 {
                0 => Value::Number(varint(&mut bytes)),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)).unwrap();
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Value::Bytes(value.to_vec())
                }
                other => panic!("wire type {other} is in no message of theirs"),
            };
            fields.0.entry(tag >> 3).or_default().push(value);
        }
        fields
    }

    /// How often a field is there.
    pub(super) fn count(&self, number: u64) -> usize {
        self.0.get(&number).map_or(0, Vec::len)
    }

    /// A number; 0 if it is not there.
    pub(super) fn number(&self, number: u64) -> u64 {
        match self.first(number) {
            None => 0,
            Some(Value::Number(value)) => *value,
            Some(Value::Bytes(bytes)) => panic!("{number} is {bytes:?}"),
        }
    }

    /// A text; empty if it is not there.
    pub(super) fn text(&self, number: u64) -> String {
        String::from_utf8(self.bytes(number).to_vec()).unwrap()
    }

    /// A message; an empty one if it is not there.
    pub(super) fn message(&self, number: u64) -> Self {
        Self::read(self.bytes(number))
    }

    fn bytes(&self, number: u64) -> &[u8] {
        match self.first(number) {
            None => &[],
            Some(Value::Bytes(bytes)) => bytes,
            Some(Value::Number(value)) => panic!("{number} is {value}"),
        }
    }

    fn first(&self, number: u64) -> Option<&Value> {
        self.0.get(&number)?.first()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap());
}

/// A text or a message.
pub(super) fn block(number: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    let mut out = Vec::new();
    put(number << 3 | 2, &mut out);
    put(u64::try_from(value.len()).unwrap(), &mut out);
    out.extend_from_slice(value);
    out
}

/// A number.
pub(super) fn number(number: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put(number << 3, &mut out);
    put(value, &mut out);
    out
}

/// A request about one task.
pub(super) fn guid(name: &str) -> Vec<u8> {
    block(1, name)
}

/// A request for a task that runs `/bin/true`.
pub(super) fn desire(name: &str, domain: &str) -> Vec<u8> {
    let run = [block(1, "/bin/true"), block(6, "vcap")].concat();
    let definition = [
        block(1, "preloaded:host"),
        block(3, block(3, run)),
        number(4, 10),
        number(5, 64),
        block(13, "mine"),
    ]
    .concat();
    [block(1, definition), block(2, name), block(3, domain)].concat()
}
