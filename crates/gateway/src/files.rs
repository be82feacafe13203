//! The files of volumes and snapshots as the API shows them: pages of directories, and contents with their ranges.

use std::io::{Seek, SeekFrom};

use arenite_engine::FileTreeError;
use arenite_engine::file_tree::{EntryKind, TreeEntry, TreeFile, TreePath};
use arenite_model::ErrorCode;
use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use utoipa::ToSchema;

use crate::exchange::{Answered, Exchange};
use crate::lists::{MAX_PAGE, PageQuery};
use crate::refusal::{Refusal, json_response};

/// Bytes of a download that are read at once.
const READ_BYTES: usize = 128 << 10;

/// An entry of a directory.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileEntry {
    /// What is not UTF-8 is replaced by U+FFFD.
    name: String,
    /// The name for a `path`, percent-encoded; only of a name that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoded_name: Option<String>,
    kind: EntryKind,
    size_bytes: u64,
    /// The permission bits, such as `0644`.
    mode: String,
    modified_at: Timestamp,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileList {
    files: Vec<FileEntry>,
    /// `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

impl From<TreeEntry> for FileEntry {
    fn from(entry: TreeEntry) -> Self {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let is_exact = std::str::from_utf8(&entry.name).is_ok();
        Self {
            name,
            encoded_name: (!is_exact).then(|| percent_encode(&entry.name, NON_ALPHANUMERIC).to_string()),
            kind: entry.kind,
            size_bytes: entry.size,
            mode: format!("{:04o}", entry.mode),
            modified_at: entry.modified_at,
        }
    }
}

/// The path in a request's query, which is any bytes.
pub(crate) fn path_in(query: Option<&str>, default: Option<&str>) -> Result<TreePath, Refusal> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let given = pairs.filter(|(name, _)| *name == "path").map(|(_, value)| value.replace('+', " ")).next_back();
    let given = given.or_else(|| default.map(str::to_owned)).ok_or_else(|| Refusal::bad_request("path is missing"))?;
    let bytes: Vec<u8> = percent_decode_str(&given).collect();
    TreePath::parse(&bytes).map_err(|error| Refusal::new(error.code(), error.to_string()))
}

/// Runs what waits for the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileTreeError> + Send + 'static,
    refused: impl FnOnce(FileTreeError) -> Refusal,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    let broken = |error| Refusal::new(ErrorCode::Internal, format!("the call broke off: {error}"));
    done.map_err(broken)?.map_err(refused)
}

/// The page of a directory that a request asks for.
pub(crate) struct DirectoryPage {
    path: TreePath,
    page: PageQuery,
    after: Option<Vec<u8>>,
}

impl DirectoryPage {
    pub(crate) fn read(exchange: &Exchange) -> Result<Self, Refusal> {
        let path = path_in(exchange.parts.uri.query(), Some(""))?;
        let page = PageQuery::in_order(exchange, &format!("{path:?}"))?;
        let after = match page.after::<String>()? {
            None => None,
            Some(text) => Some(URL_SAFE_NO_PAD.decode(text).map_err(|_| Refusal::bad_request("cursor is not valid"))?),
        };
        Ok(Self { path, page, after })
    }

    /// `list` returns the first entries of a directory after a name, at most this number.
    pub(crate) async fn answer(
        self,
        list: impl FnOnce(&TreePath, Option<&[u8]>, usize) -> Result<Vec<TreeEntry>, FileTreeError> + Send + 'static,
        refused: impl FnOnce(FileTreeError) -> Refusal,
    ) -> Answered {
        let Self { path, page, after } = self;
        let most = page.limit.min(MAX_PAGE) + 1;
        let mut entries = blocking(move || list(&path, after.as_deref(), most), refused).await?;
        let next_cursor = page.end(&mut entries, |entry| URL_SAFE_NO_PAD.encode(&entry.name));
        let files = entries.into_iter().map(FileEntry::from).collect();
        Ok(json_response(StatusCode::OK, &FileList { files, next_cursor }))
    }
}

/// The first and the last byte that a `Range` wants. None: all, as of a header that can't be read.
fn range_of(header: Option<&HeaderValue>, size: u64) -> Result<Option<(u64, u64)>, ()> {
    let Some(range) = header.and_then(|header| header.to_str().ok()?.strip_prefix("bytes=")) else { return Ok(None) };
    let Some((first, last)) = range.split_once('-') else { return Ok(None) };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (first, last) = match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            Some(0) => return Err(()),
            Some(length) => (size.saturating_sub(length), size.saturating_sub(1)),
            None => return Ok(None),
        },
        (first, "") => match number(first) {
            Some(first) => (first, size.saturating_sub(1)),
            None => return Ok(None),
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => (first, last.min(size.saturating_sub(1))),
            _ => return Ok(None),
        },
    };
    if first < size { Ok(Some((first, last))) } else { Err(()) }
}

/// The content of a file, or the part of it that the request's `Range` names.
pub(crate) fn content(mut found: TreeFile, request: &HeaderMap) -> Answered {
    let range = range_of(request.get(RANGE), found.size).map_err(|()| Refusal {
        status: StatusCode::RANGE_NOT_SATISFIABLE,
        ..Refusal::bad_request(format!("the file has {} bytes, and none of the range", found.size))
    })?;
    let (status, first, length) = match range {
        Some((first, last)) => (StatusCode::PARTIAL_CONTENT, first, last - first + 1),
        None => (StatusCode::OK, 0, found.size),
    };
    if first > 0 {
        // A seek waits for nothing.
        let sought = found.file.seek(SeekFrom::Start(first));
        sought.map_err(|error| Refusal::new(ErrorCode::Internal, format!("the file could not be read: {error}")))?;
    }
    let file = tokio::fs::File::from_std(found.file).take(length);
    // A bucket stays mounted until the file is read.
    let held = found.held;
    let pieces = tokio_util::io::ReaderStream::with_capacity(file, READ_BYTES).inspect(move |_| _ = &held);
    let mut answer = Response::new(Body::from_stream(pieces));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // Content that sandboxes wrote must not become a page of this server.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some((first, last)) = range
        && let Ok(value) = HeaderValue::try_from(format!("bytes {first}-{last}/{}", found.size))
    {
        headers.insert(CONTENT_RANGE, value);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_one_part_of_the_file() {
        let range = |text: &str, size| range_of(Some(&HeaderValue::try_from(text).unwrap()), size);
        assert_eq!(range("bytes=0-0", 10), Ok(Some((0, 0))));
        assert_eq!(range("bytes=2-", 10), Ok(Some((2, 9))));
        assert_eq!(range("bytes=-3", 10), Ok(Some((7, 9))));
        assert_eq!(range("bytes=-30", 10), Ok(Some((0, 9))));
        assert_eq!(range("bytes=5-99", 10), Ok(Some((5, 9))));
        for unsatisfiable in ["bytes=10-", "bytes=-0", "bytes=10-20"] {
            assert_eq!(range(unsatisfiable, 10), Err(()), "{unsatisfiable}");
        }
        assert_eq!(range("bytes=0-", 0), Err(()));
        for ignored in ["bytes=3-2", "bytes=a-b", "lines=1-2", "bytes=1", "bytes=0-1,3-4", "bytes=-"] {
            assert_eq!(range(ignored, 10), Ok(None), "{ignored}");
        }
        assert_eq!(range_of(None, 10), Ok(None));
    }
}
