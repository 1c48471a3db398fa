//! The ends of commands: exit codes, and errors with a remedy.

use std::fmt;
use std::process::ExitCode;

/// Exit codes, the same for every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done,
    /// The requested operation was tried and failed.
    Failed,
    /// Running the job would change something. Only of a plan.
    Changes,
    /// The command line or a file in it is faulty.
    Usage,
    /// Placed only in part: the rest waits for room.
    Partial,
    /// The requested object does not exist.
    NotFound,
    /// The server refused.
    Refused,
    /// No server can be reached.
    Unreachable,
    /// Waited as long as allowed.
    TimedOut,
    /// Interrupted by the user.
    Interrupted,
    /// The changes cannot be determined. Only for a plan.
    Undetermined,
    /// The exit code of a command in a task.
    Command(u8),
}

impl Exit {
    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed | Self::Changes => 1,
            Self::Usage => 2,
            Self::Partial => 3,
            Self::NotFound => 4,
            Self::Refused => 5,
            Self::Unreachable => 6,
            Self::TimedOut => 7,
            Self::Interrupted => 130,
            Self::Undetermined => 255,
            Self::Command(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The error of a command.
#[derive(Debug)]
pub struct CliError {
    /// The exit code of the process.
    pub exit: Exit,
    /// The fault, its place and its cause.
    pub message: String,
    /// Advice on the next step.
    pub help: Option<String>,
}

impl CliError {
    /// An error that ends the process with `exit`.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            help: None,
        }
    }

    /// Adds advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Creates an error from an error with its chain of causes.
    pub fn from_chain(exit: Exit, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        Self::new(exit, message)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        if let Some(help) = &self.help {
            write!(f, "\n help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CliError {}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Failed, error.to_string())
    }
}

/// The result of a command.
pub type CliResult = Result<Exit, CliError>;
