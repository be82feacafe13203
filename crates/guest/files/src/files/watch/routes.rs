//! Watching in AIO's wire format. AIO's documents contradict each other on the envelope, so answers have both forms: the keys of
//! `data` are also beside it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use futures_util::stream::{self, Stream, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::super::routes::http_failure;
use super::feed::Feed;
use super::service::{self, CreateWatchRequest, Info, PollRequest, WaitRequest, WatchError};
use super::wait;
use crate::files::Files;
use arenite_guest_runtime::http::{ApiError, Body, QueryArgs};

/// The most events of one chunk of a stream, and of an answer without a stream.
const PIECE: usize = 1000;
/// How often an idle stream sends a sign of life, for proxies that close silent connections.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

pub(in super::super) fn router() -> Router<Arc<Files>> {
    Router::new()
        .route("/v1/file/watch", get(list).post(create))
        .route("/v1/file/watch/wait", post(wait_for))
        .route("/v1/file/watch/{watcher_id}", delete(stop))
        .route("/v1/file/watch/{watcher_id}/poll", post(poll))
        .route("/v1/file/watch/{watcher_id}/events", get(events))
}

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(list, create, events, poll, wait_for, stop))]
pub struct WatchApi;

impl IntoResponse for WatchError {
    fn into_response(self) -> Response {
        match self {
            Self::File(error) => http_failure(&error),
            Self::NotFound(id) => ApiError::not_found(format!("there is no watcher {id:?}"))
                .hint("list them with GET /v1/file/watch")
                .into_response(),
            Self::TooMany => ApiError::new(StatusCode::TOO_MANY_REQUESTS, "there are as many watchers as there may be")
                .hint("stop one with DELETE /v1/file/watch/{watcher_id}")
                .into_response(),
        }
    }
}

/// The envelope with `data`, and its keys beside it.
fn both(data: impl Serialize, message: &str, success: bool) -> Response {
    let data = serde_json::to_value(data).unwrap_or_default();
    let mut whole = json!({ "success": success, "message": message, "data": data, "hint": null });
    if let (Value::Object(whole), Value::Object(data)) = (&mut whole, data) {
        for (key, value) in data {
            whole.entry(key).or_insert(value);
        }
    }
    Json(whole).into_response()
}

/// All watchers.
#[utoipa::path(get, path = "/v1/file/watch", tag = "file-watch", operation_id = "list_watches_v1_file_watch_get",
    responses((status = 200, body = Value)))]
async fn list(State(files): State<Arc<Files>>) -> Response {
    let watchers = service::list(&files);
    both(json!({ "count": watchers.len(), "watchers": watchers }), "Operation successful", true)
}

/// Watches a file or directory.
///
/// All events on a path within `debounce` milliseconds are reported as one. Read them with `poll` or as a stream.
#[utoipa::path(post, path = "/v1/file/watch", tag = "file-watch", operation_id = "create_watch_v1_file_watch_post",
    request_body = CreateWatchRequest, responses((status = 200, body = Value)))]
async fn create(State(files): State<Arc<Files>>, Body(request): Body<CreateWatchRequest>) -> Result<Response, WatchError> {
    let info = service::create(&files, request).await?;
    let mut data = serde_json::to_value(info).unwrap_or_default();
    data["initial_cursor"] = 0.into();
    data["reused"] = false.into();
    Ok(both(data, "Watcher created", true))
}

/// Events after a cursor.
///
/// `overflow` says that events after the cursor were lost: check the files again and continue with the answer's cursor. `closed`
/// says that no more events follow, since the watched path is gone.
#[utoipa::path(post, path = "/v1/file/watch/{watcher_id}/poll", tag = "file-watch",
    operation_id = "poll_events_v1_file_watch__watcher_id__poll_post", params(("watcher_id" = String, Path)),
    request_body = PollRequest, responses((status = 200, body = Value)))]
async fn poll(
    State(files): State<Arc<Files>>,
    Path(id): Path<String>,
    Body(request): Body<PollRequest>,
) -> Result<Response, WatchError> {
    Ok(both(service::poll(&files, &id, request).await?, "Operation successful", true))
}

