//! The registry of MCP servers over HTTP, with real servers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::{Value, json};
use standalone::{Guest, eventually};

/// The program of a server.
fn server() -> String {
    format!("{}/tests/mcp/server.py", std::env::var("CARGO_MANIFEST_DIR").unwrap())
}

fn stdio() -> Value {
    json!({"command": "python3", "args": ["-u", server()]})
}

async fn guest(servers: Value) -> Guest {
    Guest::start_with("root", &[("EXTRA_MCP_SERVERS", &servers.to_string())]).await
}

async fn call(guest: &Guest, server: &str, tool: &str, arguments: Value) -> (StatusCode, Value) {
    guest.call("POST", &format!("/v1/mcp/{server}/tools/{tool}"), arguments.to_string()).await
}

/// Calls a tool and returns the text of its result.
async fn said(guest: &Guest, server: &str, tool: &str, arguments: Value) -> String {
    let (status, answer) = call(guest, server, tool, arguments).await;
    assert_eq!((status, &answer["data"]["isError"]), (StatusCode::OK, &json!(false)), "{answer}");
    answer["data"]["content"][0]["text"].as_str().unwrap().to_owned()
}

fn message(answer: &Value) -> &str {
    assert!(answer["success"] == false && answer["data"].is_null(), "{answer}");
    answer["message"].as_str().unwrap()
}

