//! A layer as the tar of an OCI image: overlayfs's whiteouts and opaque directories become `.wh.` files.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tar::{EntryType, Header};

use super::BLOCK;
use crate::tree::{MAX_USAGE_DEPTH, sorted_names};

/// Prefix of a whiteout: the layers below have the rest of the name, and this one removes it.
pub(super) const WHITEOUT: &[u8] = b".wh.";
/// In a directory that hides what the layers below have in it.
pub(super) const OPAQUE: &[u8] = b".wh..wh..opq";
/// overlayfs's attribute of such a directory. Its other attributes refer to this host's layers.
const OPAQUE_ATTRIBUTE: &str = "user.overlay.opaque";
pub(super) const OVERLAY_ATTRIBUTES: &[u8] = b"user.overlay.";
/// Key of an extended attribute in a PAX header, before the attribute's name.
pub(super) const PAX_ATTRIBUTE: &str = "SCHILY.xattr.";
/// Maximum size of a file's list of attributes, or of the value of one, in bytes.
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;

/// Extended attributes: names and values.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Maximum number of pieces of a sparse file; one with more is packed with its holes.
const MAX_PIECES: usize = 10_000;

/// Writes all files of a layer, in the order of their names: the same layer gives the same bytes.
pub(crate) fn pack(files: &Path, out: &mut dyn Write) -> io::Result<()> {
    pack_as(files, out, false)
}

/// The same for a layer that a sandbox wrote, with exact times and without the holes of sparse files.
///
/// # Errors
/// Also for a name that means a removal in an archive.
pub(super) fn pack_exact(files: &Path, out: &mut dyn Write) -> io::Result<()> {
    pack_as(files, out, true)
}

fn pack_as(files: &Path, out: &mut dyn Write, is_exact: bool) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(files, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&top)?;
    let mut packer = Packer { out, is_exact, linked: HashMap::new(), buffer: vec![0; 128 << 10], records: Vec::new() };
    packer.directory(&top, &stat, b"", 0)?;
    packer.out.write_all(&[0; 2 * BLOCK as usize])
}

/// Number of bytes that fill the last block of a file.
pub(super) fn padding(size: u64) -> usize {
    ((BLOCK - size % BLOCK) % BLOCK) as usize
}

/// The header of a readable file that belongs to root. Its name has at most 100 bytes.
pub(super) fn plain_header(name: &str, size: u64) -> Header {
    let mut header = Header::new_ustar();
    fill(&mut header.as_old_mut().name, name.as_bytes());
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    header
}

/// Fills a field of a header; returns whether all of the value is in it.
fn fill(field: &mut [u8], value: &[u8]) -> bool {
    let n = field.len().min(value.len());
    field[..n].copy_from_slice(&value[..n]);
    n == value.len()
}

/// Appends a record of a PAX header: its length, which includes the length's own digits, key and value.
pub(super) fn push_record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(length.to_string().as_bytes());
    for part in [b" ", key, b"=", value, b"\n"] {
        records.extend_from_slice(part);
    }
}

struct Packer<'a> {
    out: &'a mut dyn Write,
    is_exact: bool,
    /// Files with more than one name, by device and inode: the first name.
    linked: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
    /// PAX records of the next entry, besides those that follow from its attributes.
    records: Vec<u8>,
}

