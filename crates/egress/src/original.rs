//! To where a redirected connection was.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

/// Finds out to which address a client connected before the redirect.
pub trait OriginalDestination: Send + Sync + 'static {
    fn lookup(&self, stream: &TcpStream) -> io::Result<SocketAddr>;
}

/// From the kernel's connection tracking.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conntrack;

impl OriginalDestination for Conntrack {
    fn lookup(&self, stream: &TcpStream) -> io::Result<SocketAddr> {
        Ok(rustix::net::sockopt::ip_original_dst(stream)?.into())
    }
}

impl<F> OriginalDestination for F
where
    F: Fn(&TcpStream) -> io::Result<SocketAddr> + Send + Sync + 'static,
{
    fn lookup(&self, stream: &TcpStream) -> io::Result<SocketAddr> {
        self(stream)
    }
}
