//! The small single-threaded process that makes sandboxes, and the server's side of it.
//!
//! Forking the server, with its threads and memory, would be slow and unsafe. The launcher is started once, early; it keeps
//! nothing of the host in its mount namespace but what every sandbox needs for its set-up (a `/proc`), so that cloning that
//! namespace is quick and a sandbox in the making can't see the host's files at all.
//!
//! Each user namespace is created by the sandbox's own root id on the host, not by the host's root. The kernel charges
//! what it counts by user (inotify instances, pending signals, bytes of message queues) to the creator of the namespace
//! too, so each sandbox has these limits to itself.
//!
//! ```text
//!  server ──Prepare + descriptors──► launcher ──clone3──► PID 1 of a sandbox ──fork──► its spawner
//!         ◄──pid + pidfd────────────                         │
//!         ◄══════════════ control socket ════════════════════╯   Ready … Begin … Executing, or the stage that failed
//! ```
//!
//! A sandbox that was prepared and not begun ends when its control socket closes. One that executes its guest outlives both.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::descriptors::{self, MAX_MESSAGE};
use crate::devices;
use crate::mounts::{leave_old_root, mount, pivot_here};
use crate::sandbox::{self, Embryo};
use crate::seccomp::Filters;

/// The ids of one sandbox: `uid_base` up to `uid_base + IDS - 1` on the host are 0 up to `IDS - 1` inside.
pub const IDS: u32 = 65_536;

/// Asks for the namespaces and first processes of a sandbox. With it go its end of the control socket, the network
/// namespace (none: the host's), a mount of the directory with the guest's program, and the guest's and the workload's
/// cgroup entrances.
#[derive(Debug, Serialize, Deserialize)]
pub struct Prepare {
    pub uid_base: u32,
    pub host_network: bool,
    /// Whether it gets `/dev/kvm`.
    pub kvm: bool,
    /// The program's name in its directory.
    pub program: String,
    pub guest_entrances: usize,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Prepared { pid: i32 },
    Failed(Failure),
}

/// A stage of the set-up that failed.
#[derive(Debug, Clone, Serialize, Deserialize, Error)]
#[error("{stage}: {}", io::Error::from_raw_os_error(*errno))]
pub struct Failure {
    /// Such as `overlay` or `user namespace`.
    pub stage: String,
    pub errno: i32,
}

