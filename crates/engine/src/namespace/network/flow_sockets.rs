//! Sockets for UDP of sandboxes: the egress proxy has no right to open them, so a thread of the server does.
//!
//! ```text
//!  egress proxy ──OPEN client server──► thread: may the server be reached? ──socket──► egress proxy
//!               ──REPORT client server why──► thread ──ICMP──► sandbox
//! ```
//!
//! Packets on a socket pair, one question at a time. Each start of the proxy has its own pair and thread; the thread ends with it.
//! What the thread does for a proxy that does not keep to the rules is bounded: it opens sockets of public addresses that lead to
//! sandboxes, and sends errors to sandboxes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use arenite_egress::{ClosedRanges, Datagram, UdpSockets, Undelivered};
use arenite_isolation::{descriptors, transparent};
use ipnet::Ipv4Net;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

/// The environment variable with the proxy's end of the pair.
const VARIABLE: &str = "ARENITE_FLOW_SOCKETS";
const OPEN: u8 = 1;
const REFUSED: u8 = 2;
const NO_LISTENER: u8 = 3;
const RECEIVE_BUFFER: usize = 4 << 20;
/// A kind, and two addresses with ports.
const QUESTION: usize = 13;
/// ICMP: a destination is unreachable, for want of a port or by administration.
const UNREACHABLE: u8 = 3;
const PORT: u8 = 3;
const PROHIBITED: u8 = 13;

/// The proxy's end.
#[derive(Debug)]
pub(super) struct RemoteSockets {
    pair: Mutex<OwnedFd>,
}

impl RemoteSockets {
    /// The end that this process inherited, and the socket to which datagrams are redirected. None: the host can't redirect them.
    pub(super) fn inherited() -> io::Result<Option<(Self, UdpSocket)>> {
        let Some(pair) = descriptors::inherited(VARIABLE)? else { return Ok(None) };
        let redirected = receive_socket(&pair)?;
        Ok(Some((Self { pair: Mutex::new(pair) }, redirected)))
    }

    fn send(&self, pair: &OwnedFd, kind: u8, client: SocketAddrV4, server: SocketAddrV4) -> io::Result<()> {
        let mut question = vec![kind];
        for address in [client, server] {
            question.extend(address.ip().octets());
            question.extend(address.port().to_be_bytes());
        }
        descriptors::send(pair.as_fd(), &question, &[])
    }
}

impl UdpSockets for RemoteSockets {
    fn receive(&self, redirected: &UdpSocket, buffer: &mut [u8]) -> io::Result<Datagram> {
        let transparent::Received { length, from, to } = transparent::receive(redirected, buffer)?;
        Ok(Datagram { length, from, to })
    }

    fn open(&self, client: SocketAddrV4, server: SocketAddrV4) -> io::Result<UdpSocket> {
        let pair = self.pair.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(&pair, OPEN, client, server)?;
        receive_socket(&pair)
    }

    fn report(&self, client: SocketAddrV4, server: SocketAddrV4, why: Undelivered) {
        let kind = match why {
            Undelivered::Refused => REFUSED,
            Undelivered::NoListener => NO_LISTENER,
        };
        let pair = self.pair.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.send(&pair, kind, client, server) {
            tracing::debug!(%error, "a sandbox is not told that its datagrams don't arrive");
        }
    }
}

/// An answer: a socket, or the text of an error.
fn receive_socket(pair: &OwnedFd) -> io::Result<UdpSocket> {
    let mut text = [0; 256];
    let (length, sockets) = descriptors::receive(pair.as_fd(), &mut text)?;
    match sockets.into_iter().next() {
        Some(socket) => Ok(socket.into()),
        None if length == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        None => Err(io::Error::other(String::from_utf8_lossy(&text[..length]).into_owned())),
    }
}

/// The server's end.
#[derive(Debug)]
pub(super) struct LocalSockets {
    pair: OwnedFd,
    subnet: Ipv4Net,
    closed: ClosedRanges,
}

