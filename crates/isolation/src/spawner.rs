//! A small single-threaded process that starts commands for the guest.
//!
//! ```text
//!  guest (PID 1, cgroup "guest") ──request + descriptors──► spawner (cgroup "work")
//!        ▲                       ◄──pid or failed stage───      │ clone(VFORK | VM | PARENT)
//!        └──────────────── SIGCHLD, wait ◄──────────────── command (cgroup "work")
//! ```
//!
//! It is a separate process because a command must start in the workload's cgroup, since moving one there costs milliseconds on
//! cgroup v1. It must also start without copying the guest's memory or running code between fork and exec in a process with
//! threads. `CLONE_PARENT` makes the guest the command's parent, so that the guest reaps it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::descriptors::{self, MAX_MESSAGE};

/// One command to start. Its descriptors 0, 1 and 2 are sent with it, in this order. A fourth is the program itself, for one
/// without a path in the sandbox; `argv` then only has its name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// The program, looked up in `PATH` of `env` when it has no slash, and its arguments.
    pub argv: Vec<String>,
    /// The whole environment, as `NAME=value`.
    pub env: Vec<String>,
    pub cwd: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Make descriptor 0, a terminal, the controlling terminal of the new session.
    pub controlling_tty: bool,
}

/// The child's stage when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Stage {
    Clone = 1,
    Descriptors = 2,
    Terminal = 3,
    Identity = 4,
    Directory = 5,
    Exec = 6,
}

impl Stage {
    fn from_number(n: i32) -> Self {
        match n {
            2 => Self::Descriptors,
            3 => Self::Terminal,
            4 => Self::Identity,
            5 => Self::Directory,
            6 => Self::Exec,
            _ => Self::Clone,
        }
    }
}

/// Why a command was not started.
#[derive(Debug, Error)]
pub enum SpawnError {
    #[error("the command, its arguments and environment take {bytes} bytes; the most is {MAX_MESSAGE}")]
    TooLong { bytes: usize },
    #[error("the command holds a NUL byte")]
    Nul,
    #[error("could not start {program:?} in {cwd:?}: {stage:?}: {source}")]
    Failed { program: String, cwd: String, stage: Stage, source: io::Error },
    #[error("the process that starts commands was killed or stopped, and a new one is being started; try again")]
    Gone(#[source] io::Error),
}

const REPLY_BYTES: usize = 12;
/// Bytes of the stack that a child has until its exec.
const STACK: usize = 64 << 10;

/// Encodes a request for the socket.
pub fn encode(request: &Request) -> Result<Vec<u8>, SpawnError> {
    if request.argv.iter().chain(&request.env).any(|s| s.contains('\0')) || request.cwd.contains('\0') {
        return Err(SpawnError::Nul);
    }
    let bytes = serde_json::to_vec(request).expect("a request of strings and numbers is JSON");
    if bytes.len() > MAX_MESSAGE { Err(SpawnError::TooLong { bytes: bytes.len() }) } else { Ok(bytes) }
}

/// Parses a reply: the pid of the started command, or where and why it failed.
pub fn decode_reply(reply: &[u8], request: &Request) -> Result<i32, SpawnError> {
    let Ok(bytes) = <[u8; REPLY_BYTES]>::try_from(reply) else {
        return Err(SpawnError::Gone(io::ErrorKind::UnexpectedEof.into()));
    };
    let number = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    match number(0) {
        0 => Ok(number(8)),
        stage => Err(SpawnError::Failed {
            program: request.argv.first().cloned().unwrap_or_default(),
            cwd: request.cwd.clone(),
            stage: Stage::from_number(stage),
            source: io::Error::from_raw_os_error(number(4)),
        }),
    }
}

/// Forks a spawner off this process and returns the socket to it. For guests that the launcher did not start.
///
/// Call it before the process has a second thread.
pub fn fork_off() -> io::Result<OwnedFd> {
    let (ours, theirs) = descriptors::packet_pair()?;
    // SAFETY: the caller has one thread only, so the child's copy of memory is consistent; it never returns from `serve`.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(ours);
            serve(&theirs)
        }
        _ => Ok(ours),
    }
}

/// The variable with a first process's descriptor of the workload's cgroup of this number, from 0.
pub(crate) fn entrance_variable(number: usize) -> String {
    format!("ARENITE_WORK_{number}_FD")
}

