//! A WebSocket, after the server accepted it.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::time::timeout;

/// The two ends of an upgraded connection.
pub(super) struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) server: OnUpgrade,
}

impl Tunnel {
    /// Passes bytes until both sides have ended. The client's stream ends it when nothing moves.
    pub(super) async fn run(self, limit: Duration) {
        let upgraded = timeout(limit, async { tokio::try_join!(self.client, self.server) }).await;
        let (client, server) = match upgraded {
            Ok(Ok(both)) => both,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a WebSocket was not upgraded");
                return;
            }
            Err(_) => return,
        };
        if let Err(error) = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await {
            tracing::trace!(%error, "a WebSocket was cut off");
        }
    }
}
