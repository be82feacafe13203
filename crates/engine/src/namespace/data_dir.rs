//! The data directory, which only the server can enter, and its files that users of a sandbox read.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::EngineError;

/// Files and directories of a data directory that tell it from others.
const MARKS: [&str; 5] = ["server.lock", "build.lock", "control.sqlite", "pool.img", "pool.lock"];
/// The others.
const OTHERS: [&str; 28] = [
    "agents.secret",
    "agents.secret.new",
    "buckets",
    "control.lock",
    "control.removals",
    "control.reserve",
    "control.sqlite-journal",
    "control.sqlite-shm",
    "control.sqlite-wal",
    "docker",
    "handover.sock",
    "kept-images.json",
    "kept-images.json.next",
    "kubernetes-identity.pem",
    "kvm.json",
    "kvm.json.new",
    "plain",
    "pool",
    "pool.img.new",
    "pool.made",
    "program",
    "records",
    "retrieval",
    "run",
    "states",
    "subvolumes",
    "synthesis",
    "trajectories",
];
/// Stores that could not be read, with a time in their names.
const UNREADABLE: &str = "control.sqlite.unreadable-";

/// Creates the directory, or closes an existing one to all other users, and returns its path.
///
/// # Errors
/// If others may enter the directory and it holds something else. It is left unchanged.
pub(crate) fn open(dir: &Path) -> Result<PathBuf, EngineError> {
    let failed = |what: &str| {
        let what = format!("could not {what} the data directory {}", dir.display());
        move |source| EngineError::Host { what, source }
    };
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(failed("make the parent of"))?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("make")(error)),
        _ => {}
    }
    let dir = dir.canonicalize().map_err(failed("find"))?;
    let about = fs::metadata(&dir).map_err(failed("look at"))?;
    let user = rustix::process::geteuid().as_raw();
    if about.mode() & 0o077 == 0 && about.uid() == user {
        return Ok(dir);
    }
    let is_ours = MARKS.iter().chain(&OTHERS).any(|name| dir.join(name).exists());
    if !is_ours && fs::read_dir(&dir).map_err(failed("read"))?.next().is_some() {
        return Err(EngineError::Unsupported {
            what: format!("the data directory {}", dir.display()),
            reason: "other users may enter it, and it holds files that are not Arenite's; name a directory of its own".to_owned(),
        });
    }
    chown(&dir, Some(user), None)
        .and_then(|()| fs::set_permissions(&dir, Permissions::from_mode(0o700)))
        .map_err(failed("close"))?;
    tracing::info!(dir = %dir.display(), "the data directory is now closed to other users");
    Ok(dir)
}

/// The names of what Arenite keeps in a data directory, sorted; none for a directory that is missing.
pub(super) fn entries(dir: &Path) -> io::Result<Vec<String>> {
    let listed = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in listed {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if MARKS.contains(&name.as_str()) || OTHERS.contains(&name.as_str()) || name.starts_with(UNREADABLE) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether these entries show that a directory is a data directory.
pub(super) fn has_mark(entries: &[String]) -> bool {
    entries.iter().any(|name| MARKS.contains(&name.as_str()))
}

/// Creates a directory that users of a sandbox may enter, with any umask of the server.
pub(super) fn make_shared_dir(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Writes a file that users of a sandbox may read, with any umask of the server.
pub(super) fn write_shared_file(path: &Path, content: &[u8]) -> io::Result<()> {
    fs::write(path, content)?;
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn it_is_closed_to_others_unless_it_is_not_ours() {
        let top = tempfile::tempdir().unwrap();
        let new = open(&top.path().join("a/new")).unwrap();
        assert_eq!(mode(&new), 0o700);

        fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        fs::write(new.join("server.lock"), "").unwrap();
        assert_eq!(mode(&open(&new).unwrap()), 0o700);

        let other = top.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::set_permissions(&other, Permissions::from_mode(0o755)).unwrap();
        fs::write(other.join("letter"), "").unwrap();
        assert!(open(&other).unwrap_err().to_string().contains("not Arenite's"));
        assert_eq!(mode(&other), 0o755);
        fs::remove_file(other.join("letter")).unwrap();
        assert_eq!(mode(&open(&other).unwrap()), 0o700, "an empty one becomes ours");
    }
}
