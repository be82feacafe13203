//! The first process of a sandbox, from the start of the guest's program to the sandbox's start.
//!
//! The launcher executes the program in advance, in namespaces and cgroups of the sandbox and without an image. It then goes
//! through these steps:
//!
//! ```text
//!  prepare   fork the spawner, mount /proc, /dev and /sys, compile the filters    in advance
//!  Ready     wait for Begin                                                       in advance
//!  begin     mount the layers, pivot_root, leave the old root, limits,
//!            drop capabilities, install the filters, close what is left over      at create
//!  Running   return to the program
//! ```
//!
//! Until `begin` returns, the process has one thread and no code of an image has run: the program is static, and nothing
//! before that looks up a user, a host name or a locale. Each failed stage is reported by name over the control socket.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use arenite_model::protocol::{CONFIG, CONNECTIONS, KEEPER, LISTENER};
use serde::{Deserialize, Serialize};

use crate::descriptors::{self, MAX_MESSAGE};
use crate::keeper::{self, Container, Kept, Named};
use crate::launcher::Failure;
use crate::mounts::{attach, detached_from, leave_old_root, mount, pivot_here, remount_read_only};
use crate::seccomp::Filters;
use crate::{capabilities, spawner};

/// Environment variables with the descriptors that the launcher leaves to the program.
pub(crate) const CONTROL: &str = "ARENITE_CONTROL_FD";
pub(crate) const DEVICES: &str = "ARENITE_DEVICES_FD";
pub(crate) const PROGRAM: &str = "ARENITE_PROGRAM_FD";

/// The configuration of a prepared sandbox. It travels with, in this order: the layers' mounts, lowest first; the writable
/// layer's; the descriptors for the program; the mounts to bind.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begin {
    pub layers: usize,
    /// The overlay's upper and work directories, in the writable layer.
    pub upper: String,
    pub work: String,
    pub hostname: String,
    /// Size of `/dev/shm`, in bytes.
    pub shm_bytes: u64,
    /// Maximum number of open descriptors of a process.
    pub open_files: u64,
    /// The names of the descriptors for the program, in their order.
    pub given: Vec<String>,
    /// Directories of the root that get a separate, empty file system. Its content is not kept. Image builds use it.
    pub scratch: Vec<String>,
    /// Where the program is mounted as a command, if anywhere.
    pub command: Option<String>,
    /// Files and directories to bind, in their order: their targets.
    pub binds: Vec<Bind>,
    /// Directories that then get a separate, empty file system, with its size in bytes.
    pub tmpfs: Vec<(String, u64)>,
    /// Runs the program under gVisor. Needs the descriptor named `listener` of [`Begin::given`], which the keeper serves, and a
    /// mount of runsc's file after all other descriptors. The keeper also serves the one named `keeper`: see [`keeper::Saving`].
    pub container: Option<Container>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bind {
    pub target: String,
    pub directory: bool,
}

/// A report to the server from a sandbox that is being created.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Report {
    /// Prepared: it waits for [`Begin`].
    Ready,
    Failed(Failure),
    /// The sandbox is set up; the program continues.
    Running,
}

/// The descriptors of a started sandbox.
#[derive(Debug)]
pub struct Given {
    /// Those that the server sent, by name.
    pub named: BTreeMap<String, OwnedFd>,
    /// The socket of the process that starts commands.
    pub spawner: OwnedFd,
    /// The workload's cgroups, for replacements of that process.
    pub work_entrances: Vec<OwnedFd>,
}

/// The first process of a sandbox that waits for its start.
#[derive(Debug)]
pub struct FirstProcess(Origin);

#[derive(Debug)]
enum Origin {
    /// In the sandbox's namespaces, started by the launcher.
    Namespaces { control: OwnedFd, staged: Box<Prepared> },
    /// In gVisor's kernel, started by the [`keeper`].
    Container { socket: OwnedFd },
}

