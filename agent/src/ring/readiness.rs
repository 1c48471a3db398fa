//! Waiting until a FIFO has bytes, by io_uring or by epoll.
//!
//! No io_uring operation is ever abandoned. A poll that is no longer needed is cancelled and awaited, so the kernel
//! holds no reference to a released FIFO.

#![expect(
    unsafe_code,
    reason = "tokio wants a promise about the file descriptors it watches"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use io_uring::{cqueue, opcode, types};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

/// A FIFO and the means to wait for it.
pub(crate) enum Readiness {
    /// A one-shot poll on the thread's ring.
    IoUring {
        /// Shared with the poll in flight, so that the descriptor outlives the poll.
        fd: Rc<OwnedFd>,
        /// The poll in flight.
        poll: Option<InFlightOneshot<Rc<OwnedFd>, Completion>>,
    },
    Epoll(AsyncFd<OwnedFd>),
}

/// Turns a completion into its result.
pub(crate) struct Completion;

impl OneshotOutputTransform for Completion {
    type Output = io::Result<u32>;
    type StoredData = Rc<OwnedFd>;

    fn transform_oneshot_output(self, fd: Rc<OwnedFd>, entry: cqueue::Entry) -> io::Result<u32> {
        drop(fd);
        u32::try_from(entry.result())
            .map_err(|_negative| io::Error::from_raw_os_error(-entry.result()))
    }
}

impl Readiness {
    /// Waits for `fd` on the ring of this thread.
    pub(crate) fn io_uring(fd: OwnedFd) -> Self {
        Self::IoUring {
            fd: Rc::new(fd),
            poll: None,
        }
    }

    /// Waits for `fd` on the epoll instance of this thread.
    pub(crate) fn epoll(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an OwnedFd names the same open file until it is dropped, and AsyncFd, which
        // never lends it mutably here, takes it off the epoll instance before it drops it.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self::Epoll(registered?))
    }

    /// Returns when there may be bytes. The caller must have drained the FIFO to its end before.
    ///
    /// The future may be dropped while it waits: the poll stays in flight and the next call awaits it.
    pub(crate) async fn ready(&mut self) -> io::Result<()> {
        match self {
            Self::IoUring { fd, poll } => {
                let in_flight = poll.get_or_insert_with(|| submit_poll(fd));
                let outcome = in_flight.await;
                *poll = None;
                outcome.map(|_events| ())
            }
            Self::Epoll(fd) => {
                // Readiness is cleared before the FIFO is drained to its end, so that no edge is missed.
                fd.readable().await?.clear_ready();
                Ok(())
            }
        }
    }

    /// Ends the poll in flight, if there is one.
    pub(crate) async fn cancel(&mut self) {
        let Self::IoUring { fd, poll } = self else {
            return;
        };
        let Some(in_flight) = poll.take() else { return };
        let cancel = opcode::AsyncCancel2::new(types::CancelBuilder::fd(raw(fd)).all()).build();
        let cancelled = UnsubmittedOneshot::new(Rc::clone(fd), Completion, cancel)
            .submit()
            .await;
        if let Err(error) = cancelled {
            // The poll has completed meanwhile and is not found.
            tracing::debug!(%error, "no poll to cancel");
        }
        if let Err(error) = in_flight.await {
            tracing::trace!(%error, "poll cancelled");
        }
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::IoUring { fd, .. } => fd.as_fd(),
            Self::Epoll(fd) => fd.as_fd(),
        }
    }
}

fn raw(fd: &OwnedFd) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

fn submit_poll(fd: &Rc<OwnedFd>) -> InFlightOneshot<Rc<OwnedFd>, Completion> {
    let events = u32::from(libc::POLLIN.unsigned_abs());
    let poll = opcode::PollAdd::new(raw(fd), events).build();
    UnsubmittedOneshot::new(Rc::clone(fd), Completion, poll).submit()
}
