//! Compares two disks of a sandbox, without mounting them.
//!
//! A disk is a stack of directories: the writable layer, and the layers of its image. Both disks have the same image, so only
//! directories in which one of them has a layer that the other lacks are visited, and the cost follows the changes.
//!
//! The contents are hostile. No link is followed, nothing but regular files is opened, and depth, time and results are bounded.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use arenite_image::{is_opaque, is_whiteout};
use arenite_model::SandboxId;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fgetxattr, flistxattr, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::at;
use super::engine::{EngineShared, NamespaceEngine, blocking};
use super::storage::open_dir;
use crate::{ChangedPath, Comparison, DiskState, EngineError, PathChange, PathKind};

/// Directories below each other that are compared; what is deeper is left out.
const MAX_DEPTH: usize = 100;
/// Size of the blocks in which contents are read.
pub(super) const BLOCK: usize = 256 << 10;
/// After this time, the rest is left out.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Files that the server writes at each start of a sandbox.
const OWN: [&str; 4] = ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/usr/local/bin/aio"];

impl NamespaceEngine {
    pub(super) async fn compare_disks(
        &self,
        id: &SandboxId,
        before: DiskState,
        after: DiskState,
        limit: usize,
    ) -> Result<Comparison, EngineError> {
        let (shared, id) = (self.shared.clone(), id.clone());
        shared.check_states()?;
        blocking(move || {
            let (before, after) = (shared.disk(&id, &before)?, shared.disk(&id, &after)?);
            compare(&before, &after, limit).map_err(|e| at("comparison", e))
        })
        .await
    }
}

impl EngineShared {
    /// The directories of a disk, the uppermost first.
    pub(super) fn disk(&self, id: &SandboxId, which: &DiskState) -> Result<Vec<PathBuf>, EngineError> {
        let record = self.record_of(id)?;
        let storage = &self.host.storage;
        let upper = match self.sealed(&record, which)? {
            Some(manifest) => Some(storage.state_path(&manifest.state.id)),
            None if *which == DiskState::Current => Some(storage.layer_path(id)),
            None => None,
        };
        Ok(upper.map(|layer| layer.join("upper")).into_iter().chain(record.layers.into_iter().rev()).collect())
    }
}

/// The directories of one path in the layers of a disk, the uppermost first.
#[derive(Debug, Default)]
pub(crate) struct Stack(Vec<(OwnedFd, Identity)>);

/// A file's device and inode number.
type Identity = (u64, u64);

fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

pub(super) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A file of a disk: what it is, and the layer's directory that has it.
pub(crate) struct Entry<'a> {
    parent: BorrowedFd<'a>,
    pub(crate) stat: Stat,
}

/// What reads the differences of two disks.
pub(super) trait Differences {
    /// Whether the rest is left out.
    fn is_over(&mut self) -> bool;

    /// The rest is left out: directories are too deep.
    fn cut(&mut self);

