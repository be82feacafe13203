//! Downloads the parts of an image. A part that was interrupted goes on where it ended, also in another process.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use arenite_model::{ErrorCode, TenantId};
use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};
use ureq::http::{Method, StatusCode, header};

use super::client::{Client, Payload, is_page};
use crate::archive::oci::Descriptor;
use crate::error::ImageError;

/// Number of parts that are downloaded at once, as in Docker.
const CONCURRENT: usize = 3;
/// Number of requests for one part in a row that may bring less than [`PROGRESS_BYTES`].
const FRUITLESS: usize = 3;
const PROGRESS_BYTES: u64 = 64 << 10;
/// Maximum size of a compressed layer, in bytes.
const MAX_PART_BYTES: u64 = 64 << 30;

/// The file of a part. A tenant's are its own, so that another one does not get a part by naming its digest.
pub(super) fn file_of(dir: &Path, owner: Option<&TenantId>, hex: &str) -> PathBuf {
    dir.join(owner.map_or_else(|| hex.to_owned(), |owner| format!("{hex}.{owner}")))
}

/// Downloads all parts into `dir`, each under its digest and its owner. Calls `progress` with the number of bytes that arrived or were there.
pub(super) fn all(
    client: &Client<'_>,
    parts: &[Descriptor],
    (dir, owner): (&Path, Option<&TenantId>),
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ImageError> {
    let failed = AtomicBool::new(false);
    let queue = Mutex::new(parts.iter().collect::<VecDeque<_>>());
    // Few: a sender waits while the progress is shown.
    let (sender, receiver) = sync_channel(16);
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT.min(parts.len()) {
            let (sender, queue, failed) = (sender.clone(), &queue, &failed);
            scope.spawn(move || {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(part) = next().filter(|_| !failed.load(Ordering::Relaxed)) {
                    let mut download = Download { client, part, sender: &sender, stops: [cancel, failed] };
                    if let Err(error) = download.run(dir, owner) {
                        failed.store(true, Ordering::Relaxed);
                        // The receiver waits for all senders.
                        let _ = sender.send(Err(error));
                    }
                }
            });
        }
        drop(sender);
        report(&receiver, progress)
    })
}

/// Passes the progress on until all threads ended; returns the first error. The others then only say that they stopped.
fn report(receiver: &Receiver<Result<u64, ImageError>>, progress: &mut dyn FnMut(u64)) -> Result<(), ImageError> {
    let mut result = Ok(());
    for received in receiver {
        match received {
            Ok(bytes) => progress(bytes),
            Err(error) if matches!(result, Ok(()) | Err(ImageError::Cancelled)) => result = Err(error),
            Err(_) => {}
        }
    }
    result
}

struct Download<'a> {
    client: &'a Client<'a>,
    part: &'a Descriptor,
    sender: &'a SyncSender<Result<u64, ImageError>>,
    /// The pull was cancelled, or another part failed.
    stops: [&'a AtomicBool; 2],
}

/// What is in a part's file.
struct Partial {
    file: File,
    size: u64,
    hash: Sha256,
}

/// Why a request for a part ended.
enum End {
    Complete,
    /// Fewer bytes than there are.
    Early,
    /// The registry sends all from the start.
    Restart,
}

