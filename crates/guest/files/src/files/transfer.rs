//! Uploads and downloads: streams bytes between HTTP and the disk.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rustix::fs::Stat;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::error::FileError;
use super::exchange::{Download, FileUploadResult, Upload, open_download, unchanged};
use super::routes::{Outcome, answer, http_failure};
use super::text::MAX_TEXT_BYTES;
use crate::files::Files;
use arenite_guest_runtime::http::{ApiError, Envelope, Form, QueryArgs, missing};

/// Bytes of a download in memory at once.
const CHUNK_BYTES: u64 = 256 << 10;
/// The longest value of a text part, in bytes.
const MAX_PART_BYTES: usize = 8 << 10;
/// The most parts of an upload.
const MAX_PARTS: usize = 16;
/// The most ranges of a file in one call. With more, the whole file is sent.
const MAX_RANGES: usize = 64;
/// The most bytes read from an upload after it failed: a client that is still sending would not see the answer.
const MAX_DRAINED_BYTES: u64 = 256 << 20;

#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes the multipart body in the OpenAPI document")]
pub(super) struct FileUploadBody {
    #[schema(format = Binary, content_media_type = "application/octet-stream")]
    file: String,
    /// Where to store it: a file, or a directory to store it in under its own name. Default: the default directory.
    path: Option<String>,
}

/// Stores a file of any content.
#[utoipa::path(post, path = "/v1/file/upload", tag = "file", operation_id = "upload_file",
    request_body(content = FileUploadBody, content_type = "multipart/form-data"),
    responses((status = 200, body = Envelope<Outcome<FileUploadResult>>)))]
pub(super) async fn upload(State(files): State<Arc<Files>>, request: Request) -> Response {
    let mut parts = match Form::from_request(request).await {
        Ok(parts) => parts,
        Err(refusal) => return refusal,
    };
    let mut path = None;
    let mut upload: Option<Result<Upload, FileError>> = None;
    let mut drained = 0;
    for _ in 0..MAX_PARTS {
        let mut part = match parts.next_field().await {
            Ok(Some(part)) => part,
            Ok(None) => {
                return match upload {
                    None => missing("body", "file"),
                    Some(upload) => {
                        let stored = match upload {
                            Ok(upload) => upload.finish(&files, path).await,
                            Err(error) => Err(error),
                        };
                        answer(stored, |_| ("File uploaded successfully".to_owned(), None)).into_response()
                    }
                };
            }
            Err(error) => return cut_off(&error),
        };
        let name = part.name().unwrap_or_default().to_owned();
        if name == "file" {
            if upload.is_some() {
                return ApiError::bad_request("the part \"file\" is there twice: upload one file for each call").into_response();
            }
            upload = Some(Upload::begin(&files, path.clone(), part.file_name().map(str::to_owned)).await);
        }
        let mut text = Vec::new();
        loop {
            let chunk = match part.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) => return cut_off(&error.body_text()),
            };
            let written = match (name.as_str(), &mut upload) {
                ("file", Some(Ok(upload))) => upload.write(chunk).await,
                ("path", _) if text.len() + chunk.len() > MAX_PART_BYTES => {
                    return ApiError::bad_request("the part \"path\" is too long").into_response();
                }
                ("path", _) => {
                    text.extend_from_slice(&chunk);
                    Ok(())
                }
                _ => {
                    drained += chunk.len() as u64;
                    if drained > MAX_DRAINED_BYTES {
                        break;
                    }
                    Ok(())
                }
            };
            if let Err(error) = written {
                // Dropping the upload frees its space at once.
                upload = Some(Err(error));
            }
        }
        if name == "path" {
            match String::from_utf8(text) {
                Ok(text) if text.is_empty() => {}
                Ok(text) => path = Some(text),
                Err(_) => {
                    return ApiError::bad_request("the part \"path\" is not utf-8").into_response();
                }
            }
        }
        if drained > MAX_DRAINED_BYTES {
            return match upload {
                Some(Err(error)) => answer(Err::<FileUploadResult, _>(error), |_| (String::new(), None)).into_response(),
                _ => ApiError::bad_request("the upload has too much in unknown parts").into_response(),
            };
        }
    }
    ApiError::bad_request(format!("the upload has more than {MAX_PARTS} parts")).into_response()
}

