//! Starting, reaping and killing processes.
//!
//! One task owns the spawner's socket and all waiting. A process of the sandbox becomes a child of the guest (PID 1) when its
//! parent dies, so the same task reaps those too.

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arenite_isolation::descriptors;
use arenite_isolation::spawner::{self, Request, SpawnError};
use rustix::net::Shutdown;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

use crate::users::User;

mod arrivals;
mod news;
mod owned;
mod pipes;
mod retained;
mod said;
mod scratch;
mod tree;

pub use arrivals::Arrivals;
pub use news::News;
pub use owned::{Kept, OwnedProcess};
pub use pipes::{dev_null, input_pipe, output_pipe, read_rest};
pub use retained::{Budget, Piece, Retained, incomplete_end, middle_cut};
pub use rustix::process::Signal;
pub use said::{Said, told};
pub use scratch::ScratchDir;
pub use tree::{Members, Moment, has_children, kill_members, members, members_since, send};

/// The variable that marks every process of one command, however it was spawned, until it changes its own environment.
pub const MARKER: &str = "ARENITE_COMMAND";

/// A command to start.
#[derive(Debug)]
pub struct Command<'a> {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: String,
    pub user: &'a User,
    /// Descriptors 0, 1 and 2 of the command.
    pub stdio: [OwnedFd; 3],
    /// Descriptor 0 is a terminal that becomes the controlling one.
    pub controlling_tty: bool,
}

/// Converts a client's seconds to a valid duration: never negative, at most some years.
pub fn seconds(value: f64) -> std::time::Duration {
    const LONGEST: f64 = 1e8;
    let value = if value.is_nan() { LONGEST } else { value };
    std::time::Duration::from_secs_f64(value.clamp(0.0, LONGEST))
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

impl Exit {
    /// The code that a shell would report: 128 + n for signal n.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// A started command. Dropping it does not end the command, which is still reaped.
#[derive(Debug)]
pub struct Child {
    pub pid: i32,
    /// The value of [`MARKER`] in its environment.
    pub marker: String,
    exit: oneshot::Receiver<Exit>,
}

impl Child {
    /// Waits for the command's end. Its descendants may live on.
    pub async fn wait(&mut self) -> Exit {
        // The reaper lives as long as the guest; if it is gone, so is everything else.
        (&mut self.exit).await.unwrap_or(Exit::Signal(9))
    }

    /// How the command ended, if it has. Returns the real exit only once.
    fn ended(&mut self) -> Option<Exit> {
        match self.exit.try_recv() {
            Ok(exit) => Some(exit),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Exit::Signal(9)),
        }
    }
}

struct Pending {
    request: Request,
    marker: String,
    sent: Instant,
    reply: oneshot::Sender<Reply>,
}

/// The outcome of a request. If the channel closes without one, the spawner is gone and may have started the command.
enum Reply {
    Known(Result<(i32, oneshot::Receiver<Exit>), SpawnError>),
    /// The spawner ended before it read the request: the next one may get it.
    Unread,
}

struct Table {
    /// Requests sent to the spawner and not yet answered, in order.
    pending: VecDeque<Pending>,
    waiting: HashMap<i32, oneshot::Sender<Exit>>,
    /// Exits that were reaped before the spawner's reply with that pid was read.
    early: HashMap<i32, Exit>,
    last_reply: Instant,
}

impl Table {
    /// Whether the spawner's reply is overdue.
    fn is_stuck(&self) -> bool {
        self.pending.front().is_some_and(|oldest| oldest.sent.max(self.last_reply).elapsed() >= STUCK)
    }
}

type Socket = Arc<AsyncFd<OwnedFd>>;

/// How long a command waits for a replacement of a killed spawner.
const REPLACEMENT: Duration = Duration::from_secs(10);
/// The most spawners for one command. Each gets it only if the previous one did not read it.
const SPAWNERS: usize = 3;
/// How long a spawner may take for one command. Then it is replaced: it was stopped.
const STUCK: Duration = Duration::from_secs(15);
/// Time between two spawners, so that a process that kills them in a loop does not keep the guest busy.
const PAUSE: Duration = Duration::from_millis(200);

fn non_blocking(socket: OwnedFd) -> std::io::Result<Socket> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    #[expect(deprecated, reason = "an OwnedFd keeps its descriptor open, which is what the successor makes callers promise")]
    Ok(Arc::new(AsyncFd::new(socket)?))
}

