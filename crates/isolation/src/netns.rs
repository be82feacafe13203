//! Network namespaces, created and entered by dedicated threads.
//!
//! A namespace belongs to a thread, so a thread of a runtime's pool must never enter one: it would run later work in it. A
//! namespace created here belongs to the caller's user namespace; a sandbox's root has no rights over it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Creates a network namespace and runs `set_up` inside, on a separate thread, with a descriptor that keeps it alive. Blocks
/// until that is done. Within `set_up`, sockets and `/proc/sys/net` are the new namespace's.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `ENOSPC` at the limit `user.max_net_namespaces`; whatever `set_up` returns.
pub fn create<T, E>(set_up: impl FnOnce(BorrowedFd<'_>) -> Result<T, E> + Send) -> Result<(OwnedFd, T), E>
where
    T: Send,
    E: From<io::Error> + Send,
{
    on_thread(|| {
        // SAFETY: only the network namespace of this fresh thread changes, not the descriptors it shares with others.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)?;
        let namespace = current()?;
        let made = set_up(namespace.as_fd())?;
        Ok((namespace, made))
    })
}

/// Runs `visit` inside a network namespace, on a separate thread. Blocks until that is done.
pub fn enter<T, E>(namespace: BorrowedFd<'_>, visit: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E>
where
    T: Send,
    E: From<io::Error> + Send,
{
    on_thread(|| {
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network)).map_err(io::Error::from)?;
        visit()
    })
}

/// The calling thread's network namespace.
pub fn current() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

fn on_thread<T, E>(work: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E>
where
    T: Send,
    E: From<io::Error> + Send,
{
    thread::scope(|scope| {
        thread::Builder::new()
            .name("netns".to_owned())
            .stack_size(256 << 10)
            .spawn_scoped(scope, work)
            .map_err(E::from)?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked").into()))
    })
}
