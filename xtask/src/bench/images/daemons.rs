//! Debian's Docker and registry as processes of the bench.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::command::{self, program, succeeds};
use crate::failure::{Attempt, Failure, Outcome};
use crate::server::{STOP_LIMIT, get, terminate};

/// Debian's: another Docker may be earlier on the PATH.
const DOCKERD: &str = "/usr/sbin/dockerd";
const DOCKER: &str = "/usr/bin/docker";
/// Maximum time until one answers.
const START_LIMIT: Duration = Duration::from_secs(60);

pub(super) struct Registry {
    pub(super) host: String,
    child: Child,
}

impl Drop for Registry {
    fn drop(&mut self) {
        terminate(&mut self.child, STOP_LIMIT);
    }
}

impl Registry {
    pub(super) fn start(dir: &Path) -> Result<Self, Failure> {
        make_empty(dir)?;
        let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = listener.attempt(|| "no port is free".into())?.port();
        let host = format!("127.0.0.1:{port}");
        let storage = json!({ "filesystem": { "rootdirectory": dir.join("data") } });
        // JSON is YAML too.
        let configuration = json!({ "version": 0.1, "storage": storage, "http": { "addr": host } });
        let file = dir.join("registry.yml");
        fs::write(&file, configuration.to_string()).attempt(|| format!("could not write {}", file.display()))?;
        let child = spawn(program("docker-registry").arg("serve").arg(&file), &dir.join("log"))?;
        let mut registry = Self { host, child };
        wait(&mut registry.child, &dir.join("log"), || get(port, "/v2/").is_some_and(|(status, _)| status == 200))?;
        Ok(registry)
    }
}

pub(super) struct Docker {
    dir: PathBuf,
    child: Child,
}

impl Drop for Docker {
    fn drop(&mut self) {
        terminate(&mut self.child, STOP_LIMIT);
        unmount(&self.dir);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Docker {
    /// On its own directories, and without a change to the host's network.
    pub(super) fn start(dir: &Path) -> Result<Self, Failure> {
        unmount(dir);
        make_empty(dir)?;
        let file = dir.join("daemon.json");
        fs::write(&file, "{}").attempt(|| format!("could not write {}", file.display()))?;
        let mut command = program(DOCKERD);
        command.arg("--config-file").arg(&file).arg("--host").arg(socket(dir)).arg("--pidfile").arg(dir.join("pid"));
        command.arg("--data-root").arg(dir.join("data")).arg("--exec-root").arg(dir.join("exec"));
        command.args(["--userland-proxy=false", "--bridge", "none", "--iptables=false", "--ip6tables=false"]);
        let child = spawn(&mut command, &dir.join("log"))?;
        let mut docker = Self { dir: dir.to_owned(), child };
        let is_ready = || succeeds(program(DOCKER).arg("--host").arg(socket(dir)).arg("version"));
        wait(&mut docker.child, &dir.join("log"), is_ready)?;
        Ok(docker)
    }

    fn call(&self, words: &[&str]) -> Outcome {
        command::output(program(DOCKER).arg("--host").arg(socket(&self.dir)).args(words)).map(drop)
    }

    /// Loads an archive, and waits until its files are on disk, as Arenite does.
    pub(super) fn load(&self, archive: &str) -> Result<Duration, Failure> {
        let begun = Instant::now();
        self.call(&["load", "--input", archive])?;
        command::output(program("sync").arg("--file-system").arg(self.dir.join("data")))?;
        Ok(begun.elapsed())
    }

    pub(super) fn remove(&self, image: &str) -> Outcome {
        self.call(&["rmi", "--force", image])
    }
}

fn socket(dir: &Path) -> String {
    format!("unix://{}", dir.join("docker.sock").display())
}

/// Unmounts the mounts that a killed daemon left.
fn unmount(dir: &Path) {
    // It fails if nothing is mounted there.
    succeeds(program("umount").arg("--lazy").arg(dir.join("data")));
}

fn make_empty(dir: &Path) -> Outcome {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).attempt(|| format!("could not make {}", dir.display()))
}

fn spawn(command: &mut Command, log: &Path) -> Result<Child, Failure> {
    let output = File::create(log).and_then(|file| Ok((file.try_clone()?, file)));
    let (out, err) = output.attempt(|| format!("could not write {}", log.display()))?;
    let words = command::shown(command);
    command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().attempt(|| format!("could not start {words}"))
}

fn wait(child: &mut Child, log: &Path, is_ready: impl Fn() -> bool) -> Outcome {
    let begun = Instant::now();
    while !is_ready() {
        let has_ended = child.try_wait().attempt(|| "could not watch a process".into())?.is_some();
        if has_ended || begun.elapsed() > START_LIMIT {
            return Err(Failure::new(format!("a server does not answer; see {}", log.display())));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
