//! A connection with a time limit for its peer's reads.
//!
//! A client that asks for a long list and then reads nothing would hold the list in memory without end. So a write
//! without progress for [`limits::HTTP_WRITE_WAIT`] breaks the connection. An interactive session lifts the limit,
//! because few bytes are under way there.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::limits;

/// The stream `io` with a time limit for its writes.
#[derive(Debug)]
pub(super) struct WriteTimeout<T> {
    io: T,
    handle: WriteTimeoutHandle,
    /// The timer of a waiting write.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// The handle that lifts the time limit of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteTimeoutHandle {
    is_lifted: Arc<AtomicBool>,
}

impl WriteTimeoutHandle {
    /// Lifts the limit from now on.
    pub(super) fn lift(&self) {
        self.is_lifted.store(true, Ordering::Relaxed);
    }
}

impl<T> WriteTimeout<T> {
    pub(super) fn new(io: T) -> (Self, WriteTimeoutHandle) {
        let handle = WriteTimeoutHandle::default();
        let timed = Self {
            io,
            handle: handle.clone(),
            deadline: None,
        };
        (timed, handle)
    }

    fn bounded<R>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if written.is_ready() || self.handle.is_lifted.load(Ordering::Relaxed) {
            self.deadline = None;
            return written;
        }
        let wait = limits::HTTP_WRITE_WAIT;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the client read nothing for {wait:?}"),
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeout<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.io).poll_shutdown(context);
        self.bounded(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Time is paused: the minutes pass as soon as all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_breaks_the_connection() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let (mut timed, _handle) = WriteTimeout::new(ours);

        let error = timed.write_all(&[0; 64]).await.unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_may_stand_still() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let (mut timed, handle) = WriteTimeout::new(ours);
        handle.lift();
        let reading = tokio::spawn(async move {
            tokio::time::sleep(limits::HTTP_WRITE_WAIT * 2).await;
            let mut all = [0; 64];
            theirs.read_exact(&mut all).await.unwrap();
        });

        timed.write_all(&[0; 64]).await.unwrap();

        reading.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_that_goes_on_is_served() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let (mut timed, _handle) = WriteTimeout::new(ours);
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            let mut buffer = [0; 16];
            while all.len() < 64 {
                tokio::time::sleep(limits::HTTP_WRITE_WAIT / 2).await;
                let count = theirs.read(&mut buffer).await.unwrap();
                all.extend_from_slice(&buffer[..count]);
            }
            all.len()
        });

        timed.write_all(&[0; 64]).await.unwrap();

        assert_eq!(reading.await.unwrap(), 64);
    }
}
