//! The first process of a sandbox, from its clone to the guest's start.
//!
//! It has two halves. [`run`] does in advance what is the same for every sandbox: ids, cgroups, `/proc` and `/dev`, the
//! spawner. [`Begin`] starts what depends on the spec: the root file system, limits, filters, exec. Each failed stage is
//! reported by name over the control socket.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::descriptors::{self, MAX_MESSAGE};
use crate::launcher::Failure;
use crate::mounts::{attach, detached_from, leave_old_root, mount, pivot_here, remount_read_only};
use crate::seccomp::Filters;
use crate::{capabilities, spawner};

/// The launcher's input for a new first process.
pub(crate) struct InitArgs<'a> {
    pub(crate) control: OwnedFd,
    /// A mount of the directory with the guest's program, and the program's name in it.
    pub(crate) program: (OwnedFd, String),
    pub(crate) guest_entrances: Vec<OwnedFd>,
    pub(crate) work_entrances: Vec<OwnedFd>,
    pub(crate) filters: &'a Filters,
    /// Its `/dev`, as a mount that is not attached yet.
    pub(crate) devices: OwnedFd,
}

/// The configuration of a prepared sandbox. It travels with, in this order: the layers' mounts, lowest first; the writable
/// layer's; the descriptors to inherit; the mounts to bind.
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
    /// Arguments of the program, its name first.
    pub argv: Vec<String>,
    /// Environment variables that name the inherited descriptors, in their order.
    pub inherit: Vec<String>,
    /// Directories of the root that get a separate, empty file system. Its content is not kept. Image builds use it.
    pub scratch: Vec<String>,
    /// Where the program is mounted as a command, if anywhere.
    pub command: Option<String>,
    /// Files and directories to bind, in their order: their targets.
    pub binds: Vec<Bind>,
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
    /// The program is being executed; the socket's end follows when it runs.
    Executing,
}

/// Size of `/dev/shm` as prepared; the start sets another.
const PREPARED_SHM: u64 = 1 << 30;

/// Terminals of a sandbox: twice what the guest's shell sessions need.
const TERMINALS: u32 = 256;

/// Files and directories of `/proc` that describe the host and its other users, or reach it. Missing ones are skipped. What
/// programs need to size and monitor themselves (`meminfo`, `stat`, `loadavg`, `vmstat`, `uptime`) stays.
#[rustfmt::skip]
const MASKED: [&str; 29] = [
    "acpi", "asound", "buddyinfo", "cmdline", "consoles", "diskstats", "driver", "interrupts", "iomem", "ioports",
    "kcore", "key-users", "keys", "latency_stats", "locks", "mdstat", "modules", "pagetypeinfo", "partitions", "pressure",
    "sched_debug", "schedstat", "scsi", "softirqs", "swaps", "timer_list", "timer_stats", "vmallocinfo", "zoneinfo",
];
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

type Staged<T> = Result<T, Failure>;

/// Names the stage of an error.
trait AtStage<T> {
    fn at(self, stage: &str) -> Staged<T>;
}

