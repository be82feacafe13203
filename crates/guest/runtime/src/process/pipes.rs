//! Pipes between the guest and the processes that it starts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, open};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::users::User;

/// A pipe belongs to its creator. Without this, the command could not open `/dev/stderr`.
fn give(pipe: &OwnedFd, user: &User) -> io::Result<()> {
    if user.uid != 0 && rustix::process::geteuid().is_root() {
        fchown(pipe, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    }
    Ok(())
}

/// A pipe for the output of a command of this user: our end, and the command's.
pub fn output_pipe(user: &User) -> io::Result<(Receiver, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    give(&write, user)?;
    Ok((Receiver::from_owned_fd(read)?, write))
}

/// A pipe for the input of a command of this user: the command's end, and ours.
pub fn input_pipe(user: &User) -> io::Result<(OwnedFd, Sender)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    give(&read, user)?;
    Ok((read, Sender::from_owned_fd(write)?))
}

/// An input without data.
pub fn dev_null() -> io::Result<OwnedFd> {
    Ok(open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Reads what is in the pipe now. It asks the kernel, since tokio learns of new data only at its next turn.
pub fn read_rest(pipe: &Receiver) -> Vec<u8> {
    let pending = rustix::io::ioctl_fionread(pipe.as_fd()).unwrap_or(0) as usize;
    let mut rest = vec![0; pending];
    let mut length = 0;
    while length < pending {
        match rustix::io::read(pipe.as_fd(), &mut rest[length..]) {
            Ok(0) | Err(_) => break,
            Ok(n) => length += n,
        }
    }
    rest.truncate(length);
    rest
}
