//! The copy-on-write pool on the real kernel. Needs root, loop devices and mkfs.btrfs.

#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use arenite_engine::namespace::storage::{PoolMode, Storage, StorageConfig, StorageError, StorageKind};
use arenite_isolation::btrfs;
use arenite_model::{SandboxId, VolumeId};
use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

const MIB: u64 = 1 << 20;

/// A data directory with a pool that is unmounted when the test ends, however it ends.
struct DataDir(tempfile::TempDir);

impl DataDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn open(&self, mib: u64) -> Storage {
        Storage::open(self.path(), &pool_of(mib)).unwrap()
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        let _ = unmount(self.path().join("pool"), UnmountFlags::DETACH);
    }
}

fn layer_id(name: &str) -> SandboxId {
    format!("s{name:0>11}").parse().unwrap()
}

fn pool_of(mib: u64) -> StorageConfig {
    StorageConfig { size_bytes: Some(mib * MIB), mode: PoolMode::Auto, floor_bytes: None }
}

/// Writes until it fails; returns the written bytes and the error.
fn fill(path: &Path, most: u64) -> (u64, io::Error) {
    let block = vec![0x5a; MIB as usize];
    let mut file = File::create(path).unwrap();
    let mut written = 0;
    while written < most {
        if let Err(e) = file.write_all(&block).and_then(|()| file.sync_data()) {
            return (written, e);
        }
        written += MIB;
    }
    panic!("wrote {written} bytes and met no limit");
}

