//! `/websockify`: the desktop for VNC viewers in a browser. Frames are pieces of one byte stream.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::{Message as Frame, WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, interval_at, timeout};

use crate::desktop::DesktopService;
use arenite_guest_runtime::http::ApiError;

/// Maximum concurrent viewers; further ones are refused.
const MAX_VIEWERS: usize = 16;
/// Maximum bytes of one frame from a viewer: the clipboard is the longest.
const MAX_FRAME: usize = 4 << 20;
/// Maximum bytes of one frame to a viewer.
const PIECE: usize = 64 << 10;
/// Interval between pings.
const PING: Duration = Duration::from_secs(20);
/// Timeout for a viewer to accept one frame; then it is disconnected.
const PATIENCE: Duration = Duration::from_secs(30);

static VIEWERS: Semaphore = Semaphore::const_new(MAX_VIEWERS);

/// Connects a viewer. Starts the browser too, so that there is something to see. In a sandbox with a VM, shows the VM's screen.
pub(super) async fn connect(State(service): State<Arc<DesktopService>>, upgrade: WebSocketUpgrade) -> Result<Response, ApiError> {
    let too_many = |_| ApiError::new(StatusCode::TOO_MANY_REQUESTS, format!("{MAX_VIEWERS} viewers are connected already"));
    let place = VIEWERS.try_acquire().map_err(too_many)?;
    let stream = if service.vm.is_there()? {
        // A booting VM is shown too.
        service.vm.get().await?.vnc(&service.runtime).await?
    } else {
        let shown = match service.browser() {
            Some(browser) => browser.show().await?,
            None => None,
        };
        let desktop = match shown {
            Some(desktop) => desktop,
            None => service.get().await?,
        };
        desktop.vnc(&service.runtime).await?
    };
    let upgrade = upgrade.protocols(["binary"]).max_message_size(MAX_FRAME).max_frame_size(MAX_FRAME);
    Ok(upgrade.on_upgrade(move |viewer| async move {
        pass(&service, viewer, stream).await;
        drop(place);
    }))
}

async fn pass(service: &Arc<DesktopService>, viewer: WebSocket, stream: UnixStream) {
    let (mut to_viewer, mut from_viewer) = viewer.split();
    let (mut from_server, mut to_server) = stream.into_split();
    let up = async {
        while let Some(Ok(frame)) = from_viewer.next().await {
            let bytes = match frame {
                Frame::Binary(bytes) => bytes,
                // Old viewers send base64; those that are served here do not.
                Frame::Text(_) | Frame::Close(_) => return,
                Frame::Ping(_) | Frame::Pong(_) => continue,
            };
            service.touch();
            if to_server.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut pings = interval_at(Instant::now() + PING, PING);
        let mut buffer = vec![0; PIECE];
        loop {
            let frame = tokio::select! {
                read = from_server.read(&mut buffer) => match read {
                    Ok(n @ 1..) => Frame::Binary(Bytes::copy_from_slice(&buffer[..n])),
                    _ => return,
                },
                // A viewer counts as use of the desktop.
                _ = pings.tick() => {
                    service.touch();
                    Frame::Ping(Bytes::new())
                }
            };
            if !matches!(timeout(PATIENCE, to_viewer.send(frame)).await, Ok(Ok(()))) {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
    // The connection is over either way.
    drop(timeout(Duration::from_secs(5), to_viewer.send(Frame::Close(None))).await);
}
