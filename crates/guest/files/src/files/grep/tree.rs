//! Walks a tree on several threads, for operations that process every file in it.
//!
//! ```text
//!  directories ──► a thread reads one ──┬─► its directories: back on the pile
//!       ▲                               └─► its files, in batches: on the pile too, or done at once when that is full
//!       └──────────────────── the pile ◄──┘
//! ```
//!
//! Threads inherit the rights of the thread that starts them, so a walk that starts on a thread of
//! [`arenite_guest_runtime::workers`] has the rights of the call's user everywhere. Links are not followed, and only
//! directories are opened: see [`Found::open`].

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};

use super::super::error::Failure;
use super::super::resolve::{Root, open_in};
use super::super::walk::{MAX_DEPTH, MAX_ENTRIES, MAX_WAITING, Walked, is_kernel_interface};
use super::rules::{Filter, Rules};
use arenite_guest_runtime::workers::Work;

/// Files that one thread takes at a time.
const BATCH: usize = 128;
/// The most waiting batches. Each keeps a directory open.
const MAX_BATCHES: usize = 32;
/// Stack of a walking thread, in bytes.
const STACK_BYTES: usize = 1 << 20;

/// The parameters of a walk.
pub(super) struct Walk<'a> {
    pub(super) root: &'a Root,
    pub(super) start: &'a Path,
    pub(super) recursive: bool,
    pub(super) filter: &'a Filter,
    pub(super) work: &'a Work,
    /// When to stop with partial results.
    pub(super) until: Instant,
    pub(super) threads: usize,
}

/// A regular file, according to its directory's entry.
pub(super) struct Found<'a> {
    dir: &'a OwnedFd,
    name: &'a OsStr,
    parent: &'a Path,
}

impl Found<'_> {
    /// The path relative to the start.
    pub(super) fn path(&self) -> PathBuf {
        self.parent.join(self.name)
    }

    /// Opens the file, unless it is no longer a regular one.
    pub(super) fn open(&self) -> Option<(File, Stat)> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.dir, self.name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then(|| (File::from(file), stat))
    }
}

enum Unit {
    Directory { relative: PathBuf, depth: usize, rules: Arc<Rules> },
    Files { dir: Arc<OwnedFd>, relative: Arc<PathBuf>, names: Vec<OsString> },
}

#[derive(Default)]
struct Pile {
    directories: Vec<Unit>,
    batches: Vec<Unit>,
    /// Threads at work, which may still add to the pile.
    busy: usize,
    failure: Option<Failure>,
}

struct Shared<'a> {
    walk: &'a Walk<'a>,
    top: OwnedFd,
    in_kernel_interface: bool,
    pile: Mutex<Pile>,
    changed: Condvar,
    stopped: AtomicBool,
    cut: AtomicBool,
    entries: AtomicU64,
}

