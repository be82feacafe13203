//! Rclone as a program: which one, and what it does besides mounts.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use arenite_isolation::no_new_privileges;

use super::store::BucketStore;
use super::{Backing, BucketError, Buckets, Result};

const PROGRAM: &str = "rclone";
/// From this version on, mounts can map ids (`--allow-idmap`).
const LEAST: (u32, u32) = (1, 75);
const DEVICE: &str = "/dev/fuse";
/// Time for one look at a bucket, or for one small change.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// Time for the removal of all objects of a volume. A repeat continues.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Most of its output that is read, in bytes.
const MOST_OUTPUT: u64 = 64 << 10;
/// Its exit status for a directory or a bucket that is not there.
const NOT_FOUND: i32 = 3;
/// Options of all calls.
const OPTIONS: [&str; 7] = [
    "--contimeout=5s",
    "--timeout=30s",
    "--low-level-retries=2",
    "--retries=1",
    "--log-level=ERROR",
    "--stats=0",
    "--ask-password=false",
];

/// The rclone of this host with its version, or why there is none that can mount.
pub fn find_rclone(configured: Option<&Path>) -> std::result::Result<(PathBuf, String), String> {
    let path = match configured {
        Some(path) if is_program(path) => path.to_owned(),
        Some(path) => return Err(format!("rclone is set to {}, which is no program", path.display())),
        None => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let found = std::env::split_paths(&path).map(|dir| dir.join(PROGRAM)).find(|file| is_program(file));
            found.ok_or_else(|| "rclone is not in PATH, and the setting rclone names none".to_owned())?
        }
    };
    let output = Command::new(&path).args(["version", "--config="]).env_clear().stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{} does not start: {error}", path.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().next().and_then(|line| line.strip_prefix("rclone v"));
    let version = version.ok_or_else(|| format!("{} is not rclone: it prints no version", path.display()))?;
    if numbers(version).is_none_or(|numbers| numbers < LEAST) {
        return Err(format!("{} has version {version}, and mounts need {}.{}", path.display(), LEAST.0, LEAST.1));
    }
    if !Path::new(DEVICE).exists() {
        return Err("there is no /dev/fuse: load the kernel's module fuse, or give the server's container that device".to_owned());
    }
    Ok((path, version.to_owned()))
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// A program that can mount, and the user that runs it.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) program: PathBuf,
    pub(super) user: u32,
}

/// How a call of rclone ended.
struct Done {
    status: Option<i32>,
    errors: String,
}

impl Buckets {
    pub(super) fn client(&self) -> Result<Client> {
        let found = find_rclone(self.rclone.as_deref()).map_err(|reason| BucketError::NoClient { reason })?;
        Ok(Client { program: found.0, user: self.user()? })
    }
}

impl Client {
    /// A command that runs as the client's user, with nothing of the server's environment but what the bucket needs.
    pub(super) fn command(&self, store: &BucketStore) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(store.inherited()).env("HOME", "/").env("PATH", "/usr/bin:/bin");
        command.uid(self.user).gid(self.user).current_dir("/").process_group(0).stdin(Stdio::null()).args(OPTIONS);
        no_new_privileges::restrict(&mut command);
        command
    }

    /// The same for a call that needs no file: the settings are in its environment, and it has no configuration.
    fn call(&self, store: &BucketStore) -> Command {
        let mut command = self.command(store);
        command.envs(store.variables()).arg("--config=");
        command
    }

    pub(super) fn make_folder(&self, store: &BucketStore, backing: &Backing) -> Result<()> {
        let mut command = self.call(store);
        command.arg("mkdir").arg(store.remote(&backing.folder));
        let done = self.run(&mut command, CALL_LIMIT)?;
        self.succeeded(store, backing, &done)
    }

    /// Lists a folder that has nothing, which fails if the bucket is gone, does not answer, or refuses it.
    pub(super) fn look(&self, store: &BucketStore, backing: &Backing) -> Result<()> {
        let mut command = self.call(store);
        // Otherwise the missing folder would be an error, too.
        command.env("RCLONE_CONFIG_BUCKET_DIRECTORY_MARKERS", "false");
        command.arg("lsf").arg(store.remote(&format!("{}/.arenite-look", backing.folder)));
        let done = self.run(&mut command, CALL_LIMIT)?;
        self.succeeded(store, backing, &done)
    }

    pub(super) fn remove_folder(&self, store: &BucketStore, backing: &Backing) -> Result<()> {
        let mut command = self.call(store);
        command.arg("purge").arg(store.remote(&backing.folder));
        let done = self.run(&mut command, REMOVAL_LIMIT)?;
        match done.status {
            Some(NOT_FOUND) => Ok(()),
            _ => self.succeeded(store, backing, &done),
        }
    }

    fn succeeded(&self, store: &BucketStore, backing: &Backing, done: &Done) -> Result<()> {
        let reason = match done.status {
            Some(0) => return Ok(()),
            Some(NOT_FOUND) => "its server knows no such bucket".to_owned(),
            Some(_) if done.errors.contains("NoSuchBucket") => "its server knows no such bucket".to_owned(),
            Some(_) => store.cleaned(&last_message(&done.errors)),
            None => format!("no answer within {} seconds", CALL_LIMIT.as_secs()),
        };
        Err(BucketError::Unreachable { name: backing.bucket.clone(), reason })
    }

    fn run(&self, command: &mut Command, limit: Duration) -> Result<Done> {
        let failed = |source: io::Error| BucketError::Host { what: format!("run {}", self.program.display()), source };
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let output = child.stderr.take();
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            // What is beyond the limit breaks rclone's pipe, and it ends.
            let _ = output.map(|output| output.take(MOST_OUTPUT).read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status.code().or(Some(-1));
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        Ok(Done { status, errors: reader.join().unwrap_or_default() })
    }
}

/// The last message of a log, without time, level, and the numbers of a request.
pub(super) fn last_message(log: &str) -> String {
    let line = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    let line = line.split_once(" : ").or_else(|| line.split_once("CRITICAL: ")).map_or(line, |(_, message)| message);
    let of_server = ["api error ", "request send failed, "].iter().find_map(|start| line.split_once(start));
    of_server.map_or(line, |(_, message)| message).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_messages_are_read() {
        assert_eq!(numbers("1.75.2"), Some((1, 75)));
        assert_eq!(numbers("1.60.1-DEV"), Some((1, 60)));
        assert_eq!(numbers("next"), None);
        let log = "2026/11/29 03:00:00 ERROR : a/b: vfs cache: failed\n\n";
        assert_eq!(last_message(log), "a/b: vfs cache: failed");
        assert_eq!(last_message("2026/11/29 03:00:00 CRITICAL: Failed to lsf: no such host\n"), "Failed to lsf: no such host");
        let refused = "2026/11/29 03:00:00 ERROR : a: failed: HostID: x=, api error NoSuchBucket: it does not exist.";
        assert_eq!(last_message(refused), "NoSuchBucket: it does not exist.");
        assert_eq!(last_message(""), "no message");
    }

    #[test]
    fn only_a_recent_rclone_will_do() {
        let top = tempfile::tempdir().unwrap();
        let program = top.path().join("rclone");
        assert!(find_rclone(Some(&program)).unwrap_err().contains("no program"));
        for (version, refusal) in [("rclone v1.60.1-DEV", "1.60.1"), ("something else", "prints no version")] {
            fs::write(&program, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            assert!(find_rclone(Some(&program)).unwrap_err().contains(refusal));
        }
    }
}
