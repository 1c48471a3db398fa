//! Commands that run inside a task.

use crate::task::ExitResult;

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecResult {
    /// The standard output of the command, up to the driver's bound.
    pub stdout: Vec<u8>,
    /// The error output of the command, up to the driver's bound.
    pub stderr: Vec<u8>,
    /// The exit of the command. `err` is set when output was cut or when the time ran out.
    pub result: ExitResult,
}

/// A command to run interactively.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecRequest {
    pub command: Vec<String>,
    /// Gives the command a terminal.
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
    /// Bytes for the standard input of the command.
    Stdin(Vec<u8>),
    /// The end of the command's standard input.
    StdinClosed,
    /// The terminal changed its size.
    Resize(TerminalSize),
}

/// The output of an interactive command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutput {
    /// Bytes of the command's standard output.
    Stdout(Vec<u8>),
    /// Bytes of the command's error output.
    Stderr(Vec<u8>),
    /// The exit of the command. It is the last item.
    Exited(ExitResult),
}
