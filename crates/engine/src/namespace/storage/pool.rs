//! The pool: a btrfs in a sparse file of the data directory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use arenite_isolation::{btrfs, loopdev};
use rustix::mount::{MountFlags, UnmountFlags};

use super::{Result, StorageError, is_btrfs, make_directory, open_directory, space};

/// Time for an unmounted device to become free.
const DETACH_LIMIT: Duration = Duration::from_secs(15);
/// Time for programs that are being started to close the files of this process.
const START_LIMIT: Duration = Duration::from_secs(1);
const LEAST_BYTES: u64 = 256 << 20;
const MOST_DEFAULT_BYTES: u64 = 256 << 30;
/// Bytes of a node of the trees of btrfs, at least a page. The first write after a snapshot adds references to all that the
/// changed nodes refer to, and the next snapshot waits for that. Half the usual size of a node needs half as many.
const NODE_BYTES: usize = 8 << 10;
/// `discard=async` returns freed space to the host in the background: the image shrinks again.
const MOUNT_OPTIONS: &std::ffi::CStr = c"discard=async";

/// Whether there is a pool.
///
/// # Errors
/// If the image of an existing pool is gone, mounted or not: another must not be created in its place.
pub(super) fn exists(data_dir: &Path) -> Result<bool> {
    let (image, root, mark) = (image(data_dir), data_dir.join("pool"), mark(data_dir));
    if image.exists() {
        return Ok(true);
    }
    if let Some(device) = mounted_device(&root) {
        return Err(StorageError::ImageGone { image, root, moved: backing_file(&device) });
    }
    if mark.exists() {
        return Err(StorageError::ImageMissing { image, mark });
    }
    Ok(false)
}

pub(super) fn image(data_dir: &Path) -> PathBuf {
    data_dir.join("pool.img")
}

/// The mark that a pool was created here, in case its image goes missing.
fn mark(data_dir: &Path) -> PathBuf {
    data_dir.join("pool.made")
}

/// The block device that is mounted on `root`.
fn mounted_device(root: &Path) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let escaped = root.to_str()?.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012");
    mounts.lines().rev().find_map(|line| {
        let (place, source) = line.split_once(" - ")?;
        let mut source = source.split(' ');
        let is_ours = place.split(' ').nth(4)? == escaped && source.next()? == "btrfs";
        is_ours.then(|| source.next().map(PathBuf::from))?
    })
}

/// The current path of a loop device's file; none if it was deleted.
fn backing_file(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?;
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()?;
    let path = PathBuf::from(text.trim_end_matches('\n'));
    path.exists().then_some(path)
}

/// The fault of the mounted pool, as text without paths.
pub(super) fn problem(data_dir: &Path, root: &Path) -> Option<String> {
    let top = match open_directory(root) {
        Ok(top) if is_btrfs(&top) => top,
        _ => return Some("the storage pool is not mounted".to_owned()),
    };
    if top.metadata().is_ok_and(|about| about.ino() != btrfs::SUBVOLUME_INODE) || mounted_device(root).is_none() {
        return Some("the storage pool is not mounted".to_owned());
    }
    if is_read_only(root) {
        return Some("the storage pool is read-only; stop the server and run: arenite recover-storage".to_owned());
    }
    (!image(data_dir).exists()).then(|| "the file of the storage pool was removed or moved".to_owned())
}

