//! The accept loop of the listeners.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Pause after a failure to receive or accept (for example without free descriptors), so as not to spin.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// The next connection. Removes the tasks of ended connections from `running` while it waits.
pub(crate) async fn next_connection(listener: &TcpListener, running: &mut JoinSet<()>) -> (TcpStream, SocketAddr) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = running.join_next() => continue,
        };
        match accepted {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::debug!(%error, "no connection could be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
