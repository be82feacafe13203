//! A running gateway, scripted guests, and a client that sees every byte.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::tenants::{NewKey, Role};
use arenite_control::{Control, ControlConfig, CreateRequest};
use arenite_gateway::{GatewayConfig, Server};
use arenite_model::{KeyId, SandboxId, TenantId};
use arenite_trajectory::{Limits, Recorder, Step};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<FakeEngine>,
    pub(crate) control: Arc<Control>,
    pub(crate) recorder: Recorder,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
    dir: tempfile::TempDir,
}

impl Running {
    pub(crate) async fn start<F, Fut>(guest: F) -> Self
    where
        F: Fn(SandboxId, DuplexStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::with(GatewayConfig::default(), Limits::default(), guest).await
    }

    pub(crate) async fn with<F, Fut>(config: GatewayConfig, limits: Limits, guest: F) -> Self
    where
        F: Fn(SandboxId, DuplexStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::launch(config, limits, false, guest).await
    }

    /// A server with tenants.
    pub(crate) async fn with_tenants<F, Fut>(guest: F) -> Self
    where
        F: Fn(SandboxId, DuplexStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::with_tenants_and(GatewayConfig::default(), guest).await
    }

    /// The same with a configuration.
    pub(crate) async fn with_tenants_and<F, Fut>(config: GatewayConfig, guest: F) -> Self
    where
        F: Fn(SandboxId, DuplexStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::launch(config, Limits::default(), true, guest).await
    }

