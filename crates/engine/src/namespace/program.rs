//! This program's own file, held open from the start of the server: an update may replace or remove it meanwhile.
//!
//! A sandbox runs it on a separate overlay, and overlays are of directories. So the data directory has one, in which the file
//! has another name.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use arenite_isolation::mounts::{self, Attributes};
use rustix::fs::{AtFlags, CWD, linkat};

/// The file that this process runs from.
pub(crate) struct Program {
    file: File,
    dir: PathBuf,
    /// The name in `dir`, which contains the version.
    name: String,
}

impl Program {
    /// Opens the program at `path`, and selects its name in `dir`.
    pub(crate) fn open(path: &Path, dir: PathBuf) -> io::Result<Self> {
        let file = File::open(path)?;
        let about = file.metadata()?;
        let name = format!("{:x}-{:x}-{:x}-{:x}.{:09}", about.dev(), about.ino(), about.len(), about.mtime(), about.mtime_nsec());
        Ok(Self { file, dir, name })
    }

    /// Links the file under that name while it still has another, and removes the names of other versions.
    pub(crate) fn keep(&self) -> io::Result<()> {
        self.named()?;
        for entry in fs::read_dir(&self.dir)?.flatten() {
            if entry.file_name() != *self.name {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// A path to execute it from, valid in this process and its children after any change of the file's own name.
    pub(super) fn held(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// The file's name in the directory.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Mounts the directory that contains that name, after recreating the name if it was removed.
    pub(super) fn mount(&self) -> io::Result<OwnedFd> {
        self.named()?;
        mounts::detached(&self.dir, Attributes { read_only: true, ..Attributes::default() })
    }

    /// The file under that name, which is recreated if it was removed.
    pub(crate) fn named(&self) -> io::Result<PathBuf> {
        let path = self.dir.join(&self.name);
        if path.exists() {
            return Ok(path);
        }
        fs::create_dir_all(&self.dir)?;
        // Sandboxes' ids look a file up in it, and no other user reaches it: the data directory is closed.
        fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o755))?;
        // A second name keeps the pages shared. A file on another file system, a file without any name left, or one that only
        // root may execute, is copied.
        let for_all = self.file.metadata()?.mode() & 0o5 == 0o5;
        if !for_all || linkat(CWD, self.held(), CWD, &path, AtFlags::SYMLINK_FOLLOW).is_err() {
            let unfinished = self.dir.join("unfinished");
            fs::copy(self.held(), &unfinished)?;
            fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755))?;
            fs::rename(unfinished, &path)?;
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_outlives_its_own_name_and_the_one_that_it_was_given() {
        let dir = tempfile::tempdir().unwrap();
        let (path, names) = (dir.path().join("arenite"), dir.path().join("program"));
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("old");
        let old = Program::open(&path, names.clone()).unwrap();
        old.keep().unwrap();
        assert_eq!(fs::metadata(old.named().unwrap()).unwrap().ino(), fs::metadata(&path).unwrap().ino(), "not copied");

        fs::remove_file(&path).unwrap();
        write("new one");
        fs::remove_file(old.named().unwrap()).unwrap();
        assert_eq!(fs::read(old.held()).unwrap(), b"old");
        assert_eq!(fs::read(old.named().unwrap()).unwrap(), b"old", "copied, since nothing names it any more");

        let new = Program::open(&path, names.clone()).unwrap();
        new.keep().unwrap();
        assert_eq!(fs::read(new.named().unwrap()).unwrap(), b"new one");
        assert_eq!(fs::read_dir(names).unwrap().count(), 1, "the names of other versions are gone");
    }
}
