//! TLS: handshakes, protocols, and what clients see of the scheme.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use arenite_gateway::{Authentication, Certificates, ConnectionLimits, GatewayConfig};
use arenite_trajectory::Limits;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::{Running, TestResponse, echo, read_head};

const KEY: &str = "0123456789abcdef-the-key";
/// Anything that ends at all ends within this time, on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes `cert.pem` and `key.pem`.
fn certify(dir: &Path) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

struct Secured {
    running: Running,
    files: tempfile::TempDir,
}

impl Secured {
    async fn start(connections: ConnectionLimits) -> Self {
        let files = tempfile::tempdir().unwrap();
        certify(files.path());
        let certificates = Certificates::open(files.path().join("cert.pem"), files.path().join("key.pem")).unwrap();
        let auth = Authentication::new(Some(KEY), None, Duration::from_secs(30)).unwrap();
        let config = GatewayConfig { auth, connections, tls: Some(Arc::new(certificates)), ..GatewayConfig::default() };
        Self { running: Running::with(config, Limits::default(), |_, stream| echo(stream)).await, files }
    }

    async fn connect(&self, protocols: &[&str]) -> std::io::Result<TlsStream<tokio::net::TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.files.path().join("cert.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, self.running.connect().await).await
    }

    async fn send(&self, request: &str) -> TestResponse {
        let mut stream = self.connect(&["http/1.1"]).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        TestResponse::read(&mut stream).await
    }
}

#[tokio::test]
async fn the_scheme_is_https_for_clients_and_guests() {
    let secured = Secured::start(ConnectionLimits::default()).await;
    let id = secured.running.create("a").await;
    let head = format!("host: localhost\r\nx-api-key: {KEY}\r\n");
    let sandbox = secured.send(&format!("GET /api/v2/sandboxes/a HTTP/1.1\r\n{head}\r\n")).await.json();
    assert_eq!(sandbox["urls"]["path"], "https://localhost/sandbox/a/");
    assert_eq!(sandbox["urls"]["host"], format!("https://{id}.localhost/"));
    let seen = secured.send(&format!("GET /sandbox/a/v1/x HTTP/1.1\r\n{head}\r\n")).await.json();
    assert_eq!((&seen["headers"]["x-forwarded-proto"], &seen["headers"]["host"]), (&"https".into(), &"localhost".into()));
    let login = format!("{{\"key\":\"{KEY}\"}}");
    let length = login.len();
    let signed_in =
        secured.send(&format!("POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{login}")).await;
    let cookie = signed_in.header("set-cookie").unwrap();
    assert!(cookie.ends_with("; Secure"), "{cookie}");
    let of_page = secured.send(&format!("GET /sandbox/a/v1/x HTTP/1.1\r\n{head}origin: https://localhost\r\n\r\n")).await;
    assert_eq!(of_page.status, 200);
    secured.running.stop().await;
}

#[tokio::test]
async fn clients_choose_the_protocol() {
    let secured = Secured::start(ConnectionLimits::default()).await;
    for (offered, wanted) in [
        (&["h2", "http/1.1"][..], Some(&b"h2"[..])),
        (&["http/1.1", "h2"], Some(b"h2")),
        (&["http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let stream = secured.connect(offered).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), wanted, "{offered:?}");
    }
    let none = secured.connect(&["spdy/1"]).await.unwrap_err();
    assert!(none.to_string().contains("NoApplicationProtocol"), "{none}");
    let mut stream = secured.connect(&["h2"]).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").await.unwrap();
    let mut settings = [0; 4];
    stream.read_exact(&mut settings).await.unwrap();
    assert_eq!(settings[3], 4, "the first frame is SETTINGS");
    secured.running.stop().await;
}

#[tokio::test]
async fn http_without_tls_gets_a_reason() {
    let secured = Secured::start(ConnectionLimits::default()).await;
    let mut stream = secured.running.connect().await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).await.unwrap();
    assert!(all.starts_with("HTTP/1.1 400") && all.ends_with("use https:// instead of http://"), "{all}");
    secured.running.stop().await;
}

#[tokio::test]
async fn an_unfinished_handshake_ends() {
    let limits = ConnectionLimits { head: Duration::from_secs(1), waiting: 8, ..ConnectionLimits::default() };
    let secured = Secured::start(limits).await;
    // The start of a handshake's first record, of 512 bytes.
    for sent in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut stream = secured.running.connect().await;
        stream.write_all(sent).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "it never ended after {sent:?}");
    }
    let mut stream = secured.connect(&["http/1.1"]).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "it never ended after the handshake");
    // Silent ones are evicted by newer connections.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(secured.running.connect().await);
    }
    assert_eq!(secured.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.status, 200);
    secured.running.stop().await;
}

#[tokio::test]
async fn calls_in_progress_survive_the_start_of_a_stop() {
    let secured = Secured::start(ConnectionLimits::default()).await;
    secured.running.create("a").await;
    let mut open = secured.connect(&["http/1.1"]).await.unwrap();
    let body = "{\"command\":\"x\"}";
    let head =
        format!("POST /sandbox/a/v1/x HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\ncontent-length: {}\r\n\r\n", body.len());
    open.write_all(head.as_bytes()).await.unwrap();
    let unfinished = secured.running.connect().await;
    let stopping = tokio::spawn(secured.running.stop());
    open.write_all(body.as_bytes()).await.unwrap();
    assert_eq!(TestResponse::read(&mut open).await.status, 200);
    assert!(read_head(&mut open).await.is_none(), "the connection is closed after the answer");
    tokio::time::timeout(PATIENCE, stopping).await.unwrap().unwrap();
    drop(unfinished);
}
