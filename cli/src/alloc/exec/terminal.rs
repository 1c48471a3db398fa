//! The user's terminal while a remote command uses it.

use std::io::{self, stdin, stdout};

use muster_wire::api::exec::TtySize;
use rustix::termios::{OptionalActions, Termios};

/// The terminal passes everything on and interprets nothing, until this is dropped.
#[derive(Debug)]
pub(super) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Sets the terminal of standard input to raw mode.
    pub(super) fn enter() -> io::Result<Self> {
        let before = rustix::termios::tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // If the terminal is gone, its state is irrelevant.
        rustix::termios::tcsetattr(stdin(), OptionalActions::Drain, &self.before).unwrap_or(());
    }
}

/// The size of the user's terminal; `None` if there is none.
pub(super) fn size() -> Option<TtySize> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    Some(TtySize {
        height: size.ws_row.into(),
        width: size.ws_col.into(),
    })
}
