//! Docker's API over its Unix socket: one connection for each call.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::gvisor::Runtime;
use crate::EngineError;

/// The oldest version of the API that has all that is used here: Docker 20.10.
const OLDEST: (u32, u32) = (1, 41);
/// Time for one call. A container of a busy host takes seconds to start.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// Time to load one image.
const LOAD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Time in which a healthy daemon answers.
const PING_LIMIT: Duration = Duration::from_secs(2);
/// Maximum size of an answer, in bytes. A list of 20,000 containers has about 30 MiB.
const MAX_ANSWER: usize = 64 << 20;
/// Bytes of an archive that are read at once.
const CHUNK: usize = 256 << 10;
/// Characters of Docker's messages that are passed on.
const MAX_MESSAGE: usize = 500;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A daemon.
#[derive(Debug)]
pub(super) struct Docker {
    socket: PathBuf,
    /// Such as `/v1.41`.
    version: String,
    pub(super) about: Info,
}

/// What the daemon says about itself.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Info {
    pub(super) driver: String,
    driver_status: Vec<(String, String)>,
    pub(super) docker_root_dir: PathBuf,
    security_options: Vec<String>,
    #[serde(rename = "ServerVersion")]
    pub(super) version: String,
    memory_limit: bool,
    pids_limit: bool,
    #[serde(rename = "CpuCfsQuota")]
    cpu_quota: bool,
}

impl Info {
    fn has_option(&self, name: &str) -> bool {
        self.security_options.iter().any(|option| option.split(',').any(|part| part == format!("name={name}")))
    }

    /// Ids in containers are not the host's.
    pub(super) fn remaps_users(&self) -> bool {
        self.has_option("userns")
    }

    /// Without root: networks of containers are not this host's.
    pub(super) fn is_rootless(&self) -> bool {
        self.has_option("rootless")
    }

    /// What a sandbox needs and this daemon can't enforce.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let needed = [
            (self.memory_limit, "memory limits"),
            (self.pids_limit, "limits of processes"),
            (self.cpu_quota, "CPU limits"),
            (self.has_option("seccomp"), "seccomp profiles"),
        ];
        needed.into_iter().filter_map(|(has, what)| (!has).then_some(what)).collect()
    }

    /// Whether it limits the size of a container's writable layer.
    pub(super) fn limits_disk(&self, mounts: &str) -> bool {
        match self.driver.as_str() {
            "btrfs" | "zfs" => true,
            "overlay2" => {
                self.driver_status.iter().any(|(key, value)| key == "Backing Filesystem" && value == "xfs")
                    && has_project_quotas(&self.docker_root_dir, mounts)
            }
            _ => false,
        }
    }
}

/// Whether the file system of a path counts projects, by the text of `/proc/mounts`.
fn has_project_quotas(path: &Path, mounts: &str) -> bool {
    let parts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, _, options) = (fields.next()?, fields.next()?, fields.next()?);
        path.starts_with(place).then_some((place.len(), options))
    });
    let nearest = parts.max_by_key(|(length, _)| *length);
    nearest.is_some_and(|(_, options)| options.split(',').any(|option| matches!(option, "prjquota" | "pquota")))
}

/// A complete answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    body: Bytes,
}

impl Answer {
    fn json<T: for<'a> Deserialize<'a>>(&self) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.body)?)
    }

    /// Docker's own message.
    fn message(&self) -> String {
        let value: Option<Value> = serde_json::from_slice(&self.body).ok();
        let text = value.as_ref().and_then(|value| value["message"].as_str());
        let text = text.map_or_else(|| String::from_utf8_lossy(&self.body).into_owned(), str::to_owned);
        format!("{}: {}", self.status.as_u16(), text.trim().chars().take(MAX_MESSAGE).collect::<String>())
    }
}

/// A container's state, as far as it is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct State {
    /// Such as `running`, `paused`, `exited` or `created`.
    pub(super) status: String,
    pub(super) running: bool,
    pub(super) paused: bool,
    #[serde(rename = "OOMKilled")]
    pub(super) oom_killed: bool,
    pub(super) pid: i32,
    pub(super) exit_code: i32,
    pub(super) error: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    state: State,
}

/// One of the containers with the installation's tag.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Listed {
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
}