/// What is prepared.
#[derive(Debug)]
struct Prepared {
    spawner: OwnedFd,
    work_entrances: Vec<OwnedFd>,
    program: OwnedFd,
    proc: OwnedFd,
    sys: OwnedFd,
    dev: OwnedFd,
    old_root: OwnedFd,
    filters: Filters,
}

/// Size of `/dev/shm` as prepared; the start sets another.
const PREPARED_SHM: u64 = 1 << 30;

/// Terminals of a sandbox: twice what the guest's shell sessions need.
const TERMINALS: u32 = 256;

/// Files and directories of `/proc` that describe the host and its other users, or reach it. Missing ones are skipped. What
/// programs need to size and monitor themselves (`meminfo`, `stat`, `loadavg`, `vmstat`, `uptime`) stays.
#[rustfmt::skip]
pub(crate) const MASKED: [&str; 29] = [
    "acpi", "asound", "buddyinfo", "cmdline", "consoles", "diskstats", "driver", "interrupts", "iomem", "ioports",
    "kcore", "key-users", "keys", "latency_stats", "locks", "mdstat", "modules", "pagetypeinfo", "partitions", "pressure",
    "sched_debug", "schedstat", "scsi", "softirqs", "swaps", "timer_list", "timer_stats", "vmallocinfo", "zoneinfo",
];
pub(crate) const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

pub(crate) type Staged<T> = Result<T, Failure>;

/// Names the stage of an error.
pub(crate) trait AtStage<T> {
    fn at(self, stage: &str) -> Staged<T>;
}

impl<T> AtStage<T> for io::Result<T> {
    fn at(self, stage: &str) -> Staged<T> {
        self.map_err(|error| Failure::new(stage, &error))
    }
}

pub(crate) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn report(control: &OwnedFd, report: &Report) -> io::Result<()> {
    descriptors::send(control.as_fd(), &serde_json::to_vec(report).unwrap_or_default(), &[])
}

/// The value, or a report of the failure and the end of the process.
fn or_end<T>(control: &OwnedFd, outcome: Staged<T>) -> T {
    outcome.unwrap_or_else(|failure| {
        let _ = report(control, &Report::Failed(failure));
        std::process::exit(1)
    })
}

impl FirstProcess {
    /// Prepares the sandbox. None if the launcher did not start this process.
    ///
    /// Call it first in a process with one thread. A failure is reported to the server and ends the process.
    ///
    /// # Errors
    /// The variable with the control socket is invalid.
    pub fn prepare() -> io::Result<Option<Self>> {
        if let Some(socket) = keeper::contained()? {
            return Ok(Some(Self(Origin::Container { socket })));
        }
        let Some(control) = descriptors::inherited(CONTROL)? else { return Ok(None) };
        let staged = Box::new(or_end(&control, prepare()));
        Ok(Some(Self(Origin::Namespaces { control, staged })))
    }

    /// Reports that it is ready, waits for [`Begin`] and starts the sandbox. A failure is reported to the server and ends the
    /// process, and so does the end of the server. Under gVisor, it does not return in the keeper, and the program continues in
    /// gVisor's kernel.
    ///
    /// The process must still have one thread.
    pub fn begin(self) -> Given {
        let (control, staged) = match self.0 {
            Origin::Namespaces { control, staged } => (control, *staged),
            // A failure ends the guest, which the keeper reports.
            Origin::Container { socket } => return begin_contained(socket).unwrap_or_else(|_| std::process::exit(1)),
        };
        or_end(&control, report(&control, &Report::Ready).at("control socket"));
        let (begin, given) = or_end(&control, received(&control));
        if let Some(container) = &begin.container {
            let kept = or_end(&control, begin_container(&begin, container, given, staged));
            or_end(&control, report(&control, &Report::Running).at("control socket"));
            drop(control);
            keeper::keep(&kept, &container.flags);
        }
        let given = or_end(&control, begin_with(&begin, given, staged));
        or_end(&control, report(&control, &Report::Running).at("control socket"));
        given
    }
}

