//! A running rclone: its start with a mount, its adoption by the next server, and its end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use arenite_isolation::cgroup::Cgroups;
use arenite_model::{Resources, SandboxId, VolumeId};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::super::host::{end_processes, remove_cgroups};
use super::super::record::boot_id;
use super::super::slot::{IdRanges, kill, start_time, wait_end};
use super::client::last_message;
use super::error::of_storage;
use super::unsent;
use super::{BucketError, Buckets, DIRECTORY, Result, USER, make_private_directory};

/// Limits of each rclone.
const MEMORY_BYTES: u64 = 1 << 30;
const MEMORY_GOAL: &str = "600MiB";
const TASKS: u32 = 512;
const CPU_MILLIS: u32 = 2000;
/// Time for rclone to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Time for an answer to a question about uploads.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
const MOST_ANSWER: u64 = 16 << 20;
/// The end of its log that is read, in bytes.
const LOG_END: u64 = 16 << 10;
/// The user of Arenite's images, who owns all files of a volume.
const OWNER: u32 = 1000;
/// Names in the volume's directory.
const SOCKET: &str = "rc";
const LOG: &str = "log";
const OUTPUT: &str = "output";
/// Rclone's configuration, with the keys.
const CONFIG: &str = "rclone.conf";
/// The volume's directory for rclone: its standard input. It may not enter the directories above.
const HERE: &str = "/proc/self/fd/0";
/// The mount for rclone: its standard output. It takes only numbers above 0 for open devices.
const DEVICE: &str = "/dev/fd/1";

/// A process that serves a mount.
#[derive(Debug)]
pub(super) struct Rclone {
    pub(super) pidfd: Arc<OwnedFd>,
    /// None: a former server started it.
    child: Option<Child>,
    socket: PathBuf,
    /// When this server started or adopted it.
    pub(super) started: Instant,
    /// Its mount has answered.
    pub(super) is_ready: Arc<AtomicBool>,
}

/// What the next server has to know of it.
#[derive(Debug, Serialize, Deserialize)]
struct ProcessRecord {
    pid: i32,
    /// See [`start_time`].
    start_time: u64,
    boot: String,
}

impl Rclone {
    fn new(pidfd: OwnedFd, child: Option<Child>, volume: &Path) -> Self {
        let (started, is_ready) = (Instant::now(), Arc::default());
        Self { pidfd: Arc::new(pidfd), child, socket: volume.join(SOCKET), started, is_ready }
    }

    pub(super) fn has_ended(&self) -> bool {
        wait_end(&self.pidfd, Duration::ZERO)
    }

    /// Asks it, without this process.
    pub(super) fn questions(&self) -> Questions {
        Questions { socket: self.socket.clone() }
    }

    /// See [`Questions::uploads`].
    pub(super) fn uploads(&self) -> io::Result<u64> {
        self.questions().uploads()
    }

    fn end(mut self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        if !wait_end(&self.pidfd, END_LIMIT) {
            kill(&self.pidfd);
            wait_end(&self.pidfd, END_LIMIT);
        }
        if let Some(child) = &mut self.child {
            // It has ended, so this does not wait.
            let _ = child.wait();
        }
    }
}

/// Questions to a running process.
#[derive(Debug)]
pub(super) struct Questions {
    socket: PathBuf,
}

impl Questions {
    /// Files that are being uploaded, or wait for it.
    pub(super) fn uploads(&self) -> io::Result<u64> {
        #[derive(Deserialize)]
        struct Stats {
            #[serde(rename = "diskCache")]
            disk_cache: DiskCache,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct DiskCache {
            uploads_in_progress: u64,
            uploads_queued: u64,
        }
        let Stats { disk_cache } = serde_json::from_slice(&self.ask("vfs/stats")?)?;
        Ok(disk_cache.uploads_in_progress + disk_cache.uploads_queued)
    }

    /// Files that were not uploaded at the first attempt, and wait for the next one.
    pub(super) fn failed_uploads(&self) -> io::Result<usize> {
        #[derive(Deserialize)]
        struct Waiting {
            queue: Vec<Queued>,
        }
        #[derive(Deserialize)]
        struct Queued {
            tries: u32,
            uploading: bool,
        }
        let Waiting { queue } = serde_json::from_slice(&self.ask("vfs/queue")?)?;
        Ok(queue.iter().filter(|queued| queued.tries > 0 && !queued.uploading).count())
    }

    /// The answer to a call without arguments.
    fn ask(&self, call: &str) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        let head = "Host: rclone\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2";
        write!(stream, "POST /{call} HTTP/1.0\r\n{head}\r\n\r\n{{}}")?;
        let mut answer = Vec::new();
        stream.take(MOST_ANSWER).read_to_end(&mut answer)?;
        let at = answer.windows(4).position(|four| four == b"\r\n\r\n");
        match at {
            Some(at) if answer.starts_with(b"HTTP/1.0 200 ") => Ok(answer.split_off(at + 4)),
            _ => Err(io::Error::other("rclone refused the question")),
        }
    }
}