impl Download<'_> {
    fn run(&mut self, dir: &Path, owner: Option<&TenantId>) -> Result<(), ImageError> {
        let size = self.part.size;
        let hex = self.part.hex().ok_or_else(|| self.client.strange("it names a part by something that is not a SHA-256"))?;
        if size > MAX_PART_BYTES {
            return Err(self.client.strange(format!("it names a layer of {size} bytes; at most {MAX_PART_BYTES} are possible")));
        }
        let path = file_of(dir, owner, hex);
        let at = |error| ImageError::io("could not download into", &path)(error);
        let mut partial = Partial { file: open_locked(&path).map_err(at)?, size: 0, hash: Sha256::new() };
        // Two tries: what an earlier process left may be damaged.
        for _ in 0..2 {
            let resumed = partial.read_existing(size).map_err(at)?;
            // The progress counts what was there.
            self.report(resumed)?;
            let fetched = self.fetch(&mut partial, &path);
            if let Err(error) = fetched {
                if matches!(&error, ImageError::Io { source, .. } if is_full(source)) {
                    // Space for others; the error that counts is the first one.
                    let _ = std::fs::remove_file(&path);
                }
                return Err(error);
            }
            let found = hex::encode(std::mem::take(&mut partial.hash).finalize());
            if found == hex {
                return Ok(());
            }
            partial.clear().map_err(at)?;
            if resumed == 0 {
                std::fs::remove_file(&path).map_err(at)?;
                break;
            }
        }
        Err(self.client.error(
            ErrorCode::InvalidRequest,
            format!("it sends other bytes than those of {}: they were thrown away", self.part.digest),
            Some("the registry or something between is broken or hostile; pull from another one".to_owned()),
        ))
    }

    fn report(&self, bytes: u64) -> Result<(), ImageError> {
        // The receiver lives until all senders are gone.
        let _ = self.sender.send(Ok(bytes));
        if self.is_stopped() { Err(ImageError::Cancelled) } else { Ok(()) }
    }

    fn is_stopped(&self) -> bool {
        self.stops.iter().any(|stop| stop.load(Ordering::Relaxed))
    }

    fn fetch(&self, partial: &mut Partial, path: &Path) -> Result<(), ImageError> {
        let mut fruitless = 0;
        while partial.size < self.part.size {
            // A registry that hangs ends requests only.
            if self.is_stopped() {
                return Err(ImageError::Cancelled);
            }
            let before = partial.size;
            let ended = self.request(partial, path);
            fruitless = if partial.size >= before + PROGRESS_BYTES { 0 } else { fruitless + 1 };
            match ended {
                Ok(End::Complete) => return Ok(()),
                Ok(End::Restart) => partial.clear().map_err(ImageError::io("could not download into", path))?,
                Ok(End::Early) => {}
                Err(error) if fruitless >= FRUITLESS || !is_of_network(&error) => return Err(error),
                Err(_) => {}
            }
            if fruitless >= FRUITLESS {
                let reason = format!("it sends only a part of {}", self.part.digest);
                return Err(self.client.error(ErrorCode::Internal, reason, Some("pull again to go on".to_owned())));
            }
        }
        Ok(())
    }

    /// Asks for what is missing.
    fn request(&self, partial: &mut Partial, path: &Path) -> Result<End, ImageError> {
        let mut headers = Vec::new();
        if partial.size > 0 {
            headers.push((header::RANGE, format!("bytes={}-", partial.size)));
        }
        let url = self.client.url(&format!("blobs/{}", self.part.digest));
        let answer = self.client.call(&Method::GET, &url, &headers, Payload::Nothing)?;
        let status = answer.status();
        let starts_at = answer
            .headers()
            .get(header::CONTENT_RANGE)
            .and_then(|range| range.to_str().ok()?.strip_prefix("bytes ")?.split('-').next()?.parse::<u64>().ok());
        match status {
            StatusCode::PARTIAL_CONTENT if starts_at == Some(partial.size) => {}
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => return Ok(End::Restart),
            StatusCode::OK if is_page(answer.headers()) => return Err(self.client.page(status)),
            // It does not know ranges.
            StatusCode::OK if partial.size > 0 => partial.clear().map_err(ImageError::io("could not download into", path))?,
            StatusCode::OK => {}
            _ => return Err(self.client.refusal(answer)),
        }
        let mut body = answer.into_body().into_reader();
        let mut buffer = vec![0; 128 << 10];
        loop {
            let n = match body.read(&mut buffer) {
                Ok(0) => return Ok(if partial.size == self.part.size { End::Complete } else { End::Early }),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.client.unreachable(&ureq::Error::from(error))),
            };
            if partial.size + n as u64 > self.part.size {
                // Nothing of it can be trusted.
                let _ = std::fs::remove_file(path);
                return Err(self
                    .client
                    .strange(format!("it sends more than the {} bytes of {}", self.part.size, self.part.digest)));
            }
            partial.add(&buffer[..n]).map_err(ImageError::io("could not download into", path))?;
            self.report(n as u64)?;
        }
    }
}

/// Whether an error may be gone with the next request.
fn is_of_network(error: &ImageError) -> bool {
    matches!(error, ImageError::Registry { code: ErrorCode::Internal | ErrorCode::Timeout, .. })
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Partial {
    /// Hashes what is there of a part with `size` bytes; returns its size.
    fn read_existing(&mut self, size: u64) -> io::Result<u64> {
        self.hash = Sha256::new();
        if self.file.metadata()?.len() > size {
            self.file.set_len(0)?;
        }
        self.file.seek(SeekFrom::Start(0))?;
        let mut buffer = vec![0; 128 << 10];
        self.size = 0;
        loop {
            match self.file.read(&mut buffer)? {
                0 => return Ok(self.size),
                n => {
                    self.hash.update(&buffer[..n]);
                    self.size += n as u64;
                }
            }
        }
    }

    fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.size, self.hash) = (0, Sha256::new());
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }
}

/// Opens a part's file. Waits while another pull downloads the same part, which is complete then.
fn open_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The other one may have removed it.
        let about = file.metadata()?;
        if std::fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (about.dev(), about.ino())) {
            return Ok(file);
        }
    }
}
