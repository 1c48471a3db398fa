//! Commands in tasks, as a user runs them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::dev::dev;
use crate::support::{
    Leftovers, PATIENCE, ask, job_file, muster, needs_root, poll_until, stderr, stdout,
};
use crate::tasks::ServerAndAgent;

const JOB: &str = r#"
job "idle" {
  update { min_healthy_time = "0s" }
  group "g" {
    restart { delay = "0s" }
    task "t" {
      driver = "native"
      config {
        command = "sleep"
        args    = ["600"]
      }
      resources { memory = 32 }
    }
  }
}
"#;

fn run_idle(address: &str, dir: &Path) {
    let file = job_file(dir, JOB);
    poll_until("the job to run", || {
        let run = ask(address, &["job", "run", file.to_str().unwrap()]);
        run.status.success().then_some(())
    });
}

fn exec(address: &str, command: &[&str]) -> Command {
    let mut muster = muster();
    muster
        .args(["--address", address, "alloc", "exec", "idle"])
        .args(command);
    muster
}

fn done(address: &str, command: &[&str]) -> Output {
    exec(address, command).output().unwrap()
}

/// Whether the process that the task calls `pid` is there.
fn lives(address: &str, pid: &str) -> bool {
    let looked = done(
        address,
        &["sh", "-c", &format!("kill -0 {pid} && echo yes")],
    );
    stdout(&looked) == "yes\n"
}

