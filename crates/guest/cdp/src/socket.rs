//! The WebSocket to the browser, on loopback.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Maximum bytes of one message from the browser: a base64 screenshot of a very long page.
pub const MAX_MESSAGE: usize = 256 << 20;
/// Timeout for connecting to the browser.
const CONNECT: Duration = Duration::from_secs(10);

pub type Socket = WebSocketStream<TcpStream>;

/// Connects to a WebSocket's path. It sends no `Origin` header; pages always send one.
pub async fn open(port: u16, path: &str) -> Result<Socket, Error> {
    let opening = async {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
        let address = format!("ws://127.0.0.1:{port}{path}");
        let (socket, _) = tokio_tungstenite::client_async_with_config(address, stream, Some(config)).await?;
        Ok(socket)
    };
    timeout(CONNECT, opening).await.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}