impl LocalSockets {
    /// Starts the thread for a proxy that `command` will start, with the socket for what is redirected to `address`. The returned
    /// descriptor has to live until the command has started.
    pub(super) fn start(
        command: &mut std::process::Command,
        address: SocketAddrV4,
        subnet: Ipv4Net,
        closed: ClosedRanges,
    ) -> io::Result<OwnedFd> {
        let (ours, theirs) = descriptors::packet_pair()?;
        let redirected = transparent::listen(address)?;
        // A burst from many sandboxes waits here.
        set_socket_recv_buffer_size_force(&redirected, RECEIVE_BUFFER)?;
        descriptors::send(ours.as_fd(), b"redirected", &[redirected.as_fd()])?;
        descriptors::pass(command, VARIABLE, theirs.as_fd());
        let icmp = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMP))?;
        let local = Self { pair: ours, subnet, closed };
        std::thread::Builder::new().name("flow sockets".to_owned()).stack_size(256 << 10).spawn(move || local.serve(&icmp))?;
        Ok(theirs)
    }

    fn serve(&self, icmp: &OwnedFd) {
        let mut question = [0; QUESTION];
        loop {
            match descriptors::receive(self.pair.as_fd(), &mut question) {
                Ok((QUESTION, _)) => {}
                Ok((0, _)) => return,
                other => {
                    tracing::error!(?other, "the egress proxy asks what it should not; it opens no flows of UDP any more");
                    return;
                }
            }
            let [client, server] = [&question[1..7], &question[7..13]].map(address);
            let answered = match question[0] {
                OPEN => self.open(client, server),
                REFUSED => self.report(icmp, client, server, PROHIBITED),
                NO_LISTENER => self.report(icmp, client, server, PORT),
                _ => Ok(()),
            };
            if let Err(error) = answered {
                tracing::debug!(%error, "the egress proxy does not take an answer");
            }
        }
    }

    fn open(&self, client: SocketAddrV4, server: SocketAddrV4) -> io::Result<()> {
        let opened = if !self.subnet.contains(client.ip()) || self.closed.contains(IpAddr::V4(*server.ip())) {
            Err(io::Error::other("the addresses are not those of a flow"))
        } else {
            transparent::open_flow(server, client)
        };
        match opened {
            Ok(socket) => descriptors::send(self.pair.as_fd(), b"open", &[socket.as_fd()]),
            Err(error) => {
                let text = error.to_string();
                descriptors::send(self.pair.as_fd(), &text.as_bytes()[..text.len().min(200)], &[])
            }
        }
    }

    fn report(&self, icmp: &OwnedFd, client: SocketAddrV4, server: SocketAddrV4, code: u8) -> io::Result<()> {
        if !self.subnet.contains(client.ip()) {
            return Ok(());
        }
        let to = SocketAddrV4::new(*client.ip(), 0);
        sendto(icmp, &unreachable(code, client, server), SendFlags::DONTWAIT, &to)?;
        Ok(())
    }
}

fn address(bytes: &[u8]) -> SocketAddrV4 {
    let mut six = [0; 6];
    six.copy_from_slice(bytes);
    let [a, b, c, d, high, low] = six;
    SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))
}

/// The message that a datagram did not reach its destination. It repeats the start of the datagram, from which the receiver knows
/// the socket.
fn unreachable(code: u8, client: SocketAddrV4, server: SocketAddrV4) -> Vec<u8> {
    let mut message = vec![UNREACHABLE, code, 0, 0, 0, 0, 0, 0];
    // An IPv4 header: version and length, the length of all, no fragment, a lifetime, and UDP.
    message.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    message.extend(client.ip().octets());
    message.extend(server.ip().octets());
    let inner = checksum(&message[8..]);
    message[18..20].copy_from_slice(&inner);
    message.extend(client.port().to_be_bytes());
    message.extend(server.port().to_be_bytes());
    message.extend([0, 8, 0, 0]);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    message
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [_, _, high, low] = (!sum).to_be_bytes();
    [high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_icmp_have_their_checksums() {
        let (client, server) = ("10.209.0.7:40000".parse().unwrap(), "192.0.2.9:123".parse().unwrap());
        let message = unreachable(PROHIBITED, client, server);
        assert_eq!(message.len(), 36);
        assert_eq!((checksum(&message), checksum(&message[8..28])), ([0, 0], [0, 0]));
        assert_eq!(&message[20..24], [10, 209, 0, 7]);
        assert_eq!(&message[28..32], [0x9c, 0x40, 0, 123]);
    }

    #[test]
    fn only_flows_of_sandboxes_are_opened() {
        let (ours, theirs) = descriptors::packet_pair().unwrap();
        let closed = ClosedRanges { denied: vec!["10.0.0.0/8".parse().unwrap()], ..ClosedRanges::default() };
        let local = LocalSockets { pair: ours, subnet: "10.209.0.0/16".parse().unwrap(), closed };
        let thread = std::thread::spawn(move || {
            let icmp = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMP)).unwrap();
            local.serve(&icmp);
        });
        let remote = RemoteSockets { pair: Mutex::new(theirs) };
        let open = |client: &str, server: &str| remote.open(client.parse().unwrap(), server.parse().unwrap());
        for (client, server) in
            [("10.9.0.7:4000", "192.0.2.9:123"), ("10.209.0.7:4000", "10.1.0.1:53"), ("10.209.0.7:4000", "127.0.0.1:53")]
        {
            assert!(open(client, server).unwrap_err().to_string().contains("not those of a flow"), "{client} {server}");
        }
        drop(remote);
        thread.join().unwrap();
    }
}