#[test]
fn exec_forwards_streams_and_exit_code() {
    if !needs_root("exec_forwards_streams_and_exit_code") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_dev, address) = dev(dir.path());
    run_idle(&address, dir.path());

    let spoke = done(&address, &["sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(spoke.status.code(), Some(7));
    assert_eq!(
        (stdout(&spoke), stderr(&spoke)),
        ("out\n".into(), "err\n".into())
    );

    let killed = done(&address, &["sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), Some(137));

    let absent = done(&address, &["no-such-program"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(
        stderr(&absent).contains("\"no-such-program\" not found"),
        "{}",
        stderr(&absent)
    );

    let elsewhere = exec(&address, &[])
        .args(["--task", "x", "ls"])
        .output()
        .unwrap();
    assert_eq!(elsewhere.status.code(), Some(4), "{}", stderr(&elsewhere));

    let signaled = |args: &[&str]| ask(&address, &[&["alloc", "signal"], args].concat());
    assert!(signaled(&["-s", "SIGCONT", "idle"]).status.success());
    poll_until("the signal in the task's history", || {
        let status = ask(&address, &["alloc", "status", "idle"]);
        stdout(&status).contains("SIGCONT was sent").then_some(())
    });
    assert!(signaled(&["-s", "SIGHUP", "idle"]).status.success());
    poll_until("why the task ended, in its history", || {
        let status = ask(&address, &["alloc", "status", "idle"]);
        stdout(&status).contains("SIGHUP was sent").then_some(())
    });
    poll_until("the task to run again", || {
        let ran = done(&address, &["true"]);
        ran.status.success().then_some(())
    });
    let unknown = signaled(&["-s", "SIGNONE", "idle", "t"]);
    assert!(stderr(&unknown).contains("SIGNONE"), "{}", stderr(&unknown));
    assert_eq!(signaled(&["idle", "nobody"]).status.code(), Some(4));

    let mut piped = exec(&address, &["sha256sum"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = piped.stdin.take().unwrap();
    input.write_all(&vec![b'm'; 3_000_000]).unwrap();
    drop(input);
    let sum = stdout(&piped.wait_with_output().unwrap());
    assert!(
        sum.starts_with("07c18a460aaa7e931a8bc1fedabf1f22ff7f699c7383375470b65e6a781b4655"),
        "{sum}"
    );
}

/// The user's side of a terminal, with a session on the other.
struct TerminalSession {
    front: File,
    session: Child,
    seen: String,
}

impl TerminalSession {
    fn down(address: &str, command: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let front = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&front).unwrap();
        let back = || -> Stdio {
            rustix::pty::ioctl_tiocgptpeer(&front, flags)
                .unwrap()
                .into()
        };
        let session = exec(address, command)
            .stdin(back())
            .stdout(back())
            .stderr(back())
            .spawn()
            .unwrap();
        Self {
            front: front.into(),
            session,
            seen: String::new(),
        }
    }

    fn size(&self, ws_row: u16, ws_col: u16) {
        let (ws_xpixel, ws_ypixel) = (0, 0);
        let size = Winsize {
            ws_row,
            ws_col,
            ws_xpixel,
            ws_ypixel,
        };
        rustix::termios::tcsetwinsize(&self.front, size).unwrap();
        let pid = i32::try_from(self.session.id()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGWINCH).unwrap();
    }

    fn type_in(&mut self, text: &str) {
        self.front.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until `text` is on the screen, and discards earlier output.
    fn read_until(&mut self, text: &str) {
        let mut buffer = [0; 512];
        while !self.seen.contains(text) {
            let mut files = [PollFd::new(&self.front, PollFlags::IN)];
            let patience = Timespec::try_from(PATIENCE).unwrap();
            let ready = rustix::event::poll(&mut files, Some(&patience)).unwrap();
            assert!(ready > 0, "waited for {text:?} in {:?}", self.seen);
            let read = self.front.read(&mut buffer).unwrap();
            assert!(read > 0, "{text:?} in {:?}", self.seen);
            self.seen
                .push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        let at = self.seen.find(text).unwrap();
        self.seen.drain(..at + text.len());
    }
}

/// A shell has a terminal of the same size as the user's terminal, which is restored at the end.
#[test]
fn a_terminal_is_passed_through() {
    if !needs_root("a_terminal_is_passed_through") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_dev, address) = dev(dir.path());
    run_idle(&address, dir.path());
    let mut session = TerminalSession::down(&address, &["sh"]);
    // Held, so that the terminal is there when the session is over.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let held: OwnedFd = rustix::pty::ioctl_tiocgptpeer(&session.front, flags).unwrap();
    let before = rustix::termios::tcgetattr(&held).unwrap();

    session.type_in("PS1=; echo o''k\r");
    session.read_until("ok\r\n");
    session.size(41, 101);
    session.type_in("until [ \"$(stty size)\" = '41 101' ]; do :; done; echo si''zed\r");
    session.read_until("sized\r\n");
    // The terminal belongs to the command, so the interrupt ends the shell's child and not the session. A shell may
    // miss an interrupt while it starts a child.
    session.type_in("sh -c \"echo fa''lls asleep; exec sleep 600\"; echo sle''pt\r");
    session.read_until("falls asleep\r\n");
    session.type_in("\u{3}");
    session.type_in("echo st''ill here\r");
    session.read_until("still here\r\n");
    session.type_in("exit 5\r");

    assert_eq!(session.session.wait().unwrap().code(), Some(5));
    let after = rustix::termios::tcgetattr(&held).unwrap();
    assert_eq!(before.local_modes, after.local_modes);
    assert_eq!(before.input_modes, after.input_modes);

    let mut session = TerminalSession::down(&address, &["sh", "-c", "echo $$; cat"]);
    session.read_until("\r\n");
    session.type_in("one\r~.");
    let status = poll_until("the session to be hung up", || {
        session.session.try_wait().unwrap()
    });
    assert_eq!(status.code(), Some(130));
}

/// Starts a command that does not end, and returns its process id in the task.
fn started(address: &str) -> (Child, String) {
    let mut session = exec(address, &["sh", "-c", "echo $$; sleep 600; sleep 600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    let out = session.stdout.as_mut().unwrap();
    while !pid.ends_with('\n') {
        let mut byte = [0];
        out.read_exact(&mut byte).unwrap();
        pid.push(char::from(byte[0]));
    }
    (session, pid.trim().to_owned())
}

/// A session and its command end together, after the death of the client or of the agent.
#[test]
fn exec_session_ends_with_client_or_agent() {
    if !needs_root("exec_session_ends_with_client_or_agent") {
        return;
    }
    let dir = tempfile::Builder::new()
        .prefix("me")
        .tempdir_in("/tmp")
        .unwrap();
    let _left = Leftovers(dir.path().join("agent"));
    let mut pair = ServerAndAgent::start(dir.path());
    let address = format!("http://{}", pair.http);
    run_idle(&address, dir.path());

    let (mut session, pid) = started(&address);
    assert!(lives(&address, &pid));
    session.kill().unwrap();
    session.wait().unwrap();
    poll_until("the command to end with its client", || {
        (!lives(&address, &pid)).then_some(())
    });

    let (session, pid) = started(&address);
    assert!(lives(&address, &pid));
    pair.kill_agent();
    let ended = session.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        stderr(&ended).contains("the session broke off"),
        "{}",
        stderr(&ended)
    );
    poll_until("the agent to be back", || {
        let looked = done(&address, &["true"]);
        looked.status.success().then_some(())
    });
    assert!(!lives(&address, &pid), "it ended with the agent");

    ask(&address, &["job", "stop", "idle"]);
    let over = done(&address, &["true"]);
    assert_eq!(over.status.code(), Some(4));
    assert!(stderr(&over).contains("does not run"), "{}", stderr(&over));
}
