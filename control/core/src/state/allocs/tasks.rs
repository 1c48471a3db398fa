//! Task states in few bytes.
//!
//! Most tasks run, and had the same few events shortly after their placement. So a time is coded as the distance from
//! the time before, the first from the allocation's creation. Names are left out where they are those of the group.
//! Well-known texts are numbers. Up to [`INLINE_BYTES`] bytes are in the row itself.
//!
//! The bytes are in snapshots: see `testdata/`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{
    Exit, TaskEvent, TaskEventKind, TaskNetwork, TaskPhase, TaskState, phrase,
};
use muster_domain::id::Timestamp;
use muster_domain::job::TaskGroup;
use muster_domain::pack::{Malformed, Reader, Writer};

/// Bytes that need no heap allocation: two tasks in the usual running state.
const INLINE_BYTES: usize = 38;

/// The states of an allocation's tasks. Equal states of one allocation have equal bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tasks {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Arc<[u8]>),
}

impl Default for Tasks {
    fn default() -> Self {
        Self::from_bytes(&[])
    }
}

impl Tasks {
    /// Packs `states` of an instance of `group` that was placed at `base`.
    pub(super) fn pack(states: &[TaskState], group: &TaskGroup, base: Timestamp) -> Self {
        if states.is_empty() {
            return Self::default();
        }
        let as_in_group = names_match(states, group);
        let mut writer = Writer::default();
        writer.number((states.len() as u64) << 1 | u64::from(!as_in_group));
        let mut clock = base.0;
        for state in states {
            if !as_in_group {
                writer.bytes(state.name.as_bytes());
            }
            pack_state(&mut writer, state, &mut clock);
        }
        Self::from_bytes(writer.as_slice())
    }

    /// Returns the task states that [`Self::pack`] was given, with the same group and time.
    pub(super) fn unpack(
        &self,
        group: &TaskGroup,
        base: Timestamp,
    ) -> Result<Vec<TaskState>, Malformed> {
        let mut reader = Reader::new(self.as_slice());
        if reader.is_empty() {
            return Ok(Vec::new());
        }
        let first = reader.number()?;
        let (count, as_in_group) = (first >> 1, first & 1 == 0);
        let mut states = Vec::new();
        let mut clock = base.0;
        for at in 0..usize::try_from(count).map_err(|_too_large| Malformed)? {
            let name = if as_in_group {
                &group.tasks.get(at).ok_or(Malformed)?.name
            } else {
                reader.text()?
            };
            states.push(unpack_state(&mut reader, name, &mut clock)?);
        }
        if reader.is_empty() {
            Ok(states)
        } else {
            Err(Malformed)
        }
    }

    pub(super) fn from_bytes(packed: &[u8]) -> Self {
        let mut bytes = [0; INLINE_BYTES];
        match (bytes.get_mut(..packed.len()), u8::try_from(packed.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(packed);
                Self::Inline { len, bytes }
            }
            (_, _) => Self::Heap(packed.into()),
        }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Self::Heap(bytes) => bytes,
        }
    }
}

fn names_match(states: &[TaskState], group: &TaskGroup) -> bool {
    states.len() <= group.tasks.len()
        && states
            .iter()
            .zip(&group.tasks)
            .all(|(state, task)| state.name == task.name)
}

const PHASE: u8 = 0b11;
const FAILED: u8 = 1 << 2;
const RESTARTED: u8 = 1 << 3;
const RESTART_KNOWN: u8 = 1 << 4;
const STARTED: u8 = 1 << 5;
const FINISHED: u8 = 1 << 6;
const REACHED: u8 = 1 << 7;

fn pack_time(writer: &mut Writer, at: Timestamp, clock: &mut u64) {
    writer.near(at.0, *clock);
    *clock = at.0;
}

fn unpack_time(reader: &mut Reader<'_>, clock: &mut u64) -> Result<Timestamp, Malformed> {
    *clock = reader.near(*clock)?;
    Ok(Timestamp(*clock))
}

