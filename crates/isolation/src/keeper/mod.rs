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

mod runsc;
mod saves;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::descriptors;
use crate::first_process::{AtStage, Staged, check};
use crate::launcher::Failure;
use crate::mounts::{attach, detach, mount};

pub use saves::{SaveError, Saving};

/// The variable that tells the guest that its standard input is its end of the keeper's socket.
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
/// Where an image of processes is while they are restored.
const IMAGE: &str = "/image";
/// Time for gVisor to start and the guest to answer in it. It needs a third of a second.
const START_LIMIT: Duration = Duration::from_secs(25);
/// Time until it tries to accept again.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
/// Messages to the guest: with a connection of the host; and before a save, to close all that is the host's. [`Handed`] is one, too.
const CONNECTION: &[u8] = b"c";
const SEVER: &[u8] = b"s";
/// Its answers.
const RUNS: &[u8] = b"r";
const SEVERED: &[u8] = b"s";
/// Largest message to the guest, in bytes.
const MAX_TOLD: usize = 4 << 10;
/// The file that keeps gVisor from mounting a file system in memory on an empty `/tmp`. The guest removes it.
pub const TMP_MARK: &str = ".arenite-start";

/// What runs a sandbox's program under gVisor. The last descriptor of a [`crate::Begin`] with it is a mount of runsc's file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Container {
    /// The bundle's configuration: OCI's runtime spec, as JSON.
    pub config: String,
    /// Flags of runsc, before its command.
    pub flags: Vec<String>,
    /// Restores saved processes instead of starting the program. A mount of their image's directory follows runsc's file.
    pub restore: bool,
}

/// What the spawner becomes instead of serving requests. Its descriptor is the guest's end of the keeper's socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) argv: Vec<String>,
}

/// The first message to the guest, and to a restored one: the names of the descriptors that it carries.
#[derive(Debug, Serialize, Deserialize)]
struct Handed {
    names: Vec<String>,
}

/// Descriptors of the host for a guest, by name.
pub(crate) type Named = Vec<(String, OwnedFd)>;

