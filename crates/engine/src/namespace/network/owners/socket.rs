//! Sockets by their addresses, from the kernel's `sock_diag`. A question with both addresses costs one lookup, however many sockets
//! there are.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use arenite_egress::{OwnerQuestion, SocketTransport};
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr};
use rustix::net::ipproto;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

const NETLINK_SOCK_DIAG: isize = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const AF_INET: u8 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
/// Bytes of an answer up to the inode and with it.
const ANSWER: usize = 72;
/// Messages of a list that are read: it has only sockets with the port.
const MOST: usize = 64;
/// The kernel answers at once.
const LIMIT: Duration = Duration::from_millis(100);

/// The inode of the socket that a question is about. Runs in the sandbox's network namespace. Queries without a server go to the
/// resolver, if the sandbox's configuration decides.
pub(super) fn inode(question: &OwnerQuestion, resolver: SocketAddr) -> io::Result<Option<u32>> {
    let mut diag = Socket::new(NETLINK_SOCK_DIAG)?;
    diag.bind_auto()?;
    diag.connect(&NetlinkAddr::new(0, 0))?;
    set_socket_timeout(&diag, Timeout::Recv, Some(LIMIT))?;
    let server = question.server.unwrap_or(resolver);
    let (client, transport) = (question.client, question.transport);
    // UDP has the addresses the other way round, for historical reasons.
    let (source, destination) = match transport {
        SocketTransport::Tcp => (client, server),
        SocketTransport::Udp => (server, client),
    };
    if let Some(found) = ask(&diag, &request(transport, NLM_F_REQUEST, source, Some(destination))?)? {
        return Ok(Some(found));
    }
    if question.server.is_some() || transport == SocketTransport::Tcp {
        return Ok(None);
    }
    // A query to another resolver, which the rules redirected.
    ask(&diag, &request(transport, NLM_F_REQUEST | NLM_F_DUMP, client, None)?)
}

/// An exact question, or one for a list of all sockets with the port of the source.
fn request(transport: SocketTransport, flags: u16, source: SocketAddr, destination: Option<SocketAddr>) -> io::Result<Vec<u8>> {
    let protocol = match transport {
        SocketTransport::Tcp => ipproto::TCP,
        SocketTransport::Udp => ipproto::UDP,
    };
    let protocol = u8::try_from(protocol.as_raw().get()).map_err(io::Error::other)?;
    let mut body = vec![AF_INET, protocol, 0, 0];
    // All states.
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(source.port().to_be_bytes());
    body.extend(destination.map_or(0, |address| address.port()).to_be_bytes());
    for address in [destination.map(|_| source), destination] {
        body.extend(octets(address)?);
        body.extend([0; 12]);
    }
    // Any interface, and no cookie.
    body.extend(0_u32.to_ne_bytes());
    body.extend([0xff; 8]);
    let mut message = Vec::new();
    message.extend(u32::try_from(HEADER + body.len()).map_err(io::Error::other)?.to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // Its number, and the kernel as its receiver.
    message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    message.extend(body);
    Ok(message)
}

fn octets(address: Option<SocketAddr>) -> io::Result<[u8; 4]> {
    match address.map(|address| address.ip().to_canonical()) {
        None => Ok([0; 4]),
        Some(std::net::IpAddr::V4(address)) => Ok(address.octets()),
        Some(std::net::IpAddr::V6(address)) => Err(io::Error::other(format!("{address} is no address of a sandbox"))),
    }
}

/// The first inode of the answer.
fn ask(diag: &Socket, request: &[u8]) -> io::Result<Option<u32>> {
    diag.send(request, 0)?;
    let mut found = None;
    for _ in 0..MOST {
        let (bytes, _) = diag.recv_from_full()?;
        let mut rest = bytes.as_slice();
        while let Some(header) = rest.get(..HEADER) {
            let number = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let is_one_of_many = u16::from_ne_bytes([header[6], header[7]]) & 2 != 0;
            let length = usize::try_from(number(0)).unwrap_or(usize::MAX);
            // An error says that there is no such socket.
            if matches!(kind, NLMSG_DONE | NLMSG_ERROR) || length < HEADER {
                return Ok(found);
            }
            let body = rest.get(HEADER..length).unwrap_or_default();
            if let Some(&[a, b, c, d]) = body.get(ANSWER - 4..ANSWER) {
                found = found.or(Some(u32::from_ne_bytes([a, b, c, d])).filter(|inode| *inode != 0));
            }
            if !is_one_of_many {
                return Ok(found);
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    Ok(found)
}
