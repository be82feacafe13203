//! The task of a watcher: from the kernel's events to its feed.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;
use rustix::fs::inotify::ReadFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::error::Failure;
use super::changes::{Change, Changes};
use super::feed::{Feed, FileEvent, FileEventType};
use super::selection::Selection;
use super::tree::{self, Raw, Seen, Tree};
use crate::files::Files;
use arenite_guest_runtime::until;
use arenite_guest_runtime::workers::Kind;

/// The pause between reads of the kernel's queue: a writer of single bytes must not keep the guest busy.
const PACE: Duration = Duration::from_millis(20);

/// The state of a running watcher.
pub(super) struct Watcher {
    pub(super) tree: Tree,
    pub(super) selection: Selection,
    pub(super) feed: Arc<Feed>,
    pub(super) debounce: Duration,
    pub(super) stop: CancellationToken,
}

/// Actions that one read of the queue requires.
#[derive(Default)]
struct Needs {
    /// New directories to watch.
    enter: Vec<PathBuf>,
    /// Events were lost.
    lost: bool,
    /// The watched path is gone.
    gone: bool,
}

struct Shared {
    tree: Mutex<Tree>,
    selection: Selection,
}

impl Shared {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn async_fd(inotify: Arc<OwnedFd>) -> std::io::Result<AsyncFd<Arc<OwnedFd>>> {
    #[expect(deprecated, reason = "an OwnedFd keeps its descriptor open, which is what the successor makes callers promise")]
    AsyncFd::with_interest(inotify, Interest::READABLE)
}

/// Waits for events and reads them.
pub(super) async fn next(queue: &AsyncFd<Arc<OwnedFd>>) -> std::io::Result<Vec<Raw>> {
    queue.async_io(Interest::READABLE, |fd| tree::read(fd).map_err(std::io::Error::from)).await
}

impl Watcher {
    /// Runs until it is stopped or the watched path is gone. Call it in a task.
    pub(super) async fn run(self, files: Arc<Files>) {
        let Self { tree, selection, feed, debounce, stop } = self;
        let queue = async_fd(tree.inotify());
        let shared = Arc::new(Shared { tree: Mutex::new(tree), selection });
        let work = async {
            match queue {
                Ok(queue) => follow(&files, &shared, &queue, &feed, debounce).await,
                Err(error) => tracing::error!(%error, "a watcher could not begin"),
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
        feed.close();
    }
}

async fn follow(files: &Arc<Files>, shared: &Arc<Shared>, queue: &AsyncFd<Arc<OwnedFd>>, feed: &Feed, debounce: Duration) {
    let mut changes = Changes::new(debounce);
    loop {
        let due = changes.next();
        let raw = tokio::select! {
            raw = next(queue) => match raw {
                Ok(raw) => raw,
                Err(error) => return tracing::error!(%error, "a watcher can't read its events"),
            },
            () = until(due) => Vec::new(),
        };
        let now = Instant::now();
        let mut needs = Needs::default();
        for raw in &raw {
            take(&mut shared.tree(), &mut changes, &mut needs, raw, now);
        }
        for (path, is_dir) in changes.left(now) {
            if is_dir {
                shared.tree().moved(&path, None);
            }
        }
        let mut lost = needs.lost;
        if lost {
            // New directories may have been missed.
            needs.enter.push(PathBuf::new());
        }
        if !needs.enter.is_empty() && !needs.gone {
            let (seen, whole) = enter(files, shared, std::mem::take(&mut needs.enter)).await;
            lost |= !whole;
            for Seen { path, is_dir } in seen {
                changes.note(FileEventType::Create, &path, is_dir, now);
            }
        }
        let due = changes.due(Instant::now(), needs.gone);
        if !due.is_empty() {
            feed.push(describe(files, shared, due).await);
        }
        if lost {
            feed.lose();
        }
        if needs.gone {
            let end = Change { kind: FileEventType::Remove, path: PathBuf::new(), old_path: None, is_dir: true };
            return feed.push(vec![event(&shared.tree().root, end, None)]);
        }
        if !raw.is_empty() {
            sleep(PACE).await;
        }
    }
}

/// Handles one event from the kernel.
fn take(tree: &mut Tree, changes: &mut Changes, needs: &mut Needs, raw: &Raw, now: Instant) {
    let has = |flags| raw.events.intersects(flags);
    if has(ReadFlags::QUEUE_OVERFLOW) {
        needs.lost = true;
        return;
    }
    let Some(directory) = tree.directory(raw.watch).map(Path::to_owned) else { return };
    let is_top = directory.as_os_str().is_empty();
    let Some(name) = &raw.name else {
        if has(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT | ReadFlags::IGNORED) && is_top {
            needs.gone = true;
        } else if has(ReadFlags::IGNORED) {
            tree.forget(raw.watch);
        }
        return;
    };
    if tree.only.as_ref().is_some_and(|only| only != name) && !has(ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO) {
        return;
    }
    let (path, is_dir) = (directory.join(name), has(ReadFlags::ISDIR));
    if has(ReadFlags::CREATE) {
        changes.note(FileEventType::Create, &path, is_dir, now);
    } else if has(ReadFlags::DELETE) {
        changes.note(FileEventType::Remove, &path, is_dir, now);
    } else if has(ReadFlags::MOVED_FROM) {
        changes.depart(raw.cookie, path, is_dir, now);
        return;
    } else if has(ReadFlags::MOVED_TO) {
        if let Some(from) = changes.arrive(raw.cookie, &path, is_dir, now) {
            if is_dir {
                tree.moved(&from, Some(&path));
            }
            return;
        }
    } else if has(ReadFlags::MODIFY) {
        changes.note(FileEventType::Write, &path, is_dir, now);
    } else if has(ReadFlags::ATTRIB) {
        changes.note(FileEventType::Chmod, &path, is_dir, now);
    }
    if is_dir && has(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        needs.enter.push(path);
    }
}

/// Watches new directories. Returns their entries, and whether these are complete.
async fn enter(files: &Arc<Files>, shared: &Arc<Shared>, new: Vec<PathBuf>) -> (Vec<Seen>, bool) {
    let shared = shared.clone();
    let look = move |_: &_| {
        let mut tree = shared.tree();
        let (mut seen, mut whole) = (Vec::new(), true);
        for path in new {
            let again = path.as_os_str().is_empty();
            if !again && (tree.only.is_some() || shared.selection.excludes(&tree.root.join(&path), true)) {
                continue;
            }
            // After a loss, everything is entered again, and no entry counts as new.
            let sink = (!again).then_some(&mut seen);
            if again {
                tree.clear();
            } else if !tree.watches_below() {
                continue;
            }
            whole &= tree.enter(&path, &shared.selection, sink).is_ok();
        }
        Ok::<_, Failure>((seen, whole))
    };
    match files.runtime.workers.run(Kind::Brief, &files.runtime.user, look).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "new directories are not watched");
            (Vec::new(), false)
        }
    }
}

