//! A running program: its users, and whether it still serves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::HOST;
use axum::http::{Request, StatusCode};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::program::Program;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::dial;
use arenite_guest_runtime::http::client;
use arenite_guest_runtime::process::{Kept, Said};
use arenite_guest_runtime::saved;

/// The most concurrent requests and WebSockets of one program. Further ones are refused.
pub(super) const MAX_REQUESTS: usize = 256;
/// Time for a program to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Time for a program to answer a health check.
const HEALTH: Duration = Duration::from_secs(10);
/// Time for a program that has broken off a connection to end or to prove that it serves. Then it is killed.
const JUDGEMENT: Duration = Duration::from_secs(20);
/// The pause between health checks.
const PAUSE: Duration = Duration::from_millis(50);
/// Time for a killed program to end.
const END: Duration = Duration::from_secs(10);

/// A started program. When dropped, it ends with all processes that it started.
#[derive(Debug)]
pub(super) struct Running {
    program: Program,
    process: Kept,
    /// The path of its socket.
    socket: String,
    said: Said,
    used: Arc<Used>,
}

/// The number of connections, and when the last one closed.
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

/// A request or WebSocket in progress.
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

    /// Its last output.
    pub(super) fn said(&self) -> String {
        self.said.text()
    }

    /// Reserves a connection. None: too many clients are connected.
    pub(super) fn enter(&self) -> Option<Use> {
        let next = |open: usize| (open < MAX_REQUESTS).then_some(open + 1);
        self.used.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(Use(Arc::clone(&self.used)))
    }

    /// Connects to the program. The error is the reason.
    pub(super) async fn dial(&self, runtime: &Runtime) -> Result<UnixStream, String> {
        let ended = self.process.ended();
        tokio::select! {
            biased;
            () = ended.cancelled() => Err("has ended".to_owned()),
            dialled = connect(runtime, &self.socket) => dialled,
        }
    }

    /// Judges the program after a failed connection: waits until it has ended or has proved that it serves. Kills it if it does
    /// neither. The next connection shows the outcome.
    pub(super) async fn judge(&self, runtime: &Runtime) {
        let ended = self.process.ended();
        let serves = async {
            while !answers(runtime, self.program, &self.socket).await {
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

    /// Ends the program after `idle` without connections.
    pub(super) async fn end_when_unused(&self, idle: Duration) {
        let ended = self.process.ended();
        loop {
            let since =
                if self.used.open.load(Ordering::Relaxed) > 0 { Instant::now() } else { saved::last_use(self.used.last()) };
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

async fn connect(runtime: &Runtime, socket: &str) -> Result<UnixStream, String> {
    match timeout(CONNECT, dial::socket(runtime, socket)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("takes no connection: {error}")),
        Err(_) => Err(format!("takes no connection within {} s", CONNECT.as_secs())),
    }
}

/// Whether a program answers its health check on a socket.
pub(super) async fn answers(runtime: &Runtime, program: Program, socket: &str) -> bool {
    let asked = async {
        let stream = connect(runtime, socket).await.ok()?;
        let request = Request::get(program.health()).header(HOST, "localhost").body(Body::empty()).ok()?;
        client::send(stream, request).await.ok().map(|answer| answer.status())
    };
    matches!(timeout(HEALTH, asked).await, Ok(Some(StatusCode::OK)))
}
