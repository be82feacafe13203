//! Mounts by descriptor: detached copies of directory trees, id-mapped for one sandbox, and their attachment.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;
const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// Attributes of a detached mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes<'a> {
    pub read_only: bool,
    /// Set-user-id programs and device files don't work on it.
    pub restricted: bool,
    /// Show ids as this user namespace maps them.
    pub idmap: Option<BorrowedFd<'a>>,
}

fn c_path(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A detached copy of the mount at `path`, from that directory or file downwards, without the mounts below it.
///
/// Id-mapping needs the host's root and Linux 5.12; the file system must support it (btrfs and XFS 5.15+, ext4 5.12+).
pub fn detached(path: &Path, attributes: Attributes<'_>) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: a system call on a NUL-terminated path; the answer is a new descriptor that nobody else owns.
    let tree = unsafe {
        let fd = check(libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC))?;
        OwnedFd::from_raw_fd(fd as RawFd)
    };
    with_attributes(tree, attributes)
}

/// The same of the mount that `file`, of this mount namespace, was opened on, from that file or directory downwards.
pub fn detached_at(file: BorrowedFd<'_>, attributes: Attributes<'_>) -> io::Result<OwnedFd> {
    with_attributes(clone_of(file)?, attributes)
}

fn with_attributes(tree: OwnedFd, attributes: Attributes<'_>) -> io::Result<OwnedFd> {
    let mut attr = MountAttr { set: 0, clear: 0, propagation: 0, userns: 0 };
    if attributes.read_only {
        attr.set |= MOUNT_ATTR_RDONLY;
    }
    if attributes.restricted {
        attr.set |= MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    }
    if let Some(userns) = attributes.idmap {
        attr.set |= MOUNT_ATTR_IDMAP;
        attr.userns = userns.as_raw_fd() as u64;
    }
    if attr.set != 0 {
        set_attributes(tree.as_fd(), attr)?;
    }
    Ok(tree)
}

/// A detached, read-only copy of the mount that `file`, of this mount namespace, was opened on, from that file downwards.
pub(crate) fn detached_from(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let tree = clone_of(file)?;
    make_read_only(tree.as_fd())?;
    Ok(tree)
}

fn clone_of(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint;
    // SAFETY: a system call on an open descriptor; the answer is a new descriptor that nobody else owns.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_open_tree, file.as_raw_fd(), c"".as_ptr(), flags))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Creates a tmpfs with these options, not attached yet, without set-user-id programs or programs at all.
pub(crate) fn tmpfs(options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    const FSCONFIG_SET_STRING: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    const MOUNT_ATTR_NOSUID: libc::c_uint = 2;
    const MOUNT_ATTR_NOEXEC: libc::c_uint = 8;
    // SAFETY: system calls on NUL-terminated strings and on descriptors that they made; each answer is a new descriptor that
    // nobody else owns.
    unsafe {
        let context = OwnedFd::from_raw_fd(check(libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FSOPEN_CLOEXEC))? as RawFd);
        let configure = |command: libc::c_uint, key: *const libc::c_char, value: *const libc::c_char| {
            check(libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0))
        };
        for (key, value) in options {
            configure(FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr())?;
        }
        configure(FSCONFIG_CMD_CREATE, std::ptr::null(), std::ptr::null())?;
        let attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC;
        let mount = check(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes))?;
        Ok(OwnedFd::from_raw_fd(mount as RawFd))
    }
}

/// Makes a detached mount read-only.
pub(crate) fn make_read_only(tree: BorrowedFd<'_>) -> io::Result<()> {
    set_attributes(tree, MountAttr { set: MOUNT_ATTR_RDONLY, clear: 0, propagation: 0, userns: 0 })
}

fn set_attributes(tree: BorrowedFd<'_>, attr: MountAttr) -> io::Result<()> {
    // SAFETY: `attr` is a `struct mount_attr` of the size given, alive during the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Attaches a detached mount at `target`.
pub fn attach(tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: a system call on open descriptors and NUL-terminated paths.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// Attaches a detached mount over a mount of FUSE that a sandbox has at `target`, because that does not answer any more.
/// `process` is a pidfd of the sandbox.
///
/// What the sandbox did to the path does not matter: no link is followed, and only a mount of FUSE is covered, which no sandbox
/// can make itself.
///
/// # Errors
/// `EINVAL` if there is no such mount at the path.
pub fn cover(process: BorrowedFd<'_>, tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let covered = std::thread::scope(|scope| {
        // A thread for this alone: it does not return from the sandbox's mount namespace.
        std::thread::Builder::new()
            .name("cover".to_owned())
            .spawn_scoped(scope, || cover_here(process, tree, target))
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked"))))
    });
    covered?
}

fn cover_here(process: BorrowedFd<'_>, tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstatfs, openat2};
    use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe};
    const FUSE: u32 = 0x6573_5546;
    const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;
    // SAFETY: only the root and the working directory of this thread become separate ones. It opens no file by a relative path.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    move_into_thread_name_spaces(process, ThreadNameSpaceType::MOUNT)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = openat2(CWD, target, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)?;
    match fstatfs(&place) {
        Err(rustix::io::Errno::NOTCONN) => {}
        Ok(about) if about.f_type as u32 == FUSE => {}
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    // SAFETY: a system call on open descriptors and NUL-terminated paths.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            place.as_raw_fd(),
            c"".as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// `mount(2)`.
pub(crate) fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong, data: &str) -> io::Result<()> {
    let text = |s: &str| CString::new(s).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (source, target, kind, data) = (text(source)?, text(target)?, text(kind)?, text(data)?);
    // SAFETY: a system call on NUL-terminated strings.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) }.into())?;
    Ok(())
}

/// Takes the mount at `target` away, also while something uses it.
pub(crate) fn detach(target: &str) -> io::Result<()> {
    let target = c_path(Path::new(target))?;
    // SAFETY: a system call on a NUL-terminated path.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }.into())?;
    Ok(())
}

/// Makes the mount at `target` read-only, keeping its other flags as `flags` says (locked ones must be repeated).
pub(crate) fn remount_read_only(target: &str, flags: libc::c_ulong) -> io::Result<()> {
    mount("", target, "", libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY | flags, "")
}

/// Makes the current directory the root, with the old root stacked on it: see pivot_root(2), "pivot_root(".", ".")". Call
/// [`leave_old_root`] when the old root is no longer needed.
pub(crate) fn pivot_here() -> io::Result<()> {
    // SAFETY: a system call on NUL-terminated paths.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) })?;
    Ok(())
}

/// Drops the old root that [`pivot_here`] left on top of the new one.
pub(crate) fn leave_old_root(old_root: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain system calls.
    unsafe {
        check(libc::fchdir(old_root.as_raw_fd()).into())?;
        check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH).into())?;
        check(libc::chdir(c"/".as_ptr()).into())?;
    }
    Ok(())
}
