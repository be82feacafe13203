//! The files of a sealed disk, read from its layers without a mount: lists and reads for clients of the server.
//!
//! What is in the layers is hostile. Each name is looked up by itself in the open directories of the layers, no link is followed,
//! and only regular files are opened.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{Dir, FileType};

use crate::file_tree::{EntryKind, FileTreeError, Result, TreeEntry, TreeFile, TreePath, modified};
use crate::namespace::compare::Stack;

/// A disk with all its files. All calls block.
#[derive(Debug)]
pub struct LayeredTree {
    top: Stack,
}

impl LayeredTree {
    /// `layers` are directories, the uppermost first.
    pub(crate) fn open(layers: &[PathBuf]) -> io::Result<Self> {
        Ok(Self { top: Stack::open(layers)? })
    }

    /// The first entries of a directory after a name, in the order of their bytes. The memory that this takes depends on `most`
    /// alone.
    pub fn list(&self, path: &TreePath, after: Option<&[u8]>, most: usize) -> Result<Vec<TreeEntry>> {
        let below = self.directory(path, path.parts())?;
        let stack = below.as_ref().unwrap_or(&self.top);
        let failed = |error| failed("read", path, error);
        let mut first: BTreeMap<Vec<u8>, TreeEntry> = BTreeMap::new();
        for directory in stack.directories() {
            for entry in Dir::read_from(directory).map_err(|error| failed(error.into()))? {
                let entry = entry.map_err(|error| failed(error.into()))?;
                let name = entry.file_name();
                let bytes = name.to_bytes();
                let is_wanted = !matches!(bytes, b"." | b"..") && after.is_none_or(|after| bytes > after);
                let is_early = first.len() < most || first.last_key_value().is_some_and(|(last, _)| bytes < last.as_slice());
                if !is_wanted || !is_early || first.contains_key(bytes) {
                    continue;
                }
                // A whiteout hides it, or another layer has something else of this name.
                let Some(found) = stack.find(name).map_err(failed)? else { continue };
                first.insert(bytes.to_vec(), TreeEntry::new(bytes, &found.stat));
                if first.len() > most {
                    first.pop_last();
                }
            }
        }
        Ok(first.into_values().collect())
    }

    /// Opens a regular file.
    pub fn read(&self, path: &TreePath) -> Result<TreeFile> {
        let mut parts: Vec<&OsStr> = path.parts().collect();
        let wrong = |kind: EntryKind| {
            let (found, wanted) = (kind.article(), EntryKind::File.article());
            FileTreeError::WrongKind { path: path.shown(), found, wanted }
        };
        let name = parts.pop().ok_or_else(|| wrong(EntryKind::Directory))?;
        let below = self.directory(path, parts)?;
        let stack = below.as_ref().unwrap_or(&self.top);
        let name = c_name(path, name)?;
        let found = stack.find(&name).map_err(|error| failed("look at", path, error))?;
        let found = found.ok_or_else(|| FileTreeError::NotFound { path: path.shown() })?;
        match EntryKind::from_stat(&found.stat) {
            EntryKind::File => {}
            EntryKind::Link => return Err(FileTreeError::Link { path: path.shown() }),
            other => return Err(wrong(other)),
        }
        let file = found.open(&name).map_err(|error| failed("open", path, error))?;
        let size = u64::try_from(found.stat.st_size).unwrap_or(0);
        Ok(TreeFile { file, size, modified_at: modified(&found.stat), held: None })
    }

    /// The directory below the top with these names. None: it is the top. Errors name `path`.
    fn directory<'a>(&self, path: &TreePath, names: impl IntoIterator<Item = &'a OsStr>) -> Result<Option<Stack>> {
        let mut below: Option<Stack> = None;
        for name in names {
            let here = below.as_ref().unwrap_or(&self.top);
            let name = c_name(path, name)?;
            let found = here.find(&name).map_err(|error| failed("open", path, error))?;
            let found = found.ok_or_else(|| FileTreeError::NotFound { path: path.shown() })?;
            match FileType::from_raw_mode(found.stat.st_mode) {
                FileType::Directory => {}
                FileType::Symlink => return Err(FileTreeError::Link { path: path.shown() }),
                _ => {
                    let found = "no directory, or below a file";
                    return Err(FileTreeError::WrongKind { path: path.shown(), found, wanted: "a directory" });
                }
            }
            below = Some(here.descend(&name).map_err(|error| failed("open", path, error))?);
        }
        Ok(below)
    }
}

fn c_name(path: &TreePath, name: &OsStr) -> Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| FileTreeError::BadPath { path: path.shown(), reason: "it has a NUL byte" })
}

fn failed(what: &'static str, path: &TreePath, source: io::Error) -> FileTreeError {
    FileTreeError::Io { what, path: path.shown(), source }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, XattrFlags, mknodat, setxattr};

    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_layers_are_seen_as_one_tree() {
        let top = tempfile::tempdir().unwrap();
        let layers = ["upper", "image"].map(|name| top.path().join(name));
        let [upper, image] = &layers;
        for dir in &layers {
            fs::create_dir_all(dir.join("d/opaque")).unwrap();
        }
        for (dir, name, text) in [
            (image, "d/both", "old"),
            (upper, "d/both", "new"),
            (image, "d/low", "low"),
            (image, "d/opaque/hidden", "x"),
            (upper, "d/opaque/own", "own"),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
        setxattr(upper.join("d/opaque"), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        symlink("/etc", upper.join("d/out")).unwrap();
        mknodat(CWD, upper.join("d/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let tree = LayeredTree::open(&layers).unwrap();
        let names = |at: &str, after: Option<&[u8]>, most| -> Vec<String> {
            let entries = tree.list(&path(at), after, most).unwrap();
            entries.into_iter().map(|entry| format!("{} {:?}", String::from_utf8(entry.name).unwrap(), entry.kind)).collect()
        };
        assert_eq!(names("d", None, 10), ["both File", "low File", "opaque Directory", "out Link", "pipe Other"]);
        assert_eq!(names("d", None, 2), ["both File", "low File"]);
        assert_eq!(names("d", Some(b"low"), 2), ["opaque Directory", "out Link"]);
        assert_eq!(names("d/opaque", None, 10), ["own File"]);
        let read = |at: &str| tree.read(&path(at)).map(|found| io::read_to_string(found.file).unwrap());
        assert_eq!((read("d/both").unwrap(), read("d/low").unwrap()), ("new".to_owned(), "low".to_owned()));
        assert!(matches!(read("d/opaque/hidden"), Err(FileTreeError::NotFound { .. })));
        assert!(matches!(read("d/out"), Err(FileTreeError::Link { .. })));
        assert!(matches!(read("d/out/passwd"), Err(FileTreeError::Link { .. })));
        assert!(matches!(read("d/low/x"), Err(FileTreeError::WrongKind { .. })));
        for not_a_file in ["", "d", "d/pipe"] {
            assert!(matches!(read(not_a_file), Err(FileTreeError::WrongKind { .. })), "{not_a_file}");
        }
    }
}
