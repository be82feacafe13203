//! A tree of files read in a fixed order: for its digest, and to copy it while the digest is computed again.

use std::ffi::{CString, OsStr};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::ImageError;
use crate::digest::FieldDigest;
use crate::root::{Entry, Merged, Opened};

/// Maximum depth of a copied tree.
pub(crate) const MAX_DEPTH: usize = 100;
/// Maximum number of files, directories and links of one COPY source.
pub(crate) const MAX_ENTRIES: u64 = 1_000_000;

/// Receives the entries of a walk, in its order. Paths are relative to the tree's top; the top itself is empty.
pub(crate) trait TreeSink {
    /// A directory; its entries follow, then [`TreeSink::leave`].
    fn enter(&mut self, path: &Path, stat: &Stat) -> io::Result<()>;
    fn leave(&mut self, path: &Path, stat: &Stat) -> io::Result<()>;
    fn symlink(&mut self, path: &Path, stat: &Stat, target: &OsStr) -> io::Result<()>;
    /// A file, before its content.
    fn file(&mut self, path: &Path, stat: &Stat) -> io::Result<()>;
    fn content(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn end_file(&mut self, path: &Path, stat: &Stat) -> io::Result<()>;
}

/// Ignores the entries: for a walk that only computes the digest.
pub(crate) struct NoSink;

impl TreeSink for NoSink {
    fn enter(&mut self, _: &Path, _: &Stat) -> io::Result<()> {
        Ok(())
    }
    fn leave(&mut self, _: &Path, _: &Stat) -> io::Result<()> {
        Ok(())
    }
    fn symlink(&mut self, _: &Path, _: &Stat, _: &OsStr) -> io::Result<()> {
        Ok(())
    }
    fn file(&mut self, _: &Path, _: &Stat) -> io::Result<()> {
        Ok(())
    }
    fn content(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn end_file(&mut self, _: &Path, _: &Stat) -> io::Result<()> {
        Ok(())
    }
}

/// SHA-256 of a file or directory: paths, kinds, permission bits, contents and links' targets; not owners and times.
/// Links inside are read, never followed. 64 hexadecimal digits.
pub fn sha256_tree(path: &Path) -> Result<String, ImageError> {
    let at = || ImageError::io("could not read", path);
    let file = rustix::fs::open(path, source_flags(), Mode::empty()).map_err(|e| at()(e.into()))?;
    let top = Top::from_fd(file).map_err(at())?;
    walk(&top, WalkRules::ALL, &mut NoSink).map_err(|e| ImageError::Io {
        what: "could not read",
        path: path.join(e.path),
        source: e.source,
    })
}

/// Opens a source of COPY below the context's root. Links on the way can't lead out of the context.
pub(crate) fn open_source(context: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let below = Path::new(OsStr::from_bytes(
        path.as_os_str()
            .as_bytes()
            .iter()
            .position(|b| *b != b'/')
            .map_or(b".".as_slice(), |at| &path.as_os_str().as_bytes()[at..]),
    ));
    // The kernel returns EAGAIN if a rename elsewhere raced with a `..` in the path.
    for _ in 0..16 {
        match rustix::fs::openat2(
            context,
            below,
            source_flags(),
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        ) {
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// NONBLOCK: opening a FIFO must not wait for a writer.
fn source_flags() -> OFlags {
    OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC
}

/// A failed walk and the path of the failure.
#[derive(Debug)]
pub(crate) struct WalkError {
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

/// Which entries a walk passes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    Included,
    /// Not itself, but what is in it may be. A directory comes with the first such entry.
    Descend,
    Excluded,
}

/// The rules of a walk.
#[derive(Clone, Copy)]
pub(crate) struct WalkRules<'a> {
    /// Selects entries by their path below the top.
    pub(crate) select: Option<&'a dyn Fn(&Path) -> Selection>,
    /// The digest covers owners.
    pub(crate) with_owners: bool,
}

impl WalkRules<'_> {
    /// All entries, without their owners.
    pub(crate) const ALL: WalkRules<'static> = WalkRules { select: None, with_owners: false };
}

/// The top of a walk.
#[derive(Debug)]
pub(crate) enum Top {
    Directory(Merged),
    File(OwnedFd),
}

impl Top {
    /// From a descriptor, which is a file's or a directory's.
    pub(crate) fn from_fd(node: OwnedFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&node)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Self::Directory(Merged::plain(node)),
            FileType::RegularFile => Self::File(node),
            kind => return Err(not_copyable(kind)),
        })
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self, Self::Directory(_))
    }
}

/// Walks a tree from its opened top, passes its entries to the sink and returns its digest.
pub(crate) fn walk(top: &Top, rules: WalkRules<'_>, sink: &mut dyn TreeSink) -> Result<String, WalkError> {
    let mut walk = Walk {
        sink,
        rules,
        digest: FieldDigest::new("tree"),
        path: PathBuf::new(),
        entries: 0,
        pending: Vec::new(),
        buffer: vec![0; 128 << 10],
    };
    let walked = match top {
        Top::Directory(directory) => walk.directory(directory, 0),
        Top::File(file) => walk.count().and_then(|()| walk.file(file)),
    };
    match walked {
        Ok(()) => Ok(walk.digest.hex()),
        Err(source) => Err(WalkError { path: walk.path, source }),
    }
}

