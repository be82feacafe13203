//! The small single-threaded process that creates sandboxes, and the server's side of it.
//!
//! Forking the server, with its threads and memory, would be slow and unsafe. The launcher is started once, early. Its mount
//! namespace has nothing of the host except what every sandbox needs for its setup (a `/proc`), so cloning that namespace is
//! quick and a sandbox that is being created can't see the host's files at all.
//!
//! Each user namespace is created by the sandbox's own root id on the host, not by the host's root. The kernel also charges
//! per-user counts (inotify instances, pending signals, bytes of message queues) to the creator of the namespace, so each
//! sandbox has separate limits.
//!
//! ```text
//!  server ──Prepare + descriptors──► launcher ──clone3──► PID 1 of a sandbox ──exec, fork──► its spawner
//!         ◄──pid + pidfd────────────                         │
//!         ◄══════════════ control socket ════════════════════╯   Ready … Begin … Running, or the stage that failed
//! ```
//!
//! A prepared sandbox that was not started ends when its control socket closes. A running one outlives both.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cgroup;
use crate::descriptors::{self, MAX_MESSAGE};
use crate::devices;
use crate::mounts::{leave_old_root, mount, pivot_here};
use crate::sandbox::{self, InitArgs};

/// The ids of one sandbox: `uid_base` up to `uid_base + IDS - 1` on the host are 0 up to `IDS - 1` inside.
pub const IDS: u32 = 65_536;

/// Time for the launcher to answer a request. It needs a few milliseconds.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Time for a killed launcher to end. Only one that is stuck in the kernel takes longer, and it is not awaited.
const END_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Answers, and does nothing else.
    Ping,
    Prepare(Prepare),
}

/// Requests the namespaces and first processes of a sandbox. Its descriptors are that process's end of the control socket, the
/// network namespace (none: the host's), a mount of the directory with the guest's program, and the guest's and the workload's
/// cgroup entrances.
#[derive(Debug, Serialize, Deserialize)]
pub struct Prepare {
    pub uid_base: u32,
    pub host_network: bool,
    /// Whether it gets `/dev/kvm`.
    pub kvm: bool,
    /// The program's name in its directory.
    pub program: String,
    /// The program's arguments, its name first.
    pub argv: Vec<String>,
    pub guest_entrances: usize,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The answer to a ping, and sent once after the launcher's own setup.
    Ready,
    Prepared {
        pid: i32,
    },
    Failed(Failure),
}

/// A failed stage of the setup.
#[derive(Debug, Clone, Serialize, Deserialize, Error)]
#[error("{stage}: {}", io::Error::from_raw_os_error(*errno))]
pub struct Failure {
    /// Such as `overlay` or `user namespace`.
    pub stage: String,
    pub errno: i32,
}

