//! A command in a task for a server, with input and output as streams.
//!
//! The driver runs the command; this module converts frames to the driver's messages and back. When the server's
//! frames end, the driver's stream is dropped, and the driver ends the command.

use futures::StreamExt as _;
use muster_domain::error_chain::chain;
use muster_driver::{
    DriverError, ExecInput as DriverInput, ExecOutput, ExecOutputStream, ExecRequest, ExitResult,
    TaskError, TerminalSize,
};
use muster_link::frames::{FrameReceiver, FrameSender, SendFrameError};
use muster_link::window::Window;
use muster_wire::limits::{EXEC_CHUNK_BYTES_MAX, EXEC_WINDOW_BYTES};
use muster_wire::rpc::{
    ExecExit, ExecInput, ExecPiece, ExecSession, FailureKind, LogStream, NodeReply,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::limits::{
    EXEC_DRIVER_INPUTS_MAX, EXEC_INPUTS_MAX, EXEC_SESSIONS_MAX, EXEC_TAKEN_BYTES, EXEC_WORDS_MAX,
};
use crate::session::failure::{fail, failed};
use crate::tasks::live::LiveTasks;

/// The number added to a signal's number in an exit code, as shells do.
const SIGNAL_EXIT_BASE: i32 = 128;

/// The exit code of a command whose end was not seen: no program can have it.
const UNKNOWN_EXIT_CODE: i32 = -1;

/// Runs a session to its end, which may take long. It does not take the place of requests that are answered at
/// once.
pub(super) async fn run(
    sessions: &Semaphore,
    tasks: &LiveTasks,
    session: ExecSession,
    mut sender: FrameSender,
    receiver: FrameReceiver,
    place: OwnedSemaphorePermit,
) -> Result<(), SendFrameError> {
    let Ok(_session) = sessions.try_acquire() else {
        let reason = format!(
            "this node has {EXEC_SESSIONS_MAX} sessions with commands, the most it takes; end one, or try again later"
        );
        return fail(&mut sender, reason, FailureKind::TooMany).await;
    };
    drop(place);
    let Some(live) = tasks.get(session.alloc_id, &session.task) else {
        let reason = format!(
            "task `{}` of allocation {} does not run: see `muster alloc status {}`",
            session.task, session.alloc_id, session.alloc_id
        );
        return fail(&mut sender, reason, FailureKind::NotFound).await;
    };
    let (to_driver, inputs) = mpsc::channel(EXEC_DRIVER_INPUTS_MAX);
    let request = ExecRequest {
        command: session.command,
        tty: session.tty,
    };
    let inputs = ReceiverStream::new(inputs).boxed();
    let driver = &live.slot.driver;
    let opened = driver.exec_task_streaming(&live.record.task_id, request, inputs);
    let output = match opened.await {
        Ok(output) => output,
        Err(error) => {
            let reason = refusal(&error, &live.record.driver);
            let kind = match error {
                TaskError::Driver(DriverError::Unavailable { .. }) => FailureKind::Unavailable,
                _ => FailureKind::Other,
            };
            return fail(&mut sender, reason, kind).await;
        }
    };
    sender.send(&NodeReply::ExecOpened).await?;
    relay(output, to_driver, sender, receiver).await
}

fn refusal(error: &TaskError, driver: &str) -> String {
    match error {
        TaskError::Driver(DriverError::Unsupported { .. }) => {
            format!("driver `{driver}` of this task runs no commands in its tasks")
        }
        error => chain(error),
    }
}

/// The data in flight in both directions.
struct SessionWindows {
    input: Window,
    output: Window,
}

async fn relay(
    output: ExecOutputStream,
    to_driver: mpsc::Sender<DriverInput>,
    mut sender: FrameSender,
    receiver: FrameReceiver,
) -> Result<(), SendFrameError> {
    let windows = SessionWindows {
        input: Window::new(EXEC_WINDOW_BYTES),
        output: Window::new(EXEC_WINDOW_BYTES),
    };
    let (to_feed, waiting) = mpsc::channel(EXEC_INPUTS_MAX);
    let (fed, acknowledged) = mpsc::channel(EXEC_WORDS_MAX);
    let feeding = async {
        feed(waiting, to_driver, fed, &windows).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        sent = pass_output(output, &mut sender, acknowledged, &windows) => sent,
        () = take_input(receiver, to_feed, &windows) => Ok(()),
        () = feeding => Ok(()),
    }
}

/// Receives frames until they end, and never waits for the command. An acknowledgement of output may be behind
/// input that the command does not want yet.
async fn take_input(
    mut receiver: FrameReceiver,
    to_feed: mpsc::Sender<ExecInput>,
    windows: &SessionWindows,
) {
    while let Ok(Some(input)) = receiver.recv::<ExecInput>().await {
        if let ExecInput::Taken { bytes } = input {
            windows.output.give(bytes);
            continue;
        }
        if !windows.input.try_take(input.cost()) || to_feed.try_send(input).is_err() {
            tracing::warn!(
                "a server sent more input of a session than it may; the session is ended"
            );
            return;
        }
    }
}

/// Feeds the command as fast as it takes input, and acknowledges the input to the sender.
async fn feed(
    mut waiting: mpsc::Receiver<ExecInput>,
    to_driver: mpsc::Sender<DriverInput>,
    fed: mpsc::Sender<u64>,
    windows: &SessionWindows,
) {
    let mut taken = 0;
    while let Some(input) = waiting.recv().await {
        let cost = input.cost();
        let input = match input {
            ExecInput::Stdin(bytes) => DriverInput::Stdin(bytes),
            ExecInput::StdinClosed => DriverInput::StdinClosed,
            ExecInput::Resize { height, width } => DriverInput::Resize(TerminalSize {
                height: height.into(),
                width: width.into(),
            }),
            ExecInput::Taken { .. } => continue,
        };
        // A driver that takes no more input ends its output, too.
        drop(to_driver.send(input).await);
        windows.input.give(cost);
        taken += cost;
        if taken >= EXEC_TAKEN_BYTES {
            // The receiver is gone when the session is over.
            fed.send(std::mem::take(&mut taken)).await.unwrap_or(());
        }
    }
}

/// Sends output until the command has ended.
async fn pass_output(
    mut output: ExecOutputStream,
    sender: &mut FrameSender,
    mut acknowledged: mpsc::Receiver<u64>,
    windows: &SessionWindows,
) -> Result<(), SendFrameError> {
    loop {
        let item = tokio::select! {
            Some(bytes) = acknowledged.recv() => {
                sender.send(&NodeReply::ExecTaken { bytes }).await?;
                continue;
            }
            item = output.next() => item,
        };
        let last = match item {
            Some(Ok(ExecOutput::Stdout(bytes))) => {
                send_output(sender, LogStream::Stdout, &bytes, windows).await?;
                continue;
            }
            Some(Ok(ExecOutput::Stderr(bytes))) => {
                send_output(sender, LogStream::Stderr, &bytes, windows).await?;
                continue;
            }
            Some(Ok(ExecOutput::Exited(result))) => NodeReply::ExecExited(exit(result)),
            Some(Err(error)) => failed(chain(&error)),
            None => failed("the driver ended the session and did not say how".to_owned()),
        };
        sender.send(&last).await?;
        sender.finish();
        sender.stopped().await;
        return Ok(());
    }
}

async fn send_output(
    sender: &mut FrameSender,
    stream: LogStream,
    bytes: &[u8],
    windows: &SessionWindows,
) -> Result<(), SendFrameError> {
    for chunk in bytes.chunks(EXEC_CHUNK_BYTES_MAX) {
        let data = chunk.to_vec();
        let piece = ExecPiece { stream, data };
        windows.output.take(piece.cost()).await;
        sender.send(&NodeReply::ExecOutput(piece)).await?;
    }
    Ok(())
}

fn exit(result: ExitResult) -> ExecExit {
    if !result.exit_known() {
        let reason = result.err.unwrap_or_default();
        return ExecExit {
            code: UNKNOWN_EXIT_CODE,
            signal: 0,
            note: Some(format!("the exit code of the command is unknown: {reason}")),
        };
    }
    let code = match result.signal {
        0 => result.exit_code,
        signal => SIGNAL_EXIT_BASE + signal,
    };
    ExecExit {
        code,
        signal: result.signal,
        note: result.err,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_exit_of_command_is_not_success() {
        let end = exit(ExitResult::unknown("the driver was killed".to_owned()));

        assert_eq!(end.code, UNKNOWN_EXIT_CODE);
        let note = end.note.unwrap();
        assert!(note.ends_with("unknown: the driver was killed"), "{note}");
        assert_eq!(exit(ExitResult::exited(3)).code, 3);
        assert_eq!(exit(ExitResult::signaled(9)).code, SIGNAL_EXIT_BASE + 9);
    }
}