/// The answer to an incomplete upload. Nothing is stored: its draft is dropped.
fn cut_off(reason: &str) -> Response {
    ApiError::bad_request(format!("the upload was cut off or is malformed: {reason}")).into_response()
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(default = "ignore")]
pub(super) enum FileDownloadChangePolicy {
    /// Sends the bytes that the file has when they are read.
    #[default]
    Ignore,
    /// Breaks off when the file changes.
    Abort,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DownloadQuery {
    path: String,
    #[serde(default)]
    #[param(inline)]
    change_policy: FileDownloadChangePolicy,
}

/// The bytes of a file, or of a range of it.
#[utoipa::path(get, path = "/v1/file/download", tag = "file", operation_id = "download_file", params(DownloadQuery),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, description = "The range that was asked for"),
        (status = 409, description = "The file changed, and change_policy is abort")))]
pub(super) async fn download(
    State(files): State<Arc<Files>>,
    QueryArgs(query): QueryArgs<DownloadQuery>,
    headers: HeaderMap,
) -> Response {
    let download = match open_download(&files, &query.path).await {
        Ok(download) => download,
        Err(error) => return http_failure(&error),
    };
    let watch = query.change_policy == FileDownloadChangePolicy::Abort;
    if watch && !unchanged(&download) {
        let message = format!("'{}' changed before it could be sent", query.path);
        return ApiError::new(StatusCode::CONFLICT, message).hint("download it again").into_response();
    }
    respond(download, watch, &headers).await
}

