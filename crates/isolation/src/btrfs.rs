//! Subvolumes, snapshots and quotas of btrfs, by ioctl.
//!
//! These calls join the running transaction and don't wait for the disk, except [`snapshot`], [`commit`] and [`sync`], which
//! commit. The layouts are those of the kernel's `linux/btrfs.h`.

use std::ffi::{CString, c_ulong};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `f_type` of a btrfs file system in `statfs`.
pub const MAGIC: u64 = 0x9123_683e;
/// The inode number of every subvolume's root directory.
pub const SUBVOLUME_INODE: u64 = 256;

const SNAP_CREATE_V2: c_ulong = 0x5000_9417;
const SUBVOL_CREATE_V2: c_ulong = 0x5000_9418;
const SNAP_DESTROY: c_ulong = 0x5000_940f;
const SYNC: c_ulong = 0x9408;
const GET_FEATURES: c_ulong = 0x8018_9439;
const SET_FEATURES: c_ulong = 0x4030_9439;
const RESIZE: c_ulong = 0x5000_9403;
const INO_LOOKUP: c_ulong = 0xd000_9412;
const FS_INFO: c_ulong = 0x8400_941f;
const TREE_SEARCH: c_ulong = 0xd000_9411;
const SUBVOL_INFO: c_ulong = 0x81f8_943c;
const QUOTA_CTL: c_ulong = 0xc010_9428;
const QGROUP_CREATE: c_ulong = 0x4010_942a;
const QGROUP_LIMIT: c_ulong = 0x8030_942b;

const QUOTA_CTL_ENABLE: u64 = 1;
const QUOTA_CTL_ENABLE_SIMPLE: u64 = 4;
const LIMIT_MAX_REFERENCED: u64 = 1;
const LIMIT_MAX_EXCLUSIVE: u64 = 2;
const CHUNK_TREE: u64 = 3;
/// The tree of the subvolume that the descriptor is in.
const OWN_TREE: u64 = 0;
const FIRST_CHUNK: u64 = 256;
const INODE_ITEM: u32 = 1;
const CHUNK_ITEM: u32 = 228;
const CHUNK_SYSTEM: u64 = 2;
const CHUNK_METADATA: u64 = 4;
const SUBVOL_READ_ONLY: u64 = 1 << 1;
const EXTENDED_IREF: u64 = 1 << 6;
/// Size of a search's result buffer.
const SEARCH_BYTES: usize = 3992;
/// Names in `btrfs_ioctl_vol_args_v2`, with their NUL.
const NAME_V2: usize = 4040;
/// Names in `btrfs_ioctl_vol_args`, with their NUL.
const NAME_V1: usize = 4088;

#[repr(C)]
struct VolumeArgs {
    fd: i64,
    name: [u8; NAME_V1],
}

#[repr(C)]
struct VolumeArgsV2 {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; NAME_V2],
}

#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

#[repr(C)]
struct QgroupCreate {
    create: u64,
    id: u64,
}

#[repr(C)]
struct QgroupLimit {
    id: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved: [u64; 2],
}

#[repr(C)]
struct TreeSearch {
    tree: u64,
    object: (u64, u64),
    offset: (u64, u64),
    transaction: (u64, u64),
    kind: (u32, u32),
    items: u32,
    unused: u32,
    unused_more: [u64; 4],
    found: [u8; SEARCH_BYTES],
}

/// `btrfs_ioctl_get_subvol_info_args`.
#[repr(C)]
struct SubvolumeInfo {
    id: u64,
    name: [u8; 256],
    parent: u64,
    directory: u64,
    generation: u64,
    flags: u64,
    ids: [u8; 48],
    changed_in: u64,
    created_in: u64,
    rest: [u64; 18],
}

#[repr(C)]
struct InodeLookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

#[repr(C)]
struct FileSystemInfo {
    max_id: u64,
    devices: u64,
    id: [u8; 16],
    rest: [u8; 992],
}

/// `btrfs_ioctl_feature_flags`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Features {
    compatible: u64,
    compatible_read_only: u64,
    incompatible: u64,
}

/// Creates an empty subvolume `name` in the directory `parent`.
pub fn create_subvolume(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut args = volume_args_v2(name)?;
    // SAFETY: the argument is a live `btrfs_ioctl_vol_args_v2` of the size that the request's number states.
    unsafe { control(parent, SUBVOL_CREATE_V2, &raw mut args) }
}