    /// A file of the second disk in a directory that the first one does not share, also if it is the same.
    fn visit(&mut self, _path: &[u8], _after: &Entry<'_>) {}

    /// A path that differs, with the file after the change; of a removed path, the file before it.
    fn note(&mut self, path: &[u8], change: PathChange, entry: &Entry<'_>, name: &CStr) -> io::Result<()>;

    /// Whether two regular files of one size have the same content.
    fn is_same_content(&mut self, before: &Entry<'_>, after: &Entry<'_>, name: &CStr) -> io::Result<bool>;
}

impl Stack {
    pub(crate) fn open(layers: &[PathBuf]) -> io::Result<Self> {
        let mut stack = Self::default();
        for layer in layers {
            let directory = open_dir(CWD, layer)?;
            let about = identity(&fstat(&directory)?);
            stack.0.push((directory, about));
        }
        Ok(stack)
    }

    /// The directories themselves, the uppermost first.
    pub(crate) fn directories(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|(directory, _)| directory.as_fd())
    }

    /// The device of the uppermost directory.
    pub(super) fn top_device(&self) -> Option<u64> {
        self.0.first().map(|(_, (device, _))| *device)
    }

    pub(crate) fn find(&self, name: &CStr) -> io::Result<Option<Entry<'_>>> {
        for (directory, _) in &self.0 {
            match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if is_whiteout(&stat) => return Ok(None),
                Ok(stat) => return Ok(Some(Entry { parent: directory.as_fd(), stat })),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// The stack of a directory in it, which exists.
    pub(crate) fn descend(&self, name: &CStr) -> io::Result<Self> {
        let mut below = Self::default();
        for (directory, _) in &self.0 {
            match open_dir(directory.as_fd(), name) {
                Ok(found) => {
                    let is_last = is_opaque(found.as_fd());
                    let about = identity(&fstat(&found)?);
                    below.0.push((found, about));
                    if is_last {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // A file, a link or a whiteout hides what is below it.
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::NOTDIR | Errno::LOOP) => break,
                    _ => return Err(error),
                },
            }
        }
        Ok(below)
    }

    /// The names in the directories that are not in `other`, into `names`.
    fn names_apart(&self, other: &Self, names: &mut BTreeSet<CString>) -> io::Result<()> {
        for (directory, about) in &self.0 {
            if other.0.iter().any(|(_, theirs)| theirs == about) {
                continue;
            }
            for entry in Dir::read_from(directory)? {
                let name = entry?.file_name().to_owned();
                if !matches!(name.to_bytes(), b"." | b"..") {
                    names.insert(name);
                }
            }
        }
        Ok(())
    }
}

fn compare(before: &[PathBuf], after: &[PathBuf], limit: usize) -> io::Result<Comparison> {
    let (a, b) = (Stack::open(before)?, Stack::open(after)?);
    let mut list = List { found: Comparison::default(), limit, until: Instant::now() + TIME_LIMIT };
    walk(&mut list, &a, &b)?;
    list.found.paths.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(list.found)
}

/// Lists the differences.
struct List {
    found: Comparison,
    limit: usize,
    until: Instant,
}

impl Differences for List {
    fn is_over(&mut self) -> bool {
        if self.found.paths.len() >= self.limit || Instant::now() > self.until {
            self.found.truncated = true;
        }
        self.found.truncated
    }

    fn cut(&mut self) {
        self.found.truncated = true;
    }

    fn note(&mut self, path: &[u8], change: PathChange, entry: &Entry<'_>, _name: &CStr) -> io::Result<()> {
        if self.is_over() {
            return Ok(());
        }
        let stat = &entry.stat;
        let kind = match kind_of(stat) {
            FileType::RegularFile => PathKind::File,
            FileType::Directory => PathKind::Directory,
            FileType::Symlink => PathKind::Symlink,
            _ => PathKind::Special,
        };
        let size = if kind == PathKind::File { u64::try_from(stat.st_size).unwrap_or_default() } else { 0 };
        let path = String::from_utf8_lossy(path).into_owned();
        self.found.paths.push(ChangedPath { path, change, kind, size, mode: stat.st_mode & 0o7777 });
        Ok(())
    }

    fn is_same_content(&mut self, before: &Entry<'_>, after: &Entry<'_>, name: &CStr) -> io::Result<bool> {
        let (mut a, mut b) = (before.open(name)?, after.open(name)?);
        let (mut left, mut right) = (vec![0u8; BLOCK], vec![0u8; BLOCK]);
        loop {
            let read = read_full(&mut a, &mut left)?;
            if read_full(&mut b, &mut right)? != read || left[..read] != right[..read] {
                return Ok(false);
            }
            if read < left.len() {
                return Ok(true);
            }
        }
    }
}

/// Walks through the differences of two disks, in the order of names.
pub(super) fn walk(found: &mut impl Differences, a: &Stack, b: &Stack) -> io::Result<()> {
    directory(found, a, b, &mut Vec::new(), 0)
}

/// Compares what two stacks have at `path`. Either may be empty: then all of the other was added or removed.
fn directory(found: &mut impl Differences, a: &Stack, b: &Stack, path: &mut Vec<u8>, depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        found.cut();
        return Ok(());
    }
    let mut names = BTreeSet::new();
    a.names_apart(b, &mut names)?;
    b.names_apart(a, &mut names)?;
    let length = path.len();
    for name in names {
        if found.is_over() {
            return Ok(());
        }
        path.truncate(length);
        path.push(b'/');
        path.extend_from_slice(name.to_bytes());
        if OWN.iter().any(|own| own.as_bytes() == &path[..]) {
            continue;
        }
        let (before, after) = (a.find(&name)?, b.find(&name)?);
        let is_dir = |entry: &Option<Entry<'_>>| entry.as_ref().is_some_and(|e| kind_of(&e.stat) == FileType::Directory);
        let (in_a, in_b) = (is_dir(&before), is_dir(&after));
        if let Some(after) = &after {
            found.visit(path, after);
        }
        match (&before, &after) {
            (None, None) => continue,
            (None, Some(after)) => found.note(path, PathChange::Added, after, &name)?,
            (Some(before), None) => found.note(path, PathChange::Removed, before, &name)?,
            (Some(before), Some(after)) => {
                if let Some(change) = change(found, before, after, &name)? {
                    found.note(path, change, after, &name)?;
                }
            }
        }
        if in_a || in_b {
            let below = |stack: &Stack, is_dir| if is_dir { stack.descend(&name) } else { Ok(Stack::default()) };
            directory(found, &below(a, in_a)?, &below(b, in_b)?, path, depth + 1)?;
        }
    }
    path.truncate(length);
    Ok(())
}

/// How two files with the same path differ.
fn change(found: &mut impl Differences, before: &Entry<'_>, after: &Entry<'_>, name: &CStr) -> io::Result<Option<PathChange>> {
    let (a, b) = (&before.stat, &after.stat);
    let kind = kind_of(a);
    if kind != kind_of(b) {
        return Ok(Some(PathChange::Modified));
    }
    // A copy of a subvolume keeps inode numbers and change times, which nothing in a sandbox can set.
    let is_same_inode = a.st_ino == b.st_ino && (a.st_ctime, a.st_ctime_nsec) == (b.st_ctime, b.st_ctime_nsec);
    if identity(a) == identity(b) || (is_same_inode && kind != FileType::Directory) {
        return Ok(None);
    }
    let differs = match kind {
        FileType::Directory => false,
        FileType::RegularFile => a.st_size != b.st_size || !found.is_same_content(before, after, name)?,
        FileType::Symlink => before.read_link(name)? != after.read_link(name)?,
        _ => a.st_rdev != b.st_rdev,
    };
    if differs {
        return Ok(Some(PathChange::Modified));
    }
    let attributes = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid);
    let differ = attributes(a) != attributes(b) || before.xattrs(name)? != after.xattrs(name)?;
    Ok(differ.then_some(PathChange::Attributes))
}

