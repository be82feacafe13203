//! Observes a body while it passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::value::RawValue;

use crate::verdict::Verdict;
use crate::{BlobRef, BlobStore, BlobWriter, Body, NotKept, StepResult};

/// Hashes a body as it passes and keeps it up to the limit.
///
/// Memory: [`crate::Limits::inline_bytes`] at most; what is beyond goes to a file.
pub struct Tap {
    blobs: Arc<dyn BlobStore>,
    not_kept: Arc<AtomicU64>,
    inline: usize,
    most: u64,
    bytes: u64,
    /// The whole body while it fits in a record; then the bytes that are not in the file yet.
    buffer: Vec<u8>,
    large: Option<Large>,
    verdict: Option<Verdict>,
}

/// A body that no longer fits in a record.
struct Large {
    hash: blake3::Hasher,
    spool: Result<Box<dyn BlobWriter>, NotKept>,
}

impl Tap {
    pub(crate) fn new(blobs: Arc<dyn BlobStore>, not_kept: Arc<AtomicU64>, inline: usize, most: u64) -> Self {
        Self { blobs, not_kept, inline, most, bytes: 0, buffer: Vec::new(), large: None, verdict: None }
    }

    /// Sets how many bytes the record itself may hold.
    pub(crate) fn holding(mut self, inline: usize) -> Self {
        self.inline = self.inline.min(inline);
        self
    }

    /// For an answer, which is scanned for the result of the call.
    pub(crate) fn judging(mut self) -> Self {
        self.verdict = Some(Verdict::default());
        self
    }

    /// Marks the body as a file or other payload that doesn't contain the result of the call.
    pub fn is_payload(&mut self) {
        self.verdict = None;
    }

    /// The result of the call, according to the answer.
    pub(crate) fn result(&self) -> StepResult {
        self.verdict.as_ref().map_or(StepResult::Succeeded, Verdict::result)
    }

    /// Processes the next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if let Some(verdict) = &mut self.verdict {
            verdict.feed(bytes);
        }
        match &mut self.large {
            None if self.buffer.len() + bytes.len() <= self.inline => {
                self.buffer.extend_from_slice(bytes);
            }
            None => {
                let mut large = Large::create(&*self.blobs);
                large.hash.update(&self.buffer);
                self.large = Some(large);
                self.spool(bytes);
            }
            Some(_) => self.spool(bytes),
        }
    }

    /// Bytes that have passed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn spool(&mut self, bytes: &[u8]) {
        let Some(large) = &mut self.large else { return };
        large.hash.update(bytes);
        if self.bytes > self.most {
            large.give_up(NotKept::TooLarge);
        }
        if large.spool.is_err() {
            self.buffer = Vec::new();
            return;
        }
        // Small pieces are buffered, so that a stream of lines does not cost one write(2) each.
        if self.buffer.len() + bytes.len() > self.inline {
            large.write(&self.buffer);
            self.buffer.clear();
        }
        if bytes.len() > self.inline {
            large.write(bytes);
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The body for the record; none if nothing passed.
    pub(crate) fn close(mut self) -> Option<Body> {
        if self.bytes == 0 {
            return None;
        }
        let large = match self.large.take() {
            Some(large) => large,
            None => match String::from_utf8(std::mem::take(&mut self.buffer)) {
                Ok(text) => return Some(of_text(text)),
                Err(binary) => {
                    self.buffer = binary.into_bytes();
                    let mut large = Large::create(&*self.blobs);
                    large.hash.update(&self.buffer);
                    large
                }
            },
        };
        let blob = large.close(&self.buffer, self.bytes, &self.not_kept);
        Some(Body::Blob(blob))
    }
}

impl Large {
    fn create(blobs: &dyn BlobStore) -> Self {
        let spool = match blobs.create() {
            Ok(Some(writer)) => Ok(writer),
            Ok(None) => Err(NotKept::StoreFull),
            Err(error) => {
                tracing::error!(%error, "a body can't be kept");
                Err(NotKept::WriteFailed)
            }
        };
        Self { hash: blake3::Hasher::new(), spool }
    }

    /// Drops the spooled bytes and continues to hash.
    fn give_up(&mut self, why: NotKept) {
        if self.spool.is_ok() {
            self.spool = Err(why);
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Ok(writer) = &mut self.spool {
            match writer.write(bytes) {
                Ok(true) => {}
                Ok(false) => self.give_up(NotKept::StoreFull),
                Err(error) => {
                    tracing::error!(%error, "a body can't be kept");
                    self.give_up(NotKept::WriteFailed);
                }
            }
        }
    }

    fn close(mut self, rest: &[u8], bytes: u64, count: &AtomicU64) -> BlobRef {
        self.write(rest);
        let blake3 = self.hash.finalize().to_string();
        let not_kept = match self.spool {
            Ok(writer) => writer.commit(&blake3).err().map(|error| {
                tracing::error!(%error, blake3, "a body can't be kept");
                NotKept::WriteFailed
            }),
            Err(why) => Some(why),
        };
        if matches!(not_kept, Some(NotKept::StoreFull | NotKept::WriteFailed)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        BlobRef { blake3, bytes, kept: not_kept.is_none(), truncated: not_kept == Some(NotKept::TooLarge), not_kept }
    }
}

/// The form of a text in a record.
pub(crate) fn of_text(text: String) -> Body {
    let Ok(raw) = serde_json::from_str::<&RawValue>(&text) else {
        return Body::Text(text);
    };
    // Strings in JSON contain no bare line break, so only space between tokens is replaced.
    let one_line = raw.get().replace(['\n', '\r'], " ");
    match RawValue::from_string(one_line) {
        Ok(raw) => Body::Json(raw),
        Err(_) => Body::Text(text),
    }
}