impl Packer<'_> {
    /// Writes a directory and all in it. The top has an empty path.
    fn directory(&mut self, dir: &OwnedFd, stat: &Stat, path: &[u8], depth: usize) -> io::Result<()> {
        if depth > MAX_USAGE_DEPTH {
            return Err(io::Error::other(format!("directories are nested more than {MAX_USAGE_DEPTH} deep")));
        }
        let name = if path.is_empty() { b"./".to_vec() } else { [path, b"/"].concat() };
        let (attributes, is_opaque) = attributes(dir)?;
        self.entry(EntryType::Directory, &name, stat, 0, b"", attributes)?;
        let below = |name: &[u8]| if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
        if is_opaque {
            self.marker(&below(OPAQUE), stat)?;
        }
        for name in sorted_names(dir.as_fd())? {
            self.child(dir, &name, &below(name.to_bytes()), depth).map_err(|e| at(&below(name.to_bytes()), e))?;
        }
        Ok(())
    }

    fn child(&mut self, dir: &OwnedFd, name: &CStr, path: &[u8], depth: usize) -> io::Result<()> {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.is_exact && name.to_bytes().starts_with(WHITEOUT) {
            return Err(io::Error::other("a name that starts with .wh. means a removal in an archive; rename the file"));
        }
        if kind != FileType::Directory && stat.st_nlink > 1 && kind != FileType::CharacterDevice {
            if let Some(first) = self.linked.get(&(stat.st_dev, stat.st_ino)) {
                let first = first.clone();
                return self.entry(EntryType::Link, path, &stat, 0, &first, Vec::new());
            }
            self.linked.insert((stat.st_dev, stat.st_ino), path.to_vec());
        }
        let open =
            |more| rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | more, Mode::empty());
        match kind {
            FileType::Directory => self.directory(&open(OFlags::DIRECTORY)?, &stat, path, depth + 1),
            FileType::RegularFile => self.file(open(OFlags::NONBLOCK)?, &stat, path),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                self.entry(EntryType::Symlink, path, &stat, 0, target.as_bytes(), Vec::new())
            }
            FileType::Fifo => self.entry(EntryType::Fifo, path, &stat, 0, b"", Vec::new()),
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                let parent = path.len() - name.to_bytes().len();
                self.marker(&[&path[..parent], WHITEOUT, name.to_bytes()].concat(), &stat)
            }
            // A socket without its server is of no use.
            FileType::Socket => Ok(()),
            _ => Err(io::Error::other("it is a device")),
        }
    }

    fn file(&mut self, file: OwnedFd, stat: &Stat, path: &[u8]) -> io::Result<()> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let (attributes, _) = attributes(&file)?;
        let pieces = if self.is_exact { pieces(&file, size)? } else { None };
        let mut file = File::from(file);
        let Some(pieces) = pieces else {
            self.entry(EntryType::Regular, path, stat, size, b"", attributes)?;
            self.content(&mut file, size)?;
            return self.out.write_all(&vec![0; padding(size)]);
        };
        // GNU's format 1.0 of sparse files: the content starts with a map of the pieces, in whole blocks.
        let mut map = format!("{}\n", pieces.len());
        for (offset, length) in &pieces {
            let _ = write!(map, "{offset}\n{length}\n");
        }
        let mut map = map.into_bytes();
        map.resize(map.len() + padding(map.len() as u64), 0);
        let packed = map.len() as u64 + pieces.iter().map(|(_, length)| length).sum::<u64>();
        for (key, value) in
            [("major", b"1".as_slice()), ("minor", b"0"), ("name", path), ("realsize", size.to_string().as_bytes())]
        {
            push_record(&mut self.records, format!("GNU.sparse.{key}").as_bytes(), value);
        }
        self.entry(EntryType::Regular, path, stat, packed, b"", attributes)?;
        self.out.write_all(&map)?;
        for (offset, length) in pieces {
            file.seek(SeekFrom::Start(offset))?;
            self.content(&mut file, length)?;
        }
        self.out.write_all(&vec![0; padding(packed)])
    }

    fn content(&mut self, file: &mut File, size: u64) -> io::Result<()> {
        let mut content = file.take(size);
        let mut left = size;
        while left > 0 {
            let n = content.read(&mut self.buffer)?;
            if n == 0 {
                return Err(io::Error::other("it became shorter while it was read"));
            }
            self.out.write_all(&self.buffer[..n])?;
            left -= n as u64;
        }
        Ok(())
    }

    /// An empty file that stands for a removal.
    fn marker(&mut self, path: &[u8], stat: &Stat) -> io::Result<()> {
        self.entry(EntryType::Regular, path, stat, 0, b"", Vec::new())
    }

    fn entry(
        &mut self,
        kind: EntryType,
        path: &[u8],
        stat: &Stat,
        size: u64,
        link: &[u8],
        attributes: Attributes,
    ) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(stat.st_mode & 0o7777);
        header.set_uid(u64::from(stat.st_uid));
        header.set_gid(u64::from(stat.st_gid));
        // Images have no files from before 1970.
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header.set_size(size);
        let mut records = std::mem::take(&mut self.records);
        if self.is_exact && (stat.st_mtime < 0 || stat.st_mtime_nsec != 0) {
            push_record(&mut records, b"mtime", exact_time(stat.st_mtime as _, stat.st_mtime_nsec as _).as_bytes());
        }
        if !fill(&mut header.as_old_mut().name, path) {
            push_record(&mut records, b"path", path);
        }
        if !fill(&mut header.as_old_mut().linkname, link) {
            push_record(&mut records, b"linkpath", link);
        }
        for (name, value) in attributes {
            push_record(&mut records, &[PAX_ATTRIBUTE.as_bytes(), &name].concat(), &value);
        }
        if !records.is_empty() {
            let mut extended = plain_header("PaxHeaders/x", records.len() as u64);
            extended.set_entry_type(EntryType::XHeader);
            extended.set_cksum();
            self.out.write_all(extended.as_bytes())?;
            self.out.write_all(&records)?;
            self.out.write_all(&vec![0; padding(records.len() as u64)])?;
        }
        header.set_cksum();
        self.out.write_all(header.as_bytes())
    }
}

