//! Loading the object, and attaching and pinning its programs.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use aya::{
    Btf, Ebpf, EbpfError, EbpfLoader,
    pin::PinError,
    programs::{
        BtfTracePoint, CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSockAddr, Iter,
        ProgramError, RawTracePoint, SchedClassifier,
        links::{FdLink, LinkError},
    },
};
use muster_ebpf_common::kernel::Facts;
use thiserror::Error;

use crate::bpf::{limits::VERIFIER_LOG_LINES_MAX, nat};

/// The most attempts to load one program. libbpf makes five. Other work of the thread can interrupt more often than
/// that.
const LOAD_ATTEMPTS_MAX: u32 = 100;

/// The pause before a program that was interrupted is loaded again.
const LOAD_PAUSE: Duration = Duration::from_millis(5);

/// Programs on tracepoints, each with its tracepoint. The kernel keeps the first fifteen bytes of a program's name.
/// These bytes identify the programs when their cost is measured.
const TRACEPOINTS: [(&str, &str); 5] = [
    ("sched_switch", "sched_switch"),
    ("process_fork", "sched_process_fork"),
    ("process_exec", "sched_process_exec"),
    ("process_exit", "sched_process_exit"),
    ("mark_victim", "mark_victim"),
];

/// A program on the tracepoint of its name that counts one part of the counters. Without the program that part is
/// absent.
#[derive(Clone, Copy)]
struct OptionalProgram {
    program: &'static str,
    /// The name of the part that it counts.
    part: &'static str,
    /// Whether this kernel keeps the data that the program reads.
    can: fn(&Facts) -> bool,
    /// The reason if it does not.
    lack: &'static str,
}

const PARTS: [OptionalProgram; 4] = [
    OptionalProgram {
        program: "inet_sock_set_state",
        part: "connections",
        can: sockets_name_cgroups,
        lack: NO_SOCKETS,
    },
    OptionalProgram {
        program: "tcp_retransmit_skb",
        part: "tcp_retransmits",
        can: sockets_name_cgroups,
        lack: NO_SOCKETS,
    },
    OptionalProgram {
        program: "block_rq_issue",
        part: "block",
        can: |facts| facts.request_bio != 0,
        lack: NO_REQUESTS,
    },
    OptionalProgram {
        program: "block_rq_complete",
        part: "block",
        can: |facts| facts.request_bio != 0,
        lack: NO_REQUESTS,
    },
];

const NO_SOCKETS: &str = "this kernel's sockets do not say whose they are";
const NO_REQUESTS: &str = "this kernel's requests to block devices do not say whose they are";

fn sockets_name_cgroups(facts: &Facts) -> bool {
    facts.sock_cgroup != 0 && facts.sock_protocol != 0
}

/// Programs on the packets of the node's cgroup tree.
const PACKETS: [(&str, CgroupSkbAttachType); 2] = [
    ("net_ingress", CgroupSkbAttachType::Ingress),
    ("net_egress", CgroupSkbAttachType::Egress),
];

/// Programs at calls of the tree's sockets. The object defines the attach point of each.
const CALLS: [&str; 2] = ["connect4", "connect6"];

/// Programs on devices. The programs are pinned themselves, because devices come and go.
const DEVICES: [&str; 2] = [nat::INWARD, nat::OUTWARD];

/// The one map whose definition does not request pinning.
const SOCKETS: &str = "SOCKETS";

/// The program that the agent runs itself and that has no attach point.
pub(super) const CHARGE_RUNNING: &str = "charge_running";

/// The program that walks over groups when the agent runs it.
pub(super) const WALK_GROUPS: &str = "walk_groups";

/// The name of the time spent waiting for a CPU in [`MissingParts`].
pub(super) const RUN_DELAY: &str = "run_delay";

/// The parts that this load cannot count, each with the reason. The reasons are stored in the directory of the
/// programs, as dangling symbolic links, for the agents that adopt the programs.
pub(super) type MissingParts = BTreeMap<&'static str, String>;

