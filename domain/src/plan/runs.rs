//! Placements as they lie in the log.
//!
//! A job of ten thousand instances is ten thousand runs, so each counts: a run is coded against the one
//! before it. The node's number by its distance, and one bit each for what is as expected: one
//! instance, the next name, the same score, nothing else. A run of which all that is so takes one byte
//! where nodes lie close together.

use serde::de::{self, Visitor};
use serde::{Deserializer, Serializer};

use super::PlacementRun;
use crate::alloc::Score;
use crate::id::{AllocId, NodeNumber};
use crate::pack::{Malformed, Reader, Writer};
use crate::resources::AllocatedPort;

/// The bits of a run's first number, below the distance of its node.
const MANY: u64 = 1;
const OTHER_NAME: u64 = 2;
const OTHER_SCORE: u64 = 4;
const MORE: u64 = 8;
const BITS: u32 = 4;

/// The expected node is the one after the last.
const STEP: i64 = 1;

pub(super) fn serialize<S: Serializer>(
    runs: &[PlacementRun],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(&pack(runs))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<PlacementRun>, D::Error> {
    deserializer.deserialize_bytes(Packed)
}

struct Packed;

impl Visitor<'_> for Packed {
    type Value = Vec<PlacementRun>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("packed placements")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        unpack(bytes).map_err(E::custom)
    }

    fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Self::Value, E> {
        self.visit_bytes(&bytes)
    }
}

fn pack(runs: &[PlacementRun]) -> Vec<u8> {
    let mut writer = Writer::default();
    let (mut node, mut name, mut score) = (-STEP, 0_u32, 0_i32);
    for run in runs {
        let PlacementRun {
            node: NodeNumber(number),
            first_index,
            count,
            score: Score(run_score),
            ports,
            previous,
        } = run;
        let distance = i64::from(*number) - node - STEP;
        let mut bits = 0;
        for (bit, set) in [
            (MANY, *count != 1),
            (OTHER_NAME, *first_index != name),
            (OTHER_SCORE, *run_score != score),
            (MORE, !ports.is_empty() || previous.is_some()),
        ] {
            bits |= if set { bit } else { 0 };
        }
        writer.number((((distance << 1) ^ (distance >> 63)).cast_unsigned() << BITS) | bits);
        if bits & MANY != 0 {
            writer.number(u64::from(*count));
        }
        if bits & OTHER_NAME != 0 {
            writer.number(u64::from(*first_index));
        }
        if bits & OTHER_SCORE != 0 {
            writer.signed(i64::from(*run_score) - i64::from(score));
        }
        if bits & MORE != 0 {
            pack_more(&mut writer, ports, *previous);
        }
        node = i64::from(*number);
        name = first_index.wrapping_add(*count);
        score = *run_score;
    }
    writer.finish()
}

fn pack_more(writer: &mut Writer, ports: &[AllocatedPort], previous: Option<AllocId>) {
    writer.number(ports.len() as u64);
    for AllocatedPort { label, value, to } in ports {
        writer.bytes(label.as_bytes());
        writer.number(u64::from(*value));
        writer.number(u64::from(*to));
    }
    writer.byte(u8::from(previous.is_some()));
    if let Some(previous) = previous {
        previous.pack(writer);
    }
}

fn unpack(bytes: &[u8]) -> Result<Vec<PlacementRun>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut runs = Vec::new();
    let (mut node, mut name, mut score) = (-STEP, 0_u32, 0_i32);
    while !reader.is_empty() {
        let first = reader.number()?;
        let (bits, distance) = (first & ((1 << BITS) - 1), first >> BITS);
        let distance = (distance >> 1).cast_signed() ^ -((distance & 1).cast_signed());
        let number = node + STEP + distance;
        let count = if bits & MANY == 0 { 1 } else { reader.small()? };
        let first_index = if bits & OTHER_NAME == 0 {
            name
        } else {
            reader.small()?
        };
        if bits & OTHER_SCORE != 0 {
            let moved = i64::from(score).checked_add(reader.signed()?);
            score = moved
                .and_then(|score| i32::try_from(score).ok())
                .ok_or(Malformed)?;
        }
        let (ports, previous) = if bits & MORE == 0 {
            (Vec::new(), None)
        } else {
            unpack_more(&mut reader)?
        };
        node = number;
        name = first_index.wrapping_add(count);
        runs.push(PlacementRun {
            node: NodeNumber(u32::try_from(number).map_err(|_no_number| Malformed)?),
            first_index,
            count,
            score: Score(score),
            ports,
            previous,
        });
    }
    Ok(runs)
}

fn unpack_more(
    reader: &mut Reader<'_>,
) -> Result<(Vec<AllocatedPort>, Option<AllocId>), Malformed> {
    let mut ports = Vec::new();
    for _ in 0..reader.number()? {
        ports.push(AllocatedPort {
            label: reader.text()?.to_owned(),
            value: reader.small()?,
            to: reader.small()?,
        });
    }
    let previous = match reader.byte()? {
        0 => None,
        1 => Some(AllocId::unpack(reader)?),
        _ => return Err(Malformed),
    };
    Ok((ports, previous))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::LogIndex;

    fn run(node: u32, first_index: u32, score: i32) -> PlacementRun {
        PlacementRun {
            node: NodeNumber(node),
            first_index,
            count: 1,
            score: Score(score),
            ports: Vec::new(),
            previous: None,
        }
    }

    #[test]
    fn runs_read_back() {
        let port = AllocatedPort {
            label: "http".to_owned(),
            value: 20_000,
            to: 80,
        };
        let runs = vec![
            run(7, 0, -300),
            run(7, 1, -300),
            run(u32::MAX, 2, i32::MAX),
            PlacementRun {
                count: 1_000,
                ..run(0, u32::MAX, i32::MIN)
            },
            PlacementRun {
                ports: vec![port.clone(), port],
                previous: Some(AllocId([0x33; 16])),
                ..run(3, 5, 0)
            },
            PlacementRun {
                previous: Some(AllocId::at(LogIndex(9_000), 12)),
                ..run(4, 6, 0)
            },
        ];

        assert_eq!(unpack(&pack(&runs)), Ok(runs));
    }

    #[test]
    fn neighbouring_nodes_of_equal_score_cost_a_byte_each() {
        let runs: Vec<PlacementRun> = (0..10_000).map(|at| run(at, at, 812_345)).collect();

        assert_eq!(pack(&runs).len(), 10_000 + 3);
    }

    #[test]
    fn a_node_number_below_zero_is_malformed() {
        assert_eq!(unpack(&[0x10]), Err(Malformed));
        assert_eq!(unpack(&[0xff]), Err(Malformed));
    }
}