impl Failure {
    pub(crate) fn of(stage: &str, error: &io::Error) -> Self {
        Self { stage: stage.to_owned(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }
}

/// Why the launcher could not do it.
#[derive(Debug, Error)]
pub enum LaunchError {
    #[error("the launcher could not be started: {0}")]
    Start(#[source] io::Error),
    #[error("the launcher is gone: {0}")]
    Gone(#[source] io::Error),
    #[error("preparing a sandbox failed at {0}")]
    Failed(Failure),
}

/// The server's side of the launcher. Its calls block for a few milliseconds: make them where that is fine.
#[derive(Debug)]
pub struct Launcher {
    socket: Mutex<OwnedFd>,
    process: Mutex<std::process::Child>,
}

/// The first process of a sandbox that was prepared.
#[derive(Debug)]
pub struct Prepared {
    /// Its number on the host.
    pub pid: i32,
    /// Readable when it, and so every process of the sandbox, has ended.
    pub pidfd: OwnedFd,
}

impl Launcher {
    /// Starts `program launcher`, which must call [`main`].
    pub fn start(program: &Path) -> Result<Self, LaunchError> {
        let (ours, theirs) = descriptors::packet_pair().map_err(LaunchError::Start)?;
        let process = Command::new(program)
            // What a sandbox's spawner, a copy of the launcher, shows inside: not where this host keeps the program.
            .arg0("arenite")
            .arg("launcher")
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(LaunchError::Start)?;
        let launcher = Self { socket: Mutex::new(ours), process: Mutex::new(process) };
        // Its own set-up answers once, so that a host that can't do it is told at the start.
        launcher.answer(&launcher.socket.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(launcher)
    }

    /// Makes the namespaces and first processes of a sandbox.
    pub fn prepare(&self, request: &Prepare, given: &[BorrowedFd<'_>]) -> Result<Prepared, LaunchError> {
        let bytes = serde_json::to_vec(request).expect("numbers are JSON");
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors::send(socket.as_fd(), &bytes, given).map_err(LaunchError::Gone)?;
        let (pid, mut got) = self.answer(&socket)?;
        match got.pop() {
            Some(pidfd) => Ok(Prepared { pid, pidfd }),
            None => Err(LaunchError::Gone(io::ErrorKind::InvalidData.into())),
        }
    }

    fn answer(&self, socket: &OwnedFd) -> Result<(i32, Vec<OwnedFd>), LaunchError> {
        let mut buffer = vec![0u8; 4096];
        let (length, got) = descriptors::receive(socket.as_fd(), &mut buffer).map_err(LaunchError::Gone)?;
        match serde_json::from_slice(&buffer[..length]) {
            Ok(Answer::Prepared { pid }) => Ok((pid, got)),
            Ok(Answer::Failed(failure)) => Err(LaunchError::Failed(failure)),
            Err(error) => Err(LaunchError::Gone(error.into())),
        }
    }

    /// Whether it still runs.
    pub fn alive(&self) -> bool {
        matches!(self.process.lock().unwrap_or_else(PoisonError::into_inner).try_wait(), Ok(None))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Closing the socket is what ends it; what is left is to wait, so that no zombie stays.
        if let Ok(socket) = self.socket.get_mut() {
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        }
        if let Ok(process) = self.process.get_mut() {
            let _ = process.wait();
        }
    }
}

/// The launcher process: serves requests that come over descriptor 0 until the server is gone.
pub fn main() -> ! {
    // It may have been executed by the number of a descriptor, which says nothing in a list of processes.
    // SAFETY: a plain system call on a NUL-terminated name.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"arenite".as_ptr()) };
    // The server's is stricter, and what sandboxes inherit is for all their users.
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
    let (filters, host_net) = match own_set_up() {
        Ok(made) => {
            if reply(&Answer::Prepared { pid: 0 }, &[]).is_err() {
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
        let sent = match prepare(&buffer[..length], given, &filters, &host_net, &socket) {
            Ok((pid, pidfd)) => reply(&Answer::Prepared { pid }, &[pidfd.as_fd()]),
            Err(failure) => reply(&Answer::Failed(failure), &[]),
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
fn own_set_up() -> Result<(Filters, OwnedFd), Failure> {
    let stage = |stage: &'static str| move |error: io::Error| Failure::of(stage, &error);
    // Children are never waited for here: the server watches them by pidfd.
    // SAFETY: setting a signal's disposition to "ignore" in a process with one thread.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let filters = Filters::compile().map_err(stage("seccomp"))?;
    keep_capabilities_of_all_ids().map_err(stage("capabilities"))?;
    let host_net: OwnedFd = fs::File::open("/proc/self/ns/net").map_err(stage("host network"))?.into();
    // SAFETY: a plain system call in a process with one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } < 0 {
        return Err(Failure::of("mount namespace", &io::Error::last_os_error()));
    }
    own_mounts().map_err(stage("launcher's mounts"))?;
    Ok((filters, host_net))
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

/// A time namespace, for its own sake: the host's would be a file in `/proc` that all sandboxes can lock and watch.
const CLONE_NEWTIME: u64 = 0x80;

/// Answers 0 in the child. Kernels that take no time namespace here (before 6.4) are asked again without it.
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

fn prepare(
    message: &[u8],
    given: Vec<OwnedFd>,
    filters: &Filters,
    host_net: &OwnedFd,
    socket: &OwnedFd,
) -> Result<(i32, OwnedFd), Failure> {
    let stage = |stage: &'static str| move |error: io::Error| Failure::of(stage, &error);
    let invalid = || Failure { stage: "request".to_owned(), errno: libc::EINVAL };
    let request: Prepare = serde_json::from_slice(message).map_err(|_| invalid())?;
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
        // End of the pipe without a byte: the launcher could not map the ids, and has said so.
        let mut byte = [0u8];
        if mapped.read_exact(&mut byte).is_err() {
            std::process::exit(1);
        }
        // The launcher's own socket must not live on in a sandbox.
        close(socket.as_raw_fd());
        close(host_net.as_raw_fd());
        let program = (programs, request.program);
        sandbox::run(Embryo { control, program, guest_entrances, work_entrances, filters, devices })
    }
    // A launcher that is not itself again would make the next sandbox in this one's network, or under its id. The server
    // starts another, and the child, whose ids are not mapped yet, ends with this process.
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

/// Has this process, and not what it forks into user namespaces, keep its capabilities when its effective id changes. Hosts
/// that forbid user namespaces to unprivileged processes ask for them.
fn keep_capabilities_of_all_ids() -> io::Result<()> {
    const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
    // SAFETY: a plain system call in a process with one thread.
    let set = unsafe { libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes a host id as the one that is charged for what this process creates.
fn set_effective_id(id: u32) -> io::Result<()> {
    // SAFETY: a plain system call in a process with one thread; -1 leaves the other two ids as they are.
    let set = unsafe { libc::syscall(libc::SYS_setresuid, -1_i64, libc::c_long::from(id), -1_i64) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_netns(netns: &OwnedFd) -> io::Result<()> {
    // SAFETY: a plain system call on an open descriptor, in a process with one thread.
    if unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
