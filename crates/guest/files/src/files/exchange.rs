//! Uploads and downloads of whole files, in plain Rust. [`super::transfer`] streams them.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::Stat;
use rustix::io::Errno;
use serde::Serialize;
use tokio::task::{JoinHandle, spawn_blocking};
use utoipa::ToSchema;

use super::error::{Failure, FileError, Operation};
use super::resolve::{Root, is_dir};
use super::service::{Target, run, with_resolved};
use super::store::{self, Draft, Existing};
use crate::files::Files;
use arenite_guest_runtime::workers::Kind;

/// The most data of an upload buffered for one write: bytes, and pieces of any size.
const GATHERED_BYTES: usize = 1 << 20;
const GATHERED_PIECES: usize = 64;
/// The longest file name, in bytes. The kernel's own bound.
const MAX_NAME: usize = 255;

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileUploadResult {
    pub file_path: String,
    pub file_size: u64,
    pub success: bool,
}

/// An upload in progress. If it is dropped before [`Upload::finish`], nothing is stored.
#[derive(Debug)]
pub struct Upload {
    /// The request's path. None: a new file in the default directory.
    path: Option<String>,
    name: Option<String>,
    draft: Draft,
    writer: Writer,
    size: u64,
}

/// Writes to a file while more data arrives.
#[derive(Debug)]
struct Writer {
    gathered: Vec<Bytes>,
    bytes: usize,
    /// None during a write, and after a failed one.
    file: Option<File>,
    under_way: Option<JoinHandle<io::Result<File>>>,
}

impl Writer {
    fn new(file: File) -> Self {
        Self { gathered: Vec::new(), bytes: 0, file: Some(file), under_way: None }
    }

    /// Buffers the next bytes. Returns the error of an earlier write.
    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.gathered.push(bytes);
        }
        if self.bytes < GATHERED_BYTES && self.gathered.len() < GATHERED_PIECES {
            return Ok(());
        }
        self.settle().await?;
        if let Some(mut file) = self.file.take() {
            let gathered = std::mem::take(&mut self.gathered);
            self.bytes = 0;
            self.under_way = Some(spawn_blocking(move || write_all(&mut file, &gathered).map(|()| file)));
        }
        Ok(())
    }

    /// Waits for the write in progress.
    async fn settle(&mut self) -> io::Result<()> {
        if let Some(under_way) = self.under_way.take() {
            self.file = Some(under_way.await??);
        }
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.settle().await?;
        let (file, gathered) = (self.file.take(), std::mem::take(&mut self.gathered));
        spawn_blocking(move || file.map_or(Ok(()), |mut file| write_all(&mut file, &gathered))).await?
    }
}

fn write_all(file: &mut File, pieces: &[Bytes]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut slices = &mut slices[..];
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn upload_error(path: Option<&str>, failure: Failure) -> FileError {
    FileError { operation: Operation::Upload, path: path.unwrap_or_default().to_owned(), failure }
}

/// The last component of a file name from a client.
fn file_name(name: &str) -> Result<&str, Failure> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    if last.is_empty() || last == "." || last == ".." || last.contains('\0') || last.len() > MAX_NAME {
        let note = "the uploaded file has no usable name; give path with the file's name".to_owned();
        return Err(Failure::Os { errno: Errno::INVAL, path: name.replace('\0', "\\0"), note });
    }
    Ok(last)
}

/// The target of an upload: `path`, or `name` in it if it is a directory.
fn upload_target(root: &Root, target: Target, name: Option<&str>) -> Result<Target, Failure> {
    let directory = target.path.as_os_str().as_encoded_bytes().ends_with(b"/")
        || root.inspect(&target.path).is_ok_and(|(_, stat)| is_dir(&stat));
    if !directory {
        return Ok(target);
    }
    let path = Path::new(&target.shown).join(file_name(name.unwrap_or_default())?);
    Ok(Target { shown: path.to_string_lossy().into_owned(), path })
}

fn begin_draft(dir: &OwnedFd, path: &Path) -> Result<Draft, Failure> {
    Draft::begin(dir).map_err(|e| Failure::os(e, path.to_string_lossy()))
}