/// Starts another spawner after the first one was killed, and returns the socket to it. It is this program, started as
/// `PROGRAM spawner` and moved into the cgroups of `work_entrances`; see [`main`].
///
/// Safe in a process with threads. Blocks for some milliseconds for each cgroup of version 1.
pub fn restart(work_entrances: &[OwnedFd]) -> io::Result<OwnedFd> {
    let (ours, theirs) = descriptors::packet_pair()?;
    let null: OwnedFd = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into();
    let request = Request {
        argv: vec!["/proc/self/exe".to_owned(), "spawner".to_owned()],
        env: Vec::new(),
        cwd: "/".to_owned(),
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        groups: Vec::new(),
        controlling_tty: false,
    };
    let mut stack = vec![0u8; STACK];
    // Until its exec the child shares this memory, and with it this program's signal handlers: none may run there.
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets live during the calls, and are filled by them before anything reads them.
    let (stage, errno, pid) = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let started = start(&request, &[theirs, null.try_clone()?, null], &mut stack, 0);
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        started
    };
    if stage != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    // It starts nothing before the first request, which comes only after this.
    for entrance in work_entrances {
        rustix::io::write(entrance, pid.to_string().as_bytes())?;
    }
    Ok(ours)
}

/// The main function of `PROGRAM spawner`, started by [`restart`]: serves requests on descriptor 0.
pub fn main() -> ! {
    match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(socket) => serve(&socket),
        Err(_) => std::process::exit(1),
    }
}

/// Serves requests until the other side hangs up, then ends the process.
pub fn serve(socket: &OwnedFd) -> ! {
    // The guest may get ^C on a terminal in development; its spawner must not die of it.
    // SAFETY: setting a signal's disposition to "ignore" in a process with one thread.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    let mut buffer = vec![0u8; MAX_MESSAGE];
    let mut stack = vec![0u8; STACK];
    loop {
        // A kill that arrives while this process waits must not cost a request that comes later: the kernel would deliver that
        // to a process that is about to die. A process killed in `poll` has not read the request, which the guest detects.
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], None);
        let (length, given) = match descriptors::receive(socket.as_fd(), &mut buffer) {
            Ok((0, _)) | Err(_) => std::process::exit(0),
            Ok(got) => got,
        };
        // While this process was stopped, the guest may have replaced it.
        if hung_up(socket) {
            std::process::exit(0);
        }
        let (stage, errno, pid) = match serde_json::from_slice::<Request>(&buffer[..length]) {
            Ok(request) if matches!(given.len(), 3 | 4) => start(&request, &given, &mut stack, libc::CLONE_PARENT),
            _ => (Stage::Descriptors as i32, libc::EINVAL, 0),
        };
        drop(given);
        let mut reply = [0u8; REPLY_BYTES];
        for (slot, n) in reply.chunks_exact_mut(4).zip([stage, errno, pid]) {
            slot.copy_from_slice(&n.to_ne_bytes());
        }
        if descriptors::send(socket.as_fd(), &reply, &[]).is_err() {
            std::process::exit(0);
        }
    }
}

fn hung_up(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Everything the child needs, laid out before the clone: the child shares our memory and must not allocate.
struct Prepared<'a> {
    programs: Vec<CString>,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    cwd: CString,
    groups: &'a [u32],
    uid: u32,
    gid: u32,
    controlling_tty: bool,
    stdio: [c_int; 3],
    /// Executed instead of `programs`; -1 is none.
    program: c_int,
    failed_stage: c_int,
    failed_errno: c_int,
}

/// Starts a command; `parent` is 0 or `CLONE_PARENT`. Returns the stage that failed (0: none), its errno, and the pid.
fn start(request: &Request, given: &[OwnedFd], stack: &mut [u8], parent: c_int) -> (i32, i32, i32) {
    let c_strings = |list: &[String]| list.iter().map(|s| CString::new(s.as_str())).collect::<Result<Vec<_>, _>>();
    let (Ok(argv), Ok(env), Ok(cwd)) = (c_strings(&request.argv), c_strings(&request.env), CString::new(request.cwd.as_str()))
    else {
        return (Stage::Exec as i32, libc::EINVAL, 0);
    };
    let Some(program) = request.argv.first() else {
        return (Stage::Exec as i32, libc::ENOENT, 0);
    };
    let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect();
    let mut prepared = Prepared {
        programs: candidates(program, &request.env),
        argv: pointers(&argv),
        env: pointers(&env),
        cwd,
        groups: &request.groups,
        uid: request.uid,
        gid: request.gid,
        controlling_tty: request.controlling_tty,
        stdio: [given[0].as_raw_fd(), given[1].as_raw_fd(), given[2].as_raw_fd()],
        program: given.get(3).map_or(-1, AsRawFd::as_raw_fd),
        failed_stage: 0,
        failed_errno: 0,
    };
    let top = stack.as_mut_ptr_range().end;
    // SAFETY: the stack is ours, lives until the clone returns (CLONE_VFORK: after exec or exit) and is aligned below;
    // `child` touches only `prepared`, allocates nothing and makes system calls.
    let pid = unsafe {
        libc::clone(
            child,
            top.map_addr(|a| a & !15).cast::<c_void>(),
            libc::CLONE_VM | libc::CLONE_VFORK | parent | libc::SIGCHLD,
            ptr::from_mut(&mut prepared).cast::<c_void>(),
        )
    };
    if pid < 0 {
        return (Stage::Clone as i32, io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN), 0);
    }
    // SAFETY: the child, which shares this memory, wrote these before it ended; a plain read could be optimised away.
    let (stage, errno) = unsafe { (ptr::read_volatile(&prepared.failed_stage), ptr::read_volatile(&prepared.failed_errno)) };
    (stage, errno, pid)
}

