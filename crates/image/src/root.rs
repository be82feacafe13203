//! The root of an image as its sandboxes see it, read from its layers without mounting them.
//!
//! Names are looked up one component at a time in descriptors of the layers, never by a path on the host, and links are
//! resolved here, inside the image's root. So if a layer's `/app` points to `/etc` or `../../..`, the target is the image's
//! `/etc` and root, never the host's.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Maximum number of links in one path, as in the kernel.
const MAX_LINKS: usize = 40;
/// The kernel's limit on the length of a path.
const MAX_PATH_BYTES: usize = 4096;

/// An image's root: layers in which upper ones hide lower ones, as in overlayfs.
#[derive(Debug)]
pub struct RootView {
    /// Top first.
    layers: Vec<Arc<OwnedFd>>,
}

/// A directory entry.
#[derive(Debug, Clone)]
pub enum Entry {
    Missing,
    Directory(Stat),
    File(Stat),
    /// Its target, unresolved.
    Symlink(OsString, Stat),
    /// A device, a FIFO or a socket.
    Special(Stat),
}

/// A path with resolved links.
#[derive(Debug)]
pub struct Resolved {
    /// Components below the root: without links, except the last component if it was not to be followed; without `.` and `..`.
    pub components: Vec<OsString>,
    pub entry: Entry,
}

impl Resolved {
    /// The path from the image's root.
    pub fn path(&self) -> PathBuf {
        let mut path = PathBuf::from("/");
        path.extend(&self.components);
        path
    }
}

/// A directory of the view: its visible directories in the layers, top first.
#[derive(Debug, Clone)]
pub(crate) struct Merged(Vec<Arc<OwnedFd>>);

/// An opened entry of the view.
#[derive(Debug)]
pub(crate) enum Opened {
    Directory(Merged),
    File(OwnedFd),
}

impl RootView {
    /// Opens the layers' directories, lowest first as in an [`crate::Image`].
    pub fn open<'a>(layers: impl IntoIterator<Item = &'a Path>) -> io::Result<Self> {
        let mut fds = Vec::new();
        for dir in layers {
            fds.push(Arc::new(open_dir(rustix::fs::CWD, dir)?));
        }
        fds.reverse();
        Ok(Self { layers: fds })
    }

    /// Resolves a path from the root, with or without a leading `/`. Follows links on the way, and the last one only if
    /// `follow` is set. Missing components are kept as they are.
    pub fn resolve(&self, path: &Path, follow: bool) -> io::Result<Resolved> {
        if path.as_os_str().len() > MAX_PATH_BYTES {
            return Err(Errno::NAMETOOLONG.into());
        }
        let mut todo: VecDeque<OsString> = split(path.as_os_str()).collect();
        let mut links = 0;
        let mut stack = vec![self.root()];
        let mut done: Vec<OsString> = Vec::new();
        let mut entry = self.root_entry()?;
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                done.pop();
                // The parent of the root is the root; the parent of a missing component is the one before it.
                if stack.len() > done.len() + 1 {
                    stack.pop();
                }
                if stack.len() == done.len() + 1 {
                    entry = Entry::Directory(self.stat_of(&stack)?);
                }
                continue;
            }
            if stack.len() <= done.len() {
                done.push(name);
                entry = Entry::Missing;
                continue;
            }
            let here = stack.last().expect("the root is never popped");
            let (found, directory) = here.lookup(&name)?;
            if let Entry::Symlink(target, _) = &found
                && (follow || !todo.is_empty())
            {
                links += 1;
                if links > MAX_LINKS || target.len() > MAX_PATH_BYTES {
                    return Err(Errno::LOOP.into());
                }
                if target.as_bytes().starts_with(b"/") {
                    stack.truncate(1);
                    done.clear();
                }
                for part in split(target).collect::<Vec<_>>().into_iter().rev() {
                    todo.push_front(part);
                }
                // After an absolute link to `/`, or one to `.`, nothing is left to look up.
                entry = Entry::Directory(self.stat_of(&stack)?);
                continue;
            }
            match (directory, &found) {
                (Some(directory), _) => stack.push(directory),
                (None, Entry::Missing) => {}
                (None, _) if !todo.is_empty() => return Err(Errno::NOTDIR.into()),
                _ => {}
            }
            done.push(name);
            entry = found;
        }
        Ok(Resolved { components: done, entry })
    }

    /// The entry at a path with resolved links.
    pub fn entry(&self, components: &[OsString]) -> io::Result<Entry> {
        let mut here = self.root();
        let mut entry = self.root_entry()?;
        for (index, name) in components.iter().enumerate() {
            let (found, directory) = here.lookup(name)?;
            entry = found;
            match directory {
                Some(directory) => here = directory,
                None if index + 1 == components.len() => {}
                None => return Ok(Entry::Missing),
            }
        }
        Ok(entry)
    }

    /// A regular file's content, at most `limit` bytes; none if it is missing or something else.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let resolved = self.resolve(path, true)?;
        let (Entry::File(_), Some((name, parents))) = (&resolved.entry, resolved.components.split_last()) else {
            return Ok(None);
        };
        let mut here = self.root();
        for parent in parents {
            match here.lookup(parent)?.1 {
                Some(directory) => here = directory,
                None => return Ok(None),
            }
        }
        for layer in &here.0 {
            // NONBLOCK: if it has become a FIFO since, opening it must not wait for a writer.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match rustix::fs::openat(layer, name, flags, Mode::empty()) {
                Ok(file) => {
                    let stat = rustix::fs::fstat(&file)?;
                    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                        return Ok(None);
                    }
                    let mut content = Vec::new();
                    std::fs::File::from(file).take(limit + 1).read_to_end(&mut content)?;
                    if content.len() as u64 > limit {
                        return Err(Errno::FBIG.into());
                    }
                    return Ok(Some(content));
                }
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(None)
    }

    /// Opens a file or directory by its path, through links. None if there is neither.
    pub(crate) fn open_node(&self, path: &Path) -> io::Result<Option<Opened>> {
        let resolved = self.resolve(path, true)?;
        let mut here = self.root();
        for (index, name) in resolved.components.iter().enumerate() {
            let is_last = index + 1 == resolved.components.len();
            match here.open(name)? {
                Some(Opened::Directory(directory)) => here = directory,
                found if is_last => return Ok(found),
                _ => return Ok(None),
            }
        }
        Ok(Some(Opened::Directory(here)))
    }

    fn root(&self) -> Merged {
        let mut shown = Vec::new();
        for layer in &self.layers {
            shown.push(Arc::clone(layer));
            if is_opaque(layer.as_fd()) {
                break;
            }
        }
        Merged(shown)
    }

    fn root_entry(&self) -> io::Result<Entry> {
        Ok(match self.layers.first() {
            Some(top) => Entry::Directory(rustix::fs::fstat(top)?),
            None => Entry::Missing,
        })
    }

    fn stat_of(&self, stack: &[Merged]) -> io::Result<Stat> {
        let top = stack.last().and_then(|m| m.0.first());
        Ok(rustix::fs::fstat(top.ok_or(Errno::NOENT)?)?)
    }
}

