//! Removal of directories with hostile content.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Depth of a directory at which it is moved up. Limits the number of open descriptors.
const DEPTH: usize = 64;

/// Removes a directory and its content, if it exists. Links are never followed, even if the tree changes meanwhile. A tree of
/// any depth is removed with a limited number of descriptors: what is too deep is first moved up.
pub fn remove_tree(dir: &Path) -> io::Result<()> {
    let top = match open_dir(rustix::fs::CWD, dir) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    let mut removal = Removal { top: top.as_fd(), moved: 0 };
    // Each round empties the tree except for what it moved up, which is at most as deep as before less DEPTH.
    loop {
        let moved = removal.moved;
        removal.empty(removal.top, 0)?;
        if removal.moved == moved {
            break;
        }
    }
    match rustix::fs::rmdir(dir) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn open_dir(at: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

struct Removal<'a> {
    top: BorrowedFd<'a>,
    /// The number of directories that were moved to the top.
    moved: u64,
}

impl Removal<'_> {
    fn empty(&mut self, dir: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
        for name in names(dir)? {
            match rustix::fs::unlinkat(dir, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => self.directory(dir, &name, depth)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn directory(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> io::Result<()> {
        if depth >= DEPTH {
            return self.move_up(parent, name);
        }
        match open_dir(parent, name) {
            Ok(dir) => self.empty(dir.as_fd(), depth + 1)?,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn move_up(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            let target = format!(".removed-{}", self.moved);
            match rustix::fs::renameat_with(parent, name, self.top, target, RenameFlags::NOREPLACE) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A directory's entries, read before any is removed: removing while reading may skip some.
fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = HashSet::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.insert(name.to_owned());
        }
    }
    Ok(names.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_tree_deeper_than_any_path_goes_and_what_links_point_at_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let outside = scratch.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        let victim = scratch.path().join("victim");
        std::fs::create_dir(&victim).unwrap();
        symlink(&outside, victim.join("link")).unwrap();

        let mut at = open_dir(rustix::fs::CWD, &victim).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deeper", Mode::from_raw_mode(0o700)).unwrap();
            at = open_dir(at.as_fd(), "deeper").unwrap();
        }
        rustix::fs::symlinkat(&outside, &at, "link").unwrap();
        drop(at);

        remove_tree(&victim).unwrap();
        assert!(!victim.exists());
        assert!(outside.join("kept").exists());
        remove_tree(&victim).unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_not_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let outside = scratch.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        let link = scratch.path().join("link");
        symlink(&outside, &link).unwrap();
        assert!(remove_tree(&link).is_err());
        assert!(outside.join("kept").exists());
    }
}
