//! The thread that syncs written files to the disk.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Files that wait for their sync are held open; beyond this many a writer syncs the next one itself.
const MAX_DIRTY: usize = 1024;

#[derive(Default)]
struct Dirty {
    files: HashMap<PathBuf, Arc<File>>,
    /// Directories with new entries.
    dirs: HashSet<PathBuf>,
    stop: bool,
}

impl Dirty {
    fn is_clean(&self) -> bool {
        self.files.is_empty() && self.dirs.is_empty()
    }
}

struct Shared {
    dirty: Mutex<Dirty>,
    wake: Condvar,
    errors: AtomicU64,
}

impl Shared {
    fn dirty(&self) -> MutexGuard<'_, Dirty> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: &Path, result: std::io::Result<()>) {
        if let Err(error) = result {
            self.errors.fetch_add(1, Ordering::Relaxed);
            tracing::error!(path = %what.display(), %error, "could not sync a trajectory log to disk");
        }
    }

    fn sync_all(&self, files: HashMap<PathBuf, Arc<File>>, dirs: HashSet<PathBuf>) {
        for (path, file) in files {
            self.note(&path, file.sync_data());
        }
        for dir in dirs {
            self.note(&dir, File::open(&dir).and_then(|dir| dir.sync_all()));
        }
    }
}

/// Sleeps while nothing is dirty; otherwise syncs all dirty files once an interval.
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// `first` runs on the thread before anything else.
    pub(crate) fn start(every: Duration, first: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { dirty: Mutex::default(), wake: Condvar::new(), errors: AtomicU64::new(0) });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("trajectory-sync".to_owned()).stack_size(256 << 10).spawn(move || {
            first();
            run(&of_thread, every);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Marks `file` as written to.
    pub(crate) fn mark(&self, path: &Path, file: &Arc<File>) {
        let mut dirty = self.shared.dirty();
        if dirty.files.contains_key(path) {
            return;
        }
        if dirty.files.len() >= MAX_DIRTY {
            drop(dirty);
            self.shared.note(path, file.sync_data());
            return;
        }
        let was_clean = dirty.is_clean();
        dirty.files.insert(path.to_owned(), Arc::clone(file));
        if was_clean {
            self.shared.wake.notify_one();
        }
    }

    /// Marks `dir`, in which a file was created.
    pub(crate) fn mark_dir(&self, dir: &Path) {
        let mut dirty = self.shared.dirty();
        let was_clean = dirty.is_clean();
        if !dirty.dirs.contains(dir) {
            dirty.dirs.insert(dir.to_owned());
        }
        if was_clean {
            self.shared.wake.notify_one();
        }
    }

    pub(crate) fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.dirty().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that syncs trajectory logs panicked");
        }
    }
}

fn run(shared: &Shared, every: Duration) {
    loop {
        let dirty = shared
            .wake
            .wait_while(shared.dirty(), |dirty| dirty.is_clean() && !dirty.stop)
            .unwrap_or_else(PoisonError::into_inner);
        // More files may become dirty until the interval ends; a stop ends it early.
        let (mut dirty, _) =
            shared.wake.wait_timeout_while(dirty, every, |dirty| !dirty.stop).unwrap_or_else(PoisonError::into_inner);
        let (files, dirs, stop) = (std::mem::take(&mut dirty.files), std::mem::take(&mut dirty.dirs), dirty.stop);
        drop(dirty);
        shared.sync_all(files, dirs);
        if stop {
            return;
        }
    }
}
