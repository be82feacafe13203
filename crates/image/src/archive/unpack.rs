//! Unpacks the tar of an image's layer into a layer of overlayfs. Nothing is written outside the layer: links in names are
//! resolved inside the image, and no link is followed on the host.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use tar::EntryType;

use super::entries::{self, Entries};
use super::pack::{OPAQUE, OVERLAY_ATTRIBUTES, WHITEOUT};
use crate::copy::{LayerWriter, remove_whiteout, set_opaque, set_owner_and_mode};
use crate::tar_entry;
use crate::tree::MAX_ENTRIES;

/// Maximum size of a file in a layer, with its holes, in bytes.
const MAX_FILE_BYTES: u64 = super::MAX_LAYER_BYTES;
/// The kernel's limit on the length of a path.
const MAX_PATH_BYTES: usize = 4096;
/// Maximum number of components of a path.
const MAX_DEPTH: usize = 200;
/// Empty stretches of this size become holes.
const HOLE: usize = 64 << 10;

/// Unpacks into the empty layer `files`, on top of the layers `lower` (lowest first). Returns whether the layer depends on those
/// below: it has directories that are not in the tar, which look as they do there.
pub(super) fn unpack(tar: &mut dyn Read, lower: &[PathBuf], files: &Path) -> io::Result<bool> {
    unpack_as(Kind::Layer, tar, lower, files)
}

/// What a tar is unpacked as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Layer,
    /// Files for a build, all of root's: no name removes others, and there are no special files and attributes. With at most
    /// this many entries and bytes, holes of sparse files included.
    Context {
        entries: u64,
        bytes: u64,
    },
}

impl Kind {
    fn place(self) -> &'static str {
        if self == Self::Layer { "the layer" } else { "the context" }
    }
}

pub(super) fn unpack_as(kind: Kind, tar: &mut dyn Read, lower: &[PathBuf], files: &Path) -> io::Result<bool> {
    let target = LayerWriter::open(lower, files)?;
    // The image's root: as in Docker, it takes nothing over from the layers below.
    set_owner_and_mode(&target.directory(&[], 0o755, (0, 0))?, (0, 0), 0o755)?;
    let mut unpacker = Unpacker { kind, target, directories: HashMap::new(), parent: None, buffer: vec![0; HOLE], linked: false };
    let mut entries = Entries::new(tar);
    let (most_entries, most_bytes) = match kind {
        Kind::Layer => (MAX_ENTRIES, u64::MAX),
        Kind::Context { entries, bytes } => (entries, bytes),
    };
    let (mut count, mut bytes) = (0, 0u64);
    while let Some(entry) = entries.next()? {
        count += 1;
        if count > most_entries {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most_entries} files")));
        }
        bytes = bytes.saturating_add(entry.size);
        if bytes > most_bytes {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("its files have more than {most_bytes} bytes")));
        }
        let shown = OsString::from_vec(entry.path.clone());
        let put = NamedEntry::new(kind, entry).and_then(|entry| unpacker.put(&entry, &mut entries.content()));
        put.map_err(|error| io::Error::new(error.kind(), format!("{shown:?}: {error}")))?;
    }
    unpacker.finish()
}

/// An entry with a checked name and owner.
struct NamedEntry {
    components: Vec<OsString>,
    owner: (u32, u32),
    entry: entries::Entry,
}

impl NamedEntry {
    fn new(kind: Kind, mut entry: entries::Entry) -> io::Result<Self> {
        let owner = match kind {
            Kind::Layer => (tar_entry::owner_id(entry.owner.0)?, tar_entry::owner_id(entry.owner.1)?),
            Kind::Context { .. } => {
                entry.attributes.clear();
                (0, 0)
            }
        };
        Ok(Self { components: components(&entry.path, kind)?, owner, entry })
    }

    fn times(&self) -> Timestamps {
        let (tv_sec, tv_nsec) = self.entry.mtime;
        let time = Timespec { tv_sec, tv_nsec };
        Timestamps { last_access: time, last_modification: time }
    }
}

/// A path of the tar, from the layer's top.
fn components(path: &[u8], kind: Kind) -> io::Result<Vec<OsString>> {
    if path.len() > MAX_PATH_BYTES {
        return Err(Errno::NAMETOOLONG.into());
    }
    tar_entry::components(path, kind.place(), MAX_DEPTH)
}

