//! Verdicts, as the programs report them.

#![expect(
    unsafe_code,
    reason = "tokio wants a promise about the ring's descriptor"
)]

use std::{
    io,
    net::{IpAddr, Ipv6Addr},
    os::fd::{AsRawFd, RawFd},
    path::Path,
};

use aya::maps::{MapData, RingBuf};
use muster_ebpf_common::{
    CgroupId,
    policy::{Direction, Verdict, VerdictEvent},
};
use tokio::io::unix::AsyncFd;

use crate::bpf::{Bpf, open::OpenBpfError, policy::open_ring};

/// One packet, or attempt to connect, on which a verdict was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketVerdict {
    /// The time of the verdict, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    pub task: CgroupId,
    /// The direction of the packet.
    pub direction: Direction,
    /// The rule that matched.
    pub rule: String,
    pub allowed: bool,
    /// The number of the IP protocol.
    pub protocol: u8,
    pub remote: IpAddr,
    /// The peer's port; 0 without ports.
    pub remote_port: u16,
    /// The task's port; 0 without ports and before a connection has one.
    pub local_port: u16,
    /// Bytes of the packet; 0 for an attempt to connect.
    pub bytes: u32,
}

/// A stream of verdicts. Only one reader at a time receives them.
#[derive(Debug)]
pub struct Verdicts {
    ring: AsyncFd<Ring>,
}

/// The ring buffer, wrapped for tokio.
struct Ring(RingBuf<MapData>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Verdicts {
    pub(super) fn open(maps: &Path) -> Result<Self, OpenBpfError> {
        let ring = Ring(open_ring(maps)?);
        // SAFETY: the ring owns its one descriptor, which stays open and the same until it is dropped.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(|error| OpenBpfError::Pins {
            path: maps.to_owned(),
            source: error.into(),
        })?;
        Ok(Self { ring })
    }

    /// Waits for verdicts and passes them to `each`, with names from `bpf`.
    ///
    /// # Errors
    ///
    /// The error of the kernel while waiting.
    pub async fn next(&mut self, bpf: &Bpf, mut each: impl FnMut(PacketVerdict)) -> io::Result<()> {
        let mut ready = self.ring.readable_mut().await?;
        while let Some(item) = ready.get_inner_mut().0.next() {
            if let Some(event) = read(&item) {
                each(bpf.packet_verdict(&event));
            }
        }
        ready.clear_ready();
        Ok(())
    }
}

/// Parses the event in `bytes`, which the programs wrote.
fn read(bytes: &[u8]) -> Option<VerdictEvent> {
    let field = |at: usize, length: usize| bytes.get(at..at + length);
    let u64_at = |at| Some(u64::from_ne_bytes(field(at, 8)?.try_into().ok()?));
    let u32_at = |at| Some(u32::from_ne_bytes(field(at, 4)?.try_into().ok()?));
    let u16_at = |at| Some(u16::from_ne_bytes(field(at, 2)?.try_into().ok()?));
    Some(VerdictEvent {
        at_ns: u64_at(0)?,
        task: u64_at(8)?,
        policy: u32_at(16)?,
        verdict: u32_at(20)?,
        remote: field(24, 16)?.try_into().ok()?,
        remote_port: u16_at(40)?,
        local_port: u16_at(42)?,
        bytes: u32_at(44)?,
        protocol: *bytes.get(48)?,
        direction: *bytes.get(49)?,
        pad: [0; 6],
    })
}

impl Bpf {
    fn packet_verdict(&self, event: &VerdictEvent) -> PacketVerdict {
        let verdict = Verdict(event.verdict);
        PacketVerdict {
            at_ns: event.at_ns,
            task: event.task,
            direction: if event.direction == Direction::Egress as u8 {
                Direction::Egress
            } else {
                Direction::Ingress
            },
            rule: self.policy.rule(event.policy, verdict),
            allowed: verdict.allows(),
            protocol: event.protocol,
            remote: Ipv6Addr::from(event.remote).to_canonical(),
            remote_port: event.remote_port,
            local_port: event.local_port,
            bytes: event.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_programs_put_them() {
        let event = VerdictEvent {
            at_ns: 1,
            task: 2,
            policy: 3,
            verdict: 4,
            remote: [5; 16],
            remote_port: 6,
            local_port: 7,
            bytes: 8,
            protocol: 9,
            direction: 1,
            pad: [0; 6],
        };
        let at = std::mem::offset_of!(VerdictEvent, protocol);
        assert_eq!((at, size_of::<VerdictEvent>()), (48, 56));
        let mut bytes = Vec::new();
        bytes.extend(event.at_ns.to_ne_bytes());
        bytes.extend(event.task.to_ne_bytes());
        bytes.extend(event.policy.to_ne_bytes());
        bytes.extend(event.verdict.to_ne_bytes());
        bytes.extend(event.remote);
        bytes.extend(event.remote_port.to_ne_bytes());
        bytes.extend(event.local_port.to_ne_bytes());
        bytes.extend(event.bytes.to_ne_bytes());
        bytes.extend([event.protocol, event.direction, 0, 0, 0, 0, 0, 0]);

        assert_eq!(read(&bytes), Some(event));
        assert_eq!(read(&bytes[..40]), None);
    }
}
