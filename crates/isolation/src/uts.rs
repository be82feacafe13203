//! The host name of a sandbox, set from outside: its own root may not set it.

use std::io;
use std::os::fd::BorrowedFd;
use std::thread;

use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

/// Sets the host name in the UTS namespace of the process behind a pidfd, on a dedicated thread, since a namespace belongs to a
/// thread. Blocks until it is done.
///
/// # Errors
/// `ESRCH` when the process has ended; `EPERM` without `CAP_SYS_ADMIN`; `EINVAL` for a name of more than 64 bytes.
pub fn set_hostname(process: BorrowedFd<'_>, hostname: &str) -> io::Result<()> {
    thread::scope(|scope| {
        let set = || -> io::Result<()> {
            move_into_thread_name_spaces(process, ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME)?;
            Ok(rustix::system::sethostname(hostname.as_bytes())?)
        };
        let thread = thread::Builder::new().name("uts".to_owned()).stack_size(256 << 10).spawn_scoped(scope, set)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}