/// Prepares the keeper's root at `at`: the places for what gVisor needs. Nothing of an image has run yet.
pub(crate) fn make_root(at: &str, runsc: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    mount("keeper", at, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, "size=16m,mode=755")?;
    for dir in ["rootfs", "bundle", "bin", "run", "proc", "dev", "sys", "tmp", "volumes", "image"] {
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

/// Attaches the image of processes to restore.
pub(crate) fn place_image(image: &OwnedFd) -> io::Result<()> {
    attach(image.as_fd(), Path::new(IMAGE))
}

/// Makes the spawner start gVisor, or restore processes in it, and waits until its guest runs. Returns the keeper's end of the
/// socket.
pub(crate) fn start(container: &Container, spawner: &OwnedFd, for_guest: &Named) -> Staged<OwnedFd> {
    fs::write(format!("{BUNDLE}/config.json"), &container.config).at("gVisor's configuration")?;
    let (ours, theirs) = descriptors::packet_pair().at("gVisor's socket")?;
    hand(&ours, for_guest).at("gVisor's socket")?;
    let mut argv = vec!["runsc".to_owned()];
    argv.extend(runsc::general(LOG));
    argv.extend(container.flags.iter().cloned());
    argv.push(if container.restore { "restore" } else { "run" }.to_owned());
    argv.extend(["--detach".to_owned(), format!("--bundle={BUNDLE}")]);
    argv.extend(container.restore.then(|| format!("--image-path={IMAGE}")));
    argv.push(runsc::NAME.to_owned());
    let run = serde_json::to_vec(&Run { argv }).unwrap_or_default();
    descriptors::send(spawner.as_fd(), &run, &[theirs.as_fd()]).at("spawner")?;
    drop(theirs);
    if !answers(&ours, START_LIMIT, RUNS).at("gVisor")? {
        return Err(failure());
    }
    if container.restore {
        detach(IMAGE).at("image of processes")?;
    }
    Ok(ours)
}

/// Sends the guest its descriptors. It answers with [`RUNS`].
fn hand(guest: &OwnedFd, named: &Named) -> io::Result<()> {
    let handed = Handed { names: named.iter().map(|(name, _)| name.clone()).collect() };
    let given: Vec<BorrowedFd<'_>> = named.iter().map(|(_, fd)| fd.as_fd()).collect();
    descriptors::send(guest.as_fd(), &serde_json::to_vec(&handed)?, &given)
}

/// Waits for an answer of the guest, and ignores late ones to other messages. False: it ended, or did not answer in time.
fn answers(guest: &OwnedFd, limit: Duration, wanted: &[u8]) -> io::Result<bool> {
    let until = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
        let mut waiting = [PollFd::new(guest, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut waiting, Some(&left)))? == 0 {
            return Ok(false);
        }
        match next_answer(guest) {
            Some(answer) if answer == wanted => return Ok(true),
            Some(_) => {}
            None => return Ok(false),
        }
    }
}

/// An answer of the guest. None: it ended, or sent what is none.
fn next_answer(guest: &OwnedFd) -> Option<Vec<u8>> {
    let mut answer = [0; 16];
    match descriptors::receive(guest.as_fd(), &mut answer) {
        Ok((length @ 1.., _)) => Some(answer[..length].to_vec()),
        _ => None,
    }
}

/// The guest's side: takes its socket, if it runs under gVisor. It is its standard input, since those descriptors are the only ones
/// of the host that a restore replaces by others.
pub(crate) fn contained() -> io::Result<Option<OwnedFd>> {
    if std::env::var_os(CONTAINER).is_none() {
        return Ok(None);
    }
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(&fs::File::open("/dev/null")?)?;
    Ok(Some(socket))
}

/// The guest's side: receives the descriptors that the keeper sends first, and answers.
pub(crate) fn receive_handed(socket: &OwnedFd) -> io::Result<Named> {
    match next_message(socket.as_fd())? {
        KeeperMessage::Handed(named) => {
            answer_handed(socket.as_fd())?;
            Ok(named)
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// What the keeper tells the guest.
#[derive(Debug)]
pub enum KeeperMessage {
    /// A connection of the host.
    Connection(OwnedFd),
    /// To close everything that is the host's, and to call [`answer_severed`] then: the processes are about to be saved.
    Sever,
    /// Descriptors by name, instead of those of before. To be answered with [`answer_handed`].
    Handed(Vec<(String, OwnedFd)>),
    /// Nobody calls any more.
    End,
}

/// The guest's side: the next message, if there is one.
pub fn next_message(socket: BorrowedFd<'_>) -> io::Result<KeeperMessage> {
    let mut buffer = [0; MAX_TOLD];
    let (length, mut given) = descriptors::receive(socket, &mut buffer)?;
    match &buffer[..length] {
        [] => Ok(KeeperMessage::End),
        SEVER => Ok(KeeperMessage::Sever),
        CONNECTION => given.pop().map(KeeperMessage::Connection).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        message => {
            let handed: Handed = serde_json::from_slice(message)?;
            if handed.names.len() != given.len() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Ok(KeeperMessage::Handed(handed.names.into_iter().zip(given).collect()))
        }
    }
}

/// The guest's side: says that it has nothing of the host.
pub fn answer_severed(socket: BorrowedFd<'_>) -> io::Result<()> {
    descriptors::send(socket, SEVERED, &[])
}

/// The guest's side: says that it has its descriptors, and runs.
pub fn answer_handed(socket: BorrowedFd<'_>) -> io::Result<()> {
    descriptors::send(socket, RUNS, &[])
}

/// Environment of the program under gVisor.
pub fn environment() -> Vec<String> {
    vec![format!("{CONTAINER}=0")]
}

fn failure() -> Failure {
    let log = fs::read_to_string(LOG).unwrap_or_default();
    Failure { stage: format!("gVisor ({})", runsc::reason(&log)), errno: libc::EPROTO }
}

/// Becomes runsc: the spawner's end. Returns only an error.
pub(crate) fn become_runsc(run: &Run, given: &[OwnedFd]) -> io::Error {
    let place = || -> io::Result<()> {
        rustix::stdio::dup2_stdin(given.first().ok_or(io::ErrorKind::InvalidInput)?)?;
        // SAFETY: only marks descriptors to be closed at exec.
        unsafe { check(libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC))? };
        Ok(())
    };
    if let Err(error) = place() {
        return error;
    }
    use std::os::unix::process::CommandExt;
    std::process::Command::new(RUNSC).args(&run.argv[1..]).env_clear().env("PATH", "/bin").current_dir("/").exec()
}

/// What the keeper keeps.
pub(crate) struct Kept {
    /// The listener of the server's calls.
    pub(crate) listener: OwnedFd,
    /// That of its requests to save the processes.
    pub(crate) saves: Option<OwnedFd>,
    /// The socket to the guest.
    pub(crate) socket: OwnedFd,
    /// What the guest has of the host besides connections.
    pub(crate) for_guest: Named,
}

/// Hands each connection to the guest until it ends, and then ends all processes of the sandbox. Saves them when the server asks
/// for it, over its own listener.
pub(crate) fn keep(kept: &Kept, flags: &[String]) -> ! {
    let Kept { listener, saves, socket, .. } = kept;
    runsc::leave_to_kernel();
    loop {
        let mut waiting = vec![PollFd::new(listener, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        waiting.extend(saves.iter().map(|saves| PollFd::new(saves, PollFlags::IN)));
        if rustix::io::retry_on_intr(|| poll(&mut waiting, None)).is_err() {
            std::process::exit(1);
        }
        if !waiting[1].revents().is_empty() {
            match next_answer(socket) {
                // Too late for a save: it closed what it has, and goes on with the same.
                Some(answer) if answer == SEVERED && hand(socket, &kept.for_guest).is_ok() => {}
                Some(answer) if answer == RUNS => {}
                _ => std::process::exit(0),
            }
            continue;
        }
        if let (Some(listener), Some(polled)) = (saves, waiting.get(2))
            && !polled.revents().is_empty()
        {
            match accept(listener) {
                Ok(server) => saves::serve(&UnixStream::from(server), kept, flags),
                Err(_) => std::thread::sleep(SHORTAGE_PAUSE),
            }
            continue;
        }
        let Ok(connection) = accept(listener) else {
            // No descriptor is left on this host: it stays in the queue.
            std::thread::sleep(SHORTAGE_PAUSE);
            continue;
        };
        if descriptors::send(socket.as_fd(), CONNECTION, &[connection.as_fd()]).is_err() {
            std::process::exit(0);
        }
    }
}

fn accept(listener: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC)
}
