//! Commands of runsc about the running sandbox.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;

use super::RUNSC;
use crate::first_process::check;

/// The sandbox's name in runsc's own records, of which it is the only one.
pub(super) const NAME: &str = "sandbox";
/// Where a command finds the directory that it was given.
pub(super) const GIVEN: &str = "/proc/self/fd/100";
/// Above what starting a program uses.
const GIVEN_FD: i32 = 100;
/// The log of one command.
const LOG: &str = "/run/runsc-command.log";
/// Largest part of gVisor's log in an error, in characters.
const MAX_REASON: usize = 300;

/// Flags before any command: where runsc keeps its records of this sandbox, and its log.
pub(super) fn general(log: &str) -> [String; 2] {
    ["--root=/run/runsc".to_owned(), format!("--log={log}")]
}

/// Runs a command of runsc, with the flags that the sandbox was started with, and waits for its end. An error is the cause, from
/// its log.
///
/// Call it in a process with one thread.
#[expect(clippy::disallowed_methods, reason = "the process has one thread, and the descriptor needs a number of its choice")]
pub(super) fn run(flags: &[String], arguments: &[&str], given: Option<BorrowedFd<'_>>, limit: Duration) -> Result<(), String> {
    // What an earlier one wrote.
    let _ = fs::remove_file(LOG);
    let ended = (|| {
        let _reaping = Reaping::begin();
        let mut command = Command::new(RUNSC);
        command.args(general(LOG)).args(flags).args(arguments).env_clear().env("PATH", "/bin").current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(given) = given.map(|given| given.as_raw_fd()) {
            let place = move || {
                // SAFETY: system calls on numbers: this child only executes runsc afterwards. A descriptor that has the number
                // already keeps its mark to be closed, which the second call takes off.
                unsafe {
                    check(libc::dup2(given, GIVEN_FD).into())?;
                    check(libc::fcntl(GIVEN_FD, libc::F_SETFD, 0).into())?;
                }
                Ok(())
            };
            // SAFETY: the closure makes system calls only.
            unsafe { command.pre_exec(place) };
        }
        wait(command.spawn()?, limit)
    })();
    match ended {
        Ok(true) => Ok(()),
        Ok(false) => Err(reason(&fs::read_to_string(LOG).unwrap_or_default())),
        Err(error) => Err(format!("runsc {}: {error}", arguments.first().copied().unwrap_or_default())),
    }
}

/// Whether it succeeded. It is killed at the limit.
fn wait(mut child: Child, limit: Duration) -> io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut waiting = [PollFd::new(&pidfd, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut waiting, Some(&limit)))?;
    if ready == 0 {
        child.kill()?;
        child.wait()?;
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(child.wait()?.success())
}

/// While it exists, this process learns how its children end.
struct Reaping;

impl Reaping {
    fn begin() -> Self {
        set_reaping(libc::SIG_DFL);
        Self
    }
}

impl Drop for Reaping {
    fn drop(&mut self) {
        leave_to_kernel();
    }
}

fn set_reaping(disposition: libc::sighandler_t) {
    // SAFETY: sets a signal's disposition to one of the two constants, in a process with one thread.
    unsafe { libc::signal(libc::SIGCHLD, disposition) };
}

/// From now on, the kernel reaps this process's children: runsc, which has ended, and later gVisor.
pub(super) fn leave_to_kernel() {
    set_reaping(libc::SIG_IGN);
    // SAFETY: waiting without blocking, for children that nothing else waits for.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// The first error of gVisor's log, which is the cause of the others. Its entries are JSON objects, or lines.
pub(super) fn reason(log: &str) -> String {
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

    #[test]
    fn an_end_is_waited_for_up_to_the_limit() {
        let run = |text: &str| Command::new("sh").args(["-c", text]).spawn().unwrap();
        assert!(wait(run("exit 0"), Duration::from_secs(10)).unwrap());
        assert!(!wait(run("exit 3"), Duration::from_secs(10)).unwrap());
        let late = wait(run("sleep 100"), Duration::from_millis(20)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }
}
