//! Stores a file so that readers see either the old content or the new one.
//!
//! ```text
//!  draft (no name, same directory) ──filled, mode and owner set──► hidden name ──rename──► the file
//!        │ dropped: the kernel frees it                                 (a new file is linked at once)
//! ```
//!
//! A file that can't be exchanged (its directory is not writable for the user, it is a mount point, it is writable but belongs to
//! another user) is written in place, after its space is reserved. Nothing is synced to disk: a sandbox's files are not meant to
//! survive a crash of its host.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;

use super::error::Failure;
use super::resolve::ResolvedPath;

/// Mode of new files.
const NEW_FILE: Mode = Mode::from_raw_mode(0o644);
/// Attempts to find a free hidden name.
const NAME_TRIES: usize = 8;

/// Whether an existing file may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Replace,
    Refuse,
}

/// A nameless file with the new content. It is freed when dropped.
#[derive(Debug)]
pub(super) struct Draft {
    file: File,
    dir: OwnedFd,
    /// The hidden name, on file systems without nameless files.
    hidden: Option<OsString>,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(name) = &self.hidden {
            let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
        }
    }
}

fn hidden_name() -> Result<OsString, Errno> {
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
    let mut name = b".arenite-".to_vec();
    for byte in random {
        name.extend(format!("{byte:02x}").into_bytes());
    }
    name.extend(b".part");
    Ok(OsString::from_vec(name))
}

impl Draft {
    /// Starts a draft in a directory.
    pub(super) fn begin(dir: &OwnedFd) -> Result<Self, Errno> {
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(&dir, ".", flags | OFlags::TMPFILE, NEW_FILE) {
            Ok(fd) => {
                return Ok(Self { file: File::from(fd), dir, hidden: None });
            }
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(e) => return Err(e),
        }
        let name = hidden_name()?;
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&dir, &name, flags, NEW_FILE)?;
        Ok(Self { file: File::from(fd), dir, hidden: Some(name) })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Links the draft as `name` in `dir`. Fails with `EEXIST` if the name is taken.
    fn link(&self, dir: &OwnedFd, name: &OsString) -> Result<(), Errno> {
        if let Some(hidden) = &self.hidden {
            return rustix::fs::renameat_with(&self.dir, hidden, dir, name, RenameFlags::NOREPLACE);
        }
        match rustix::fs::linkat(&self.file, "", dir, name, AtFlags::EMPTY_PATH) {
            // Older kernels let only the host's root link by descriptor.
            Err(Errno::NOENT | Errno::PERM) => {
                let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW)
            }
            other => other,
        }
    }

    /// Replaces the existing file with the draft, and keeps its mode and owner.
    fn exchange(&mut self, resolved: &ResolvedPath, old: &Stat) -> Result<(), Errno> {
        let new = rustix::fs::fstat(&self.file)?;
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) {
            rustix::fs::fchown(&self.file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)))?;
        }
        // Without the set-id bits, as after any write by a user other than root.
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(old.st_mode & 0o777))?;
        if self.hidden.is_none() {
            for _ in 0..NAME_TRIES {
                let name = hidden_name()?;
                match self.link(&resolved.dir, &name) {
                    Err(Errno::EXIST) => {}
                    Err(e) => return Err(e),
                    Ok(()) => {
                        self.dir = rustix::io::fcntl_dupfd_cloexec(&resolved.dir, 0)?;
                        self.hidden = Some(name);
                        break;
                    }
                }
            }
        }
        let name = self.hidden.as_ref().ok_or(Errno::EXIST)?;
        rustix::fs::renameat(&self.dir, name, &resolved.dir, &resolved.name)?;
        self.hidden = None;
        Ok(())
    }

    /// Publishes the draft as the file at `resolved`.
    pub(super) fn publish(mut self, resolved: &mut ResolvedPath, existing: Existing) -> Result<(), Failure> {
        let path = resolved.canonical.to_string_lossy().into_owned();
        let fail = |e: Errno| Failure::os(e, &*path);
        if resolved.existing.is_none() {
            rustix::fs::fchmod(&self.file, NEW_FILE).map_err(fail)?;
            match self.link(&resolved.dir, &resolved.name) {
                Ok(()) => {
                    self.hidden = None;
                    return Ok(());
                }
                Err(Errno::XDEV) => return self.moved_to(resolved)?.publish(resolved, existing),
                Err(Errno::EXIST) if existing == Existing::Replace => {
                    let stat = rustix::fs::statat(&resolved.dir, &resolved.name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
                    super::resolve::require_regular(&stat, &resolved.canonical)?;
                    resolved.existing = Some(stat);
                }
                Err(e) => return Err(fail(e)),
            }
        }
        let Some(old) = resolved.existing.filter(|_| existing == Existing::Replace) else {
            return Err(fail(Errno::EXIST));
        };
        let target = open_for_writing(resolved).map_err(fail)?;
        match self.exchange(resolved, &old) {
            Ok(()) => Ok(()),
            Err(Errno::XDEV) => match self.moved_to(resolved) {
                Ok(draft) => draft.publish(resolved, existing),
                Err(_) => self.overwrite(&target).map_err(|e| Failure::io(e, &path)),
            },
            Err(e) if can_overwrite(e) => self.overwrite(&target).map_err(|e| Failure::io(e, &path)),
            Err(e) => Err(fail(e)),
        }
    }

    /// Copies the draft into the directory of `resolved`, which is on another file system.
    fn moved_to(&self, resolved: &ResolvedPath) -> Result<Self, Failure> {
        let fail = |e| Failure::io(e, &resolved.canonical.to_string_lossy());
        let copy = Self::begin(&resolved.dir).map_err(|e| fail(e.into()))?;
        (&self.file).rewind().map_err(fail)?;
        io::copy(&mut &self.file, &mut &copy.file).map_err(fail)?;
        Ok(copy)
    }

    fn overwrite(&self, target: &File) -> io::Result<()> {
        (&self.file).rewind()?;
        let length = self.file.metadata()?.len();
        overwrite(target, &self.file, length)
    }
}

