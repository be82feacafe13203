//! A WebSocket, after the server accepted it.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::time::timeout;

/// The two ends of an upgraded connection; without a server, one that asked for it and was refused.
pub(super) struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) server: Option<OnUpgrade>,
}

impl Tunnel {
    /// Passes bytes until both sides have ended. The client's stream ends it when nothing moves.
    pub(super) async fn run(self, limit: Duration) {
        // The usual end: there was nothing to upgrade.
        let Ok(Ok(client)) = timeout(limit, self.client).await else { return };
        let mut client = TokioIo::new(client);
        let Some(server) = self.server else {
            // What was answered is still sent.
            let _ = client.shutdown().await;
            return;
        };
        let Ok(Ok(server)) = timeout(limit, server).await else { return };
        if let Err(error) = copy_bidirectional(&mut client, &mut TokioIo::new(server)).await {
            tracing::trace!(%error, "a WebSocket was cut off");
        }
    }
}