/// A directory that entries are put into.
struct Parent {
    /// As in the tar.
    given: Vec<OsString>,
    /// With resolved links.
    resolved: Vec<OsString>,
    dir: OwnedFd,
}

struct Unpacker {
    kind: Kind,
    target: LayerWriter,
    /// Times of directories, which get them last: what is unpacked into them changes them.
    directories: HashMap<Vec<OsString>, Timestamps>,
    /// That of the last entry: the next one mostly has the same.
    parent: Option<Rc<Parent>>,
    buffer: Vec<u8>,
    /// A name went through a link, which other layers may not have.
    linked: bool,
}

impl Unpacker {
    fn put(&mut self, named: &NamedEntry, content: &mut dyn Read) -> io::Result<()> {
        let kind = named.entry.kind;
        let Some((name, parents)) = named.components.split_last() else {
            let top = self.target.directory(&[], 0o755, (0, 0))?;
            return if kind == EntryType::Directory {
                self.fill_directory(&top, Vec::new(), named)
            } else {
                Err(Errno::ISDIR.into())
            };
        };
        // Sandboxes have their own /dev.
        let is_layer = self.kind == Kind::Layer;
        if is_layer && matches!(kind, EntryType::Char | EntryType::Block) && parents.first().is_some_and(|first| first == "dev") {
            return Ok(());
        }
        let parent = self.parent(parents)?;
        let path = || [&parent.resolved[..], std::slice::from_ref(name)].concat();
        if kind == EntryType::Directory {
            let dir = self.directory(&parent.dir, name)?;
            return self.fill_directory(&dir, path(), named);
        }
        if is_layer && name.as_bytes() == OPAQUE {
            return set_opaque(&parent.dir);
        }
        if let Some(removed) = name.as_bytes().strip_prefix(WHITEOUT).filter(|_| is_layer) {
            return whiteout(&parent.dir, OsStr::from_bytes(removed), &named.times());
        }
        clear(&parent.dir, name)?;
        self.directories.remove(&path());
        match kind {
            EntryType::Regular | EntryType::Continuous => return self.file(&parent.dir, name, named, content),
            EntryType::Symlink => rustix::fs::symlinkat(OsStr::from_bytes(&named.entry.link), &parent.dir, name)?,
            EntryType::Link => return self.link(&parent.dir, name, &named.entry.link),
            EntryType::Fifo if is_layer => {
                rustix::fs::mknodat(&parent.dir, name, FileType::Fifo, Mode::from_raw_mode(named.entry.mode), 0)?;
            }
            EntryType::Fifo => return Err(io::Error::other("it is a FIFO")),
            EntryType::Char | EntryType::Block => return Err(io::Error::other("it is a device")),
            other => return Err(io::Error::other(format!("entries of type {other:?} are not supported"))),
        }
        let (uid, gid) = (Uid::from_raw(named.owner.0), Gid::from_raw(named.owner.1));
        rustix::fs::chownat(&parent.dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        if kind == EntryType::Fifo {
            // The umask applied to it, and a change of owner.
            rustix::fs::chmodat(&parent.dir, name, Mode::from_raw_mode(named.entry.mode), AtFlags::empty())?;
        }
        rustix::fs::utimensat(&parent.dir, name, &named.times(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// Opens the directory of an entry, and creates it if it is missing. Links in its path are resolved in the image.
    fn parent(&mut self, given: &[OsString]) -> io::Result<Rc<Parent>> {
        if let Some(last) = self.parent.as_ref().filter(|last| last.given == given) {
            return Ok(Rc::clone(last));
        }
        let (resolved, dir) = match self.target.directory(given, 0o755, (0, 0)) {
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP)) => {
                self.linked = true;
                let resolved = self.target.view.resolve(&given.iter().collect::<PathBuf>(), true)?.components;
                let dir = self.target.directory(&resolved, 0o755, (0, 0))?;
                (resolved, dir)
            }
            other => (given.to_vec(), other?),
        };
        let parent = Rc::new(Parent { given: given.to_vec(), resolved, dir });
        self.parent = Some(Rc::clone(&parent));
        Ok(parent)
    }

    /// Opens a directory of the tar, and creates it in place of what this layer has there.
    fn directory(&self, parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let was_removed = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
            Ok(dir) => return Ok(dir),
            Err(Errno::NOENT) => false,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let was_removed = remove_whiteout(parent, name)?;
                if !was_removed {
                    rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
                }
                was_removed
            }
            Err(error) => return Err(error.into()),
        };
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700))?;
        let dir = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        if was_removed {
            set_opaque(&dir)?;
        }
        Ok(dir)
    }

    fn fill_directory(&mut self, dir: &OwnedFd, path: Vec<OsString>, named: &NamedEntry) -> io::Result<()> {
        set_attributes(dir, named)?;
        self.directories.insert(path, named.times());
        Ok(())
    }

    fn file(&mut self, parent: &OwnedFd, name: &OsStr, named: &NamedEntry, content: &mut dyn Read) -> io::Result<()> {
        if named.entry.size > MAX_FILE_BYTES {
            return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?);
        for (offset, length) in named.entry.pieces.as_deref().unwrap_or(&[(0, named.entry.size)]) {
            file.seek(SeekFrom::Start(*offset))?;
            self.copy(&mut content.take(*length), &mut file)?;
        }
        // A hole at the end counts.
        file.set_len(named.entry.size)?;
        let file = OwnedFd::from(file);
        set_attributes(&file, named)?;
        rustix::fs::futimens(&file, &named.times())?;
        Ok(())
    }

    /// Copies to a file's position, with holes in place of empty stretches.
    fn copy(&mut self, content: &mut dyn Read, file: &mut File) -> io::Result<()> {
        loop {
            let mut filled = 0;
            while filled < self.buffer.len() {
                match content.read(&mut self.buffer[filled..]) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            let bytes = &self.buffer[..filled];
            if filled == HOLE && bytes.iter().all(|byte| *byte == 0) {
                file.seek(SeekFrom::Current(HOLE as i64))?;
            } else {
                file.write_all(bytes)?;
            }
            if filled < HOLE {
                return Ok(());
            }
        }
    }

    /// A second name of a file of this layer.
    fn link(&mut self, parent: &OwnedFd, name: &OsStr, target: &[u8]) -> io::Result<()> {
        let target = components(target, self.kind)?;
        let (first, above) = target.split_last().ok_or(Errno::ISDIR)?;
        let above = self.parent(above)?;
        rustix::fs::linkat(&above.dir, first, parent, name, AtFlags::empty()).map_err(|error| match error {
            Errno::NOENT => {
                let place = if self.kind == Kind::Layer { "this layer" } else { "the context" };
                io::Error::other(format!("the file that it is another name of is not in {place}"))
            }
            other => other.into(),
        })
    }

    fn finish(self) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for (path, times) in &self.directories {
            let top = self.target.directory(&[], 0o755, (0, 0))?;
            let found = path.iter().try_fold(top, |dir, name| rustix::fs::openat(&dir, name, flags, Mode::empty()));
            match found {
                Ok(dir) => rustix::fs::futimens(&dir, times)?,
                // Replaced by a later entry.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.linked || self.target.follows_lower())
    }
}

/// Removes a name of the layers below. What this layer has under the name stays, wherever it is in the tar. The times make the
/// layer the same wherever it is unpacked.
fn whiteout(parent: &OwnedFd, name: &OsStr, times: &Timestamps) -> io::Result<()> {
    if name.as_bytes().starts_with(WHITEOUT) {
        // Notes of AUFS, which mean nothing to other file systems.
        return Ok(());
    }
    if name.is_empty() || name == "." || name == ".." {
        return Err(io::Error::other("it removes no name"));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(dir) => set_opaque(&dir),
        Err(Errno::NOENT) => {
            rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)?;
            Ok(rustix::fs::utimensat(parent, name, times, AtFlags::SYMLINK_NOFOLLOW)?)
        }
        // It hides what is below already.
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes what this layer has under the name of a file; a directory only if it is empty.
fn clear(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?),
        Err(error) => Err(error.into()),
    }
}

/// Sets owner, mode, and attributes, in this order: a change of owner clears set-id bits and capabilities. Attributes of other
/// systems, such as labels of SELinux, are left out, and so are overlayfs's, which would change what sandboxes see.
fn set_attributes(node: &OwnedFd, named: &NamedEntry) -> io::Result<()> {
    set_owner_and_mode(node, named.owner, named.entry.mode)?;
    for (name, value) in &named.entry.attributes {
        let bytes = name.as_bytes();
        let is_user = bytes.starts_with(b"user.") && !bytes.starts_with(OVERLAY_ATTRIBUTES);
        if is_user || bytes == b"security.capability" {
            rustix::fs::fsetxattr(node, name.as_os_str(), value, XattrFlags::empty())?;
        }
    }
    Ok(())
}
