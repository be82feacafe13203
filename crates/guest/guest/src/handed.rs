//! Connections of the host that arrive as descriptors, under gVisor, and what the sandbox's first process tells with them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::time::Duration;

use arenite_isolation::container::{CALLS, DIR};
use arenite_isolation::counters::Counters;
use arenite_isolation::keeper::{self, KeeperMessage};
use axum::serve::Listener;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use arenite_guest_runtime::saved;

use crate::severable::{Connections, Severable};

/// Pause after a failure, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// Pauses between attempts to reach a server that has ended: the first one, which doubles, and the longest.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// The socket over which they arrive.
pub(crate) struct HandedConnections {
    socket: AsyncFd<OwnedFd>,
    /// Where the socket leads. None: to the sandbox's first process.
    server: Option<Server>,
    connections: Connections,
    /// What else it has of the host.
    counters: Counters,
}

/// The server, which hands connections over to a guest in a container.
struct Server {
    path: PathBuf,
    proof: String,
}

impl HandedConnections {
    /// Those that the sandbox's first process hands over.
    pub(crate) fn by_keeper(socket: OwnedFd, counters: Counters) -> io::Result<Self> {
        Ok(Self { socket: watched(socket)?, server: None, connections: Connections::default(), counters })
    }

    /// Those that the server hands over, in a container. Waits for the server.
    pub(crate) async fn by_server(proof: String) -> Self {
        let server = Server { path: [DIR, CALLS].iter().collect(), proof };
        Self::with_server(server).await
    }

    async fn with_server(server: Server) -> Self {
        Self {
            socket: server.reach().await,
            server: Some(server),
            connections: Connections::default(),
            counters: Counters::default(),
        }
    }

    async fn next(&mut self) -> io::Result<Severable> {
        loop {
            let received = {
                let mut ready = self.socket.readable().await?;
                ready.try_io(|socket| keeper::next_message(socket.get_ref().as_fd()))
            };
            match (received, &self.server) {
                (Err(_would_block), _) => {}
                (Ok(Ok(KeeperMessage::Connection(connection))), _) => {
                    let stream = StdUnixStream::from(connection);
                    stream.set_nonblocking(true)?;
                    return Ok(self.connections.add(UnixStream::from_std(stream)?));
                }
                // Only the first process saves and restores.
                (Ok(Ok(KeeperMessage::Sever)), None) => {
                    saved::begin();
                    self.connections.sever();
                    self.counters.replace(&mut BTreeMap::new());
                    keeper::answer_severed(self.socket.get_ref().as_fd())?;
                }
                (Ok(Ok(KeeperMessage::Handed(named))), None) => {
                    saved::end();
                    self.counters.replace(&mut named.into_iter().collect());
                    keeper::answer_handed(self.socket.get_ref().as_fd())?;
                }
                // Nobody calls any more, and the sandbox ends with this process.
                (Ok(Ok(KeeperMessage::End)), None) => std::process::exit(0),
                (Ok(Err(error)), None) => return Err(error),
                // The next server waits for it, or this one again: a connection that could not be received is lost.
                (Ok(_), Some(server)) => self.socket = server.reach().await,
            }
        }
    }
}

fn watched(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    #[expect(deprecated, reason = "an OwnedFd keeps its descriptor open, which is what the successor makes callers promise")]
    AsyncFd::new(socket)
}

impl Server {
    /// Connects, however long that takes.
    async fn reach(&self) -> AsyncFd<OwnedFd> {
        let mut pause = FIRST_RETRY;
        loop {
            match self.connect().await {
                Ok(socket) => return socket,
                Err(error) => tracing::debug!(%error, "the server does not answer"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    async fn connect(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let mut stream = UnixStream::connect(&self.path).await?.into_std()?;
        // The proof fits in the socket's buffer.
        stream.write_all(self.proof.as_bytes())?;
        watched(stream.into())
    }
}

impl Listener for HandedConnections {
    type Io = Severable;
    type Addr = ();

    async fn accept(&mut self) -> (Severable, ()) {
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use tokio::io::AsyncReadExt;

    use arenite_isolation::descriptors;

    use super::*;

    /// Accepts the guest, checks its proof, and hands it connections with these texts.
    fn serve(listener: &UnixListener, texts: &[&str]) {
        let (mut guest, _) = listener.accept().unwrap();
        let mut proof = [0; 5];
        guest.read_exact(&mut proof).unwrap();
        assert_eq!(&proof, b"proof");
        for text in texts {
            let (mut ours, theirs) = StdUnixStream::pair().unwrap();
            ours.write_all(text.as_bytes()).unwrap();
            descriptors::send(guest.as_fd(), b"c", &[theirs.as_fd()]).unwrap();
        }
    }

    #[tokio::test]
    async fn the_guest_follows_its_servers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls");
        let server = Server { path: path.clone(), proof: "proof".to_owned() };
        let servers = std::thread::spawn(move || {
            for texts in [&["one", "two"][..], &[], &["three"]] {
                let listener = UnixListener::bind(&path).unwrap();
                serve(&listener, texts);
                // Between two servers, the name is there and nothing listens.
                drop(listener);
                std::thread::sleep(Duration::from_millis(60));
                std::fs::remove_file(&path).unwrap();
            }
        });
        let mut handed = HandedConnections::with_server(server).await;
        for wanted in ["one", "two", "three"] {
            let (mut connection, ()) = handed.accept().await;
            let mut text = String::new();
            connection.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, wanted);
        }
        servers.join().unwrap();
    }

    #[tokio::test]
    async fn the_first_process_learns_that_all_connections_are_closed() {
        let (keeper, guest) = descriptors::packet_pair().unwrap();
        let mut handed = HandedConnections::by_keeper(guest, Counters::default()).unwrap();
        let (mut ours, theirs) = StdUnixStream::pair().unwrap();
        descriptors::send(keeper.as_fd(), b"c", &[theirs.as_fd()]).unwrap();
        drop(theirs);
        let (mut connection, ()) = handed.accept().await;
        descriptors::send(keeper.as_fd(), b"s", &[]).unwrap();
        let (_other, theirs) = StdUnixStream::pair().unwrap();
        descriptors::send(keeper.as_fd(), b"c", &[theirs.as_fd()]).unwrap();
        handed.accept().await;
        assert_eq!(descriptors::receive(keeper.as_fd(), &mut [0]).unwrap().0, 1);
        assert_eq!(ours.read(&mut [0]).unwrap(), 0, "closed");
        assert!(connection.read_u8().await.is_err());
    }
}
