//! A client's connection, which is reset unless it is ended on purpose.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_linger, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// When a silent peer is asked whether it is there, and how often until the connection ends.
const KEEPALIVE: Duration = Duration::from_secs(60);
const PROBES: u32 = 5;

/// A connection that ends with a reset when it is dropped. After an orderly shutdown, it ends as usual.
///
/// So refused clients fail at once, and one that is cut off does not take the end for the end of the data.
#[derive(Debug)]
pub(crate) struct ClientStream(TcpStream);

impl ClientStream {
    pub(crate) fn new(stream: TcpStream) -> Self {
        set_options(&stream);
        reset_on_close(&stream, true);
        Self(stream)
    }

    /// From now on, what was written is still sent after the end.
    pub(crate) fn end_orderly(&self) {
        reset_on_close(&self.0, false);
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.0
    }

    pub(crate) fn stream_mut(&mut self) -> &mut TcpStream {
        &mut self.0
    }
}

/// Small messages go out at once, and peers that are gone are noticed.
pub(crate) fn set_options(stream: &TcpStream) {
    let set = || {
        set_tcp_nodelay(stream, true)?;
        set_socket_keepalive(stream, true)?;
        set_tcp_keepidle(stream, KEEPALIVE)?;
        set_tcp_keepintvl(stream, KEEPALIVE)?;
        set_tcp_keepcnt(stream, PROBES)
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "a connection keeps its options");
    }
}

pub(crate) fn reset_on_close(stream: &TcpStream, reset: bool) {
    if let Err(error) = set_socket_linger(stream, reset.then_some(Duration::ZERO)) {
        tracing::debug!(%error, "a connection keeps its way to end");
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end_orderly();
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