impl<T> AtStage<T> for io::Result<T> {
    fn at(self, stage: &str) -> Staged<T> {
        self.map_err(|error| Failure::new(stage, &error))
    }
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Prepares, waits for [`Begin`] and becomes the program. Ends the process if the server goes away first.
pub(crate) fn run(args: InitArgs<'_>) -> ! {
    let Ok(control) = lift(&args.control) else { std::process::exit(1) };
    let control = control.as_fd();
    let report = |report: &Report| descriptors::send(control, &serde_json::to_vec(report).unwrap_or_default(), &[]);
    let outcome = prepare(&args).and_then(|staged| {
        report(&Report::Ready).at("control socket")?;
        let mut buffer = vec![0u8; MAX_MESSAGE];
        let (length, given) = descriptors::receive(control, &mut buffer).at("control socket")?;
        if length == 0 {
            std::process::exit(0);
        }
        let begin: Begin = serde_json::from_slice(&buffer[..length])
            .map_err(|_| Failure { stage: "request".to_owned(), errno: libc::EINVAL })?;
        begin_with(&begin, given, staged, &args, || report(&Report::Executing))
    });
    if let Err(failure) = outcome {
        let _ = report(&Report::Failed(failure));
    }
    std::process::exit(1)
}

/// The first half's results for the second.
struct Prepared {
    spawner: OwnedFd,
    program: OwnedFd,
    proc: OwnedFd,
    sys: OwnedFd,
    dev: OwnedFd,
    old_root: OwnedFd,
}

fn prepare(args: &InitArgs<'_>) -> Staged<Prepared> {
    become_root().at("ids")?;
    enter(&args.guest_entrances).at("guest cgroup")?;
    let spawner = fork_spawner(args)?;

    mount("tmpfs", "/stage", "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, "size=64k,mode=700").at("stage")?;
    for dir in ["root", "upper", "proc", "sys", "dev", "programs", "nothing", "program"].map(|name| format!("/stage/{name}")) {
        fs::create_dir(dir).at("stage")?;
    }
    let plain = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    attach(args.devices.as_fd(), Path::new("/stage/dev")).at("dev")?;
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
    let program = program(&args.program).at("program")?;
    // Nothing of the host's devices is visible: an empty directory that can't be written.
    mount("sys", "/stage/sys", "tmpfs", plain | libc::MS_RDONLY, "size=0,mode=555").at("sys")?;
    let terminals = format!("newinstance,ptmxmode=0666,mode=0620,gid=5,max={TERMINALS}");
    mount("devpts", "/stage/dev/pts", "devpts", libc::MS_NOSUID | libc::MS_NOEXEC, &terminals).at("devpts")?;
    let shm = format!("mode=1777,size={PREPARED_SHM}");
    mount("shm", "/stage/dev/shm", "tmpfs", plain, &shm).at("shm")?;
    let place =
        |path: &str| rustix::fs::open(path, rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty());
    Ok(Prepared {
        spawner: lift(&spawner).at("spawner")?,
        program: lift(&program).at("program")?,
        proc: place("/stage/proc").map_err(io::Error::from).at("proc")?,
        sys: place("/stage/sys").map_err(io::Error::from).at("sys")?,
        dev: place("/stage/dev").map_err(io::Error::from).at("dev")?,
        old_root: fs::File::open("/").at("root")?.into(),
    })
}

/// Opens the guest's program on this sandbox's separate overlay. On the host's file itself, which all sandboxes and the server
/// run, each of them could see the others' locks and uses. Its pages stay shared.
fn program((dir, name): &(OwnedFd, String)) -> io::Result<OwnedFd> {
    attach(dir.as_fd(), Path::new("/stage/programs"))?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    mount("program", "/stage/program", "overlay", flags, "lowerdir=/stage/programs:/stage/nothing,userxattr")?;
    let open = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NOFOLLOW;
    Ok(rustix::fs::open(format!("/stage/program/{name}"), open, rustix::fs::Mode::empty())?)
}

/// Switches to the sandbox's root: until now the process had the host's ids, which have no meaning here.
fn become_root() -> io::Result<()> {
    // SAFETY: plain system calls in a process with one thread.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        check(libc::syscall(libc::SYS_setresgid, 0, 0, 0))?;
        check(libc::syscall(libc::SYS_setresuid, 0, 0, 0))?;
        // The change of identity made /proc/self inaccessible.
        check(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0).into())?;
        libc::setsid();
        // The launcher ignores it; an ignored signal stays ignored through exec, and programs would lose their children.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
    Ok(())
}

/// Moves this process into cgroups, and makes them the root of its view of them.
fn enter(entrances: &[OwnedFd]) -> io::Result<()> {
    for entrance in entrances {
        rustix::io::write(entrance, b"0")?;
    }
    // SAFETY: a plain system call in a process with one thread.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }.into())?;
    Ok(())
}

/// The spawner's side of its start: it waits in the workload's cgroup until the root file system is ready.
fn fork_spawner(args: &InitArgs<'_>) -> Staged<OwnedFd> {
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
            report(enter(&args.work_entrances));
            let mut go = [0u8; 8];
            match descriptors::receive(theirs.as_fd(), &mut go) {
                Ok((8, _)) => {}
                _ => std::process::exit(0),
            }
            let harden = || -> io::Result<()> {
                quiet_stdio()?;
                limit(u64::from_ne_bytes(go))?;
                close_all_but(theirs.as_raw_fd())?;
                capabilities::bound()?;
                args.filters.install()?;
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

fn spawner_answer(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut errno = [0u8; 4];
    match descriptors::receive(socket, &mut errno)? {
        (4, _) if errno == [0; 4] => Ok(()),
        (4, _) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn begin_with(
    begin: &Begin,
    given: Vec<OwnedFd>,
    staged: Prepared,
    args: &InitArgs<'_>,
    executing: impl Fn() -> io::Result<()>,
) -> Staged<()> {
    let invalid = || Failure { stage: "request".to_owned(), errno: libc::EINVAL };
    if given.len() != begin.layers + 1 + begin.inherit.len() + begin.binds.len() {
        return Err(invalid());
    }
    let mut given = given.into_iter();
    let layers: Vec<OwnedFd> = given.by_ref().take(begin.layers).collect();
    let upper = given.next().ok_or_else(invalid)?;
    let inherit: Vec<OwnedFd> = given.by_ref().take(begin.inherit.len()).collect();
    let binds: Vec<OwnedFd> = given.collect();

    root(&layers, &upper, begin)?;
    std::env::set_current_dir("/stage/root").at("root")?;
    pivot_here().at("pivot_root")?;
    // From here on paths are the sandbox's: links of its image can't lead out of it.
    for dir in ["/proc", "/sys", "/dev"] {
        make_dir(dir).at("mount points")?;
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
        if bind.directory { make_dir(&bind.target) } else { fs::File::create(target).map(drop) }.at("bind")?;
        attach(mount.as_fd(), target).at("bind")?;
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
    let env = hand_on(begin, inherit, &staged.spawner, &args.work_entrances).at("descriptors")?;
    capabilities::bound().at("capabilities")?;
    args.filters.install().at("seccomp")?;
    spawner_answer(staged.spawner.as_fd()).at("spawner")?;
    executing().at("control socket")?;
    Err(Failure::new("exec", &exec(&staged.program, &begin.argv, &env)))
}

/// Mounts the root file system at `/stage/root`.
fn root(layers: &[OwnedFd], upper: &OwnedFd, begin: &Begin) -> Staged<()> {
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
    let options = format!(
        "lowerdir={},upperdir=/stage/upper/{},workdir=/stage/upper/{},userxattr,volatile",
        lower.join(":"),
        begin.upper,
        begin.work
    );
    // `volatile`: fsync in a sandbox need not wait for the host's disk. After a crash of the host the last seconds may be missing.
    mount("overlay", "/stage/root", "overlay", 0, &options).at("overlay")?;
    // An overlay with an unusable writable layer is mounted read-only without an error.
    rustix::fs::access("/stage/root", rustix::fs::Access::WRITE_OK).map_err(io::Error::from).at("overlay is read-only")
}

fn make_dir(path: &str) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Descriptors 0, 1 and 2 become the sandbox's own /dev/null.
fn quiet_stdio() -> io::Result<()> {
    let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}

/// Limits of a process that the cgroups don't have.
fn limit(open_files: u64) -> io::Result<()> {
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

/// The lowest descriptor number that stays usable while those below are moved to their final numbers.
const HIGH: i32 = 100;

fn lift(fd: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, HIGH)?)
}

/// Moves the descriptors that the program inherits to 3 and up, and returns the environment that names them. Everything else
/// closes at exec. Between this and the exec only descriptors from [`HIGH`] up may be used or dropped.
fn hand_on(
    begin: &Begin,
    inherit: Vec<OwnedFd>,
    spawner: &OwnedFd,
    work_entrances: &[OwnedFd],
) -> io::Result<BTreeMap<String, String>> {
    let lifted: Vec<OwnedFd> = inherit.iter().chain([spawner]).chain(work_entrances).map(lift).collect::<Result<_, _>>()?;
    drop(inherit);
    // SAFETY: only marks descriptors to be closed at exec.
    unsafe { check(libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC))? };
    let entrances = (0..work_entrances.len()).map(spawner::entrance_variable);
    let names = begin.inherit.iter().cloned().chain(["ARENITE_SPAWNER_FD".to_owned()]).chain(entrances);
    let mut env = BTreeMap::new();
    for (target, (fd, name)) in (3..HIGH).zip(lifted.iter().zip(names)) {
        // SAFETY: what may stand at `target` (mounts already attached, the old root) is neither used nor dropped before
        // the exec, as said above; dup2 leaves close-on-exec off at the target.
        check(unsafe { libc::dup2(fd.as_raw_fd(), target) }.into())?;
        env.insert(name, target.to_string());
    }
    Ok(env)
}

/// Becomes the program; returns only an error.
fn exec(program: &OwnedFd, argv: &[String], env: &BTreeMap<String, String>) -> io::Error {
    let text = |list: Vec<String>| list.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>();
    let (Ok(argv), Ok(env)) = (text(argv.to_vec()), text(env.iter().map(|(k, v)| format!("{k}={v}")).collect())) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>();
    // SAFETY: NULL-terminated lists of NUL-terminated strings, alive during the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            pointers(&argv).as_ptr(),
            pointers(&env).as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}
