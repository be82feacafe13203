//! Files below a directory that sandboxes write: lists, reads, uploads and removals for clients of the server.
//!
//! What is in the directory is hostile. Each path is resolved by the kernel from the open directory, without following a link and
//! without leaving it, and only regular files are opened.

use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_model::ErrorCode;
use jiff::Timestamp;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, fchmod, fchown, fstat, linkat, mkdirat,
    openat, openat2, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

use crate::namespace::buckets::BucketUse;
use crate::namespace::storage::remove_contents_until;

/// Longest path, in bytes.
const MAX_PATH: usize = 4095;
/// Time for the removal of a directory with its content.
const REMOVAL_LIMIT: Duration = Duration::from_secs(60);
/// Attempts at what a rename at the same time can disturb.
const ATTEMPTS: usize = 16;

/// Why an operation failed. Paths are as the client wrote them.
#[derive(Debug, Error)]
pub enum FileTreeError {
    #[error("the path {path:?} is not valid: {reason}")]
    BadPath { path: String, reason: &'static str },
    #[error("there is no {path:?}")]
    NotFound { path: String },
    #[error("{path:?} is {found}, and not {wanted}")]
    WrongKind { path: String, found: &'static str, wanted: &'static str },
    #[error("{path:?} is a symbolic link or leads through one, and links are not followed")]
    Link { path: String },
    #[error("the directory {path:?} is not empty")]
    NotEmpty { path: String },
    #[error("{path:?} was not removed within {} seconds: something writes to it", REMOVAL_LIMIT.as_secs())]
    Busy { path: String },
    #[error("there is no space left")]
    Full,
    #[error("could not {what} {path:?}: {source}")]
    Io { what: &'static str, path: String, source: io::Error },
}

impl FileTreeError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::BadPath { .. } => ErrorCode::InvalidRequest,
            Self::NotFound { .. } => ErrorCode::NotFound,
            Self::WrongKind { .. } | Self::Link { .. } | Self::NotEmpty { .. } | Self::Busy { .. } => ErrorCode::Conflict,
            Self::Full => ErrorCode::Exhausted,
            Self::Io { .. } => ErrorCode::Internal,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, FileTreeError>;

/// A normalised path below the top directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreePath(Vec<u8>);

impl TreePath {
    /// Reads a path, which may start with a slash. An empty one, or a slash alone, is the top directory.
    ///
    /// # Errors
    /// If it is not normalised, or too long.
    pub fn parse(path: &[u8]) -> Result<Self> {
        let refuse = |reason| Err(FileTreeError::BadPath { path: shown(path), reason });
        let rest = path.strip_prefix(b"/").unwrap_or(path);
        if rest.len() > MAX_PATH {
            return refuse("it is longer than 4095 bytes");
        }
        if rest.contains(&0) {
            return refuse("it has a NUL byte");
        }
        if !rest.is_empty() && rest.split(|b| *b == b'/').any(|part| matches!(part, b"" | b"." | b"..")) {
            return refuse("it is not normalised: give no empty part, no . and no ..");
        }
        if rest.split(|b| *b == b'/').any(|part| part.len() > 255) {
            return refuse("a part of it is longer than 255 bytes");
        }
        Ok(Self(rest.to_vec()))
    }

    fn is_top(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &OsStr> {
        self.0.split(|b| *b == b'/').filter(|part| !part.is_empty()).map(OsStr::from_bytes)
    }

    /// The directory above, and the last part. None: it is the top directory.
    fn split(&self) -> Option<(Self, &OsStr)> {
        if self.is_top() {
            return None;
        }
        let at = self.0.iter().rposition(|b| *b == b'/');
        let (above, name) = at.map_or((&[][..], &self.0[..]), |at| (&self.0[..at], &self.0[at + 1..]));
        Some((Self(above.to_vec()), OsStr::from_bytes(name)))
    }

    fn as_os(&self) -> &OsStr {
        OsStr::from_bytes(if self.is_top() { b"." } else { &self.0 })
    }

    pub(crate) fn shown(&self) -> String {
        shown(&self.0)
    }
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).chars().take(200).collect()
}

/// What an entry of a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Link,
    /// A socket, a pipe, or a device.
    Other,
}

impl EntryKind {
    pub(crate) fn from_stat(about: &Stat) -> Self {
        match FileType::from_raw_mode(about.st_mode) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Link,
            _ => Self::Other,
        }
    }

