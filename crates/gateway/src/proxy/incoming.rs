//! The body of a client's request. JSON is read first, because it is recorded before the call; other bodies stream through.

use std::sync::Arc;
use std::time::Duration;

use arenite_model::ErrorCode;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::sync::OwnedSemaphorePermit;

use crate::gateway::Gateway;
use crate::refusal::Refusal;

/// Largest JSON body, in bytes; a larger one is refused with 413. The guest has the same limit.
const MAX_JSON_BYTES: u64 = 32 << 20;
/// Larger bodies, in bytes, take a share of [`crate::gateway::HELD_KIB`].
const SMALL: usize = 64 << 10;
/// Longest wait of a large body for its share.
const PERMIT_WAIT: Duration = Duration::from_secs(30);

pub(super) enum Given {
    Held {
        bytes: Bytes,
        /// Its share of the memory for bodies.
        permit: Option<OwnedSemaphorePermit>,
    },
    Streamed(Body),
}

pub(super) async fn read(gateway: &Gateway, parts: &Parts, body: Body) -> Result<Given, Refusal> {
    if !body.is_end_stream() && !is_read_first(&parts.headers) {
        return Ok(Given::Streamed(body));
    }
    let (bytes, permit) = read_whole(gateway, parts, body).await?;
    Ok(Given::Held { bytes, permit })
}

/// A body that is in memory already. Waits for its share of the memory for bodies.
pub(super) async fn hold(gateway: &Gateway, bytes: Bytes) -> Result<Given, Refusal> {
    let permit = match bytes.len() {
        0..=SMALL => None,
        length if length as u64 > MAX_JSON_BYTES => return Err(too_large()),
        length => Some(wait_for_permit(gateway, length as u64).await?),
    };
    Ok(Given::Held { bytes, permit })
}

/// Reads a whole body, before anything is done.
pub(crate) async fn read_whole(
    gateway: &Gateway,
    parts: &Parts,
    mut body: Body,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Refusal> {
    if body.is_end_stream() {
        return Ok((Bytes::new(), None));
    }
    let declared = parts.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > MAX_JSON_BYTES) {
        return Err(too_large());
    }
    let mut permit: Option<OwnedSemaphorePermit> = None;
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        let next = tokio::time::timeout(gateway.config.next_piece, body.frame()).await.map_err(|_| super::late_body())?;
        let Some(frame) = next else { break };
        let frame = frame.map_err(|_| Refusal::bad_request("the request's body broke off"))?;
        let Ok(piece) = frame.into_data() else { continue };
        let length = first.len() + all.len() + piece.len();
        if length as u64 > MAX_JSON_BYTES {
            return Err(too_large());
        }
        if length > SMALL && permit.is_none() {
            permit = Some(wait_for_permit(gateway, declared.unwrap_or(MAX_JSON_BYTES)).await?);
        }
        if first.is_empty() && all.is_empty() {
            // Most bodies are one piece, which is not copied.
            first = piece;
            continue;
        }
        if all.is_empty() {
            let known = declared.unwrap_or(0).min(MAX_JSON_BYTES) as usize;
            all.reserve(known.max(length));
            all.extend_from_slice(&first);
            first = Bytes::new();
        }
        all.extend_from_slice(&piece);
    }
    let bytes = if all.is_empty() { first } else { all.freeze() };
    if let Some(permit) = &mut permit {
        // A body without a stated length took the largest share.
        let excess = permit.num_permits().saturating_sub(bytes.len().div_ceil(1024));
        drop(permit.split(excess));
    }
    Ok((bytes, permit))
}

/// JSON, or no content type, as AIO's clients send with an empty body.
fn is_read_first(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return true };
    let kind = kind.to_str().unwrap_or_default().to_ascii_lowercase();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence == "application/json" || essence.ends_with("+json")
}

async fn wait_for_permit(gateway: &Gateway, bytes: u64) -> Result<OwnedSemaphorePermit, Refusal> {
    // At most `MAX_JSON_BYTES`.
    let kib = bytes.div_ceil(1024) as u32;
    let permit = Arc::clone(&gateway.held).acquire_many_owned(kib);
    match tokio::time::timeout(PERMIT_WAIT, permit).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(Refusal { retry_after: Some(1), ..Refusal::new(ErrorCode::Exhausted, "too many large requests at once") }),
    }
}

fn too_large() -> Refusal {
    Refusal::new(ErrorCode::TooLarge, format!("the JSON body is over {} MiB", MAX_JSON_BYTES >> 20))
        .hint("upload large content with POST /v1/file/upload (multipart), which is streamed")
}
