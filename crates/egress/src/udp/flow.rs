//! One flow: what one socket of a sandbox and one server send to each other.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{FlowKey, LARGEST};
use crate::metered::Meter;

/// A flow ends after this time without a datagram: once the server has answered, and before.
const IDLE: Duration = Duration::from_secs(120);
const UNANSWERED: Duration = Duration::from_secs(30);
/// A flow that was used within this time does not make space for others.
pub(super) const IN_USE: Duration = Duration::from_secs(1);
/// Datagrams of one side before the other side gets its turn.
const TURN: usize = 32;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; LARGEST]);
}

/// Both sockets are connected. What one can't send at once is lost, as anywhere on the way.
pub(super) struct Flow {
    pub(super) key: FlowKey,
    /// To the sandbox, from the server's address.
    pub(super) client: UdpSocket,
    pub(super) server: UdpSocket,
    pub(super) meter: Arc<Meter>,
    pub(super) activity: Arc<Activity>,
}

/// When a flow was used last, and whether it has to make space for others.
#[derive(Debug)]
pub(super) struct Activity {
    last: Mutex<Instant>,
    pub(super) evicted: Notify,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { last: Mutex::new(Instant::now()), evicted: Notify::new() })
    }

    pub(super) fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) -> Instant {
        let now = Instant::now();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = now;
        now
    }
}

/// What happened to the datagrams of a turn.
#[derive(Debug, PartialEq, Eq)]
enum Moved {
    Some,
    /// The receiver's host says that nothing has the port.
    NoListener,
}

impl Flow {
    /// Ends when nothing was sent for a while, or when the sandbox's socket is gone. `early` has what came before the flow was
    /// open; `no_listener` is called when the server's host says so.
    pub(super) async fn run(&self, mut early: mpsc::Receiver<Vec<u8>>, no_listener: impl Fn()) {
        // Until the runtime knows that they are, it sends nothing at once.
        if self.server.writable().await.is_err() || self.client.writable().await.is_err() {
            return;
        }
        let mut is_answered = false;
        let mut last = Instant::now();
        loop {
            let limit = if is_answered { IDLE } else { UNANSWERED };
            tokio::select! {
                Some(datagram) = early.recv() => {
                    self.meter.add_sent(datagram.len());
                    send(&self.server, &datagram);
                }
                is_ready = ready(&self.client) => {
                    if !is_ready || self.pass(&self.client, &self.server, Meter::add_sent) == Moved::NoListener {
                        return;
                    }
                }
                is_ready = ready(&self.server) => {
                    if !is_ready {
                        return;
                    }
                    match self.pass(&self.server, &self.client, Meter::add_received) {
                        Moved::Some => is_answered = true,
                        Moved::NoListener => no_listener(),
                    }
                }
                () = self.activity.evicted.notified() => return,
                () = tokio::time::sleep_until(last + limit) => {
                    tracing::trace!(key = ?self.key, "a flow ended");
                    return;
                }
            }
            last = self.activity.touch();
        }
    }

    fn pass(&self, from: &UdpSocket, to: &UdpSocket, count: fn(&Meter, usize)) -> Moved {
        if take_error(from).is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return Moved::NoListener;
        }
        BUFFER.with_borrow_mut(|buffer| {
            for _ in 0..TURN {
                match from.try_recv(buffer) {
                    Ok(length) => {
                        count(&self.meter, length);
                        send(to, &buffer[..length]);
                    }
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Moved::NoListener,
                    Err(_) => break,
                }
            }
            Moved::Some
        })
    }
}

/// Waits for datagrams or an error.
async fn ready(socket: &UdpSocket) -> bool {
    socket.ready(Interest::READABLE | Interest::ERROR).await.is_ok()
}

/// The error of the socket, so that it is not that of the next datagram.
fn take_error(socket: &UdpSocket) -> Option<io::Error> {
    let mut found = None;
    // `WouldBlock` says that there is no other one.
    let _ = socket.try_io(Interest::ERROR, || {
        found = socket.take_error()?;
        Err::<(), _>(io::ErrorKind::WouldBlock.into())
    });
    found
}

fn send(socket: &UdpSocket, datagram: &[u8]) {
    let sent = match socket.try_send(datagram) {
        // An answer to an earlier one.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => socket.try_send(datagram),
        other => other,
    };
    if let Err(error) = sent {
        tracing::trace!(%error, "a datagram was lost");
    }
}