    async fn launch<F, Fut>(config: GatewayConfig, limits: Limits, tenants: bool, guest: F) -> Self
    where
        F: Fn(SandboxId, DuplexStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let dir = tempfile::tempdir().unwrap();
        let engine = FakeEngine::new();
        engine.serve(guest);
        let mut config_of_control = ControlConfig::new(dir.path().to_owned(), "base".parse().unwrap());
        config_of_control.tenants = tenants;
        let control = Control::start(config_of_control, engine.clone()).await.unwrap();
        let recorder = Recorder::open(dir.path().join("trajectories"), limits).unwrap();
        let config = GatewayConfig { listen: vec![([127, 0, 0, 1], 0).into()], drain: Duration::from_secs(1), ..config };
        let server = Server::bind(config, control.clone(), recorder.clone()).await.unwrap();
        let address = server.addresses()[0];
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async move {
            let _ = stopped.await;
        }));
        Self { address, engine, control, recorder, stop: Some(stop), serving, dir }
    }

    /// Creates a sandbox of this name, and returns its id.
    pub(crate) async fn create(&self, name: &str) -> SandboxId {
        let request = CreateRequest { name: Some(name.parse().unwrap()), ..CreateRequest::default() };
        self.control.create(&TenantId::default_tenant(), request).await.unwrap().id
    }

    /// Creates a sandbox of a tenant.
    pub(crate) async fn create_in(&self, tenant: &str, name: &str) -> SandboxId {
        let request = CreateRequest { name: Some(name.parse().unwrap()), ..CreateRequest::default() };
        self.control.create(&tenant.parse().unwrap(), request).await.unwrap().id
    }

    /// Creates a key of a tenant, and the tenant if needed. Returns its id and its text.
    pub(crate) async fn key(&self, tenant: &str, role: Role, change: impl FnOnce(&mut NewKey)) -> (KeyId, String) {
        let tenants = self.control.tenants().unwrap();
        let tenant: TenantId = tenant.parse().unwrap();
        if tenants.get(&tenant).is_err() {
            tenants.create(tenant.clone()).await.unwrap();
        }
        let (bound, operator) = (Vec::new(), false);
        let mut new = NewKey { tenant, name: "of a test".to_owned(), role, expires_in: None, bound, operator };
        change(&mut new);
        let (key, text) = tenants.create_key(new).await.unwrap();
        (key.id, text.as_str().to_owned())
    }

    pub(crate) fn steps(&self, id: &SandboxId) -> Vec<Step> {
        self.recorder.steps(&TenantId::default_tenant(), id.as_str(), 0, 100).unwrap_or_default()
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request unchanged and reads its answer.
    pub(crate) async fn raw(&self, request: &[u8]) -> TestResponse {
        let mut stream = self.connect().await;
        // A server that refuses early may not read all of it.
        let _ = stream.write_all(request).await;
        TestResponse::read(&mut stream).await
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.get_with(path, "").await
    }

    /// With additional header lines, each with its line end.
    pub(crate) async fn get_with(&self, path: &str, headers: &str) -> TestResponse {
        let host = if headers.to_ascii_lowercase().contains("host:") { "" } else { "host: localhost\r\n" };
        self.raw(format!("GET {path} HTTP/1.1\r\n{host}{headers}\r\n").as_bytes()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> TestResponse {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.raw(request.as_bytes()).await
    }

    /// Its files exist as long as the returned directory.
    pub(crate) async fn stop(mut self) -> tempfile::TempDir {
        let _ = self.stop.take().unwrap().send(());
        self.serving.await.unwrap();
        self.dir
    }
}

#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// The body is complete.
    pub(crate) whole: bool,
}

impl TestResponse {
    pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Self {
        Self::try_read(stream).await.expect("an answer")
    }

    /// None if the connection was closed instead.
    pub(crate) async fn try_read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let head = read_head(stream).await?;
        Self::of_head(&head, stream).await
    }

    async fn of_head(head: &str, stream: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = headers_of(lines);
        let mut answer = Self { status, headers, body: Vec::new(), whole: true };
        if let Some(length) = answer.header("content-length") {
            let mut body = vec![0; length.parse().unwrap()];
            answer.whole = stream.read_exact(&mut body).await.is_ok();
            answer.body = body;
        } else if answer.header("transfer-encoding") == Some("chunked") {
            answer.whole = answer.read_chunks(stream).await.is_ok();
        }
        Some(answer)
    }

    /// The same; an endless stream counts as broken off, and an answer without a length has no body.
    pub(crate) async fn try_read_whole(stream: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let head = read_head(stream).await?;
        if head.to_ascii_lowercase().contains("content-type: text/event-stream") {
            let mut lines = head.split("\r\n");
            let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
            return Some(Self { status, headers: headers_of(lines), body: Vec::new(), whole: false });
        }
        Self::of_head(&head, stream).await
    }

    async fn read_chunks(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<()> {
        loop {
            let chunk = read_chunk(stream).await?;
            if chunk.is_empty() {
                return Ok(());
            }
            self.body.extend(chunk);
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

fn headers_of<'a>(lines: impl Iterator<Item = &'a str>) -> HashMap<String, String> {
    lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect()
}

pub(crate) async fn read_chunk(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await?);
    }
    let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
    let mut chunk = vec![0; size + 2];
    stream.read_exact(&mut chunk).await?;
    chunk.truncate(size);
    Ok(chunk)
}

/// Reads up to the empty line; none if the stream ends before.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

/// A request as a guest receives it.
pub(crate) struct Got {
    /// `POST /v1/x`.
    pub(crate) line: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// Reads one request; none when the connection ends. Answers the gateway's own requests for inside steps itself, with none,
/// because they are irrelevant to the scripts.
pub(crate) async fn request(stream: &mut DuplexStream) -> Option<Got> {
    loop {
        let head = read_head(stream).await?;
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
        let headers = headers_of(lines);
        if line.contains("/internal/") {
            respond(stream, "404 Not Found", "").await;
            continue;
        }
        let mut body = Vec::new();
        if let Some(length) = headers.get("content-length") {
            body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).await.ok()?;
        } else if headers.contains_key("transfer-encoding") {
            loop {
                let chunk = read_chunk(stream).await.ok()?;
                if chunk.is_empty() {
                    break;
                }
                body.extend(chunk);
            }
        }
        return Some(Got { line, headers, body });
    }
}

pub(crate) async fn respond(stream: &mut DuplexStream, status: &str, body: &str) {
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nx-arenite-protocol: 1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(text.as_bytes()).await;
}

/// Answers every request with its line and its body.
pub(crate) async fn echo(mut stream: DuplexStream) {
    while let Some(got) = request(&mut stream).await {
        let body = serde_json::json!({
            "line": got.line, "headers": got.headers, "body": String::from_utf8_lossy(&got.body),
        });
        respond(&mut stream, "200 OK", &body.to_string()).await;
    }
}

/// Waits for a condition that comes true by itself, without guessing how long it takes.
pub(crate) async fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "it never came about");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
