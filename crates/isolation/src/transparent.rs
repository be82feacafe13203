//! UDP sockets for datagrams that are sent to others: of a listener to which the firewall redirects them, and of single flows with
//! the address of the real receiver.
//!
//! Both need `CAP_NET_ADMIN` to open, and no right to use.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt};

/// A received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub length: usize,
    pub from: SocketAddrV4,
    /// To which it was sent.
    pub to: SocketAddrV4,
}

/// A socket for what the firewall redirects to this address.
pub fn listen(address: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = transparent()?;
    set(&socket, libc::IP_RECVORIGDSTADDR)?;
    bind(&socket, &address)?;
    Ok(socket.into())
}

/// A socket with another host's address, connected to the peer.
pub fn open_flow(own: SocketAddrV4, peer: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = transparent()?;
    // One for each peer.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &own)?;
    connect(&socket, &peer)?;
    Ok(socket.into())
}

fn transparent() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    set(&socket, libc::IP_TRANSPARENT)?;
    Ok(socket)
}

fn set(socket: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = socket_length::<libc::c_int>();
    // SAFETY: the value lives through the call, and its length is its size.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, option, (&raw const on).cast(), length) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn socket_length<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(mem::size_of::<T>()).expect("types of the kernel are small")
}

/// Space for the control message, aligned as it has to be.
#[repr(C)]
union Control {
    _header: libc::cmsghdr,
    bytes: [u8; 128],
}

/// Receives from a socket of [`listen`], without waiting.
pub fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Received> {
    // SAFETY: all fields of these types may be zero.
    let (mut from, mut message) = unsafe { (mem::zeroed::<libc::sockaddr_in>(), mem::zeroed::<libc::msghdr>()) };
    let mut control = Control { bytes: [0; 128] };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = socket_length::<libc::sockaddr_in>();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = mem::size_of::<Control>();
    // SAFETY: the message points to buffers that live through the call, with their sizes.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let mut to = None;
    // SAFETY: the kernel wrote well-formed headers into the message's control buffer, which these functions walk within its length.
    // An address is copied out, since the data need not be aligned for it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(found) = header.as_ref() {
            let has_address = found.cmsg_len >= libc::CMSG_LEN(socket_length::<libc::sockaddr_in>()) as usize;
            if (found.cmsg_level, found.cmsg_type) == (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR) && has_address {
                to = Some(libc::CMSG_DATA(header).cast::<libc::sockaddr_in>().read_unaligned());
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    let to = to.ok_or_else(|| io::Error::other("the kernel does not say to where a datagram was sent"))?;
    Ok(Received { length, from: address(&from), to: address(&to) })
}

fn address(of: &libc::sockaddr_in) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from_bits(u32::from_be(of.sin_addr.s_addr)), u16::from_be(of.sin_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);

    #[test]
    fn a_datagram_says_to_where_it_was_sent() {
        let listener = listen(SocketAddrV4::new(LISTENER, 0)).unwrap();
        let std::net::SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!("not IPv4") };
        let client = UdpSocket::bind((LISTENER, 0)).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(receive(&listener, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        for text in [&b"hello"[..], b""] {
            client.send_to(text, to).unwrap();
            let received = receive(&listener, &mut buffer).unwrap();
            assert_eq!((received.length, received.from.into(), received.to), (text.len(), client.local_addr().unwrap(), to));
            assert_eq!(&buffer[..text.len()], text);
        }
    }

    #[test]
    fn a_flow_has_the_address_of_another_host() {
        let client = UdpSocket::bind((LISTENER, 0)).unwrap();
        let std::net::SocketAddr::V4(peer) = client.local_addr().unwrap() else { panic!("not IPv4") };
        let server = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 9), 123);
        for _ in 0..2 {
            let flow = open_flow(server, peer).unwrap();
            assert_eq!(flow.local_addr().unwrap(), server.into());
        }
    }
}