/// The reason why the programs could not be loaded.
#[derive(Debug, Error)]
pub enum LoadProgramsError {
    /// The object could not be read, or its maps could not be made.
    #[error("load the eBPF object into the kernel")]
    Object(#[source] EbpfError),
    /// The kernel's types could not be read for the tracepoints.
    #[error("read the kernel's types for the tracepoints")]
    Types(#[source] aya::BtfError),
    /// The object has no such program: it was built from other sources.
    #[error("find program {program} in the eBPF object: rebuild it with `cargo xtask build-ebpf`")]
    Missing { program: &'static str },
    /// The verifier, or a limit of the kernel, refused a program.
    #[error(
        "load eBPF program {program}: the kernel refused it: {source}; the verifier said:\n{log}"
    )]
    Refused {
        program: &'static str,
        /// The error of the kernel.
        source: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// The program could not be attached.
    #[error("attach eBPF program {program}")]
    Attach {
        program: &'static str,
        /// The error of the kernel.
        #[source]
        source: ProgramError,
    },
    /// The kernel attached the program without a link that can be pinned (older than 5.7).
    #[error("hold eBPF program {program} by a link: Linux 6.1 or newer is needed")]
    NoLink {
        program: &'static str,
        /// The error of aya.
        #[source]
        source: LinkError,
    },
    /// The program or its link could not be pinned.
    #[error("pin eBPF program {program} at {path}")]
    Pin {
        program: &'static str,
        /// The path of the pin.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: PinError,
    },
    /// The reason why a part is not counted could not be stored.
    #[error("keep in {path} why something is not counted")]
    KeepReason {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A directory for pins could not be made.
    #[error("make directory {path} for pins")]
    MakeDirectory {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// The names of all pins of one load.
pub(super) fn pin_names() -> impl Iterator<Item = &'static str> {
    TRACEPOINTS
        .into_iter()
        .map(|(program, _)| program)
        .chain(PACKETS.into_iter().map(|(program, _)| program))
        .chain(CALLS)
        .chain(DEVICES)
        .chain(PARTS.iter().map(|part| part.program))
        .chain([CHARGE_RUNNING, WALK_GROUPS])
}

/// Loads `object`, with the maps that are pinned in `maps` or fresh ones. Attaches its programs and pins them in
/// `programs`. They count once [`Facts::generation`] is made the active one.
pub(super) fn load(
    object: &[u8],
    facts: &Facts,
    cgroup: &File,
    maps: &Path,
    programs: &Path,
) -> Result<(), LoadProgramsError> {
    for path in [maps, programs] {
        fs::create_dir_all(path).map_err(|source| LoadProgramsError::MakeDirectory {
            path: path.to_owned(),
            source,
        })?;
    }
    let btf = Btf::from_sys_fs().map_err(LoadProgramsError::Types)?;
    let words = facts.words();
    let mut ebpf = EbpfLoader::new()
        .btf(Some(&btf))
        .default_map_pin_directory(maps)
        .map_pin_path(SOCKETS, maps.join(SOCKETS))
        .override_global("FACTS", words.as_slice(), true)
        .load(object)
        .map_err(LoadProgramsError::Object)?;

    for (program, tracepoint) in TRACEPOINTS {
        let link = attach_tracepoint(&mut ebpf, program, tracepoint, &btf)?;
        pin_link(link, program, programs)?;
    }
    for (program, direction) in PACKETS {
        let link = attach_packets(&mut ebpf, program, direction, cgroup)?;
        pin_link(link, program, programs)?;
    }
    for program in CALLS {
        let link = attach_call(&mut ebpf, program, cgroup)?;
        pin_link(link, program, programs)?;
    }
    for program in DEVICES {
        pin_classifier(&mut ebpf, program, programs)?;
    }
    for part in PARTS {
        load_part(&mut ebpf, part, facts, &btf, programs)?;
    }
    if facts.task_sched_info == 0 {
        let reason = "this kernel does not say how long threads wait for a CPU: use one built with CONFIG_SCHED_INFO";
        keep_reason(programs, RUN_DELAY, reason)?;
    }
    pin_charge_running(&mut ebpf, programs)?;
    pin_walk_groups(&mut ebpf, &btf, programs)
}

fn pin_classifier(
    ebpf: &mut Ebpf,
    name: &'static str,
    programs: &Path,
) -> Result<(), LoadProgramsError> {
    let program: &mut SchedClassifier = program_mut(ebpf, name)?;
    load_program(name, || program.load())?;
    pin_at(name, programs, |path| program.pin(path))
}

/// The parts that the load in `programs` cannot count.
pub(super) fn absent(programs: &Path) -> MissingParts {
    let parts = PARTS.iter().map(|part| (part.program, part.part));
    let parts = parts.chain([(RUN_DELAY, RUN_DELAY)]);
    let reasons = parts.filter_map(|(pin, part)| {
        // A pin is not a symbolic link; the part is then not absent.
        let reason = fs::read_link(programs.join(pin)).ok()?;
        Some((part, reason.to_string_lossy().into_owned()))
    });
    reasons.collect()
}

/// Attaches a program that only counts, or stores the reason for its absence in its place.
fn load_part(
    ebpf: &mut Ebpf,
    part: OptionalProgram,
    facts: &Facts,
    btf: &Btf,
    programs: &Path,
) -> Result<(), LoadProgramsError> {
    let OptionalProgram {
        program, can, lack, ..
    } = part;
    let attached = if can(facts) {
        attach_tracepoint(ebpf, program, program, btf).map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            let text = error.to_string();
            // The verifier's log is left out, because it helps only developers of the programs.
            let first = text.lines().next().unwrap_or_default();
            source.map_or_else(|| first.to_owned(), |source| format!("{first}: {source}"))
        })
    } else {
        Err(lack.to_owned())
    };
    match attached {
        Ok(link) => pin_link(link, program, programs),
        Err(reason) => {
            tracing::warn!(%reason, program, "tasks run without a part of their counts");
            keep_reason(programs, program, &reason)
        }
    }
}

/// Stores the reason why `part` is not counted.
fn keep_reason(programs: &Path, part: &str, reason: &str) -> Result<(), LoadProgramsError> {
    let path = programs.join(part);
    symlink(reason, &path).map_err(|source| LoadProgramsError::KeepReason { path, source })
}

fn attach_tracepoint(
    ebpf: &mut Ebpf,
    name: &'static str,
    tracepoint: &str,
    btf: &Btf,
) -> Result<FdLink, LoadProgramsError> {
    let program: &mut BtfTracePoint = program_mut(ebpf, name)?;
    load_program(name, || program.load(tracepoint, btf))?;
    program
        .attach()
        .and_then(|id| program.take_link(id))
        .map(FdLink::from)
        .map_err(|source| LoadProgramsError::Attach {
            program: name,
            source,
        })
}

fn attach_packets(
    ebpf: &mut Ebpf,
    name: &'static str,
    direction: CgroupSkbAttachType,
    cgroup: &File,
) -> Result<FdLink, LoadProgramsError> {
    let program: &mut CgroupSkb = program_mut(ebpf, name)?;
    load_program(name, || program.load())?;
    // A link always allows other programs on the same cgroup, and the kernel refuses a flag for it.
    let link = program
        .attach(cgroup, direction, CgroupAttachMode::Single)
        .and_then(|id| program.take_link(id));
    pinnable_link(name, link)
}

fn attach_call(
    ebpf: &mut Ebpf,
    name: &'static str,
    cgroup: &File,
) -> Result<FdLink, LoadProgramsError> {
    let program: &mut CgroupSockAddr = program_mut(ebpf, name)?;
    load_program(name, || program.load())?;
    let link = program
        .attach(cgroup, CgroupAttachMode::Single)
        .and_then(|id| program.take_link(id));
    pinnable_link(name, link)
}

/// The link by which a program is attached, as one that can be pinned.
fn pinnable_link<L>(
    program: &'static str,
    link: Result<L, ProgramError>,
) -> Result<FdLink, LoadProgramsError>
where
    FdLink: TryFrom<L, Error = LinkError>,
{
    let link = link.map_err(|source| LoadProgramsError::Attach { program, source })?;
    FdLink::try_from(link).map_err(|source| LoadProgramsError::NoLink { program, source })
}

fn pin_charge_running(ebpf: &mut Ebpf, programs: &Path) -> Result<(), LoadProgramsError> {
    let name = CHARGE_RUNNING;
    let program: &mut RawTracePoint = program_mut(ebpf, name)?;
    load_program(name, || program.load())?;
    pin_at(name, programs, |path| program.pin(path))
}

/// Pins the program that walks over groups, or stores the reason for its absence. The groups' files provide the same
/// values.
fn pin_walk_groups(ebpf: &mut Ebpf, btf: &Btf, programs: &Path) -> Result<(), LoadProgramsError> {
    let name = WALK_GROUPS;
    let program: &mut Iter = program_mut(ebpf, name)?;
    match load_program(name, || program.load("cgroup", btf)) {
        Ok(()) => pin_at(name, programs, |path| program.pin(path)),
        Err(error) => {
            tracing::warn!(%error, "what groups know is read from their files");
            keep_reason(programs, name, "the kernel refused it")
        }
    }
}

/// Pins `link` under the program's name. The link lives only through the pin.
fn pin_link(link: FdLink, name: &'static str, programs: &Path) -> Result<(), LoadProgramsError> {
    pin_at(name, programs, |path| link.pin(path).map(drop))
}

/// Pins an object under the program's name.
fn pin_at(
    name: &'static str,
    programs: &Path,
    pin: impl FnOnce(&Path) -> Result<(), PinError>,
) -> Result<(), LoadProgramsError> {
    let path = programs.join(name);
    pin(&path).map_err(|source| LoadProgramsError::Pin {
        program: name,
        path,
        source,
    })
}

fn program_mut<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<P, LoadProgramsError>
where
    P: TryFrom<&'a mut aya::programs::Program>,
{
    ebpf.program_mut(name)
        .and_then(|program| P::try_from(program).ok())
        .ok_or(LoadProgramsError::Missing { program: name })
}

/// Loads a program, and retries when the load was interrupted.
fn load_program(
    name: &'static str,
    load: impl FnMut() -> Result<(), ProgramError>,
) -> Result<(), LoadProgramsError> {
    let is_interrupted = |error: &ProgramError| match error {
        // The verifier ends with `EAGAIN` when a signal or task work is pending for the thread.
        ProgramError::LoadError { io_error, .. } => io_error.kind() == io::ErrorKind::WouldBlock,
        _ => false,
    };
    repeat_interrupted(load, is_interrupted).map_err(|error| refused(name, error))
}

/// Calls `load` until it succeeds, fails for another reason or was interrupted [`LOAD_ATTEMPTS_MAX`] times.
fn repeat_interrupted<E>(
    mut load: impl FnMut() -> Result<(), E>,
    is_interrupted: impl Fn(&E) -> bool,
) -> Result<(), E> {
    for _ in 1..LOAD_ATTEMPTS_MAX {
        match load() {
            Err(error) if is_interrupted(&error) => thread::sleep(LOAD_PAUSE),
            loaded => return loaded,
        }
    }
    load()
}

fn refused(program: &'static str, error: ProgramError) -> LoadProgramsError {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => LoadProgramsError::Refused {
            program,
            source: io_error,
            log: tail(&verifier_log.to_string()),
        },
        source => LoadProgramsError::Attach { program, source },
    }
}

