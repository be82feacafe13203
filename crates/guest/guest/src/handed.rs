//! Connections of the host that arrive as descriptors, under gVisor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use arenite_isolation::descriptors;
use axum::serve::Listener;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

/// Pause after a failure, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// The socket over which the sandbox's first process hands them to the guest.
pub(crate) struct HandedConnections(AsyncFd<OwnedFd>);

impl HandedConnections {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        #[expect(deprecated, reason = "an OwnedFd keeps its descriptor open, which is what the successor makes callers promise")]
        Ok(Self(AsyncFd::new(socket)?))
    }

    async fn next(&self) -> io::Result<UnixStream> {
        loop {
            let mut ready = self.0.readable().await?;
            let received = ready.try_io(|socket| descriptors::receive(socket.get_ref().as_fd(), &mut [0; 16]));
            match received {
                // Nobody calls any more, and the sandbox ends with this process.
                Ok(Ok((0, _))) => std::process::exit(0),
                Ok(Ok((_, given))) => {
                    if let Some(connection) = given.into_iter().next() {
                        let stream = StdUnixStream::from(connection);
                        stream.set_nonblocking(true)?;
                        return UnixStream::from_std(stream);
                    }
                }
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

impl Listener for HandedConnections {
    type Io = UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (UnixStream, ()) {
        loop {
            match self.next().await {
                Ok(stream) => return (stream, ()),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}