/// Where a file has content, ascending: offsets and lengths. None: everywhere.
fn pieces(file: &OwnedFd, size: u64) -> io::Result<Option<Vec<(u64, u64)>>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            // There is only a hole from here on.
            Err(Errno::NXIO) => size,
            Err(error) => return Err(error.into()),
        };
        if start == size {
            break;
        }
        at = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start))?.min(size);
        pieces.push((start, at - start));
        if pieces.len() > MAX_PIECES {
            break;
        }
    }
    rustix::fs::seek(file, rustix::fs::SeekFrom::Start(0))?;
    let is_whole = size == 0 || pieces == [(0, size)] || pieces.len() > MAX_PIECES;
    if !is_whole && at < size {
        // Readers take the size of the file from its last piece, too.
        pieces.push((size, 0));
    }
    Ok((!is_whole).then_some(pieces))
}

/// A time in seconds since 1970, with a fraction.
fn exact_time(seconds: i64, nanoseconds: i64) -> String {
    match seconds {
        0.. => format!("{seconds}.{nanoseconds:09}"),
        _ if nanoseconds == 0 => seconds.to_string(),
        // Both count up from the same second.
        _ => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds),
    }
}

/// The attributes that belong to a file or directory in any image, in the order of their names, and whether it is opaque.
fn attributes(node: &OwnedFd) -> io::Result<(Attributes, bool)> {
    let mut names = vec![0u8; MAX_ATTRIBUTE_BYTES];
    let length = match rustix::fs::flistxattr(node, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok((Vec::new(), false)),
        other => other?,
    };
    let mut names: Vec<&[u8]> = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    let value = |name: &[u8]| -> io::Result<Vec<u8>> {
        let mut value = vec![0u8; MAX_ATTRIBUTE_BYTES];
        let length = rustix::fs::fgetxattr(node, name, &mut value[..])?;
        value.truncate(length);
        Ok(value)
    };
    let is_opaque = names.contains(&OPAQUE_ATTRIBUTE.as_bytes()) && value(OPAQUE_ATTRIBUTE.as_bytes())? == b"y";
    let belongs = |name: &&&[u8]| {
        (name.starts_with(b"user.") && !name.starts_with(OVERLAY_ATTRIBUTES)) || **name == b"security.capability".as_slice()
    };
    let kept = names.iter().filter(belongs).map(|name| Ok((name.to_vec(), value(name)?))).collect::<io::Result<_>>()?;
    Ok((kept, is_opaque))
}

fn at(path: &[u8], error: io::Error) -> io::Error {
    // The innermost path says it already.
    if error.get_ref().is_some() && error.to_string().starts_with('"') {
        return error;
    }
    io::Error::new(error.kind(), format!("{:?}: {error}", OsStr::from_bytes(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_records_length_includes_its_own_digits() {
        for value in [2, 3, 4, 5, 93, 94] {
            let mut record = Vec::new();
            push_record(&mut record, b"k", &vec![b'v'; value]);
            let text = String::from_utf8(record).unwrap();
            let stated: usize = text.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(stated, text.len(), "{value} {text}");
        }
    }

    #[test]
    fn times_have_their_fractions() {
        for (seconds, nanoseconds, text) in [
            (0, 5, "0.000000005"),
            (12, 0, "12.000000000"),
            (-1, 500_000_000, "-0.500000000"),
            (-2, 1, "-1.999999999"),
            (-7, 0, "-7"),
        ] {
            assert_eq!(exact_time(seconds, nanoseconds), text);
            assert_eq!(super::super::entries::read_time(text), Some((seconds, nanoseconds)));
        }
    }

    #[test]
    fn the_last_block_is_filled() {
        assert_eq!([0, 1, 511, 512, 513].map(padding), [0, 511, 1, 0, 511]);
    }
}
