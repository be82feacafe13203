//! Removal of directory trees that a sandbox created, possibly absurdly deep.
//!
//! Nothing here recurses or holds a descriptor per level: a directory that is not empty is moved to the top of the tree, and
//! removed in a later round. No symbolic link is followed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Maximum number of directories in memory.
const ROUND: usize = 4096;
const MOST_NESTING: usize = 8;

/// Removes the directory and its content, if it exists.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match remove_contents(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(()) => Ok(unlinkat(CWD, path, AtFlags::REMOVEDIR)?),
    }
}

/// Removes the content of the directory.
pub(super) fn remove_contents(path: &Path) -> io::Result<()> {
    empty(&open(CWD, path)?, 0, None)
}

/// The same for an open directory, which something may be filling at the same time.
pub(super) fn remove_contents_until(top: &OwnedFd, until: Instant) -> io::Result<()> {
    empty(top, 0, Some(until))
}

fn check_time(until: Option<Instant>) -> io::Result<()> {
    if until.is_some_and(|until| Instant::now() > until) { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
}

/// `nesting` counts nested file systems and subvolumes, across which nothing can be moved. Sandboxes can't create those, so few
/// levels suffice.
fn empty(top: &OwnedFd, nesting: usize, until: Option<Instant>) -> io::Result<()> {
    let device = fstat(top)?.st_dev;
    let mut moved = 0u64;
    // Each round empties the directories at the top and moves their content up; a round without any is the last.
    loop {
        let mut directories = Vec::new();
        for entry in Dir::read_from(top)? {
            let entry = entry?;
            check_time(until)?;
            if !is_dots(entry.file_name()) && !remove_simple(top.as_fd(), entry.file_name(), entry.file_type())? {
                directories.push(entry.file_name().to_owned());
            }
            // The next round handles the rest.
            if directories.len() == ROUND {
                break;
            }
        }
        if directories.is_empty() {
            return Ok(());
        }
        for name in directories {
            let directory = open(top.as_fd(), name.as_c_str())?;
            if fstat(&directory)?.st_dev == device {
                scatter(&directory, top, &mut moved, until)?;
            } else if nesting < MOST_NESTING {
                empty(&directory, nesting + 1, until)?;
            } else {
                return Err(Errno::XDEV.into());
            }
            match unlinkat(top, name.as_c_str(), AtFlags::REMOVEDIR) {
                // A file moved while the directory was read can hide an entry from the reader: next round.
                Ok(()) | Err(Errno::NOTEMPTY) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Removes the content of the directory, and moves non-empty directories to the top.
fn scatter(directory: &OwnedFd, top: &OwnedFd, moved: &mut u64, until: Option<Instant>) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        check_time(until)?;
        if !is_dots(entry.file_name()) && !remove_simple(directory.as_fd(), entry.file_name(), entry.file_type())? {
            move_up(directory, entry.file_name(), top, moved)?;
        }
    }
    Ok(())
}

/// Removes a file or an empty directory; false for a directory that is not empty.
fn remove_simple(parent: BorrowedFd<'_>, name: &CStr, kind: FileType) -> io::Result<bool> {
    if kind != FileType::Directory {
        match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            // File systems that don't report the kind of an entry.
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(e) => return Err(e.into()),
        }
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn move_up(from: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        match renameat(from, name, top, format!(".removed-{moved}")) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Opens a directory that is no link.
pub(crate) fn open<P: rustix::path::Arg>(parent: BorrowedFd<'_>, name: P) -> io::Result<OwnedFd> {
    Ok(openat(parent, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}
