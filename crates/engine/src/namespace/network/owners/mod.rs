//! Which process of a sandbox has a socket. It is found from outside: nothing in the sandbox is asked.
//!
//! ```text
//!  address and port ──sock_diag in the sandbox's network namespace──► inode ──/proc/PID/fd of its cgroups──► process
//! ```
//!
//! A sandbox can make this slow, with many processes and descriptors. So each search ends after [`SEARCH`], a sandbox has one at a
//! time and [`Budget`] for all of them, and beyond that its events name no process. Other sandboxes are searched meanwhile.

mod socket;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arenite_egress::OwnerQuestion;
use arenite_isolation::netns;
use arenite_model::NetworkProcess;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::Semaphore;

/// Time of one search.
const SEARCH: Duration = Duration::from_millis(20);
/// Time of a sandbox's searches in a second, after which they pause, and what it may save up.
const TIME_EACH_SECOND: Duration = Duration::from_millis(50);
const SAVED: Duration = Duration::from_millis(250);
/// Questions of a sandbox that wait.
const WAITING: usize = 64;
/// Searches at once, of all sandboxes.
const AT_ONCE: usize = 8;
/// Processes that had a socket last. They are searched first.
const RECENT: usize = 8;
/// Bytes of a command line that are read.
const COMMAND: u64 = 1_024;

/// Where a sandbox's processes are.
pub struct SandboxProcesses {
    /// Its first process. The others are in the same network namespace.
    pub first: i32,
    pub pidfd: Arc<OwnedFd>,
    /// The host's pids of all.
    pub list: Box<dyn FnOnce() -> Vec<i32> + Send>,
}

/// Finds the processes of a sandbox by its id. None: it has none on this host, or those that it has don't make its connections.
pub type LocateProcesses = Box<dyn Fn(&str) -> Option<SandboxProcesses> + Send + Sync>;

/// Searches for owners of sockets.
pub(super) struct Owners {
    /// The address at which sandboxes have their resolver.
    resolver: SocketAddr,
    locate: OnceLock<LocateProcesses>,
    sandboxes: Mutex<HashMap<String, Arc<Asked>>>,
    permits: Semaphore,
}

impl std::fmt::Debug for Owners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owners").field("resolver", &self.resolver).finish_non_exhaustive()
    }
}

/// What the searches for one sandbox share.
#[derive(Debug)]
struct Asked {
    turn: Semaphore,
    waiting: AtomicUsize,
    budget: Mutex<Budget>,
    recent: Mutex<Vec<i32>>,
}

/// The time that searches may take, in seconds. Below zero, it has to be earned first: a slow search is paid in full.
#[derive(Debug)]
struct Budget {
    left: f64,
    at: Instant,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { left: SAVED.as_secs_f64(), at: now }
    }

    fn has_time(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * TIME_EACH_SECOND.as_secs_f64();
        (self.left, self.at) = ((self.left + earned).min(SAVED.as_secs_f64()), now);
        self.left > 0.0
    }

    fn spend(&mut self, time: Duration) {
        self.left -= time.as_secs_f64();
    }
}

/// One waiting question.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Owners {
    pub(super) fn new(gateway: Ipv4Addr) -> Self {
        Self {
            resolver: SocketAddr::from((gateway, 53)),
            locate: OnceLock::new(),
            sandboxes: Mutex::default(),
            permits: Semaphore::new(AT_ONCE),
        }
    }

    /// Until then, nothing is found.
    pub(super) fn locate_by(&self, locate: LocateProcesses) {
        // The first one stays.
        let _ = self.locate.set(locate);
    }

    pub(super) fn forget(&self, sandbox: &str) {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(sandbox);
    }

    pub(super) async fn find(&self, question: OwnerQuestion) -> Option<NetworkProcess> {
        let asked = {
            let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
            sandboxes.entry(question.sandbox.clone()).or_insert_with(Asked::new).clone()
        };
        let _waiting = asked.enter()?;
        let _turn = asked.turn.acquire().await.ok()?;
        if !asked.budget().has_time(Instant::now()) {
            return None;
        }
        let Some(processes) = self.locate.get()?(&question.sandbox) else {
            // It may be gone.
            self.forget(&question.sandbox);
            return None;
        };
        let _permit = self.permits.acquire().await.ok()?;
        let (searched, resolver) = (asked.clone(), self.resolver);
        let search = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            let found = search(&question, resolver, processes, &searched.recent());
            searched.budget().spend(start.elapsed());
            found
        });
        match search.await {
            Ok(Ok(Some((pid, process)))) => {
                asked.note(pid);
                Some(process)
            }
            Ok(Ok(None)) => None,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the owner of a socket was not found");
                None
            }
            Err(_) => None,
        }
    }
}