fn pack_state(writer: &mut Writer, state: &TaskState, clock: &mut u64) {
    let TaskState {
        name: _,
        phase,
        failed,
        restarts,
        last_restart,
        started_at,
        finished_at,
        events,
        network,
    } = state;
    // Networks beyond the bounds, which no agent reports, are not kept.
    let network = network.as_deref().filter(|network| network.fits());
    let mut flags = match phase {
        TaskPhase::Pending => 0,
        TaskPhase::Running => 1,
        TaskPhase::Dead => 2,
    };
    for (flag, set) in [
        (FAILED, *failed),
        (RESTARTED, *restarts > 0),
        (RESTART_KNOWN, last_restart.is_some()),
        (STARTED, started_at.is_some()),
        (FINISHED, finished_at.is_some()),
        (REACHED, network.is_some()),
    ] {
        flags |= if set { flag } else { 0 };
    }
    writer.byte(flags);
    if *restarts > 0 {
        writer.number(u64::from(*restarts));
    }
    writer.number(events.len() as u64);
    for event in events {
        pack_event(writer, event, clock);
    }
    // After the events: the last is usually the start.
    for at in [started_at, last_restart, finished_at]
        .into_iter()
        .flatten()
    {
        pack_time(writer, *at, clock);
    }
    if let Some(network) = network {
        pack_network(writer, network);
    }
}

fn pack_network(writer: &mut Writer, network: &TaskNetwork) {
    let TaskNetwork {
        address,
        ports,
        auto_advertise,
    } = network;
    writer.bytes(address.as_bytes());
    writer.number((ports.len() as u64) << 1 | u64::from(*auto_advertise));
    for (label, port) in ports {
        writer.bytes(label.as_bytes());
        writer.number(u64::from(*port));
    }
}

fn unpack_network(reader: &mut Reader<'_>) -> Result<TaskNetwork, Malformed> {
    let address = reader.text()?.to_owned();
    let first = reader.number()?;
    let mut ports = BTreeMap::new();
    for _ in 0..first >> 1 {
        let label = reader.text()?.to_owned();
        let port = u16::try_from(reader.number()?).map_err(|_too_large| Malformed)?;
        ports.insert(label, port);
    }
    Ok(TaskNetwork {
        address,
        ports,
        auto_advertise: first & 1 == 1,
    })
}

fn unpack_state(
    reader: &mut Reader<'_>,
    name: &str,
    clock: &mut u64,
) -> Result<TaskState, Malformed> {
    let flags = reader.byte()?;
    let phase = match flags & PHASE {
        0 => TaskPhase::Pending,
        1 => TaskPhase::Running,
        2 => TaskPhase::Dead,
        _ => return Err(Malformed),
    };
    let restarts = if flags & RESTARTED == 0 {
        0
    } else {
        reader.small()?
    };
    let mut events = Vec::new();
    for _ in 0..reader.number()? {
        events.push(unpack_event(reader, clock)?);
    }
    let mut time = |flag: u8| -> Result<Option<Timestamp>, Malformed> {
        if flags & flag == 0 {
            Ok(None)
        } else {
            unpack_time(reader, clock).map(Some)
        }
    };
    let (started_at, last_restart, finished_at) =
        (time(STARTED)?, time(RESTART_KNOWN)?, time(FINISHED)?);
    let network = if flags & REACHED == 0 {
        None
    } else {
        Some(Box::new(unpack_network(reader)?))
    };
    Ok(TaskState {
        name: name.to_owned(),
        phase,
        failed: flags & FAILED != 0,
        restarts,
        last_restart,
        started_at,
        finished_at,
        events,
        network,
    })
}

/// Event kinds are numbered in the order of [`TaskEventKind`], above the two bits that encode which text follows.
const NO_TEXT: u8 = 0;
const PHRASE: u8 = 1;
const TEXT: u8 = 2;
const TEXT_BITS: u32 = 2;

