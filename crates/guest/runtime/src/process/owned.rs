//! A process that does not outlive its handle.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Child, Exit, ScratchDir, Signal, kill_members};

/// How long a killed process may take to end.
const END: Duration = Duration::from_secs(5);

/// A process with its own directory. When dropped, it is killed with all processes that it started.
#[derive(Debug)]
pub struct OwnedProcess {
    child: Child,
    exit: Option<Exit>,
    is_killed: bool,
    _dir: ScratchDir,
}

impl OwnedProcess {
    pub fn new(child: Child, dir: ScratchDir) -> Self {
        Self { child, exit: None, is_killed: false, _dir: dir }
    }

    pub fn pid(&self) -> i32 {
        self.child.pid
    }

    /// Waits for its end. May be repeated, and is cancel-safe.
    pub async fn wait(&mut self) -> Exit {
        match self.exit {
            Some(exit) => exit,
            None => *self.exit.insert(self.child.wait().await),
        }
    }

    /// Signals the process and the programs that it waits for, as ^C on a terminal would.
    pub fn signal_group(&self, signal: Signal) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.pid).filter(|_| self.exit.is_none()) {
            // It may be ending; then it does not need the signal.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    /// Whether it is known to have ended.
    pub fn has_ended(&mut self) -> bool {
        self.exit = self.exit.or_else(|| self.child.ended());
        self.exit.is_some()
    }

    fn kill(&mut self) -> Option<JoinHandle<bool>> {
        if std::mem::replace(&mut self.is_killed, true) {
            return None;
        }
        let leader = self.exit.is_none().then_some(self.child.pid);
        let marker = self.child.marker.clone();
        Some(tokio::task::spawn_blocking(move || kill_members(leader, &marker, Signal::KILL)))
    }

    /// Kills it with all processes that it started, and waits until they have ended.
    pub async fn end(&mut self) {
        if let Some(killing) = self.kill() {
            // If it fails, it has panicked, and that is in the log.
            drop(killing.await);
        }
        drop(timeout(END, self.wait()).await);
    }
}

/// A process that runs until it ends or this handle is dropped, with all processes that it started.
#[derive(Debug)]
pub struct Kept {
    pid: i32,
    ended: CancellationToken,
    wanted: CancellationToken,
    _guard: DropGuard,
}

impl Kept {
    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Kills it without waiting for its end.
    pub fn kill(&self) {
        self.wanted.cancel();
    }

    /// Cancelled when the process has ended.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }
}

impl OwnedProcess {
    /// Moves it to a task that waits for its end.
    pub fn keep(mut self) -> Kept {
        let (ended, wanted) = (CancellationToken::new(), CancellationToken::new());
        let kept = Kept { pid: self.pid(), ended: ended.clone(), wanted: wanted.clone(), _guard: wanted.clone().drop_guard() };
        tokio::spawn(async move {
            tokio::select! {
                _ = self.wait() => {}
                () = wanted.cancelled() => {}
            }
            self.end().await;
            ended.cancel();
        });
        kept
    }
}

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        drop(self.kill());
    }
}
