//! Unpacks the tar of an OCI image's layer into a layer of overlayfs. Nothing is written outside the layer: names go through its
//! directories only, and no link is followed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use tar::{EntryType, Header};

use super::pack::{OPAQUE, OPAQUE_ATTRIBUTE, PAX_ATTRIBUTE, WHITEOUT};
use crate::copy::LayerWriter;
use crate::tree::MAX_ENTRIES;

/// Maximum size of the header of one entry, in bytes.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// Unpacks into the empty layer `files`, on top of the layers `lower` (lowest first).
pub(super) fn unpack(tar: &mut dyn Read, lower: &[PathBuf], files: &Path) -> io::Result<()> {
    let mut unpacker = Unpacker { target: LayerWriter::open(lower, files)?, directories: HashMap::new() };
    let mut archive = tar::Archive::new(tar);
    let mut extended = Extended::default();
    let mut entries = 0;
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(io::Error::other(format!("it has more than {MAX_ENTRIES} files")));
        }
        match entry.header().entry_type() {
            EntryType::XHeader => extended.add_records(&bounded(&mut entry)?)?,
            EntryType::GNULongName => extended.path = Some(terminated(bounded(&mut entry)?)),
            EntryType::GNULongLink => extended.link = Some(terminated(bounded(&mut entry)?)),
            EntryType::XGlobalHeader => {}
            kind => {
                let file = Entry::new(entry.header(), std::mem::take(&mut extended))?;
                let shown = file.components.iter().collect::<PathBuf>();
                let put = unpacker.put(kind, file, &mut entry);
                put.map_err(|error| io::Error::new(error.kind(), format!("{shown:?}: {error}")))?;
            }
        }
    }
    unpacker.finish()
}

fn bounded(entry: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(MAX_HEADER_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_HEADER_BYTES {
        return Err(io::Error::other(format!("a header has more than {MAX_HEADER_BYTES} bytes")));
    }
    Ok(bytes)
}

fn terminated(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(end) = name.iter().position(|byte| *byte == 0) {
        name.truncate(end);
    }
    name
}

/// What the headers before an entry say about it.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<i64>,
    attributes: Vec<(OsString, Vec<u8>)>,
}

impl Extended {
    /// Adds the records of a PAX header. A value may have any bytes: its length says where it ends.
    fn add_records(&mut self, mut records: &[u8]) -> io::Result<()> {
        let malformed = || io::Error::other("an entry has a malformed PAX header");
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
            let digits = std::str::from_utf8(&records[..space]).map_err(|_| malformed())?;
            let length: usize = digits.parse().map_err(|_| malformed())?;
            let record = records.get(space + 1..length).and_then(|r| r.strip_suffix(b"\n")).ok_or_else(malformed)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            let number = || std::str::from_utf8(value).ok().and_then(|text| text.split('.').next()?.parse::<i64>().ok());
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"uid" => self.uid = Some(number().and_then(|n| n.try_into().ok()).ok_or_else(malformed)?),
                b"gid" => self.gid = Some(number().and_then(|n| n.try_into().ok()).ok_or_else(malformed)?),
                b"mtime" => self.mtime = Some(number().ok_or_else(malformed)?),
                b"size" | b"GNU.sparse.major" => return Err(io::Error::other("sparse and very large files are not supported")),
                _ => {
                    if let Some(name) = key.strip_prefix(PAX_ATTRIBUTE.as_bytes()) {
                        self.attributes.push((OsStr::from_bytes(name).to_owned(), value.to_vec()));
                    }
                }
            }
            records = &records[length..];
        }
        Ok(())
    }
}

/// A file, directory, or link of the archive.
struct Entry {
    components: Vec<OsString>,
    link: Vec<u8>,
    owner: (u32, u32),
    mode: u32,
    mtime: i64,
    attributes: Vec<(OsString, Vec<u8>)>,
}

impl Entry {
    fn new(header: &Header, extended: Extended) -> io::Result<Self> {
        let path = extended.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = extended.link.or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
        let id = |id: u64| u32::try_from(id).map_err(|_| io::Error::other("an owner's id has more than 32 bits"));
        let uid = extended.uid.map_or_else(|| header.uid(), Ok)?;
        let gid = extended.gid.map_or_else(|| header.gid(), Ok)?;
        let mtime = extended.mtime.map_or_else(|| header.mtime().map(|time| i64::try_from(time).unwrap_or(0)), Ok)?;
        Ok(Self {
            components: components(&path)?,
            link: link.unwrap_or_default(),
            owner: (id(uid)?, id(gid)?),
            mode: header.mode()? & 0o7777,
            mtime,
            attributes: extended.attributes,
        })
    }

    fn times(&self) -> Timestamps {
        let time = Timespec { tv_sec: self.mtime, tv_nsec: 0 };
        Timestamps { last_access: time, last_modification: time }
    }
}

