//! A real guest in a separate process, called over its socket.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

/// Ends with everything that it started.
pub struct Guest {
    process: Child,
    pub dir: PathBuf,
}

/// The variable that marks the processes of one guest, with its directory as value.
const MARK: &str = "ARENITE_TEST_DIR";

impl Guest {
    /// A guest with `dir` as home and default directory, which is empty except for what the guest's socket needs.
    pub async fn start() -> Self {
        Self::start_as("root").await
    }

    pub async fn start_as(user: &str) -> Self {
        Self::start_with(user, &[]).await
    }

    /// Like `start`, with these variables for commands. In values, `{dir}` is the guest's directory.
    pub async fn start_with(user: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_under(Command::new(env!("CARGO_BIN_EXE_guest-standalone")), user, variables).await
    }

    /// A guest in a separate network, in which only loopback is up. A shell in the guest's directory runs `script` in it first.
    /// For root only.
    pub async fn start_apart(script: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("unshare");
        let script = format!("ip link set lo up; cd \"${{3%/*}}\"; {script}\nexec \"$@\"");
        command.args(["-n", "sh", "-e", "-c", &script, "sh", env!("CARGO_BIN_EXE_guest-standalone")]);
        Self::start_under(command, "root", variables).await
    }

    async fn start_under(mut program: Command, user: &str, variables: &[(&str, &str)]) -> Self {
        let name = format!("arenite-guest-{:016x}", getrandom::u64().unwrap());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        let home = dir.display().to_string();
        let mut config = json!({"workdir": home, "user": user, "env": {"HOME": home, MARK: home}});
        for (name, value) in variables {
            config["env"][*name] = value.replace("{dir}", &home).into();
        }
        std::fs::write(dir.join(".config"), config.to_string()).unwrap();
        let process = program.arg(format!("unix:{home}/.socket")).arg(dir.join(".config")).stdin(Stdio::null()).spawn().unwrap();
        let mut guest = Self { process, dir };
        while guest.dial().await.is_none() {
            assert!(guest.process.try_wait().unwrap().is_none(), "the guest could not start");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        guest
    }

    async fn dial(&self) -> Option<UnixStream> {
        UnixStream::connect(self.dir.join(".socket")).await.ok()
    }

    pub async fn connect(&self) -> UnixStream {
        self.dial().await.expect("the guest listens")
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a request, and returns the head of the answer and its unread body.
    pub async fn send(&self, request: Request<Body>) -> hyper::Response<hyper::body::Incoming> {
        let stream = TokioIo::new(self.connect().await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    pub async fn call(&self, method: &str, path: &str, body: impl Into<Body>) -> (StatusCode, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "guest")
            .header("content-type", "application/json")
            .body(body.into())
            .unwrap();
        let answer = self.send(request).await;
        let status = answer.status();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let value = serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{e}: {bytes:?}"));
        (status, value)
    }

    /// Makes a call that must succeed; returns its `data`.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.call("POST", path, body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{path} {answer}");
        assert_eq!(answer["success"], true, "{path} {answer}");
        answer["data"].clone()
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.call("GET", path, "").await;
        assert_eq!(status, StatusCode::OK, "{path} {answer}");
        answer["data"].clone()
    }

    /// Makes a call that must fail, with the envelope as body; returns its status.
    pub async fn refused(&self, path: &str, body: Value) -> StatusCode {
        let (status, answer) = self.call("POST", path, body.to_string()).await;
        assert_eq!(answer["success"], false, "{path} {answer}");
        assert!(answer["message"].is_string() && answer["data"].is_null(), "{answer}");
        status
    }

    /// Living processes of this guest with a command line that contains `text`.
    pub fn processes(&self, text: &str) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.dir.display());
        marked(&mark)
            .into_iter()
            .filter(|pid| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
            })
            .collect()
    }

    /// Waits until none of them is left.
    pub async fn gone(&self, text: &str) {
        eventually(&format!("{text} is gone"), || self.processes(text).is_empty()).await;
    }

    /// The peak memory of the guest's process, in bytes.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Counts the living processes that read what the guest does not trust itself to read.
    pub fn confined(&self) -> usize {
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = pids.filter_map(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            Some((stat.rsplit_once(") ")?.1.to_owned(), line))
        });
        let parent = self.pid().to_string();
        stats.filter(|(stat, line)| stat.split(' ').nth(1) == Some(&parent) && line.ends_with(b"\0confined\0")).count()
    }

    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        let mark = format!("{MARK}={}", self.dir.display());
        for pid in marked(&mark) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fn marked(mark: &str) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let proc = Path::new("/proc").join(pid.to_string());
            let environ = std::fs::read(proc.join("environ")).unwrap_or_default();
            let stat = std::fs::read_to_string(proc.join("stat")).unwrap_or_default();
            let is_dead = stat.rsplit_once(')').is_none_or(|(_, rest)| rest.starts_with(" Z"));
            !is_dead && environ.split(|b| *b == 0).any(|v| v == mark.as_bytes())
        })
        .collect()
}

/// Waits for a condition that must become true; the long timeout is for busy machines.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came that {what}");
}
