use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::pipe::PipeFlags;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::*;
use crate::config::IsolationLevel;
use crate::isolation::Confinement;
use crate::isolation::capabilities::Capabilities;
use crate::isolation::privileges::{self, ProcessIo, WorkDir};
use crate::isolation::rlimits::Limit;
use crate::user::Identity;

struct Outcome {
    code: Option<i32>,
    output: String,
}

fn strings(values: &[&str]) -> Vec<CString> {
    values
        .iter()
        .map(|value| CString::new(*value).unwrap())
        .collect()
}

/// Returns the confinement of a raw task of the driver's user.
fn raw() -> Confinement {
    Confinement {
        level: IsolationLevel::Raw,
        identity: None,
        capabilities: Capabilities::EMPTY,
        limits: Vec::new(),
        hostname: String::new(),
        no_new_privs: true,
        scoped: false,
        init: false,
        files: crate::isolation::seccomp::CreatableFiles::Any,
    }
}

/// A process to start, with its output in a file.
struct Request {
    confinement: Confinement,
    work_dir: OwnedFd,
    joins: Vec<OwnedFd>,
    /// A directory; the child opens a file below it for the parent.
    leaves: Option<OwnedFd>,
    stdout: OwnedFd,
}

impl Request {
    fn new(stdout: OwnedFd) -> Self {
        Self {
            confinement: raw(),
            work_dir: crate::paths::open_work_dir(Path::new(""), None).unwrap(),
            joins: Vec::new(),
            leaves: None,
            stdout,
        }
    }

    fn spawn(self, argv: &[&str]) -> Result<SpawnedProcess, SpawnError> {
        let null = crate::paths::open_null().unwrap();
        let mut script = Script::default();
        for join in self.joins {
            let zero = script.text(c"0");
            let join = script.file(join);
            script.call(
                SpawnStep::JoinCgroup,
                "join",
                libc::SYS_write,
                [join, zero, 1_u64.into()],
            );
        }
        if let Some(dir) = &self.leaves {
            let path = script.text(c"self/ns/mnt");
            let flags = libc::O_RDONLY | libc::O_CLOEXEC;
            let args = [dir.as_fd().into(), path, flags.into()];
            script
                .call(SpawnStep::Namespaces, "leave", libc::SYS_openat, args)
                .ignore_errno(IgnoreErrno::Anything)
                .open_in_parent();
        }
        let process_io = ProcessIo {
            streams: [null.as_fd(), self.stdout.as_fd(), null.as_fd()],
            terminal: false,
            work_dir: WorkDir::Open(self.work_dir.as_fd()),
            scope: None,
            is_driver_program: false,
            keeps_files: false,
        };
        privileges::write(&mut script, &self.confinement, None, &process_io);
        let argv = strings(argv);
        spawn(&Spawn {
            script: &script,
            program: ProgramLocation::Paths(&argv[..1]),
            argv: &argv,
            envp: &strings(&["ONLY=this"]),
            cgroup: None,
            namespaces: 0,
        })
    }
}

/// Changes the request, then runs `argv` with its output in a pipe.
fn run(argv: &[&str], change: impl FnOnce(&mut Request)) -> Result<Outcome, SpawnError> {
    let (read_end, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    let mut request = Request::new(write_end);
    change(&mut request);
    let child = request.spawn(argv)?;
    let mut output = String::new();
    File::from(read_end).read_to_string(&mut output).unwrap();
    let status = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED)
        .unwrap()
        .unwrap();
    Ok(Outcome {
        code: status.exit_status(),
        output,
    })
}

#[test]
fn task_fds_use_high_numbers_and_survive_spawn() {
    let file = move_to_high_fd(crate::paths::open_null().unwrap());
    assert!(file.as_raw_fd() >= limits::HIGH_FD_MIN, "{file:?}");

    let outcome = run(&["/bin/true"], |_| {}).unwrap();

    assert_eq!(outcome.code, Some(0));
    let flags = rustix::io::fcntl_getfd(&file).unwrap();
    assert_eq!(flags, rustix::io::FdFlags::CLOEXEC);
}

#[test]
fn exit_code_comes_through() {
    let outcome = run(&["/bin/sh", "-c", "exit 7"], |_| {}).unwrap();

    assert_eq!(outcome.code, Some(7));
}

#[test]
fn environment_is_exactly_as_given() {
    let outcome = run(&["/usr/bin/env"], |_| {}).unwrap();

    assert_eq!(outcome.output, "ONLY=this\n");
}

#[test]
fn only_the_standard_streams_are_open() {
    let _other = File::open("/proc/self/status").unwrap();

    let outcome = run(&["/bin/ls", "/proc/self/fd"], |_| {}).unwrap();

    // Descriptor 3 is the directory that ls reads.
    assert_eq!(outcome.output, "0\n1\n2\n3\n");
}

/// The child opens a file of its own process, which only the child can name like this.
#[test]
fn child_passes_fd_to_parent_and_keeps_none() {
    let null = crate::paths::open_null().unwrap();
    let mut request = Request::new(null);
    request.leaves = Some(crate::paths::open_dir("/proc", Path::new("/proc")).unwrap());

    let child = request.spawn(&["/bin/sleep", "600"]).unwrap();

    let left = child.parent_file.as_ref().unwrap();
    let name = format!("/proc/self/fd/{}", left.as_raw_fd());
    let own = format!("/proc/{}/ns/mnt", child.pid);
    assert_eq!(
        std::fs::read_link(name).unwrap(),
        std::fs::read_link(own).unwrap()
    );
    let flags = rustix::io::fcntl_getfd(left).unwrap();
    assert_eq!(flags, rustix::io::FdFlags::CLOEXEC);
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.pid)).unwrap();
    assert_eq!(open.count(), 3);
    child.kill_and_reap();
}

