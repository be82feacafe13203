//! Installs the packages that a skill needs.
//!
//! A skill declares packages in its front matter, by the kind of their installer:
//!
//! ```yaml
//! dependencies:
//!   python: [requests>=2, "rich[jupyter]==13.7.0"]
//!   nodejs: ["lodash@^4"]
//! ```
//!
//! Only names with versions are accepted, never options, addresses or paths. They are passed as separate arguments: no shell
//! reads them. Installers run as the sandbox's user. `dependencies` of any other form are for readers.

use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;
use utoipa::ToSchema;

use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{self, Command, Exit, Signal};

/// How long one installer may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// The bytes kept of an installer's output: the end, with the errors.
const MAX_KEPT_BYTES: usize = 8 << 10;
/// The most packages of one kind.
const MAX_PACKAGES: usize = 64;

/// A name with extras and versions, as pip takes them.
static PYTHON: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?( ?(===?|!=|~=|<=?|>=?) ?[A-Za-z0-9.*+!_-]+(, ?|$))*$")
        .expect("the pattern is written above")
});
/// A name, maybe in a scope, with a version, as npm takes them.
static NODEJS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(@[a-z0-9][a-z0-9._~-]*/)?[A-Za-z0-9][A-Za-z0-9._~-]*(@[~^<>=]{0,2}[A-Za-z0-9][A-Za-z0-9.+*-]*)?$")
        .expect("the pattern is written above")
});

/// The result of an installer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct DependencyCommandResult {
    /// The command, word by word.
    pub command: Vec<String>,
    /// It ended with 0.
    pub success: bool,
    /// What it wrote to standard output.
    pub stdout: Option<String>,
    /// What it wrote to standard error.
    pub stderr: Option<String>,
}

/// Installs the packages in the front matter. A failure is part of the result.
pub(super) async fn install(runtime: &Runtime, metadata: &Map<String, Value>) -> Vec<DependencyCommandResult> {
    let mut results = Vec::new();
    let declared = metadata.get("dependencies");
    let kinds = [
        (["python", "pip"], &["python3", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--"][..], &PYTHON),
        (["nodejs", "npm"], &["npm", "install", "--global", "--no-fund", "--no-audit", "--"], &NODEJS),
    ];
    for (keys, installer, pattern) in kinds {
        for list in keys.iter().filter_map(|key| declared?.get(key)?.as_array()) {
            let packages: Vec<&str> = list.iter().map(|p| p.as_str().unwrap_or_default().trim()).collect();
            if packages.is_empty() {
                continue;
            }
            let command: Vec<String> = installer.iter().chain(&packages).map(|s| (*s).to_owned()).collect();
            let refused = match packages.iter().find(|p| !pattern.is_match(p)) {
                Some(package) => Some(format!("{package:?} is no package's name with a version: nothing was installed")),
                None if packages.len() > MAX_PACKAGES => Some(format!("there are more than {MAX_PACKAGES} packages")),
                None => None,
            };
            results.push(match refused {
                Some(reason) => DependencyCommandResult { command, success: false, stdout: None, stderr: Some(reason) },
                None => run(runtime, command).await,
            });
        }
    }
    results
}

async fn run(runtime: &Runtime, command: Vec<String>) -> DependencyCommandResult {
    match attempt(runtime, &command).await {
        Ok((success, stdout, stderr)) => DependencyCommandResult { command, success, stdout: Some(stdout), stderr: Some(stderr) },
        Err(reason) => DependencyCommandResult { command, success: false, stdout: None, stderr: Some(reason) },
    }
}

/// Ends an installer and all processes that it started, when its time is up or the caller leaves.
struct EndOnDrop(Option<(i32, String)>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some((pid, marker)) = self.0.take() {
            tokio::task::spawn_blocking(move || process::kill_members(Some(pid), &marker, Signal::KILL));
        }
    }
}

async fn attempt(runtime: &Runtime, command: &[String]) -> Result<(bool, String, String), String> {
    let text = |e: rustix::io::Errno| std::io::Error::from(e).to_string();
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(text)?;
    let mut ends = Vec::new();
    let mut readers = Vec::new();
    for _ in 0..2 {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(text)?;
        if runtime.user.uid != 0 && rustix::process::geteuid().is_root() {
            fchown(&write, Some(Uid::from_raw(runtime.user.uid)), Some(Gid::from_raw(runtime.user.gid))).map_err(text)?;
        }
        ends.push(write);
        readers.push(Receiver::from_owned_fd(read).map_err(|e| e.to_string())?);
    }
    let (Some(stderr), Some(stdout), Some(from_stderr), Some(from_stdout)) =
        (ends.pop(), ends.pop(), readers.pop(), readers.pop())
    else {
        return Err("there are no pipes".to_owned());
    };
    let command = Command {
        argv: command.to_vec(),
        env: runtime.environment(&runtime.user, &[]),
        cwd: runtime.default_dir().display().to_string(),
        user: &runtime.user,
        stdio: [null, stdout, stderr],
        controlling_tty: false,
    };
    let mut child = runtime.processes.spawn(command).await.map_err(|e| e.to_string())?;
    let mut end = EndOnDrop(Some((child.pid, child.marker.clone())));
    let work = async {
        let (stdout, stderr) = tokio::join!(tail(from_stdout), tail(from_stderr));
        (child.wait().await == Exit::Code(0), stdout, stderr)
    };
    let done = timeout(PATIENCE, work).await;
    let done = done.map_err(|_| format!("it took longer than {} s and was ended", PATIENCE.as_secs()))?;
    end.0 = None;
    Ok(done)
}

/// Reads a pipe to its end and returns the last part.
async fn tail(mut pipe: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4 << 10];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..read]);
        let surplus = kept.len().saturating_sub(MAX_KEPT_BYTES);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_versions_are_packages() {
        for package in
            ["requests", "requests>=2.0,<3", "rich[jupyter]==13.7.0", "a ~= 1.0", "zope.interface", "x==1.*", "p>=1, <2"]
        {
            assert!(PYTHON.is_match(package), "{package}");
        }
        for package in [
            "",
            "-r requirements.txt",
            "--index-url=http://x",
            "git+https://x/y",
            "./local",
            "/abs",
            "a b",
            "a;rm",
            "x @ http://y",
            "https://x/y.whl",
            "a\n--pre",
            "a==",
            "[x]",
        ] {
            assert!(!PYTHON.is_match(package), "{package:?}");
        }
        for package in ["lodash", "lodash@^4", "@scope/name@1.2.3", "left-pad@>=1", "x@latest"] {
            assert!(NODEJS.is_match(package), "{package}");
        }
        for package in ["", "--global", "git://x", "user/repo", "file:x", "../x", "a@npm:b", "https://x/y.tgz", "a b", "@x"] {
            assert!(!NODEJS.is_match(package), "{package:?}");
        }
    }
}
