//! Directories that only one process and the guest share.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

use crate::users::User;

/// A new directory below `/run` (or `$XDG_RUNTIME_DIR`) that belongs to a user. Removed when dropped.
#[derive(Debug)]
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    pub fn new(user: &User) -> io::Result<Self> {
        let parent = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| "/run".into(), PathBuf::from);
        // Short: sockets in it have paths of at most 107 bytes.
        let dir = Self(parent.join(format!("arenite-{}", crate::random_id())));
        fs::DirBuilder::new().mode(0o700).create(&dir.0)?;
        if rustix::process::geteuid().is_root() {
            chown(&dir.0, Some(user.uid), Some(user.gid))?;
        }
        Ok(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let dir = std::mem::take(&mut self.0);
        // Its owner may have created any number of files in it.
        let remove = move || drop(fs::remove_dir_all(dir));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
