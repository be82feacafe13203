//! Resolves a path in a request to descriptors under the sandbox's root.
//!
//! The kernel does it (`openat2` with `RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS`), in one step for each path: `..` and symlinks
//! stop at the root, and the links in `/proc` that jump to another process's root, directory or descriptors lead nowhere. No
//! decision here depends on the text of a path.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::error::Failure;

/// The most retries of a path when a concurrent rename disturbed the kernel's look-up of `..`.
const RETRIES: usize = 64;
/// The most links that the last component of a path may pass through. The kernel's own bound.
const MAX_LINKS: usize = 40;
/// The longest path, in bytes. The kernel's own bound.
const MAX_PATH: usize = 4095;

/// The directory that paths can't leave.
#[derive(Debug)]
pub(super) struct Root(OwnedFd);

/// The location of a file that may not exist yet: no link is left between the root and its name.
#[derive(Debug)]
pub(super) struct ResolvedPath {
    pub dir: OwnedFd,
    pub name: OsString,
    pub existing: Option<Stat>,
    /// The same for every path to this file.
    pub canonical: PathBuf,
    /// Directories created for it, outermost first.
    made: Vec<(OwnedFd, OsString)>,
}

impl ResolvedPath {
    /// Stats the file again.
    pub(super) fn refresh(&mut self) -> Result<(), Errno> {
        self.existing = match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Some(stat),
            // It was replaced by something that must not be written to.
            Ok(_) => return Err(Errno::AGAIN),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(e),
        };
        Ok(())
    }

    /// Removes the directories that were created for a file that could not be stored.
    pub(super) fn abandon(self) {
        remove(&self.made);
    }
}

/// Makes a request's path absolute: relative paths start at `base`, and `~` is `home`.
pub(super) fn absolute(path: &str, base: &Path, home: &Path) -> Result<PathBuf, Failure> {
    if path.trim().is_empty() {
        return Err(Failure::Os { errno: Errno::INVAL, path: path.to_owned(), note: "a path is required".to_owned() });
    }
    if path.contains('\0') {
        let note = "a path can't hold a NUL byte".to_owned();
        return Err(Failure::Os { errno: Errno::INVAL, path: path.replace('\0', "\\0"), note });
    }
    let full = match path.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => base.join(path),
    };
    let mut clean: PathBuf = full.components().collect();
    // `x/` and `x/.` must be a directory; the kernel checks that.
    if (path.ends_with('/') || path.ends_with("/.")) && clean.parent().is_some() {
        clean.push("");
    }
    if clean.as_os_str().len() > MAX_PATH {
        return Err(Failure::os(Errno::NAMETOOLONG, format!("{}…", path.chars().take(80).collect::<String>())));
    }
    Ok(clean)
}

/// The kind of a file that is neither a regular one nor a directory.
fn special(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Symlink => "a symbolic link",
        _ => "a special file",
    }
}

/// Refuses everything but regular files.
pub(super) fn require_regular(stat: &Stat, path: &Path) -> Result<(), Failure> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Failure::os(Errno::ISDIR, path.to_string_lossy())),
        kind => Err(Failure::Special { path: path.to_string_lossy().into_owned(), what: special(kind) }),
    }
}

pub(super) fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

impl Root {
    /// The root of this process, which is the sandbox's.
    pub(super) fn open() -> Result<Self, Failure> {
        Self::at(Path::new("/"))
    }

    /// Opens any directory as a root.
    pub(super) fn at(dir: &Path) -> Result<Self, Failure> {
        rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map(Self)
            .map_err(|e| Failure::os(e, dir.to_string_lossy()))
    }

    fn raw(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_in(self.0.as_fd(), path, flags, ResolveFlags::IN_ROOT)
    }

    /// Stats a path through links. Opens nothing: no pipe's writer wakes, no device reacts.
    pub(super) fn inspect(&self, path: &Path) -> Result<(OwnedFd, Stat), Failure> {
        let fail = |e| Failure::os(e, path.to_string_lossy());
        let fd = self.raw(path, OFlags::PATH).map_err(fail)?;
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        Ok((fd, stat))
    }