fn received(control: &OwnedFd) -> Staged<(Begin, Vec<OwnedFd>)> {
    let mut buffer = vec![0u8; MAX_MESSAGE];
    let (length, given) = descriptors::receive(control.as_fd(), &mut buffer).at("control socket")?;
    if length == 0 {
        std::process::exit(0);
    }
    Ok((serde_json::from_slice(&buffer[..length]).map_err(|_| invalid())?, given))
}

fn invalid() -> Failure {
    Failure { stage: "request".to_owned(), errno: libc::EINVAL }
}

fn prepare() -> Staged<Prepared> {
    // Executed through a descriptor, it would be listed under the name of its file in the data directory.
    // SAFETY: a plain system call on a NUL-terminated name.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"arenite".as_ptr()) };
    let inherited = |name: &str| descriptors::inherited(name)?.ok_or_else(|| io::ErrorKind::InvalidInput.into());
    let (devices, program) = (inherited(DEVICES).at("dev")?, inherited(PROGRAM).at("program")?);
    let work_entrances: Vec<OwnedFd> = (0..)
        .map_while(|number| descriptors::inherited(&spawner::entrance_variable(number)).transpose())
        .collect::<Result<_, _>>()
        .at("work cgroup")?;
    let filters = Filters::compile().at("seccomp")?;
    // Early, while this process is small: the spawner stays a copy of what it is now.
    let spawner = fork_spawner(&work_entrances, &filters)?;

    for dir in ["root", "upper", "proc", "sys", "dev"].map(|name| format!("/stage/{name}")) {
        fs::create_dir(dir).at("stage")?;
    }
    let plain = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    attach(devices.as_fd(), Path::new("/stage/dev")).at("dev")?;
    mount("proc", "/stage/proc", "proc", plain, "").at("proc")?;
    for name in READ_ONLY {
        let path = format!("/stage/proc/{name}");
        if Path::new(&path).exists() {
            mount(&path, &path, "", libc::MS_BIND, "").and_then(|()| remount_read_only(&path, plain)).at("read-only proc")?;
        }
    }
    for name in MASKED {
        let path = format!("/stage/proc/{name}");
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() => mount("tmpfs", &path, "tmpfs", plain | libc::MS_RDONLY, "size=0").at("masked proc")?,
            Ok(_) => mount("/stage/dev/null", &path, "", libc::MS_BIND, "").at("masked proc")?,
            Err(_) => {}
        }
    }
    // Nothing of the host's devices is visible: an empty directory that can't be written.
    mount("sys", "/stage/sys", "tmpfs", plain | libc::MS_RDONLY, "size=0,mode=555").at("sys")?;
    let terminals = format!("newinstance,ptmxmode=0666,mode=0620,gid=5,max={TERMINALS}");
    mount("devpts", "/stage/dev/pts", "devpts", libc::MS_NOSUID | libc::MS_NOEXEC, &terminals).at("devpts")?;
    let shm = format!("mode=1777,size={PREPARED_SHM}");
    mount("shm", "/stage/dev/shm", "tmpfs", plain, &shm).at("shm")?;
    let open = |path: &str| {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(io::Error::from)
    };
    Ok(Prepared {
        spawner,
        work_entrances,
        program,
        proc: open("/stage/proc").at("proc")?,
        sys: open("/stage/sys").at("sys")?,
        dev: open("/stage/dev").at("dev")?,
        old_root: fs::File::open("/").at("root")?.into(),
        filters,
    })
}

/// Moves this process into cgroups, and makes them the root of its view of them.
pub(crate) fn enter(entrances: &[OwnedFd]) -> io::Result<()> {
    for entrance in entrances {
        rustix::io::write(entrance, b"0")?;
    }
    // SAFETY: a plain system call in a process with one thread.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }.into())?;
    Ok(())
}