fn pack_event(writer: &mut Writer, event: &TaskEvent, clock: &mut u64) {
    let TaskEvent { at, kind, message } = event;
    let number: u8 = match kind {
        TaskEventKind::Received => 0,
        TaskEventKind::Setup => 1,
        TaskEventKind::Started => 2,
        TaskEventKind::Recovered => 3,
        TaskEventKind::DriverFailure => 4,
        TaskEventKind::Terminated(_) => 5,
        TaskEventKind::Restarting { .. } => 6,
        TaskEventKind::NotRestarting => 7,
        TaskEventKind::Killing => 8,
        TaskEventKind::Killed => 9,
        TaskEventKind::SiblingFailed => 10,
        TaskEventKind::Driver => 11,
        TaskEventKind::DiskExceeded => 12,
    };
    let phrase = phrase::number(message);
    let text = match phrase {
        Some(0) => NO_TEXT,
        Some(_) => PHRASE,
        None => TEXT,
    };
    writer.byte(number << TEXT_BITS | text);
    match kind {
        TaskEventKind::Terminated(exit) => pack_exit(writer, *exit),
        TaskEventKind::Restarting { delay } => {
            writer.number(delay.as_secs());
            writer.number(u64::from(delay.subsec_nanos()));
        }
        TaskEventKind::Received
        | TaskEventKind::Setup
        | TaskEventKind::Started
        | TaskEventKind::Recovered
        | TaskEventKind::DriverFailure
        | TaskEventKind::NotRestarting
        | TaskEventKind::Killing
        | TaskEventKind::Killed
        | TaskEventKind::SiblingFailed
        | TaskEventKind::Driver
        | TaskEventKind::DiskExceeded => {}
    }
    match phrase {
        Some(0) => {}
        Some(number) => writer.byte(number),
        None => writer.bytes(message.as_bytes()),
    }
    pack_time(writer, *at, clock);
}

fn unpack_event(reader: &mut Reader<'_>, clock: &mut u64) -> Result<TaskEvent, Malformed> {
    let first = reader.byte()?;
    let kind = match first >> TEXT_BITS {
        0 => TaskEventKind::Received,
        1 => TaskEventKind::Setup,
        2 => TaskEventKind::Started,
        3 => TaskEventKind::Recovered,
        4 => TaskEventKind::DriverFailure,
        5 => TaskEventKind::Terminated(unpack_exit(reader)?),
        6 => {
            let (seconds, nanos) = (reader.number()?, reader.small()?);
            let delay = Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanos));
            TaskEventKind::Restarting {
                delay: delay.ok_or(Malformed)?,
            }
        }
        7 => TaskEventKind::NotRestarting,
        8 => TaskEventKind::Killing,
        9 => TaskEventKind::Killed,
        10 => TaskEventKind::SiblingFailed,
        11 => TaskEventKind::Driver,
        12 => TaskEventKind::DiskExceeded,
        _ => return Err(Malformed),
    };
    let message = match first & ((1 << TEXT_BITS) - 1) {
        NO_TEXT => "",
        PHRASE => phrase::text(reader.byte()?).ok_or(Malformed)?,
        TEXT => reader.text()?,
        _ => return Err(Malformed),
    };
    let message = message.to_owned();
    let at = unpack_time(reader, clock)?;
    Ok(TaskEvent { at, kind, message })
}

fn pack_exit(writer: &mut Writer, exit: Exit) {
    let Exit {
        code,
        signal,
        oom_killed,
        unknown,
    } = exit;
    writer.signed(i64::from(code));
    writer.signed(i64::from(signal));
    writer.byte(u8::from(oom_killed) | u8::from(unknown) << 1);
}

fn unpack_exit(reader: &mut Reader<'_>) -> Result<Exit, Malformed> {
    let mut small = || i32::try_from(reader.signed()?).map_err(|_too_large| Malformed);
    let (code, signal) = (small()?, small()?);
    let flags = reader.byte()?;
    Ok(Exit {
        code,
        signal,
        oom_killed: flags & 1 != 0,
        unknown: flags & 2 != 0,
    })
}

#[cfg(test)]
mod tests;
