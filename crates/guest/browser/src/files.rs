//! Files of the sandbox that the browser's operations read and write, with the rights of its user.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use super::page::PageError;
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::workers::Kind;

/// Writes a whole file, and creates its directory if it is missing. Returns its path and its size in bytes.
pub(super) async fn write(runtime: &Runtime, path: &str, content: Vec<u8>) -> Result<(String, u64), PageError> {
    let path = place(runtime, path)?;
    let (size, to) = (content.len() as u64, path.clone());
    let write = move |_: &_| {
        let failed = |error| Failure::io(error, &to);
        // Opening a pipe without a reader would block forever.
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        if let Some(directory) = Path::new(&to).parent() {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        let mut file = options.open(&to).map_err(failed)?;
        file.write_all(&content).map_err(failed)
    };
    runtime.workers.run(Kind::Scan, &runtime.user, write).await?;
    Ok((path, size))
}

/// Reads a file of at most `limit` bytes.
pub(super) async fn read(runtime: &Runtime, path: &str, limit: u64) -> Result<Vec<u8>, PageError> {
    let path = place(runtime, path)?;
    let read = move |_: &_| {
        let failed = |error| Failure::io(error, &path);
        let meta = std::fs::metadata(&path).map_err(failed)?;
        if !meta.is_file() {
            return Err(Failure::invalid(format!("{path} is no file")));
        }
        let size = meta.len();
        if size > limit {
            return Err(Failure::invalid(format!("{path} has {size} bytes, more than {limit}")));
        }
        std::fs::read(&path).map_err(failed)
    };
    Ok(runtime.workers.run(Kind::Scan, &runtime.user, read).await?)
}

/// Resolves a path.
pub(super) fn place(runtime: &Runtime, path: &str) -> Result<String, PageError> {
    if path.trim().is_empty() {
        return Err(PageError::Bad("the path is empty".to_owned()));
    }
    Ok(runtime.absolute(path).display().to_string())
}