/// A path of the archive, from the layer's top.
fn components(path: &[u8]) -> io::Result<Vec<OsString>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts
        .map(|part| match part {
            b".." => Err(io::Error::other(format!("{:?} leads out of the layer", OsStr::from_bytes(path)))),
            _ if part.contains(&0) => Err(io::Error::other("a name has a NUL byte")),
            _ => Ok(OsString::from_vec(part.to_vec())),
        })
        .collect()
}

struct Unpacker {
    target: LayerWriter,
    /// Times of directories, which get them last: what is unpacked into them changes them.
    directories: HashMap<Vec<OsString>, Timestamps>,
}

impl Unpacker {
    fn put(&mut self, kind: EntryType, entry: Entry, content: &mut dyn Read) -> io::Result<()> {
        let Some((name, parents)) = entry.components.split_last() else {
            return if kind == EntryType::Directory { self.directory(&entry) } else { Err(Errno::ISDIR.into()) };
        };
        if kind == EntryType::Directory {
            let parent = self.target.directory(parents, 0o755, (0, 0))?;
            self.clear(&parent, name, true)?;
            return self.directory(&entry);
        }
        let parent = self.target.directory(parents, 0o755, (0, 0))?;
        if name.as_bytes() == OPAQUE {
            return Ok(rustix::fs::fsetxattr(&parent, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())?);
        }
        if let Some(removed) = name.as_bytes().strip_prefix(WHITEOUT) {
            let removed = OsStr::from_bytes(removed);
            self.directories.remove(&[parents, &[removed.to_owned()]].concat());
            self.clear(&parent, removed, false)?;
            return Ok(rustix::fs::mknodat(&parent, removed, FileType::CharacterDevice, Mode::empty(), 0)?);
        }
        self.directories.remove(&entry.components);
        self.clear(&parent, name, false)?;
        match kind {
            EntryType::Regular | EntryType::Continuous => return file(&parent, name, &entry, content),
            EntryType::Symlink => rustix::fs::symlinkat(OsStr::from_bytes(&entry.link), &parent, name)?,
            EntryType::Link => return self.link(&parent, name, &entry),
            EntryType::Fifo => rustix::fs::mknodat(&parent, name, FileType::Fifo, Mode::from_raw_mode(entry.mode), 0)?,
            EntryType::Char | EntryType::Block => return Err(io::Error::other("it is a device")),
            other => return Err(io::Error::other(format!("entries of type {other:?} are not supported"))),
        }
        let (uid, gid) = (Uid::from_raw(entry.owner.0), Gid::from_raw(entry.owner.1));
        rustix::fs::chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::utimensat(&parent, name, &entry.times(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    fn directory(&mut self, entry: &Entry) -> io::Result<()> {
        let dir = self.target.directory(&entry.components, entry.mode, entry.owner)?;
        set_attributes(&dir, entry)?;
        self.directories.insert(entry.components.clone(), entry.times());
        Ok(())
    }

    /// A second name of a file of this layer.
    fn link(&self, parent: &OwnedFd, name: &OsStr, entry: &Entry) -> io::Result<()> {
        let components = components(&entry.link)?;
        let (first, above) = components.split_last().ok_or(Errno::ISDIR)?;
        let above = self.target.directory(above, 0o755, (0, 0))?;
        Ok(rustix::fs::linkat(&above, first, parent, name, AtFlags::empty())?)
    }

    /// Removes what this layer has under the name; a directory only in place of an empty one, and not for another directory.
    fn clear(&self, parent: &OwnedFd, name: &OsStr, for_directory: bool) -> io::Result<()> {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) if for_directory => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?),
            Err(error) => Err(error.into()),
        }
    }

    fn finish(self) -> io::Result<()> {
        for (components, times) in &self.directories {
            let dir = self.target.directory(components, 0o755, (0, 0))?;
            rustix::fs::futimens(&dir, times)?;
        }
        Ok(())
    }
}

fn file(parent: &OwnedFd, name: &OsStr, entry: &Entry, content: &mut dyn Read) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?);
    io::copy(content, &mut file)?;
    file.flush()?;
    let file = OwnedFd::from(file);
    set_attributes(&file, entry)?;
    rustix::fs::futimens(&file, &entry.times())?;
    Ok(())
}

/// Sets owner, mode, and attributes, in this order: a change of owner clears set-id bits and capabilities.
fn set_attributes(node: &OwnedFd, entry: &Entry) -> io::Result<()> {
    rustix::fs::fchown(node, Some(Uid::from_raw(entry.owner.0)), Some(Gid::from_raw(entry.owner.1)))?;
    rustix::fs::fchmod(node, Mode::from_raw_mode(entry.mode))?;
    for (name, value) in &entry.attributes {
        rustix::fs::fsetxattr(node, name.as_os_str(), value, XattrFlags::empty())?;
    }
    Ok(())
}
