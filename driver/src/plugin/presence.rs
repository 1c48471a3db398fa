//! Detects whether a host is connected to a driver.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

use crate::task_driver::TaskDriver;

/// Counts the connections of a served driver. Notifies the driver when the first connection begins and when the last
/// one ends.
#[derive(Debug)]
pub(super) struct HostConnections {
    driver: Arc<dyn TaskDriver>,
    /// Locked during the notification, so that the driver receives the notifications in order.
    connected: Mutex<usize>,
}

impl HostConnections {
    /// Starts without a connection.
    pub(super) fn new(driver: Arc<dyn TaskDriver>) -> Arc<Self> {
        driver.host_present(false);
        Arc::new(Self {
            driver,
            connected: Mutex::new(0),
        })
    }

    /// Counts a connection until the returned stream is dropped.
    pub(super) fn add_connection(self: &Arc<Self>, stream: UnixStream) -> HostStream {
        let mut connected = self
            .connected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *connected += 1;
        if *connected == 1 {
            self.driver.host_present(true);
        }
        HostStream {
            stream,
            connections: Arc::clone(self),
        }
    }

    fn remove_connection(&self) {
        let mut connected = self
            .connected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *connected -= 1;
        if *connected == 0 {
            self.driver.host_present(false);
        }
    }
}

/// A counted connection.
#[derive(Debug)]
pub(super) struct HostStream {
    stream: UnixStream,
    connections: Arc<HostConnections>,
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.connections.remove_connection();
    }
}

impl Connected for HostStream {
    type ConnectInfo = <UnixStream as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for HostStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for HostStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
