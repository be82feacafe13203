//! Protects the pool from a full disk of the host.
//!
//! The pool's image is sparse. A block of metadata that can't be written for lack of space aborts btrfs' transaction, and the
//! pool is read-only from then on. Two measures prevent that:
//!
//! * Space for metadata is allocated in the image, again whenever the pool takes more for it.
//! * When the disk has less free space than the floor, sandboxes' writes are held: the limit of each layer becomes its current
//!   size, so that writes fail with `EDQUOT` inside and not below. The original limit is stored in the quota group itself, as
//!   the limit of exclusive data, so a new server finds it and ends the hold.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arenite_isolation::btrfs;
use rustix::fs::{FallocateFlags, fallocate};

use super::{Result, StorageError, open_directory, read_number, space};

/// The assumed maximum write speed, in bytes per second, which determines the next check.
const FASTEST: u64 = 2 << 30;
const SOONEST: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(5);
/// Time for a check that a caller waits for.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// Bits of a quota group's `limit_flags`.
const HAS_REFERENCED: u64 = 1;
const HAS_EXCLUSIVE: u64 = 2;

/// The watching thread; ends when this is stopped or dropped.
#[derive(Debug)]
pub(super) struct Guard {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    watched: Watched,
    holds: AtomicBool,
    state: Mutex<GuardState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GuardState {
    stop: bool,
    /// A caller waits for a check that starts from now on.
    asked: bool,
    /// A check is in progress.
    looks: bool,
}

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) root: PathBuf,
    pub(super) image: PathBuf,
    pub(super) data_dir: PathBuf,
    pub(super) qgroups: PathBuf,
    /// Free bytes of the host's file system below which writes are held.
    pub(super) floor: u64,
}

impl Guard {
    pub(super) fn start(watched: Watched) -> Result<Self> {
        // An earlier server may have left a hold.
        let holds = AtomicBool::new(watched.groups().iter().any(|group| group.held_limit().is_some()));
        let shared = Arc::new(Shared { watched, holds, state: Mutex::default(), changed: Condvar::new() });
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("disk-guard".to_owned())
                .spawn(move || shared.run())
                .map_err(StorageError::io("start the thread that watches the disk"))?
        };
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn holds(&self) -> bool {
        self.shared.holds.load(Ordering::Relaxed)
    }

    /// Whether writes are still held after another check of the disk. Waits for that check.
    pub(super) fn still_holds(&self) -> bool {
        if self.holds() {
            let mut state = self.shared.state();
            state.asked = true;
            self.shared.changed.notify_all();
            let waits = |state: &mut GuardState| !state.stop && (state.asked || state.looks);
            drop(self.shared.changed.wait_timeout_while(state, LOOK_LIMIT, waits));
        }
        self.holds()
    }

    /// Stops the thread. Returns when it no longer uses the pool.
    pub(super) fn stop(&self) {
        self.shared.state().stop = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches the disk panicked");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut known = Vec::new();
        let mut failed = false;
        loop {
            {
                let mut state = self.state();
                (state.asked, state.looks) = (false, true);
            }
            let free = space(&self.watched.data_dir).map_or(0, |(available, _)| available);
            let reserved = self.watched.reserve_metadata(&mut known);
            let is_low = free < self.watched.floor || reserved.is_err();
            let held = self.holds.load(Ordering::Relaxed);
            // With some margin above the floor, so that it doesn't alternate.
            let is_enough = free >= self.watched.floor + self.watched.floor / 4;
            let done = if is_low || (held && !is_enough) {
                self.watched.hold().map(|layers| {
                    if !self.holds.swap(true, Ordering::Relaxed) {
                        tracing::error!(free, layers, "the disk is nearly full: sandboxes' writes are held until there is room");
                    }
                })
            } else if held {
                self.watched.release().map(|()| {
                    self.holds.store(false, Ordering::Relaxed);
                    tracing::info!(free, "the disk has room again: sandboxes can write");
                })
            } else {
                Ok(())
            };
            if let Err(error) = reserved.and(done) {
                if !std::mem::replace(&mut failed, true) {
                    tracing::error!(%error, "the storage pool can't be kept from a full disk");
                }
            } else {
                failed = false;
            }
            let seconds = free.saturating_sub(2 * self.watched.floor) as f64 / FASTEST as f64;
            if self.wait(Duration::from_secs_f64(seconds).clamp(SOONEST, LATEST)) {
                return;
            }
        }
    }