impl Buckets {
    /// The host's user that runs rclone: the first id of a range that no sandbox has. It stays the same over restarts.
    pub(super) fn user(&self) -> Result<u32> {
        let mut known = self.user.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(index) = *known {
            return Ok(IdRanges::base(index));
        }
        let failed = BucketError::host("keep the user of buckets");
        let index = self.ids.take().ok_or_else(|| BucketError::Host {
            what: "find a user for buckets".to_owned(),
            source: io::Error::other("all ranges of ids are in use"),
        })?;
        let directory = self.data_dir.join(DIRECTORY);
        let next = directory.join("user.new");
        make_private_directory(&directory)
            .and_then(|()| fs::write(&next, index.to_string()))
            .and_then(|()| fs::rename(&next, directory.join(USER)))
            .map_err(failed)?;
        *known = Some(index);
        Ok(IdRanges::base(index))
    }

    /// Mounts a volume that is not mounted. On failure nothing of it is left.
    pub(super) fn start(&self, id: &super::VolumeId) -> Result<Rclone> {
        let backing = self.backing(id).ok_or_else(|| BucketError::Host {
            what: format!("find the bucket of volume {id}"),
            source: io::ErrorKind::NotFound.into(),
        })?;
        let store = self.store(&backing.bucket)?;
        let client = self.client()?;
        let (point, volume) = (self.mount_point(id), self.cache(id));
        let what = || BucketError::host(format!("prepare the mount of volume {id}"));
        make_private_directory(&self.data_dir.join(DIRECTORY)).and_then(|()| make_private_directory(&point)).map_err(what())?;
        if is_mounted(&point) {
            unmount(&point).map_err(what())?;
        }
        self.end_in_cgroup(id);
        let directory = self.storage.open_volume(id).map_err(of_storage)?;
        own(&volume, client.user).map_err(what())?;
        for name in [SOCKET, LOG, CONFIG] {
            let _ = fs::remove_file(volume.join(name));
        }
        let config = OpenOptions::new().write(true).create_new(true).mode(0o600).open(volume.join(CONFIG));
        config
            .and_then(|mut file| {
                file.write_all(store.config_file().as_bytes())?;
                fchown(&file, Some(client.user), Some(client.user))
            })
            .map_err(what())?;
        // It has the messages of a crash; those of rclone are in the log, which it bounds.
        let output = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(volume.join(OUTPUT))
            .map_err(what())?;
        let limit = self.storage.volume_limit(id);
        let device = mount(&point, &backing.bucket).map_err(BucketError::host(format!("mount volume {id}")))?;

        let mut command = client.command(&store);
        command.arg("mount2").arg(store.remote(&backing.folder)).arg(DEVICE).args(options(limit));
        command.env("GOMEMLIMIT", MEMORY_GOAL).stdin(Stdio::from(directory)).stdout(Stdio::from(device)).stderr(output);
        let spawned = command.spawn();
        // It has the device, which this process must not keep: the mount would not notice the end of rclone.
        drop(command);
        let child = spawned.map_err(BucketError::host(format!("run {}", client.program.display()))).inspect_err(|_| {
            let _ = unmount(&point);
        })?;
        self.take_in(id, child).inspect_err(|_| {
            self.end_in_cgroup(id);
            let _ = unmount(&point);
        })
    }