impl Failure {
    pub(crate) fn new(stage: &str, error: &io::Error) -> Self {
        Self { stage: stage.to_owned(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }
}

/// Why a request to the launcher failed.
#[derive(Debug, Error)]
pub enum LaunchError {
    #[error("the launcher could not be started: {0}")]
    Start(#[source] io::Error),
    #[error("the launcher ended: {0}")]
    Gone(#[source] io::Error),
    #[error("the launcher did not answer within {} s, and was killed", ANSWER_LIMIT.as_secs())]
    Hung,
    #[error("the launcher's answer could not be read: {0}")]
    Answer(#[source] io::Error),
    #[error("preparing a sandbox failed at {0}")]
    Failed(Failure),
}

impl LaunchError {
    /// Whether another launcher may succeed.
    pub fn needs_another(&self) -> bool {
        matches!(self, Self::Gone(_) | Self::Hung)
    }
}

/// The server's side of the launcher. Its calls block for a few milliseconds, and for at most [`ANSWER_LIMIT`]: call them where
/// that is fine. A launcher that does not answer within the limit is killed.
#[derive(Debug)]
pub struct Launcher {
    socket: Mutex<OwnedFd>,
    process: Mutex<std::process::Child>,
    pidfd: OwnedFd,
    ended: AtomicBool,
    /// The time since when a request waits for its answer.
    asked: Mutex<Option<Instant>>,
}

/// The first process of a prepared sandbox.
#[derive(Debug)]
pub struct Prepared {
    /// Its pid on the host.
    pub pid: i32,
    /// Readable when it, and thus every process of the sandbox, has ended.
    pub pidfd: OwnedFd,
}

impl Launcher {
    /// Starts `program launcher`, which must call [`main`].
    pub fn start(program: &Path) -> Result<Self, LaunchError> {
        let (ours, theirs) = descriptors::packet_pair().map_err(LaunchError::Start)?;
        for side in [rustix::net::sockopt::Timeout::Recv, rustix::net::sockopt::Timeout::Send] {
            rustix::net::sockopt::set_socket_timeout(&ours, side, Some(ANSWER_LIMIT))
                .map_err(|error| LaunchError::Start(error.into()))?;
        }
        let mut process = Command::new(program)
            // The name that a sandbox's spawner, a copy of the launcher, shows inside: not the path of the program on this host.
            .arg0("arenite")
            .arg("launcher")
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(LaunchError::Start)?;
        let pidfd = pidfd_open(Pid::from_child(&process), PidfdFlags::empty()).map_err(|error| {
            // Nothing could end it later.
            let _ = process.kill().and_then(|()| process.wait());
            LaunchError::Start(error.into())
        })?;
        let launcher = Self {
            socket: Mutex::new(ours),
            process: Mutex::new(process),
            pidfd,
            ended: AtomicBool::new(false),
            asked: Mutex::new(None),
        };
        // The launcher's set-up answers once, so that a host that can't do it is reported at start.
        let answer = launcher.answer(&lock(&launcher.socket))?;
        match answer {
            (Answer::Failed(failure), _) => Err(LaunchError::Failed(failure)),
            _ => Ok(launcher),
        }
    }

    /// Creates the namespaces and first processes of a sandbox. After an error that [needs another](LaunchError::needs_another)
    /// launcher, half of a sandbox may exist: it ends when its end of the control socket is closed.
    pub fn prepare(&self, request: Prepare, given: &[BorrowedFd<'_>]) -> Result<Prepared, LaunchError> {
        match self.ask(&lock(&self.socket), &Request::Prepare(request), given)? {
            (Answer::Prepared { pid }, mut got) => match got.pop() {
                Some(pidfd) => Ok(Prepared { pid, pidfd }),
                None => Err(LaunchError::Answer(io::ErrorKind::InvalidData.into())),
            },
            (Answer::Failed(failure), _) => Err(LaunchError::Failed(failure)),
            (Answer::Ready, _) => Err(LaunchError::Answer(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Checks that it answers. A busy launcher isn't pinged: its answer to the current request is awaited with the same limit.
    pub fn ping(&self) -> Result<(), LaunchError> {
        match self.socket.try_lock() {
            Ok(socket) => self.ask(&socket, &Request::Ping, &[]).map(drop),
            Err(TryLockError::Poisoned(socket)) => self.ask(&socket.into_inner(), &Request::Ping, &[]).map(drop),
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }

    fn ask(&self, socket: &OwnedFd, request: &Request, given: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), LaunchError> {
        let bytes = serde_json::to_vec(request).expect("numbers are JSON");
        *lock(&self.asked) = Some(Instant::now());
        let answer = match descriptors::send(socket.as_fd(), &bytes, given) {
            Ok(()) => self.answer(socket),
            Err(error) => Err(self.give_up(error)),
        };
        *lock(&self.asked) = None;
        answer
    }

    fn answer(&self, socket: &OwnedFd) -> Result<(Answer, Vec<OwnedFd>), LaunchError> {
        let mut buffer = vec![0u8; 4096];
        match descriptors::receive(socket.as_fd(), &mut buffer) {
            Ok((0, _)) => Err(self.give_up(io::ErrorKind::UnexpectedEof.into())),
            Ok((length, got)) => {
                let answer = serde_json::from_slice(&buffer[..length]).map_err(|error| LaunchError::Answer(error.into()))?;
                Ok((answer, got))
            }
            // A descriptor did not arrive, since this process is at its limit of them. The launcher itself is fine.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => Err(LaunchError::Answer(error)),
            Err(error) => Err(self.give_up(error)),
        }
    }

    fn give_up(&self, error: io::Error) -> LaunchError {
        self.end();
        if error.kind() == io::ErrorKind::WouldBlock { LaunchError::Hung } else { LaunchError::Gone(error) }
    }

    /// Kills it, stopped or not, and reaps it. Waiting requests fail at once. The first process of an incomplete sandbox ends
    /// with it or with its control socket.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        // ESRCH means that there is nothing to do.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let limit = rustix::time::Timespec::try_from(END_LIMIT).expect("a second fits");
        let mut waiting = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let _ = rustix::io::retry_on_intr(|| rustix::event::poll(&mut waiting, Some(&limit)));
        let _ = lock(&self.process).try_wait();
    }

    /// Whether it still runs.
    pub fn alive(&self) -> bool {
        !self.ended.load(Ordering::Relaxed) && matches!(lock(&self.process).try_wait(), Ok(None))
    }

    /// How long a request has waited for its answer; zero if none waits.
    pub fn silent_for(&self) -> Duration {
        lock(&self.asked).map_or(Duration::ZERO, |asked| asked.elapsed())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.end();
    }
}

/// The launcher process: serves requests on descriptor 0 until the server is gone.
pub fn main() -> ! {
    // It may have been executed through a descriptor's number, which says nothing in a list of processes.
    // SAFETY: a plain system call on a NUL-terminated name.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"arenite".as_ptr()) };
    // The server's umask is stricter, and what sandboxes inherit is for all their users.
    // SAFETY: a plain system call.
    unsafe { libc::umask(0o022) };
    let socket = match move_stdin_away() {
        Ok(socket) => socket,
        Err(_) => std::process::exit(1),
    };
    let reply = |answer: &Answer, given: &[BorrowedFd<'_>]| {
        let bytes = serde_json::to_vec(answer).unwrap_or_default();
        descriptors::send(socket.as_fd(), &bytes, given)
    };
    cgroup::leave_other_hierarchies();
    let host_net = match own_set_up() {
        Ok(made) => {
            if reply(&Answer::Ready, &[]).is_err() {
                std::process::exit(1);
            }
            made
        }
        Err(failure) => {
            let _ = reply(&Answer::Failed(failure), &[]);
            std::process::exit(1);
        }
    };
    let mut buffer = vec![0u8; MAX_MESSAGE];
    loop {
        let (length, given) = match descriptors::receive(socket.as_fd(), &mut buffer) {
            Ok((0, _)) | Err(_) => std::process::exit(0),
            Ok(got) => got,
        };
        let sent = match serde_json::from_slice(&buffer[..length]) {
            Ok(Request::Ping) => reply(&Answer::Ready, &[]),
            Ok(Request::Prepare(request)) => match prepare(request, given, &host_net, &socket) {
                Ok((pid, pidfd)) => reply(&Answer::Prepared { pid }, &[pidfd.as_fd()]),
                Err(failure) => reply(&Answer::Failed(failure), &[]),
            },
            Err(_) => reply(&Answer::Failed(invalid()), &[]),
        };
        if sent.is_err() {
            std::process::exit(0);
        }
    }
}

fn move_stdin_away() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 10)?;
    let null = fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(socket)
}

/// Leaves the host's mount namespace for one that holds only what sandboxes need.
fn own_set_up() -> Result<OwnedFd, Failure> {
    let stage = |stage: &'static str| move |error: io::Error| Failure::new(stage, &error);
    // Children are never waited for here: the server watches them by pidfd.
    // SAFETY: setting a signal's disposition to "ignore" in a process with one thread.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    keep_capabilities_of_all_ids().map_err(stage("capabilities"))?;
    let host_net: OwnedFd = fs::File::open("/proc/self/ns/net").map_err(stage("host network"))?.into();
    // SAFETY: a plain system call in a process with one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } < 0 {
        return Err(Failure::new("mount namespace", &io::Error::last_os_error()));
    }
    own_mounts().map_err(stage("launcher's mounts"))?;
    Ok(host_net)
}

fn own_mounts() -> io::Result<()> {
    mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE, "")?;
    mount("tmpfs", "/tmp", "tmpfs", libc::MS_NODEV, "size=256k,mode=755")?;
    for dir in ["/tmp/proc", "/tmp/stage"] {
        fs::create_dir(dir)?;
    }
    mount("proc", "/tmp/proc", "proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, "")?;
    let old_root = fs::File::open("/")?;
    std::env::set_current_dir("/tmp")?;
    pivot_here()?;
    leave_old_root(old_root.as_fd())
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A time namespace: the host's would be a file in `/proc` that all sandboxes can lock and watch.
const CLONE_NEWTIME: u64 = 0x80;

/// Returns 0 in the child. Kernels that reject a time namespace here (before 6.4) are called again without it.
fn clone3(args: CloneArgs) -> io::Result<i32> {
    let call = |args: &CloneArgs| {
        // SAFETY: `args` is the kernel's structure of the size given; without CLONE_VM the child is a copy, as after fork,
        // of a process with one thread, and never returns from `prepare`.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, args, size_of::<CloneArgs>()) };
        if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as i32) }
    };
    match call(&args) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            call(&CloneArgs { flags: args.flags & !CLONE_NEWTIME, ..args })
        }
        other => other,
    }
}

fn invalid() -> Failure {
    Failure { stage: "request".to_owned(), errno: libc::EINVAL }
}

fn prepare(request: Prepare, given: Vec<OwnedFd>, host_net: &OwnedFd, socket: &OwnedFd) -> Result<(i32, OwnedFd), Failure> {
    let stage = |stage: &'static str| move |error: io::Error| Failure::new(stage, &error);
    let mut given = given.into_iter();
    let control = given.next().ok_or_else(invalid)?;
    let netns = if request.host_network { None } else { Some(given.next().ok_or_else(invalid)?) };
    let programs = given.next().ok_or_else(invalid)?;
    let guest_entrances: Vec<OwnedFd> = given.by_ref().take(request.guest_entrances).collect();
    let work_entrances: Vec<OwnedFd> = given.collect();
    let (mut mapped, wait_for_map) = io::pipe().map_err(stage("pipe"))?;
    let mut wait_for_map = Some(wait_for_map);
    let devices = devices::mounted(request.kvm).map_err(stage("dev"))?;

    if let Some(netns) = &netns {
        set_netns(netns).map_err(stage("network namespace"))?;
    }
    let owned = set_effective_id(request.uid_base).map_err(stage("owner"));
    let mut pidfd: i32 = -1;
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_PIDFD;
    let args = CloneArgs {
        flags: namespaces as u64 | CLONE_NEWTIME,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    let cloned = owned.and_then(|()| clone3(args).map_err(stage("clone3")));
    if let Ok(0) = cloned {
        drop(wait_for_map.take());
        // End of the pipe without a byte: the launcher could not map the ids, and has reported it.
        let mut byte = [0u8];
        if mapped.read_exact(&mut byte).is_err() {
            std::process::exit(1);
        }
        // The launcher's own socket must not stay open in a sandbox.
        close(socket.as_raw_fd());
        close(host_net.as_raw_fd());
        let program = (programs, request.program);
        sandbox::run(&InitArgs { control, program, argv: request.argv, guest_entrances, work_entrances, devices })
    }
    // A launcher that keeps a changed id or namespace would create the next sandbox in this one's network, or under its id. The
    // server starts another. The child has no mapped ids yet and ends with this process.
    if set_effective_id(0).is_err() || (netns.is_some() && set_netns(host_net).is_err()) {
        std::process::exit(1);
    }
    let pid = cloned?;
    // SAFETY: clone3 succeeded with CLONE_PIDFD, so this is a new descriptor that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let map = format!("0 {} {IDS}", request.uid_base);
    for file in ["uid_map", "gid_map"] {
        // On failure the child reads the end of the pipe, and ends.
        fs::write(format!("/proc/{pid}/{file}"), &map).map_err(stage("id map"))?;
    }
    wait_for_map.as_mut().expect("taken in the child only").write_all(&[1]).map_err(stage("first process"))?;
    Ok((pid, pidfd))
}

fn close(fd: i32) {
    // SAFETY: the descriptor is never used again: `sandbox::run` does not return, and its process is a copy.
    unsafe { libc::close(fd) };
}

/// Makes this process, and not its children in user namespaces, keep its capabilities when its effective id changes. Hosts that
/// forbid user namespaces to unprivileged processes require them.
fn keep_capabilities_of_all_ids() -> io::Result<()> {
    const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
    // SAFETY: a plain system call in a process with one thread.
    let set = unsafe { libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the host id that is charged for what this process creates.
fn set_effective_id(id: u32) -> io::Result<()> {
    // SAFETY: a plain system call in a process with one thread; -1 leaves the other two ids as they are.
    let set = unsafe { libc::syscall(libc::SYS_setresuid, -1_i64, libc::c_long::from(id), -1_i64) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_netns(netns: &OwnedFd) -> io::Result<()> {
    // SAFETY: a plain system call on an open descriptor, in a process with one thread.
    if unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