    /// Opens a regular file for reading.
    pub(super) fn open_file(&self, path: &Path) -> Result<(File, Stat), Failure> {
        require_regular(&self.inspect(path)?.1, path)?;
        let fail = |e| Failure::os(e, path.to_string_lossy());
        // It may have been replaced since: opened so that a pipe can't block, and checked again.
        let fd = self.raw(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(fail)?;
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        require_regular(&stat, path)?;
        Ok((File::from(fd), stat))
    }

    /// Opens a directory for listing.
    pub(super) fn open_dir(&self, path: &Path) -> Result<OwnedFd, Failure> {
        self.raw(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|e| Failure::os(e, path.to_string_lossy()))
    }

    /// The nearest existing directory above a path, or the path itself if it is one.
    pub(super) fn nearest_dir(&self, path: &Path) -> Result<OwnedFd, Failure> {
        for dir in path.ancestors() {
            match self.raw(dir, OFlags::PATH | OFlags::DIRECTORY) {
                Err(Errno::NOENT) => {}
                Err(e) => return Err(Failure::os(e, dir.to_string_lossy())),
                Ok(fd) => return Ok(fd),
            }
        }
        Err(Failure::os(Errno::NOENT, path.to_string_lossy()))
    }

    /// Finds where to write a file: follows links to the name at their end. Creates missing directories.
    pub(super) fn locate(&self, path: &Path) -> Result<ResolvedPath, Failure> {
        let given = path.to_string_lossy();
        let fail = |e| Failure::os(e, &*given);
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            // The whole path first: a path that can't be followed as a whole (a magic link, a loop) is not followed in steps.
            match self.raw(&path, OFlags::PATH) {
                Ok(fd) => require_regular(&rustix::fs::fstat(&fd).map_err(fail)?, Path::new(&*given))?,
                Err(Errno::NOENT) => {}
                Err(e) => return Err(fail(e)),
            }
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(fail(Errno::ISDIR));
            };
            if ends_as_directory(&path) {
                return Err(fail(Errno::ISDIR));
            }
            let mut made = Vec::new();
            let dir = match self.raw(parent, OFlags::PATH | OFlags::DIRECTORY) {
                Err(Errno::NOENT) => self.make_dirs(parent, &mut made),
                other => other,
            };
            let dir = match dir {
                Ok(dir) => dir,
                Err(e) => {
                    remove(&made);
                    return Err(fail(e));
                }
            };
            let existing = match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                    let target = rustix::fs::readlinkat(&dir, name, Vec::new()).map_err(fail)?;
                    path = parent.join(OsStr::from_bytes(target.as_bytes()));
                    continue;
                }
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => None,
                Err(e) => return Err(fail(e)),
            };
            let canonical = real_path(&dir).map_or_else(|| path.clone(), |dir| dir.join(name));
            return Ok(ResolvedPath { name: name.to_owned(), dir, existing, canonical, made });
        }
        Err(fail(Errno::LOOP))
    }

    fn make_dirs(&self, path: &Path, made: &mut Vec<(OwnedFd, OsString)>) -> Result<OwnedFd, Errno> {
        let mut above = self.raw(Path::new("/"), OFlags::PATH | OFlags::DIRECTORY)?;
        let mut prefix = PathBuf::new();
        for component in path.components() {
            prefix.push(component);
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            above = match self.raw(&prefix, flags) {
                Err(Errno::NOENT) => {
                    let name = component.as_os_str();
                    match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) => {
                            let dir = self.raw(&prefix, flags)?;
                            made.push((above, name.to_owned()));
                            dir
                        }
                        // Another process created it meanwhile, or it is a dangling link, which then fails here.
                        Err(Errno::EXIST) => self.raw(&prefix, flags)?,
                        Err(e) => return Err(e),
                    }
                }
                other => other?,
            };
        }
        Ok(above)
    }
}

fn remove(made: &[(OwnedFd, OsString)]) {
    for (parent, name) in made.iter().rev() {
        // A directory in use by now stays.
        let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
    }
}

fn ends_as_directory(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/") || bytes.ends_with(b"/.")
}

/// The path of an open directory, as the kernel names it.
fn real_path(dir: &OwnedFd) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()
}

