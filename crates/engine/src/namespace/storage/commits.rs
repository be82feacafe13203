//! Commits of the pool in the background, and the freeing of what deleted subvolumes held.
//!
//! btrfs frees by itself within half a minute. Until then, the extents of a disk name each of its deleted copies, and what
//! changes next in the disk adds to these lists. After twenty rollbacks and forks of 20,000 files, a snapshot took four times as
//! long as without deleted copies.
//!
//! The kernel's request to begin a commit (`BTRFS_IOC_START_SYNC`) is not used. It leaves the commit to a thread of btrfs, which
//! can miss it while it falls asleep. The caller then waits for up to half a minute, and can't be killed.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arenite_isolation::btrfs;

use super::{open_directory, read_number};

/// From a deletion until its space is freed: deletions that follow are freed with it, and an operation that follows does not
/// wait for it.
const DELAY: Duration = Duration::from_millis(50);

/// The commits of one file system.
#[derive(Debug)]
pub(super) struct Commits {
    root: PathBuf,
    /// The kernel's directory of this file system.
    kernel: PathBuf,
    /// Whether deleted subvolumes wait to be freed.
    is_due: AtomicBool,
    /// [`Commits::running`] when no transaction ran: the smallest number that was seen after a commit.
    at_rest: AtomicU64,
    /// Held while the file system is in use.
    at_work: Mutex<()>,
}

/// A commit that was begun.
#[derive(Debug)]
pub struct Commit(Option<JoinHandle<()>>);

impl Commit {
    /// There is nothing to commit.
    pub(super) const NONE: Self = Self(None);

    /// Waits until it is over. If it failed, the snapshot that follows fails as well.
    pub fn wait(self) {
        // The thread does not panic, and logs its errors.
        let _ = self.0.map(JoinHandle::join);
    }

    pub(in super::super) fn is_needed(&self) -> bool {
        self.0.is_some()
    }
}

impl Commits {
    /// The commits of the pool at `root`, of which the kernel has the directory `kernel`.
    pub(super) fn new(root: &Path, kernel: &Path) -> Self {
        Self {
            root: root.to_owned(),
            kernel: kernel.to_owned(),
            is_due: AtomicBool::default(),
            at_rest: AtomicU64::new(u64::MAX),
            at_work: Mutex::default(),
        }
    }

    /// Begins to commit what was written before, except cached content of files, unless nothing was.
    pub(super) fn begin(self: &Arc<Self>) -> Commit {
        if !self.has_transaction() {
            return Commit::NONE;
        }
        let commits = Arc::clone(self);
        let begun = thread::Builder::new().name("commit".to_owned()).spawn(move || commits.commit());
        Commit(begun.inspect_err(|error| tracing::debug!(%error, "a commit of the pool could not be begun")).ok())
    }

    /// Commits and frees deleted subvolumes after [`DELAY`], in a thread.
    pub(super) fn free_soon(self: &Arc<Self>) {
        if self.is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let commits = Arc::clone(self);
        let started = thread::Builder::new().name("tidy".to_owned()).spawn(move || {
            thread::sleep(DELAY);
            commits.is_due.store(false, Ordering::Release);
            commits.commit();
            if let Err(error) = commits.wake_cleaner() {
                tracing::debug!(%error, "deleted subvolumes are freed later");
            }
        });
        if let Err(error) = started {
            self.is_due.store(false, Ordering::Release);
            tracing::debug!(%error, "deleted subvolumes are freed later");
        }
    }

    /// Keeps it from beginning, so that the file system can be unmounted.
    pub(super) fn hold(&self) -> MutexGuard<'_, ()> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything waits for a commit. Yes if the kernel does not say, and before the first commit.
    fn has_transaction(&self) -> bool {
        self.running().is_none_or(|running| {
            let at_rest = self.at_rest.load(Ordering::Relaxed);
            running > at_rest || at_rest == u64::MAX
        })
    }

    /// Transactions that began, less those that were committed, since the file system was made and mounted.
    fn running(&self) -> Option<u64> {
        let begun = read_number(&self.kernel.join("generation"))?;
        let text = fs::read_to_string(self.kernel.join("commit_stats")).ok()?;
        let committed = text.lines().find_map(|line| line.strip_prefix("commits "))?.trim().parse().ok()?;
        Some(begun.wrapping_sub(committed))
    }

    fn commit(&self) {
        let _held = self.hold();
        let committed = open_directory(&self.root).map(|root| btrfs::commit(root.as_fd()));
        if let Ok(Err(error)) = committed {
            tracing::debug!(%error, "the pool could not be committed");
        }
        if let Some(running) = self.running() {
            self.at_rest.fetch_min(running, Ordering::Relaxed);
        }
    }

    /// A new label wakes a thread of btrfs, which wakes the one that frees deleted subvolumes. The label stays as it is.
    fn wake_cleaner(&self) -> io::Result<()> {
        let file = self.kernel.join("label");
        let label = fs::read_to_string(&file)?;
        fs::write(&file, if label.is_empty() { "\n" } else { &label })
    }
}
