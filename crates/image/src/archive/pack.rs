//! A layer as the tar of an OCI image: overlayfs's whiteouts and opaque directories become `.wh.` files.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
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

/// Writes all files of a layer, in the order of their names: the same layer gives the same bytes.
pub(crate) fn pack(files: &Path, out: &mut dyn Write) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(files, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&top)?;
    let mut packer = Packer { out, linked: HashMap::new(), buffer: vec![0; 128 << 10] };
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
    /// Files with more than one name, by device and inode: the first name.
    linked: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
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
        self.entry(EntryType::Regular, path, stat, size, b"", attributes)?;
        let mut content = File::from(file).take(size);
        let mut left = size;
        while left > 0 {
            let n = content.read(&mut self.buffer)?;
            if n == 0 {
                return Err(io::Error::other("it became shorter while it was read"));
            }
            self.out.write_all(&self.buffer[..n])?;
            left -= n as u64;
        }
        self.out.write_all(&vec![0; padding(size)])
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
        let mut records = Vec::new();
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
    fn the_last_block_is_filled() {
        assert_eq!([0, 1, 511, 512, 513].map(padding), [0, 511, 1, 0, 511]);
    }
}
