//! Commands that run inside a task.

use crate::task::ExitResult;

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecResult {
    /// Its output, up to the driver's bound.
    pub stdout: Vec<u8>,
    /// Its error output, up to the driver's bound.
    pub stderr: Vec<u8>,
    /// How it ended. `err` says when output was cut or when time ran out.
    pub result: ExitResult,
}

/// A command to run interactively.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecRequest {
    pub command: Vec<String>,
    /// Give it a terminal.
    pub tty: bool,
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    pub height: i32,
    pub width: i32,
}

/// The input of an interactive command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecInput {
    /// Bytes for its standard input.
    Stdin(Vec<u8>),
    /// Its standard input ends.
    StdinClosed,
    /// The terminal changed its size.
    Resize(TerminalSize),
}

/// The output of an interactive command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutput {
    /// Bytes of its output.
    Stdout(Vec<u8>),
    /// Bytes of its error output.
    Stderr(Vec<u8>),
    /// It ended; nothing follows.
    Exited(ExitResult),
}
