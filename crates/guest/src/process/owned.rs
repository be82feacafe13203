//! A process that does not outlive whoever holds it.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Child, Exit, ScratchDir, Signal, kill_members};

/// How long a killed process may take to be gone.
const END: Duration = Duration::from_secs(5);

/// A process with a directory of its own. Dropped, it is killed with all that it started.
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

    /// Waits for its end. Fine to repeat, and to give up.
    pub async fn wait(&mut self) -> Exit {
        match self.exit {
            Some(exit) => exit,
            None => *self.exit.insert(self.child.wait().await),
        }
    }

    /// To it and what it waits for, as ^C on a terminal would.
    pub fn signal_group(&self, signal: Signal) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.pid).filter(|_| self.exit.is_none()) {
            // It may be ending; then nobody needs the signal.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    fn kill(&mut self) -> Option<JoinHandle<bool>> {
        if std::mem::replace(&mut self.is_killed, true) {
            return None;
        }
        let leader = self.exit.is_none().then_some(self.child.pid);
        let marker = self.child.marker.clone();
        Some(tokio::task::spawn_blocking(move || kill_members(leader, &marker, Signal::KILL)))
    }

    /// Kills it with all that it started, and waits until that is done.
    pub async fn end(&mut self) {
        if let Some(killing) = self.kill() {
            // Failing, it has panicked, and that is in the log.
            drop(killing.await);
        }
        drop(timeout(END, self.wait()).await);
    }
}

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        drop(self.kill());
    }
}
