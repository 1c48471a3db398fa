//! Commands in a task, and sessions with input and output.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::StreamExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{DriverUnderTest, FOREVER, destroy, start, task, wait, within};
use crate::error::{DriverError, TaskError};
use crate::exec::{ExecInput, ExecOutput, ExecRequest, TerminalSize};
use crate::limits::EXEC_MESSAGES_MAX;
use crate::task::ExitResult;
use crate::task_driver::{ExecOutputStream, TaskDriver};

/// The byte that ends input on a terminal.
const END_OF_INPUT: &[u8] = &[4];

async fn runs_commands(driver: &dyn TaskDriver) -> bool {
    within("capabilities", driver.capabilities())
        .await
        .expect("a driver knows what it can do")
        .exec
}

/// A command does not run longer than the timeout of its caller.
pub async fn command_that_takes_too_long_is_ended(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    if !runs_commands(&*driver).await {
        return;
    }
    let config = task(subject, "slow-exec", subject.runs_for(FOREVER));
    start(&*driver, &config).await;

    let exec = driver.exec_task(&config.id, subject.sleeps(), Duration::from_millis(200));
    let result = within("exec", exec).await;

    assert!(
        !result
            .as_ref()
            .is_ok_and(|result| result.result.successful()),
        "{result:?}"
    );
    destroy(&*driver, &config.id).await;
}

/// A command cannot run in an ended task.
pub async fn command_in_an_ended_task_is_refused(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    if !runs_commands(&*driver).await {
        return;
    }
    let config = task(subject, "ended-exec", subject.exits_with(0));
    start(&*driver, &config).await;
    wait(&*driver, &config.id).await;

    let exec = driver.exec_task(&config.id, subject.prints("x"), Duration::from_secs(30));
    let result = within("exec", exec).await;

    assert_eq!(
        result,
        Err(TaskError::NotRunning {
            task_id: config.id.clone()
        })
    );
    destroy(&*driver, &config.id).await;
}

/// An open session.
struct Session {
    input: mpsc::Sender<ExecInput>,
    output: ExecOutputStream,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    exited: Option<ExitResult>,
}

impl Session {
    async fn send(&self, input: ExecInput) {
        within("input", self.input.send(input))
            .await
            .expect("the session takes input");
    }

    /// Reads one item; `false` at the end.
    async fn read(&mut self) -> bool {
        match within("output", self.output.next()).await {
            Some(Ok(ExecOutput::Stdout(data))) => self.stdout.extend(data),
            Some(Ok(ExecOutput::Stderr(data))) => self.stderr.extend(data),
            Some(Ok(ExecOutput::Exited(result))) => self.exited = Some(result),
            Some(Err(error)) => panic!("the session failed: {error}"),
            None => return false,
        }
        true
    }

    async fn read_until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.stdout).contains(text) {
            assert!(
                self.read().await,
                "the session ended before {text:?} came: {:?}",
                String::from_utf8_lossy(&self.stdout)
            );
        }
    }
}

/// Opens a session; `None` when the driver supports no sessions and reports that.
async fn open(
    subject: &dyn DriverUnderTest,
    driver: &dyn TaskDriver,
    task_id: &str,
    command: Vec<String>,
    tty: bool,
) -> Option<Session> {
    let (input, inputs) = mpsc::channel(EXEC_MESSAGES_MAX);
    let request = ExecRequest { command, tty };
    let opening: BoxFuture<'_, _> =
        driver.exec_task_streaming(task_id, request, ReceiverStream::new(inputs).boxed());
    match within("the session", opening).await {
        Ok(output) => Some(Session {
            input,
            output,
            stdout: Vec::new(),
            stderr: Vec::new(),
            exited: None,
        }),
        Err(error) => {
            assert!(
                !subject.streams_exec()
                    && matches!(error, TaskError::Driver(DriverError::Unsupported { .. })),
                "{error:?}"
            );
            None
        }
    }
}

/// The session echoes its input, and the end of the input ends the command.
pub async fn session_carries_input_and_output(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "session", subject.runs_for(FOREVER));
    start(&*driver, &config).await;

    let command = subject.copies_input();
    if let Some(mut session) = open(subject, &*driver, &config.id, command, false).await {
        session.send(ExecInput::Stdin(b"first ".to_vec())).await;
        session.read_until("first ").await;
        session.send(ExecInput::Stdin(b"second".to_vec())).await;
        session.send(ExecInput::StdinClosed).await;
        while session.read().await {}

        assert_eq!(String::from_utf8_lossy(&session.stdout), "first second");
        assert_eq!(session.exited, Some(ExitResult::exited(0)));
    }
    destroy(&*driver, &config.id).await;
}

/// Errors do not mix with output, and the exit code is that of the command.
pub async fn session_keeps_outputs_apart_and_tells_the_exit(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "complains", subject.runs_for(FOREVER));
    start(&*driver, &config).await;

    let command = subject.complains("not good");
    if let Some(mut session) = open(subject, &*driver, &config.id, command, false).await {
        while session.read().await {}

        assert_eq!(String::from_utf8_lossy(&session.stderr), "not good");
        assert!(session.stdout.is_empty());
        assert_eq!(session.exited, Some(ExitResult::exited(1)));
    }
    destroy(&*driver, &config.id).await;
}

/// A terminal has the size of the last resize.
pub async fn session_has_a_terminal_with_a_size(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "terminal", subject.runs_for(FOREVER));
    start(&*driver, &config).await;

    let command = subject.prints_size();
    if let Some(mut session) = open(subject, &*driver, &config.id, command, true).await {
        for (height, width) in [(24, 80), (50, 132)] {
            let size = TerminalSize { height, width };
            session.send(ExecInput::Resize(size)).await;
            session.send(ExecInput::Stdin(b"\n".to_vec())).await;
            session.read_until(&format!("{height} {width}")).await;
        }
        session.send(ExecInput::Stdin(END_OF_INPUT.to_vec())).await;
        while session.read().await {}

        assert_eq!(session.exited, Some(ExitResult::exited(0)));
    }
    destroy(&*driver, &config.id).await;
}

/// A session in an unknown task is refused as "not found".
pub async fn session_in_no_task_is_not_found(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let (_input, inputs) = mpsc::channel(EXEC_MESSAGES_MAX);
    let request = ExecRequest {
        command: subject.copies_input(),
        tty: false,
    };

    let opening =
        driver.exec_task_streaming("no/task/0", request, ReceiverStream::new(inputs).boxed());
    let opened = within("the session", opening).await.map(drop);

    if subject.streams_exec() {
        assert_eq!(opened, Err(TaskError::not_found("no/task/0")));
    } else {
        assert!(opened.is_err(), "a driver without sessions says so");
    }
}
