//! Tests of commands in a task with input and output as streams, beyond the conformance suite.

use std::time::Duration;

use futures::stream::StreamExt as _;
use muster_driver::{
    ExecInput, ExecOutput, ExecOutputStream, ExecRequest, ExitResult, TaskDriver, TerminalSize,
};
use muster_driver_native::NativeDriver;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::fixture::{Cgroups, DEADLINE, Task, is_alive, skipped, sleep_for_ever, started, until};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
/// `^C` on a terminal.
const INTERRUPT: &[u8] = &[3];

/// A session with a command.
struct Session {
    input: mpsc::Sender<ExecInput>,
    output: ExecOutputStream,
    stdout: Vec<u8>,
}

impl Session {
    async fn open(driver: &NativeDriver, task: &Task, script: &str, tty: bool) -> Self {
        let (input, inputs) = mpsc::channel(1);
        let request = ExecRequest {
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            tty,
        };
        let inputs = ReceiverStream::new(inputs).boxed();
        let opened = driver.exec_task_streaming(task.id(), request, inputs).await;
        Self {
            input,
            output: opened.unwrap(),
            stdout: Vec::new(),
        }
    }

    async fn next(&mut self) -> Option<ExitResult> {
        let next = tokio::time::timeout(DEADLINE, self.output.next());
        match next.await.expect("the session goes on").unwrap().unwrap() {
            ExecOutput::Stdout(bytes) => self.stdout.extend(bytes),
            ExecOutput::Stderr(bytes) => panic!("{}", String::from_utf8_lossy(&bytes)),
            ExecOutput::Exited(result) => return Some(result),
        }
        None
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.stdout.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.stdout.drain(..=end).collect();
                return String::from_utf8(line).unwrap().trim().to_owned();
            }
            assert_eq!(self.next().await, None);
        }
    }

    async fn end(&mut self) -> ExitResult {
        loop {
            if let Some(result) = self.next().await {
                return result;
            }
        }
    }
}

/// Returns a contained task where the tests run as root.
fn contained(name: &str) -> Option<Task> {
    if nix::unistd::geteuid().is_root() {
        let config = json!({"command": "sleep", "args": ["600"], "isolation": "contained"});
        return Some(Task::with(config));
    }
    skipped(&format!("session::{name}"), "only root can contain a task");
    None
}

/// The terminal is in the task's own `/dev/pts`, with a name there, and its user may open it by that name.
#[tokio::test]
async fn terminal_is_the_tasks_own() {
    let Some(task) = contained("terminal_is_the_tasks_own") else {
        return;
    };
    let driver = started(&task).await;
    let script = "tty; stat -c %U $(tty); : > /dev/tty && echo may; echo $TERM; set -- $(cat /proc/$$/stat); echo $7";
    let mut session = Session::open(&driver, &task, script, true).await;

    let mut lines = Vec::new();
    for _ in 0..5 {
        lines.push(session.line().await);
    }

    // The last field is the number of the controlling terminal: the first device with major number 136.
    assert_eq!(lines, ["/dev/pts/0", "nobody", "may", "xterm", "34816"]);
    assert_eq!(session.end().await, ExitResult::exited(0));
    driver.destroy_task(task.id(), true).await.unwrap();
}

/// The Landlock scope of the task does not restrict a session that inspects the task.
#[tokio::test]
async fn command_calls_the_task_and_looks_at_it() {
    if !nix::unistd::geteuid().is_root() {
        skipped(
            "session::command_calls_the_task_and_looks_at_it",
            "only root can contain a task",
        );
        return;
    }
    let name = format!("muster-test-{}", std::process::id());
    let serve = r#"
        my $listener = IO::Socket::UNIX->new(Local => "\0NAME", Listen => 1) or die;
        while (my $in = $listener->accept) { print $in "hello\n" }
    "#;
    let call = r#"perl -MIO::Socket::UNIX -MErrno -e '
        my $out;
        until ($out = IO::Socket::UNIX->new(Peer => "\0NAME")) {
            die "$!" unless $!{ECONNREFUSED};
            select undef, undef, undef, 0.01;
        }
        print <$out>;
    '; readlink /proc/1/exe"#;
    let serve = serve.replace("NAME", &name);
    let task = Task::with(json!({
        "command": "/usr/bin/perl",
        "args": ["-MIO::Socket::UNIX", "-e", serve],
        "isolation": "contained",
    }));
    let driver = started(&task).await;

    let mut session = Session::open(&driver, &task, &call.replace("NAME", &name), false).await;

    assert_eq!(session.line().await, "hello");
    assert_eq!(session.line().await, "/usr/bin/perl");
    assert_eq!(session.end().await, ExitResult::exited(0));
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn interrupt_signals_terminal_foreground_process() {
    let task = Task::new(sleep_for_ever());
    let driver = started(&task).await;
    let script = "echo ready; exec sleep 600";
    let mut session = Session::open(&driver, &task, script, true).await;
    assert_eq!(session.line().await, "ready");

    let interrupt = ExecInput::Stdin(INTERRUPT.to_vec());
    session.input.send(interrupt).await.unwrap();

    assert_eq!(session.end().await, ExitResult::signaled(SIGINT));
    driver.destroy_task(task.id(), true).await.unwrap();
}

/// Checks that the command ends when the client of the session hangs up.
async fn hanging_up_ends_the_command(tty: bool) {
    let task = Task::new(sleep_for_ever());
    let driver = started(&task).await;
    let script = "echo $$; sleep 600; sleep 600";
    let mut session = Session::open(&driver, &task, script, tty).await;
    let pid: i32 = session.line().await.parse().unwrap();
    assert!(is_alive(pid));

    drop(session);

    let (ended, waiting) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        until("the command is gone", || !is_alive(pid));
        ended.send(()).unwrap();
    });
    waiting.await.unwrap();
    assert!(
        driver
            .inspect_task(task.id())
            .await
            .unwrap()
            .result
            .is_none()
    );
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn hanging_up_ends_a_command_with_pipes() {
    hanging_up_ends_the_command(false).await;
}