/// The spawner's side of its start: it waits in the workload's cgroup until the root file system is ready.
fn fork_spawner(work_entrances: &[OwnedFd], filters: &Filters) -> Staged<OwnedFd> {
    let (ours, theirs) = descriptors::packet_pair().at("spawner")?;
    // SAFETY: this process has one thread, so the child's copy of memory is consistent; it never returns from here.
    match check(unsafe { libc::fork() }.into()).at("spawner")? {
        0 => {
            drop(ours);
            let report = |outcome: io::Result<()>| {
                let errno = outcome.err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO));
                if descriptors::send(theirs.as_fd(), &errno.to_ne_bytes(), &[]).is_err() || errno != 0 {
                    std::process::exit(1);
                }
            };
            report(enter(work_entrances));
            let mut message = vec![0u8; MAX_MESSAGE];
            let go = match descriptors::receive(theirs.as_fd(), &mut message) {
                Ok((8, _)) => [0, 1, 2, 3, 4, 5, 6, 7].map(|at| message[at]),
                Ok((length @ 9.., given)) => run_gvisor(&message[..length], &given),
                _ => std::process::exit(0),
            };
            let harden = || -> io::Result<()> {
                quiet_stdio()?;
                limit(u64::from_ne_bytes(go))?;
                close_all_but(theirs.as_raw_fd())?;
                capabilities::bound()?;
                filters.install()?;
                capabilities::reduce()
            };
            report(harden());
            spawner::serve(&theirs)
        }
        _ => {
            drop(theirs);
            spawner_answer(ours.as_fd()).at("work cgroup")?;
            Ok(ours)
        }
    }
}

/// Becomes runsc, which drops its rights and installs its filters itself.
fn run_gvisor(message: &[u8], given: &[OwnedFd]) -> ! {
    if let Ok(run) = serde_json::from_slice(message)
        && quiet_stdio().is_ok()
    {
        keeper::become_runsc(&run, given);
    }
    std::process::exit(1)
}

