//! Connections that the guest makes for the sandbox: to MCP servers, and to where its forward proxy leads.
//!
//! Resolves names itself. The C library's resolver would load plugins that the image's `nsswitch.conf` names into this
//! process, which is linked statically, and the sandbox would end with it.

mod names;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

pub(crate) use names::resolve;
pub(crate) use tls::{CERTIFICATES, secure};

/// For one address.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to a host by name or address: to the first of its addresses that answers.
pub(crate) async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in resolve(host).await? {
        match timeout(PATIENCE, TcpStream::connect(SocketAddr::new(address, port))).await {
            Ok(Ok(stream)) => {
                // What passes is small messages as often as bulk.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = io::Error::new(error.kind(), format!("{}: {error}", shown(address, port))),
            Err(_) => {
                let text = format!("{} did not answer within {} s", shown(address, port), PATIENCE.as_secs());
                last = io::Error::new(io::ErrorKind::TimedOut, text);
            }
        }
    }
    Err(last)
}

fn shown(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}
