//! The first process of a sandbox under gVisor.
//!
//! There the guest is not the first process of the namespaces, but the first one of gVisor's kernel, the sentry, which runs in
//! them. The namespaces' first process stays outside the sentry and keeps it:
//!
//! ```text
//!  server ──connects──► guest.sock ──accept──► keeper (PID 1, cgroup "guest")
//!                                                │  each connection, as a descriptor
//!                                                ▼
//!                                              sentry, with guest, spawner and commands; file server    (cgroup "work")
//! ```
//!
//! So the server reaches, freezes, kills and re-adopts the sandbox as any other. The sandbox gets no socket of the host: the
//! keeper hands it connected ones over a socket from its start. When the guest or the sentry ends, that socket closes, and the
//! keeper ends all that is left by ending itself.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::descriptors::{self, MAX_MESSAGE};
use crate::first_process::{AtStage, Staged, check};
use crate::launcher::Failure;
use crate::mounts::{attach, mount};

/// The variable with the guest's end of the keeper's socket.
pub(crate) const CONTAINER: &str = "ARENITE_CONTAINER_FD";
/// Where the sandbox's root file system is in the keeper's own root.
pub const ROOT: &str = "/rootfs";
/// The directory with the bundle, that is, its configuration.
const BUNDLE: &str = "/bundle";
const RUNSC: &str = "/bin/runsc";
/// The guest's program in the keeper's root. The configuration mounts it in the sandbox: executed by a descriptor, it would have
/// no path there, which the start of static programs needs.
pub const PROGRAM: &str = "/bin/guest";
const LOG: &str = "/run/runsc.log";
/// The number of the guest's end of the socket, in runsc and in the guest.
const SOCKET_FD: i32 = 3;
/// Time for gVisor to start and the guest to answer in it. It needs a third of a second.
const START_LIMIT: Timespec = Timespec { tv_sec: 25, tv_nsec: 0 };
/// Time until it tries to accept again.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
/// Largest part of gVisor's log in an error, in characters.
const MAX_REASON: usize = 300;
/// The file that keeps gVisor from mounting a file system in memory on an empty `/tmp`. The guest removes it.
pub const TMP_MARK: &str = ".arenite-start";

/// What runs a sandbox's program under gVisor. The last descriptor of a [`crate::Begin`] with it is a mount of runsc's file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Container {
    /// The bundle's configuration: OCI's runtime spec, as JSON.
    pub config: String,
    /// Flags of runsc, before its command.
    pub flags: Vec<String>,
}

/// What the spawner becomes instead of serving requests. Its descriptor is the guest's end of the keeper's socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) argv: Vec<String>,
}

/// The first message to the guest: the names of the descriptors that it carries.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handed {
    pub(crate) names: Vec<String>,
}

