//! Capabilities of the sandbox's root over the sandbox's own user namespace.

use std::io;

/// Kept. Source: Docker's default set, and SYS_PTRACE, which debuggers need and which reaches only the sandbox's processes.
pub(crate) const KEPT: [(u32, &str); 15] = [
    (0, "CHOWN"),
    (1, "DAC_OVERRIDE"),
    (3, "FOWNER"),
    (4, "FSETID"),
    (5, "KILL"),
    (6, "SETGID"),
    (7, "SETUID"),
    (8, "SETPCAP"),
    (10, "NET_BIND_SERVICE"),
    (13, "NET_RAW"),
    (18, "SYS_CHROOT"),
    (19, "SYS_PTRACE"),
    (27, "MKNOD"),
    (29, "AUDIT_WRITE"),
    (31, "SETFCAP"),
];

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Drops all others from the bounding set, so that no exec restores them.
pub(crate) fn bound() -> io::Result<()> {
    for capability in (0..64).filter(|c| KEPT.iter().all(|(kept, _)| kept != c)) {
        // SAFETY: a plain system call; EINVAL ends the list of capabilities that this kernel knows.
        match check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0) }.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            other => other?,
        }
    }
    Ok(())
}

/// Drops all others at once, for a process that does not exec.
pub(crate) fn reduce() -> io::Result<()> {
    let kept = KEPT.iter().fold(0u64, |bits, (kept, _)| bits | 1 << kept);
    let half = |shift: u32| {
        let bits = (kept >> shift) as u32;
        Data { effective: bits, permitted: bits, inheritable: 0 }
    };
    let header = Header { version: 0x2008_0522, pid: 0 };
    let data = [half(0), half(32)];
    // SAFETY: header and data are the kernel's version 3 structures, alive during the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) })
}
