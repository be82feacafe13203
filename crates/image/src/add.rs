//! ADD: unpacks archives of the context into a new layer.
//!
//! An archive is hostile: its names may lead out, through links of the image or of the archive itself. Names are resolved in
//! the layered view, inside the image's root, and files are created through descriptors that follow no link.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use flate2::read::MultiGzDecoder;
use rustix::fs::{AtFlags, Gid, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use tar::EntryType;

use crate::archive::entries::{self, Entries};
use crate::copy::{LayerWriter, new_file, set_owner_and_mode};
use crate::root::Entry;
use crate::tar_entry;
use crate::tree::{MAX_DEPTH, MAX_ENTRIES};

/// Maximum size of what an archive unpacks to, in bytes.
const MAX_UNPACKED_BYTES: u64 = 64 << 30;
const HEADER_BYTES: usize = 512;

/// How an archive is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Tar,
    GzipTar,
}

/// What a file's first bytes say about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FoundPacking {
    /// Not an archive: ADD copies it.
    None,
    Some(Packing),
    /// The name of a compression that is not supported.
    Unsupported(&'static str),
}

/// Finds out whether a file is an archive.
pub(crate) fn packing(file: &OwnedFd) -> io::Result<FoundPacking> {
    let mut file = File::from(file.try_clone()?);
    file.seek(SeekFrom::Start(0))?;
    let start = first_bytes(&mut file)?;
    for (magic, name) in [(&b"BZh"[..], "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")] {
        if start.starts_with(magic) {
            return Ok(FoundPacking::Unsupported(name));
        }
    }
    if is_tar_header(&start) {
        return Ok(FoundPacking::Some(Packing::Tar));
    }
    if start.starts_with(&[0x1f, 0x8b]) {
        file.seek(SeekFrom::Start(0))?;
        // A damaged one is copied, as a file that is not an archive.
        let is_tar = first_bytes(&mut MultiGzDecoder::new(&mut file)).is_ok_and(|start| is_tar_header(&start));
        if is_tar {
            return Ok(FoundPacking::Some(Packing::GzipTar));
        }
    }
    Ok(FoundPacking::None)
}

fn first_bytes(from: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    from.take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether the bytes are a header with the right sum.
fn is_tar_header(bytes: &[u8]) -> bool {
    if bytes.len() < HEADER_BYTES || bytes[0] == 0 {
        return false;
    }
    let digits = String::from_utf8_lossy(&bytes[148..156]);
    let given = u32::from_str_radix(digits.trim_matches(|c: char| c == ' ' || c == '\0'), 8);
    let sum = bytes.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum();
    given == Ok(sum)
}

/// Unpacks into the directory `at` of the image, which is created with this owner if it is missing. As in Docker, files keep the
/// owners that the archive gives them. `most` is a maximum size below that of all archives, in bytes.
pub(crate) fn unpack(
    target: &mut LayerWriter,
    at: &[OsString],
    file: &OwnedFd,
    packing: Packing,
    (created_owner, most): ((u32, u32), Option<u64>),
) -> io::Result<()> {
    let mut file = File::from(file.try_clone()?);
    file.seek(SeekFrom::Start(0))?;
    let reader = io::BufReader::with_capacity(1 << 20, file);
    target.directory(at, 0o755, created_owner)?;
    let most = most.unwrap_or(MAX_UNPACKED_BYTES).min(MAX_UNPACKED_BYTES);
    let mut unpacker = Unpacker { target, at, most, directories: BTreeMap::new(), bytes: 0 };
    match packing {
        Packing::Tar => unpacker.all(reader)?,
        Packing::GzipTar => unpacker.all(MultiGzDecoder::new(reader))?,
    }
    unpacker.finish()
}

struct Unpacker<'a> {
    target: &'a mut LayerWriter,
    at: &'a [OsString],
    /// Maximum number of bytes.
    most: u64,
    /// Times of directories, which get them last: what is unpacked into them changes them.
    directories: BTreeMap<Vec<OsString>, Timestamps>,
    bytes: u64,
}

/// The attributes of an entry.
struct Attributes {
    owner: (u32, u32),
    mode: u32,
    times: Timestamps,
}