    /// Limits a process that was started just now, and keeps its record.
    fn take_in(&self, id: &VolumeId, mut child: Child) -> Result<Rclone> {
        let what = || BucketError::host(format!("start the client of volume {id}"));
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let opened =
            pid.ok_or(io::ErrorKind::InvalidInput.into()).and_then(|pid| Ok((pid, pidfd_open(pid, PidfdFlags::empty())?)));
        let (pid, pidfd) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(what()(error));
            }
        };
        let rclone = Rclone::new(pidfd, Some(child), &self.cache(id));
        let prepared = limit(&self.cgroups, &cgroup_of(id), pid).and_then(|()| {
            let pid = pid.as_raw_nonzero().get();
            let start_time = start_time(pid)?.ok_or(io::ErrorKind::NotFound)?;
            let record = serde_json::to_vec(&ProcessRecord { pid, start_time, boot: boot_id()? })?;
            let (path, next) = (record_path(&self.data_dir, id), self.data_dir.join(DIRECTORY).join(format!("{id}.json.new")));
            fs::write(&next, record).and_then(|()| fs::rename(&next, path))
        });
        if let Err(error) = prepared {
            rclone.end();
            return Err(what()(error));
        }
        Ok(rclone)
    }

    /// Ends a process, if there is one, and its mount.
    pub(super) fn clear(&self, id: &VolumeId, process: Option<Rclone>) {
        if let Some(process) = process {
            process.end();
        }
        self.end_in_cgroup(id);
        let _ = fs::remove_file(self.cache(id).join(CONFIG));
        let point = self.mount_point(id);
        if let Err(error) = unmount(&point) {
            tracing::warn!(%id, %error, "a volume's mount could not be ended; the next start tries again");
            return;
        }
        let _ = fs::remove_dir(&point);
    }

    fn end_in_cgroup(&self, id: &VolumeId) {
        let cgroup = cgroup_of(id);
        end_processes(&self.cgroups, &cgroup);
        if let Err(error) = remove_cgroups(&self.cgroups, &cgroup) {
            tracing::warn!(%id, %error, "a cgroup of a volume's client could not be removed");
        }
    }

    /// Adopts what a former server left: processes that run, and volumes with files that wait for their upload.
    pub(in crate::namespace) fn recover(&self) {
        let listed = fs::read_dir(self.data_dir.join(DIRECTORY)).into_iter().flatten().flatten();
        let ids: Vec<VolumeId> = listed
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                name.strip_suffix(".json").unwrap_or(&name).parse().ok()
            })
            .collect();
        for id in ids {
            let found = self.find(&id);
            if found.is_none() {
                self.clear(&id, None);
            }
            if self.backing(&id).is_none() {
                // The volume is gone.
                self.clear(&id, found);
                forget(&self.data_dir, &id);
                continue;
            }
            if found.is_none() && !unsent::is_any(&self.cache(&id)) {
                forget(&self.data_dir, &id);
                continue;
            }
            let state = super::MountState { is_remounted: found.is_none(), ..super::MountState::default() };
            let mount = super::BucketMount::new(&id, state);
            *mount.process() = found;
            self.mounts().insert(id, mount);
        }
        // What has no record.
        let kept: Vec<SandboxId> = self.mounts().keys().map(cgroup_of).collect();
        for left in self.cgroups.list().unwrap_or_default().into_iter().filter(|id| !kept.contains(id)) {
            end_processes(&self.cgroups, &left);
            let _ = remove_cgroups(&self.cgroups, &left);
        }
    }

    /// The process of a record, if it runs and its mount is there.
    fn find(&self, id: &VolumeId) -> Option<Rclone> {
        let record: ProcessRecord = serde_json::from_slice(&fs::read(record_path(&self.data_dir, id)).ok()?).ok()?;
        if record.boot != boot_id().ok()? || !is_mounted(&self.mount_point(id)) {
            return None;
        }
        let pidfd = pidfd_open(Pid::from_raw(record.pid)?, PidfdFlags::empty()).ok()?;
        // Opened first, compared after: the pid can't be reused between the two.
        let is_same = start_time(record.pid).ok()? == Some(record.start_time);
        let is_ours = self.cgroups.processes(&cgroup_of(id)).contains(&record.pid);
        let found = Rclone::new(pidfd, None, &self.cache(id));
        (is_same && is_ours && !found.has_ended()).then_some(found)
    }
}

/// The options of a mount. What waits for its upload has at most `limit` bytes.
fn options(limit: Option<u64>) -> Vec<String> {
    let mut options: Vec<String> = [
        // The mount is there already, of this process.
        "--allow-non-empty",
        "--allow-other",
        "--default-permissions",
        // Sandboxes' ids are mapped as those of other volumes.
        "--allow-idmap",
        // Buckets keep neither owners nor permissions.
        "--dir-perms=0777",
        "--file-perms=0777",
        "--umask=0",
        // A closed file is in the cache, and uploaded right after. Without a pause, failed uploads would be repeated without one.
        "--vfs-cache-mode=writes",
        "--vfs-write-back=500ms",
        // What is uploaded makes room at once: a write beyond the limit fails, and does not wait.
        "--vfs-cache-max-age=1s",
        "--vfs-cache-poll-interval=1s",
        // What others change in the bucket is seen after this time.
        "--dir-cache-time=5s",
        "--attr-timeout=1s",
        "--transfers=4",
        "--buffer-size=1Mi",
        "--rc",
        "--rc-no-auth",
        "--log-file-max-size=1Mi",
        "--log-file-max-backups=1",
    ]
    .map(str::to_owned)
    .into();
    options.push(format!("--config={HERE}/{CONFIG}"));
    options.push(format!("--uid={OWNER}"));
    options.push(format!("--gid={OWNER}"));
    options.push(format!("--cache-dir={HERE}/{}", unsent::directory()));
    options.push(format!("--rc-addr=unix://{HERE}/{SOCKET}"));
    options.push(format!("--log-file={HERE}/{LOG}"));
    // Beyond this, uploaded files make room without the pause above.
    options.extend(limit.map(|limit| format!("--vfs-cache-max-size={}B", limit / 2)));
    options
}

