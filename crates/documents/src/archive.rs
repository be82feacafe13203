//! Unpacks untrusted zip archives.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use thiserror::Error;
use zip::ZipArchive;

use crate::{MAX_ENTRIES, MAX_UNPACKED_BYTES};

/// Maximum depth of an archive's directories.
const MAX_DEPTH: usize = 32;
/// Maximum length of an entry's name, in bytes.
const MAX_NAME_BYTES: usize = 1_024;

#[derive(Debug, Error)]
pub enum UnpackError {
    #[error("it is not a readable zip archive: {0}")]
    Malformed(String),
    #[error("the entry {name:?} {why}")]
    Refused { name: String, why: &'static str },
    #[error("it holds more than {MAX_ENTRIES} entries")]
    TooMany,
    #[error("it unpacks to more than {} MiB", MAX_UNPACKED_BYTES >> 20)]
    TooLarge,
    #[error("could not write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

/// Unpacks an archive into an existing directory that nothing else writes to. Checks every entry before it writes the first.
///
/// # Errors
/// Nothing is unpacked from an archive with an entry outside the directory, a link or special file, an encrypted or repeated
/// entry, or too many entries. One that turns out to be too large is left half unpacked.
pub fn unpack(archive: impl Read + Seek, directory: &Path) -> Result<(), UnpackError> {
    let malformed = |e: zip::result::ZipError| UnpackError::Malformed(e.to_string());
    let mut archive = ZipArchive::new(archive).map_err(malformed)?;
    if archive.len() > MAX_ENTRIES {
        return Err(UnpackError::TooMany);
    }
    if archive.decompressed_size().is_some_and(|size| size > u128::from(MAX_UNPACKED_BYTES)) {
        return Err(UnpackError::TooLarge);
    }
    let mut entries = Vec::with_capacity(archive.len());
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(malformed)?;
        let name = entry.name().map_err(malformed)?.into_owned();
        let refuse = |why| UnpackError::Refused { name: name.chars().take(200).collect(), why };
        if entry.encrypted() {
            return Err(refuse("is encrypted"));
        }
        // File types in Unix modes: none, a regular file or a directory are accepted.
        if entry.unix_mode().is_some_and(|mode| !matches!(mode & 0o170_000, 0 | 0o100_000 | 0o040_000)) {
            return Err(refuse("is a link or a special file"));
        }
        let path = safe_path(&name).map_err(refuse)?;
        let executable = entry.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
        entries.push((path, entry.is_dir(), executable));
    }
    let mut room = MAX_UNPACKED_BYTES;
    for (index, (path, is_dir, executable)) in entries.iter().enumerate() {
        let path = directory.join(path);
        let failed = |source| UnpackError::Write { path: path.clone(), source };
        if *is_dir {
            fs::create_dir_all(&path).map_err(failed)?;
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        // Must not exist: a repeated entry, or a file where a directory should be, fails here.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path).map_err(failed)?;
        let entry = archive.by_index(index).map_err(malformed)?;
        room -= copy(entry, &mut file, room).map_err(|e| e.unwrap_or_else(failed))?;
        if *executable {
            file.set_permissions(fs::Permissions::from_mode(0o755)).map_err(failed)?;
        }
    }
    Ok(())
}

/// The error of a copy: of reading the entry, or of writing the file.
enum CopyError {
    Ours(UnpackError),
    File(io::Error),
}

impl CopyError {
    fn unwrap_or_else(self, file: impl FnOnce(io::Error) -> UnpackError) -> UnpackError {
        match self {
            Self::Ours(error) => error,
            Self::File(error) => file(error),
        }
    }
}

fn copy(mut entry: impl Read, file: &mut File, room: u64) -> Result<u64, CopyError> {
    use std::io::Write;
    let mut buffer = vec![0; 64 << 10];
    let mut copied = 0;
    loop {
        let read = entry.read(&mut buffer).map_err(|e| CopyError::Ours(UnpackError::Malformed(e.to_string())))?;
        if read == 0 {
            return Ok(copied);
        }
        copied += read as u64;
        if copied > room {
            return Err(CopyError::Ours(UnpackError::TooLarge));
        }
        file.write_all(&buffer[..read]).map_err(CopyError::File)?;
    }
}

/// An entry's name as a path below the target directory.
fn safe_path(name: &str) -> Result<PathBuf, &'static str> {
    if name.len() > MAX_NAME_BYTES {
        return Err("has too long a name");
    }
    // Archives of old Windows programs have backslashes; such a name is no path here.
    if name.contains(['\0', '\\']) {
        return Err("has a name that is no path");
    }
    let mut path = PathBuf::new();
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return Err("would stand outside of the archive's directory"),
        }
    }
    match path.components().count() {
        0 => Err("has no name"),
        depth if depth > MAX_DEPTH => Err("is nested too deep"),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    fn archive(fill: impl FnOnce(&mut ZipWriter<Cursor<Vec<u8>>>)) -> Cursor<Vec<u8>> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        fill(&mut writer);
        let mut bytes = writer.finish().unwrap();
        bytes.set_position(0);
        bytes
    }

    #[test]
    fn files_land_in_the_directory_with_modes_that_are_safe() {
        let dir = tempfile::tempdir().unwrap();
        let zip = archive(|zip| {
            zip.add_directory("a/b/", SimpleFileOptions::default()).unwrap();
            zip.start_file("./a/run.sh", SimpleFileOptions::default().unix_permissions(0o4777)).unwrap();
            zip.write_all(b"x").unwrap();
        });
        unpack(zip, dir.path()).unwrap();
        assert!(dir.path().join("a/b").is_dir());
        let mode = fs::metadata(dir.path().join("a/run.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
    }

    #[test]
    fn hostile_archives_write_nothing_outside() {
        let options = SimpleFileOptions::default;
        for name in ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", ""] {
            let dir = tempfile::tempdir().unwrap();
            let inner = dir.path().join("inner");
            fs::create_dir(&inner).unwrap();
            let zip = archive(|zip| {
                zip.start_file("fine", options()).unwrap();
                zip.start_file(name, options()).unwrap();
                zip.write_all(b"x").unwrap();
            });
            assert!(matches!(unpack(zip, &inner), Err(UnpackError::Refused { .. })), "{name}");
            assert_eq!(fs::read_dir(&inner).unwrap().count(), 0, "{name}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}");
        }
        let dir = tempfile::tempdir().unwrap();
        let link = archive(|zip| zip.add_symlink("link", "/etc", options()).unwrap());
        assert!(matches!(unpack(link, dir.path()), Err(UnpackError::Refused { .. })));
        let many = archive(|zip| (0..=MAX_ENTRIES).for_each(|n| zip.start_file(format!("{n}"), options()).unwrap()));
        assert!(matches!(unpack(many, dir.path()), Err(UnpackError::TooMany)));
        let bomb = archive(|zip| {
            zip.start_file("bomb", options()).unwrap();
            let zeros = vec![0; 1 << 20];
            (0..=(MAX_UNPACKED_BYTES >> 20)).for_each(|_| zip.write_all(&zeros).unwrap());
        });
        assert!(matches!(unpack(bomb, dir.path()), Err(UnpackError::TooLarge)));
        assert!(matches!(unpack(Cursor::new(b"PK\x05\x06 no".to_vec()), dir.path()), Err(UnpackError::Malformed(_))));
        let file_as_dir = archive(|zip| {
            zip.start_file("a", options()).unwrap();
            zip.start_file("a/b", options()).unwrap();
        });
        assert!(matches!(unpack(file_as_dir, dir.path()), Err(UnpackError::Write { .. })));
    }
}