/// Creates `name` in `parent` as a snapshot of the subvolume `source`. Commits the running transaction, so that it includes
/// earlier writes to `source`.
pub fn snapshot(source: BorrowedFd<'_>, parent: BorrowedFd<'_>, name: &str, read_only: bool) -> io::Result<()> {
    let mut args = volume_args_v2(name)?;
    args.fd = i64::from(source.as_raw_fd());
    args.flags = if read_only { SUBVOL_READ_ONLY } else { 0 };
    // SAFETY: as above; the descriptor named in the argument is borrowed for the call.
    unsafe { control(parent, SNAP_CREATE_V2, &raw mut args) }
}

/// Unlinks the subvolume `name` of `parent`; a kernel thread frees its blocks later, after the next commit.
///
/// # Errors
/// `ENOTEMPTY` when other subvolumes are nested in it.
pub fn delete_subvolume(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut args = VolumeArgs { fd: 0, name: [0; NAME_V1] };
    put_name(&mut args.name, name)?;
    // SAFETY: the argument is a live `btrfs_ioctl_vol_args` of the size that the request's number states.
    unsafe { control(parent, SNAP_DESTROY, &raw mut args) }
}

/// Enables simple quotas (kernel 6.7): an extent counts for the subvolume that wrote it, so snapshots and deletions stay cheap.
/// Marks the file system so that older kernels refuse to mount it.
///
/// # Errors
/// `EINVAL` from kernels without them.
pub fn enable_simple_quotas(on: BorrowedFd<'_>) -> io::Result<()> {
    quota_control(on, QUOTA_CTL_ENABLE_SIMPLE)
}

/// Enables classic quota groups, which count shared extents exactly, at a cost for every snapshot and deletion.
pub fn enable_qgroups(on: BorrowedFd<'_>) -> io::Result<()> {
    quota_control(on, QUOTA_CTL_ENABLE)
}

fn quota_control(on: BorrowedFd<'_>, command: u64) -> io::Result<()> {
    let mut args = QuotaControl { command, status: 0 };
    // SAFETY: the argument is a live `btrfs_ioctl_quota_ctl_args`.
    unsafe { control(on, QUOTA_CTL, &raw mut args) }
}

/// Limits the referenced bytes of the subvolume that `subvolume` is opened on. Beyond it, writes fail with `EDQUOT`. Sets the
/// same limit for its exclusive bytes, which [`hold`] doesn't change.
pub fn limit(subvolume: BorrowedFd<'_>, max_bytes: u64) -> io::Result<()> {
    // 0 means the quota group of the subvolume that the descriptor is in.
    set_limit(subvolume, 0, LIMIT_MAX_REFERENCED | LIMIT_MAX_EXCLUSIVE, max_bytes)
}

/// Limits the referenced bytes of the subvolume with this id, and nothing else of its quota group. `on` is any file or
/// directory of the file system.
pub fn hold(on: BorrowedFd<'_>, subvolume: u64, max_bytes: u64) -> io::Result<()> {
    set_limit(on, subvolume, LIMIT_MAX_REFERENCED, max_bytes)
}

/// Limits the exclusive bytes of the subvolume with this id.
pub fn limit_exclusive(on: BorrowedFd<'_>, subvolume: u64, max_bytes: u64) -> io::Result<()> {
    set_limit(on, subvolume, LIMIT_MAX_EXCLUSIVE, max_bytes)
}

fn set_limit(on: BorrowedFd<'_>, id: u64, flags: u64, max_bytes: u64) -> io::Result<()> {
    let mut args = QgroupLimit { id, flags, max_referenced: max_bytes, max_exclusive: max_bytes, reserved: [0; 2] };
    // SAFETY: the argument is a live `btrfs_ioctl_qgroup_limit_args`.
    unsafe { control(on, QGROUP_LIMIT, &raw mut args) }
}

/// The positions of metadata on the device of a file system with one device: offsets and lengths in bytes.
pub fn metadata_ranges(on: BorrowedFd<'_>) -> io::Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let mut search = TreeSearch::new(CHUNK_TREE);
    (search.object, search.kind) = ((FIRST_CHUNK, FIRST_CHUNK), (CHUNK_ITEM, CHUNK_ITEM));
    while search.next(on)? {
        let mut rest = &search.found[..];
        for _ in 0..search.items {
            let item = read_item(&mut rest).ok_or_else(invalid)?;
            read_chunk(item.bytes, &mut ranges).ok_or_else(invalid)?;
            search.offset.0 = item.offset.saturating_add(1);
        }
    }
    Ok(ranges)
}

