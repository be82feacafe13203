//! Connections to a guest in gVisor's kernel, which can't accept them from a socket of the host.
//!
//! ```text
//!  guest ──connects to /.arenite/calls, sends its proof──► server
//!        ◄──one end of a connection for each dial───────── keeps the other end
//! ```
//!
//! The guest connects again when the server has ended, so a new server reaches it with the proof from its record. The socket is
//! in a directory that only the sandbox's container mounts. All processes of the sandbox can connect to it, and only its root
//! can know the proof.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::time::Duration;

use arenite_isolation::container::PROOF_BYTES;
use arenite_isolation::descriptors;
use subtle::ConstantTimeEq;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Maximum number of connections that wait for their turn.
const WAITING: i32 = 8;
/// Time for a connection to send its proof. The guest sends it at once.
const PROOF_LIMIT: Duration = Duration::from_secs(1);
/// Pause after each connection, and when no descriptor is left. A guest connects once for each server.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for the guest to connect. It tries at least once a second.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The server's side of one sandbox. Its end closes the socket.
#[derive(Debug)]
pub(super) struct GuestCalls {
    /// The guest's newest connection, which carries descriptors to it.
    guest: watch::Sender<Option<UnixStream>>,
    accepting: JoinHandle<()>,
}

/// A proof for a new sandbox.
pub(super) fn new_proof() -> io::Result<String> {
    let mut random = [0; PROOF_BYTES / 2];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl GuestCalls {
    /// Binds the socket at `path`, which must not exist, and waits for the guest in a task. Call it in a runtime.
    pub(super) fn listen(path: &Path, proof: String) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        // The kernel queues thousands by default.
        rustix::net::listen(&listener, WAITING)?;
        // Where Docker maps ids, the container's root is another user.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let (guest, _) = watch::channel(None);
        let connected = guest.clone();
        let accepting = tokio::spawn(async move {
            loop {
                match next(&listener, &proof).await {
                    Ok(stream) => drop(connected.send_replace(Some(stream))),
                    Err(error) => tracing::debug!(%error, "a sandbox connected without its proof"),
                }
                sleep(PAUSE).await;
            }
        });
        Ok(Self { guest, accepting })
    }

    /// Connects to the guest.
    ///
    /// # Errors
    /// `TimedOut`: it did not connect in time. `WouldBlock`: it takes no connections, and too many wait for it.
    pub(super) async fn connect(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let handed = timeout(CONNECT_LIMIT, self.hand_over(&theirs)).await;
        match handed {
            Ok(handed) => handed?,
            Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the guest did not connect in time")),
        }
        UnixStream::from_std(ours)
    }

    /// Waits until the guest has connected.
    pub(super) async fn is_connected(&self, limit: Duration) -> bool {
        timeout(limit, self.guest.subscribe().wait_for(Option::is_some)).await.is_ok_and(|waited| waited.is_ok())
    }

    async fn hand_over(&self, theirs: &StdUnixStream) -> io::Result<()> {
        let mut connected = self.guest.subscribe();
        loop {
            let gone = io::ErrorKind::NotConnected;
            let sent = {
                let guest = connected.wait_for(Option::is_some).await.map_err(|_| gone)?;
                let guest = guest.as_ref().ok_or(gone)?;
                descriptors::send(guest.as_fd(), b"c", &[theirs.as_fd()])
            };
            match sent {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    // It connects again.
                    connected.changed().await.map_err(|_| gone)?;
                }
                sent => return sent,
            }
        }
    }
}

impl Drop for GuestCalls {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The next connection that proves to be the guest's.
async fn next(listener: &UnixListener, proof: &str) -> io::Result<UnixStream> {
    let (mut stream, _) = listener.accept().await?;
    let mut given = [0; PROOF_BYTES];
    timeout(PROOF_LIMIT, stream.read_exact(&mut given)).await??;
    // How long it takes says nothing about the proof.
    if given.ct_eq(proof.as_bytes()).into() { Ok(stream) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn guest(path: &Path, proof: &str) -> UnixStream {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(proof.as_bytes()).await.unwrap();
        stream
    }

    /// The next connection that a guest gets.
    async fn given(guest: &UnixStream) -> io::Result<UnixStream> {
        loop {
            guest.readable().await?;
            match descriptors::receive(guest.as_fd(), &mut [0; 16]) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, mut given)) => {
                    let stream = StdUnixStream::from(given.remove(0));
                    stream.set_nonblocking(true)?;
                    return UnixStream::from_std(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn pass(calls: &GuestCalls, guest: &UnixStream, text: &[u8]) {
        let mut ours = calls.connect().await.unwrap();
        ours.write_all(text).await.unwrap();
        let mut theirs = given(guest).await.unwrap();
        let mut got = vec![0; text.len()];
        theirs.read_exact(&mut got).await.unwrap();
        assert_eq!(got, text);
    }

    #[tokio::test]
    async fn dials_wait_for_the_guest_and_follow_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls");
        let proof = new_proof().unwrap();
        let calls = GuestCalls::listen(&path, proof.clone()).unwrap();
        assert!(!calls.is_connected(Duration::from_millis(10)).await);
        let waiting = calls.connect();
        let (waiting, first) = tokio::join!(waiting, guest(&path, &proof));
        waiting.unwrap();
        given(&first).await.unwrap();
        pass(&calls, &first, b"one").await;
        pass(&calls, &first, b"two").await;
        drop(first);
        let (waiting, second) = tokio::join!(calls.connect(), guest(&path, &proof));
        waiting.unwrap();
        given(&second).await.unwrap();
        pass(&calls, &second, b"three").await;
        drop(calls);
        assert!(given(&second).await.is_err(), "the end of the server is the end of the connection");
    }

    #[tokio::test]
    async fn without_the_proof_nobody_replaces_the_guest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls");
        let proof = new_proof().unwrap();
        let calls = GuestCalls::listen(&path, proof.clone()).unwrap();
        let real = guest(&path, &proof).await;
        pass(&calls, &real, b"real").await;
        let other = guest(&path, &"0".repeat(PROOF_BYTES)).await;
        assert!(given(&other).await.is_err(), "closed");
        let short = guest(&path, &proof[1..]).await;
        assert!(given(&short).await.is_err(), "closed in time");
        pass(&calls, &real, b"still").await;
    }

    #[tokio::test]
    async fn a_guest_that_takes_nothing_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls");
        let proof = new_proof().unwrap();
        let calls = GuestCalls::listen(&path, proof.clone()).unwrap();
        let _guest = guest(&path, &proof).await;
        let mut kept = Vec::new();
        let error = loop {
            match calls.connect().await {
                Ok(connection) => kept.push(connection),
                Err(error) => break error,
            }
            assert!(kept.len() < 2000);
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    }
}
