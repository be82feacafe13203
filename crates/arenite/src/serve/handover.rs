//! Replaces a server on the same data directory, without refusing a connection.
//!
//! ```text
//!  new                                     old
//!  connects to data_dir/handover.sock ───► sends its listening sockets, and continues to serve
//!  binds what it lacks, sends one byte ──► stops gracefully; its connections end, its sandboxes stay
//!  waits for the directory's lock ◄─────── has ended
//!  starts, accepts what waited meanwhile
//! ```

use std::fs;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arenite_engine::namespace::ServerLock;
use arenite_isolation::descriptors;
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;

use crate::failure::{Attempt, Failure};

/// Timeout for the other side's next message.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time for the old server to end: requests in progress have ten seconds.
const END_LIMIT: Duration = Duration::from_secs(60);
const GREETING: &[u8] = b"arenite listeners 1";
const GO: u8 = b'g';

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("handover.sock")
}

/// The server to replace.
pub(super) struct Predecessor {
    stream: UnixStream,
}

/// Requests the listening sockets from the server of a data directory. None if there is no server.
pub(super) fn ask(data_dir: &Path) -> Result<Option<(Predecessor, Vec<TcpListener>)>, Failure> {
    let what = || "the other server did not hand its sockets over".to_owned();
    let stream = match UnixStream::connect(path(data_dir)) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => return Ok(None),
        Err(error) => return Err(error).attempt(what),
    };
    stream.set_read_timeout(Some(ANSWER_LIMIT)).attempt(what)?;
    let mut greeting = [0; 64];
    let (length, sockets) = descriptors::receive(stream.as_fd(), &mut greeting).attempt(what)?;
    if greeting.get(..length) != Some(GREETING) {
        return Err(Failure::new(format!("{}: it answered in a way that this version does not know", what())));
    }
    Ok(Some((Predecessor { stream }, sockets.into_iter().map(TcpListener::from).collect())))
}

impl Predecessor {
    /// Stops it, and returns its lock when it has ended.
    pub(super) async fn replace(mut self, data_dir: &Path) -> Result<ServerLock, Failure> {
        self.stream.write_all(&[GO]).attempt(|| "the other server could not be told to stop".into())?;
        let data_dir = data_dir.to_owned();
        let ended = tokio::task::spawn_blocking(move || ServerLock::wait(&data_dir));
        match tokio::time::timeout(END_LIMIT, ended).await {
            Ok(Ok(lock)) => lock.map_err(|error| Failure::new(error.to_string()).maybe_hint(error.hint())),
            Ok(Err(error)) => Err(Failure::new(format!("waiting for the other server was cut off: {error}"))),
            Err(_) => Err(Failure::new(format!("the other server did not end within {END_LIMIT:?}"))),
        }
    }
}

/// Waits for a successor.
pub(super) struct Handover {
    socket: UnixListener,
    path: PathBuf,
    /// Copies of the server's own sockets, which must not outlive them: a socket without an acceptor still takes connections.
    listeners: Vec<TcpListener>,
}

impl Handover {
    /// Offers the sockets. Call it with the data directory's lock held.
    pub(super) fn offer(data_dir: &Path, listeners: &[TcpListener]) -> io::Result<Self> {
        let path = path(data_dir);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let listeners = listeners.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { socket, path, listeners })
    }

    /// Returns when another server has the listening sockets and is ready to serve.
    pub(super) async fn wanted(&self) {
        loop {
            match self.next().await {
                Ok(true) => return,
                Ok(false) => tracing::warn!("a server asked for the listening sockets and went away"),
                Err(error) => {
                    tracing::warn!(%error, "the listening sockets could not be handed over");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn next(&self) -> io::Result<bool> {
        let (mut stream, _) = self.socket.accept().await?;
        if stream.peer_cred()?.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let sockets: Vec<_> = self.listeners.iter().map(|listener| listener.as_fd()).collect();
        descriptors::send(stream.as_fd(), GREETING, &sockets)?;
        match tokio::time::timeout(ANSWER_LIMIT, stream.read_u8()).await {
            Ok(Ok(byte)) => Ok(byte == GO),
            _ => Ok(false),
        }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