fn etag(stat: &Stat) -> String {
    format!("\"{:x}-{:x}-{:x}.{:x}\"", stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

/// `Last-Modified` in HTTP's date format.
fn http_date(stat: &Stat) -> Option<String> {
    let time = jiff::Timestamp::from_second(stat.st_mtime).ok()?;
    Some(time.to_zoned(jiff::tz::TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
}

/// One range of bytes: the first, and one past the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    Whole,
    Part(u64, u64),
    Unsatisfiable,
}

/// The ranges of a `Range` header that the file has, in their order.
#[derive(Debug, PartialEq, Eq)]
enum Ranges {
    Whole,
    Parts(Vec<(u64, u64)>),
    Unsatisfiable,
}

/// Parses a `Range` header. Malformed ranges and other units are ignored, as HTTP allows. So are too many ranges, and ranges that
/// would send more than the file has.
fn ranges(header: Option<&str>, length: u64) -> Ranges {
    let Some(specs) = header.and_then(|h| h.trim().strip_prefix("bytes=")) else { return Ranges::Whole };
    let mut parts = Vec::new();
    for spec in specs.split(',').map(str::trim).filter(|spec| !spec.is_empty()) {
        match range(spec, length) {
            Range::Whole => return Ranges::Whole,
            Range::Part(from, to) => parts.push((from, to)),
            Range::Unsatisfiable => {}
        }
        if parts.len() > MAX_RANGES {
            return Ranges::Whole;
        }
    }
    let sum = parts.iter().fold(0u64, |sum, (from, to)| sum.saturating_add(to - from));
    match parts.len() {
        0 if specs.trim_matches([',', ' ']).is_empty() => Ranges::Whole,
        0 => Ranges::Unsatisfiable,
        1 => Ranges::Parts(parts),
        _ if sum > length => Ranges::Whole,
        _ => Ranges::Parts(parts),
    }
}

fn range(spec: &str, length: u64) -> Range {
    let Some((first, last)) = spec.split_once('-') else { return Range::Whole };
    match (first.trim().parse::<u64>(), last.trim()) {
        (Ok(first), "") if first < length => Range::Part(first, length),
        (Ok(_), "") => Range::Unsatisfiable,
        (Ok(first), last) => match last.parse::<u64>() {
            Ok(last) if last < first => Range::Whole,
            Ok(_) if first >= length => Range::Unsatisfiable,
            Ok(last) => Range::Part(first, last.saturating_add(1).min(length)),
            Err(_) => Range::Whole,
        },
        (Err(_), last) if first.trim().is_empty() => match last.parse::<u64>() {
            Ok(0) => Range::Unsatisfiable,
            Ok(_) if length == 0 => Range::Unsatisfiable,
            Ok(count) => Range::Part(length.saturating_sub(count), length),
            Err(_) => Range::Whole,
        },
        _ => Range::Whole,
    }
}

/// The `Content-Disposition` header with the file's name, in the forms for old and new clients.
fn disposition(name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii() && !c.is_ascii_control() && c != '"' && c != '\\' { c } else { '_' }).collect();
    let encoded: String = name
        .bytes()
        .map(|b| if b.is_ascii_alphanumeric() || b"-._~".contains(&b) { (b as char).to_string() } else { format!("%{b:02X}") })
        .collect();
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

async fn respond(download: Download, watch: bool, request: &HeaderMap) -> Response {
    let mut length = u64::try_from(download.stat.st_size).unwrap_or(0);
    let mut headers = HeaderMap::new();
    let mut set = |name, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    };
    let tag = etag(&download.stat);
    set(header::CONTENT_TYPE, "application/octet-stream".to_owned());
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned());
    set(header::CONTENT_DISPOSITION, disposition(&download.name));
    set(header::ACCEPT_RANGES, "bytes".to_owned());
    if let Some(date) = http_date(&download.stat) {
        set(header::LAST_MODIFIED, date);
    }
    let text = |name| request.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
    let download = Arc::new(download);
    if length == 0 {
        // Empty, or a file of /proc, which reports no length: those are small.
        let reader = download.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; 64 << 10];
            let mut filled = 0;
            while filled < MAX_TEXT_BYTES as usize {
                if filled == bytes.len() {
                    bytes.resize(filled * 2, 0);
                }
                match reader.file.read_at(&mut bytes[filled..], filled as u64) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => filled += read,
                }
            }
            bytes.truncate(filled);
            bytes
        });
        let bytes = read.await.unwrap_or_default();
        length = bytes.len() as u64;
        if length > 0 {
            set(header::CONTENT_LENGTH, length.to_string());
            return (headers, Body::from(bytes)).into_response();
        }
    }
    // A range of another version of the file is useless: then the whole file is sent.
    let same = text(header::IF_RANGE).is_none_or(|v| v == tag);
    set(header::ETAG, tag);
    let (status, from, to) = match ranges(text(header::RANGE).filter(|_| same), length) {
        Ranges::Whole => (StatusCode::OK, 0, length),
        Ranges::Parts(parts) => match parts[..] {
            [(from, to)] => {
                set(header::CONTENT_RANGE, format!("bytes {from}-{}/{length}", to - 1));
                (StatusCode::PARTIAL_CONTENT, from, to)
            }
            _ => {
                let (boundary, size, body) = several(download, parts, length, watch);
                set(header::CONTENT_TYPE, format!("multipart/byteranges; boundary={boundary}"));
                set(header::CONTENT_LENGTH, size.to_string());
                return (StatusCode::PARTIAL_CONTENT, headers, body).into_response();
            }
        },
        Ranges::Unsatisfiable => {
            set(header::CONTENT_RANGE, format!("bytes */{length}"));
            return (StatusCode::RANGE_NOT_SATISFIABLE, headers).into_response();
        }
    };
    set(header::CONTENT_LENGTH, (to - from).to_string());
    (status, headers, Body::from_stream(chunks(download, from, to, watch))).into_response()
}

