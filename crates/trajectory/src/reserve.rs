//! Disk space reserved for writes that must succeed when the disk is full: the outcomes of accepted calls.
//!
//! It is a file of zeros that frees space when it is shortened. While it isn't whole, no call is accepted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};

/// The least that is released at once, in bytes.
const PIECE: u64 = 256 << 10;
/// Between two attempts to restore it.
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    size: u64,
    whole: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    bytes: u64,
    tried: Option<Instant>,
}

impl Reserve {
    /// Space that can't be allocated now is allocated before the first call.
    pub(crate) fn open(path: PathBuf, size: u64) -> Self {
        let reserve = Self { path, size, whole: AtomicBool::new(false), held: Mutex::new(Held { bytes: 0, tried: None }) };
        reserve.is_whole();
        reserve
    }

    /// Whether it is whole; allocates what is missing if there is space again.
    pub(crate) fn is_whole(&self) -> bool {
        if self.whole.load(Ordering::Acquire) {
            return true;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.tried.is_some_and(|at| at.elapsed() < AGAIN) {
            return self.whole.load(Ordering::Acquire);
        }
        held.tried = Some(Instant::now());
        match take(&self.path, self.size) {
            Ok(()) => {
                held.bytes = self.size;
                self.whole.store(true, Ordering::Release);
            }
            Err(error) => tracing::error!(path = %self.path.display(), %error, "the space kept for outcomes can't be taken"),
        }
        self.whole.load(Ordering::Acquire)
    }

    /// Releases space to the disk. False: nothing is left.
    fn release(&self, bytes: u64) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        self.whole.store(false, Ordering::Release);
        if held.bytes == 0 {
            return false;
        }
        held.bytes = held.bytes.saturating_sub(bytes.max(PIECE));
        held.tried = Some(Instant::now());
        // Some file systems free space only after the change is synced.
        let shortened = OpenOptions::new().write(true).open(&self.path).and_then(|file| {
            file.set_len(held.bytes)?;
            file.sync_all()
        });
        if let Err(error) = &shortened {
            tracing::error!(path = %self.path.display(), %error, "the space kept for outcomes can't be given back");
            held.bytes = 0;
        }
        shortened.is_ok()
    }

    /// Repeats a write that fails because the disk is full, while there is reserved space to release for it.
    pub(crate) fn retry<T>(&self, bytes: usize, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match write() {
                Err(error) if is_full(&error) && self.release(2 * bytes as u64) => {}
                other => return other,
            }
        }
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn take(path: &Path, size: u64) -> io::Result<()> {
    if size == 0 {
        return Ok(());
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let taken = match fallocate(&file, FallocateFlags::empty(), 0, size) {
        Err(rustix::io::Errno::OPNOTSUPP) => zeros(&mut file, size),
        other => other.map_err(io::Error::from),
    };
    if taken.is_err() {
        // A partial allocation would keep that space from others.
        file.set_len(0)?;
    }
    taken
}

fn zeros(file: &mut File, size: u64) -> io::Result<()> {
    let block = vec![0; 64 << 10];
    let mut left = size;
    while left > 0 {
        let count = left.min(block.len() as u64);
        file.write_all(&block[..count as usize])?;
        left -= count;
    }
    file.sync_all()
}
