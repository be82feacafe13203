//! The small single-threaded process that makes sandboxes, and the server's side of it.
//!
//! Forking the server, with its threads and memory, would be slow and unsafe. The launcher is started once, early; it keeps
//! nothing of the host in its mount namespace but what every sandbox needs for its set-up (a `/proc` and a `/dev`), so that
//! cloning that namespace is quick and a sandbox in the making can't see the host's files at all.
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
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::descriptors::{self, MAX_MESSAGE};
use crate::mounts::{leave_old_root, mount, pivot_here};
use crate::sandbox::{self, Embryo};
use crate::seccomp::Filters;

/// The ids of one sandbox: `uid_base` up to `uid_base + IDS - 1` on the host are 0 up to `IDS - 1` inside.
pub const IDS: u32 = 65_536;

/// Asks for the namespaces and first processes of a sandbox. With it go its end of the control socket, the network
/// namespace (none: the host's), and the guest's and the workload's cgroup entrances.
#[derive(Debug, Serialize, Deserialize)]
pub struct Prepare {
    pub uid_base: u32,
    pub host_network: bool,
    /// Whether it gets `/dev/kvm`.
    pub kvm: bool,
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

/// What sandboxes get as `/dev`, in the launcher's own mount namespace …
const DEVICES: &str = "/dev";
/// … and those that run machines with the host's KVM.
const DEVICES_WITH_KVM: &str = "/dev-kvm";

/// Leaves the host's mount namespace for one that holds only what sandboxes need.
fn own_set_up() -> Result<(Filters, OwnedFd), Failure> {
    let stage = |stage: &'static str| move |error: io::Error| Failure::of(stage, &error);
    // Children are never waited for here: the server watches them by pidfd.
    // SAFETY: setting a signal's disposition to "ignore" in a process with one thread.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let filters = Filters::compile().map_err(stage("seccomp"))?;
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
    devices(&format!("/tmp{DEVICES}"), &[])?;
    devices(&format!("/tmp{DEVICES_WITH_KVM}"), &[("kvm", 10, 232)])?;
    let old_root = fs::File::open("/")?;
    std::env::set_current_dir("/tmp")?;
    pivot_here()?;
    leave_old_root(old_root.as_fd())
}

/// Makes a `/dev` that sandboxes share.
fn devices(dir: &str, more: &[(&str, u32, u32)]) -> io::Result<()> {
    fs::create_dir(dir)?;
    mount("tmpfs", dir, "tmpfs", libc::MS_NOSUID | libc::MS_NOEXEC, "size=64k,mode=755")?;
    let usual = [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
    for (name, major, minor) in usual.iter().chain(more) {
        let path = format!("{dir}/{name}");
        let device = rustix::fs::makedev(*major, *minor);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::from_raw_mode(0o666),
            device,
        )?;
        // The mode above passes through the umask.
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    }
    for (target, name) in [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ] {
        symlink(target, format!("{dir}/{name}"))?;
    }
    for place in ["pts", "shm", "mqueue"] {
        fs::create_dir(format!("{dir}/{place}"))?;
    }
    Ok(())
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
    let guest_entrances: Vec<OwnedFd> = given.by_ref().take(request.guest_entrances).collect();
    let work_entrances: Vec<OwnedFd> = given.collect();
    let (mut mapped, wait_for_map) = io::pipe().map_err(stage("pipe"))?;
    let mut wait_for_map = Some(wait_for_map);

    if let Some(netns) = &netns {
        set_netns(netns).map_err(stage("network namespace"))?;
    }
    let mut pidfd: i32 = -1;
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_PIDFD;
    let args = CloneArgs {
        flags: namespaces as u64,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    // SAFETY: `args` is the kernel's structure of the size given; without CLONE_VM the child is a copy, as after fork,
    // of a process with one thread, and never returns from this function.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    let cloned = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as i32) };
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
        let devices = if request.kvm { DEVICES_WITH_KVM } else { DEVICES };
        sandbox::run(Embryo { control, guest_entrances, work_entrances, filters, devices })
    }
    if netns.is_some() {
        set_netns(host_net).map_err(stage("host network"))?;
    }
    let pid = cloned.map_err(stage("clone3"))?;
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

fn set_netns(netns: &OwnedFd) -> io::Result<()> {
    // SAFETY: a plain system call on an open descriptor, in a process with one thread.
    if unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