/// Starts commands; cheap to clone.
#[derive(Clone)]
pub struct Processes {
    /// The spawner's socket; none while a killed spawner is replaced.
    socket: watch::Receiver<Option<Socket>>,
    table: Arc<Mutex<Table>>,
    /// A request has waited for long.
    overdue: Arc<Notify>,
    next: Arc<AtomicU64>,
    /// Distinguishes the marks of this guest from those of other guests on the same machine.
    origin: u64,
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Processes")
    }
}

impl Processes {
    /// Takes over the spawner's socket and starts reaping. `work_entrances` are the cgroups for replacements of a killed spawner.
    /// Call it inside the runtime, once.
    pub fn start(spawner: OwnedFd, work_entrances: Vec<OwnedFd>) -> std::io::Result<Self> {
        let (sender, socket) = watch::channel(Some(non_blocking(spawner)?));
        let processes = Self {
            socket,
            table: Arc::new(Mutex::new(Table {
                pending: VecDeque::new(),
                waiting: HashMap::new(),
                early: HashMap::new(),
                last_reply: Instant::now(),
            })),
            overdue: Arc::default(),
            next: Arc::new(AtomicU64::new(1)),
            origin: getrandom::u64().map_err(std::io::Error::other)?,
        };
        tokio::spawn(processes.clone().keep_spawner(sender, work_entrances.into()));
        tokio::spawn(processes.clone().reap(signal(SignalKind::child())?));
        Ok(processes)
    }

    /// Starts a command.
    ///
    /// # Errors
    /// The stage that failed with the kernel's error, or that the command is too long for the spawner's message.
    pub async fn spawn(&self, command: Command<'_>) -> Result<Child, SpawnError> {
        self.start_process(command, None).await
    }

    /// Starts a program from an open descriptor, whatever its path. The command's first argument only names it.
    ///
    /// # Errors
    /// As [`Self::spawn`].
    pub async fn spawn_program(&self, command: Command<'_>, program: OwnedFd) -> Result<Child, SpawnError> {
        self.start_process(command, Some(program)).await
    }