/// The last lines of a verifier's log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(VERIFIER_LOG_LINES_MAX)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_interrupted(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::WouldBlock
    }

    #[test]
    fn interrupted_load_is_repeated() {
        let mut results = vec![
            Ok(()),
            Err(io::ErrorKind::WouldBlock.into()),
            Err(io::ErrorKind::WouldBlock.into()),
        ];

        let loaded = repeat_interrupted(|| results.pop().unwrap(), is_interrupted);

        assert!(loaded.is_ok(), "{loaded:?}");
        assert!(results.is_empty());
    }

    #[test]
    fn refused_load_is_not_repeated() {
        let mut attempts = 0;
        let load = || {
            attempts += 1;
            Err(io::ErrorKind::PermissionDenied.into())
        };

        let loaded = repeat_interrupted(load, is_interrupted);

        assert!(loaded.is_err());
        assert_eq!(attempts, 1);
    }

    #[test]
    fn load_that_is_always_interrupted_fails() {
        let mut attempts = 0;
        let load = || {
            attempts += 1;
            Err(io::ErrorKind::WouldBlock.into())
        };

        let loaded = repeat_interrupted(load, is_interrupted);

        assert!(loaded.is_err());
        assert_eq!(attempts, LOAD_ATTEMPTS_MAX);
    }

    #[test]
    fn end_of_verifier_log_is_kept() {
        let log: Vec<String> = (0..50).map(|line| format!("line {line}")).collect();

        let tail = tail(&log.join("\n"));

        assert!(tail.starts_with("line 30\n"), "{tail}");
        assert!(tail.ends_with("line 49"), "{tail}");
    }
}
