//! Folders of the server with clients' data: which of them a client may name, and how relative paths resolve.

use std::path::{Component, Path, PathBuf};

/// Directories in which relative paths of a configuration and of its clients are searched, in order. AgentFlow's server resolves
/// them against its working directory.
#[derive(Debug, Clone, Default)]
pub struct SearchDirs {
    /// The working directory, then the folder of the configuration. Empty without a configuration.
    dirs: Vec<PathBuf>,
    /// The server's own data, which no client may read.
    data_dir: Option<PathBuf>,
}

impl SearchDirs {
    /// For a server with a configuration in `dir`.
    pub fn new(dir: &Path, data_dir: &Path) -> Self {
        let dir = std::path::absolute(dir).ok();
        let mut dirs: Vec<PathBuf> = std::env::current_dir().ok().into_iter().chain(dir).collect();
        dirs.dedup();
        Self { dirs, data_dir: data_dir.canonicalize().ok() }
    }

    /// A path from the configuration, if it exists. It may be anywhere.
    pub fn existing(&self, path: &Path) -> Option<PathBuf> {
        if path.is_absolute() {
            return path.exists().then(|| path.to_owned());
        }
        let candidates = self.dirs.iter().map(|dir| dir.join(path));
        candidates.chain([path.to_owned()]).find(|path| path.exists())
    }
}

/// Why a client's path is refused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Missing {
    /// It is below one of the folders, but does not exist.
    NotThere,
    /// It is outside of all folders. Whether it exists is not disclosed.
    Outside,
}

/// The folders in which clients may name data.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    roots: Vec<PathBuf>,
    data_dir: Option<PathBuf>,
}

impl Folders {
    /// `only`: the only folder that the configuration allows. Without it: the working directory and the configuration's folder,
    /// and `more`. A root directory allows nothing, because it would be the whole host.
    pub(super) fn new(search_dirs: &SearchDirs, only: Option<&str>, more: Option<&Path>) -> Self {
        let roots: Vec<PathBuf> = match only {
            Some(only) => search_dirs.existing(Path::new(only)).into_iter().collect(),
            None => search_dirs.dirs.iter().cloned().chain(more.map(Path::to_owned)).collect(),
        };
        let roots = roots.into_iter().filter(|root| root.canonicalize().is_ok_and(|root| root.parent().is_some())).collect();
        Self { roots, data_dir: search_dirs.data_dir.clone() }
    }

    /// Resolves a client's path: absolute, or below the first of the folders that has it. Links that lead out of their folder,
    /// hidden files and folders, and the server's own data are outside.
    pub(super) fn find(&self, given: &str) -> Result<PathBuf, Missing> {
        let given = Path::new(given);
        let (mut not_there, mut refused) = (false, false);
        for root in &self.roots {
            let Ok(real_root) = root.canonicalize() else { continue };
            let path = plain(&root.join(given));
            let below = |root: &Path| path.strip_prefix(root).ok().map(Path::to_owned);
            let Some(below) = below(&plain(root)).or_else(|| below(&real_root)) else { continue };
            if is_hidden(&below) {
                refused = true;
                continue;
            }
            match path.canonicalize() {
                Ok(real) => {
                    let inside = real.strip_prefix(&real_root).is_ok_and(|below| !is_hidden(below));
                    if inside && self.data_dir.as_ref().is_none_or(|data_dir| !real.starts_with(data_dir)) {
                        return Ok(real);
                    }
                    refused = true;
                }
                Err(_) => not_there = true,
            }
        }
        Err(if not_there && !refused { Missing::NotThere } else { Missing::Outside })
    }
}

/// The path without `.` and `..`, without following links.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// Whether one of its parts starts with a dot: such folders contain people's keys and histories.
fn is_hidden(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_in_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        for folder in ["here/a", "here/.ssh", "here/data/secret", "there/b"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("/etc", here.join("out")).unwrap();
        std::os::unix::fs::symlink(here.join(".ssh"), here.join("keys")).unwrap();
        let data_dir = here.join("data").canonicalize().ok();
        let search_dirs = SearchDirs { dirs: vec![here.clone(), there.clone()], data_dir };
        let folders = Folders::new(&search_dirs, None, None);
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        for (given, wanted) in [("a", "here/a"), ("b", "there/b"), ("./a/../a", "here/a"), (&text(there.join("b")), "there/b")] {
            let wanted = dir.path().join(wanted).canonicalize().unwrap();
            assert_eq!(folders.find(given), Ok(wanted), "{given}");
        }
        for given in ["nothing", "a/nothing", &text(here.join("nothing"))] {
            assert_eq!(folders.find(given), Err(Missing::NotThere), "{given}");
        }
        for given in ["..", "/etc", "/nothing", "out", "out/passwd", "a/../..", ".ssh", "keys", "data", "data/secret"] {
            assert_eq!(folders.find(given), Err(Missing::Outside), "{given}");
        }
        // A configured folder is the only one allowed.
        let only = Folders::new(&search_dirs, Some("a"), None);
        assert_eq!(only.find("."), Ok(here.join("a").canonicalize().unwrap()));
        assert_eq!(only.find(&text(there.join("b"))), Err(Missing::Outside));
        // The whole host is never allowed.
        let host = Folders::new(&SearchDirs { dirs: vec!["/".into()], data_dir: None }, None, None);
        assert_eq!(host.find("etc"), Err(Missing::Outside));
        assert_eq!(Folders::new(&SearchDirs::default(), None, None).find("etc"), Err(Missing::Outside));
    }
}
