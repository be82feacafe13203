//! The files of a volume, without a sandbox.

use std::io::{Seek, SeekFrom};
use std::time::Duration;

use arenite_control::Volume;
use arenite_engine::FileTreeError;
use arenite_engine::file_tree::{EntryKind, FileTree, TreeEntry, TreePath, Upload};
use arenite_model::ErrorCode;
use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::named;
use crate::exchange::{Answered, Exchange};
use crate::lists::{MAX_PAGE, PageQuery};
use crate::query::Query;
use crate::refusal::{Refusal, json_response};
use crate::{audit, proxy};

const PATH: Query = ("path", "string", "A path in the volume, such as `models/first.bin`");
pub(crate) const FILES_QUERY: &[Query] = &[("path", "string", "A directory of the volume; by default its top")];
pub(crate) const GET_QUERY: &[Query] = &[PATH];
pub(crate) const PUT_QUERY: &[Query] = &[PATH, ("create_parents", "boolean", "Creates missing directories above the file")];
pub(crate) const DELETE_QUERY: &[Query] = &[PATH, ("recursive", "boolean", "Removes a directory with its content")];
/// What the body of an upload is, for documents.
pub(crate) const CONTENT: &[&str] = &["application/octet-stream"];

/// The longest upload.
const UPLOAD_TIME: Duration = Duration::from_secs(6 * 60 * 60);
/// Bytes of an upload that are written at once.
const PIECE_BYTES: usize = 1 << 20;
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

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedFile {
    path: String,
    removed: bool,
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
fn path_in(query: Option<&str>, default: Option<&str>) -> Result<TreePath, Refusal> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let given = pairs.filter(|(name, _)| *name == "path").map(|(_, value)| value.replace('+', " ")).next_back();
    let given = given.or_else(|| default.map(str::to_owned)).ok_or_else(|| Refusal::bad_request("path is missing"))?;
    let bytes: Vec<u8> = percent_decode_str(&given).collect();
    TreePath::parse(&bytes).map_err(|error| Refusal::new(error.code(), error.to_string()))
}

