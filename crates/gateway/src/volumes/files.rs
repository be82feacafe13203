//! The files of a volume, without a sandbox.

use std::time::Duration;

use arenite_control::Volume;
use arenite_engine::FileTreeError;
use arenite_engine::file_tree::{FileTree, Upload};
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::named;
use crate::exchange::{Answered, Exchange};
use crate::files::{DirectoryPage, FileEntry, content, path_in};
use crate::query::Query;
use crate::refusal::{Refusal, json_response};
use crate::{audit, files, proxy};

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

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedFile {
    path: String,
    removed: bool,
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
    files::blocking(work, |error| refused(volume, error)).await
}

async fn files_of(exchange: &Exchange) -> Result<(Volume, FileTree), Refusal> {
    Ok(exchange.gateway.control.volume_files(exchange.context.tenant(), &named(exchange)?).await?)
}

pub(crate) async fn list_files(exchange: &mut Exchange) -> Answered {
    let page = DirectoryPage::read(exchange)?;
    let (volume, files) = files_of(exchange).await?;
    page.answer(move |path, after, most| files.list(path, after, most), |error| refused(&volume, error)).await
}

pub(crate) async fn get_content(exchange: &mut Exchange) -> Answered {
    let (volume, files) = files_of(exchange).await?;
    let path = path_in(exchange.parts.uri.query(), None)?;
    let found = blocking(move || files.read(&path), &volume).await?;
    content(found, &exchange.parts.headers)
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
    use http::header::CONTENT_RANGE;
    use serde_json::{Value, json};

    use crate::harness::Harness;

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
