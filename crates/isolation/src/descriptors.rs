//! Messages with descriptors over a `SOCK_SEQPACKET` socket, and descriptors that arrive by number.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Maximum number of descriptors of one message.
pub const MAX_DESCRIPTORS: usize = 160;
/// Maximum size of one message, in bytes; below the kernel's default for a socket buffer.
pub const MAX_MESSAGE: usize = 160 << 10;

/// A connected pair of packet sockets, both close-on-exec.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message with its descriptors.
///
/// # Errors
/// `EMSGSIZE` when the message is larger than [`MAX_MESSAGE`]; `EPIPE` when the other side is gone.
pub fn send(socket: BorrowedFd<'_>, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if message.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
        return Err(rustix::io::Errno::MSGSIZE.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL))?;
    if sent == message.len() { Ok(()) } else { Err(rustix::io::Errno::MSGSIZE.into()) }
}

/// Receives one message into `buffer`; a length of 0 means that the other side is gone.
///
/// # Errors
/// `EMSGSIZE` when the message is larger than `buffer`, or some of its descriptors were lost.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got =
        rustix::io::retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(list) = message {
            descriptors.extend(list);
        }
    }
    // A message that was truncated, or lost descriptors (too many, or none left for this process), is refused: later content
    // would be taken for the missing part.
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(rustix::io::Errno::MSGSIZE.into());
    }
    Ok((got.bytes, descriptors))
}

/// Leaves a descriptor open in the program that a command starts. Its number is in the environment variable `name`, for
/// [`inherited`]. The descriptor has to be open when the command starts.
#[expect(clippy::disallowed_methods, reason = "for programs that start rarely, and not for sandboxes")]
pub fn pass(command: &mut Command, name: &str, descriptor: BorrowedFd<'_>) {
    let number = descriptor.as_raw_fd();
    command.env(name, number.to_string());
    // SAFETY: between fork and exec, the closure makes one system call and allocates nothing. On a number that is not open, the
    // call fails, and with it the start.
    unsafe {
        command.pre_exec(
            move || {
                if libc::fcntl(number, libc::F_SETFD, 0) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
            },
        );
    }
}

/// Takes ownership of the descriptor with the number in the environment variable `name`, and makes it close-on-exec.
///
/// Call it once for each variable, before anything else could own that number: the number is trusted, as it comes from the
/// parent that started this process.
pub fn inherited(name: &str) -> io::Result<Option<OwnedFd>> {
    let Ok(text) = std::env::var(name) else {
        return Ok(None);
    };
    let number: RawFd =
        text.parse().ok().filter(|n| *n > 2).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{name}={text:?} is not a descriptor's number"))
        })?;
    // SAFETY: fcntl on a number that is not open only fails with EBADF, which is passed on.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open (checked above), and the parent handed it to this process to own.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(number) }))
}

/// The sockets that a service manager passed to this process, as `sd_listen_fds(3)` describes it: `LISTEN_PID` is this process
/// and `LISTEN_FDS` counts descriptors from 3 on. All become close-on-exec. Call it once, at the start of the program.
pub fn of_service_manager() -> io::Result<Vec<OwnedFd>> {
    const FIRST: RawFd = 3;
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let count = number("LISTEN_FDS").filter(|_| number("LISTEN_PID") == Some(std::process::id())).unwrap_or(0);
    let count = RawFd::try_from(count).ok().filter(|n| *n <= MAX_DESCRIPTORS as RawFd).ok_or(io::ErrorKind::InvalidInput)?;
    let mut sockets = Vec::new();
    for number in FIRST..FIRST + count {
        // SAFETY: fcntl on a number that is not open only fails with EBADF, which is passed on.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open (checked above), and by the protocol it is this process' to own; nothing else has
        // taken it, since the caller is the first to open anything.
        sockets.push(unsafe { OwnedFd::from_raw_fd(number) });
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_message_that_lost_descriptors_is_an_error() {
        let (ours, theirs) = packet_pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        // More than `receive` has room for, so straight to the kernel: what a process at its limit of descriptors sees, too.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS + 40))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let many = vec![file.as_fd(); MAX_DESCRIPTORS + 40];
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&ours, &[IoSlice::new(b"cut")], &mut control, SendFlags::NOSIGNAL).unwrap();
        let error = receive(theirs.as_fd(), &mut [0; 16]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MSGSIZE.raw_os_error()));

        send(ours.as_fd(), b"whole", &[file.as_fd(), file.as_fd()]).unwrap();
        let (length, given) = receive(theirs.as_fd(), &mut [0; 16]).unwrap();
        assert_eq!((length, given.len()), (5, 2));
    }
}