impl Entry<'_> {
    /// Opens a regular file or a directory.
    pub(crate) fn open(&self, name: &CStr) -> io::Result<std::fs::File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(std::fs::File::from(openat(self.parent, name, flags, Mode::empty())?))
    }

    pub(super) fn read_link(&self, name: &CStr) -> io::Result<CString> {
        Ok(readlinkat(self.parent, name, Vec::new())?)
    }

    /// The extended attributes, without those of overlays. Links and special files have none to set.
    pub(super) fn xattrs(&self, name: &CStr) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if !matches!(kind_of(&self.stat), FileType::RegularFile | FileType::Directory) {
            return Ok(Vec::new());
        }
        let file = self.open(name)?;
        let mut list = vec![0u8; 64 << 10];
        let length = match flistxattr(&file, &mut list) {
            Err(Errno::OPNOTSUPP) => 0,
            other => other?,
        };
        let mut found = Vec::new();
        for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            if name.starts_with(b"user.overlay.") || name.starts_with(b"trusted.overlay.") {
                continue;
            }
            let mut value = vec![0u8; 64 << 10];
            let size = fgetxattr(&file, name, &mut value)?;
            value.truncate(size);
            found.push((name.to_vec(), value));
        }
        found.sort_unstable();
        Ok(found)
    }
}

pub(super) fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn shown(before: &[PathBuf], after: &[PathBuf]) -> Vec<String> {
        let found = compare(before, after, 100).unwrap();
        assert!(!found.truncated);
        found.paths.iter().map(|path| format!("{:?} {}", path.change, path.path)).collect()
    }

    #[test]
    fn changes_are_found_and_nothing_else() {
        let top = tempfile::tempdir().unwrap();
        let dirs = ["image", "a", "b"].map(|name| top.path().join(name));
        for dir in &dirs {
            fs::create_dir_all(dir.join("d/e")).unwrap();
        }
        let [image, a, b] = &dirs;
        for name in ["d/same", "d/e/kept", "top"] {
            fs::write(image.join(name), "1").unwrap();
        }
        fs::write(a.join("d/copied"), "x").unwrap();
        fs::write(b.join("d/copied"), "x").unwrap();
        fs::write(a.join("d/e/gone"), "x").unwrap();
        fs::write(b.join("top"), "2").unwrap();
        fs::create_dir(b.join("new")).unwrap();
        fs::write(b.join("new/file"), "x").unwrap();
        fs::write(a.join("mode"), "x").unwrap();
        fs::write(b.join("mode"), "x").unwrap();
        fs::set_permissions(b.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink("1", a.join("link")).unwrap();
        symlink("2", b.join("link")).unwrap();
        let (before, after) = ([a.clone(), image.clone()], [b.clone(), image.clone()]);
        let expected =
            ["Modified /link", "Attributes /mode", "Removed /d/e/gone", "Added /new", "Added /new/file", "Modified /top"];
        let mut found = shown(&before, &after);
        found.sort();
        let mut expected = expected.map(str::to_owned);
        expected.sort();
        assert_eq!(found, expected);
        assert!(shown(&before, &before).is_empty());
        let few = compare(&before, &after, 2).unwrap();
        assert!(few.truncated && few.paths.len() == 2);
    }
}
