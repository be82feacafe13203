//! A real guest as a child process, called over its Unix socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

/// A temporary directory for one test.
pub(crate) struct Scratch(pub(crate) PathBuf);

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Scratch {
    pub(crate) fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("arenite-files-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Names of entries in it, or in a subdirectory.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(dir)).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Guest {
    child: Child,
    socket: PathBuf,
    _dir: Scratch,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Only root can run tests that need another user.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Guest {
    /// A guest with the rights of this process.
    pub(crate) fn start(workdir: &Path) -> Self {
        Self::start_as(workdir, "root")
    }

    /// A guest that runs calls without `sudo` as `user`.
    pub(crate) fn start_as(workdir: &Path, user: &str) -> Self {
        let dir = Scratch::new();
        let (socket, config) = (dir.0.join("guest.sock"), dir.0.join("config.json"));
        let text = json!({"workdir": workdir, "user": user, "sandbox_id": "test", "env": {"TZ": "Europe/Zurich"}});
        std::fs::write(&config, text.to_string()).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_guest-standalone"))
            .arg(format!("unix:{}", socket.display()))
            .arg(&config)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Self { child, socket, _dir: dir }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).await.unwrap()
    }

    /// Sends one request and reads the whole answer. An error is a broken connection.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Result<(StatusCode, HeaderMap, Bytes)> {
        let io = TokioIo::new(self.connect().await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok((head.status, head.headers, body.collect().await?.to_bytes()))
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Bytes) {
        let mut request = Request::get(path).header("host", "guest");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::default()).unwrap()).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> (StatusCode, Value) {
        let request = Request::post(path).header("host", "guest").header("content-type", "application/json");
        let request = request.body(Full::from(body.to_owned())).unwrap();
        let (status, _, body) = self.send(request).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{e}: {body:?}")))
    }

    async fn call(&self, operation: &str, arguments: &Value) -> Value {
        let (status, answer) = self.post(&format!("/v1/file/{operation}"), &arguments.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{operation} {arguments}: {answer}");
        answer
    }

    /// Makes a file call that must succeed; returns its data.
    pub(crate) async fn file(&self, operation: &str, arguments: Value) -> Value {
        let answer = self.call(operation, &arguments).await;
        assert_eq!(answer["success"], true, "{operation} {arguments}: {answer}");
        answer["data"].clone()
    }

    /// Makes a file call that must fail; returns its data.
    pub(crate) async fn refused(&self, operation: &str, arguments: Value) -> Value {
        let answer = self.call(operation, &arguments).await;
        assert_eq!(answer["success"], false, "{operation} {arguments}: {answer}");
        assert_eq!(answer["message"], answer["data"]["message"]);
        answer["data"].clone()
    }

    /// Makes a file call that must fail; returns the kind of failure.
    pub(crate) async fn error_type(&self, operation: &str, arguments: Value) -> String {
        self.refused(operation, arguments).await["error_type"].as_str().unwrap().to_owned()
    }

    /// Uploads a form, with parts of name, optional file name, and content; returns the answer.
    pub(crate) async fn upload(&self, parts: &[(&str, Option<&str>, &[u8])]) -> (StatusCode, Value) {
        let request = Request::post("/v1/file/upload")
            .header("host", "guest")
            .header("content-type", "multipart/form-data; boundary=BOUNDARY")
            .body(Full::from(multipart(parts)))
            .unwrap();
        let (status, _, body) = self.send(request).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{e}: {body:?}")))
    }
}

pub(crate) fn multipart(parts: &[(&str, Option<&str>, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file_name, content) in parts {
        let file_name = file_name.map(|f| format!("; filename=\"{f}\"")).unwrap_or_default();
        let head = format!("--BOUNDARY\r\nContent-Disposition: form-data; name=\"{name}\"{file_name}\r\n\r\n");
        body.extend(head.into_bytes());
        body.extend(*content);
        body.extend(b"\r\n");
    }
    body.extend(b"--BOUNDARY--\r\n");
    body
}
