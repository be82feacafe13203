//! Saves of the processes under gVisor: an image of their memory, written by the keeper for the server.
//!
//! ```text
//!  server                          keeper                              guest, in gVisor
//!    ├─ Save + directory ──────────► ├─ "s" ────────────────────────────► closes its connections to the host
//!    │                               ├◄─ "s" ────────────────────────────┤
//!    │                               ├─ runsc pause, runsc checkpoint
//!    ├◄─ Saved ──────────────────────┤
//!    │  seals the disk               │
//!    ├─ one byte, or its end ──────► ├─ runsc resume
//!    ├◄─ Resumed ────────────────────┤
//! ```
//!
//! gVisor writes what it has not written to files yet before the image is complete, and runs no program until it is resumed. So
//! the disk that is sealed in between is that of the image. Connections of the host can't be saved, so the guest closes them. When
//! the server ends meanwhile, its socket closes, and the processes run on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::runsc::{self, NAME};
use super::{Kept, SEVER, SEVERED, SHORTAGE_PAUSE, answers, hand};
use crate::descriptors;

/// Time for the guest to close its connections.
const SEVER_LIMIT: Duration = Duration::from_secs(10);
/// Time for a command that only tells gVisor something.
const TELL_LIMIT: Duration = Duration::from_secs(20);
/// Time to write an image. A gigabyte takes a few seconds.
const WRITE_LIMIT: Duration = Duration::from_secs(75);
/// Time for all of it: less than control waits for the engine.
const SAVE_LIMIT: Duration = Duration::from_secs(110);
/// Time that the server has to seal the disk. Then the processes run on.
const SEAL_LIMIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// Attempts to let the programs run on.
const RESUMES: usize = 3;
/// Largest message between the two.
const MAX_ANSWER: usize = 4 << 10;

/// What the keeper answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    /// The image is complete, and no program runs.
    Saved,
    /// The programs run on.
    Resumed,
    Failed(String),
}

/// Why processes were not saved. They run on.
#[derive(Debug, Error)]
pub enum SaveError {
    /// The sandbox was started by a version that could not save, or it has ended.
    #[error("its first process can't be reached: {0}")]
    Unreachable(#[source] io::Error),
    #[error("{0}")]
    Refused(String),
}

/// A sandbox with saved processes, which stay still until it is dropped.
#[derive(Debug)]
pub struct Saving {
    stream: UnixStream,
}

impl Saving {
    /// Makes the keeper that listens at `socket` write an image into an empty directory, which the sandbox's root owns. Blocks
    /// until it is complete.
    pub fn begin(socket: &Path, directory: BorrowedFd<'_>) -> Result<Self, SaveError> {
        let ask = || {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(SAVE_LIMIT))?;
            descriptors::send(stream.as_fd(), b"save", &[directory])?;
            Ok(stream)
        };
        let saving = Self { stream: ask().map_err(SaveError::Unreachable)? };
        match saving.answer().map_err(SaveError::Unreachable)? {
            Answer::Saved => Ok(saving),
            Answer::Failed(reason) => Err(SaveError::Refused(reason)),
            Answer::Resumed => Err(SaveError::Refused("it did not wait for the disk".to_owned())),
        }
    }

    /// Lets the processes run on, and waits until they do.
    ///
    /// # Errors
    /// They ran on before, since the server took too long; then the disk may have changed. Or the sandbox has ended.
    pub fn end(self) -> Result<(), SaveError> {
        descriptors::send(self.stream.as_fd(), b"g", &[]).map_err(SaveError::Unreachable)?;
        match self.answer().map_err(SaveError::Unreachable)? {
            Answer::Resumed => Ok(()),
            Answer::Failed(reason) => Err(SaveError::Refused(reason)),
            Answer::Saved => Err(SaveError::Refused("it answered twice".to_owned())),
        }
    }

    fn answer(&self) -> io::Result<Answer> {
        let mut buffer = vec![0; MAX_ANSWER];
        let (length, _) = descriptors::receive(self.stream.as_fd(), &mut buffer)?;
        Ok(serde_json::from_slice(&buffer[..length])?)
    }
}

fn tell(server: &UnixStream, answer: &Answer) -> io::Result<()> {
    descriptors::send(server.as_fd(), &serde_json::to_vec(answer).unwrap_or_default(), &[])
}

