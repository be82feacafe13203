//! The files of snapshots, without a sandbox, and snapshots as archives.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::{Control, Snapshot};
use arenite_engine::{FileTreeError, LayeredTree};
use arenite_model::{ErrorCode, NodeName, SandboxName, SnapshotName, TenantId};
use axum::body::Body;
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::exchange::{Answered, Exchange};
use crate::export::{Pieces, streamed};
use crate::files::{DirectoryPage, blocking, content, path_in};
use crate::query::Query;
use crate::refusal::{Refusal, json_response};
use crate::target::SandboxRef;
use crate::{api, audit, proxy, states};

const PATH: &str = "/api/v2/snapshots";
const NAMED: &str = "/api/v2/snapshots/{name}";

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

/// The other node that answers a request about snapshots. None: this one.
pub(crate) async fn other_node(exchange: &mut Exchange) -> Result<Option<NodeName>, Refusal> {
    let (pattern, control) = (exchange.route.pattern, Arc::clone(&exchange.gateway.control));
    if pattern == PATH && exchange.parts.method == Method::POST {
        return node_of_sandbox(exchange).await;
    }
    if !pattern.starts_with(NAMED) || pattern == NAMED && exchange.parts.method == Method::GET {
        return Ok(None);
    }
    // A text that is no valid name is refused here.
    let Ok(name) = exchange.param("name").parse::<SnapshotName>() else { return Ok(None) };
    if exchange.parts.method == Method::DELETE {
        let Ok(snapshot) = control.snapshot(exchange.context.tenant(), &name).await else { return Ok(None) };
        let other = snapshot.node.filter(|node| Some(node) != control.own_node().as_ref());
        return Ok(other.filter(|node| control.may_answer(node)));
    }
    holder(&control, exchange.context.tenant(), &name).await
}

/// The other node that can read a snapshot. None: this one can, or refuses it.
pub(crate) async fn holder(control: &Control, tenant: &TenantId, name: &SnapshotName) -> Result<Option<NodeName>, Refusal> {
    let Ok(snapshot) = control.snapshot(tenant, name).await else { return Ok(None) };
    let is_other = |node: &NodeName| Some(node) != control.own_node().as_ref();
    if control.has_snapshot(&snapshot) {
        return Ok(None);
    }
    let mut places = control.places_of_snapshot(&snapshot).await?.into_iter().map(|place| place.node).filter(is_other);
    // Where none answers, its own says so.
    Ok(places.find(|node| control.may_answer(node)).or(snapshot.node.filter(is_other)))
}

/// The other node of the sandbox that a new snapshot is of.
async fn node_of_sandbox(exchange: &mut Exchange) -> Result<Option<NodeName>, Refusal> {
    #[derive(Deserialize)]
    struct Of {
        sandbox: SandboxName,
    }
    let body = api::read(exchange.take_body()).await?;
    let of = serde_json::from_slice::<Of>(&body);
    exchange.put_body(body);
    // A body that can't be read is refused here.
    let Ok(Of { sandbox }) = of else { return Ok(None) };
    Ok(exchange.gateway.control.owner(exchange.context.tenant(), SandboxRef::Name(sandbox).key()).await?)
}

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
    let file = import.file().map_err(not_stored)?;
    store_body(exchange.take_body(), file, length, exchange.gateway.config.next_piece, UPLOAD_TIME).await?;
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let shared = Arc::clone(&gateway);
    let imported = async move {
        let imported = shared.control.import_snapshot(import).await.map_err(Refusal::from);
        audit::record_result(&shared, &context, "snapshot.import", &object, imported).await
    };
    let snapshot = gateway.run_to_end(imported).await?;
    Ok(json_response(StatusCode::CREATED, &states::shown(snapshot)))
}

fn not_stored(error: std::io::Error) -> Refusal {
    let is_full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
    let code = if is_full { ErrorCode::Exhausted } else { ErrorCode::Internal };
    Refusal::new(code, format!("the archive could not be stored: {error}"))
}

/// Writes a body of this length into a file while it arrives.
pub(crate) async fn store_body(
    mut body: Body,
    file: File,
    length: u64,
    next_piece: Duration,
    limit: Duration,
) -> Result<(), Refusal> {
    let broken = || Refusal::bad_request("the archive broke off before its end");
    let mut file = tokio::fs::File::from_std(file);
    let deadline = Instant::now() + limit;
    let mut left = length;
    loop {
        let until = deadline.min(Instant::now() + next_piece);
        let next = tokio::time::timeout_at(until, body.frame()).await.map_err(|_| proxy::late_body())?;
        let Some(frame) = next else { break };
        let Ok(piece) = frame.map_err(|_| broken())?.into_data() else { continue };
        left = left.checked_sub(piece.len() as u64).ok_or_else(broken)?;
        file.write_all(&piece).await.map_err(not_stored)?;
    }
    if left > 0 {
        return Err(broken());
    }
    file.flush().await.map_err(not_stored)
}
