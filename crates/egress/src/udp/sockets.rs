//! The sockets of UDP, which need rights that this process does not have. Somebody with them opens them.

use std::fmt;
use std::io;
use std::net::{SocketAddrV4, UdpSocket};

/// A datagram of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    pub length: usize,
    pub from: SocketAddrV4,
    /// To which the sandbox sent it.
    pub to: SocketAddrV4,
}

/// Why the sandbox's datagrams don't arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undelivered {
    /// They are not allowed.
    Refused,
    /// The server's host says that nothing has the port.
    NoListener,
}

/// Opens sockets for flows. Its calls take microseconds, and may be made from several threads.
pub trait UdpSockets: fmt::Debug + Send + Sync + 'static {
    /// Receives a datagram from the socket to which all are redirected that belong to no flow. `WouldBlock` if there is none.
    fn receive(&self, redirected: &UdpSocket, buffer: &mut [u8]) -> io::Result<Datagram>;

    /// A socket that has the server's address, and is connected to the sandbox's. From now on, it receives what the sandbox sends
    /// from there to the server.
    fn open(&self, client: SocketAddrV4, server: SocketAddrV4) -> io::Result<UdpSocket>;

    /// Tells the sandbox that its datagrams don't arrive.
    fn report(&self, client: SocketAddrV4, server: SocketAddrV4, why: Undelivered);
}
