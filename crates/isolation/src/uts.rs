//! The host name of a sandbox, set from outside: its own root may not set it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces};

/// Sets the host name in the UTS namespace of the process behind a pidfd. A namespace belongs to a thread: the calling one enters
/// it and returns, which takes some microseconds. A thread for each name would take a hundred.
///
/// # Errors
/// `ESRCH` when the process has ended; `EPERM` without `CAP_SYS_ADMIN`; `EINVAL` for a name of more than 64 bytes.
pub fn set_hostname(process: BorrowedFd<'_>, hostname: &str) -> io::Result<()> {
    let own = File::open("/proc/thread-self/ns/uts")?;
    move_into_thread_name_spaces(process, ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME)?;
    let set = rustix::system::sethostname(hostname.as_bytes());
    if let Err(error) = move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::HostNameAndNISDomainName)) {
        // A thread in a sandbox's namespace must not go on with the host's work. Only a kernel without memory gets here.
        tracing::error!(%error, "a thread could not return from a sandbox's UTS namespace");
        std::process::abort();
    }
    Ok(set?)
}

/// Whether this process has the host name.
pub fn has_hostname(hostname: &str) -> bool {
    rustix::system::uname().nodename().to_bytes() == hostname.as_bytes()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn the_name_is_the_other_namespaces_and_the_thread_returns() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let before = rustix::system::uname().nodename().to_owned();
        let mut other = Command::new("unshare");
        // It answers once it is in its namespace, and again on a line of input.
        other.args(["--uts", "sh", "-c", "echo; read _; uname -n"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = other.spawn().unwrap();
        let mut output = other.stdout.take().unwrap();
        io::Read::read_exact(&mut output, &mut [0]).unwrap();
        let pid = Pid::from_raw(other.id().try_into().unwrap()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        set_hostname(pidfd.as_fd(), "claimed").unwrap();
        let refused = set_hostname(pidfd.as_fd(), &"x".repeat(65)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(rustix::system::uname().nodename(), before.as_c_str());
        other.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(io::read_to_string(output).unwrap().trim(), "claimed");
        other.wait().unwrap();
        assert!(set_hostname(pidfd.as_fd(), "gone").is_err());
        assert_eq!(rustix::system::uname().nodename(), before.as_c_str());
    }
}
