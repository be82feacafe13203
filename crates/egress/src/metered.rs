//! Streams that count their bytes and end when nothing moves.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::events::Traffic;

/// The bytes of a connection and the time of the last ones.
#[derive(Debug)]
pub(crate) struct Meter {
    start: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    /// In milliseconds since `start`.
    last: AtomicU64,
}

impl Meter {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), sent: AtomicU64::new(0), received: AtomicU64::new(0), last: AtomicU64::new(0) })
    }

    pub(crate) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.touch();
    }

    pub(crate) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.touch();
    }

    fn touch(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }

    /// Ends after nothing moved for this time.
    pub(crate) async fn idle(&self, limit: Duration) {
        let from = Instant::now();
        loop {
            let until = self.last().max(from) + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic {
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            duration: self.start.elapsed(),
        }
    }
}

/// A client's stream with the bytes that were read of it before. What is read counts as sent by the sandbox. Reads fail when
/// nothing moves for the limit.
#[derive(Debug)]
pub(crate) struct Metered<IO> {
    inner: IO,
    read_before: Vec<u8>,
    position: usize,
    meter: Arc<Meter>,
    limit: Duration,
    alarm: Pin<Box<Sleep>>,
}

impl<IO> Metered<IO> {
    pub(crate) fn new(inner: IO, read_before: Vec<u8>, meter: Arc<Meter>, limit: Duration) -> Self {
        Self { inner, read_before, position: 0, meter, limit, alarm: Box::pin(tokio::time::sleep(limit)) }
    }

    fn is_idle(&mut self, context: &mut Context<'_>) -> bool {
        while self.alarm.as_mut().poll(context).is_ready() {
            let until = self.meter.last() + self.limit;
            if until <= Instant::now() {
                return true;
            }
            self.alarm.as_mut().reset(until);
        }
        false
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Metered<IO> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = &this.read_before[this.position..];
        if !before.is_empty() {
            let taken = before.len().min(buffer.remaining());
            buffer.put_slice(&before[..taken]);
            this.position += taken;
            this.meter.add_sent(taken);
            if this.position == this.read_before.len() {
                (this.read_before, this.position) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        let filled = buffer.filled().len();
        match Pin::new(&mut this.inner).poll_read(context, buffer) {
            Poll::Ready(result) => {
                this.meter.add_sent(buffer.filled().len() - filled);
                Poll::Ready(result)
            }
            Poll::Pending if this.is_idle(context) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Metered<IO> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = &result {
            self.meter.add_received(*written);
        }
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        if let Poll::Ready(Ok(written)) = &result {
            self.meter.add_received(*written);
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_nothing_moves() {
        let (mut near, far) = tokio::io::duplex(64);
        let meter = Meter::new();
        let mut far = Metered::new(far, b"ab".to_vec(), meter.clone(), Duration::from_secs(10));
        let mut buffer = [0; 2];
        far.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"ab");
        tokio::time::sleep(Duration::from_secs(9)).await;
        far.write_all(b"xyz").await.unwrap();
        let start = Instant::now();
        let (read, ()) = tokio::join!(far.read(&mut buffer), async {
            tokio::time::sleep(Duration::from_secs(8)).await;
            near.write_all(b"c").await.unwrap();
        });
        assert_eq!((read.unwrap(), start.elapsed().as_secs()), (1, 8));
        let error = far.read(&mut buffer).await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, 18));
        let Traffic { bytes_sent, bytes_received, .. } = meter.traffic();
        assert_eq!((bytes_sent, bytes_received), (3, 3));
    }
}
