//! The directories that the kernel watches for a watcher.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::super::error::Failure;
use super::super::resolve::{Root, is_dir, open_in};
use super::super::walk::{MAX_DEPTH, is_kernel_interface};
use super::selection::Selection;

/// The most directories of one watcher.
pub(super) const MAX_DIRECTORIES: usize = 8192;
/// The most files that are reported as new when directories appear with content.
const MAX_SEEN: usize = 10_000;
/// Bytes of events read at once.
const BUFFER_BYTES: usize = 16 << 10;
/// The most consecutive reads before other tasks run.
const MAX_READS: usize = 16;

/// The events of a directory.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR);

/// One event from the kernel.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) watch: i32,
    pub(super) events: ReadFlags,
    pub(super) cookie: u32,
    pub(super) name: Option<OsString>,
}

/// An entry of a new directory.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) path: PathBuf,
    pub(super) is_dir: bool,
}

#[derive(Debug)]
pub(super) struct Tree {
    inotify: Arc<OwnedFd>,
    /// The watched directory as callers name it; for a single file, its directory.
    pub(super) root: PathBuf,
    /// The one watched file.
    pub(super) only: Option<OsString>,
    recursive: bool,
    directories: HashMap<i32, PathBuf>,
}

fn unwatchable(errno: Errno, path: &Path) -> Failure {
    match errno {
        Errno::NOSPC => Failure::Invalid {
            message: format!("'{}' could not be watched: the system watches as many directories as it may", path.display()),
            hint: Some("stop other watchers, or exclude directories".to_owned()),
        },
        errno => Failure::os(errno, path.to_string_lossy()),
    }
}

/// Creates an inotify instance.
pub(super) fn instance(path: &Path) -> Result<OwnedFd, Failure> {
    inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|errno| match errno {
        Errno::MFILE => Failure::Invalid {
            message: format!("'{}' could not be watched: there are as many watchers as the system allows", path.display()),
            hint: Some("stop other watchers".to_owned()),
        },
        errno => Failure::os(errno, path.to_string_lossy()),
    })
}

/// Watches the open directory, and no other that has taken its name.
pub(super) fn watch(inotify: &OwnedFd, dir: &OwnedFd) -> Result<i32, Errno> {
    inotify::add_watch(inotify, format!("/proc/self/fd/{}", dir.as_raw_fd()), EVENTS)
}

/// Reads the pending events, up to a bound.
pub(super) fn read(inotify: &OwnedFd) -> Result<Vec<Raw>, Errno> {
    let mut raw = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    let mut reads = 0;
    loop {
        if reader.is_buffer_empty() {
            if reads == MAX_READS {
                return Ok(raw);
            }
            reads += 1;
        }
        match reader.next() {
            Ok(event) => raw.push(Raw {
                watch: event.wd(),
                events: event.events(),
                cookie: event.cookie(),
                name: event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
            }),
            Err(Errno::AGAIN) if raw.is_empty() => return Err(Errno::AGAIN),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(raw),
            Err(errno) => return Err(errno),
        }
    }
}

impl Tree {
    /// Starts to watch the directory or file at `path`.
    pub(super) fn open(
        root: &Root,
        path: &Path,
        recursive: bool,
        selection: impl FnOnce(&Path) -> Result<Selection, Failure>,
    ) -> Result<(Self, Selection), Failure> {
        let inotify = Arc::new(instance(path)?);
        let (dir, only) = match (is_dir(&root.inspect(path)?.1), path.parent(), path.file_name()) {
            // A file is watched by its directory: writers often replace it with a new one.
            (false, Some(parent), Some(name)) => (parent, Some(name.to_owned())),
            _ => (path, None),
        };
        drop(root.open_dir(dir)?);
        let selection = selection(dir)?;
        let mut tree =
            Self { inotify, root: dir.to_owned(), recursive: recursive && only.is_none(), only, directories: HashMap::new() };
        tree.enter(Path::new(""), &selection, None)?;
        Ok((tree, selection))
    }

