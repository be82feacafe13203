//! The bytes to and from a guest, observed for what hyper neither limits nor reports.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use arenite_engine::Connection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// 1xx answers that one call may get; a flood of them is a guest that never answers.
const MAX_INFORMATIONAL: u32 = 16;

/// State of a call's bytes; shared with the connection.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Some of the answer was read.
    read: AtomicBool,
    /// The guest did not receive the whole request.
    write_failed: AtomicBool,
    informational: AtomicU32,
}

impl Watch {
    /// Resets the state for a new call.
    pub(super) fn reset(&self) {
        self.read.store(false, Ordering::Relaxed);
        self.write_failed.store(false, Ordering::Relaxed);
        self.informational.store(0, Ordering::Relaxed);
    }

    pub(super) fn note_informational(&self) {
        self.informational.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn flooded(&self) -> bool {
        self.informational.load(Ordering::Relaxed) > MAX_INFORMATIONAL
    }

    pub(super) fn read_something(&self) -> bool {
        self.read.load(Ordering::Relaxed)
    }

    pub(super) fn write_failed(&self) -> bool {
        self.write_failed.load(Ordering::Relaxed)
    }
}

pub(super) struct Wire {
    inner: Box<dyn Connection>,
    watch: Arc<Watch>,
}

impl Wire {
    pub(super) fn new(inner: Box<dyn Connection>, watch: Arc<Watch>) -> Self {
        Self { inner, watch }
    }

    pub(super) fn into_inner(self) -> Box<dyn Connection> {
        self.inner
    }

    fn wrote<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(_)) = &result {
            self.watch.write_failed.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.watch.flooded() {
            return Poll::Ready(Err(io::Error::other("too many informational answers")));
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.watch.read.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.wrote(result)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