/// Whether a file of a snapshot, its root directory included, was changed after another snapshot of the same subvolume was
/// created in `transaction`. Reads only what was changed.
pub fn is_changed_since(snapshot: BorrowedFd<'_>, transaction: u64) -> io::Result<bool> {
    let mut search = TreeSearch::new(OWN_TREE);
    search.object = (SUBVOLUME_INODE, u64::MAX);
    search.transaction.0 = transaction.saturating_add(1);
    while search.next(snapshot)? {
        let mut rest = &search.found[..];
        for _ in 0..search.items {
            let item = read_item(&mut rest).ok_or_else(invalid)?;
            // The tree's blocks have what was not changed too; each inode has the transaction of its last change.
            if item.kind == INODE_ITEM && u64_at(item.bytes, 8).ok_or_else(invalid)? > transaction {
                return Ok(true);
            }
            // The next key, which is compared as a whole.
            (search.object.0, search.kind.0, search.offset.0) = match item.offset.checked_add(1) {
                Some(offset) => (item.object, item.kind, offset),
                None => (item.object, item.kind + 1, 0),
            };
        }
    }
    Ok(false)
}

/// The transaction in which the subvolume or snapshot that `subvolume` is opened on was created.
pub fn created_in(subvolume: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = SubvolumeInfo {
        id: 0,
        name: [0; 256],
        parent: 0,
        directory: 0,
        generation: 0,
        flags: 0,
        ids: [0; 48],
        changed_in: 0,
        created_in: 0,
        rest: [0; 18],
    };
    // SAFETY: the argument is a live `btrfs_ioctl_get_subvol_info_args`.
    unsafe { control(subvolume, SUBVOL_INFO, &raw mut info)? };
    Ok(info.created_in)
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl TreeSearch {
    /// A search of all items of a tree.
    fn new(tree: u64) -> Self {
        Self {
            tree,
            object: (0, u64::MAX),
            offset: (0, u64::MAX),
            transaction: (0, u64::MAX),
            kind: (0, u32::from(u8::MAX)),
            items: 0,
            unused: 0,
            unused_more: [0; 4],
            found: [0; SEARCH_BYTES],
        }
    }

    /// Reads the next items. False: there are no more.
    fn next(&mut self, on: BorrowedFd<'_>) -> io::Result<bool> {
        self.items = u32::MAX;
        // SAFETY: the argument is a live `btrfs_ioctl_search_args`.
        unsafe { control(on, TREE_SEARCH, &raw mut *self)? };
        Ok(self.items > 0)
    }
}

/// An item of a search: its key, and its bytes.
struct Item<'a> {
    object: u64,
    kind: u32,
    offset: u64,
    bytes: &'a [u8],
}

fn read_item<'a>(rest: &mut &'a [u8]) -> Option<Item<'a>> {
    const HEADER: usize = 32;
    let (object, offset) = (u64_at(rest, 8)?, u64_at(rest, 16)?);
    let number = |at: usize| Some(u32::from_ne_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let (kind, length) = (number(24)?, number(28)? as usize);
    let bytes = rest.get(HEADER..HEADER + length)?;
    *rest = &rest[HEADER + length..];
    Some(Item { object, kind, offset, bytes })
}

