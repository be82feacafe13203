//! Walks a directory tree: one descriptor at a time, never through links, within bounds.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Stat};

use super::error::Failure;
use super::resolve::{Root, open_in};
use arenite_guest_runtime::workers::Work;

/// The deepest directory that a walk enters, counted from its start.
pub(super) const MAX_DEPTH: usize = 64;
/// The most entries that one walk visits.
pub(super) const MAX_ENTRIES: u64 = 1_000_000;
/// The most directories in the queue.
pub(super) const MAX_WAITING: usize = 100_000;
const SYSFS_MAGIC: u32 = 0x6265_6572;

/// One entry of the tree.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// Relative to the start.
    pub path: &'a Path,
    pub name: &'a OsStr,
    /// 1 for entries of the start itself.
    pub depth: usize,
    /// Of the entry itself, or of the target if it is a link that is not dangling.
    pub stat: Stat,
}

impl Entry<'_> {
    pub(super) fn is_dir(&self) -> bool {
        super::resolve::is_dir(&self.stat)
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.name.as_bytes().starts_with(b".")
    }
}

/// What to do after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Enter it, if it is a directory and no link to one.
    Enter,
    Skip,
    Stop,
}

/// Whether a walk is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walked {
    All,
    /// A bound was reached, or `visit` stopped the walk.
    Cut,
}

pub(super) fn is_kernel_interface(dir: &OwnedFd) -> bool {
    rustix::fs::fstatfs(dir).is_ok_and(|fs| {
        let kind = fs.f_type as u64;
        kind == PROC_SUPER_MAGIC as u64 || kind == u64::from(SYSFS_MAGIC)
    })
}

/// Walks the tree under `start`. Skips unreadable directories, and also /proc and /sys unless the walk starts there.
pub(super) fn walk(root: &Root, start: &Path, work: &Work, mut visit: impl FnMut(&Entry<'_>) -> Next) -> Result<Walked, Failure> {
    let top = root.open_dir(start)?;
    let in_kernel_interface = is_kernel_interface(&top);
    let mut waiting: Vec<(PathBuf, usize)> = Vec::new();
    let mut seen = 0;
    let mut outcome = Walked::All;
    let mut current = Some((PathBuf::new(), 0, rustix::io::fcntl_dupfd_cloexec(&top, 0)));
    while let Some((relative, depth, opened)) = current {
        if let Ok(dir) = opened
            && (in_kernel_interface || !is_kernel_interface(&dir))
        {
            let entries = Dir::read_from(&dir).map_err(|e| Failure::os(e, start.to_string_lossy()))?;
            for entry in entries {
                let Ok(entry) = entry else { break };
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                if seen % 64 == 0 {
                    work.check()?;
                }
                seen += 1;
                if seen > MAX_ENTRIES {
                    return Ok(Walked::Cut);
                }
                let Ok(own) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                    continue;
                };
                let path = relative.join(name);
                let link = FileType::from_raw_mode(own.st_mode) == FileType::Symlink;
                let stat = if link { root.inspect(&start.join(&path)).map_or(own, |(_, stat)| stat) } else { own };
                let entry = Entry { path: &path, name, depth: depth + 1, stat };
                match visit(&entry) {
                    Next::Stop => return Ok(Walked::Cut),
                    Next::Skip => {}
                    Next::Enter if link || !entry.is_dir() => {}
                    Next::Enter if depth + 1 >= MAX_DEPTH || waiting.len() >= MAX_WAITING => outcome = Walked::Cut,
                    Next::Enter => waiting.push((path, depth + 1)),
                }
            }
        }
        current = waiting.pop().map(|(relative, depth)| {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let opened = open_in(&top, &relative, OFlags::RDONLY | OFlags::DIRECTORY, resolve);
            (relative, depth, opened)
        });
    }
    Ok(outcome)
}
