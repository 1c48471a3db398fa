//! The encoding of placements in the log.
//!
//! A job of ten thousand instances may have ten thousand runs, so each byte counts. A run is encoded relative to the
//! run before it. The node is encoded as a distance. One bit each stands for an expected value: one instance, the next
//! name, the same score, no details. A fully expected run takes one byte if nodes are close together.

use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserializer, Serializer};

use super::{PlacementDetail, PlacementRun};
use crate::alloc::Score;
use crate::id::{AllocId, NodeNumber};
use crate::pack::{Malformed, Reader, Writer};
use crate::resources::{AllocatedPort, HeldCores, HeldDevices, Holding};

/// The flag bits of a run's first number, below the distance of its node.
const MANY: u64 = 1;
const OTHER_NAME: u64 = 2;
const OTHER_SCORE: u64 = 4;
const MORE: u64 = 8;
const BITS: u32 = 4;

/// The flag bits of the first byte of a detail.
const PREVIOUS: u8 = 1;
const RESCHEDULE: u8 = 2;
const CANARY: u8 = 4;
const PREEMPTED: u8 = 8;
const VERSION: u8 = 16;
const PORTS: u8 = 32;
const CORES: u8 = 64;
const DEVICES: u8 = 128;

/// The expected distance: the node after the last one.
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
    deserializer.deserialize_bytes(PackedVisitor)
}

struct PackedVisitor;

impl Visitor<'_> for PackedVisitor {
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
            detail,
        } = run;
        let distance = i64::from(*number) - node - STEP;
        let mut bits = 0;
        for (bit, set) in [
            (MANY, *count != 1),
            (OTHER_NAME, *first_index != name),
            (OTHER_SCORE, *run_score != score),
            (MORE, detail.is_some()),
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
        if let Some(detail) = detail {
            pack_detail(&mut writer, detail);
        }
        node = i64::from(*number);
        name = first_index.wrapping_add(*count);
        score = *run_score;
    }
    writer.finish()
}

fn pack_detail(writer: &mut Writer, detail: &PlacementDetail) {
    let PlacementDetail {
        holding,
        previous,
        reschedule,
        canary,
        preempted,
        version,
    } = detail;
    let mut flags = 0;
    for (flag, set) in [
        (PREVIOUS, previous.is_some()),
        (RESCHEDULE, reschedule.is_some()),
        (CANARY, *canary),
        (PREEMPTED, !preempted.is_empty()),
        (VERSION, version.is_some()),
        (PORTS, !holding.ports.is_empty()),
        (CORES, !holding.cores.is_empty()),
        (DEVICES, !holding.devices.is_empty()),
    ] {
        flags |= if set { flag } else { 0 };
    }
    writer.byte(flags);
    if let Some(previous) = previous {
        previous.pack(writer);
    }
    if let Some(delay) = reschedule {
        writer.number(delay.as_secs());
        writer.number(u64::from(delay.subsec_nanos()));
    }
    if flags & PREEMPTED != 0 {
        writer.number(preempted.len() as u64);
        for alloc_id in preempted {
            alloc_id.pack(writer);
        }
    }
    if let Some(version) = version {
        writer.number(*version);
    }
    pack_holding(writer, holding);
}

/// Packs a holding. The flags before it tell the reader its parts.
fn pack_holding(writer: &mut Writer, holding: &Holding) {
    let Holding {
        ports,
        cores,
        devices,
    } = holding;
    if !ports.is_empty() {
        writer.number(ports.len() as u64);
        for AllocatedPort {
            label,
            value,
            to,
            host_ip,
        } in ports
        {
            writer.bytes(label.as_bytes());
            writer.number(u64::from(*value));
            writer.number(u64::from(*to));
            writer.bytes(host_ip.as_bytes());
        }
    }
    if !cores.is_empty() {
        writer.number(cores.len() as u64);
        for HeldCores { task_at, ids, mhz } in cores {
            writer.number(u64::from(*task_at));
            writer.number(*mhz);
            writer.number(ids.len() as u64);
            for id in ids {
                writer.number(u64::from(*id));
            }
        }
    }
    if !devices.is_empty() {
        writer.number(devices.len() as u64);
        for HeldDevices {
            task_at,
            group,
            ids,
        } in devices
        {
            writer.number(u64::from(*task_at));
            writer.bytes(group.as_bytes());
            writer.number(ids.len() as u64);
            for id in ids {
                writer.bytes(id.as_bytes());
            }
        }
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
        let detail = if bits & MORE == 0 {
            None
        } else {
            Some(Box::new(unpack_detail(&mut reader)?))
        };
        node = number;
        name = first_index.wrapping_add(count);
        runs.push(PlacementRun {
            node: NodeNumber(u32::try_from(number).map_err(|_no_number| Malformed)?),
            first_index,
            count,
            score: Score(score),
            detail,
        });
    }
    Ok(runs)
}

