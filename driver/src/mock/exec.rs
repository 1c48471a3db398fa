//! Commands that run in a mock task.
//!
//! A few names simulate programs. `cat` copies its input. `complain` writes its argument to the error output and exits
//! with 1. `size` answers each input with the terminal's size. `sleep` never ends by itself. Every other command
//! prints the output in the task's `config`.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::{Process, SIGKILL};
use crate::exec::{ExecInput, ExecOutput, ExecRequest, ExecResult, TerminalSize};
use crate::task::ExitResult;
use crate::task_driver::{ExecInputStream, ExecOutputStream};

/// The end-of-transmission byte, which a terminal turns into the end of the input.
const END_OF_INPUT: u8 = 4;

/// Runs `command` without input.
pub(super) async fn run(process: &Process, command: &[String], timeout: Duration) -> ExecResult {
    let name = command.first().map_or("", String::as_str);
    if name == "sleep" {
        let timeout = if timeout.is_zero() {
            Duration::MAX
        } else {
            timeout
        };
        let _ended = tokio::time::timeout(timeout, process.wait()).await;
        let mut result = ExitResult::signaled(SIGKILL);
        result.err = Some(format!("did not end within {timeout:?}; killed"));
        return ExecResult {
            stdout: Vec::new(),
            stderr: Vec::new(),
            result,
        };
    }
    ExecResult {
        stdout: process.task.exec_stdout.clone().into_bytes(),
        stderr: Vec::new(),
        result: ExitResult::exited(process.task.exec_code),
    }
}

/// Runs a command with its input and output as streams.
pub(super) fn stream(
    process: Arc<Process>,
    request: ExecRequest,
    input: ExecInputStream,
) -> ExecOutputStream {
    let session = Session {
        process,
        request,
        input,
        size: TerminalSize::default(),
        pending: Vec::new(),
        ended: false,
    };
    let outputs = stream::unfold(session, |mut session| async move {
        let output = session.next().await?;
        Some((Ok(output), session))
    });
    outputs.boxed()
}

struct Session {
    process: Arc<Process>,
    request: ExecRequest,
    input: ExecInputStream,
    size: TerminalSize,
    /// The outputs that are not sent yet, in reverse order.
    pending: Vec<ExecOutput>,
    ended: bool,
}

impl Session {
    async fn next(&mut self) -> Option<ExecOutput> {
        loop {
            if let Some(output) = self.pending.pop() {
                self.ended = matches!(output, ExecOutput::Exited(_));
                return Some(output);
            }
            if self.ended {
                return None;
            }
            self.advance().await;
        }
    }

    async fn advance(&mut self) {
        let command = self.request.command.clone();
        let word = |at: usize| command.get(at).map_or("", String::as_str);
        match word(0) {
            "cat" | "size" | "sleep" => {
                let input = tokio::select! {
                    _ = self.process.wait() => {
                        self.pending.push(ExecOutput::Exited(ExitResult::signaled(SIGKILL)));
                        return;
                    }
                    input = self.input.next() => input,
                };
                self.handle_input(word(0), input).await;
            }
            "complain" => {
                let text = word(1).to_owned().into_bytes();
                self.pending.push(ExecOutput::Exited(ExitResult::exited(1)));
                // A terminal has only one output stream.
                self.pending.push(if self.request.tty {
                    ExecOutput::Stdout(text)
                } else {
                    ExecOutput::Stderr(text)
                });
            }
            _ => {
                let task = &self.process.task;
                let exit = ExitResult::exited(task.exec_code);
                self.pending.push(ExecOutput::Exited(exit));
                let printed = task.exec_stdout.clone().into_bytes();
                self.pending.push(ExecOutput::Stdout(printed));
            }
        }
    }

    async fn handle_input(&mut self, name: &str, input: Option<ExecInput>) {
        let done = ExecOutput::Exited(ExitResult::exited(0));
        match input {
            Some(ExecInput::Resize(size)) => self.size = size,
            Some(ExecInput::Stdin(data)) if self.request.tty && data.contains(&END_OF_INPUT) => {
                self.pending.push(done);
            }
            Some(ExecInput::Stdin(data)) => match name {
                "cat" => self.pending.push(ExecOutput::Stdout(data)),
                "size" => {
                    let TerminalSize { height, width } = self.size;
                    let text = format!("{height} {width}\n").into_bytes();
                    self.pending.push(ExecOutput::Stdout(text));
                }
                _ => {}
            },
            Some(ExecInput::StdinClosed) | None if name != "sleep" => self.pending.push(done),
            Some(ExecInput::StdinClosed) => {}
            // The input stream has ended without `StdinClosed`. A command that does not read continues.
            None => {
                let _ended = self.process.wait().await;
                let killed = ExitResult::signaled(SIGKILL);
                self.pending.push(ExecOutput::Exited(killed));
            }
        }
    }
}
