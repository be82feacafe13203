//! WebSockets: after the handshake, bytes both ways without a look into frames.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arenite_control::Lease;
use arenite_trajectory::TrajectoryError;
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::connections::Connection;
use crate::gateway::Gateway;
use crate::refusal::Refusal;

use super::link::Link;
use super::record::Record;
use super::unreachable;

/// Bytes on their way in one direction.
const BUFFER: usize = 32 << 10;

/// Whether a request asks for a WebSocket. Other upgrades end at this hop.
pub(super) fn is_wanted(parts: &Parts) -> bool {
    let has = |name, word: &str| {
        parts.headers.get_all(name).iter().any(|value| {
            let text = value.to_str().unwrap_or_default();
            text.split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
        })
    };
    parts.version == Version::HTTP_11 && parts.method == Method::GET && has(CONNECTION, "upgrade") && has(UPGRADE, "websocket")
}

/// The other side has agreed: answers the same with this head, and passes bytes once the client's side is there.
pub(super) fn open(
    gateway: &Arc<Gateway>,
    parts: &mut Parts,
    wanted: bool,
    link: Link,
    lease: Lease,
    head: HeaderMap,
    record: Record,
) -> Result<Response<Body>, Refusal> {
    let Some(client) = parts.extensions.remove::<OnUpgrade>().filter(|_| wanted) else {
        let refusal = unreachable("it switched protocols unasked");
        record.failed(Some(101), refusal.message.clone());
        return Err(refusal);
    };
    let mut switched = Response::new(Body::empty());
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *switched.headers_mut() = head;
    switched.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    switched.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));

    let connection = parts.extensions.remove::<Arc<Connection>>();
    let shared = Arc::clone(gateway);
    gateway.tasks.spawn(async move {
        let cut = shared.cut.clone();
        tokio::select! {
            passed = pass(&shared, client, link, &record) => match passed {
                Ok(()) => record.answered(101),
                Err(error) => record.failed(Some(101), error.to_string()),
            },
            () = cut.cancelled() => record.failed(Some(101), "the server stopped"),
        }
        drop((lease, connection));
    });
    Ok(switched)
}

async fn pass(gateway: &Gateway, client: OnUpgrade, link: Link, record: &Record) -> Result<(), io::Error> {
    let client = TokioIo::new(client.await.map_err(io::Error::other)?);
    let (guest, early) = link.into_io().await;
    let (from_client, mut to_client) = tokio::io::split(client);
    let (from_guest, mut to_guest) = tokio::io::split(guest);
    let up = copy(from_client, &mut to_guest, Bytes::new(), &gateway.metrics.bytes_in, |bytes| {
        record.feed_request(bytes).map_err(io::Error::other)
    });
    let down = copy(from_guest, &mut to_client, early, &gateway.metrics.bytes_out, |bytes| {
        record.feed_response(bytes);
        Ok(())
    });
    let mut up = std::pin::pin!(up);
    let mut down = std::pin::pin!(down);
    // The guest's end ends it: nobody answers any more. The client's end is passed on, and the guest has its say.
    tokio::select! {
        ended = &mut down => ended,
        ended = &mut up => match ended {
            Ok(()) => down.await,
            // What a person does can't be recorded, so it is not done.
            Err(error) if error.get_ref().is_some_and(|why| why.is::<TrajectoryError>()) => Err(error),
            // The client went away without closing.
            Err(_) => Ok(()),
        },
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    to: &mut (impl AsyncWrite + Unpin),
    early: Bytes,
    count: &AtomicU64,
    see: impl Fn(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut piece = early;
    loop {
        if !piece.is_empty() {
            see(&piece)?;
            count.fetch_add(piece.len() as u64, Ordering::Relaxed);
            to.write_all(&piece).await?;
            to.flush().await?;
            piece = Bytes::new();
        }
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            // The other side may be gone already.
            let _ = to.shutdown().await;
            return Ok(());
        }
        see(&buffer[..n])?;
        count.fetch_add(n as u64, Ordering::Relaxed);
        to.write_all(&buffer[..n]).await?;
        to.flush().await?;
    }
}