fn unpack_detail(reader: &mut Reader<'_>) -> Result<PlacementDetail, Malformed> {
    let mut detail = PlacementDetail::default();
    let flags = reader.byte()?;
    let has = |flag: u8| flags & flag != 0;
    if has(PREVIOUS) {
        detail.previous = Some(AllocId::unpack(reader)?);
    }
    if has(RESCHEDULE) {
        let (seconds, nanos) = (reader.number()?, reader.small()?);
        detail.reschedule =
            Some(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos)));
    }
    detail.canary = has(CANARY);
    if has(PREEMPTED) {
        for _ in 0..reader.number()? {
            detail.preempted.push(AllocId::unpack(reader)?);
        }
    }
    if has(VERSION) {
        detail.version = Some(reader.number()?);
    }
    let holding = &mut detail.holding;
    if has(PORTS) {
        for _ in 0..reader.number()? {
            holding.ports.push(AllocatedPort {
                label: reader.text()?.to_owned(),
                value: reader.small()?,
                to: reader.small()?,
                host_ip: reader.text()?.to_owned(),
            });
        }
    }
    if has(CORES) {
        for _ in 0..reader.number()? {
            let (task_at, mhz) = (reader.small()?, reader.number()?);
            let mut ids = Vec::new();
            for _ in 0..reader.number()? {
                ids.push(reader.small()?);
            }
            holding.cores.push(HeldCores { task_at, ids, mhz });
        }
    }
    if has(DEVICES) {
        for _ in 0..reader.number()? {
            let (task_at, group) = (reader.small()?, reader.text()?.to_owned());
            let mut ids = Vec::new();
            for _ in 0..reader.number()? {
                ids.push(reader.text()?.to_owned());
            }
            holding.devices.push(HeldDevices {
                task_at,
                group,
                ids,
            });
        }
    }
    Ok(detail)
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
            detail: None,
        }
    }

    #[test]
    fn runs_read_back() {
        let port = AllocatedPort {
            label: "http".to_owned(),
            value: 20_000,
            to: 80,
            host_ip: "10.0.0.1".to_owned(),
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
                detail: Some(Box::new(PlacementDetail {
                    holding: Holding {
                        ports: vec![port.clone(), port],
                        cores: vec![HeldCores {
                            task_at: 1,
                            ids: vec![0, 7],
                            mhz: 5_000,
                        }],
                        devices: vec![HeldDevices {
                            task_at: 0,
                            group: "nvidia/gpu/1080ti".to_owned(),
                            ids: vec!["a".to_owned(), "b".to_owned()],
                        }],
                    },
                    previous: Some(AllocId([0x33; 16])),
                    reschedule: Some(Duration::from_millis(30_500)),
                    canary: true,
                    preempted: vec![AllocId([0x34; 16]), AllocId::at(LogIndex(7), 0)],
                    version: Some(3),
                })),
                ..run(3, 5, 0)
            },
            PlacementRun {
                detail: Some(Box::new(PlacementDetail {
                    previous: Some(AllocId::at(LogIndex(9_000), 12)),
                    ..PlacementDetail::default()
                })),
                ..run(4, 6, 0)
            },
        ];

        assert_eq!(unpack(&pack(&runs)), Ok(runs));
    }

    #[test]
    fn adjacent_equal_score_placements_pack_to_one_byte() {
        let runs: Vec<PlacementRun> = (0..10_000).map(|at| run(at, at, 812_345)).collect();

        assert_eq!(pack(&runs).len(), 10_000 + 3);
    }

    #[test]
    fn a_node_number_below_zero_is_malformed() {
        assert_eq!(unpack(&[0x10]), Err(Malformed));
        assert_eq!(unpack(&[0xff]), Err(Malformed));
    }
}