    async fn start_process(&self, command: Command<'_>, program: Option<OwnedFd>) -> Result<Child, SpawnError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let marker = format!("{:016x}-{number}", self.origin);
        let env = command.env.iter().map(|(k, v)| format!("{k}={v}")).chain([format!("{MARKER}={marker}")]);
        let request = Request {
            argv: command.argv,
            env: env.collect(),
            cwd: command.cwd,
            uid: command.user.uid,
            gid: command.user.gid,
            groups: command.user.groups.clone(),
            controlling_tty: command.controlling_tty,
        };
        let encoded = spawner::encode(&request)?;
        let given: Vec<_> = command.stdio.iter().chain(&program).map(AsFd::as_fd).collect();
        let gone = || SpawnError::Gone(std::io::ErrorKind::BrokenPipe.into());
        let mut sockets = self.socket.clone();
        let mut ended: Option<Socket> = None;
        for _ in 0..SPAWNERS {
            let is_other = |socket: &Option<Socket>| match (socket, &ended) {
                (Some(socket), Some(ended)) => !Arc::ptr_eq(socket, ended),
                (socket, _) => socket.is_some(),
            };
            let socket = match timeout(REPLACEMENT, sockets.wait_for(is_other)).await {
                Ok(Ok(socket)) => socket.clone().ok_or_else(gone)?,
                Ok(Err(_)) | Err(_) => return Err(gone()),
            };
            let (reply, mut answer) = oneshot::channel();
            let mut pending = Some(Pending { request: request.clone(), marker: marker.clone(), sent: Instant::now(), reply });
            let send = |socket: &OwnedFd| {
                // The queue's order is the order on the socket: both change under one lock.
                let mut table = self.lock();
                descriptors::send(socket.as_fd(), &encoded, &given)?;
                table.pending.extend(pending.take());
                Ok(())
            };
            match socket.async_io(Interest::WRITABLE, send).await {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    ended = Some(socket);
                    continue;
                }
                Err(error) => return Err(SpawnError::Gone(error)),
            }
            let answer = loop {
                match timeout(STUCK, &mut answer).await {
                    Ok(answer) => break answer,
                    Err(_) => self.overdue.notify_one(),
                }
            };
            match answer {
                Ok(Reply::Known(started)) => return started.map(|(pid, exit)| Child { pid, marker, exit }),
                Ok(Reply::Unread) => ended = Some(socket),
                Err(_) => return Err(gone()),
            }
        }
        Err(gone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the spawner's replies, and starts another spawner when the sandbox's root has killed or stopped it.
    async fn keep_spawner(self, sockets: watch::Sender<Option<Socket>>, work_entrances: Arc<[OwnedFd]>) {
        loop {
            let socket = self.socket.borrow().clone();
            let mut last_is_unread = false;
            if let Some(socket) = socket {
                last_is_unread = tokio::select! {
                    end = self.read_replies(&socket) => end == ErrorKind::ConnectionReset,
                    () = self.stuck() => {
                        tracing::warn!("the process that starts commands does not answer");
                        false
                    }
                };
                // If it should resume, it starts nothing any more.
                let _ = rustix::net::shutdown(socket.get_ref(), Shutdown::Both);
            }
            sockets.send_replace(None);
            let mut lost = {
                let mut table = self.lock();
                table.early.clear();
                std::mem::take(&mut table.pending)
            };
            if let Some(unread) = lost.pop_back_if(|_| last_is_unread) {
                // The caller may have left.
                drop(unread.reply.send(Reply::Unread));
            }
            tokio::time::sleep(PAUSE).await;
            end_unknown(lost).await;
            let entrances = work_entrances.clone();
            let started = tokio::task::spawn_blocking(move || spawner::restart(&entrances)).await;
            match started.map_err(std::io::Error::other).flatten().and_then(non_blocking) {
                Ok(socket) => {
                    tracing::warn!("a new process that starts commands was started");
                    sockets.send_replace(Some(socket));
                }
                Err(error) => tracing::error!(%error, "the process that starts commands could not be started again"),
            }
        }
    }

    async fn stuck(&self) {
        loop {
            self.overdue.notified().await;
            if self.lock().is_stuck() {
                return;
            }
        }
    }

    /// Reads replies until the spawner is gone. Returns the socket's error: `ConnectionReset` means that the spawner left data
    /// unread, so at least the last request.
    async fn read_replies(&self, socket: &AsyncFd<OwnedFd>) -> ErrorKind {
        let mut buffer = [0u8; 64];
        loop {
            let length = match socket.async_io(Interest::READABLE, |s| descriptors::receive(s.as_fd(), &mut buffer)).await {
                Ok((0, _)) => return ErrorKind::UnexpectedEof,
                Ok((length, _)) => length,
                Err(error) => return error.kind(),
            };
            let mut table = self.lock();
            table.last_reply = Instant::now();
            let Some(pending) = table.pending.pop_front() else {
                continue;
            };
            let answer = spawner::decode_reply(&buffer[..length], &pending.request).map(|pid| {
                let (sender, receiver) = oneshot::channel();
                match table.early.remove(&pid) {
                    Some(exit) => drop(sender.send(exit)),
                    None => drop(table.waiting.insert(pid, sender)),
                }
                (pid, receiver)
            });
            if table.pending.is_empty() {
                // What is left are orphans, or children that failed before exec.
                table.early.clear();
            }
            drop(table);
            // The caller may have left; the command runs on and is reaped.
            drop(pending.reply.send(Reply::Known(answer)));
        }
    }

    async fn reap(self, mut child_ended: tokio::signal::unix::Signal) {
        loop {
            {
                let mut table = self.lock();
                // Waits for any child: each command leads a process group.
                while let Ok(Some((pid, status))) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
                    let exit = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => Exit::Code(code),
                        (None, Some(signal)) => Exit::Signal(signal),
                        (None, None) => continue,
                    };
                    let pid = pid.as_raw_nonzero().get();
                    match table.waiting.remove(&pid) {
                        Some(waiter) => drop(waiter.send(exit)),
                        None if table.pending.is_empty() => {}
                        None => drop(table.early.insert(pid, exit)),
                    }
                }
            }
            if child_ended.recv().await.is_none() {
                return;
            }
        }
    }
}

/// Kills the commands of requests that a lost spawner did not answer: it may have started them, and they would stay unknown.
async fn end_unknown(lost: VecDeque<Pending>) {
    let markers: Vec<String> = lost.iter().map(|pending| pending.marker.clone()).collect();
    let ending = tokio::task::spawn_blocking(move || {
        for marker in markers {
            kill_members(None, &marker, Signal::KILL);
        }
    });
    // If it fails, it has panicked, and that is in the log. The caller receives the error only now and may try again.
    drop(ending.await);
}