pub(super) fn is_read_only(root: &Path) -> bool {
    rustix::fs::statvfs(root).is_ok_and(|about| about.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Creates the image file and the file system in it. It gets its name when it is complete.
pub(super) fn make_image(data_dir: &Path, size_bytes: Option<u64>) -> Result<()> {
    let bytes = match size_bytes {
        Some(bytes) => bytes,
        None => (space(data_dir)?.0 / 5 * 4).min(MOST_DEFAULT_BYTES),
    };
    // Whole MiB: the loop device requires whole blocks.
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
    // One copy of the metadata: both would be in the same file on the same disk.
    let output = Command::new(PROGRAM)
        .args(["--quiet", "--nodiscard", "--data", "single", "--metadata", "single"])
        .args(["--nodesize", &NODE_BYTES.max(rustix::param::page_size()).to_string()])
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
    let _ = fs::remove_file(mark(data_dir));
}

/// Mounts the existing image on `data_dir/pool`, unless it is already mounted there, and returns that path.
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
    let mark = mark(data_dir);
    if !mark.exists() {
        // A full disk must not prevent the start.
        if let Err(error) = fs::write(&mark, "A storage pool was made here, in pool.img.\n") {
            tracing::warn!(%error, path = %mark.display(), "it could not be noted that there is a storage pool");
        }
    }
    if is_read_only(&root) {
        return Ok(root);
    }
    let top = open_directory(&root)?;
    if grown {
        if let Some(device) = loopdev::LoopDevice::find(&file).map_err(StorageError::io("find the loop device"))? {
            device.refresh_capacity().map_err(StorageError::io("grow the loop device"))?;
        }
        btrfs::grow(top.as_fd()).map_err(StorageError::io("grow the pool"))?;
    }
    // Other users must not reach the sandboxes' files.
    make_directory(&root, 0o700)?;
    Ok(root)
}

fn grow_image(file: &File, size_bytes: Option<u64>, notes: &mut Vec<String>) -> Result<bool> {
    let now = file.metadata().map_err(StorageError::io("look at the pool image"))?.len();
    let Some(wanted) = size_bytes.map(|b| b >> 20 << 20).filter(|b| *b != now) else {
        return Ok(false);
    };
    if wanted < now {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        notes.push(format!("the pool keeps its {:.1} GiB: it can grow but not shrink to {:.1} GiB", gib(now), gib(wanted)));
        return Ok(false);
    }
    file.set_len(wanted).map_err(StorageError::io("grow the pool image"))?;
    Ok(true)
}

/// Whether `root` is a mount of this very image. Its UUID doesn't show that: a copy has the same.
fn is_mounted(root: &Path, image: &File) -> Result<bool> {
    let Some(device) = mounted_device(root) else { return Ok(false) };
    loopdev::LoopDevice::at(&device)
        .and_then(|device| device.holds(image))
        .map_err(StorageError::io(format!("look at {}", device.display())))
}

fn mount_image(path: &Path, file: &File, root: &Path) -> Result<()> {
    // It may be attached but not mounted here: a server in a separate mount namespace ended, and its sandboxes stayed. A second
    // device on the same file would corrupt it.
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
    .map_err(|e| match e {
        // Before 6.7: another device with this UUID is mounted.
        rustix::io::Errno::EXIST => StorageError::Copy { image: path.to_owned() },
        e => StorageError::io(format!("mount {} on {}", path.display(), root.display()))(e.into()),
    })
}

pub(super) fn unmount(root: &Path) -> Result<()> {
    let begun = Instant::now();
    loop {
        match rustix::mount::unmount(root, UnmountFlags::empty()) {
            // A program that is being started has this process's open files until its first instruction.
            Err(rustix::io::Errno::BUSY) if begun.elapsed() < START_LIMIT => std::thread::sleep(Duration::from_millis(10)),
            done => return done.map_err(|e| StorageError::io(format!("unmount {}", root.display()))(e.into())),
        }
    }
}

/// Unmounts what is on `root` for as long as it is `mounted`. What was done, in words.
fn unmount_while(root: &Path, mounted: impl Fn() -> Result<bool>) -> Result<Vec<String>> {
    let mut done = Vec::new();
    while mounted()? {
        // Open files keep the file system busy, but not the mount point.
        unmount(root).or_else(|_| {
            rustix::mount::unmount(root, UnmountFlags::DETACH)
                .map_err(|e| StorageError::io(format!("unmount {}", root.display()))(e.into()))
        })?;
        done.push(format!("unmounted {}", root.display()));
    }
    Ok(done)
}

/// Unmounts the pool everywhere this process can reach it, and waits until nothing uses the image's loop device.
pub(super) fn detach(data_dir: &Path) -> Result<Vec<String>> {
    let (path, root) = (image(data_dir), data_dir.join("pool"));
    let file = File::open(&path).map_err(StorageError::io(format!("open {}", path.display())))?;
    let done = unmount_while(&root, || is_mounted(&root, &file))?;
    let begun = Instant::now();
    loop {
        let found = loopdev::LoopDevice::find(&file).map_err(StorageError::io("look through the loop devices"))?;
        let Some(device) = found.map(|device| device.path().to_owned()) else {
            return Ok(done);
        };
        if begun.elapsed() > DETACH_LIMIT {
            return Err(StorageError::Used { pids: users(&device), device });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Unmounts what is on the pool's mount point.
pub(super) fn unmount_all(data_dir: &Path) -> Result<Vec<String>> {
    let root = data_dir.join("pool");
    unmount_while(&root, || Ok(mounted_device(&root).is_some()))
}

/// Whether anything is mounted on the pool's mount point.
pub(in crate::namespace) fn has_mount(data_dir: &Path) -> bool {
    mounted_device(&data_dir.join("pool")).is_some()
}

/// Data directories with a pool image on a loop device of this host.
pub(in crate::namespace) fn mounted_data_dirs() -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let images = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    images.filter_map(|image| Some(Path::new(image.trim_end().strip_suffix("/pool.img")?).to_owned())).collect()
}

/// Processes that have the device mounted in their mount namespace.
fn users(device: &Path) -> Vec<u32> {
    let wanted = format!(" {} ", device.display());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let uses = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/mountinfo")).is_ok_and(|mounts| mounts.contains(&wanted));
    pids.filter(uses).collect()
}
