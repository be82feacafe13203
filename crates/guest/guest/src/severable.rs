//! Connections of the host that can be closed at any moment, whatever waits for them.
//!
//! Under gVisor, a connection of the host can't be saved with the guest's memory: the guest closes all of them before a save. A
//! task that has one sees a reset, and ends like after any broken connection.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// A connection.
#[derive(Debug)]
pub(crate) struct Severable(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// None: it was severed.
    stream: Option<UnixStream>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// All connections that exist.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<Weak<Mutex<Inner>>>);

fn locked(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// Adds a connection.
    pub(crate) fn add(&mut self, stream: UnixStream) -> Severable {
        self.0.retain(|connection| connection.strong_count() > 0);
        let inner = Arc::new(Mutex::new(Inner { stream: Some(stream), reader: None, writer: None }));
        self.0.push(Arc::downgrade(&inner));
        Severable(inner)
    }

    /// Closes all connections.
    pub(crate) fn sever(&mut self) {
        for connection in self.0.drain(..).filter_map(|connection| connection.upgrade()) {
            let wakers = {
                let mut inner = locked(&connection);
                inner.stream = None;
                [inner.reader.take(), inner.writer.take()]
            };
            // A closed descriptor wakes nobody.
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }
}

impl Inner {
    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        waker: impl FnOnce(&mut Self) -> &mut Option<Waker>,
        poll: impl FnOnce(Pin<&mut UnixStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())) };
        let polled = poll(Pin::new(stream), context);
        if polled.is_pending() {
            let waker = waker(self);
            if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
        }
        polled
    }
}

impl AsyncRead for Severable {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        locked(&self.0).poll(context, |inner| &mut inner.reader, |stream, context| stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Severable {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        locked(&self.0).poll(context, |inner| &mut inner.writer, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = |stream: Pin<&mut UnixStream>, context: &mut Context<'_>| stream.poll_write_vectored(context, slices);
        locked(&self.0).poll(context, |inner| &mut inner.writer, write)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        locked(&self.0).poll(context, |inner| &mut inner.writer, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        locked(&self.0).poll(context, |inner| &mut inner.writer, |stream, context| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_severed_connection_is_closed_at_once_and_wakes_who_waits() {
        let mut connections = Connections::default();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = connections.add(ours);
        theirs.write_all(b"one").await.unwrap();
        let mut text = [0; 3];
        connection.read_exact(&mut text).await.unwrap();
        connection.write_all(&text).await.unwrap();
        let waiting = tokio::spawn(async move { connection.read_u8().await });
        tokio::task::yield_now().await;
        connections.sever();
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"one");
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
