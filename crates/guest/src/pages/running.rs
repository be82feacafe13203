//! A program that serves, who uses it, and whether it still does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::HOST;
use axum::http::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::program::Program;
use crate::process::{Kept, Said};
use crate::{Guest, dial};

/// Requests and WebSockets that pass to one program at a time; one more is refused.
pub(super) const MAX_REQUESTS: usize = 256;
/// For a program to take a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// For a program to answer when it is asked whether it lives.
const HEALTH: Duration = Duration::from_secs(10);
/// For a program that has broken a connection off: to end, or to show that it serves. Then it is killed.
const JUDGEMENT: Duration = Duration::from_secs(20);
/// Between two such questions.
const PAUSE: Duration = Duration::from_millis(50);
/// For a killed program to be gone.
const END: Duration = Duration::from_secs(10);

/// A started program. Dropped, it ends with all that it started.
#[derive(Debug)]
pub(super) struct Running {
    program: Program,
    process: Kept,
    /// The file of its socket.
    socket: String,
    said: Said,
    used: Arc<Used>,
}

/// Who is connected, and since when nobody is.
#[derive(Debug)]
struct Used {
    open: AtomicUsize,
    last: Mutex<Instant>,
}

impl Used {
    fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// One request or WebSocket that is under way.
#[derive(Debug)]
pub(super) struct Use(Arc<Used>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.touch();
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Running {
    pub(super) fn new(program: Program, process: Kept, socket: String, said: Said) -> Self {
        let used = Used { open: AtomicUsize::new(0), last: Mutex::new(Instant::now()) };
        Self { program, process, socket, said, used: Arc::new(used) }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// What it wrote last.
    pub(super) fn said(&self) -> String {
        self.said.text()
    }

    /// None: too many are connected.
    pub(super) fn enter(&self) -> Option<Use> {
        let next = |open: usize| (open < MAX_REQUESTS).then_some(open + 1);
        self.used.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(Use(Arc::clone(&self.used)))
    }

    /// A connection to it; else the reason.
    pub(super) async fn dial(&self, guest: &Guest) -> Result<UnixStream, String> {
        let ended = self.process.ended();
        tokio::select! {
            biased;
            () = ended.cancelled() => Err("has ended".to_owned()),
            dialled = connect(guest, &self.socket) => dialled,
        }
    }

    /// After a connection that failed: waits until it has ended, or has shown that it serves. One that does neither is
    /// killed. Which it was, the next connection shows.
    pub(super) async fn judge(&self, guest: &Guest) {
        let ended = self.process.ended();
        let serves = async {
            while !answers(guest, self.program, &self.socket).await {
                sleep(PAUSE).await;
            }
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => {}
            serves = timeout(JUDGEMENT, serves) => if serves.is_err() {
                self.process.kill();
                drop(timeout(END, ended.cancelled()).await);
            },
        }
    }

    /// Ends it when nobody was connected for so long.
    pub(super) async fn end_when_unused(&self, idle: Duration) {
        let ended = self.process.ended();
        loop {
            let since = if self.used.open.load(Ordering::Relaxed) > 0 { Instant::now() } else { self.used.last() };
            if since.elapsed() >= idle {
                self.process.kill();
                return;
            }
            tokio::select! {
                () = sleep_until(since + idle) => {}
                () = ended.cancelled() => return,
            }
        }
    }
}

async fn connect(guest: &Guest, socket: &str) -> Result<UnixStream, String> {
    match timeout(CONNECT, dial::socket(guest, socket)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("takes no connection: {error}")),
        Err(_) => Err(format!("takes no connection within {} s", CONNECT.as_secs())),
    }
}

/// Whether a program answers on a socket, and says that it is well.
pub(super) async fn answers(guest: &Guest, program: Program, socket: &str) -> bool {
    let asked = async {
        let stream = connect(guest, socket).await.ok()?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        let connection = tokio::spawn(connection);
        let request = Request::get(program.health()).header(HOST, "localhost").body(Body::empty()).ok()?;
        let status = sender.send_request(request).await.ok().map(|answer| answer.status());
        connection.abort();
        status
    };
    matches!(timeout(HEALTH, asked).await, Ok(Some(StatusCode::OK)))
}