/// Where a reader of events starts.
#[derive(Debug, Default, Deserialize)]
struct From {
    cursor: Option<u64>,
    since: Option<u64>,
}

/// Events as a stream (`Accept: text/event-stream`), otherwise the events so far.
///
/// The stream has events called `watch_started`, `file_change` and `overflow`. Their ids are `{watcher_id}:{seq}`. A client that
/// sends the last one back as `Last-Event-ID` continues after it.
#[utoipa::path(get, path = "/v1/file/watch/{watcher_id}/events", tag = "file-watch",
    operation_id = "watch_events_v1_file_watch__watcher_id__events_get", params(("watcher_id" = String, Path)),
    responses((status = 200, body = Value)))]
async fn events(
    State(files): State<Arc<Files>>,
    Path(id): Path<String>,
    QueryArgs(from): QueryArgs<From>,
    headers: HeaderMap,
) -> Result<Response, WatchError> {
    let (info, feed) = service::feed(&files, &id)?;
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let resumed = text("last-event-id").and_then(|last| last.strip_prefix(&format!("{id}:"))?.parse().ok());
    let cursor = resumed.or(from.cursor).or(from.since).unwrap_or(0);
    if !text(header::ACCEPT.as_str()).is_some_and(|accept| accept.contains("text/event-stream")) {
        return Ok(both(feed.after(cursor, PIECE), "Operation successful", true));
    }
    let stream = stream_events(info, feed, cursor);
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE)).into_response())
}

fn stream_events(info: Info, feed: Arc<Feed>, cursor: u64) -> impl Stream<Item = Result<Event, Infallible>> {
    let id = info.watcher_id;
    let begun = json!({ "watcher_id": id, "path": info.path, "recursive": info.recursive, "cursor": cursor });
    let first = sse("watch_started", &id, cursor, &begun);
    let rest = stream::unfold(Some(cursor), move |cursor| {
        let (id, feed) = (id.clone(), feed.clone());
        async move {
            let page = feed.wait(cursor?, PIECE, None).await;
            let mut piece = Vec::new();
            if page.overflow {
                let at = json!({ "watcher_id": id, "cursor": page.cursor });
                piece.push(sse("overflow", &id, cursor?, &at));
            }
            piece.extend(page.events.iter().map(|event| sse("file_change", &id, event.seq, event)));
            let ended = page.closed && page.cursor == feed.cursor();
            Some((stream::iter(piece), (!ended).then_some(page.cursor)))
        }
    });
    stream::iter([first]).chain(rest.flatten()).map(Ok)
}

fn sse(name: &str, watcher: &str, seq: u64, data: &impl Serialize) -> Event {
    Event::default().event(name).id(format!("{watcher}:{seq}")).data(serde_json::to_string(data).unwrap_or_default())
}

/// Waits for one event on one path.
///
/// A file that is there already counts as created. When time is up, `event` is null and `timed_out` true: no failure in
/// HTTP, since clients would wait again.
#[utoipa::path(post, path = "/v1/file/watch/wait", tag = "file-watch", operation_id = "wait_for_file_v1_file_watch_wait_post",
    request_body = WaitRequest, responses((status = 200, body = Value)))]
async fn wait_for(State(files): State<Arc<Files>>, Body(request): Body<WaitRequest>) -> Result<Response, WatchError> {
    let seconds = request.timeout;
    Ok(match wait::wait(&files, request).await? {
        Some(event) => both(json!({ "event": event, "timed_out": false }), "Operation successful", true),
        None => both(json!({ "event": null, "timed_out": true }), &format!("nothing happened within {seconds} s"), false),
    })
}

/// Ends a watcher.
#[utoipa::path(delete, path = "/v1/file/watch/{watcher_id}", tag = "file-watch",
    operation_id = "stop_watch_v1_file_watch__watcher_id__delete", params(("watcher_id" = String, Path)),
    responses((status = 200, body = Value)))]
async fn stop(State(files): State<Arc<Files>>, Path(id): Path<String>) -> Result<Response, WatchError> {
    let info = service::stop(&files, &id)?;
    Ok(both(json!({ "watcher_id": info.watcher_id, "stopped": true }), "Watcher stopped", true))
}
