//! Signals by name.

use std::str::FromStr;

use muster_driver::TaskError;
use rustix::process::Signal;

/// The signal of a stop if neither the call nor the task names one. It is Nomad's default for tasks that are
/// processes.
pub(crate) const DEFAULT_STOP: &str = "SIGINT";

/// Parses a signal name, with or without `SIG`, or a signal number.
pub(crate) fn parse(signal: &str) -> Result<Signal, TaskError> {
    let unknown = || TaskError::UnknownSignal {
        signal: signal.to_owned(),
    };
    let number = match signal.parse::<i32>() {
        Ok(number) => number,
        Err(_) => {
            let mut name = signal.to_ascii_uppercase();
            if !name.starts_with("SIG") {
                name.insert_str(0, "SIG");
            }
            nix::sys::signal::Signal::from_str(&name).map_err(|_unknown| unknown())? as i32
        }
    };
    Signal::from_named_raw(number).ok_or_else(unknown)
}

/// Returns whether `signal` ends a process that does not handle it (signal(7)).
pub(crate) fn ends_by_default(signal: Signal) -> bool {
    ![
        Signal::CHILD,
        Signal::CONT,
        Signal::STOP,
        Signal::TSTP,
        Signal::TTIN,
        Signal::TTOU,
        Signal::URG,
        Signal::WINCH,
    ]
    .contains(&signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_understood() {
        for name in ["SIGTERM", "TERM", "sigterm", "15"] {
            assert_eq!(parse(name), Ok(Signal::TERM), "{name}");
        }
    }

    #[test]
    fn unknown_signals_are_refused() {
        for name in ["", "SIGNOTHING", "0", "-9", "DETACH", "99999999999"] {
            let unknown = TaskError::UnknownSignal {
                signal: name.to_owned(),
            };
            assert_eq!(parse(name), Err(unknown));
        }
    }
}
