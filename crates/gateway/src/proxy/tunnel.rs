//! WebSockets: after the handshake, bytes in both directions. Only the lengths of the guest's frames are parsed, so that a
//! stopping server can send its reason between two of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arenite_trajectory::TrajectoryError;
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::connections::Connection;
use crate::exchange::{Answered, Exchange};
use crate::gateway::Gateway;

use super::call::Called;
use super::link::Link;
use super::record::Record;
use super::unreachable;

/// Buffer for one direction, in bytes.
const BUFFER: usize = 32 << 10;
/// How long a client may take to close its side after the server has closed a WebSocket.
const CLOSE_LIMIT: std::time::Duration = std::time::Duration::from_secs(1);

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

/// Completes an upgrade that the guest accepted: answers with this head, and passes bytes once the client's side is ready.
pub(super) fn open(exchange: &mut Exchange, called: Called, head: HeaderMap) -> Answered {
    let Called { link, lease, record, .. } = called;
    let wanted = is_wanted(&exchange.parts);
    let Some(client) = exchange.parts.extensions.remove::<OnUpgrade>().filter(|_| wanted) else {
        let refusal = unreachable("it switched protocols unasked");
        record.failed(Some(101), refusal.message.clone());
        return Err(refusal);
    };
    let mut switched = Response::new(Body::empty());
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *switched.headers_mut() = head;
    switched.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    switched.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));

    let connection = exchange.parts.extensions.remove::<Arc<Connection>>();
    let shared = Arc::clone(&exchange.gateway);
    let ended = exchange.gateway.ended(&exchange.context.principal);
    exchange.gateway.tasks.spawn(async move {
        let cut = shared.cut.clone();
        let ended = async {
            match ended {
                Some(ended) => ended.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            passed = pass(&shared, client, link, &record) => match passed {
                Ok(()) => record.answered(101),
                Err(error) => record.failed(Some(101), error.to_string()),
            },
            () = cut.cancelled() => record.failed(Some(101), "the server stopped"),
            // Both connections close, so nothing that the client still sends is passed on.
            () = ended => record.failed(Some(101), "the caller's key ended"),
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
    let up = copy(from_client, &mut to_guest, Bytes::new(), &gateway.metrics.bytes_in, None, |bytes| {
        record.feed_request(bytes).map_err(io::Error::other)
    });
    let down = copy(from_guest, &mut to_client, early, &gateway.metrics.bytes_out, Some(&gateway.stopping), |bytes| {
        record.feed_response(bytes);
        Ok(())
    });
    let mut up = std::pin::pin!(up);
    let mut down = std::pin::pin!(down);
    // The guest's end ends it, because no answer can follow. The client's end is passed on, and the guest may still send.
    let ended = tokio::select! {
        ended = &mut down => ended,
        ended = &mut up => match ended {
            Ok(_) => return down.await.map(drop),
            // An action of a person that can't be recorded is not passed on.
            Err(error) if error.get_ref().is_some_and(|why| why.is::<TrajectoryError>()) => return Err(error),
            // The client left without closing.
            Err(_) => return Ok(()),
        },
    };
    match ended? {
        End::Eof | End::ReceiverLeft => Ok(()),
        End::Stopped => {
            // The client closes its side when it has read the reason; an earlier reset could discard the reason.
            let _ = tokio::time::timeout(CLOSE_LIMIT, up).await;
            Err(io::Error::other("the server stopped"))
        }
    }
}

/// How a direction ended.
enum End {
    Eof,
    /// The receiver takes no more, such as a client that left without closing.
    ReceiverLeft,
    /// The server stops, and the receiver was notified.
    Stopped,
}

/// Position in a stream of WebSocket frames (RFC 6455, 5.2).
#[derive(Default)]
struct Frames {
    /// Of a frame with an incomplete head.
    head: Vec<u8>,
    /// Remaining bytes of the payload.
    left: u64,
}

impl Frames {
    fn see(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let seen = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= seen as u64;
                bytes = &bytes[seen..];
                continue;
            }
            self.head.push(*first);
            bytes = rest;
            if let Some(length) = payload_length(&self.head) {
                self.left = length;
                self.head.clear();
            }
        }
    }

    fn is_between(&self) -> bool {
        self.head.is_empty() && self.left == 0
    }
}

/// The length in a frame's head; none for an incomplete head.
fn payload_length(head: &[u8]) -> Option<u64> {
    let second = *head.get(1)?;
    let short = second & 0x7f;
    let extended = match short {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let length = head.get(2..2 + extended)?;
    head.get(2 + extended..2 + extended + mask)?;
    Some(if extended == 0 { short.into() } else { length.iter().fold(0, |n, byte| (n << 8) | u64::from(*byte)) })
}

/// A close frame with the code "service restart" and the reason.
fn close_frame() -> Vec<u8> {
    const CODE: u16 = 1012;
    const REASON: &[u8] = b"the server is stopping or restarting; connect again";
    let mut frame = vec![0x88, 2 + REASON.len() as u8];
    frame.extend_from_slice(&CODE.to_be_bytes());
    frame.extend_from_slice(REASON);
    frame
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    to: &mut (impl AsyncWrite + Unpin),
    early: Bytes,
    count: &AtomicU64,
    stopping: Option<&CancellationToken>,
    see: impl Fn(&[u8]) -> io::Result<()>,
) -> io::Result<End> {
    let mut buffer = vec![0; BUFFER];
    let mut piece = early;
    let mut frames = Frames::default();
    let stopped = async {
        match stopping {
            Some(stopping) => stopping.cancelled().await,
            None => std::future::pending().await,
        }
    };
    let mut stopped = std::pin::pin!(stopped);
    loop {
        if !piece.is_empty() {
            see(&piece)?;
            frames.see(&piece);
            count.fetch_add(piece.len() as u64, Ordering::Relaxed);
            if send(to, &piece).await.is_err() {
                return Ok(End::ReceiverLeft);
            }
            piece = Bytes::new();
        }
        let n = tokio::select! {
            n = from.read(&mut buffer) => n?,
            () = &mut stopped, if frames.is_between() => {
                send(to, &close_frame()).await?;
                let _ = to.shutdown().await;
                return Ok(End::Stopped);
            }
        };
        if n == 0 {
            // The other side may have closed already.
            let _ = to.shutdown().await;
            return Ok(End::Eof);
        }
        see(&buffer[..n])?;
        frames.see(&buffer[..n]);
        count.fetch_add(n as u64, Ordering::Relaxed);
        if send(to, &buffer[..n]).await.is_err() {
            return Ok(End::ReceiverLeft);
        }
    }
}

async fn send(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_between_two_frames_is_found_however_they_are_cut() {
        let mut stream = Vec::new();
        let mut ends = vec![0];
        for (length, masked) in [(0, false), (5, true), (125, false), (126, false), (300, true), (70_000, false)] {
            let mask = if masked { 0x80 } else { 0 };
            stream.push(0x82);
            match length {
                0..126 => stream.push(mask | length as u8),
                126..65_536 => stream.extend([&[mask | 126][..], &(length as u16).to_be_bytes()].concat()),
                _ => stream.extend([&[mask | 127][..], &(length as u64).to_be_bytes()].concat()),
            }
            stream.extend(vec![7; length + if masked { 4 } else { 0 }]);
            ends.push(stream.len());
        }
        for step in [1, 2, 3, 1000, stream.len()] {
            let mut frames = Frames::default();
            let mut at = 0;
            for piece in stream.chunks(step) {
                assert_eq!(frames.is_between(), ends.contains(&at), "at {at} in steps of {step}");
                frames.see(piece);
                at += piece.len();
            }
            assert!(frames.is_between());
        }
        let mut frames = Frames::default();
        frames.see(&close_frame());
        assert!(frames.is_between());
    }
}
