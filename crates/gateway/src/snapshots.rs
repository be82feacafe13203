//! The files of snapshots, without a sandbox, and snapshots as archives.

use std::sync::Arc;
use std::time::Duration;

use arenite_control::{Snapshot, SnapshotImport};
use arenite_engine::{FileTreeError, LayeredTree};
use arenite_model::{ErrorCode, SnapshotName};
use axum::body::Body;
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::exchange::{Answered, Exchange};
use crate::export::{Pieces, streamed};
use crate::files::{DirectoryPage, blocking, content, path_in};
use crate::query::Query;
use crate::refusal::{Refusal, json_response};
use crate::{audit, proxy, states};

pub(crate) const FILES_QUERY: &[Query] = &[("path", "string", "A directory of the snapshot; by default its root")];
pub(crate) const GET_QUERY: &[Query] = &[("path", "string", "A path in the snapshot, such as `home/gem/notes.txt`")];

pub(crate) const IMPORT_QUERY: &[Query] =
    &[("name", "string", "The name of the new snapshot; by default that of the exported one")];
/// What an archive is, for documents.
pub(crate) const ARCHIVE: &[&str] = &["application/octet-stream"];
/// The longest upload of an archive.
const UPLOAD_TIME: Duration = Duration::from_secs(6 * 60 * 60);
/// What became of the processes that an exported snapshot keeps: an archive has none.
const PROCESSES: HeaderName = HeaderName::from_static("x-arenite-processes");

async fn files_of(exchange: &Exchange) -> Result<(Snapshot, LayeredTree), Refusal> {
    let name: SnapshotName = exchange.param("name").parse()?;
    Ok(exchange.gateway.control.snapshot_files(exchange.context.tenant(), &name).await?)
}

fn refused(snapshot: &Snapshot, error: FileTreeError) -> Refusal {
    if matches!(error, FileTreeError::Io { .. }) {
        tracing::warn!(snapshot = %snapshot.name, %error, "a call to a snapshot failed");
    }
    Refusal::new(error.code(), format!("snapshot {}: {error}", snapshot.name))
}

pub(crate) async fn list_files(exchange: &mut Exchange) -> Answered {
    let page = DirectoryPage::read(exchange)?;
    let (snapshot, files) = files_of(exchange).await?;
    page.answer(move |path, after, most| files.list(path, after, most), |error| refused(&snapshot, error)).await
}

pub(crate) async fn get_content(exchange: &mut Exchange) -> Answered {
    let (snapshot, files) = files_of(exchange).await?;
    let path = path_in(exchange.parts.uri.query(), None)?;
    let found = blocking(move || files.read(&path), |error| refused(&snapshot, error)).await?;
    content(found, &exchange.parts.headers)
}

pub(crate) async fn export(exchange: &mut Exchange) -> Answered {
    let name: SnapshotName = exchange.param("name").parse()?;
    let exported = exchange.gateway.control.export_snapshot(exchange.context.tenant(), &name).await?;
    let (bytes, keeps_processes) = (exported.archive.bytes(), exported.snapshot.memory_bytes.is_some());
    let broken = |error: std::io::Error| Refusal::new(ErrorCode::Internal, format!("the snapshot could not be read: {error}"));
    let mut answer = streamed(move |out: &mut Pieces<std::io::Error>| exported.archive.write(out), broken).await?;
    let headers = answer.headers_mut();
    // So a client sees that an archive broke off.
    headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(value) = HeaderValue::try_from(format!("attachment; filename=\"{name}.tar\"")) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    if keeps_processes {
        headers.insert(PROCESSES, HeaderValue::from_static("ended"));
    }
    Ok(answer)
}

pub(crate) async fn import(exchange: &mut Exchange) -> Answered {
    let name = exchange.query("name").map(|name| name.parse::<SnapshotName>()).transpose()?;
    let length = exchange.parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let length = length.ok_or_else(|| Refusal {
        status: StatusCode::LENGTH_REQUIRED,
        ..Refusal::bad_request("Content-Length is missing: the size of an archive is checked before it is read")
    })?;
    let object = name.as_ref().map_or_else(|| "an archive".to_owned(), ToString::to_string);
    let import = exchange.gateway.control.begin_import(exchange.context.tenant(), name, length).await?;
    receive(exchange.take_body(), &import, length, exchange.gateway.config.next_piece).await?;
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let shared = Arc::clone(&gateway);
    let imported = async move {
        let imported = shared.control.import_snapshot(import).await.map_err(Refusal::from);
        audit::record_result(&shared, &context, "snapshot.import", &object, imported).await
    };
    let snapshot = gateway.run_to_end(imported).await?;
    Ok(json_response(StatusCode::CREATED, &states::shown(snapshot)))
}

/// Writes a body of this length while it arrives.
async fn receive(mut body: Body, import: &SnapshotImport, length: u64, next_piece: Duration) -> Result<(), Refusal> {
    let failed = |error: std::io::Error| {
        let is_full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
        let code = if is_full { ErrorCode::Exhausted } else { ErrorCode::Internal };
        Refusal::new(code, format!("the archive could not be stored: {error}"))
    };
    let broken = || Refusal::bad_request("the archive broke off before its end");
    let mut file = tokio::fs::File::from_std(import.file().map_err(failed)?);
    let deadline = Instant::now() + UPLOAD_TIME;
    let mut left = length;
    loop {
        let until = deadline.min(Instant::now() + next_piece);
        let next = tokio::time::timeout_at(until, body.frame()).await.map_err(|_| proxy::late_body())?;
        let Some(frame) = next else { break };
        let Ok(piece) = frame.map_err(|_| broken())?.into_data() else { continue };
        left = left.checked_sub(piece.len() as u64).ok_or_else(broken)?;
        file.write_all(&piece).await.map_err(failed)?;
    }
    if left > 0 {
        return Err(broken());
    }
    file.flush().await.map_err(failed)
}