/// `openat2`, never through magic links.
pub(super) fn open_in(dir: impl AsFd, path: &Path, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    for _ in 0..RETRIES {
        let opened =
            rustix::fs::openat2(dir.as_fd(), path, flags | OFlags::CLOEXEC, Mode::empty(), resolve | ResolveFlags::NO_MAGICLINKS);
        match opened {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A separate root with a file in it, beside a file that is out of bounds.
    struct Jail(PathBuf);

    impl Jail {
        fn new(name: &str) -> (Self, Root) {
            let dir = std::env::temp_dir().join(format!("arenite-resolve-{name}-{}", std::process::id()));
            fs::create_dir_all(dir.join("root/d")).unwrap();
            fs::write(dir.join("secret"), "outside").unwrap();
            fs::write(dir.join("root/f"), "inside").unwrap();
            let root = Root::at(&dir.join("root")).unwrap();
            (Self(dir), root)
        }

        fn inside(&self, name: &str) -> PathBuf {
            self.0.join("root").join(name)
        }
    }

    impl Drop for Jail {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn read(root: &Root, path: &str) -> Result<String, &'static str> {
        let (mut file, _) = root.open_file(Path::new(path)).map_err(|f| f.error_type())?;
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        Ok(text)
    }

    #[test]
    fn no_way_leads_out_of_the_root() {
        let (jail, root) = Jail::new("out");
        let secret = jail.0.join("secret");
        symlink(&secret, jail.inside("absolute")).unwrap();
        symlink("../secret", jail.inside("relative")).unwrap();
        symlink("../../secret", jail.inside("d/deeper")).unwrap();
        symlink(&jail.0, jail.inside("dir")).unwrap();
        symlink("..", jail.inside("d/up")).unwrap();
        symlink("/proc/self/root", jail.inside("magic")).unwrap();
        for path in [
            "/absolute",
            "/relative",
            "/d/deeper",
            "/dir/secret",
            "/../secret",
            "/d/../../secret",
            "/d/up/../secret",
            "/magic/etc/passwd",
        ] {
            assert_eq!(read(&root, path), Err("not_found"), "{path}");
        }
        // The parent of the root is the root.
        for path in ["/../../f", "/d/up/f", "/d/../../f", "/d/up/../../f"] {
            assert_eq!(read(&root, path), Ok("inside".to_owned()), "{path}");
        }
        fs::write(jail.inside("secret"), "decoy").unwrap();
        for path in ["/relative", "/d/deeper", "/../secret"] {
            assert_eq!(read(&root, path), Ok("decoy".to_owned()), "{path}");
        }
    }

    #[test]
    fn what_is_written_through_a_link_lands_inside() {
        let (jail, root) = Jail::new("write");
        symlink("../../new", jail.inside("d/relative")).unwrap();
        symlink("/made/here", jail.inside("absolute")).unwrap();
        symlink("absolute", jail.inside("twice")).unwrap();
        symlink("loop", jail.inside("loop")).unwrap();
        for (path, canonical) in
            [("/d/relative", "new"), ("/absolute", "made/here"), ("/twice", "made/here"), ("/f", "f"), ("/d/../x/y", "x/y")]
        {
            let resolved = root.locate(Path::new(path)).unwrap();
            assert_eq!(
                resolved.canonical,
                jail.inside(canonical).canonicalize().unwrap_or_else(|_| jail.inside(canonical)),
                "{path}"
            );
            assert_eq!(resolved.existing.is_some(), path == "/f", "{path}");
            resolved.abandon();
        }
        assert!(!jail.inside("made").exists() && !jail.inside("x").exists(), "made directories are taken back");
        for (path, kind) in [
            ("/loop", "invalid_path"),
            ("/d", "invalid_target"),
            ("/", "invalid_target"),
            ("/new/", "invalid_target"),
            ("/f/x", "invalid_target"),
            ("/d/..", "invalid_target"),
        ] {
            assert_eq!(root.locate(Path::new(path)).unwrap_err().error_type(), kind, "{path}");
        }
    }

    #[test]
    fn paths_are_made_absolute_by_words_alone() {
        let absolute = |path| absolute(path, Path::new("/base"), Path::new("/home/u")).map(|p| p.to_str().unwrap().to_owned());
        for (path, expected) in [
            ("f", "/base/f"),
            (".", "/base"),
            ("./a//b/./c", "/base/a/b/c"),
            ("/x/../y", "/x/../y"),
            ("~", "/home/u"),
            ("~/f", "/home/u/f"),
            ("~other", "/base/~other"),
            ("d/", "/base/d/"),
            ("/", "/"),
        ] {
            assert_eq!(absolute(path).unwrap(), expected, "{path}");
        }
        for path in ["", " ", "a\0b"] {
            assert_eq!(absolute(path).unwrap_err().error_type(), "invalid_path", "{path:?}");
        }
    }
}