/// A container's counters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Stats {
    pids_stats: Pids,
    memory_stats: Memory,
    cpu_stats: Cpu,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pids {
    current: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Memory {
    usage: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cpu {
    cpu_usage: CpuUsage,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CpuUsage {
    total_usage: u64,
}

impl Stats {
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_stats.usage
    }

    pub(super) fn cpu_nanoseconds(&self) -> u64 {
        self.cpu_stats.cpu_usage.total_usage
    }

    pub(super) fn pids(&self) -> u64 {
        self.pids_stats.current
    }
}

fn failed(what: impl Into<String>, source: io::Error) -> EngineError {
    EngineError::Stage { stage: format!("Docker: {}", what.into()), source, hint: None }
}

fn refused(what: &str, answer: &Answer) -> EngineError {
    failed(what, io::Error::other(answer.message()))
}

/// A text as one part of a URL.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

impl Docker {
    /// Finds the daemon and a version of the API that both sides speak.
    ///
    /// # Errors
    /// Nothing answers at the socket, or the daemon is older than 20.10.
    pub(super) async fn connect(socket: &Path) -> Result<Self, EngineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Version {
            api_version: String,
            #[serde(rename = "MinAPIVersion", default)]
            oldest: String,
            #[serde(default)]
            os: String,
        }
        let mut docker = Self { socket: socket.to_owned(), version: String::new(), about: Info::default() };
        let version: Version = docker.get("/version", "ask for its version").await.map_err(|error| EngineError::Stage {
            stage: format!("Docker at {}", socket.display()),
            source: io::Error::other(error),
            hint: Some("start Docker, or name its socket: docker_socket in the configuration".to_owned()),
        })?;
        let both = parse_version(&version.oldest).unwrap_or(OLDEST).max(OLDEST);
        if version.os != "linux" || parse_version(&version.api_version).is_none_or(|newest| newest < both) {
            return Err(EngineError::Unsupported {
                what: format!("Docker's API {} for {}", version.api_version, version.os),
                reason: "the engine needs Docker 20.10 or later for Linux (API 1.41)".to_owned(),
            });
        }
        docker.version = format!("/v{}.{}", both.0, both.1);
        docker.about = docker.get("/info", "ask about its host").await?;
        Ok(docker)
    }

    /// The runtimes that are registered now, by name.
    pub(super) async fn runtimes(&self) -> Result<BTreeMap<String, Runtime>, EngineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Runtimes {
            #[serde(default)]
            runtimes: BTreeMap<String, Runtime>,
        }
        Ok(self.get::<Runtimes>("/info", "ask about its runtimes").await?.runtimes)
    }

    async fn send(&self, method: Method, path: &str, content: Option<(&str, Body)>, limit: Duration) -> io::Result<Answer> {
        let sent = async {
            let stream = UnixStream::connect(&self.socket).await?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
            let connection = tokio::spawn(connection);
            let request = Request::builder().method(method).uri(format!("{}{path}", self.version)).header(HOST, "docker");
            let request = match content {
                Some((kind, body)) => request.header(CONTENT_TYPE, kind).body(body),
                None => request.body(empty()),
            };
            let answer = sender.send_request(request.map_err(io::Error::other)?).await.map_err(io::Error::other)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(io::Error::other)?.to_bytes();
            connection.abort();
            Ok(Answer { status, body })
        };
        timeout(limit, sent).await?
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>, what: &str) -> Result<Answer, EngineError> {
        let content = body.map(|body| ("application/json", full(body.to_string())));
        self.send(method, path, content, CALL_LIMIT).await.map_err(|error| failed(what, error))
    }

    async fn get<T: for<'a> Deserialize<'a>>(&self, path: &str, what: &str) -> Result<T, EngineError> {
        let answer = self.call(Method::GET, path, None, what).await?;
        if answer.status != StatusCode::OK {
            return Err(refused(what, &answer));
        }
        answer.json().map_err(|error| failed(what, error))
    }

    /// Sends a request without a result. `fine` are statuses that mean that there was nothing to do.
    async fn act(&self, method: Method, path: &str, what: &str, fine: &[u16]) -> Result<(), EngineError> {
        let answer = self.call(method, path, None, what).await?;
        if answer.status.is_success() || fine.contains(&answer.status.as_u16()) {
            return Ok(());
        }
        Err(refused(what, &answer))
    }

    /// Why it does not answer, if it doesn't.
    pub(super) async fn problem(&self) -> Option<String> {
        match self.send(Method::GET, "/_ping", None, PING_LIMIT).await {
            Ok(answer) if answer.status == StatusCode::OK => None,
            Ok(answer) => Some(format!("Docker answers {}", answer.status.as_u16())),
            Err(error) => Some(format!("Docker does not answer: {error}")),
        }
    }

    /// Creates a container.
    pub(super) async fn create(&self, name: &str, body: &Value) -> Result<(), EngineError> {
        let what = "create the container";
        let answer = self.call(Method::POST, &format!("/containers/create?name={}", escaped(name)), Some(body), what).await?;
        if answer.status == StatusCode::CREATED { Ok(()) } else { Err(refused(what, &answer)) }
    }

    pub(super) async fn start(&self, name: &str) -> Result<(), EngineError> {
        self.act(Method::POST, &format!("/containers/{name}/start"), "start the container", &[304]).await
    }

    /// Kills all its processes. Its disk stays.
    pub(super) async fn kill(&self, name: &str) -> Result<(), EngineError> {
        self.act(Method::POST, &format!("/containers/{name}/kill"), "end the container", &[404, 409]).await
    }

    /// Kills all its processes and removes it with its disk. Fine if there is none.
    pub(super) async fn remove(&self, name: &str) -> Result<(), EngineError> {
        let what = "remove the container";
        let path = format!("/containers/{name}?force=1&v=1");
        let end = tokio::time::Instant::now() + CALL_LIMIT;
        loop {
            let answer = self.call(Method::DELETE, &path, None, what).await?;
            match answer.status {
                status if status.is_success() || status == StatusCode::NOT_FOUND => return Ok(()),
                // Another removal of it runs.
                StatusCode::CONFLICT if tokio::time::Instant::now() < end => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                _ => return Err(refused(what, &answer)),
            }
        }
    }

    pub(super) async fn pause(&self, name: &str) -> Result<(), EngineError> {
        self.act(Method::POST, &format!("/containers/{name}/pause"), "pause the container", &[]).await
    }

    pub(super) async fn unpause(&self, name: &str) -> Result<(), EngineError> {
        self.act(Method::POST, &format!("/containers/{name}/unpause"), "resume the container", &[]).await
    }

    /// None if there is no such container.
    pub(super) async fn state(&self, name: &str) -> Result<Option<State>, EngineError> {
        Ok(self.inspect(name).await?.map(|inspected| inspected.state))
    }

    async fn inspect(&self, name: &str) -> Result<Option<Inspected>, EngineError> {
        let what = "look at the container";
        let answer = self.call(Method::GET, &format!("/containers/{name}/json"), None, what).await?;
        match answer.status {
            StatusCode::OK => answer.json().map(Some).map_err(|error| failed(what, error)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(refused(what, &answer)),
        }
    }

    /// Docker's own id of a container.
    pub(super) async fn id(&self, name: &str) -> Result<Option<String>, EngineError> {
        Ok(self.inspect(name).await?.map(|inspected| inspected.id))
    }

    /// All containers with this label, running or not.
    pub(super) async fn list(&self, label: &str) -> Result<Vec<Listed>, EngineError> {
        let filters = json!({"label": [label]}).to_string();
        self.get(&format!("/containers/json?all=1&filters={}", escaped(&filters)), "list its containers").await
    }

    pub(super) async fn stats(&self, name: &str) -> Result<Stats, EngineError> {
        self.get(&format!("/containers/{name}/stats?stream=false&one-shot=true"), "count the container's usage").await
    }

    pub(super) async fn has_image(&self, reference: &str) -> Result<bool, EngineError> {
        let what = "look for the image";
        let answer = self.call(Method::GET, &format!("/images/{reference}/json"), None, what).await?;
        match answer.status {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(refused(what, &answer)),
        }
    }

    /// The tags of a repository's images.
    pub(super) async fn image_tags(&self, repository: &str) -> Result<Vec<String>, EngineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Image {
            #[serde(default)]
            repo_tags: Option<Vec<String>>,
        }
        let filters = json!({"reference": [repository]}).to_string();
        let images: Vec<Image> = self.get(&format!("/images/json?filters={}", escaped(&filters)), "list its images").await?;
        let tags = images.into_iter().flat_map(|image| image.repo_tags.unwrap_or_default());
        Ok(tags.filter_map(|tag| Some(tag.strip_prefix(repository)?.strip_prefix(':')?.to_owned())).collect())
    }

    /// Removes an image, unless a container uses it.
    pub(super) async fn remove_image(&self, reference: &str) -> Result<(), EngineError> {
        self.act(Method::DELETE, &format!("/images/{reference}"), "remove the image", &[404, 409]).await
    }

    /// Loads an archive as `docker save` writes it.
    pub(super) async fn load(&self, archive: &Path) -> Result<(), EngineError> {
        let what = "load the image";
        let file = tokio::fs::File::open(archive).await.map_err(|error| failed(what, error))?;
        let chunks = stream::try_unfold(file, |mut file| async move {
            let mut chunk = vec![0; CHUNK];
            let length = file.read(&mut chunk).await?;
            chunk.truncate(length);
            Ok::<_, io::Error>((length > 0).then(|| (Frame::data(Bytes::from(chunk)), file)))
        });
        let body = StreamBody::new(chunks).boxed_unsync();
        let sent = self.send(Method::POST, "/images/load?quiet=1", Some(("application/x-tar", body)), LOAD_LIMIT);
        let answer = sent.await.map_err(|error| failed(what, error))?;
        // Docker sends the status before it reads the archive.
        let text = String::from_utf8_lossy(&answer.body);
        let mut errors =
            text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()?["error"].as_str().map(str::to_owned));
        match errors.next_back() {
            None if answer.status == StatusCode::OK => Ok(()),
            None => Err(refused(what, &answer)),
            Some(error) => Err(failed(what, io::Error::other(error.chars().take(MAX_MESSAGE).collect::<String>()))),
        }
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn full(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

fn empty() -> Body {
    full(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each request with the next of these bodies, as HTTP/1.1 with a status.
    fn fake(answers: Vec<(u16, &'static str)>) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = [0; 4096];
                let _ = stream.read(&mut asked).await.unwrap();
                let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await.unwrap();
                // The rest of the request may still be on its way: a closed connection would hide the answer.
                tokio::spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
            }
        });
        (dir, socket)
    }

    const VERSION: &str = r#"{"ApiVersion":"1.52","MinAPIVersion":"1.44","Os":"linux"}"#;

    #[tokio::test]
    async fn both_sides_speak_one_version() {
        let (_dir, socket) = fake(vec![(200, VERSION), (200, "{}"), (404, r#"{"message":"No such image"}"#)]);
        let docker = Docker::connect(&socket).await.unwrap();
        assert_eq!(docker.version, "/v1.44");
        assert!(!docker.has_image("a:b").await.unwrap());
        let (_dir, socket) = fake(vec![(200, r#"{"ApiVersion":"1.40","MinAPIVersion":"1.12","Os":"linux"}"#)]);
        let error = Docker::connect(&socket).await.unwrap_err().to_string();
        assert!(error.contains("1.40") && error.contains("20.10"), "{error}");
        let missing = Docker::connect(Path::new("/nowhere/docker.sock")).await.unwrap_err();
        assert!(missing.hint().is_some_and(|hint| hint.contains("docker_socket")), "{missing}");
    }

    #[tokio::test]
    async fn refusals_and_failed_loads_carry_dockers_message() {
        let failed_load = "{\"stream\":\"x\"}\n{\"error\":\"no space left on device\"}\n";
        let removing = (409, r#"{"message":"removal is already in progress"}"#);
        let (dir, socket) = fake(vec![
            (200, VERSION),
            (200, "{}"),
            (500, r#"{"message":"it is broken"}"#),
            (200, failed_load),
            removing,
            (404, "{}"),
        ]);
        let docker = Docker::connect(&socket).await.unwrap();
        let refused = docker.start("x").await.unwrap_err().to_string();
        assert!(refused.contains("500: it is broken"), "{refused}");
        let archive = dir.path().join("archive");
        std::fs::write(&archive, "x").unwrap();
        let full = docker.load(&archive).await.unwrap_err().to_string();
        assert!(full.contains("no space left"), "{full}");
        docker.remove("x").await.unwrap();
    }

    #[test]
    fn a_disk_limit_needs_a_driver_and_a_file_system_that_count() {
        let info = |driver: &str, backing: &str| Info {
            driver: driver.to_owned(),
            driver_status: vec![("Backing Filesystem".to_owned(), backing.to_owned())],
            docker_root_dir: "/var/lib/docker".into(),
            ..Info::default()
        };
        let mounts = "/dev/a / ext4 rw 0 0\n/dev/b /var/lib/docker xfs rw,prjquota 0 0\n/dev/c /var xfs rw 0 0\n";
        assert!(info("overlay2", "xfs").limits_disk(mounts));
        assert!(!info("overlay2", "xfs").limits_disk("/dev/a / xfs rw 0 0\n"));
        assert!(!info("overlay2", "extfs").limits_disk(mounts));
        assert!(info("btrfs", "").limits_disk("") && !info("vfs", "xfs").limits_disk(mounts));
    }

    #[test]
    fn a_daemon_is_asked_about_what_it_enforces() {
        let text = r#"{"MemoryLimit":true,"PidsLimit":true,"CpuCfsQuota":false,"SecurityOptions":["name=seccomp,profile=default","name=userns"]}"#;
        let info: Info = serde_json::from_str(text).unwrap();
        assert_eq!(info.missing(), ["CPU limits"]);
        assert!(info.remaps_users() && !info.is_rootless());
    }

    #[test]
    fn filters_become_one_part_of_a_url() {
        assert_eq!(escaped("{\"a\":[\"b=c\"]}"), "%7B%22a%22%3A%5B%22b%3Dc%22%5D%7D");
        assert_eq!(parse_version("1.41"), Some((1, 41)));
        assert!(parse_version("1.9") < parse_version("1.41"));
    }
}
