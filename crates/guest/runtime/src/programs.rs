//! Programs on the search path and their versions.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use thiserror::Error;
use tokio::io::AsyncReadExt;
use tokio::sync::Mutex;

use crate::process::{self, Command, Exit, Signal};
use crate::runtime::Runtime;

/// How long a program may take to print its version.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes of its output.
const MAX_OUTPUT: u64 = 4 << 10;
/// The most cached versions. Beyond it, the cache is cleared.
const MAX_KEPT: usize = 64;

/// A program: its names, and the file that they lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub names: Vec<String>,
    pub file: PathBuf,
}

/// The directories of a search path.
pub fn search_path(env: &[(String, String)]) -> Vec<PathBuf> {
    let path = env.iter().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
    path.split(':').filter(|dir| dir.starts_with('/')).map(PathBuf::from).collect()
}

pub fn locate(name: &str, path: &[PathBuf]) -> Option<PathBuf> {
    path.iter()
        .map(|dir| dir.join(name))
        .find(|file| std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
}

/// Finds programs. Several names of the same file are one program.
pub fn find(names: impl IntoIterator<Item = String>, path: &[PathBuf]) -> Vec<Program> {
    let mut found: Vec<Program> = Vec::new();
    for name in names {
        let Some(at) = locate(&name, path) else {
            continue;
        };
        let file = std::fs::canonicalize(&at).unwrap_or_else(|_| at.clone());
        match found.iter_mut().find(|p| p.file == file) {
            Some(program) => program.names.push(name),
            None => found.push(Program { path: at, names: vec![name], file }),
        }
    }
    found
}

/// Identifies a program's content well enough to trust its cached version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Fingerprint(PathBuf, u64, u64, i64, i64);

/// Why a program's version is unknown.
#[derive(Debug, Error)]
pub enum Unasked {
    #[error("it was killed by signal {0} when it was asked for its version")]
    Killed(i32),
    #[error("it did not say its version within {} s, and was killed", PATIENCE.as_secs())]
    TimedOut,
    #[error(transparent)]
    NotStarted(#[from] SpawnError),
    #[error("it could not be asked for its version: {0}")]
    Io(#[from] io::Error),
}

/// Versions of programs, which are cached until the programs change.
#[derive(Debug)]
pub struct Versions {
    runtime: Arc<Runtime>,
    cached: Mutex<HashMap<Fingerprint, Option<String>>>,
}

impl Versions {
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, cached: Mutex::default() }
    }

    /// The version of a program, from `--version`. It is cached until the file changes.
    pub async fn version(&self, program: &Path) -> Option<String> {
        self.ask(program).await.ok().flatten()
    }

    /// The same. None: the program prints no version.
    ///
    /// # Errors
    /// The program could not answer, and may be asked again.
    pub async fn ask(&self, program: &Path) -> Result<Option<String>, Unasked> {
        let Ok(meta) = std::fs::metadata(program) else { return Ok(None) };
        let key = Fingerprint(program.to_owned(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
        // Held during the call, so that concurrent calls run the program once.
        let mut kept = self.cached.lock().await;
        if let Some(version) = kept.get(&key) {
            return Ok(version.clone());
        }
        let version = number(&ask(&self.runtime, program).await?).map(str::to_owned);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(key, version.clone());
        Ok(version)
    }
}

/// The first word in a text that resembles a version: digits with a dot.
fn number(text: &str) -> Option<&str> {
    text.split_ascii_whitespace()
        .map(|word| word.trim_start_matches('v').trim_end_matches([',', ')', ';']))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
}

async fn ask(runtime: &Runtime, program: &Path) -> Result<String, Unasked> {
    let null = || std::fs::File::options().read(true).write(true).open("/dev/null");
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    let stdio = [null()?.into(), write.try_clone()?, write];
    let command = Command {
        argv: vec![program.to_string_lossy().into_owned(), "--version".to_owned()],
        env: runtime.environment(&runtime.user, &[]),
        cwd: "/".to_owned(),
        user: &runtime.user,
        stdio,
        controlling_tty: false,
    };
    let reader = tokio::net::unix::pipe::Receiver::from_owned_fd(read)?;
    let mut child = runtime.processes.spawn(command).await?;
    let answer = async {
        let mut output = Vec::new();
        reader.take(MAX_OUTPUT).read_to_end(&mut output).await?;
        match child.wait().await {
            Exit::Signal(signal) => Err(Unasked::Killed(signal)),
            Exit::Code(_) => Ok(String::from_utf8_lossy(&output).into_owned()),
        }
    };
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    answer.unwrap_or_else(|_| {
        let (pid, marker) = (child.pid, child.marker.clone());
        tokio::task::spawn_blocking(move || process::kill_members(Some(pid), &marker, Signal::KILL));
        Err(Unasked::TimedOut)
    })
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, version) in [
            ("Python 3.11.2\n", Some("3.11.2")),
            ("v20.19.0\n", Some("20.19.0")),
            ("git version 2.39.5 (Apple)", Some("2.39.5")),
            ("jq-1.6", None),
            ("uv 0.8.9 (68c0bf8a2 2025-08-11)", Some("0.8.9")),
            ("", None),
        ] {
            assert_eq!(number(text), version, "{text}");
        }
    }
}