/// Several ranges as one body: returns its boundary, its length, and the body.
fn several(download: Arc<Download>, parts: Vec<(u64, u64)>, length: u64, watch: bool) -> (String, u64, Body) {
    let mut random = [0; 16];
    // Without random bytes, a file could only deceive its own reader.
    let _ = getrandom::fill(&mut random);
    let boundary = format!("{:032x}", u128::from_le_bytes(random));
    let head = |from: u64, to: u64| {
        let range = format!("bytes {from}-{}/{length}", to - 1);
        Bytes::from(format!("\r\n--{boundary}\r\ncontent-type: application/octet-stream\r\ncontent-range: {range}\r\n\r\n"))
    };
    let parts: Vec<_> = parts.into_iter().map(|(from, to)| (head(from, to), from, to)).collect();
    let end = Bytes::from(format!("\r\n--{boundary}--\r\n"));
    let size = parts.iter().map(|(head, from, to)| head.len() as u64 + to - from).sum::<u64>() + end.len() as u64;
    let parts = stream::iter(parts).flat_map(move |(head, from, to)| {
        stream::once(std::future::ready(Ok(head))).chain(chunks(Arc::clone(&download), from, to, watch))
    });
    (boundary, size, Body::from_stream(parts.chain(stream::once(std::future::ready(Ok(end))))))
}

/// The bytes `from` to before `to`. Breaks the transfer if the file has become shorter, or if `watch` is set and it has changed:
/// its length has been promised.
fn chunks(download: Arc<Download>, from: u64, to: u64, watch: bool) -> impl futures_util::Stream<Item = std::io::Result<Bytes>> {
    stream::try_unfold(from, move |at| {
        let download = download.clone();
        async move {
            if at >= to {
                return Ok(None);
            }
            let read = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; CHUNK_BYTES.min(to - at) as usize];
                let read = download.file.read_at(&mut bytes, at)?;
                bytes.truncate(read);
                if read == 0 || watch && !unchanged(&download) {
                    return Err(std::io::Error::other("the file changed while it was sent"));
                }
                Ok(bytes)
            });
            let bytes = read.await.map_err(std::io::Error::other)??;
            let next = at + bytes.len() as u64;
            Ok(Some((Bytes::from(bytes), next)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_http_says() {
        let cases = [
            ("bytes=0-3", Ranges::Parts(vec![(0, 4)])),
            ("bytes=4-", Ranges::Parts(vec![(4, 10)])),
            ("bytes=-3", Ranges::Parts(vec![(7, 10)])),
            ("bytes=-30", Ranges::Parts(vec![(0, 10)])),
            ("bytes=8-99999999999999999999", Ranges::Whole),
            ("bytes=8-18446744073709551615", Ranges::Parts(vec![(8, 10)])),
            ("bytes=10-", Ranges::Unsatisfiable),
            ("bytes=10-12", Ranges::Unsatisfiable),
            ("bytes=-0", Ranges::Unsatisfiable),
            ("bytes=", Ranges::Whole),
            ("bytes=5-4", Ranges::Whole),
            ("bytes=0-1,4-5", Ranges::Parts(vec![(0, 2), (4, 6)])),
            ("bytes=-2, 0-0", Ranges::Parts(vec![(8, 10), (0, 1)])),
            ("bytes=0-1,10-12", Ranges::Parts(vec![(0, 2)])),
            ("bytes=0-9,0-9", Ranges::Whole),
            ("bytes=0-1,x", Ranges::Whole),
            ("lines=0-1", Ranges::Whole),
            ("bytes=a-b", Ranges::Whole),
        ];
        for (text, expected) in cases {
            assert_eq!(ranges(Some(text), 10), expected, "{text}");
        }
        let many = |count| format!("bytes={}", (0..count).map(|at| format!("{at}-{at}")).collect::<Vec<_>>().join(","));
        assert!(matches!(ranges(Some(&many(MAX_RANGES)), 1000), Ranges::Parts(_)));
        assert_eq!(ranges(Some(&many(MAX_RANGES + 1)), 1000), Ranges::Whole);
        assert_eq!(ranges(Some("bytes=0-0"), 0), Ranges::Unsatisfiable);
        assert_eq!(ranges(None, 10), Ranges::Whole);
    }

    #[test]
    fn names_can_not_break_out_of_their_header() {
        let value = disposition("a\"b\r\nSet-Cookie: x\\é.txt");
        assert!(HeaderValue::try_from(&value).is_ok());
        assert!(value.starts_with("attachment; filename=\"a_b__Set-Cookie: x__.txt\""), "{value}");
        assert!(value.ends_with("%C3%A9.txt"), "{value}");
    }
}
