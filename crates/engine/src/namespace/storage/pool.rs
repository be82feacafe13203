//! The pool: a btrfs in a sparse file of the data directory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use arenite_isolation::{btrfs, loopdev};
use rustix::mount::{MountFlags, UnmountFlags};

use super::{Result, StorageError, is_btrfs, make_directory, open_directory, space};

const LEAST_BYTES: u64 = 256 << 20;
const MOST_DEFAULT_BYTES: u64 = 256 << 30;
/// Where the UUID stands in the first superblock.
const UUID_OFFSET: u64 = 0x1_0000 + 0x20;
/// `discard=async` gives freed space back to the host in the background: the image shrinks again.
const MOUNT_OPTIONS: &std::ffi::CStr = c"discard=async";

pub(super) fn exists(data_dir: &Path) -> bool {
    image(data_dir).exists()
}

fn image(data_dir: &Path) -> PathBuf {
    data_dir.join("pool.img")
}

/// Makes the image file and the file system in it. It gets its name when it is complete.
pub(super) fn make_image(data_dir: &Path, size_bytes: Option<u64>) -> Result<()> {
    let bytes = match size_bytes {
        Some(bytes) => bytes,
        None => (space(data_dir)?.0 / 5 * 4).min(MOST_DEFAULT_BYTES),
    };
    // Whole MiB: the loop device wants whole blocks.
    let bytes = bytes >> 20 << 20;
    if bytes < LEAST_BYTES {
        return Err(StorageError::TooSmall { bytes, least: LEAST_BYTES });
    }
    let unfinished = data_dir.join("pool.img.new");
    let what = || format!("make {}", unfinished.display());
    match fs::remove_file(&unfinished) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(StorageError::io(what())(e)),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(StorageError::io(what()))?;
    if is_btrfs(&file) {
        loopdev::disable_copy_on_write(file.as_fd()).map_err(StorageError::io(what()))?;
    }
    file.set_len(bytes).map_err(StorageError::io(what()))?;
    format(&unfinished).inspect_err(|_| {
        let _ = fs::remove_file(&unfinished);
    })?;
    file.sync_all().map_err(StorageError::io(what()))?;
    fs::rename(&unfinished, image(data_dir)).map_err(StorageError::io(what()))
}

fn format(image: &Path) -> Result<()> {
    const PROGRAM: &str = "mkfs.btrfs";
    // One copy of the metadata: both would lie in the same file of the same disk.
    let output = Command::new(PROGRAM)
        .args(["--quiet", "--nodiscard", "--data", "single", "--metadata", "single"])
        .args(["--label", "arenite", "--"])
        .arg(image)
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| StorageError::Program { program: PROGRAM, source })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rfind(|l| !l.trim().is_empty());
    Err(StorageError::Failed { program: PROGRAM, message: line.unwrap_or("no message").trim().to_owned() })
}

pub(super) fn remove_image(data_dir: &Path) {
    if let Err(error) = fs::remove_file(image(data_dir)) {
        tracing::warn!(%error, "the unused pool image stays");
    }
}

/// Mounts the existing image on `data_dir/pool`, if it is not there already, and returns that path.
pub(super) fn mount(data_dir: &Path, size_bytes: Option<u64>, notes: &mut Vec<String>) -> Result<PathBuf> {
    let path = image(data_dir);
    let file =
        OpenOptions::new().read(true).write(true).open(&path).map_err(StorageError::io(format!("open {}", path.display())))?;
    let grown = grow_image(&file, size_bytes, notes)?;
    let root = data_dir.join("pool");
    if !root.exists() {
        make_directory(&root, 0o700)?;
    }
    if !is_mounted(&root, &file)? {
        mount_image(&path, &file, &root)?;
    }
    let top = open_directory(&root)?;
    if grown {
        if let Some(device) = loopdev::LoopDevice::find(&file).map_err(StorageError::io("find the loop device"))? {
            device.refresh_capacity().map_err(StorageError::io("grow the loop device"))?;
        }
        btrfs::grow(top.as_fd()).map_err(StorageError::io("grow the pool"))?;
    }
    // The sandboxes' files are none of other users' business.
    make_directory(&root, 0o700)?;
    Ok(root)
}

fn grow_image(file: &File, size_bytes: Option<u64>, notes: &mut Vec<String>) -> Result<bool> {
    let now = file.metadata().map_err(StorageError::io("look at the pool image"))?.len();
    let Some(wanted) = size_bytes.map(|b| b >> 20 << 20).filter(|b| *b != now) else {
        return Ok(false);
    };
    if wanted < now {
        notes.push(format!("the pool keeps its {now} bytes: it can grow but not shrink to {wanted}"));
        return Ok(false);
    }
    file.set_len(wanted).map_err(StorageError::io("grow the pool image"))?;
    Ok(true)
}

/// Whether `root` is a mount of the file system in `image`, by its UUID.
fn is_mounted(root: &Path, image: &File) -> Result<bool> {
    let top = open_directory(root)?;
    if !is_btrfs(&top) {
        return Ok(false);
    }
    let mut wanted = [0; 16];
    image.read_exact_at(&mut wanted, UUID_OFFSET).map_err(StorageError::io("read the pool image"))?;
    let inode = top.metadata().map_err(StorageError::io("look at the pool"))?.ino();
    let found = btrfs::file_system_id(top.as_fd()).map_err(StorageError::io("ask for the file system's id"))?;
    Ok(inode == btrfs::SUBVOLUME_INODE && found == wanted)
}

fn mount_image(path: &Path, file: &File, root: &Path) -> Result<()> {
    // It may be attached but not mounted here: a server in a mount namespace of its own went, and its sandboxes stayed.
    // A second device on the same file would corrupt it.
    let found = loopdev::LoopDevice::find(file).map_err(StorageError::io("look through the loop devices"))?;
    let device = match found {
        Some(device) => device,
        None => {
            loopdev::LoopDevice::attach(file).map_err(StorageError::io(format!("attach {} to a loop device", path.display())))?
        }
    };
    rustix::mount::mount(
        device.path(),
        root,
        "btrfs",
        MountFlags::NOATIME | MountFlags::NOSUID | MountFlags::NODEV,
        MOUNT_OPTIONS,
    )
    .map_err(|e| StorageError::io(format!("mount {} on {}", path.display(), root.display()))(e.into()))
}

pub(super) fn unmount(root: &Path) -> Result<()> {
    rustix::mount::unmount(root, UnmountFlags::empty())
        .map_err(|e| StorageError::io(format!("unmount {}", root.display()))(e.into()))
}
