//! Reserved disk space for deletions when the disk is full.
//!
//! The reserve is a file of zeros. Removing it frees the space, and no sandbox is created until the file is restored.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

/// Twice the size at which SQLite checkpoints its log and restarts it.
const BYTES: u64 = 8 << 20;
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    held: bool,
    /// The last attempt to reserve space failed, and the log says so.
    failed: bool,
}

impl Reserve {
    /// Opens the reserve. If there is no space now, the next insert tries again.
    pub(super) fn open(path: PathBuf) -> Self {
        let mut reserve = Self { path, held: false, failed: false };
        reserve.take();
        reserve
    }

    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// Reserves the space unless it is reserved. False if the disk has no room.
    pub(super) fn take(&mut self) -> bool {
        if self.held {
            return true;
        }
        match take(&self.path) {
            Ok(()) => self.held = true,
            Err(error) if !self.failed => {
                tracing::error!(path = %self.path.display(), %error, "the space kept for deletions can't be taken");
            }
            Err(_) => {}
        }
        self.failed = !self.held;
        self.held
    }

    /// Frees the space. False if nothing was reserved.
    pub(super) fn release(&mut self) -> bool {
        if !std::mem::take(&mut self.held) {
            return false;
        }
        let shortened = OpenOptions::new().write(true).open(&self.path).and_then(|file| {
            file.set_len(0)?;
            // Some file systems free space only when the change is on the disk itself.
            file.sync_all()
        });
        if let Err(error) = &shortened {
            tracing::error!(path = %self.path.display(), %error, "the space kept for deletions can't be given back");
        }
        shortened.is_ok()
    }
}

fn take(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let taken = match fallocate(&file, FallocateFlags::empty(), 0, BYTES) {
        Err(rustix::io::Errno::OPNOTSUPP) => fs::write(path, vec![0; BYTES as usize]),
        other => other.map_err(io::Error::from),
    };
    if taken.is_err() {
        // A partial reserve would keep space from others.
        file.set_len(0)?;
    }
    taken
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn it_is_taken_released_once_and_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.reserve");
        let held = || fs::metadata(&path).unwrap().blocks() * 512;
        let mut reserve = Reserve::open(path.clone());
        assert!(reserve.is_held() && held() >= BYTES);
        assert!(reserve.release() && held() == 0);
        assert!(!reserve.release(), "there is nothing left to give");
        assert!(!reserve.is_held() && reserve.take() && held() >= BYTES);
    }
}