    /// Ends a check, and waits for the next. True: stop.
    fn wait(&self, time: Duration) -> bool {
        let mut state = self.state();
        state.looks = false;
        self.changed.notify_all();
        let waits = |state: &mut GuardState| !state.stop && !state.asked;
        self.changed.wait_timeout_while(state, time, waits).unwrap_or_else(PoisonError::into_inner).0.stop
    }
}

impl Watched {
    /// Allocates in the image what the pool has taken for metadata since.
    fn reserve_metadata(&self, known: &mut Vec<(u64, u64)>) -> Result<()> {
        reserve_metadata(&self.root, &self.image, known)
    }

    fn hold(&self) -> Result<usize> {
        let top = open_directory(&self.root)?;
        let groups = self.groups();
        let mut layers = 0;
        for group in &groups {
            let Some(referenced) = group.max_referenced else { continue };
            layers += 1;
            if group.max_exclusive.is_none() {
                // Created by a version without holds.
                set(group, btrfs::limit_exclusive(top.as_fd(), group.id, referenced))?;
            }
            let limit = group.max_exclusive.unwrap_or(referenced);
            if referenced == limit && group.referenced < limit {
                set(group, btrfs::hold(top.as_fd(), group.id, group.referenced))?;
            }
        }
        Ok(layers)
    }

    fn release(&self) -> Result<()> {
        let top = open_directory(&self.root)?;
        // Writes right before the hold may have failed, and overlayfs mounts no volatile overlay until that error was reported.
        if let Err(error) = rustix::fs::syncfs(&top) {
            tracing::warn!(%error, "data that sandboxes wrote when the disk was full is lost");
        }
        for group in self.groups() {
            if let Some(limit) = group.held_limit() {
                set(&group, btrfs::hold(top.as_fd(), group.id, limit))?;
            }
        }
        Ok(())
    }

    fn groups(&self) -> Vec<Group> {
        let entries = fs::read_dir(&self.qgroups).into_iter().flatten().flatten();
        entries.filter_map(|entry| Group::read(&entry.path())).collect()
    }
}

/// The quota group of a layer.
struct Group {
    id: u64,
    referenced: u64,
    max_referenced: Option<u64>,
    max_exclusive: Option<u64>,
}

impl Group {
    /// Its original limit, if it is held.
    fn held_limit(&self) -> Option<u64> {
        self.max_exclusive.filter(|limit| self.max_referenced.is_some_and(|referenced| referenced != *limit))
    }

    fn read(path: &Path) -> Option<Self> {
        let id: u64 = path.file_name()?.to_str()?.strip_prefix("0_")?.parse().ok()?;
        let number = |name| read_number(&path.join(name));
        let flags = number("limit_flags")?;
        let limit = |flag, name| if flags & flag == 0 { None } else { number(name) };
        Some(Self {
            id,
            referenced: number("referenced")?,
            max_referenced: limit(HAS_REFERENCED, "max_referenced"),
            max_exclusive: limit(HAS_EXCLUSIVE, "max_exclusive"),
        })
    }
}

fn set(group: &Group, done: std::io::Result<()>) -> Result<()> {
    match done {
        // Its layer was removed in the meantime.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(StorageError::io(format!("change the limit of quota group {}", group.id))),
    }
}

/// Allocates in the image what the pool has taken for metadata, except what is already known.
pub(super) fn reserve_metadata(root: &Path, image: &Path, known: &mut Vec<(u64, u64)>) -> Result<()> {
    let top = open_directory(root)?;
    let ranges = btrfs::metadata_ranges(top.as_fd()).map_err(StorageError::io("ask where the pool's metadata is"))?;
    if ranges == *known {
        return Ok(());
    }
    let what = || format!("allocate the pool's metadata in {}", image.display());
    let file = File::options().write(true).open(image).map_err(StorageError::io(what()))?;
    let size = file.metadata().map_err(StorageError::io(what()))?.len();
    for (from, length) in ranges.iter().filter(|range| !known.contains(range)) {
        let length = (*length).min(size.saturating_sub(*from));
        match fallocate(&file, FallocateFlags::KEEP_SIZE, *from, length) {
            // A file system that allocates on write: nothing can be guaranteed there.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(StorageError::io(what())(error.into())),
        }
    }
    *known = ranges;
    Ok(())
}