/// Adds the ranges of each copy of a chunk that holds metadata.
fn read_chunk(chunk: &[u8], ranges: &mut Vec<(u64, u64)>) -> Option<()> {
    const STRIPES: usize = 48;
    const STRIPE: usize = 32;
    let (length, kind) = (u64_at(chunk, 0)?, u64_at(chunk, 24)?);
    if kind & (CHUNK_METADATA | CHUNK_SYSTEM) == 0 {
        return Some(());
    }
    let stripes = u16::from_le_bytes(chunk.get(44..46)?.try_into().ok()?);
    for stripe in 0..usize::from(stripes) {
        ranges.push((u64_at(chunk, STRIPES + stripe * STRIPE + 8)?, length));
    }
    Some(())
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Removes the quota group `id` that a deleted subvolume left behind.
///
/// # Errors
/// `EBUSY` while something still counts for it.
pub fn remove_qgroup(on: BorrowedFd<'_>, id: u64) -> io::Result<()> {
    let mut args = QgroupCreate { create: 0, id };
    // SAFETY: the argument is a live `btrfs_ioctl_qgroup_create_args`.
    unsafe { control(on, QGROUP_CREATE, &raw mut args) }
}

/// The id of the subvolume that `inside` is opened in.
pub fn subvolume_id(inside: BorrowedFd<'_>) -> io::Result<u64> {
    let mut args = InodeLookup { tree: 0, object: SUBVOLUME_INODE, name: [0; 4080] };
    // SAFETY: the argument is a live `btrfs_ioctl_ino_lookup_args`.
    unsafe { control(inside, INO_LOOKUP, &raw mut args)? };
    Ok(args.tree)
}

/// The UUID of the file system.
pub fn file_system_id(inside: BorrowedFd<'_>) -> io::Result<[u8; 16]> {
    let mut args = FileSystemInfo { max_id: 0, devices: 0, id: [0; 16], rest: [0; 992] };
    // SAFETY: the argument is a live `btrfs_ioctl_fs_info_args`.
    unsafe { control(inside, FS_INFO, &raw mut args)? };
    Ok(args.id)
}

/// Commits the running transaction, and wakes the thread that frees deleted subvolumes; it would sleep for up to half a minute.
pub fn sync(inside: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    unsafe { control(inside, SYNC, std::ptr::null_mut::<u8>()) }
}

/// Commits the running transaction, without the cached content of files: sets a feature that the file system has, which the
/// kernel commits.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] for a file system from before 2013, which may be without that feature.
pub fn commit(inside: BorrowedFd<'_>) -> io::Result<()> {
    let mut has = Features::default();
    // SAFETY: the argument is a live `btrfs_ioctl_feature_flags`, which gets the file system's.
    unsafe { control(inside, GET_FEATURES, &raw mut has)? };
    if has.incompatible & EXTENDED_IREF == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let extended = Features { incompatible: EXTENDED_IREF, ..Features::default() };
    let mut mask_and_value = [extended, extended];
    // SAFETY: the argument is two live `btrfs_ioctl_feature_flags`, which are read.
    unsafe { control(inside, SET_FEATURES, &raw mut mask_and_value) }
}

/// Grows the file system to the size of its device.
pub fn grow(inside: BorrowedFd<'_>) -> io::Result<()> {
    let mut args = VolumeArgs { fd: 0, name: [0; NAME_V1] };
    put_name(&mut args.name, "max")?;
    // SAFETY: the argument is a live `btrfs_ioctl_vol_args`.
    unsafe { control(inside, RESIZE, &raw mut args) }
}

fn volume_args_v2(name: &str) -> io::Result<VolumeArgsV2> {
    let mut args = VolumeArgsV2 { fd: 0, transid: 0, flags: 0, unused: [0; 4], name: [0; NAME_V2] };
    put_name(&mut args.name, name)?;
    Ok(args)
}

fn put_name(into: &mut [u8], name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    let bytes = name.as_bytes_with_nul();
    into.get_mut(..bytes.len()).ok_or(io::Error::from_raw_os_error(libc::ENAMETOOLONG))?.copy_from_slice(bytes);
    Ok(())
}

/// # Safety
/// `argument` must point to the structure that `request` reads or writes, valid for the call.
unsafe fn control<T>(on: BorrowedFd<'_>, request: c_ulong, argument: *mut T) -> io::Result<()> {
    // SAFETY: passed on to the caller; the descriptor is borrowed, so it is open.
    if unsafe { libc::ioctl(on.as_raw_fd(), request, argument) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

// The request numbers contain the sizes; a wrong layout would corrupt memory, so it must not compile.
const _: () = {
    assert!(size_of::<VolumeArgs>() == 4096);
    assert!(size_of::<VolumeArgsV2>() == 4096);
    assert!(size_of::<QuotaControl>() == 16);
    assert!(size_of::<QgroupCreate>() == 16);
    assert!(size_of::<QgroupLimit>() == 48);
    assert!(size_of::<TreeSearch>() == 4096);
    assert!(size_of::<SubvolumeInfo>() == 504);
    assert!(size_of::<InodeLookup>() == 4096);
    assert!(size_of::<FileSystemInfo>() == 1024);
};