/// Describes changes in their current state, and leaves out those that are not selected.
async fn describe(files: &Arc<Files>, shared: &Arc<Shared>, changes: Vec<Change>) -> Vec<FileEvent> {
    let shared = shared.clone();
    let look = move |_: &_| {
        let tree = shared.tree();
        let tells_of = |path: &Path, is_dir| match &tree.only {
            Some(only) => path.as_os_str() == only,
            None => shared.selection.tells_of(&tree.root.join(path), is_dir),
        };
        let told = changes.into_iter().filter_map(|change| {
            let here = tells_of(&change.path, change.is_dir);
            let there = change.old_path.as_ref().map(|old| tells_of(old, change.is_dir));
            let change = match (here, there) {
                (true, Some(false)) => Change { kind: FileEventType::Create, old_path: None, ..change },
                (false, Some(true)) => {
                    Change { kind: FileEventType::Remove, path: change.old_path?, old_path: None, is_dir: change.is_dir }
                }
                (true, _) => change,
                (false, _) => return None,
            };
            let stat = if change.kind == FileEventType::Remove { None } else { tree.stat(&change.path) };
            // Written under a name that no longer exists, like a nameless file that is linked when complete.
            if stat.is_none() && matches!(change.kind, FileEventType::Write | FileEventType::Chmod) {
                return None;
            }
            Some(event(&tree.root, change, stat))
        });
        Ok(told.collect())
    };
    files.runtime.workers.run(Kind::Brief, &files.runtime.user, look).await.unwrap_or_else(|error: Failure| {
        tracing::warn!(%error, "changes could not be looked at");
        Vec::new()
    })
}

pub(super) fn event(root: &Path, change: Change, stat: Option<Stat>) -> FileEvent {
    let absolute = |path: &Path| match path.as_os_str().is_empty() {
        true => root.to_string_lossy().into_owned(),
        false => root.join(path).to_string_lossy().into_owned(),
    };
    FileEvent {
        seq: 0,
        kind: change.kind,
        path: absolute(&change.path),
        relative_path: if change.path.as_os_str().is_empty() { ".".into() } else { change.path.to_string_lossy().into_owned() },
        old_path: change.old_path.as_deref().map(absolute),
        is_dir: change.is_dir,
        timestamp: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64()),
        mtime: stat.map(|s| s.st_mtime as f64 + s.st_mtime_nsec as f64 / 1e9),
        size: stat.and_then(|s| u64::try_from(s.st_size).ok()),
        inode: stat.map(|s| s.st_ino),
    }
}