/// Waits for the kernel's background work, for at most a minute.
fn eventually(what: &str, storage: &Storage, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        storage.settle().unwrap();
        thread::sleep(Duration::from_millis(20));
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

#[test]
fn a_layer_stops_at_its_limit_and_its_space_comes_back() {
    let data = DataDir::new();
    let storage = data.open(512);
    assert_eq!(storage.kind(), StorageKind::BtrfsSimpleQuota);
    assert!(storage.kind().disk_limit_enforced());
    let before = storage.free().unwrap();
    assert!(before.1 <= 512 * MIB && before.0 < before.1);

    let small = storage.create_layer(&layer_id("small"), 32 * MIB).unwrap();
    let other = storage.create_layer(&layer_id("other"), 64 * MIB).unwrap();
    let files = fs::metadata(small.join("upper")).unwrap();
    assert_eq!((files.uid(), files.mode() & 0o7777), (0, 0o755));
    assert!(small.join("work").is_dir());

    let (written, error) = fill(&small.join("upper/big"), 128 * MIB);
    assert_eq!(errno(&error), Some(Errno::DQUOT), "{error}");
    assert!((24 * MIB..=32 * MIB).contains(&written), "{written} bytes fitted into 32 MiB");
    let used = storage.usage(&layer_id("small")).unwrap();
    assert!((24 * MIB..=33 * MIB).contains(&used), "{used} bytes used");
    fs::write(other.join("upper/note"), "unharmed").unwrap();

    storage.set_limit(&layer_id("small"), 48 * MIB).unwrap();
    fs::write(small.join("upper/more"), vec![1; 4 * MIB as usize]).unwrap();
    storage.set_limit(&layer_id("small"), 32 * MIB).unwrap();
    fs::remove_file(small.join("upper/big")).unwrap();
    eventually("a deleted file's space comes back", &storage, || storage.usage(&layer_id("small")).unwrap() < 8 * MIB);
    fs::write(small.join("upper/again"), "fits").unwrap();

    let (_, error) = fill(&small.join("upper/big"), 128 * MIB);
    assert_eq!(errno(&error), Some(Errno::DQUOT));
    assert_eq!(storage.list_layers().unwrap(), ["other", "small"].map(layer_id));
    let full = storage.free().unwrap().0;
    storage.delete_layer(&layer_id("small")).unwrap();
    storage.delete_layer(&layer_id("small")).unwrap();
    assert!(!small.exists());
    assert_eq!(storage.usage(&layer_id("small")), None);
    eventually("a deleted layer's space comes back", &storage, || storage.free().unwrap().0 > full + 16 * MIB);
    storage.delete_layer(&layer_id("other")).unwrap();
    assert!(storage.list_layers().unwrap().is_empty());
    storage.unmount().unwrap();
}

#[test]
fn empty_files_count_too() {
    let data = DataDir::new();
    let storage = data.open(512);
    let layer = storage.create_layer(&layer_id("inodes"), 4 * MIB).unwrap();
    let mut n = 0u32;
    let error = loop {
        match File::create(layer.join(format!("upper/{n:0>200}"))) {
            Err(e) => break e,
            Ok(_) => n += 1,
        }
        assert!(n < 200_000, "no limit met");
        if n.is_multiple_of(1000) {
            rustix::fs::syncfs(File::open(&layer).unwrap()).unwrap();
        }
    };
    assert_eq!(errno(&error), Some(Errno::DQUOT), "{error}");
    fs::remove_file(layer.join(format!("upper/{:0>200}", 0))).unwrap();
}

#[test]
fn a_mounted_pool_is_found_again_and_an_unmounted_one_mounted() {
    let data = DataDir::new();
    let first = data.open(512);
    let layer = first.create_layer(&layer_id("kept"), 16 * MIB).unwrap();
    fs::write(layer.join("upper/a"), "first").unwrap();
    // As after kill -9 of the server: nothing was closed.
    let second = data.open(512);
    assert_eq!(second.root(), first.root());
    assert_eq!(second.kind(), first.kind());
    fs::write(second.root().join("uppers").join(layer_id("kept").as_str()).join("upper/b"), "second").unwrap();
    assert_eq!(fs::read_to_string(layer.join("upper/b")).unwrap(), "second");
    // A single mount, not two stacked ones.
    second.unmount().unwrap();
    assert!(!layer.exists());

    // As after a reboot, with a larger requested size.
    let third = data.open(768);
    assert_eq!(third.list_layers().unwrap(), ["kept"].map(layer_id));
    assert_eq!(fs::read_to_string(layer.join("upper/a")).unwrap(), "first");
    assert!(third.free().unwrap().1 > 700 * MIB);
    assert!(third.notes().is_empty(), "{:?}", third.notes());
    // The limit was kept with it.
    let (_, error) = fill(&layer.join("upper/big"), 64 * MIB);
    assert_eq!(errno(&error), Some(Errno::DQUOT));
    // A pool does not shrink, which is reported.
    assert!(data.open(512).notes()[0].contains("not shrink"));
    third.unmount().unwrap();
}

#[test]
fn an_image_attached_elsewhere_is_not_attached_twice() {
    let data = DataDir::new();
    let storage = data.open(512);
    let layer = storage.create_layer(&layer_id("held"), 16 * MIB).unwrap();
    let held = File::create(layer.join("upper/open")).unwrap();
    // The mount point is removed while the file system is still in use, as by a mount namespace that ended.
    unmount(storage.root(), UnmountFlags::DETACH).unwrap();
    let again = data.open(512);
    let now = fs::metadata(again.root().join("uppers").join(layer_id("held").as_str()).join("upper/open")).unwrap();
    let before = held.metadata().unwrap();
    assert_eq!((now.dev(), now.ino()), (before.dev(), before.ino()));
    drop(held);
    again.unmount().unwrap();
}

#[test]
fn servers_that_start_at_once_share_one_pool() {
    let data = DataDir::new();
    thread::scope(|scope| {
        let opened: Vec<_> = (0..4).map(|_| scope.spawn(|| data.open(512))).collect();
        for storage in opened {
            assert_eq!(storage.join().unwrap().kind(), StorageKind::BtrfsSimpleQuota);
        }
    });
    data.open(512).unmount().unwrap();
    assert!(!data.path().join("pool/uppers").exists(), "mounted more than once");
}

#[test]
fn the_hosts_view_is_closed_and_without_set_uid() {
    let data = DataDir::new();
    let storage = data.open(512);
    let mode = fs::metadata(storage.root()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    let flags = rustix::fs::statvfs(storage.root()).unwrap().f_flag;
    let wanted = rustix::fs::StatVfsMountFlags::NOSUID | rustix::fs::StatVfsMountFlags::NODEV;
    assert!(flags.contains(wanted), "{flags:?}");
    storage.unmount().unwrap();
}

#[test]
fn snapshots_and_nested_subvolumes() {
    let data = DataDir::new();
    let storage = data.open(512);
    let layer = storage.create_layer(&layer_id("one"), 64 * MIB).unwrap();
    fs::write(layer.join("upper/a"), "then").unwrap();
    let sealed = storage.snapshot(&layer_id("one"), "seal", true).unwrap();
    fs::write(layer.join("upper/a"), "now").unwrap();
    assert_eq!(fs::read_to_string(sealed.join("upper/a")).unwrap(), "then");
    let error = fs::write(sealed.join("upper/a"), "x").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
    storage.delete_snapshot("seal").unwrap();
    storage.delete_snapshot("seal").unwrap();

    let inside = File::open(layer.join("upper")).unwrap();
    btrfs::create_subvolume(inside.as_fd(), "nested").unwrap();
    fs::create_dir_all(layer.join("upper/nested/deep/deeper")).unwrap();
    fs::write(layer.join("upper/nested/deep/f"), "x").unwrap();
    drop(inside);
    storage.delete_layer(&layer_id("one")).unwrap();
    assert!(!layer.exists());
    storage.unmount().unwrap();
}

#[test]
fn writes_are_committed_when_asked_and_deleted_layers_freed_without() {
    let data = DataDir::new();
    let storage = data.open(512);
    let root = File::open(data.path().join("pool")).unwrap();
    let id: String = btrfs::file_system_id(root.as_fd()).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    let id = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-");
    let commits = || {
        let text = fs::read_to_string(format!("/sys/fs/btrfs/{id}/commit_stats")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("commits ")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    drop(root);
    // The first question learns the difference of the kernel's two numbers, which a clean file system has.
    storage.settle().unwrap();
    storage.begin_commit().wait();
    let layer = storage.create_layer(&layer_id("one"), 128 * MIB).unwrap();
    let before = commits();
    fs::write(layer.join("upper/a"), vec![1; 64 << 20]).unwrap();
    storage.begin_commit().wait();
    assert!(commits() > before, "something was written");
    // Background work of the kernel may begin another transaction.
    let quiet = (0..20).any(|_| {
        let before = commits();
        storage.begin_commit().wait();
        commits() == before
    });
    assert!(quiet, "nothing was");

    storage.settle().unwrap();
    let (full, _) = storage.free().unwrap();
    storage.delete_layer(&layer_id("one")).unwrap();
    let start = Instant::now();
    while storage.free().unwrap().0 < full + 32 * MIB {
        assert!(start.elapsed() < Duration::from_secs(20), "by itself, btrfs takes half a minute");
        thread::sleep(Duration::from_millis(20));
    }
    storage.unmount().unwrap();
}

#[test]
fn a_volume_is_limited_copied_and_removed() {
    let data = DataDir::new();
    let storage = data.open(512);
    let (one, two) = (VolumeId::random(), VolumeId::random());
    storage.create_volume(&one, 16 * MIB).unwrap();
    let path = |id: &VolumeId| storage.root().join("volumes").join(id.as_str());
    let about = fs::metadata(path(&one)).unwrap();
    assert_eq!((about.uid(), about.gid(), about.mode() & 0o7777), (1000, 1000, 0o1777));
    fs::write(path(&one).join("a"), "then").unwrap();
    storage.copy_volume(&one, &two, 16 * MIB).unwrap();
    fs::write(path(&one).join("a"), "now").unwrap();
    assert_eq!(fs::read_to_string(path(&two).join("a")).unwrap(), "then");
    let (_, error) = fill(&path(&two).join("big"), 64 * MIB);
    assert_eq!(errno(&error), Some(Errno::DQUOT));
    fs::remove_file(path(&two).join("big")).unwrap();
    storage.limit_volume(&one, 64 * MIB).unwrap();
    fs::write(path(&one).join("big"), vec![0x5a; 32 * MIB as usize]).unwrap();

    storage.write_volume_memo(&two, "two").unwrap();
    assert_eq!((storage.volume_memo(&one), storage.volume_memo(&two).as_deref()), (None, Some("two")));
    let mut ids = [one.clone(), two.clone()];
    ids.sort_unstable();
    assert_eq!(storage.list_volumes().unwrap(), ids);
    for id in [&one, &one, &two] {
        storage.delete_volume(id).unwrap();
    }
    assert!(matches!(storage.open_volume(&one), Err(StorageError::NoVolume { .. })));
    assert_eq!(fs::read_dir(storage.root().join("volumes")).unwrap().count(), 0);
    storage.unmount().unwrap();
}

#[test]
fn a_data_directory_on_a_btrfs_with_quotas_needs_no_image() {
    let data = DataDir::new();
    let outer = data.open(512);
    let storage = Storage::open(&outer.root().join("nested-data"), &pool_of(512)).unwrap();
    assert_eq!(storage.kind(), StorageKind::BtrfsSimpleQuota);
    assert!(!storage.root().join("../pool.img").exists());
    let layer = storage.create_layer(&layer_id("here"), 8 * MIB).unwrap();
    let (_, error) = fill(&layer.join("upper/big"), 64 * MIB);
    assert_eq!(errno(&error), Some(Errno::DQUOT));
    storage.delete_layer(&layer_id("here")).unwrap();
    outer.unmount().unwrap();
}

#[test]
fn plain_directories_say_so_and_are_removed_however_deep() {
    let data = DataDir::new();
    let off = StorageConfig { size_bytes: None, mode: PoolMode::Off, floor_bytes: None };
    let storage = Storage::open(data.path(), &off).unwrap();
    assert_eq!(storage.kind(), StorageKind::Plain);
    assert!(!storage.kind().disk_limit_enforced());
    assert!(storage.notes()[0].contains("not enforced"));
    let layer = storage.create_layer(&layer_id("deep"), 1).unwrap();
    let outside = data.path().join("outside");
    fs::write(&outside, "stays").unwrap();

    let mut directory = rustix::fs::open(layer.join("upper"), rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    for depth in 0..2000 {
        for side in ["d", "side"] {
            mkdirat(&directory, side, Mode::RWXU).unwrap();
        }
        if depth % 100 == 0 {
            rustix::fs::symlinkat(data.path(), &directory, "out").unwrap();
            rustix::fs::symlinkat(&outside, &directory, ".removed-1").unwrap();
        }
        directory = rustix::fs::openat(&directory, "d", rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(directory);
    storage.delete_layer(&layer_id("deep")).unwrap();
    storage.delete_layer(&layer_id("deep")).unwrap();
    assert!(!layer.exists());
    assert_eq!(fs::read_dir(storage.root().join("trash")).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "stays");
    assert!(matches!(storage.snapshot(&layer_id("deep"), "s", true), Err(StorageError::Io { .. })));
}

#[test]
fn what_is_asked_wrongly_is_refused() {
    let data = DataDir::new();
    let storage = Storage::open(data.path(), &pool_of(16)).unwrap();
    assert_eq!(storage.kind(), StorageKind::Plain, "16 MiB is no pool");
    assert!(storage.notes()[0].contains("too small"), "{:?}", storage.notes());
    for name in ["", "..", "a/b", "A", "a b", &"x".repeat(65)] {
        assert!(matches!(storage.snapshot(&layer_id("any"), name, true), Err(StorageError::BadName { .. })));
        assert!(storage.delete_snapshot(name).is_err());
    }

    // A damaged pool is never replaced.
    let damaged = DataDir::new();
    fs::write(damaged.path().join("pool.img"), vec![7; 2 * MIB as usize]).unwrap();
    let error = Storage::open(damaged.path(), &pool_of(512)).unwrap_err();
    assert!(error.to_string().contains("mount"), "{error}");
    assert!(damaged.path().join("pool.img").exists());
    assert!(!damaged.path().join("plain").exists());
}
