//! A server that outlives this task: finds, starts and stops it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::command::{program, run, succeeds, target_dir};
use crate::failure::{Attempt, Failure, Outcome};

/// Maximum time of a start: storage, networks and the recovery of sandboxes.
const START_LIMIT: Duration = Duration::from_secs(90);
/// Maximum time of a graceful stop.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The record of a server that a task started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Started {
    pub(crate) pid: u32,
    /// The build that it runs.
    pub(crate) build: Build,
    pub(crate) arguments: Vec<String>,
}

/// Identifies a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Build {
    bytes: u64,
    modified: i64,
    modified_nanoseconds: i64,
}

impl Build {
    pub(crate) fn from_binary(binary: &Path) -> Result<Self, Failure> {
        let data = std::fs::metadata(binary).attempt(|| format!("could not look at {}", binary.display()))?;
        Ok(Self { bytes: data.len(), modified: data.mtime(), modified_nanoseconds: data.mtime_nsec() })
    }
}

fn note(port: u16) -> PathBuf {
    target_dir().join(format!("server-{port}.json"))
}

impl Started {
    /// The server that was started on this port and still runs.
    pub(crate) fn find(port: u16) -> Option<Self> {
        let started: Self = serde_json::from_slice(&std::fs::read(note(port)).ok()?).ok()?;
        started.runs().then_some(started)
    }

    /// A pid may have been reused: it only counts if it is a server with these arguments.
    fn runs(&self) -> bool {
        let words = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let mut words = words.split(|b| *b == 0).map(String::from_utf8_lossy);
        // The program may have any name.
        words.nth(1).is_some_and(|w| w == "serve")
            && words.zip(&self.arguments).all(|(word, argument)| word == *argument || word.is_empty())
    }

    /// Stops it gracefully; its sandboxes keep running.
    pub(crate) fn stop(&self) -> Outcome {
        run(&mut signal(self.pid))?;
        let begun = Instant::now();
        while self.runs() {
            if begun.elapsed() > STOP_LIMIT {
                return Err(Failure::new(format!("the server (pid {}) didn't stop within {STOP_LIMIT:?}", self.pid)));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// Starts a server that outlives this task, and waits until it is ready.
pub(crate) fn start(binary: &Path, port: u16, arguments: &[String], log: &Path) -> Outcome {
    if get(port, "/ready").is_some() {
        return Err(Failure::new(format!("another server answers on port {port}; stop it first")));
    }
    let mut child = spawn(binary, arguments, &[], log)?;
    wait_ready(&mut child, port, log)?;
    write_note(&child, binary, port, arguments)
}

/// Starts a server in place of another one on the same data directory. No connection is refused meanwhile.
pub(crate) fn replace(old: &Started, binary: &Path, port: u16, arguments: &[String], log: &Path) -> Outcome {
    let mut child = spawn(binary, arguments, &["--take-over"], log)?;
    // Until the old server has stopped, `/ready` is its answer.
    let begun = Instant::now();
    while old.runs() {
        if let Some(status) = child.try_wait().attempt(|| "could not watch the server".into())? {
            return Err(Failure::new(format!("the new server ended ({status}):\n{}", tail(log))));
        }
        if begun.elapsed() > STOP_LIMIT {
            terminate(&mut child, STOP_LIMIT);
            return Err(Failure::new(format!("the server (pid {}) didn't stop within {STOP_LIMIT:?}", old.pid)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    wait_ready(&mut child, port, log)?;
    write_note(&child, binary, port, arguments)
}

fn spawn(binary: &Path, arguments: &[String], more: &[&str], log: &Path) -> Result<Child, Failure> {
    let file =
        std::fs::File::options().create(true).append(true).open(log).attempt(|| format!("could not open {}", log.display()))?;
    let again = file.try_clone().attempt(|| "could not open the log twice".into())?;
    let mut command = program(binary);
    command.arg("serve").args(arguments).args(more).stdin(Stdio::null()).stdout(file).stderr(again);
    // A separate group: Ctrl-C in this terminal is not meant for it.
    command.process_group(0);
    command.spawn().attempt(|| format!("could not start {}", binary.display()))
}

fn write_note(child: &Child, binary: &Path, port: u16, arguments: &[String]) -> Outcome {
    let started = Started { pid: child.id(), build: Build::from_binary(binary)?, arguments: arguments.to_vec() };
    let text = serde_json::to_vec(&started).attempt(|| "could not write down the server's pid".into())?;
    std::fs::write(note(port), text).attempt(|| "could not write down the server's pid".into())
}

pub(crate) fn wait_ready(child: &mut Child, port: u16, log: &Path) -> Outcome {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().attempt(|| "could not watch the server".into())? {
            return Err(Failure::new(format!("the server ended ({status}):\n{}", tail(log))));
        }
        if get(port, "/ready").is_some_and(|(status, _)| status == 200) {
            return Ok(());
        }
        if begun.elapsed() > START_LIMIT {
            return Err(Failure::new(format!("the server was not ready within {START_LIMIT:?}:\n{}", tail(log))));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn signal(pid: u32) -> Command {
    let mut kill = program("sh");
    kill.args(["-c", "kill -TERM \"$0\"", &pid.to_string()]);
    kill
}

/// Stops a server of this task gracefully, or by force after the limit.
pub(crate) fn terminate(server: &mut Child, limit: Duration) {
    let begun = Instant::now();
    let mut asked = false;
    while let Ok(None) = server.try_wait() {
        if !asked {
            asked = succeeds(&mut signal(server.id()));
        }
        if begun.elapsed() > limit {
            // It may end by itself between the two calls.
            let _ = server.kill();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// The answer of a server on this port. None: nothing listens, or it doesn't speak HTTP.
pub(crate) fn get(port: u16, path: &str) -> Option<(u16, String)> {
    const LIMIT: u64 = 1 << 20;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    // HTTP/1.0: the answer is one piece and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.take(LIMIT).read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Some((status, body.to_owned()))
}
