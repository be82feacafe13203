//! A sandbox's `/dev`: a separate file system.
//!
//! Device nodes shared between sandboxes would be one file for all of them: a lock on it, or a watch of it, in one sandbox
//! would affect the others. Only the host's root can create nodes, so the launcher creates them for each sandbox.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, makedev, mkdirat, mknodat, symlinkat};
use rustix::process::umask;

use crate::mounts;

const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const KVM: (&str, u32, u32) = ("kvm", 10, 232);
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];
const PLACES: [&str; 3] = ["pts", "shm", "mqueue"];

/// Creates one, read-only and not attached yet. Needs the host's root.
pub(crate) fn mounted(kvm: bool) -> io::Result<OwnedFd> {
    let mount = mounts::tmpfs(&[(c"size", c"64k"), (c"mode", c"755")])?;
    let before = umask(Mode::empty());
    let made = fill(&mount, kvm);
    umask(before);
    made?;
    mounts::make_read_only(mount.as_fd())?;
    Ok(mount)
}

fn fill(dir: &OwnedFd, kvm: bool) -> io::Result<()> {
    for (name, major, minor) in NODES.iter().chain(kvm.then_some(&KVM)) {
        mknodat(dir, *name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(*major, *minor))?;
    }
    for (target, name) in LINKS {
        symlinkat(target, dir, name)?;
    }
    for place in PLACES {
        mkdirat(dir, place, Mode::from_raw_mode(0o755))?;
    }
    Ok(())
}
