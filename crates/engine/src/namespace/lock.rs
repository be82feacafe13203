//! Locks of a data directory: one server, and one build.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::data_dir;
use crate::EngineError;

/// Maximum number of bytes of a lock file that are read.
const MAX_BYTES: u64 = 16 << 10;

/// The right to serve a data directory: held while this value lives, released by the kernel when the process dies.
#[derive(Debug)]
pub struct ServerLock {
    file: File,
}

/// The server that holds the lock, as the lock file describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    pub pid: u32,
    /// Its addresses, such as `http://127.0.0.1:8080`.
    #[serde(default)]
    pub addresses: Vec<String>,
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pid {}", self.pid)?;
        if !self.addresses.is_empty() {
            write!(f, ", on {}", self.addresses.join(" and "))?;
        }
        Ok(())
    }
}

impl ServerLock {
    /// Takes the lock without waiting. Creates the data directory if it doesn't exist, and nothing else.
    ///
    /// # Errors
    /// [`EngineError::InUse`] if another server has it.
    pub fn take(data_dir: &Path) -> Result<Self, EngineError> {
        let (mut file, path) = open(data_dir, "server.lock")?;
        match file.try_lock() {
            Ok(()) => Ok(Self { file }),
            Err(fs::TryLockError::WouldBlock) => {
                Err(EngineError::InUse { data_dir: data_dir.to_owned(), holder: read_holder(&mut file) })
            }
            Err(fs::TryLockError::Error(source)) => Err(cannot_lock(&path)(source)),
        }
    }

    /// The server that has the lock now; its process id is 0 when it has not written one.
    pub fn holder(data_dir: &Path) -> Result<Option<LockHolder>, EngineError> {
        let path = data_dir.join("server.lock");
        let mut file = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(cannot_lock(&path))?,
        };
        match file.try_lock() {
            Ok(()) => Ok(None),
            Err(fs::TryLockError::WouldBlock) => {
                Ok(Some(read_holder(&mut file).unwrap_or(LockHolder { pid: 0, addresses: Vec::new() })))
            }
            Err(fs::TryLockError::Error(source)) => Err(cannot_lock(&path)(source)),
        }
    }

    /// Waits until the server with the lock has ended. Blocks the thread.
    pub fn wait(data_dir: &Path) -> Result<Self, EngineError> {
        let (file, path) = open(data_dir, "server.lock")?;
        file.lock().map_err(cannot_lock(&path))?;
        Ok(Self { file })
    }

    /// Writes this server and its addresses, for a second server's error message.
    pub fn announce(&mut self, addresses: Vec<String>) -> std::io::Result<()> {
        let holder = LockHolder { pid: std::process::id(), addresses };
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&serde_json::to_vec(&holder)?)
    }
}

/// Waits for the lock to build in a data directory.
pub(super) fn for_build(data_dir: &Path) -> Result<File, EngineError> {
    let (file, path) = open(data_dir, "build.lock")?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(fs::TryLockError::WouldBlock) => tracing::info!("waiting for another build to finish"),
        Err(fs::TryLockError::Error(source)) => return Err(cannot_lock(&path)(source)),
    }
    file.lock().map_err(cannot_lock(&path))?;
    Ok(file)
}

/// The same without waiting.
pub(super) fn try_for_build(data_dir: &Path) -> Result<File, EngineError> {
    let (file, path) = open(data_dir, "build.lock")?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            Err(EngineError::Storage { reason: format!("an image is being built in {}", data_dir.display()), hint: None })
        }
        Err(fs::TryLockError::Error(source)) => Err(cannot_lock(&path)(source)),
    }
}

/// Whether an image is being built in a data directory now.
pub(crate) fn is_building(data_dir: &Path) -> bool {
    let file = File::open(data_dir.join("build.lock"));
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

fn open(data_dir: &Path, name: &str) -> Result<(File, PathBuf), EngineError> {
    let path = data_dir::open(data_dir)?.join(name);
    let file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(cannot_lock(&path))?;
    Ok((file, path))
}

fn cannot_lock(path: &Path) -> impl Fn(std::io::Error) -> EngineError + use<> {
    let what = format!("could not lock {}", path.display());
    move |source| EngineError::Host { what: what.clone(), source }
}

/// None if it has not written anything yet, or is a version that writes nothing.
fn read_holder(file: &mut File) -> Option<LockHolder> {
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_server_learns_who_has_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = ServerLock::take(dir.path()).unwrap();
        let silent = ServerLock::take(dir.path()).unwrap_err();
        assert!(matches!(&silent, EngineError::InUse { holder: None, .. }), "{silent}");
        first.announce(vec!["http://127.0.0.1:1".to_owned()]).unwrap();
        first.announce(vec!["http://[::1]:2".to_owned()]).unwrap();
        let text = ServerLock::take(dir.path()).unwrap_err().to_string();
        assert!(text.contains(&format!("pid {}, on http://[::1]:2", std::process::id())), "{text}");
        drop(first);
        ServerLock::take(dir.path()).unwrap();
    }
}