/// Calls `visit` for each file that the filter admits, on all threads, each with its own `state`.
pub(super) fn walk_files<S>(
    walk: &Walk<'_>,
    state: impl Fn() -> S + Sync,
    visit: impl Fn(&mut S, &Found<'_>) -> Result<(), Failure> + Sync,
) -> Result<Walked, Failure> {
    let top = walk.root.open_dir(walk.start)?;
    let above = walk.filter.above(walk.root, walk.start);
    let shared = Shared {
        walk,
        in_kernel_interface: is_kernel_interface(&top),
        top,
        pile: Mutex::default(),
        changed: Condvar::new(),
        stopped: AtomicBool::new(false),
        cut: AtomicBool::new(false),
        entries: AtomicU64::new(0),
    };
    shared.lock().directories.push(Unit::Directory { relative: PathBuf::new(), depth: 0, rules: above });
    std::thread::scope(|scope| {
        for _ in 1..walk.threads {
            // Without another thread, the walk is slower but still complete.
            drop(std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || shared.run(state(), &visit)));
        }
        shared.run(state(), &visit);
    });
    let failure = shared.lock().failure.take();
    match failure {
        Some(failure) => Err(failure),
        None if shared.cut.load(Ordering::Relaxed) => Ok(Walked::Cut),
        None => Ok(Walked::All),
    }
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, Pile> {
        self.pile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run<S>(&self, mut state: S, visit: &impl Fn(&mut S, &Found<'_>) -> Result<(), Failure>) {
        while let Some(unit) = self.take() {
            // Released also when the visit panics: otherwise the other threads would wait for ever.
            let busy = Busy(self);
            let done = match unit {
                Unit::Directory { relative, depth, rules } => self.read(relative, depth, &rules, &mut state, visit),
                Unit::Files { dir, relative, names } => self.visit_all(&dir, &relative, &names, &mut state, visit),
            };
            if let Err(failure) = done {
                self.lock().failure.get_or_insert(failure);
                self.stopped.store(true, Ordering::Relaxed);
            }
            drop(busy);
        }
    }

    /// Takes the next unit of work. `None` when the pile is empty and no thread can add to it.
    fn take(&self) -> Option<Unit> {
        let mut pile = self.lock();
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                return None;
            }
            // Files first, because they keep a directory open. Of the directories the newest, which keeps the pile small.
            if let Some(unit) = pile.batches.pop().or_else(|| pile.directories.pop()) {
                pile.busy += 1;
                return Some(unit);
            }
            if pile.busy == 0 {
                return None;
            }
            pile = self.changed.wait(pile).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), Failure> {
        self.walk.work.check()?;
        if Instant::now() > self.walk.until {
            self.cut();
            self.stopped.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read<S>(
        &self,
        relative: PathBuf,
        depth: usize,
        rules: &Arc<Rules>,
        state: &mut S,
        visit: &impl Fn(&mut S, &Found<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let here = if relative.as_os_str().is_empty() { Path::new(".") } else { &relative };
        // Unreadable directories are skipped, as in ripgrep, and so are removed ones.
        let Ok(dir) = open_in(&self.top, here, OFlags::RDONLY | OFlags::DIRECTORY, resolve) else { return Ok(()) };
        if !self.in_kernel_interface && is_kernel_interface(&dir) {
            return Ok(());
        }
        let Ok(entries) = Dir::read_from(&dir) else { return Ok(()) };
        let (dir, relative) = (Arc::new(dir), Arc::new(relative));
        let mut full = self.walk.start.join(&*relative);
        let rules = self.walk.filter.below(rules, &dir, &full);
        let mut names: Vec<OsString> = Vec::new();
        for entry in entries {
            let Ok(entry) = entry else { break };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let seen = self.entries.fetch_add(1, Ordering::Relaxed);
            if seen >= MAX_ENTRIES {
                self.cut();
                self.stopped.store(true, Ordering::Relaxed);
            } else if seen.is_multiple_of(64) {
                self.check()?;
            }
            if self.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match rustix::fs::statat(&*dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                known => known,
            };
            let is_dir = kind == FileType::Directory;
            if !is_dir && kind != FileType::RegularFile || is_dir && !self.walk.recursive {
                continue;
            }
            full.push(name);
            let admitted = self.walk.filter.admits(&full, name, is_dir, &rules);
            full.pop();
            if !admitted {
                continue;
            }
            if is_dir {
                if depth + 1 >= MAX_DEPTH || !self.put_directory(relative.join(name), depth + 1, &rules) {
                    self.cut();
                }
                continue;
            }
            names.push(name.to_owned());
            if names.len() == BATCH {
                let batch = std::mem::take(&mut names);
                if let Some(batch) = self.put_files(&dir, &relative, batch) {
                    self.visit_all(&dir, &relative, &batch, state, visit)?;
                }
            }
        }
        self.visit_all(&dir, &relative, &names, state, visit)
    }

    fn put_directory(&self, relative: PathBuf, depth: usize, rules: &Arc<Rules>) -> bool {
        let mut pile = self.lock();
        if pile.directories.len() >= MAX_WAITING {
            return false;
        }
        pile.directories.push(Unit::Directory { relative, depth, rules: rules.clone() });
        self.changed.notify_one();
        true
    }

    /// Leaves files to the other threads, or returns them when too many batches wait.
    fn put_files(&self, dir: &Arc<OwnedFd>, relative: &Arc<PathBuf>, names: Vec<OsString>) -> Option<Vec<OsString>> {
        let mut pile = self.lock();
        if pile.batches.len() >= MAX_BATCHES {
            return Some(names);
        }
        pile.batches.push(Unit::Files { dir: dir.clone(), relative: relative.clone(), names });
        self.changed.notify_one();
        None
    }

    fn visit_all<S>(
        &self,
        dir: &OwnedFd,
        relative: &Path,
        names: &[OsString],
        state: &mut S,
        visit: &impl Fn(&mut S, &Found<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for (at, name) in names.iter().enumerate() {
            if at.is_multiple_of(16) {
                self.check()?;
            }
            if self.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            visit(state, &Found { dir, name, parent: relative })?;
        }
        Ok(())
    }
}

/// Counts a thread as busy until it is dropped.
struct Busy<'a>(&'a Shared<'a>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut pile = self.0.lock();
        pile.busy -= 1;
        if pile.busy == 0 || self.0.stopped.load(Ordering::Relaxed) {
            self.0.changed.notify_all();
        }
    }
}