#[tokio::test]
async fn a_stdio_server_starts_at_its_first_call_and_answers() {
    let mut one = stdio();
    one["env"] = json!({"GREETING": "hello"});
    let guest = guest(json!({"one": one, "shy": {"command": "x", "hidden": true}})).await;
    assert_eq!(guest.get("/v1/mcp/servers").await, json!(["browser", "markitdown", "one", "sandbox"]));
    assert_eq!(
        guest.get("/v1/mcp/servers?include_hidden=true").await,
        json!(["browser", "file", "markitdown", "one", "sandbox", "shell", "shy"])
    );
    assert!(guest.processes("server.py").is_empty());

    let tools = guest.get("/v1/mcp/one/tools").await;
    let names: Vec<&str> = tools["tools"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["echo", "fail", "image", "structured", "sleep", "die", "big", "environment", "orphan"]);
    assert_eq!(tools["tools"][0]["inputSchema"]["type"], "object");
    assert!(tools.get("nextCursor").is_none());

    assert_eq!(said(&guest, "one", "echo", json!({"text": "ü", "n": null})).await, r#"{"n": null, "text": "\u00fc"}"#);
    // An empty body means no arguments.
    let (status, answer) = guest.call("POST", "/v1/mcp/one/tools/echo", "").await;
    assert_eq!((status, &answer["data"]["content"][0]["text"]), (StatusCode::OK, &json!("{}")));
    let image = call(&guest, "one", "image", json!({})).await.1;
    assert_eq!(image["data"]["content"][0], json!({"type": "image", "data": "aGk=", "mimeType": "image/png"}));
    let structured = call(&guest, "one", "structured", json!({})).await.1;
    assert_eq!(structured["data"]["structuredContent"], json!({"n": [1, 2.5]}));
    assert_eq!(structured["data"]["_meta"], json!({"example.org/x": true}));
    let environment: Value = serde_json::from_str(&said(&guest, "one", "environment", json!({})).await).unwrap();
    assert_eq!((&environment["GREETING"], &environment["HOME"]), (&json!("hello"), &json!(guest.dir)));
    // All of these came from one process.
    assert_eq!(guest.processes("server.py"), [environment["pid"].as_i64().unwrap() as i32]);
}

#[tokio::test]
async fn failures_say_what_failed() {
    let crash = json!({"command": "bash", "args": ["-c", "echo broken wheel >&2; exit 3"]});
    let silent = json!({"command": "sleep", "args": ["4218"], "connect_timeout": 0.3});
    let servers = json!({
        "one": stdio(), "crash": crash, "silent": silent, "absent": {"command": "no-such-program"}, "wrong": {"args": []},
        "port": {"url": "http://127.0.0.1:1/mcp"}, "name": {"url": "http://no-such-host.invalid/mcp"},
    });
    let guest = guest(servers).await;
    let (status, answer) = call(&guest, "one", "fail", json!({})).await;
    assert_eq!((status, &answer["success"], &answer["data"]["isError"]), (StatusCode::OK, &json!(true), &json!(true)));

    let (status, answer) = call(&guest, "one", "nothing", json!({})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(message(&answer).contains("Unknown tool: nothing"), "{answer}");
    for (server, wanted) in [
        ("crash", "ended with code 3; its standard error ends with: broken wheel"),
        ("silent", "did not answer the handshake within 0.3 s"),
        ("absent", "no-such-program"),
        ("wrong", "either `command` or `url`"),
        ("port", "127.0.0.1:1: Connection refused"),
    ] {
        let (status, answer) = guest.call("GET", &format!("/v1/mcp/{server}/tools"), "").await;
        assert_eq!(status, StatusCode::FAILED_DEPENDENCY, "{answer}");
        assert!(message(&answer).contains(wanted), "{server}: {answer}");
    }
    guest.gone("sleep 4218").await;
    let (status, answer) = call(&guest, "none", "x", json!({})).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(answer["hint"].as_str().unwrap().contains("/v1/mcp/servers"));
    for body in ["[]", "3", "{", "null"] {
        let (status, answer) = guest.call("POST", "/v1/mcp/one/tools/echo", body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{body} {answer}");
    }
}

#[tokio::test]
async fn a_server_that_dies_fails_its_call_and_is_started_again() {
    let guest = guest(json!({"one": stdio()})).await;
    let first = said(&guest, "one", "environment", json!({})).await;
    said(&guest, "one", "orphan", json!({})).await;
    let (status, answer) = call(&guest, "one", "die", json!({})).await;
    assert_eq!(status, StatusCode::FAILED_DEPENDENCY);
    assert!(message(&answer).contains("ended with code 7; its standard error ends with: I am dying"), "{answer}");
    // The processes that it started are gone too.
    guest.gone("sleep 4217").await;
    let second = said(&guest, "one", "environment", json!({})).await;
    assert_ne!(first, second);
    // It is killed between calls.
    let pid: Value = serde_json::from_str(&second).unwrap();
    let pid = rustix::process::Pid::from_raw(pid["pid"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    guest.gone("server.py").await;
    // A call may still be on its way to the killed process.
    let deadline = Instant::now() + Duration::from_secs(30);
    while call(&guest, "one", "echo", json!({})).await.0 != StatusCode::OK {
        assert!(Instant::now() < deadline, "it is not started again");
    }
}

#[tokio::test]
async fn calls_run_side_by_side_and_time_out_alone() {
    let mut one = stdio();
    one["timeout"] = json!(1.5);
    let guest = guest(json!({"one": one})).await;
    said(&guest, "one", "echo", json!({})).await;
    let begun = Instant::now();
    let calls = (0..20).map(|n| {
        let guest = &guest;
        async move { said(guest, "one", if n % 2 == 0 { "sleep" } else { "echo" }, json!({"seconds": 0.5})).await }
    });
    futures_util::future::join_all(calls).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());

    let late = call(&guest, "one", "sleep", json!({"seconds": 60}));
    let quick = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        said(&guest, "one", "echo", json!({})).await
    };
    let ((status, answer), _) = tokio::join!(late, quick);
    assert_eq!(status, StatusCode::FAILED_DEPENDENCY);
    assert!(message(&answer).contains("within 1.5 s"), "{answer}");

    // More than the maximum of concurrent calls.
    let many = (0..100).map(|_| call(&guest, "one", "sleep", json!({"seconds": 1})));
    let statuses: Vec<StatusCode> = futures_util::future::join_all(many).await.into_iter().map(|(status, _)| status).collect();
    let count = |wanted| statuses.iter().filter(|s| **s == wanted).count();
    assert_eq!((count(StatusCode::OK), count(StatusCode::TOO_MANY_REQUESTS)), (64, 36), "{statuses:?}");
}

#[tokio::test]
async fn large_answers_pass_up_to_the_bound() {
    let mut one = stdio();
    one["timeout"] = json!(10);
    let guest = guest(json!({"one": one})).await;
    let text = said(&guest, "one", "big", json!({"bytes": 10 << 20})).await;
    assert_eq!(text.len(), 10 << 20);
    let (status, answer) = call(&guest, "one", "big", json!({"bytes": 17 << 20})).await;
    assert_eq!(status, StatusCode::FAILED_DEPENDENCY, "{}", answer["message"]);
    said(&guest, "one", "echo", json!({})).await;
    assert!(guest.peak_memory() < 160 << 20, "{}", guest.peak_memory());
}

#[tokio::test]
async fn the_file_is_read_again_and_a_changed_server_ends() {
    let scratch = std::env::temp_dir().join(format!("arenite-mcp-{:016x}.json", getrandom::u64().unwrap()));
    let file = scratch.display().to_string();
    let write = |servers: Value| std::fs::write(&scratch, servers.to_string()).unwrap();
    write(json!({"mcpServers": {"one": stdio(), "two": stdio(), "three": stdio()}}));
    let variables = [("MCP_SERVERS_FILE", &*file), ("MCP_FILTER_SERVERS", "one, two,other")];
    let guest = Guest::start_with("root", &variables).await;
    assert_eq!(guest.get("/v1/mcp/servers").await, json!(["one", "two"]));
    assert_eq!(call(&guest, "three", "echo", json!({})).await.0, StatusCode::NOT_FOUND);
    said(&guest, "one", "echo", json!({})).await;
    assert_eq!(guest.processes("server.py").len(), 1);
    let mut one = stdio();
    one["env"] = json!({"GREETING": "changed"});
    write(json!({"mcpServers": {"one": one}}));
    assert!(said(&guest, "one", "environment", json!({})).await.contains("changed"));
    eventually("the former server has ended", || guest.processes("server.py").len() == 1).await;
    write(json!({}));
    assert_eq!(call(&guest, "one", "echo", json!({})).await.0, StatusCode::NOT_FOUND);
    guest.gone("server.py").await;
    for broken in ["{", "[]", r#"{"mcpServers": 3}"#] {
        std::fs::write(&scratch, broken).unwrap();
        let (status, answer) = guest.call("GET", "/v1/mcp/servers", "").await;
        assert_eq!(status, StatusCode::FAILED_DEPENDENCY);
        assert!(message(&answer).contains(&file), "{answer}");
    }
    std::fs::remove_file(&scratch).unwrap();
    assert_eq!(guest.call("GET", "/v1/mcp/servers", "").await.0, StatusCode::FAILED_DEPENDENCY);
}

struct HttpServer {
    process: Child,
    port: String,
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a server; with a file of a key and its certificate, it uses TLS.
async fn http_server(certificate: Option<&Path>) -> HttpServer {
    let file = std::env::temp_dir().join(format!("arenite-mcp-port-{:016x}", getrandom::u64().unwrap()));
    let process = Command::new("python3").arg(server()).arg(&file).args(certificate).stdin(Stdio::null()).spawn().unwrap();
    eventually("the server listens", || file.exists()).await;
    let port = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    HttpServer { process, port }
}

#[tokio::test]
async fn a_server_is_reached_over_streamable_http() {
    let server = http_server(None).await;
    let url = format!("http://localhost:{}/mcp", server.port);
    let guest = guest(json!({
        "web": {"url": url, "headers": {"X-Key": "sekrit"}},
        "locked": {"url": url},
    }))
    .await;
    assert_eq!(guest.get("/v1/mcp/web/tools").await["tools"].as_array().unwrap().len(), 9);
    assert_eq!(said(&guest, "web", "echo", json!({"a": 1})).await, r#"{"a": 1}"#);
    assert_eq!(call(&guest, "web", "nothing", json!({})).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(said(&guest, "web", "big", json!({"bytes": 4 << 20})).await.len(), 4 << 20);
    let (status, answer) = guest.call("GET", "/v1/mcp/locked/tools", "").await;
    assert_eq!(status, StatusCode::FAILED_DEPENDENCY);
    assert!(message(&answer).contains("401") && !message(&answer).contains("sekrit"), "{answer}");
    // It stops and is restarted.
    drop(server);
    let (status, answer) = call(&guest, "web", "echo", json!({})).await;
    assert_eq!(status, StatusCode::FAILED_DEPENDENCY, "{answer}");
}

#[tokio::test]
async fn a_server_behind_tls_must_be_trusted() {
    let dir = std::env::temp_dir().join(format!("arenite-mcp-tls-{:016x}", getrandom::u64().unwrap()));
    std::fs::create_dir(&dir).unwrap();
    let file = dir.join("both.pem");
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE", "-keyout"])
        .args([&file, Path::new("-out"), &dir.join("certificate.pem")])
        .stderr(Stdio::null())
        .status();
    assert!(made.unwrap().success());
    let certificate = std::fs::read_to_string(dir.join("certificate.pem")).unwrap();
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + &certificate).unwrap();
    let server = http_server(Some(&file)).await;
    let web = |host: &str| json!({"url": format!("https://{host}:{}/mcp", server.port), "headers": {"X-Key": "sekrit"}});
    let servers = json!({"web": web("localhost"), "other": web("127.0.0.1")}).to_string();

    let trusting = [("EXTRA_MCP_SERVERS", servers.as_str()), ("SSL_CERT_FILE", file.to_str().unwrap())];
    let guest = Guest::start_with("root", &trusting).await;
    assert_eq!(said(&guest, "web", "echo", json!({"a": 1})).await, r#"{"a": 1}"#);
    let doubting = Guest::start_with("root", &trusting[..1]).await;
    for (guest, server) in [(&guest, "other"), (&doubting, "web")] {
        let (status, answer) = guest.call("GET", &format!("/v1/mcp/{server}/tools"), "").await;
        assert_eq!(status, StatusCode::FAILED_DEPENDENCY);
        assert!(message(&answer).contains("certificate"), "{answer}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}