/// Errors of an exchange after which writing in place may still work.
fn can_overwrite(errno: Errno) -> bool {
    [Errno::ACCESS, Errno::PERM, Errno::BUSY, Errno::ROFS, Errno::OPNOTSUPP, Errno::NOENT, Errno::NAMETOOLONG].contains(&errno)
}

fn open_for_writing(resolved: &ResolvedPath) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&resolved.dir, &resolved.name, flags, Mode::empty())?;
    let file = File::from(fd);
    let regular = file.metadata().is_ok_and(|m| m.is_file());
    if regular { Ok(file) } else { Err(Errno::INVAL) }
}

/// Overwrites a file in place. Reserves its space first, so that a full disk leaves it unchanged.
fn overwrite(target: &File, content: impl Read, length: u64) -> io::Result<()> {
    let before = target.metadata()?.len();
    if length > 0
        && let Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) =
            rustix::fs::fallocate(target, FallocateFlags::empty(), 0, length)
    {
        target.set_len(before)?;
        return Err(e.into());
    }
    (&*target).rewind()?;
    io::copy(&mut content.take(length), &mut &*target)?;
    // Kernel interfaces have no length to truncate.
    if before > length { target.set_len(length) } else { Ok(()) }
}

/// Checks that a file may be written, before any work is done for it.
pub(super) fn check_writable(resolved: &ResolvedPath) -> Result<(), Failure> {
    match resolved.existing {
        None => Ok(()),
        Some(_) => open_for_writing(resolved).map(drop).map_err(|e| Failure::os(e, resolved.canonical.to_string_lossy())),
    }
}

/// Stores `content` as the file at `resolved`.
pub(super) fn store(resolved: &mut ResolvedPath, content: &[u8], existing: Existing) -> Result<(), Failure> {
    let path = resolved.canonical.to_string_lossy().into_owned();
    if existing == Existing::Replace {
        check_writable(resolved)?;
    } else if resolved.existing.is_some() {
        return Err(Failure::os(Errno::EXIST, path));
    }
    let draft = match Draft::begin(&resolved.dir) {
        Ok(draft) => draft,
        Err(e) if resolved.existing.is_some() && can_overwrite(e) => {
            let target = open_for_writing(resolved).map_err(|e| Failure::os(e, &*path))?;
            return overwrite(&target, content, content.len() as u64).map_err(|e| Failure::io(e, &path));
        }
        Err(e) => return Err(Failure::os(e, path)),
    };
    draft.file().write_all(content).map_err(|e| Failure::io(e, &path))?;
    draft.publish(resolved, existing)
}

/// Appends `content` to the file at `resolved`: all of it or nothing.
pub(super) fn append(resolved: &mut ResolvedPath, content: &[u8]) -> Result<(), Failure> {
    if resolved.existing.is_none() {
        return store(resolved, content, Existing::Replace);
    }
    let path = resolved.canonical.to_string_lossy().into_owned();
    let fail = |e| Failure::io(e, &path);
    let mut file = open_for_writing(resolved).map_err(|e| Failure::os(e, &*path))?;
    let before = file.seek(io::SeekFrom::End(0)).map_err(fail)?;
    file.write_all(content).map_err(|error| {
        let _ = file.set_len(before);
        fail(error)
    })
}
