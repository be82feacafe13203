//! The terminal of a session.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetpgrp, tcsetwinsize};
use tokio::io::unix::AsyncFd;

use arenite_guest_runtime::users::User;

/// Wide, so that tables are not cut for an agent.
pub(super) const COLUMNS: u16 = 200;
pub(super) const ROWS: u16 = 50;
/// A larger size is a mistake, and slows programs that draw the whole screen.
const MAX_SIDE: u16 = 1000;

/// The guest's end of a terminal.
#[derive(Debug)]
pub(super) struct Pty {
    master: AsyncFd<OwnedFd>,
    /// A program may still print.
    open: bool,
}

impl Pty {
    /// Opens a terminal. Its other end belongs to `user`.
    pub(super) fn open(user: &User) -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        // Programs open their terminal by name, so its user needs the permission. If the guest is not root, it is the owner
        // already.
        if rustix::process::geteuid().is_root() {
            let uid = rustix::fs::Uid::from_raw(user.uid);
            rustix::fs::fchown(&slave, Some(uid), None)?;
            rustix::fs::fchmod(&slave, Mode::from_raw_mode(0o620))?;
        }
        rustix::fs::fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK)?;
        #[expect(deprecated, reason = "an OwnedFd keeps its descriptor open, which is what the successor makes callers promise")]
        let master = AsyncFd::new(master)?;
        let pty = Self { master, open: true };
        pty.resize(COLUMNS, ROWS);
        Ok((pty, slave))
    }

    /// Reads output of the programs. 0: the last of them has closed the terminal.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> usize {
        let read = self.master.async_io(tokio::io::Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut *buffer)?));
        // On Linux, EIO means that no process has the other end open.
        read.await.unwrap_or(0)
    }

    /// Stops reading: the end would be reported again and again.
    pub(super) fn close_input(&mut self) {
        self.open = false;
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Reads the output that is there now; 0: none.
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> usize {
        rustix::io::read(self.master.get_ref(), buffer).unwrap_or(0)
    }

    /// Types bytes and returns the number that the terminal accepted.
    pub(super) async fn write(&self, bytes: &[u8]) -> usize {
        let written = self.master.async_io(tokio::io::Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?));
        // A terminal without programs discards everything.
        written.await.unwrap_or(bytes.len())
    }

    pub(super) fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows.clamp(1, MAX_SIDE), ws_col: columns.clamp(1, MAX_SIDE), ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = tcsetwinsize(&self.master, size) {
            tracing::debug!(%error, "could not resize a terminal");
        }
    }

    /// The foreground process group.
    pub(super) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(self.master.as_fd()).ok()
    }

    /// Does the same as ^C, even if the terminal passes ^C on as a plain character.
    pub(super) fn interrupt(&self) {
        if let Some(group) = self.foreground() {
            // It may just have ended.
            let _ = kill_process_group(group, Signal::INT);
        }
    }
}
