//! Empty programs on the same hooks as the real ones. Their measured cost is the cost of measuring.

#![expect(unsafe_code, reason = "bpf(2) takes addresses of buffers")]

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
};

use crate::bpf::map::bpf;

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BPF_LINK_CREATE: libc::c_long = 28;

/// `BPF_PROG_TYPE_CGROUP_SKB` and `BPF_PROG_TYPE_RAW_TRACEPOINT`.
const AT_PACKETS: u32 = 8;
const AT_TRACEPOINT: u32 = 17;
/// `BPF_CGROUP_INET_INGRESS` and `BPF_CGROUP_INET_EGRESS`.
const DIRECTIONS: [u32; 2] = [0, 1];

/// `BPF_F_ALLOW_OVERRIDE`.
const ALLOW_OVERRIDE: u32 = 1;

/// The instructions `r0 = …`, to which the number is added, and `exit`.
const SET_RESULT: u64 = 0xb7;
const EXIT: u64 = 0x95;

/// The names of the programs in the kernel.
pub(super) const NAMES: [&str; 2] = [EmptyPrograms::SWITCH, EmptyPrograms::PACKET];

/// The part of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    kind: u32,
    instructions_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// The part of `union bpf_attr` for `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
#[derive(Default)]
struct TracepointAttr {
    name: u64,
    program_fd: u32,
    pad: u32,
}

/// The part of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
#[derive(Default)]
struct LinkAttr {
    program_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}

/// The part of `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
#[derive(Default)]
struct AttachAttr {
    target_fd: u32,
    program_fd: u32,
    attach_type: u32,
    flags: u32,
}

/// One empty program at switches and one at packets, detached when dropped.
#[derive(Debug)]
pub struct EmptyPrograms {
    _links: Vec<OwnedFd>,
}

impl EmptyPrograms {
    /// The name of the program at switches.
    pub const SWITCH: &str = "empty_switch";
    /// The name of the program at packets of both directions.
    pub const PACKET: &str = "empty_packet";

    /// Attaches both programs. The packet program sees packets of this cgroup and all below.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn attach(cgroup: &Path) -> io::Result<Self> {
        let cgroup = File::open(cgroup)?;
        let switch = load(AT_TRACEPOINT, Self::SWITCH, 0)?;
        let packet = load(AT_PACKETS, Self::PACKET, 1)?;
        let mut links = vec![open_tracepoint(&switch)?];
        for direction in DIRECTIONS {
            links.push(link(&packet, &cgroup, direction)?);
        }
        Ok(Self { _links: links })
    }

    /// Attaches the packet program, which lets every packet pass, to this cgroup alone. It overrides the programs of
    /// the cgroup's ancestors, as a task might try in order to avoid them. It is removed with the cgroup.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn attach_over(cgroup: &Path) -> io::Result<()> {
        let cgroup = File::open(cgroup)?;
        let packet = load(AT_PACKETS, Self::PACKET, 1)?;
        for attach_type in DIRECTIONS {
            let mut attr = AttachAttr {
                target_fd: raw(&cgroup)?,
                program_fd: raw(&packet)?,
                attach_type,
                flags: ALLOW_OVERRIDE,
            };
            // SAFETY: the command reads nothing but the attributes.
            unsafe { bpf(BPF_PROG_ATTACH, &mut attr) }?;
        }
        Ok(())
    }
}

/// Loads a program that returns `result`.
fn load(kind: u32, name: &str, result: u32) -> io::Result<OwnedFd> {
    let instructions = [SET_RESULT | u64::from(result) << 32, EXIT];
    let mut attr = LoadAttr {
        kind,
        instructions_count: 2,
        instructions: instructions.as_ptr().expose_provenance() as u64,
        license: c"GPL".as_ptr().expose_provenance() as u64,
        ..LoadAttr::default()
    };
    attr.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: instructions and licence have the given lengths and outlive the call.
    owned(unsafe { bpf(BPF_PROG_LOAD, &mut attr) }?)
}

fn open_tracepoint(program: &OwnedFd) -> io::Result<OwnedFd> {
    let mut attr = TracepointAttr {
        name: c"sched_switch".as_ptr().expose_provenance() as u64,
        program_fd: raw(program)?,
        ..TracepointAttr::default()
    };
    // SAFETY: the name ends with a zero and outlives the call.
    owned(unsafe { bpf(BPF_RAW_TRACEPOINT_OPEN, &mut attr) }?)
}

fn link(program: &OwnedFd, cgroup: &File, attach_type: u32) -> io::Result<OwnedFd> {
    let mut attr = LinkAttr {
        program_fd: raw(program)?,
        target_fd: raw(cgroup)?,
        attach_type,
        ..LinkAttr::default()
    };
    // SAFETY: the command reads nothing but the attributes.
    owned(unsafe { bpf(BPF_LINK_CREATE, &mut attr) }?)
}

fn raw(fd: &impl AsRawFd) -> io::Result<u32> {
    u32::try_from(fd.as_raw_fd()).map_err(io::Error::other)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel gave this process a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