fn spawner_answer(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut errno = [0u8; 4];
    match descriptors::receive(socket, &mut errno)? {
        (4, _) if errno == [0; 4] => Ok(()),
        (4, _) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn begin_with(begin: &Begin, given: Vec<OwnedFd>, staged: Prepared) -> Staged<Given> {
    if given.len() != begin.layers + 1 + begin.given.len() + begin.binds.len() {
        return Err(invalid());
    }
    let mut given = given.into_iter();
    let layers: Vec<OwnedFd> = given.by_ref().take(begin.layers).collect();
    let upper = given.next().ok_or_else(invalid)?;
    let named = begin.given.iter().cloned().zip(given.by_ref()).collect();
    let binds: Vec<OwnedFd> = given.collect();

    root(&layers, &upper, begin, "/stage/root")?;
    std::env::set_current_dir("/stage/root").at("root")?;
    pivot_here().at("pivot_root")?;
    // From here on paths are the sandbox's: links of its image can't lead out of it.
    for dir in ["/proc", "/sys", "/dev"] {
        make_mount_point(dir).at("mount points")?;
    }
    attach(staged.proc.as_fd(), Path::new("/proc")).at("proc")?;
    attach(staged.sys.as_fd(), Path::new("/sys")).at("sys")?;
    attach(staged.dev.as_fd(), Path::new("/dev")).at("dev")?;
    for dir in &begin.scratch {
        mount("scratch", dir, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, "mode=755,size=64m").at("scratch")?;
    }
    if let Some(command) = &begin.command {
        let tree = detached_from(staged.program.as_fd()).at("command")?;
        attach(tree.as_fd(), Path::new(command)).at("command")?;
    }
    leave_old_root(staged.old_root.as_fd()).at("old root")?;
    // Only now: `/..` in a link of the image leads to whatever is stacked on the root.
    for (bind, mount) in begin.binds.iter().zip(&binds) {
        let target = Path::new(&bind.target);
        fs::create_dir_all(target.parent().unwrap_or(target)).at("bind")?;
        // Opening a file of the image for writing would copy it.
        if bind.directory {
            make_dir(&bind.target).at("bind")?;
        } else if !target.exists() {
            fs::File::create(target).at("bind")?;
        }
        attach(mount.as_fd(), target).at("bind")?;
    }
    for (dir, bytes) in &begin.tmpfs {
        fs::create_dir_all(dir).at("tmpfs")?;
        mount("tmpfs", dir, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, &format!("mode=1777,size={bytes}")).at("tmpfs")?;
    }
    if begin.shm_bytes != PREPARED_SHM {
        let flags = libc::MS_REMOUNT | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        mount("shm", "/dev/shm", "tmpfs", flags, &format!("size={}", begin.shm_bytes)).at("shm")?;
    }

    // SAFETY: a system call on memory that lives during it.
    check(unsafe { libc::sethostname(begin.hostname.as_ptr().cast(), begin.hostname.len()) }.into()).at("hostname")?;
    quiet_stdio().at("stdio")?;
    limit(begin.open_files).at("limits")?;
    // SAFETY: a plain system call: joins a new anonymous session keyring, leaving the host's.
    check(unsafe { libc::syscall(libc::SYS_keyctl, 1, std::ptr::null::<libc::c_char>()) }).at("keyring")?;
    // The spawner hardens itself in the meantime.
    descriptors::send(staged.spawner.as_fd(), &begin.open_files.to_ne_bytes(), &[]).at("spawner")?;
    capabilities::bound().at("capabilities")?;
    staged.filters.install().at("seccomp")?;
    capabilities::reduce().at("capabilities")?;
    spawner_answer(staged.spawner.as_fd()).at("spawner")?;
    Ok(Given { named, spawner: staged.spawner, work_entrances: staged.work_entrances })
}

/// Starts gVisor in these namespaces, and reduces this process to its keeper.
fn begin_container(begin: &Begin, container: &Container, given: Vec<OwnedFd>, staged: Prepared) -> Staged<Kept> {
    let images = usize::from(container.restore);
    if given.len() != begin.layers + 2 + begin.given.len() + begin.binds.len() + images {
        return Err(invalid());
    }
    let mut given = given.into_iter();
    let layers: Vec<OwnedFd> = given.by_ref().take(begin.layers).collect();
    let upper = given.next().ok_or_else(invalid)?;
    let mut named: BTreeMap<String, OwnedFd> = begin.given.iter().cloned().zip(given.by_ref()).collect();
    let listener = named.remove(LISTENER).ok_or_else(invalid)?;
    let saves = named.remove(KEEPER);
    let config = named.remove(CONFIG);
    let binds: Vec<OwnedFd> = given.by_ref().take(begin.binds.len()).collect();
    let runsc = given.next().ok_or_else(invalid)?;
    let image = given.next();

    fs::create_dir("/stage/keeper").at("keeper's root")?;
    let program = detached_from(staged.program.as_fd()).at("program")?;
    keeper::make_root("/stage/keeper", runsc.as_fd(), program.as_fd()).at("keeper's root")?;
    root(&layers, &upper, begin, &format!("/stage/keeper{}", keeper::ROOT))?;
    attach(staged.dev.as_fd(), Path::new("/stage/keeper/dev")).at("dev")?;
    std::env::set_current_dir("/stage/keeper").at("root")?;
    pivot_here().at("pivot_root")?;
    leave_old_root(staged.old_root.as_fd()).at("old root")?;
    keeper::place_volumes(&binds, begin.binds.iter().map(|bind| bind.directory)).at("bind")?;
    match &image {
        Some(image) => keeper::place_image(image).at("image of processes")?,
        // It would be a change of the disk that the image does not know.
        None => keeper::mark_tmp(),
    }
    // SAFETY: a system call on memory that lives during it.
    check(unsafe { libc::sethostname(begin.hostname.as_ptr().cast(), begin.hostname.len()) }.into()).at("hostname")?;
    quiet_stdio().at("stdio")?;
    limit(begin.open_files).at("limits")?;
    // SAFETY: a plain system call: joins a new anonymous session keyring, leaving the host's.
    check(unsafe { libc::syscall(libc::SYS_keyctl, 1, std::ptr::null::<libc::c_char>()) }).at("keyring")?;
    let mut for_guest: Named = named.into_iter().collect();
    // A restored guest learns it in another way, and another time.
    let once = config.filter(|_| !container.restore).map(|config| (CONFIG.to_owned(), config));
    let count = for_guest.len();
    for_guest.extend(once);
    let socket = keeper::start(container, &staged.spawner, &for_guest)?;
    for_guest.truncate(count);
    capabilities::bound().at("capabilities")?;
    staged.filters.install().at("seccomp")?;
    capabilities::reduce().at("capabilities")?;
    Ok(Kept { listener, saves, socket, for_guest })
}

/// The start of the guest in gVisor's kernel, where its rights are already those of the configuration.
fn begin_contained(socket: OwnedFd) -> io::Result<Given> {
    // First: what the guest has of the host can't be saved, and a copy in that process would stay.
    let spawner = spawner::fork_off()?;
    let mut named: BTreeMap<String, OwnedFd> = keeper::receive_handed(&socket)?.into_iter().collect();
    named.insert(CONNECTIONS.to_owned(), socket);
    let _ = fs::remove_dir(format!("/tmp/{}", keeper::TMP_MARK));
    Ok(Given { named, spawner, work_entrances: Vec::new() })
}

/// Mounts the root file system at `target`.
fn root(layers: &[OwnedFd], upper: &OwnedFd, begin: &Begin, target: &str) -> Staged<()> {
    let mut lower = Vec::with_capacity(layers.len());
    for (number, layer) in layers.iter().enumerate() {
        let target = format!("/stage/{number}");
        fs::create_dir(&target).at("layer")?;
        attach(layer.as_fd(), Path::new(&target)).at("layer")?;
        lower.push(target);
    }
    attach(upper.as_fd(), Path::new("/stage/upper")).at("writable layer")?;
    // The options list the topmost layer first.
    lower.reverse();
    if begin.container.is_some() {
        lower = vec![image_alone(&lower).at("image")?];
    }
    let options = format!(
        "lowerdir={},upperdir=/stage/upper/{},workdir=/stage/upper/{},userxattr,volatile",
        lower.join(":"),
        begin.upper,
        begin.work
    );
    // `volatile`: fsync in a sandbox need not wait for the host's disk. After a crash of the host the last seconds may be missing.
    mount("overlay", target, "overlay", 0, &options).at("overlay")?;
    // An overlay with an unusable writable layer is mounted read-only without an error.
    rustix::fs::access(target, rustix::fs::Access::WRITE_OK).map_err(io::Error::from).at("overlay is read-only")
}

/// Mounts the layers as a separate file system, and returns its path.
///
/// gVisor takes two files with the same device and inode number for one. An overlay reports the numbers of the file systems
/// below it, as if they differed. Those of a btrfs subvolume, which the writable layer is, are also those of files elsewhere.
/// Files of two file systems have different devices.
fn image_alone(lower: &[String]) -> io::Result<String> {
    let (image, nothing) = ("/stage/image", "/stage/nothing-more");
    fs::create_dir(image)?;
    fs::create_dir(nothing)?;
    // An overlay without a writable layer has at least two others.
    mount("overlay", image, "overlay", libc::MS_RDONLY, &format!("lowerdir={}:{nothing},userxattr", lower.join(":")))?;
    Ok(image.to_owned())
}

/// Makes a directory of the root. An image's file or link there is replaced: nothing can be mounted on it.
fn make_mount_point(path: &str) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs::create_dir(path)
}

fn make_dir(path: &str) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Descriptors 0, 1 and 2 become the sandbox's own /dev/null.
pub(crate) fn quiet_stdio() -> io::Result<()> {
    let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}

/// Limits of a process that the cgroups don't have.
pub(crate) fn limit(open_files: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(open_files);
    setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: Some(hard) })?;
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}

fn close_all_but(keep: i32) -> io::Result<()> {
    let keep = keep as libc::c_uint;
    // SAFETY: closes descriptors that nothing in this process uses any more: it goes on with `keep` and 0, 1, 2 alone.
    unsafe {
        if keep > 3 {
            check(libc::syscall(libc::SYS_close_range, 3, keep - 1, 0))?;
        }
        check(libc::syscall(libc::SYS_close_range, keep + 1, u32::MAX, 0))?;
    }
    Ok(())
}