/// Prepares the keeper's root at `at`: the places for what gVisor needs. Nothing of an image has run yet.
pub(crate) fn make_root(at: &str, runsc: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    mount("keeper", at, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, "size=16m,mode=755")?;
    for dir in ["rootfs", "bundle", "bin", "run", "proc", "dev", "sys", "tmp", "volumes"] {
        fs::create_dir(format!("{at}/{dir}"))?;
    }
    for (file, tree) in [(RUNSC, runsc), (PROGRAM, program)] {
        let place = format!("{at}{file}");
        fs::File::create(&place)?;
        attach(tree, Path::new(&place))?;
    }
    // Not the masked one: gVisor mounts another for itself, which the kernel allows only where a whole one is visible. Programs
    // of the sandbox see gVisor's own.
    mount("proc", &format!("{at}/proc"), "proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, "")
}

/// Attaches the mounts of the sandbox's volumes where its configuration names them.
pub(crate) fn place_volumes(mounts: &[OwnedFd], directories: impl Iterator<Item = bool>) -> io::Result<()> {
    for (number, (tree, is_directory)) in mounts.iter().zip(directories).enumerate() {
        let place = volume_place(number);
        if is_directory {
            fs::create_dir(&place)?;
        } else {
            fs::File::create(&place)?;
        }
        attach(tree.as_fd(), Path::new(&place))?;
    }
    Ok(())
}

/// Where the mount of this number is in the keeper's root.
pub fn volume_place(number: usize) -> String {
    format!("/volumes/{number}")
}

/// Marks `/tmp` of the root file system, without following a link of the image.
pub(crate) fn mark_tmp() {
    use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
    let directory = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let Ok(root) = rustix::fs::open(ROOT, directory, Mode::empty()) else { return };
    // An image without the directory, or with a link there, gets gVisor's.
    let Ok(tmp) = openat2(&root, "tmp", directory, Mode::empty(), beneath) else { return };
    let _ = rustix::fs::mkdirat(&tmp, TMP_MARK, Mode::RWXU);
}

/// Makes the spawner start gVisor, and waits until its guest runs. Returns the keeper's end of the socket.
pub(crate) fn start(
    container: &Container,
    spawner: &OwnedFd,
    (names, given): (Vec<String>, &[BorrowedFd<'_>]),
) -> Staged<OwnedFd> {
    fs::write(format!("{BUNDLE}/config.json"), &container.config).at("gVisor's configuration")?;
    let (ours, theirs) = descriptors::packet_pair().at("gVisor's socket")?;
    let handed = serde_json::to_vec(&Handed { names }).unwrap_or_default();
    descriptors::send(ours.as_fd(), &handed, given).at("gVisor's socket")?;
    let mut argv = vec!["runsc".to_owned(), "--root=/run/runsc".to_owned(), format!("--log={LOG}")];
    argv.extend(container.flags.iter().cloned());
    let of_run = [
        "run".to_owned(),
        "--detach".to_owned(),
        format!("--bundle={BUNDLE}"),
        format!("--pass-fd={SOCKET_FD}:{SOCKET_FD}"),
        "sandbox".to_owned(),
    ];
    argv.extend(of_run);
    let run = serde_json::to_vec(&Run { argv }).unwrap_or_default();
    descriptors::send(spawner.as_fd(), &run, &[theirs.as_fd()]).at("spawner")?;
    drop(theirs);
    let mut waiting = [PollFd::new(&ours, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut waiting, Some(&START_LIMIT))).map_err(io::Error::from).at("gVisor")?;
    let mut buffer = [0u8; 16];
    let answered = ready > 0 && matches!(descriptors::receive(ours.as_fd(), &mut buffer), Ok((1.., _)));
    if answered { Ok(ours) } else { Err(failure()) }
}

/// The guest's side: takes its socket, if it runs under gVisor.
pub(crate) fn contained() -> io::Result<Option<OwnedFd>> {
    descriptors::inherited(CONTAINER)
}

/// The guest's side: receives the descriptors that the keeper sends first, and answers.
pub(crate) fn receive_handed(socket: &OwnedFd) -> io::Result<Vec<(String, OwnedFd)>> {
    let mut buffer = vec![0u8; MAX_MESSAGE];
    let (length, given) = descriptors::receive(socket.as_fd(), &mut buffer)?;
    let handed: Handed = serde_json::from_slice(&buffer[..length])?;
    if handed.names.len() != given.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    descriptors::send(socket.as_fd(), b"r", &[])?;
    Ok(handed.names.into_iter().zip(given).collect())
}

/// Environment of the program under gVisor.
pub fn environment() -> Vec<String> {
    vec![format!("{CONTAINER}={SOCKET_FD}")]
}

fn failure() -> Failure {
    let log = fs::read_to_string(LOG).unwrap_or_default();
    Failure { stage: format!("gVisor ({})", reason(&log)), errno: libc::EPROTO }
}

/// The first error of gVisor's log, which is the cause of the others. Its entries are JSON objects, or lines.
fn reason(log: &str) -> String {
    #[derive(Deserialize)]
    struct Entry {
        msg: String,
    }
    let mut entries = serde_json::Deserializer::from_str(log).into_iter::<Entry>();
    let first = match entries.next() {
        Some(Ok(entry)) => entry.msg,
        _ => log.lines().find(|line| !line.trim().is_empty()).unwrap_or("it did not answer").to_owned(),
    };
    first.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect()
}

/// Becomes runsc: the spawner's end. Returns only an error.
pub(crate) fn become_runsc(run: &Run, given: &[OwnedFd]) -> io::Error {
    let place = || -> io::Result<()> {
        let socket = given.first().ok_or(io::ErrorKind::InvalidInput)?;
        // Out of the way of its final number.
        let lifted = rustix::io::fcntl_dupfd_cloexec(socket, 100)?;
        // SAFETY: this process executes runsc and uses no descriptor below 100 any more; the second call only marks descriptors
        // to be closed at exec.
        unsafe {
            check(libc::dup2(lifted.as_raw_fd(), SOCKET_FD).into())?;
            check(libc::syscall(libc::SYS_close_range, SOCKET_FD + 1, u32::MAX, libc::CLOSE_RANGE_CLOEXEC))?;
        }
        Ok(())
    };
    if let Err(error) = place() {
        return error;
    }
    use std::os::unix::process::CommandExt;
    std::process::Command::new(RUNSC).args(&run.argv[1..]).env_clear().env("PATH", "/bin").current_dir("/").exec()
}

/// Hands each connection to the guest until it ends, and then ends all processes of the sandbox.
pub(crate) fn keep(listener: &OwnedFd, socket: &OwnedFd) -> ! {
    // The kernel reaps its children: runsc, which has ended, and later gVisor.
    // SAFETY: setting a signal's disposition to "ignore" in a process with one thread; waiting without blocking.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        while libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) > 0 {}
    }
    loop {
        let mut waiting = [PollFd::new(listener, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut waiting, None)).is_err() {
            std::process::exit(1);
        }
        // The guest sends nothing after its start, so this is its end.
        if !waiting[1].revents().is_empty() {
            std::process::exit(0);
        }
        let Ok(connection) = rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) else {
            // No descriptor is left on this host: it stays in the queue.
            std::thread::sleep(SHORTAGE_PAUSE);
            continue;
        };
        if descriptors::send(socket.as_fd(), b"c", &[connection.as_fd()]).is_err() {
            std::process::exit(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_first_error_of_the_log() {
        let two = r#"{"msg":"no such file","level":"error","time":"x"}{"msg":"creating container","level":"error"}"#;
        assert_eq!(reason(two), "no such file");
        assert_eq!(reason("\nplain words\n"), "plain words");
        assert_eq!(reason(""), "it did not answer");
        let long = format!("{{\"msg\":\"{}\"}}", "x".repeat(1000));
        assert_eq!(reason(&long).len(), MAX_REASON);
    }
}