#[test]
fn unopenable_fd_is_not_passed_to_parent() {
    let null = crate::paths::open_null().unwrap();
    let mut request = Request::new(null);
    request.leaves = Some(crate::paths::open_dir("/dev", Path::new("/dev")).unwrap());

    let child = request.spawn(&["/bin/sleep", "600"]).unwrap();

    assert!(child.parent_file.is_none());
    child.kill_and_reap();
}

#[test]
fn signals_are_default_and_unblocked() {
    let outcome = run(&["/bin/grep", "^Sig[BI]", "/proc/self/status"], |_| {}).unwrap();

    assert_eq!(
        outcome.output,
        "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
    );
}

#[test]
fn privileges_are_not_gained_unless_asked() {
    let flag = ["/bin/grep", "NoNewPrivs", "/proc/self/status"];

    let on = run(&flag, |_| {}).unwrap();
    let off = run(&flag, |request| request.confinement.no_new_privs = false).unwrap();

    assert_eq!(on.output, "NoNewPrivs:\t1\n");
    assert_eq!(off.output, "NoNewPrivs:\t0\n");
}

/// The driver may have more open files than a program supports: old programs support 1 024.
#[test]
fn limit_of_open_files_is_as_given() {
    let limit = Limit::open_files(77, 99);

    let outcome = run(
        &["/bin/grep", "open files", "/proc/self/limits"],
        |request| {
            request.confinement.limits.push(limit);
        },
    )
    .unwrap();

    let words: Vec<&str> = outcome.output.split_whitespace().collect();
    assert_eq!(words[3..5], ["77", "99"]);
}

#[test]
fn process_leads_a_session_of_its_own() {
    let outcome = run(&["/bin/cat", "/proc/self/stat"], |_| {}).unwrap();

    let fields: Vec<&str> = outcome.output.split(' ').collect();
    let (pid, group, session) = (fields[0], fields[4], fields[5]);
    assert_eq!((group, session), (pid, pid));
}

#[test]
fn process_starts_in_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();

    let outcome = run(&["/bin/pwd"], |request| {
        request.work_dir = crate::paths::open_work_dir(&path, None).unwrap();
    })
    .unwrap();

    assert_eq!(Path::new(outcome.output.trim()), path);
}

#[test]
fn user_and_groups_are_changed() {
    if !nix::unistd::geteuid().is_root() {
        muster_driver::fixture::skipped_here("only root can change users; run the tests as root");
        return;
    }
    let identity = Identity {
        uid: 12_345,
        gid: 23_456,
        groups: vec![23_456, 34_567],
    };
    let argv = [
        "/bin/grep",
        "^\\(Uid\\|Gid\\|Groups\\)",
        "/proc/self/status",
    ];

    let outcome = run(&argv, |request| {
        request.confinement.identity = Some(identity);
    })
    .unwrap();

    assert_eq!(
        outcome.output,
        "Uid:\t12345\t12345\t12345\t12345\nGid:\t23456\t23456\t23456\t23456\n\
         Groups:\t23456 34567 \n"
    );
}

#[test]
fn missing_program_fails_at_exec() {
    let error = run(&["/no/such/program"], |_| {}).map(drop).unwrap_err();

    let SpawnError::Child { step, source, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(step, SpawnStep::Exec);
    assert_eq!(source.kind(), io::ErrorKind::NotFound);
}

#[test]
fn failed_join_names_its_step() {
    let read_only = File::open("/dev/null").unwrap();

    let error = run(&["/bin/true"], |request| {
        request.joins.push(read_only.into());
    })
    .map(drop)
    .unwrap_err();

    let SpawnError::Child { step, source, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(step, SpawnStep::JoinCgroup);
    assert_eq!(source.raw_os_error(), Some(libc::EBADF));
}

/// The caller's signal mask is unchanged, and a failed start leaves no zombie.
#[test]
fn caller_is_left_as_it_was() {
    let mask = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("SigBlk"));
        line.unwrap().to_owned()
    };
    let before = mask();

    run(&["/bin/true"], |_| {}).unwrap();
    run(&["/no/such/program"], |_| {}).map(drop).unwrap_err();

    assert_eq!(mask(), before);
}

/// Threads start processes at the same time, and each gets the result of its own process.
#[test]
fn many_threads_start_processes_at_once() {
    std::thread::scope(|scope| {
        let codes: Vec<_> = (1..=8)
            .map(|code| {
                scope.spawn(move || {
                    let script = format!("exit {code}");
                    (0..10)
                        .map(|_| run(&["/bin/sh", "-c", &script], |_| {}).unwrap().code)
                        .all(|found| found == Some(code))
                })
            })
            .collect();
        assert!(codes.into_iter().all(|thread| thread.join().unwrap()));
    });
}

#[test]
fn abandoned_process_is_gone_at_once() {
    let null = crate::paths::open_null().unwrap();
    let child = Request::new(null).spawn(&["/bin/sleep", "600"]).unwrap();

    child.kill_and_reap();

    assert!(!Path::new(&format!("/proc/{}", child.pid)).exists());
}

/// The id that means "no change" never reaches this code. If it does, no program may run as root.
#[test]
fn ids_that_do_not_change_end_the_start() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    for (uid, gid) in [(u32::MAX, 65_534), (65_534, u32::MAX)] {
        let outcome = run(&["/bin/true"], |request| {
            request.confinement.identity = Some(Identity {
                uid,
                gid,
                groups: Vec::new(),
            });
        });
        let Err(SpawnError::Child { step, .. }) = outcome else {
            panic!("uid {uid} and gid {gid} ran");
        };
        assert!(
            matches!(step, SpawnStep::User | SpawnStep::Group),
            "{step:?}"
        );
    }
}