/// The keeper's side: serves one request of the server.
pub(super) fn serve(server: &UnixStream, kept: &Kept, flags: &[String]) {
    let mut buffer = [0; 16];
    // Only the host's root reaches this socket.
    let Ok((1.., given)) = descriptors::receive(server.as_fd(), &mut buffer) else { return };
    let Some(directory) = given.first() else { return };
    let answer = match save(directory.as_fd(), &kept.socket, flags) {
        Ok(()) => {
            let was_in_time = is_sealed(server);
            // They would stay still for ever.
            or_end(resume(flags));
            match was_in_time {
                true => Answer::Resumed,
                false => Answer::Failed("its processes ran on before the disk was sealed".to_owned()),
            }
        }
        Err(reason) => Answer::Failed(reason),
    };
    // Its answer comes later. An error is the guest's end, which the keeper sees next.
    let _ = hand(&kept.socket, &kept.for_guest);
    // The server learns it from the end of the socket if it does not arrive.
    let _ = tell(server, &answer);
}

fn or_end(done: Result<(), String>) {
    if done.is_err() {
        std::process::exit(1);
    }
}

/// Tells the server that the image is complete, and waits until it has sealed the disk.
fn is_sealed(server: &UnixStream) -> bool {
    let mut waiting = [PollFd::new(server, PollFlags::IN)];
    tell(server, &Answer::Saved).is_ok()
        && rustix::io::retry_on_intr(|| poll(&mut waiting, Some(&SEAL_LIMIT))).is_ok_and(|ready| ready > 0)
}

/// Writes the image. On failure, the programs run on.
fn save(directory: BorrowedFd<'_>, guest: &OwnedFd, flags: &[String]) -> Result<(), String> {
    sever(guest)?;
    runsc::run(flags, &["pause", NAME], None, TELL_LIMIT)?;
    let image = format!("--image-path={}", runsc::GIVEN);
    let command = ["checkpoint", "--leave-running", "--compression=none", &image, NAME];
    let saved = runsc::run(flags, &command, Some(directory), WRITE_LIMIT);
    if saved.is_err() {
        or_end(resume(flags));
    }
    saved
}

/// Tries several times: the sandbox may lack a process for runsc just now.
fn resume(flags: &[String]) -> Result<(), String> {
    let mut resumed = Ok(());
    for _ in 0..RESUMES {
        resumed = runsc::run(flags, &["resume", NAME], None, TELL_LIMIT);
        if resumed.is_ok() {
            break;
        }
        std::thread::sleep(SHORTAGE_PAUSE);
    }
    resumed
}

/// Makes the guest close what it has of the host. It gets nothing else meanwhile, since that comes from this thread.
fn sever(guest: &OwnedFd) -> Result<(), String> {
    let failed = |error: io::Error| format!("the guest could not be asked to close its connections: {error}");
    descriptors::send(guest.as_fd(), SEVER, &[]).map_err(failed)?;
    match answers(guest, SEVER_LIMIT, SEVERED).map_err(failed)? {
        true => Ok(()),
        false => Err("the guest did not close its connections".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_to_say_that_its_connections_are_closed() {
        let (keeper, guest) = descriptors::packet_pair().unwrap();
        descriptors::send(guest.as_fd(), SEVERED, &[]).unwrap();
        assert_eq!(sever(&keeper), Ok(()));
        assert_eq!(descriptors::receive(guest.as_fd(), &mut [0]).unwrap().0, 1);
        // A late answer to another message comes first.
        for answer in [&b"r"[..], SEVERED] {
            descriptors::send(guest.as_fd(), answer, &[]).unwrap();
        }
        assert_eq!(sever(&keeper), Ok(()));
        drop(guest);
        assert!(sever(&keeper).is_err());
    }

    #[test]
    fn a_keeper_that_is_gone_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let directory = std::fs::File::open(dir.path()).unwrap();
        assert!(matches!(Saving::begin(&path, directory.as_fd()), Err(SaveError::Unreachable(_))));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let keeper = std::thread::spawn(move || {
            let (server, _) = listener.accept().unwrap();
            let (_, given) = descriptors::receive(server.as_fd(), &mut [0; 16]).unwrap();
            assert_eq!(given.len(), 1);
            tell(&server, &Answer::Failed("no room".to_owned())).unwrap();
            drop(listener.accept().unwrap());
        });
        assert_eq!(Saving::begin(&path, directory.as_fd()).unwrap_err().to_string(), "no room");
        assert!(matches!(Saving::begin(&path, directory.as_fd()), Err(SaveError::Unreachable(_))));
        keeper.join().unwrap();
    }
}
