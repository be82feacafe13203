//! File access as another user, inside one process.
//!
//! The guest runs as the sandbox's root, and most calls must have the rights of the sandbox's user. Linux keeps an identity per
//! thread, so a call gets a separate thread, which takes the user's file identity, drops every capability and ends with the
//! call: no thread returns to root, so none can forget to. Only the *file* ids change. The real ones stay root's: otherwise
//! processes of that user could signal and trace the thread, and through it the whole guest.

use std::io;
use std::thread;

use rustix::process::Gid;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups};

/// Stack of such a thread, in bytes; only touched pages cost memory.
const STACK_BYTES: usize = 1 << 20;

/// The user and groups that determine a process's rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// All groups, the primary one among them.
    pub groups: Vec<u32>,
}

/// Runs `work` on a new thread that accesses files with the rights of `identity` and without capabilities, then passes its
/// result to `done` on that thread. With `None` the thread keeps the process's identity. If the identity can't be set, `work`
/// does not run and `done` gets the reason.
///
/// The first change of identity makes the process non-dumpable: its files in `/proc` belong to root.
///
/// # Errors
/// Only if no thread can be started; `done` is not called then.
pub fn spawn_as<T>(
    identity: Option<Identity>,
    work: impl FnOnce() -> T + Send + 'static,
    done: impl FnOnce(io::Result<T>) + Send + 'static,
) -> io::Result<()> {
    thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let taken = identity.map_or(Ok(()), |identity| take(&identity));
            done(taken.map(|()| work()));
        })
        .map(drop)
}

/// Sets the calling thread's file identity and drops its capabilities.
fn take(identity: &Identity) -> io::Result<()> {
    // rustix calls the kernel directly; libc's wrapper would change all threads.
    let groups: Vec<Gid> = identity.groups.iter().map(|g| Gid::from_raw(*g)).collect();
    set_thread_groups(&groups)?;
    set_file_id(libc::SYS_setfsgid, libc::SYS_setresgid, identity.gid)?;
    set_file_id(libc::SYS_setfsuid, libc::SYS_setresuid, identity.uid)?;
    // The kernel drops only what concerns files; SYS_PTRACE alone would still open much of /proc.
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, none)?)
}

/// Sets the id by `call`, or, where the kernel lacks it, the effective id by `other`. gVisor's kernel has no separate ids for
/// files. The real and the saved id stay root's there, too, which keeps processes of the user from signalling the thread.
///
/// `setfsuid` and `setfsgid` don't report failures: they return the previous id. A second call with an invalid id shows what
/// the first one did.
fn set_file_id(call: libc::c_long, other: libc::c_long, id: u32) -> io::Result<()> {
    // SAFETY: plain system calls on numbers; they act on the calling thread alone.
    unsafe {
        let first = libc::syscall(call, libc::c_ulong::from(id));
        if first == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            let set = libc::syscall(other, -1_i64, libc::c_long::from(id), -1_i64);
            return if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        }
        let now = libc::syscall(call, libc::c_ulong::from(u32::MAX));
        if u32::try_from(now) == Ok(id) { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::mpsc;

    use super::*;

    fn run<T: Send + 'static>(identity: Option<Identity>, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let (sender, receiver) = mpsc::channel();
        spawn_as(identity, work, move |result| sender.send(result).unwrap()).unwrap();
        receiver.recv().unwrap()
    }

    #[test]
    fn another_user_has_its_own_rights_and_this_thread_keeps_its() {
        if !rustix::process::geteuid().is_root() {
            assert!(run(Some(Identity { uid: 0, gid: 0, groups: vec![0] }), || ()).is_err());
            return;
        }
        let dir = std::env::temp_dir().join(format!("arenite-identity-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let (secret, shared) = (dir.join("secret"), dir.join("shared"));
        for (path, mode) in [(&secret, 0o600), (&shared, 0o640)] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::chown(&shared, Some(0), Some(4242)).unwrap();
        let member = Identity { uid: 1000, gid: 1000, groups: vec![1000, 4242] };
        let stranger = Identity { groups: vec![1000], ..member.clone() };
        let read = |identity: &Identity, path: &std::path::Path| {
            let path = path.to_owned();
            run(Some(identity.clone()), move || fs::read(path).map_err(|e| e.kind())).unwrap()
        };
        let denied = Err(io::ErrorKind::PermissionDenied);
        assert_eq!(read(&member, &secret), denied);
        assert_eq!(read(&stranger, &shared), denied);
        assert_eq!(read(&member, &shared), Ok(b"x".to_vec()));
        let made = dir.join("made");
        let (path, child) = (made.clone(), secret.clone());
        let chown = run(Some(member), move || {
            fs::write(&path, "").unwrap();
            std::os::unix::fs::chown(child, Some(1000), None).map_err(|e| e.kind())
        });
        assert_eq!(chown.unwrap(), Err(io::ErrorKind::PermissionDenied));
        assert_eq!((fs::metadata(&made).unwrap().uid(), fs::metadata(&made).unwrap().gid()), (1000, 1000));
        assert_eq!(fs::read(&secret).unwrap(), b"x");
        assert_eq!(run(None, move || fs::read(secret).unwrap()).unwrap(), b"x");
        fs::remove_dir_all(dir).unwrap();
    }
}