impl Upload {
    /// Starts an upload. `path` may be given later, in [`Upload::finish`].
    pub async fn begin(files: &Arc<Files>, path: Option<String>, name: Option<String>) -> Result<Self, FileError> {
        let given = path.clone().unwrap_or_else(|| ".".to_owned());
        let (known, own_name) = (path.is_some(), name.clone());
        let home = files.runtime.default_dir();
        let begun = run(files, Operation::Upload, Kind::Brief, &files.runtime.user, &given, move |_, root, target, _| {
            let mut first = None;
            if known {
                let target = upload_target(root, target, own_name.as_deref())?;
                let exists = match root.inspect(&target.path) {
                    Ok(_) => true,
                    Err(failure) if failure.errno() == Some(Errno::NOENT) => false,
                    Err(failure) => return Err(failure),
                };
                if exists {
                    store::check_writable(&root.locate(&target.path)?)?;
                }
                let above: PathBuf = target.path.parent().unwrap_or(Path::new("/")).components().collect();
                match root.nearest_dir(&above).and_then(|dir| begin_draft(&dir, &above)) {
                    Ok(draft) => return Ok(draft),
                    Err(failure) if !exists => return Err(failure),
                    // The directory is not writable, but the file is.
                    Err(failure) => first = Some(failure),
                }
            }
            for dir in [home.as_path(), Path::new("/tmp"), Path::new("/var/tmp")] {
                match root.nearest_dir(dir).and_then(|fd| begin_draft(&fd, dir)) {
                    Ok(draft) => return Ok(draft),
                    Err(failure) => first = first.or(Some(failure)),
                }
            }
            Err(first.unwrap_or_else(|| Failure::os(Errno::NOENT, home.to_string_lossy())))
        });
        let draft = begun.await?;
        let writer = draft.file().try_clone().map_err(|e| upload_error(path.as_deref(), Failure::io(e, &given)))?;
        Ok(Self { path, name, draft, writer: Writer::new(writer), size: 0 })
    }

    /// Adds bytes. They are written to disk as they arrive.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), FileError> {
        self.size += bytes.len() as u64;
        let written = self.writer.write(bytes).await;
        written.map_err(|e| self.error(e))
    }

    fn error(&self, error: io::Error) -> FileError {
        let path = self.path.as_deref().or(self.name.as_deref());
        upload_error(path, Failure::io(error, path.unwrap_or_default()))
    }

    /// Publishes the file. `path` is for uploads that were started without one.
    pub async fn finish(mut self, files: &Arc<Files>, path: Option<String>) -> Result<FileUploadResult, FileError> {
        if let Err(e) = self.writer.finish().await {
            return Err(self.error(e));
        }
        let Self { path: early, name, draft, size, .. } = self;
        let given = early.or(path).unwrap_or_else(|| "./".to_owned());
        run(files, Operation::Upload, Kind::Brief, &files.runtime.user, &given, move |files, root, target, _| {
            let target = upload_target(root, target, name.as_deref())?;
            with_resolved(files, root, &target, |resolved| {
                store::check_writable(resolved)?;
                draft.publish(resolved, Existing::Replace)
            })?;
            Ok(FileUploadResult { file_path: target.shown, file_size: size, success: true })
        })
        .await
    }
}

/// A download in progress.
#[derive(Debug)]
pub struct Download {
    pub file: std::fs::File,
    pub stat: Stat,
    pub name: String,
    /// Absolute, to check whether another file has replaced it.
    pub path: PathBuf,
}

/// Opens a file for download.
pub async fn open_download(files: &Arc<Files>, path: &str) -> Result<Download, FileError> {
    run(files, Operation::Download, Kind::Brief, &files.runtime.user, path, move |_, root, target, _| {
        let (file, stat) = root.open_file(&target.path)?;
        let name = target.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Download { file, stat, name, path: target.path })
    })
    .await
}

/// Whether a download's file is unchanged: the same content according to its times, and still at its path.
pub(super) fn unchanged(download: &Download) -> bool {
    let same = |s: &Stat| {
        let was = &download.stat;
        (s.st_dev, s.st_ino, s.st_size, s.st_mtime, s.st_mtime_nsec)
            == (was.st_dev, was.st_ino, was.st_size, was.st_mtime, was.st_mtime_nsec)
    };
    let here = rustix::fs::fstat(&download.file).is_ok_and(|s| same(&s));
    here && Root::open().and_then(|root| root.inspect(&download.path)).is_ok_and(|(_, s)| same(&s))
}
