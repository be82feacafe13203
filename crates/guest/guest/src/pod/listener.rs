//! The TLS listener of a pod's guest. Any pod of the cluster may connect, and only the server's handshakes succeed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arenite_channel::Acceptor;
use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

/// Handshakes at once. Further connections wait in the kernel's queue.
const HANDSHAKES: usize = 64;
/// Time for a handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failure, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Connections of the server.
#[derive(Debug)]
pub(crate) struct PodListener {
    accepted: mpsc::Receiver<TlsStream<TcpStream>>,
}

impl PodListener {
    pub(crate) fn new(listener: TcpListener, acceptor: Acceptor) -> Self {
        let (sender, accepted) = mpsc::channel(HANDSHAKES);
        tokio::spawn(accept_all(listener, acceptor, sender));
        Self { accepted }
    }
}

async fn accept_all(listener: TcpListener, acceptor: Acceptor, sender: mpsc::Sender<TlsStream<TcpStream>>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let _ = stream.set_nodelay(true);
            match timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
                // An error only means that the guest ends.
                Ok(Ok(stream)) => drop(sender.send(stream).await),
                Ok(Err(error)) => tracing::debug!(%error, "a connection was refused"),
                Err(_) => tracing::debug!("a connection was closed: its handshake took too long"),
            }
        });
    }
}

impl Listener for PodListener {
    type Io = TlsStream<TcpStream>;
    type Addr = ();

    async fn accept(&mut self) -> (TlsStream<TcpStream>, ()) {
        match self.accepted.recv().await {
            Some(stream) => (stream, ()),
            // Its task runs as long as this process.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}