fn refused(volume: &Volume, error: FileTreeError) -> Refusal {
    let refusal = Refusal::new(error.code(), format!("volume {}: {error}", volume.name));
    match error {
        FileTreeError::Full => Refusal {
            status: StatusCode::INSUFFICIENT_STORAGE,
            ..refusal.hint(format!(
                "its size is {} bytes: remove files, or raise it with: arenite volume set {} --size; or the server's disk is full",
                volume.size_bytes, volume.name
            ))
        },
        FileTreeError::Io { .. } => {
            tracing::warn!(volume = %volume.name, %error, "a call to a volume failed");
            refusal
        }
        _ => refusal,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileTreeError> + Send + 'static,
    volume: &Volume,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    let broken = |error| Refusal::new(ErrorCode::Internal, format!("the call broke off: {error}"));
    done.map_err(broken)?.map_err(|error| refused(volume, error))
}

async fn files_of(exchange: &Exchange) -> Result<(Volume, FileTree), Refusal> {
    Ok(exchange.gateway.control.volume_files(exchange.context.tenant(), &named(exchange)?).await?)
}

pub(crate) async fn list_files(exchange: &mut Exchange) -> Answered {
    let path = path_in(exchange.parts.uri.query(), Some(""))?;
    let page = PageQuery::in_order(exchange, &format!("{path:?}"))?;
    let after = match page.after::<String>()? {
        None => None,
        Some(text) => Some(URL_SAFE_NO_PAD.decode(text).map_err(|_| Refusal::bad_request("cursor is not valid"))?),
    };
    let (volume, files) = files_of(exchange).await?;
    let most = page.limit.min(MAX_PAGE) + 1;
    let mut entries = blocking(move || files.list(&path, after.as_deref(), most), &volume).await?;
    let next_cursor = page.end(&mut entries, |entry| URL_SAFE_NO_PAD.encode(&entry.name));
    let files = entries.into_iter().map(FileEntry::from).collect();
    Ok(json_response(StatusCode::OK, &FileList { files, next_cursor }))
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

pub(crate) async fn get_content(exchange: &mut Exchange) -> Answered {
    let (volume, files) = files_of(exchange).await?;
    let path = path_in(exchange.parts.uri.query(), None)?;
    let mut found = blocking(move || files.read(&path), &volume).await?;
    let range = range_of(exchange.parts.headers.get(RANGE), found.size).map_err(|()| Refusal {
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

pub(crate) async fn put_content(exchange: &mut Exchange) -> Answered {
    let (volume, files) = files_of(exchange).await?;
    let path = path_in(exchange.parts.uri.query(), None)?;
    let create_parents = exchange.query("create_parents").is_some_and(|given| given == "true");
    let object = format!("{} {}", volume.name, shown(exchange));
    let written = async {
        let length = exchange.parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > volume.size_bytes) {
            return Err(refused(&volume, FileTreeError::Full));
        }
        let upload = blocking(move || files.upload(&path, create_parents), &volume).await?;
        let body = exchange.take_body();
        let upload = receive(body, upload, &volume, exchange.gateway.config.next_piece).await?;
        blocking(move || upload.finish(), &volume).await
    }
    .await;
    let written = audit::record_result(&exchange.gateway, &exchange.context, "volume.write", &object, written).await?;
    Ok(json_response(StatusCode::OK, &FileEntry::from(written)))
}

/// Writes a body while it arrives. A body that breaks off leaves nothing.
async fn receive(mut body: Body, mut upload: Upload, volume: &Volume, next_piece: Duration) -> Result<Upload, Refusal> {
    let deadline = Instant::now() + UPLOAD_TIME;
    let (mut waiting, mut bytes, mut received): (Vec<Bytes>, usize, u64) = (Vec::new(), 0, 0);
    loop {
        let until = deadline.min(Instant::now() + next_piece);
        let next = tokio::time::timeout_at(until, body.frame()).await.map_err(|_| proxy::late_body())?;
        let is_end = next.is_none();
        if let Some(frame) = next {
            let frame = frame.map_err(|_| Refusal::bad_request("the upload broke off before its end"))?;
            let Ok(piece) = frame.into_data() else { continue };
            bytes += piece.len();
            received += piece.len() as u64;
            waiting.push(piece);
            if received > volume.size_bytes {
                return Err(refused(volume, FileTreeError::Full));
            }
        }
        if bytes >= PIECE_BYTES || is_end && bytes > 0 {
            let pieces = std::mem::take(&mut waiting);
            bytes = 0;
            let write = move || pieces.iter().try_for_each(|piece| upload.write(piece)).map(|()| upload);
            upload = blocking(write, volume).await?;
        }
        if is_end {
            return Ok(upload);
        }
    }
}

pub(crate) async fn delete_content(exchange: &mut Exchange) -> Answered {
    let (volume, files) = files_of(exchange).await?;
    let path = path_in(exchange.parts.uri.query(), None)?;
    let recursive = exchange.query("recursive").is_some_and(|given| given == "true");
    let object = format!("{} {}", volume.name, shown(exchange));
    let removed = blocking(move || files.remove(&path, recursive), &volume).await;
    audit::record_result(&exchange.gateway, &exchange.context, "volume.remove_file", &object, removed).await?;
    let path = exchange.query("path").unwrap_or_else(|| shown(exchange));
    Ok(json_response(StatusCode::OK, &RemovedFile { path, removed: true }))
}

/// The path as it is in the query, cut for the audit log.
fn shown(exchange: &Exchange) -> String {
    let pairs = exchange.parts.uri.query().unwrap_or_default().split('&');
    let path = pairs.filter_map(|pair| pair.strip_prefix("path=")).next_back().unwrap_or_default();
    path.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::harness::Harness;

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

    #[tokio::test]
    async fn files_are_uploaded_listed_downloaded_and_removed() {
        let server = Harness::new().await;
        server.keep_volumes();
        server.call("POST", "/api/v2/volumes", json!({ "name": "v", "size_bytes": 16 << 20 })).await;
        let at = |path: &str| format!("/api/v2/volumes/v{path}");
        let put = server.bytes("PUT", &at("/content?path=a/b.txt"), b"hello".to_vec()).await;
        assert_eq!(put.status, 404, "{}", put.text);
        let put = server.bytes("PUT", &at("/content?path=/a/b.txt&create_parents=true"), b"hello".to_vec()).await;
        assert_eq!((put.status, &put.json["size_bytes"], &put.json["mode"]), (200, &json!(5), &json!("0644")), "{}", put.text);
        let got = server.call("GET", &at("/content?path=a/b.txt"), Value::Null).await;
        assert_eq!((got.status, got.text.as_str()), (200, "hello"));
        let part = server.call_with("GET", &at("/content?path=a/b.txt"), &[("range", "bytes=1-2")], json!({})).await;
        assert_eq!((part.status, part.text.as_str(), &part.headers[CONTENT_RANGE]), (206, "el", &"bytes 1-2/5".parse().unwrap()));
        let past = server.call_with("GET", &at("/content?path=a/b.txt"), &[("range", "bytes=5-")], json!({})).await;
        assert_eq!(past.status, 416);
        // A name of any bytes can be written, listed and read.
        let put = server.bytes("PUT", &at("/content?path=%FFx"), b"".to_vec()).await;
        assert_eq!((put.status, &put.json["encoded_name"]), (200, &json!("%FFx")), "{}", put.text);
        let list = server.call("GET", &at("/files?limit=1"), Value::Null).await.json;
        assert_eq!((&list["files"][0]["name"], &list["files"][0]["kind"]), (&json!("a"), &json!("directory")));
        let rest =
            server.call("GET", &at(&format!("/files?cursor={}", list["next_cursor"].as_str().unwrap())), Value::Null).await;
        assert_eq!((&rest.json["files"][0]["encoded_name"], &rest.json["next_cursor"]), (&json!("%FFx"), &Value::Null));
        for (method, path, status) in [
            ("GET", "/content", 400),
            ("GET", "/content?path=..%2Fx", 400),
            ("GET", "/content?path=a/%00", 400),
            ("GET", "/content?path=a", 409),
            ("GET", "/content?path=no", 404),
            ("GET", "/files?path=a/b.txt", 409),
            ("PUT", "/content?path=", 400),
            ("PUT", "/content?path=a", 409),
            ("DELETE", "/content?path=a", 409),
            ("DELETE", "/content?path=", 400),
            ("DELETE", "/content?path=%FFx", 200),
            ("DELETE", "/content?path=a&recursive=true", 200),
        ] {
            let answer = server.call(method, &at(path), Value::Null).await;
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
        }
        let large = server.bytes("PUT", &at("/content?path=large"), vec![0; (16 << 20) + 1]).await;
        assert_eq!((large.status, &large.json["code"]), (507, &json!("exhausted")), "{}", large.text);
        assert_eq!(server.call("GET", &at("/files"), Value::Null).await.json["files"], json!([]));
    }
}
