//! The multipart body of a registration: an archive, which is streamed to disk, and two short texts.

use std::fs::File;
use std::io::{Seek, Write};
use std::sync::Arc;

use axum::extract::multipart::Field;
use axum::response::{IntoResponse, Response};
use rustix::fs::{Mode, OFlags};

use arenite_guest_runtime::http::{ApiError, Form};

/// The most bytes of an archive.
const MAX_ARCHIVE_BYTES: u64 = 64 << 20;
/// The longest text part, in bytes.
const MAX_TEXT_BYTES: usize = 4 << 10;
const MAX_PARTS: usize = 16;

/// The parts of the body. Empty parts count as absent.
#[derive(Debug, Default)]
pub(super) struct Upload {
    pub(super) archive: Option<Archive>,
    pub(super) path: Option<String>,
    pub(super) name: Option<String>,
}

#[derive(Debug)]
pub(super) struct Archive {
    /// Positioned at its start.
    pub(super) file: File,
    /// The client's name for it, without directory and extension.
    pub(super) stem: String,
}

fn bad(message: impl Into<String>) -> Response {
    ApiError::bad_request(message).into_response()
}

fn cut_off(reason: &str) -> Response {
    bad(format!("the upload was cut off or is malformed: {reason}"))
}

/// Reads all parts.
pub(super) async fn read(mut parts: Form) -> Result<Upload, Response> {
    let mut upload = Upload::default();
    for _ in 0..MAX_PARTS {
        let Some(part) = parts.next_field().await.map_err(|e| cut_off(&e))? else { return Ok(upload) };
        match part.name().unwrap_or_default() {
            "file" if upload.archive.is_some() => return Err(bad("the part \"file\" is there twice")),
            "file" => upload.archive = archive(part).await?,
            "path" => upload.path = text(part).await?,
            "name" => upload.name = text(part).await?,
            other => return Err(bad(format!("there is no part {other:?}: a registration has file, path and name"))),
        }
    }
    Err(bad(format!("the upload has more than {MAX_PARTS} parts")))
}

async fn text(mut part: Field<'_>) -> Result<Option<String>, Response> {
    let mut bytes = Vec::new();
    while let Some(chunk) = part.chunk().await.map_err(|e| cut_off(&e.body_text()))? {
        if bytes.len() + chunk.len() > MAX_TEXT_BYTES {
            return Err(bad("the parts \"path\" and \"name\" are short"));
        }
        bytes.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("the parts \"path\" and \"name\" are utf-8"))?;
    Ok(Some(text.trim().to_owned()).filter(|t| !t.is_empty()))
}

/// Writes the archive to a nameless file, which is freed with its last descriptor.
async fn archive(mut part: Field<'_>) -> Result<Option<Archive>, Response> {
    let name = part.file_name().unwrap_or_default().to_owned();
    let file_name = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let stem = file_name.rsplit_once('.').map_or(file_name, |(stem, _)| stem).to_owned();
    let failed = |e: std::io::Error| bad(format!("the upload could not be stored: {e}"));
    let mut file: Option<Arc<File>> = None;
    let mut length = 0;
    while let Some(chunk) = part.chunk().await.map_err(|e| cut_off(&e.body_text()))? {
        length += chunk.len() as u64;
        if length > MAX_ARCHIVE_BYTES {
            return Err(bad(format!("the archive is larger than {} MiB", MAX_ARCHIVE_BYTES >> 20)));
        }
        if chunk.is_empty() {
            continue;
        }
        let into = match &file {
            Some(file) => file.clone(),
            None => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let made = rustix::fs::open("/tmp", flags, Mode::RUSR).map_err(|e| failed(e.into()))?;
                file.insert(Arc::new(made.into())).clone()
            }
        };
        let written = tokio::task::spawn_blocking(move || (&*into).write_all(&chunk)).await;
        written.map_err(std::io::Error::other).and_then(|done| done).map_err(failed)?;
    }
    let Some(mut file) = file.and_then(Arc::into_inner) else { return Ok(None) };
    file.rewind().map_err(failed)?;
    Ok(Some(Archive { file, stem }))
}