struct Walk<'a> {
    sink: &'a mut dyn TreeSink,
    rules: WalkRules<'a>,
    digest: FieldDigest,
    path: PathBuf,
    entries: u64,
    /// Directories around the current entry that the sink does not have yet.
    pending: Vec<(PathBuf, Stat)>,
    buffer: Vec<u8>,
}

impl Walk<'_> {
    fn count(&mut self) -> io::Result<()> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(io::Error::other(format!("there are more than {MAX_ENTRIES} files")));
        }
        Ok(())
    }

    fn selection(&self) -> Selection {
        self.rules.select.map_or(Selection::Included, |select| select(&self.path))
    }

    fn head(&mut self, kind: &str, path: &Path, stat: &Stat, mode: u32) {
        self.digest.add(kind, path.as_os_str().as_bytes());
        self.digest.add("mode", (mode & 0o7777).to_le_bytes());
        if self.rules.with_owners {
            self.digest.add("uid", stat.st_uid.to_le_bytes());
            self.digest.add("gid", stat.st_gid.to_le_bytes());
        }
    }

    /// Passes on the directories around an entry that is included.
    fn enter_pending(&mut self) -> io::Result<()> {
        for (path, stat) in std::mem::take(&mut self.pending) {
            self.head("directory", &path, &stat, stat.st_mode);
            self.sink.enter(&path, &stat)?;
        }
        Ok(())
    }

    fn directory(&mut self, directory: &Merged, depth: usize) -> io::Result<()> {
        self.count()?;
        if depth >= MAX_DEPTH {
            return Err(io::Error::other(format!("directories are nested more than {MAX_DEPTH} deep")));
        }
        let selection = self.selection();
        if selection == Selection::Excluded {
            return Ok(());
        }
        let stat = directory.stat()?;
        self.pending.push((self.path.clone(), stat));
        if selection == Selection::Included {
            self.enter_pending()?;
        }
        for name in directory.names()? {
            self.path.push(&name);
            self.child(directory, &name, depth)?;
            self.path.pop();
        }
        // It is still there if nothing in it was included.
        match self.pending.pop() {
            Some(_) => Ok(()),
            None => self.sink.leave(&self.path, &stat),
        }
    }

    fn child(&mut self, parent: &Merged, name: &OsStr, depth: usize) -> io::Result<()> {
        if self.selection() == Selection::Excluded {
            return Ok(());
        }
        match parent.lookup(name)? {
            (_, Some(directory)) => self.directory(&directory, depth + 1),
            (Entry::Missing | Entry::Directory(_), None) => Ok(()),
            _ if self.selection() != Selection::Included => Ok(()),
            (Entry::Symlink(target, stat), None) => {
                self.count()?;
                self.enter_pending()?;
                let path = self.path.clone();
                self.head("link", &path, &stat, 0);
                self.digest.add("target", target.as_bytes());
                self.sink.symlink(&path, &stat, &target)
            }
            (Entry::File(_), None) => match parent.open(name)? {
                Some(Opened::File(file)) => {
                    self.count()?;
                    self.file(&file)
                }
                _ => Err(Errno::NOENT.into()),
            },
            (Entry::Special(stat), None) => Err(not_copyable(FileType::from_raw_mode(stat.st_mode))),
        }
    }

    fn file(&mut self, file: &OwnedFd) -> io::Result<()> {
        let stat = rustix::fs::fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_copyable(FileType::from_raw_mode(stat.st_mode)));
        }
        self.enter_pending()?;
        let path = self.path.clone();
        self.head("file", &path, &stat, stat.st_mode);
        self.sink.file(&path, &stat)?;
        let mut content = Sha256::new();
        let mut reader = std::fs::File::from(file.try_clone()?);
        // A top is walked twice, for its digest and to copy it.
        reader.seek(SeekFrom::Start(0))?;
        loop {
            let n = match reader.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            content.update(&self.buffer[..n]);
            self.sink.content(&self.buffer[..n])?;
        }
        self.digest.add("content", content.finalize());
        self.sink.end_file(&path, &stat)
    }
}