    /// Forgets all directories, to enter them again after events were lost.
    pub(super) fn clear(&mut self) {
        self.directories.clear();
    }

    /// Whether subdirectories are watched too.
    pub(super) fn watches_below(&self) -> bool {
        self.recursive
    }

    pub(super) fn inotify(&self) -> Arc<OwnedFd> {
        self.inotify.clone()
    }

    pub(super) fn directories(&self) -> usize {
        self.directories.len()
    }

    /// The directory of a watch.
    pub(super) fn directory(&self, watch: i32) -> Option<&Path> {
        self.directories.get(&watch).map(PathBuf::as_path)
    }

    pub(super) fn forget(&mut self, watch: i32) {
        self.directories.remove(&watch);
    }

    /// Records that a directory has another path, or, without one, has left the tree.
    pub(super) fn moved(&mut self, from: &Path, to: Option<&Path>) {
        for (watch, path) in &mut self.directories {
            let Ok(rest) = path.strip_prefix(from) else { continue };
            match to {
                Some(to) => *path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) },
                // The kernel reports its end as an event, and then it is forgotten.
                None => drop(inotify::remove_watch(&self.inotify, *watch)),
            }
        }
    }

    /// Opens the watched directory. Opened each time: the kernel reports its removal only when no process has it open.
    fn top(&self) -> Result<OwnedFd, Failure> {
        Root::open()?.open_dir(&self.root)
    }

    /// Watches a directory and its subdirectories. Adds their entries to `seen`, since they may be older than the watch. Skips a
    /// directory that is gone or unreadable.
    ///
    /// # Errors
    /// There are too many directories, or entries in them.
    pub(super) fn enter(&mut self, from: &Path, selection: &Selection, mut seen: Option<&mut Vec<Seen>>) -> Result<(), Failure> {
        let top = self.top()?;
        let mut waiting = vec![from.to_owned()];
        while let Some(relative) = waiting.pop() {
            let here = if relative.as_os_str().is_empty() { Path::new(".") } else { &relative };
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let is_top = relative.as_os_str().is_empty();
            let Ok(dir) = open_in(&top, here, OFlags::RDONLY | OFlags::DIRECTORY, resolve) else { continue };
            if !is_top && is_kernel_interface(&dir) {
                continue;
            }
            if self.directories.len() >= MAX_DIRECTORIES {
                return Err(Failure::Invalid {
                    message: format!("there are more than {MAX_DIRECTORIES} directories to watch"),
                    hint: Some("exclude some, watch a deeper path, or set recursive to false".to_owned()),
                });
            }
            match watch(&self.inotify, &dir) {
                Ok(watch) => drop(self.directories.insert(watch, relative.clone())),
                Err(errno) if is_top || errno == Errno::NOSPC => return Err(unwatchable(errno, &self.root)),
                Err(_) => continue,
            }
            if !self.recursive && seen.is_none() || relative.components().count() >= MAX_DEPTH {
                continue;
            }
            let Ok(entries) = Dir::read_from(&dir) else { continue };
            for entry in entries {
                let Ok(entry) = entry else { break };
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                let kind = match entry.file_type() {
                    FileType::Unknown => rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
                        .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                    known => known,
                };
                let (path, is_dir) = (relative.join(name), kind == FileType::Directory);
                if (is_dir || seen.is_some()) && selection.excludes(&self.root.join(&path), is_dir) {
                    continue;
                }
                if is_dir && self.recursive {
                    waiting.push(path.clone());
                }
                if let Some(seen) = seen.as_deref_mut() {
                    if seen.len() >= MAX_SEEN {
                        return Err(Failure::invalid("more appeared at once than is told of"));
                    }
                    seen.push(Seen { path, is_dir });
                }
            }
        }
        Ok(())
    }

    /// Stats a path.
    pub(super) fn stat(&self, relative: &Path) -> Option<Stat> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let here = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        // The last component may be a link: it is not opened, only inspected.
        let fd = open_in(self.top().ok()?, here, flags, ResolveFlags::BENEATH).ok()?;
        rustix::fs::fstat(fd).ok()
    }
}