impl Unpacker<'_> {
    fn all(&mut self, reader: impl Read) -> io::Result<()> {
        let mut entries = Entries::new(reader);
        let mut count = 0;
        while let Some(entry) = entries.next()? {
            count += 1;
            if count > MAX_ENTRIES {
                return Err(io::Error::other(format!("it has more than {MAX_ENTRIES} files")));
            }
            let shown = OsString::from_vec(entry.path.clone());
            self.put(&entry, &mut entries.content())
                .map_err(|error| io::Error::new(error.kind(), format!("{shown:?}: {error}")))?;
        }
        Ok(())
    }

    fn put(&mut self, entry: &entries::Entry, content: &mut dyn Read) -> io::Result<()> {
        let kind = entry.kind;
        let parts = components(&entry.path)?;
        let owner = (tar_entry::owner_id(entry.owner.0)?, tar_entry::owner_id(entry.owner.1)?);
        let (tv_sec, tv_nsec) = entry.mtime;
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        let attributes = Attributes { owner, mode: entry.mode & 0o7777, times };
        if kind == EntryType::Directory {
            return self.directory(&parts, &attributes);
        }
        let Some((name, parents)) = parts.split_last() else {
            return Err(Errno::ISDIR.into());
        };
        let parent = self.resolved(parents)?;
        let dir = self.target.directory(&parent, 0o755, (0, 0))?;
        let path = [&parent[..], std::slice::from_ref(name)].concat();
        if let Entry::Directory(_) = self.target.view.entry(&path)? {
            return Err(io::Error::other("it is a directory in the image"));
        }
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        match kind {
            EntryType::Regular | EntryType::Continuous => self.file(&dir, name, entry, content, &attributes),
            EntryType::Symlink => {
                rustix::fs::symlinkat(OsStr::from_bytes(&entry.link), &dir, name)?;
                let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
                rustix::fs::chownat(&dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(rustix::fs::utimensat(&dir, name, &attributes.times, AtFlags::SYMLINK_NOFOLLOW)?)
            }
            EntryType::Link => {
                let link = components(&entry.link)?;
                let (first, above) = link.split_last().ok_or(Errno::ISDIR)?;
                let above = self.resolved(above)?;
                let above = self.target.directory(&above, 0o755, (0, 0))?;
                rustix::fs::linkat(&above, first, &dir, name, AtFlags::empty()).map_err(|error| match error {
                    Errno::NOENT => io::Error::other("the file that it is another name of is not in the archive"),
                    other => other.into(),
                })
            }
            EntryType::Char | EntryType::Block => Err(io::Error::other("it is a device")),
            EntryType::Fifo => Err(io::Error::other("it is a FIFO")),
            other => Err(io::Error::other(format!("entries of type {other:?} are not supported"))),
        }
    }

    /// A directory's path in the image, with resolved links.
    fn resolved(&self, parts: &[OsString]) -> io::Result<Vec<OsString>> {
        let mut path = PathBuf::from("/");
        path.extend(self.at);
        path.extend(parts);
        let resolved = self.target.view.resolve(&path, true)?;
        match resolved.entry {
            Entry::Directory(_) | Entry::Missing => Ok(resolved.components),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn directory(&mut self, parts: &[OsString], attributes: &Attributes) -> io::Result<()> {
        let path = self.resolved(parts)?;
        let dir = self.target.directory(&path, attributes.mode, attributes.owner)?;
        // The archive's own top is the destination, which keeps its attributes.
        if !parts.is_empty() {
            set_owner_and_mode(&dir, attributes.owner, attributes.mode)?;
            self.directories.insert(path, attributes.times.clone());
        }
        Ok(())
    }

    fn file(
        &mut self,
        dir: &OwnedFd,
        name: &OsStr,
        entry: &entries::Entry,
        content: &mut dyn Read,
        attributes: &Attributes,
    ) -> io::Result<()> {
        // With the holes of a sparse file, which a copy of it may fill.
        self.bytes = self.bytes.saturating_add(entry.size);
        if self.bytes > self.most {
            return Err(io::Error::other(format!("the archive unpacks to more than {} bytes", self.most)));
        }
        let mut file = new_file(dir, name)?;
        for (offset, length) in entry.pieces.as_deref().unwrap_or(&[(0, entry.size)]) {
            file.seek(SeekFrom::Start(*offset))?;
            io::copy(&mut content.take(*length), &mut file)?;
        }
        file.set_len(entry.size)?;
        file.flush()?;
        let file = OwnedFd::from(file);
        set_owner_and_mode(&file, attributes.owner, attributes.mode)?;
        Ok(rustix::fs::futimens(&file, &attributes.times)?)
    }

    fn finish(self) -> io::Result<()> {
        for (path, times) in &self.directories {
            let dir = self.target.directory(path, 0o755, (0, 0))?;
            rustix::fs::futimens(&dir, times)?;
        }
        Ok(())
    }
}

/// A path of the archive.
fn components(path: &[u8]) -> io::Result<Vec<OsString>> {
    tar_entry::components(path, "the archive", MAX_DEPTH)
}

#[cfg(test)]
mod tests;
