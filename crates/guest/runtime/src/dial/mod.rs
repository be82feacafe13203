//! Connections that the guest opens for the sandbox: to MCP servers, to the targets of its forward proxy, and to the sockets of
//! processes that it has started.
//!
//! The guest resolves names itself. The C library's resolver would load the plugins that the image's `nsswitch.conf` names into
//! this statically linked process, and a crash there would end the sandbox.

mod names;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

pub use names::resolve;
pub use tls::{CERTIFICATES, secure};

use crate::runtime::Runtime;
use crate::workers::Kind;

/// The time for one address.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to a host by name or address: to the first of its addresses that answers.
pub async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in resolve(host).await? {
        match timeout(PATIENCE, TcpStream::connect(SocketAddr::new(address, port))).await {
            Ok(Ok(stream)) => {
                // Small messages are as common as bulk data.
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

/// Connects to a socket's file with the rights of the sandbox's user, who may have replaced it with a link. The file must exist;
/// if it does not accept connections yet, this waits.
pub async fn socket(runtime: &Runtime, path: &str) -> io::Result<UnixStream> {
    loop {
        let target = path.to_owned();
        let dial = move |_: &_| std::os::unix::net::UnixStream::connect(&target);
        match runtime.workers.run(Kind::Brief, &runtime.user, dial).await {
            Ok(stream) => {
                stream.set_nonblocking(true)?;
                return UnixStream::from_std(stream);
            }
            // A socket's file exists shortly before it accepts, and no event reports when it does.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => sleep(Duration::from_millis(1)).await,
            Err(error) => return Err(io::Error::other(format!("'{path}': {error}"))),
        }
    }
}