    pub(crate) fn article(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Directory => "a directory",
            Self::Link => "a symbolic link",
            Self::Other => "a socket, a pipe or a device",
        }
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// Any bytes except `/` and NUL.
    pub name: Vec<u8>,
    pub kind: EntryKind,
    /// In bytes.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    pub modified_at: Timestamp,
}

impl TreeEntry {
    pub(crate) fn new(name: &[u8], about: &Stat) -> Self {
        Self {
            name: name.to_vec(),
            kind: EntryKind::from_stat(about),
            size: u64::try_from(about.st_size).unwrap_or(0),
            mode: about.st_mode & 0o7777,
            modified_at: modified(about),
        }
    }
}

/// A time that a sandbox may have set to anything.
pub(crate) fn modified(about: &Stat) -> Timestamp {
    let nanosecond = i32::try_from(about.st_mtime_nsec).unwrap_or(0);
    Timestamp::new(about.st_mtime, nanosecond).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct TreeFile {
    pub file: File,
    /// In bytes, when it was opened.
    pub size: u64,
    pub modified_at: Timestamp,
    /// Keeps a bucket mounted until the file is read.
    pub held: Option<Arc<BucketUse>>,
}

/// A directory with everything below it. All calls block.
#[derive(Debug)]
pub struct FileTree {
    top: OwnedFd,
    /// It is the mount of a bucket, which has no files without a name, and no owners and permissions.
    held: Option<Arc<BucketUse>>,
}

impl FileTree {
    /// `top` is an open directory.
    pub fn new(top: OwnedFd) -> Self {
        Self { top, held: None }
    }

    /// `top` is the mount of a bucket.
    pub fn of_bucket(top: OwnedFd, held: BucketUse) -> Self {
        Self { top, held: Some(Arc::new(held)) }
    }

    /// The first entries of a directory after a name, in the order of their bytes. The memory that this takes depends on `most`
    /// alone.
    pub fn list(&self, path: &TreePath, after: Option<&[u8]>, most: usize) -> Result<Vec<TreeEntry>> {
        let directory = self.directory(path)?;
        let failed = |error: Errno| classify("read", path, error);
        let mut first: BinaryHeap<Vec<u8>> = BinaryHeap::with_capacity(most.min(4096) + 1);
        for entry in Dir::read_from(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            let is_wanted = !matches!(name, b"." | b"..") && after.is_none_or(|after| name > after);
            if is_wanted && (first.len() < most || first.peek().is_some_and(|last| name < last.as_slice())) {
                first.push(name.to_vec());
                if first.len() > most {
                    first.pop();
                }
            }
        }
        let mut entries = Vec::with_capacity(first.len());
        for name in first.into_sorted_vec() {
            match statat(&directory, OsStr::from_bytes(&name), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(about) => entries.push(TreeEntry::new(&name, &about)),
                // Removed in the meantime.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(entries)
    }

    /// Opens a regular file.
    pub fn read(&self, path: &TreePath) -> Result<TreeFile> {
        // To open a pipe or a device has effects, so its kind is read first.
        let found = self.open(path, OFlags::PATH)?;
        let about = fstat(&found).map_err(|error| classify("look at", path, error))?;
        let kind = EntryKind::from_stat(&about);
        if kind != EntryKind::File {
            return Err(FileTreeError::WrongKind {
                path: path.shown(),
                found: kind.article(),
                wanted: EntryKind::File.article(),
            });
        }
        // A lease on the file could make this wait.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(CWD, own_path(found.as_fd()), flags, Mode::empty()).map_err(|error| classify("open", path, error))?;
        let size = u64::try_from(about.st_size).unwrap_or(0);
        Ok(TreeFile { file: File::from(file), size, modified_at: modified(&about), held: self.held.clone() })
    }

    /// Starts to write a file, which takes the place of one that is there when it is complete.
    pub fn upload(&self, path: &TreePath, create_parents: bool) -> Result<Upload> {
        let Some((above, name)) = path.split() else {
            return Err(FileTreeError::BadPath { path: path.shown(), reason: "it names no file" });
        };
        let parent = if create_parents { self.make_directories(&above)? } else { self.directory(&above)? };
        let failed = |error: Errno| classify("write", path, error);
        let before = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => Some(about),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(failed(error)),
        };
        if before.as_ref().is_some_and(|about| EntryKind::from_stat(about) == EntryKind::Directory) {
            let (found, wanted) = (EntryKind::Directory.article(), EntryKind::File.article());
            return Err(FileTreeError::WrongKind { path: path.shown(), found, wanted });
        }
        if let Some(held) = &self.held {
            let temporary = temporary_name();
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&parent, &temporary, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
            let unfinished = Some(Unfinished { temporary, _held: Arc::clone(held) });
            let (name, file, path) = (name.as_bytes().to_vec(), Some(File::from(file)), path.clone());
            return Ok(Upload { parent, name, file, path, unfinished });
        }
        // It has no name until it is complete, so nothing is left of it if the server ends.
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = openat(&parent, ".", flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let replaced = before.filter(|about| EntryKind::from_stat(about) == EntryKind::File);
        let like = match replaced {
            Some(about) => (about.st_uid, about.st_gid, about.st_mode & 0o777),
            None => {
                let about = fstat(&parent).map_err(failed)?;
                (about.st_uid, about.st_gid, 0o644)
            }
        };
        let set = fchown(&file, Some(Uid::from_raw(like.0)), Some(Gid::from_raw(like.1)));
        set.and_then(|()| fchmod(&file, Mode::from_raw_mode(like.2))).map_err(failed)?;
        let (name, file, path) = (name.as_bytes().to_vec(), Some(File::from(file)), path.clone());
        Ok(Upload { parent, name, file, path, unfinished: None })
    }

    /// Removes a file, a link, or an empty directory; with `recursive`, a directory with its content.
    pub fn remove(&self, path: &TreePath, recursive: bool) -> Result<()> {
        let Some((above, name)) = path.split() else {
            return Err(FileTreeError::BadPath { path: path.shown(), reason: "the top directory can't be removed" });
        };
        let parent = self.directory(&above)?;
        let failed = |error: Errno| classify("remove", path, error);
        match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(failed(error)),
        }
        let until = Instant::now() + REMOVAL_LIMIT;
        loop {
            match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
                Ok(()) => return Ok(()),
                Err(Errno::NOTEMPTY | Errno::EXIST) if !recursive => {
                    return Err(FileTreeError::NotEmpty { path: path.shown() });
                }
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
            if Instant::now() > until {
                return Err(FileTreeError::Busy { path: path.shown() });
            }
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
            let directory = openat(&parent, name, flags, Mode::empty()).map_err(failed)?;
            remove_contents_until(&directory, until).map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut => FileTreeError::Busy { path: path.shown() },
                _ => FileTreeError::Io { what: "remove", path: path.shown(), source: error },
            })?;
        }
    }

    /// Opens a directory, and creates it with those above it if they are missing. New ones have the owner and the mode of the
    /// one above.
    pub fn make_directories(&self, path: &TreePath) -> Result<OwnedFd> {
        let mut current = self.directory(&TreePath(Vec::new()))?;
        for part in path.parts() {
            current = match open_part(current.as_fd(), part) {
                Err(Errno::NOENT) => self
                    .make_directory(current.as_fd(), part)
                    .and_then(|()| open_part(current.as_fd(), part))
                    .map_err(|error| classify("make", path, error))?,
                other => other.map_err(|error| classify("open", path, error))?,
            };
        }
        Ok(current)
    }

    fn make_directory(&self, parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
        if self.held.is_none() {
            return make_directory(parent, name);
        }
        match mkdirat(parent, name, Mode::RWXU) {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    /// Opens an existing directory.
    pub fn directory(&self, path: &TreePath) -> Result<OwnedFd> {
        self.open(path, OFlags::DIRECTORY | OFlags::RDONLY)
    }

    fn open(&self, path: &TreePath, flags: OFlags) -> Result<OwnedFd> {
        open_beneath(self.top.as_fd(), path.as_os(), flags).map_err(|error| classify("open", path, error))
    }
}

fn classify(what: &'static str, path: &TreePath, error: Errno) -> FileTreeError {
    let path = path.shown();
    match error {
        Errno::NOENT => FileTreeError::NotFound { path },
        Errno::NOTDIR => FileTreeError::WrongKind { path, found: "no directory, or below a file", wanted: "a directory" },
        Errno::ISDIR => FileTreeError::WrongKind { path, found: "a directory", wanted: "a file" },
        Errno::LOOP | Errno::XDEV => FileTreeError::Link { path },
        Errno::NAMETOOLONG => FileTreeError::BadPath { path, reason: "it is too long" },
        Errno::NOSPC | Errno::DQUOT => FileTreeError::Full,
        error => FileTreeError::Io { what, path, source: error.into() },
    }
}

fn open_beneath(directory: BorrowedFd<'_>, path: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    for _ in 0..ATTEMPTS {
        match openat2(directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Something was renamed at the same time.
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn open_part(directory: BorrowedFd<'_>, part: &OsStr) -> rustix::io::Result<OwnedFd> {
    open_beneath(directory, part, OFlags::DIRECTORY | OFlags::RDONLY)
}

/// A path to an open file.
fn own_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Creates a directory, if it doesn't exist. It gets its name once it has its owner.
fn make_directory(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    let above = fstat(parent)?;
    let temporary = temporary_name();
    mkdirat(parent, &temporary, Mode::RWXU)?;
    let made = open_beneath(parent, OsStr::new(&temporary), OFlags::DIRECTORY | OFlags::RDONLY).and_then(|directory| {
        fchown(&directory, Some(Uid::from_raw(above.st_uid)), Some(Gid::from_raw(above.st_gid)))?;
        fchmod(&directory, Mode::from_raw_mode(above.st_mode & 0o3777))?;
        renameat_with(parent, &temporary, parent, name, RenameFlags::NOREPLACE)
    });
    match made {
        Ok(()) => Ok(()),
        Err(error) => {
            let _ = unlinkat(parent, &temporary, AtFlags::REMOVEDIR);
            if error == Errno::EXIST { Ok(()) } else { Err(error) }
        }
    }
}

fn temporary_name() -> String {
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).expect("the kernel's random source answers");
    format!(".arenite-{:016x}", u64::from_ne_bytes(random))
}

/// A file that is being written. Without [`Upload::finish`], nothing is left of it.
#[derive(Debug)]
pub struct Upload {
    parent: OwnedFd,
    name: Vec<u8>,
    /// None: it is finished.
    file: Option<File>,
    path: TreePath,
    /// In the mount of a bucket, it has a name from the start.
    unfinished: Option<Unfinished>,
}

#[derive(Debug)]
struct Unfinished {
    temporary: String,
    _held: Arc<BucketUse>,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(unfinished) = self.unfinished.take() {
            self.file = None;
            let _ = unlinkat(&self.parent, &unfinished.temporary, AtFlags::empty());
        }
    }
}

impl Upload {
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(number) => classify("write", &self.path, number),
            None => FileTreeError::Io { what: "write", path: self.path.shown(), source: error },
        })
    }

    /// Gives the file its name. It takes the place of a file or a link that has it.
    pub fn finish(mut self) -> Result<TreeEntry> {
        let name = self.name.clone();
        let name = OsStr::from_bytes(&name);
        let Some(file) = self.file.take() else { return Err(classify("write", &self.path, Errno::BADF)) };
        if let Some(unfinished) = &self.unfinished {
            // Closed, it is complete, and it is not uploaded before it has its name.
            drop(file);
            renameat(&self.parent, &unfinished.temporary, &self.parent, name)
                .map_err(|error| classify("write", &self.path, error))?;
            self.unfinished = None;
            let about = statat(&self.parent, name, AtFlags::SYMLINK_NOFOLLOW);
            return Ok(TreeEntry::new(&self.name, &about.map_err(|error| classify("look at", &self.path, error))?));
        }
        self.link(&file, name).map_err(|error| classify("write", &self.path, error))?;
        let about = fstat(&file).map_err(|error| classify("look at", &self.path, error))?;
        Ok(TreeEntry::new(&self.name, &about))
    }

    fn link(&self, file: &File, name: &OsStr) -> rustix::io::Result<()> {
        let own = own_path(file.as_fd());
        match linkat(CWD, &own, &self.parent, name, AtFlags::SYMLINK_FOLLOW) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
        let temporary = temporary_name();
        linkat(CWD, &own, &self.parent, &temporary, AtFlags::SYMLINK_FOLLOW)?;
        renameat(&self.parent, &temporary, &self.parent, name).inspect_err(|_| {
            let _ = unlinkat(&self.parent, &temporary, AtFlags::empty());
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;

    fn tree(top: &Path) -> FileTree {
        FileTree::new(File::open(top).unwrap().into())
    }

    fn path(text: &str) -> TreePath {
        TreePath::parse(text.as_bytes()).unwrap()
    }

    fn put(tree: &FileTree, to: &str, content: &[u8]) -> Result<TreeEntry> {
        let mut upload = tree.upload(&path(to), true)?;
        upload.write(content)?;
        upload.finish()
    }

    #[test]
    fn only_normalised_paths_are_paths() {
        for (good, parts) in [("", 0), ("/", 0), ("a", 1), ("/a/b", 2), ("a b/\n", 2), ("..a/...", 2)] {
            assert_eq!(path(good).parts().count(), parts, "{good:?}");
        }
        assert!(TreePath::parse(b"\xff/\x01").is_ok());
        let long = "a".repeat(256);
        for bad in ["//", "a/", "a//b", ".", "..", "a/../b", "/..", "./a", "a\0", &long, &"a/".repeat(3000)] {
            assert_eq!(TreePath::parse(bad.as_bytes()).unwrap_err().code(), ErrorCode::InvalidRequest, "{bad:?}");
        }
    }

    #[test]
    fn files_are_written_whole_listed_read_and_removed() {
        let top = tempfile::tempdir().unwrap();
        let files = tree(top.path());
        let entry = put(&files, "a/b/file", b"one").unwrap();
        assert_eq!((entry.name.as_slice(), entry.kind, entry.size, entry.mode), (&b"file"[..], EntryKind::File, 3, 0o644));
        // An upload that is cut off leaves the old file, and no other.
        let mut cut = files.upload(&path("a/b/file"), false).unwrap();
        cut.write(b"two").unwrap();
        drop(cut);
        let mut text = String::new();
        files.read(&path("/a/b/file")).unwrap().file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one");
        assert_eq!(files.list(&path("a/b"), None, 10).unwrap().len(), 1);
        // Of two at the same time, the last one wins as a whole.
        let (mut first, mut second) = (files.upload(&path("x"), false).unwrap(), files.upload(&path("x"), false).unwrap());
        first.write(b"first").unwrap();
        second.write(b"2nd").unwrap();
        second.finish().unwrap();
        first.finish().unwrap();
        assert_eq!(fs::read(top.path().join("x")).unwrap(), b"first");
        // A replaced file keeps its mode, without its special bits.
        fs::set_permissions(top.path().join("x"), fs::Permissions::from_mode(0o4751)).unwrap();
        assert_eq!(put(&files, "x", b"").unwrap().mode, 0o751);
        assert_eq!(files.upload(&path("no/x"), false).unwrap_err().code(), ErrorCode::NotFound);
        for (what, code) in [("a", ErrorCode::Conflict), ("x/y", ErrorCode::Conflict), ("", ErrorCode::InvalidRequest)] {
            assert_eq!(files.upload(&path(what), true).unwrap_err().code(), code, "{what}");
        }
        assert_eq!(files.remove(&path("a"), false).unwrap_err().code(), ErrorCode::Conflict);
        files.remove(&path("a"), true).unwrap();
        files.remove(&path("x"), false).unwrap();
        assert_eq!(files.remove(&path("x"), true).unwrap_err().code(), ErrorCode::NotFound);
        assert_eq!(files.remove(&path(""), true).unwrap_err().code(), ErrorCode::InvalidRequest);
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_and_pipes_are_shown_and_not_opened() {
        let (top, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("secret"), "secret").unwrap();
        symlink(outside.path(), top.path().join("directory")).unwrap();
        symlink(outside.path().join("secret"), top.path().join("file")).unwrap();
        symlink("..", top.path().join("above")).unwrap();
        rustix::fs::mknodat(CWD, top.path().join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let files = tree(top.path());
        let kinds: Vec<EntryKind> = files.list(&path(""), None, 10).unwrap().iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [EntryKind::Link, EntryKind::Link, EntryKind::Link, EntryKind::Other]);
        for bad in ["file", "directory/secret", "above/x", "pipe", "directory"] {
            assert_eq!(files.read(&path(bad)).unwrap_err().code(), ErrorCode::Conflict, "{bad}");
        }
        for bad in ["directory", "above", "pipe"] {
            assert_eq!(files.list(&path(bad), None, 10).unwrap_err().code(), ErrorCode::Conflict, "{bad}");
            assert_eq!(files.upload(&path(&format!("{bad}/new")), true).unwrap_err().code(), ErrorCode::Conflict, "{bad}");
            assert_eq!(files.remove(&path(&format!("{bad}/secret")), true).unwrap_err().code(), ErrorCode::Conflict, "{bad}");
        }
        // A link itself is replaced and removed.
        put(&files, "file", b"own").unwrap();
        files.remove(&path("directory"), true).unwrap();
        assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_page_has_the_next_names_of_any_bytes() {
        let top = tempfile::tempdir().unwrap();
        for number in 0..300 {
            fs::write(top.path().join(format!("n{number:03}")), "").unwrap();
        }
        fs::write(top.path().join(OsStr::from_bytes(b"\xff\n")), "").unwrap();
        let files = tree(top.path());
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = files.list(&path(""), after.as_deref(), 100).unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            seen.extend(page.into_iter().map(|entry| entry.name));
        }
        assert_eq!(seen.len(), 301);
        assert!(seen.is_sorted() && seen[300] == b"\xff\n");
    }
}
