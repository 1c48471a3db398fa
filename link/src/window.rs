//! Limits the data that is in flight on a stream and not consumed yet.
//!
//! A stream with a stalled reader would fill the window of its whole connection. Streams that must avoid this use a
//! window of their own. The reader acknowledges the bytes that it consumed, and the sender waits for room here.

use tokio::sync::Semaphore;

/// A window of a fixed number of bytes in flight.
#[derive(Debug)]
pub struct Window {
    room: Semaphore,
    bytes: u32,
}

impl Window {
    /// Creates a window of `bytes`, all of it free.
    #[must_use]
    pub fn new(bytes: u32) -> Self {
        Self {
            room: Semaphore::new(bytes as usize),
            bytes,
        }
    }

    /// Waits until `bytes` fit into the window. Data larger than the window fits when no other data is in flight.
    pub async fn take(&self, bytes: u64) {
        // The semaphore is never closed, so this always succeeds.
        if let Ok(room) = self.room.acquire_many(self.clamped(bytes)).await {
            room.forget();
        }
    }

    /// Reserves room for `bytes` if there is enough.
    #[must_use]
    pub fn try_take(&self, bytes: u64) -> bool {
        let room = self.room.try_acquire_many(self.clamped(bytes));
        room.is_ok_and(|room| {
            room.forget();
            true
        })
    }

    /// Frees the room of `bytes` that the reader consumed. A number above the room in use frees all of it.
    pub fn give(&self, bytes: u64) {
        let in_use = (self.bytes as usize).saturating_sub(self.room.available_permits());
        self.room
            .add_permits((self.clamped(bytes) as usize).min(in_use));
    }

    fn clamped(&self, bytes: u64) -> u32 {
        u32::try_from(bytes).map_or(self.bytes, |bytes| bytes.min(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn released_bytes_make_room() {
        let window = Window::new(10);
        window.take(7).await;
        let mut second = std::pin::pin!(window.take(4));
        assert!(waits(second.as_mut()).await);

        window.give(7);

        second.await;
    }

    #[tokio::test]
    async fn more_than_there_is_is_all_of_it() {
        let window = Window::new(10);
        window.take(1_000).await;

        window.give(u64::MAX);
        window.give(5);

        assert_eq!(window.room.available_permits(), 10);
    }

    /// Whether `future` is pending.
    async fn waits(mut future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(future.as_mut().poll(context).is_pending())
        })
        .await
    }
}