impl Merged {
    /// A directory outside of any image: it has one layer.
    pub(crate) fn plain(dir: OwnedFd) -> Self {
        Self(vec![Arc::new(dir)])
    }

    /// The top layer's attributes.
    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(self.0.first().ok_or(Errno::NOENT)?)?)
    }

    /// All visible names, sorted.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        // With whether the name may be hidden: by a whiteout or something else in an upper layer, or as a whiteout of the only one.
        let mut names = BTreeMap::new();
        let are_merged = self.0.len() > 1;
        for layer in &self.0 {
            for entry in Dir::read_from(layer)? {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name != "." && name != ".." && !names.contains_key(name) {
                    let may_be_whiteout = matches!(entry.file_type(), FileType::CharacterDevice | FileType::Unknown);
                    names.insert(name.to_owned(), are_merged || may_be_whiteout);
                }
            }
        }
        let mut visible = Vec::with_capacity(names.len());
        for (name, may_be_hidden) in names {
            if !may_be_hidden || !matches!(self.lookup(&name)?.0, Entry::Missing) {
                visible.push(name);
            }
        }
        Ok(visible)
    }

    /// Opens a file or directory by its name here, without following a link. None if there is neither.
    pub(crate) fn open(&self, name: &OsStr) -> io::Result<Option<Opened>> {
        let (entry, directory) = self.lookup(name)?;
        match (entry, directory) {
            (_, Some(directory)) => Ok(Some(Opened::Directory(directory))),
            (Entry::File(_), None) => {
                for layer in &self.0 {
                    // NONBLOCK: if it has become a FIFO since, opening it must not wait for a writer.
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                    match rustix::fs::openat(layer, name, flags, Mode::empty()) {
                        Ok(file) => return Ok(Some(Opened::File(file))),
                        Err(Errno::NOENT) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Looks up a name in this directory; also returns the directory, if it is one.
    pub(crate) fn lookup(&self, name: &OsStr) -> io::Result<(Entry, Option<Merged>)> {
        let mut shown: Vec<Arc<OwnedFd>> = Vec::new();
        let mut first: Option<Stat> = None;
        for layer in &self.0 {
            let stat = match rustix::fs::statat(layer, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(e.into()),
            };
            if is_whiteout(&stat) {
                break;
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let dir = open_dir(layer.as_fd(), name)?;
                let opaque = is_opaque(dir.as_fd());
                first.get_or_insert(stat);
                shown.push(Arc::new(dir));
                if opaque {
                    break;
                }
            } else if first.is_some() {
                break;
            } else {
                let entry = match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Symlink => {
                        let target = rustix::fs::readlinkat(layer, name, Vec::new())?;
                        Entry::Symlink(OsString::from_vec(target.into_bytes()), stat)
                    }
                    FileType::RegularFile => Entry::File(stat),
                    _ => Entry::Special(stat),
                };
                return Ok((entry, None));
            }
        }
        Ok(match first {
            Some(stat) => (Entry::Directory(stat), Some(Merged(shown))),
            None => (Entry::Missing, None),
        })
    }
}

fn split(path: &OsStr) -> impl Iterator<Item = OsString> + '_ {
    path.as_bytes()
        .split(|b| *b == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(|part| OsString::from_vec(part.to_vec()))
}

fn open_dir(at: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Whether a file of a layer hides what the layers below have at its path.
pub fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Whether a directory of a layer hides those of the layers below.
pub fn is_opaque(dir: BorrowedFd<'_>) -> bool {
    let mut value = [0u8; 8];
    matches!(
        rustix::fs::fgetxattr(dir, c"user.overlay.opaque", &mut value),
        Ok(1) if value[0] == b'y'
    )
}

#[cfg(test)]
mod tests;