#[tokio::test]
async fn hanging_up_ends_a_command_with_a_terminal() {
    hanging_up_ends_the_command(true).await;
}

/// The session transfers much more than pipes hold. The client reads nothing for a while, and the terminal's size
/// changes all the time.
#[tokio::test]
async fn much_goes_through_without_a_loss() {
    const PIECES: usize = 500;
    let task = Task::new(sleep_for_ever());
    let driver = started(&task).await;
    let mut session = Session::open(&driver, &task, "cat", false).await;
    let pieces = |ordinal: usize| vec![u8::try_from(ordinal % 251).unwrap(); 10_000];

    let input = session.input.clone();
    let typing = tokio::spawn(async move {
        for ordinal in 0..PIECES {
            let size = TerminalSize::default();
            input.send(ExecInput::Resize(size)).await.unwrap();
            input.send(ExecInput::Stdin(pieces(ordinal))).await.unwrap();
        }
        input.send(ExecInput::StdinClosed).await.unwrap();
    });
    let result = session.end().await;
    typing.await.unwrap();

    assert_eq!(result, ExitResult::exited(0));
    let expected: Vec<u8> = (0..PIECES).flat_map(pieces).collect();
    assert!(session.stdout == expected, "{} bytes", session.stdout.len());
    driver.destroy_task(task.id(), true).await.unwrap();
}

/// All output of the command arrives, although a process that it left running holds the same pipe.
#[tokio::test]
async fn session_end_ignores_background_processes() {
    let Some(task) = contained("session_end_ignores_background_processes") else {
        return;
    };
    let driver = started(&task).await;
    let script = "sleep 600 & head -c 60000 /dev/zero; exit 3";
    let mut session = Session::open(&driver, &task, script, false).await;

    assert_eq!(session.end().await, ExitResult::exited(3));
    assert_eq!(session.stdout.len(), 60_000);
    driver.destroy_task(task.id(), true).await.unwrap();
}

/// A command that reads no input does not block the client.
#[tokio::test]
async fn unread_input_is_discarded() {
    let task = Task::new(sleep_for_ever());
    let driver = started(&task).await;
    let script = "exec <&-; echo shut; read go < go; exit 4";
    nix::unistd::mkfifo(&task.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut session = Session::open(&driver, &task, script, false).await;
    assert_eq!(session.line().await, "shut");

    for _ in 0..100 {
        let typed = ExecInput::Stdin(vec![b'x'; 4_000]);
        let sent = tokio::time::timeout(DEADLINE, session.input.send(typed));
        sent.await.expect("input is taken").unwrap();
    }
    std::fs::write(task.path("go"), "go\n").unwrap();

    assert_eq!(session.end().await, ExitResult::exited(4));
    driver.destroy_task(task.id(), true).await.unwrap();
}

/// The end of the client's input ends the command's input on a terminal, too, also in the middle of a line.
#[tokio::test]
async fn terminal_passes_the_end_of_input_on() {
    let task = Task::new(sleep_for_ever());
    let driver = started(&task).await;
    let script = "stty -echo; echo ready; cat; echo over";
    let mut session = Session::open(&driver, &task, script, true).await;
    assert_eq!(session.line().await, "ready");

    for input in [
        ExecInput::Stdin(b"half a line".to_vec()),
        ExecInput::StdinClosed,
    ] {
        session.input.send(input).await.unwrap();
    }

    assert_eq!(session.line().await, "half a lineover");
    assert_eq!(session.end().await, ExitResult::exited(0));
    driver.destroy_task(task.id(), true).await.unwrap();
}

/// A command in a task ends with the task, whatever its parent.
#[tokio::test]
async fn end_of_the_task_ends_its_sessions() {
    let mut with_cgroup = Task::new(sleep_for_ever());
    let cgroups = Cgroups::new();
    with_cgroup.config.cgroup = cgroups.as_ref().map(Cgroups::placement);
    for task in [Task::new(sleep_for_ever()), with_cgroup] {
        let driver = started(&task).await;
        let mut session = Session::open(&driver, &task, "echo ready; exec sleep 600", true).await;
        assert_eq!(session.line().await, "ready");

        let stopped = driver.stop_task(task.id(), Duration::ZERO, "SIGKILL").await;
        stopped.unwrap();

        assert_eq!(session.end().await, ExitResult::signaled(SIGKILL));
        driver.destroy_task(task.id(), true).await.unwrap();
    }
}