impl Asked {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            turn: Semaphore::new(1),
            waiting: AtomicUsize::new(0),
            budget: Mutex::new(Budget::new(Instant::now())),
            recent: Mutex::default(),
        })
    }

    /// None if too many wait.
    fn enter(&self) -> Option<Waiting<'_>> {
        let waiting = Waiting(&self.waiting);
        (self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING).then_some(waiting)
    }

    fn budget(&self) -> std::sync::MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> Vec<i32> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, pid: i32) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|known| *known != pid);
        recent.insert(0, pid);
        recent.truncate(RECENT);
    }
}

/// The host's pid of the owner, and what it is in the sandbox.
fn search(
    question: &OwnerQuestion,
    resolver: SocketAddr,
    processes: SandboxProcesses,
    recent: &[i32],
) -> io::Result<Option<(i32, NetworkProcess)>> {
    let deadline = Instant::now() + SEARCH;
    let SandboxProcesses { first, pidfd, list } = processes;
    let netns: OwnedFd = File::open(format!("/proc/{first}/ns/net"))?.into();
    // The pid may be another process's now; while this one lives, it was not.
    if has_ended(&pidfd) {
        return Ok(None);
    }
    let Some(inode) = netns::enter(netns.as_fd(), || socket::inode(question, resolver))? else { return Ok(None) };
    drop(netns);
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    let mut all = list();
    // Programs that connect have mostly just started.
    all.sort_unstable_by(|a, b| b.cmp(a));
    let recent = recent.iter().copied().filter(|pid| all.binary_search_by(|other| pid.cmp(other)).is_ok());
    let order: Vec<i32> = recent.chain(all.iter().copied()).collect();
    for pid in order {
        let Some(descriptor) = descriptor_of(pid, &wanted, deadline) else {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            continue;
        };
        let process = describe(pid, levels(first)?)?;
        // Otherwise, the pid may be another process's meanwhile.
        let is_same = fs::read_link(&descriptor).is_ok_and(|target| target == wanted);
        return Ok(is_same.then_some((pid, process)));
    }
    Ok(None)
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
}

/// Where the process has the socket among its descriptors.
fn descriptor_of(pid: i32, wanted: &Path, deadline: Instant) -> Option<PathBuf> {
    // It may have ended.
    for (number, entry) in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.enumerate() {
        if number % 64 == 63 && Instant::now() >= deadline {
            return None;
        }
        let path = entry.ok()?.path();
        if fs::read_link(&path).is_ok_and(|target| target == wanted) {
            return Some(path);
        }
    }
    None
}

/// The number of PID namespaces in which a process has a pid, from this one on.
fn levels(pid: i32) -> io::Result<usize> {
    Ok(pids(pid)?.len())
}

/// The process as its sandbox sees it, which is at this level. It may be in further namespaces.
fn describe(pid: i32, level: usize) -> io::Result<NetworkProcess> {
    let inside = pids(pid)?.get(level.wrapping_sub(1)).copied();
    let inside = inside.ok_or_else(|| io::Error::other(format!("process {pid} has no pid in its sandbox")))?;
    let name = fs::read(format!("/proc/{pid}/comm"))?;
    let mut arguments = Vec::new();
    File::open(format!("/proc/{pid}/cmdline"))?.take(COMMAND).read_to_end(&mut arguments)?;
    Ok(NetworkProcess::new(inside, name.strip_suffix(b"\n").unwrap_or(&name), &arguments))
}

/// Its pids: here, and in each namespace below.
fn pids(pid: i32) -> io::Result<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    Ok(line.unwrap_or_default().split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

#[cfg(test)]
mod tests;