/// Mounts FUSE at a directory, and returns the device that a process has to serve.
fn mount(point: &Path, bucket: &str) -> io::Result<OwnedFd> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let data =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=1048576", device.as_raw_fd());
    let data = std::ffi::CString::new(data).map_err(|_| io::ErrorKind::InvalidInput)?;
    rustix::mount::mount(bucket, point, "fuse.rclone", MountFlags::NOSUID | MountFlags::NODEV, data.as_c_str())?;
    Ok(device)
}

/// Unmounts all that is on a directory.
fn unmount(point: &Path) -> io::Result<()> {
    while is_mounted(point) {
        // Sandboxes and open files may still have it.
        rustix::mount::unmount(point, UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// Whether anything is mounted on a directory, also what does not answer.
pub(super) fn is_mounted(point: &Path) -> bool {
    points_below(point.parent().unwrap_or(point)).iter().any(|mounted| mounted == point)
}

/// The mount points in a directory.
fn points_below(directory: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let unescape = |text: &str| text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|text| PathBuf::from(unescape(text)));
    points.filter(|point| point.parent() == Some(directory)).collect()
}

/// Opens the top directory of a mount. Waits for its process.
pub(super) fn open_top(point: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(point, flags, Mode::empty())?)
}

/// Gives a volume's directory to a user, with its content if it was another's.
fn own(volume: &Path, user: u32) -> io::Result<()> {
    fn give(path: &Path, user: u32) -> io::Result<()> {
        lchown(path, Some(user), Some(user))?;
        if fs::symlink_metadata(path)?.is_dir() {
            for entry in fs::read_dir(path)? {
                give(&entry?.path(), user)?;
            }
        }
        Ok(())
    }
    if fs::symlink_metadata(volume)?.uid() != user {
        give(volume, user)?;
    }
    fs::set_permissions(volume, fs::Permissions::from_mode(0o700))
}

/// Moves a process into limited cgroups.
fn limit(cgroups: &Cgroups, id: &SandboxId, pid: Pid) -> io::Result<()> {
    let limits = Resources { memory_bytes: MEMORY_BYTES, cpu_millis: CPU_MILLIS, pids: TASKS, ..Resources::default() };
    cgroups.prepare().map_err(io::Error::other)?;
    let entrances = cgroups.create(id, &limits).map_err(io::Error::other)?;
    let pid = pid.as_raw_nonzero().to_string();
    entrances.work.into_iter().try_for_each(|mut entrance| entrance.write_all(pid.as_bytes()))
}

/// The cgroups of a volume's client have names like those of sandboxes.
fn cgroup_of(id: &VolumeId) -> SandboxId {
    let name = format!("s{}", &id.as_str()[1..]);
    name.parse().unwrap_or_else(|_| unreachable!("ids of volumes and of sandboxes differ in the first letter"))
}

fn record_path(data_dir: &Path, id: &VolumeId) -> PathBuf {
    data_dir.join(DIRECTORY).join(format!("{id}.json"))
}

/// Removes what the next start would complete.
pub(super) fn forget(data_dir: &Path, id: &VolumeId) {
    let removed = fs::remove_file(record_path(data_dir, id));
    if let Err(error) = removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }) {
        tracing::warn!(%id, %error, "the record of a volume's client could not be removed; the next start tries again");
    }
}

/// The last message of rclone, from its log or else its output.
pub(super) fn last_error(volume: &Path) -> Option<String> {
    let end_of = |name: &str| -> io::Result<String> {
        let flags = OFlags::NOFOLLOW.bits() as i32;
        let mut file: File = OpenOptions::new().read(true).custom_flags(flags).open(volume.join(name))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_END)))?;
        let mut text = Vec::new();
        file.take(LOG_END).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    let texts = [LOG, OUTPUT].into_iter().filter_map(|name| end_of(name).ok());
    let text = texts.into_iter().find(|text| !text.trim().is_empty())?;
    Some(last_message(&text).chars().take(400).collect())
}

/// Ends all clients of an installation and their mounts, before its files are removed: a mount must not be taken for files.
pub(in crate::namespace) fn end_everything(data_dir: &Path, cgroups: &Cgroups) -> io::Result<usize> {
    let mut ended = 0;
    for id in cgroups.list().map_err(io::Error::other)? {
        end_processes(cgroups, &id);
        remove_cgroups(cgroups, &id)?;
        ended += 1;
    }
    cgroups.close();
    for point in points_below(&data_dir.join(DIRECTORY)) {
        unmount(&point)?;
    }
    Ok(ended)
}