fn not_copyable(kind: FileType) -> io::Error {
    let kind = match kind {
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    io::Error::other(format!("this is {kind}; only files, directories and links can be copied"))
}

pub(crate) fn sorted_names(dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Blocks on disk of a directory and all in it, in bytes; a hard-linked file counts once. Links are not followed.
/// At most [`MAX_USAGE_DEPTH`] directories deep: no build makes deeper ones on purpose.
pub(crate) fn disk_usage(dir: &Path) -> io::Result<u64> {
    fn sum(dir: &OwnedFd, depth: usize, linked: &mut std::collections::HashSet<(u64, u64)>) -> io::Result<u64> {
        if depth > MAX_USAGE_DEPTH {
            return Err(io::Error::other(format!("directories are nested more than {MAX_USAGE_DEPTH} deep")));
        }
        let mut bytes = 0;
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if !is_dir && stat.st_nlink > 1 && !linked.insert((stat.st_dev, stat.st_ino)) {
                continue;
            }
            bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            if is_dir {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let child = rustix::fs::openat(dir, name, flags, Mode::empty())?;
                bytes += sum(&child, depth + 1, linked)?;
            }
        }
        Ok(bytes)
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(dir, flags, Mode::empty())?;
    sum(&top, 0, &mut std::collections::HashSet::new())
}

/// The least that a file counts as in [`growing_usage`], in bytes: empty ones take space, too.
const LEAST_FILE_BYTES: u64 = 512;

/// The same for a directory that a step writes to. Stops above `most`. More than [`MAX_ENTRIES`] files, or more than
/// [`MAX_USAGE_DEPTH`] directories inside each other, count as too much.
pub(crate) fn growing_usage(dir: &Path, most: u64) -> io::Result<u64> {
    struct Count {
        bytes: u64,
        entries: u64,
        most: u64,
        linked: std::collections::HashSet<(u64, u64)>,
    }
    fn sum(dir: &OwnedFd, depth: usize, count: &mut Count) -> io::Result<()> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            count.entries += 1;
            if depth >= MAX_USAGE_DEPTH || count.entries > MAX_ENTRIES {
                count.bytes = u64::MAX;
            }
            if count.bytes > count.most {
                return Ok(());
            }
            // The step may have removed it meanwhile.
            let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if !is_dir && stat.st_nlink > 1 && !count.linked.insert((stat.st_dev, stat.st_ino)) {
                continue;
            }
            let bytes = (u64::try_from(stat.st_blocks).unwrap_or(0) * 512).max(LEAST_FILE_BYTES);
            count.bytes = count.bytes.saturating_add(bytes);
            if is_dir {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let Ok(child) = rustix::fs::openat(dir, name, flags, Mode::empty()) else { continue };
                sum(&child, depth + 1, count)?;
            }
        }
        Ok(())
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(dir, flags, Mode::empty())?;
    let mut count = Count { bytes: 0, entries: 0, most, linked: std::collections::HashSet::new() };
    sum(&top, 0, &mut count)?;
    Ok(count.bytes)
}

/// Limits the descriptors and the stack of [`disk_usage`].
pub(crate) const MAX_USAGE_DEPTH: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_a_step_writes_is_counted_up_to_a_limit() {
        let scratch = tempfile::tempdir().unwrap();
        let sub = scratch.path().join("a/b");
        std::fs::create_dir_all(&sub).unwrap();
        std::fs::write(sub.join("data"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(sub.join("data"), sub.join("again")).unwrap();
        let used = growing_usage(scratch.path(), u64::MAX).unwrap();
        assert!((100_000..150_000).contains(&used), "{used}");
        // Empty files count, too.
        for number in 0..100 {
            std::fs::write(sub.join(number.to_string()), "").unwrap();
        }
        assert!(growing_usage(scratch.path(), u64::MAX).unwrap() >= used + 100 * LEAST_FILE_BYTES);
        assert!(growing_usage(scratch.path(), 50_000).unwrap() > 50_000);
    }

    #[test]
    fn the_digest_of_a_tree_follows_names_modes_contents_and_targets() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        std::fs::create_dir(top.join("d")).unwrap();
        std::fs::write(top.join("d/a"), "one").unwrap();
        symlink("d/a", top.join("l")).unwrap();
        let mut seen = vec![sha256_tree(top).unwrap()];
        assert_eq!(sha256_tree(top).unwrap(), seen[0]);

        let mut differs = |what: &str| {
            let now = sha256_tree(top).unwrap();
            assert!(!seen.contains(&now), "{what} did not change the digest");
            seen.push(now);
        };
        std::fs::write(top.join("d/a"), "two").unwrap();
        differs("content");
        std::fs::set_permissions(top.join("d/a"), PermissionsExt::from_mode(0o755)).unwrap();
        differs("mode");
        std::fs::rename(top.join("d/a"), top.join("d/b")).unwrap();
        differs("name");
        std::fs::remove_file(top.join("l")).unwrap();
        symlink("d/b", top.join("l")).unwrap();
        differs("target");
        std::fs::create_dir(top.join("empty")).unwrap();
        differs("empty directory");
        std::fs::rename(top.join("d/b"), top.join("b")).unwrap();
        differs("place");
    }

    #[test]
    fn a_fifo_is_refused_and_never_waited_for() {
        let scratch = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, scratch.path().join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let error = sha256_tree(scratch.path()).unwrap_err().to_string();
        assert!(error.contains("pipe") && error.contains("FIFO"), "{error}");
    }

    #[test]
    fn a_hard_linked_file_is_counted_once() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("a"), vec![1u8; 1 << 20]).unwrap();
        let once = disk_usage(scratch.path()).unwrap();
        std::fs::hard_link(scratch.path().join("a"), scratch.path().join("b")).unwrap();
        assert_eq!(disk_usage(scratch.path()).unwrap(), once);
        assert!(once >= 1 << 20);
    }
}
