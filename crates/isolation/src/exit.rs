//! How a process ended that is not a child of this one.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

/// How long an ended process may take to be reaped by its parent.
const REAPED_WITHIN: Duration = Duration::from_millis(500);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Status(i32),
    /// This signal ended it.
    Signal(i32),
}

/// The kernel's `struct pidfd_info` of its first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    /// What is asked for, and afterwards what is known.
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// The flag in `mask` for `exit_code`.
const INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xFF, 11, struct pidfd_info)`
const GET_INFO: libc::c_ulong = 3 << 30 | (size_of::<PidfdInfo>() as libc::c_ulong) << 16 | 0xFF << 8 | 11;

/// How the ended process behind a pidfd ended. Blocks until its parent has reaped it, half a second at most. None: it was not
/// reaped, or the kernel does not keep it (before Linux 6.15).
pub fn exit_of(pidfd: BorrowedFd<'_>) -> Option<Exit> {
    let limit = rustix::time::Timespec::try_from(REAPED_WITHIN).ok()?;
    // Without events to wait for, this returns only at the hangup: the process was reaped.
    let mut waiting = [PollFd::from_borrowed_fd(pidfd, PollFlags::empty())];
    rustix::io::retry_on_intr(|| poll(&mut waiting, Some(&limit))).ok().filter(|ready| *ready > 0)?;
    let mut info = PidfdInfo { mask: INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the descriptor is open, and `info` has the layout and, in the request's number, the size of the kernel's structure.
    let done = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) };
    if done < 0 || info.mask & INFO_EXIT == 0 {
        return None;
    }
    // As `wait` reports it: the signal is in the low bits, with a flag for a core dump.
    match info.exit_code & 0x7f {
        0 => Some(Exit::Status(info.exit_code >> 8 & 0xff)),
        signal => Some(Exit::Signal(signal)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    fn exit_of_shell(script: &str) -> Option<Exit> {
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        // Closes its input, which it waits for.
        child.wait().unwrap();
        exit_of(pidfd.as_fd())
    }

    #[test]
    fn the_kernel_says_how_a_process_ended() {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        if (numbers.next(), numbers.next()) < (Some(6), Some(15)) {
            assert_eq!(exit_of_shell("read x; exit 3"), None);
            return;
        }
        assert_eq!(exit_of_shell("read x; exit 3"), Some(Exit::Status(3)));
        assert_eq!(exit_of_shell("read x; kill -9 $$"), Some(Exit::Signal(9)));
    }
}