/// The paths to try for a program, in order.
fn candidates(program: &str, env: &[String]) -> Vec<CString> {
    let text = if program.contains('/') {
        vec![program.to_owned()]
    } else {
        let path = env.iter().find_map(|v| v.strip_prefix("PATH=")).unwrap_or("/usr/local/bin:/usr/bin:/bin");
        path.split(':').map(|dir| format!("{}/{program}", if dir.is_empty() { "." } else { dir })).collect()
    };
    text.into_iter().filter_map(|p| CString::new(p).ok()).collect()
}

/// Runs in the child between clone and exec: system calls only, no allocation, no return.
extern "C" fn child(argument: *mut c_void) -> c_int {
    // SAFETY: `start` passes its own `Prepared`, which outlives this child's use of it.
    let prepared = unsafe { &mut *argument.cast::<Prepared<'_>>() };
    let stage = run_child(prepared);
    // SAFETY: errno of this thread; the shared memory is only read by the parent after this process is gone.
    unsafe {
        ptr::write_volatile(&mut prepared.failed_errno, *libc::__errno_location());
        ptr::write_volatile(&mut prepared.failed_stage, stage as c_int);
        libc::_exit(127)
    }
}

/// Returns the stage that failed, with errno set; does not return when the command was started.
fn run_child(p: &Prepared<'_>) -> Stage {
    // SAFETY: each call is a plain system call on numbers and on memory that `Prepared` owns. The identity calls go to the
    // kernel directly, since libc's wrappers would act on every thread of the memory that we share.
    unsafe {
        // Lift the descriptors out of the way first, so that one does not overwrite another that is still needed.
        let mut program = p.program;
        if program >= 0 {
            program = libc::fcntl(program, libc::F_DUPFD_CLOEXEC, 3);
            if program < 0 {
                return Stage::Descriptors;
            }
        }
        let mut lifted = [0; 3];
        for (slot, fd) in lifted.iter_mut().zip(p.stdio) {
            *slot = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3);
            if *slot < 0 {
                return Stage::Descriptors;
            }
        }
        for (target, fd) in (0..).zip(lifted) {
            if libc::dup2(fd, target) < 0 {
                return Stage::Descriptors;
            }
        }
        libc::setsid();
        if p.controlling_tty && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return Stage::Terminal;
        }
        // A command that uses too much memory should die before the spawner or another shell does. Best effort: /proc may be
        // absent in tests.
        let adj = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if adj >= 0 {
            libc::write(adj, c"300".as_ptr().cast(), 3);
            libc::close(adj);
        }
        let unprivileged = libc::geteuid() != 0;
        if !unprivileged
            && (libc::syscall(libc::SYS_setgroups, p.groups.len(), p.groups.as_ptr()) < 0
                || libc::syscall(libc::SYS_setresgid, p.gid, p.gid, p.gid) < 0
                || libc::syscall(libc::SYS_setresuid, p.uid, p.uid, p.uid) < 0)
        {
            return Stage::Identity;
        }
        if libc::chdir(p.cwd.as_ptr()) < 0 {
            return Stage::Directory;
        }
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, ptr::null_mut());
        for signal in [libc::SIGINT, libc::SIGPIPE, libc::SIGHUP, libc::SIGTERM] {
            // CLONE_VM without CLONE_SIGHAND: the child's dispositions are its own.
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::umask(0o022);
        // Only 0, 1 and 2 are passed to the command.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        if program >= 0 {
            libc::syscall(libc::SYS_execveat, program, c"".as_ptr(), p.argv.as_ptr(), p.env.as_ptr(), libc::AT_EMPTY_PATH);
            return Stage::Exec;
        }
        let mut worst = libc::ENOENT;
        for program in &p.programs {
            libc::execve(program.as_ptr(), p.argv.as_ptr(), p.env.as_ptr());
            let errno = *libc::__errno_location();
            if !matches!(errno, libc::ENOENT | libc::ENOTDIR) {
                worst = errno;
            }
            if !matches!(errno, libc::ENOENT | libc::ENOTDIR | libc::EACCES) {
                break;
            }
        }
        *libc::__errno_location() = worst;
        Stage::Exec
    }
}

/// Sends a request; the reply comes later, in the order of the requests.
pub fn send_request(socket: BorrowedFd<'_>, encoded: &[u8], stdio: [BorrowedFd<'_>; 3]) -> Result<(), SpawnError> {
    descriptors::send(socket, encoded, &stdio).map_err(SpawnError::Gone)
}
