//! The forward proxy with real connections: commands that use it, target servers, and an upstream that requires a password.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use standalone::Guest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that answers each connection's first request with its head, and echoes `tunnelled` bytes.
struct Server {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.unwrap_or(0) > 0 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = heads.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let seen = seen.clone();
                tokio::spawn(async move {
                    let head = head(&mut stream).await;
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\r\n{head}",
                        head.len()
                    );
                    seen.lock().unwrap().push(head);
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        Self { port, heads }
    }

    /// An upstream proxy that requires `me:PASSWORD`, tunnels for CONNECT, and answers other requests with their head.
    async fn upstream(password: Arc<Mutex<String>>) -> Self {
        use base64::Engine;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = heads.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (seen, password) = (seen.clone(), password.clone());
                tokio::spawn(async move {
                    let head = head(&mut stream).await;
                    seen.lock().unwrap().push(head.clone());
                    let wanted = base64::prelude::BASE64_STANDARD.encode(format!("me:{}", password.lock().unwrap()));
                    if !head.to_ascii_lowercase().contains(&format!("proxy-authorization: basic {}", wanted.to_ascii_lowercase()))
                    {
                        let _ = stream.write_all(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n").await;
                    } else if let Some(rest) = head.strip_prefix("CONNECT ") {
                        // Here, all names resolve to this host.
                        let port = rest.split([':', ' ']).nth(1).unwrap();
                        let mut to = TcpStream::connect(format!("127.0.0.1:{port}")).await.unwrap();
                        stream.write_all(b"HTTP/1.1 200 Fine\r\n\r\n").await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut stream, &mut to).await;
                    } else {
                        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
                        let _ = stream.write_all(answer.as_bytes()).await;
                    }
                });
            }
        });
        Self { port, heads }
    }
}

struct Proxied {
    guest: Guest,
    port: u16,
}

impl Proxied {
    async fn start(variables: &[(&str, &str)]) -> Self {
        // The port was free a moment ago, and ports are assigned in turn.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = port.to_string();
        let variables: Vec<(&str, &str)> = variables.iter().copied().chain([("PROXY_PORT", &*text)]).collect();
        Self { guest: Guest::start_with("root", &variables).await, port }
    }

    async fn map(&self, source: &str, target: &str) -> Value {
        self.guest.post("/v1/proxy/mappings", json!({"source": source, "target": target})).await
    }

    /// Sends bytes to the proxy, and returns its answer, until it closes or is silent.
    async fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
        String::from_utf8(answer).unwrap()
    }

    async fn get(&self, url: &str) -> String {
        self.ask(&format!("GET {url} HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n")).await
    }

    async fn diagnose(&self, url: &str) -> Value {
        self.guest.get(&format!("/v1/proxy/diagnose?url={url}")).await
    }

    async fn run(&self, command: &str) -> String {
        let done = self.guest.post("/v1/bash/exec", json!({"command": command})).await;
        assert_eq!(done["exit_code"], 0, "{done}");
        done["stdout"].as_str().unwrap_or_default().trim().to_owned()
    }
}

#[tokio::test]
async fn commands_go_where_a_mapping_leads() {
    let (server, proxied) = (Server::start().await, Proxied::start(&[]).await);
    assert_eq!(proxied.guest.get("/v1/proxy/mappings").await, json!([]));
    assert_eq!(proxied.run("echo $http_proxy$HTTPS_PROXY$no_proxy").await, "");
    let made = proxied.map("api.myapp.test/v1/*", &format!(":{}/deep/", server.port)).await;
    assert_eq!((&made["source_host"], &made["source_path"]), (&json!("api.myapp.test"), &json!("/v1/")));
    assert_eq!(made["internal_port"], proxied.port);
    let expected = format!("http://127.0.0.1:{} localhost,127.0.0.1,::1", proxied.port);
    assert_eq!(proxied.run("echo $HTTPS_PROXY $NO_PROXY").await, expected);

    let fetch = |url: &str| format!("python3 -c 'import urllib.request as u; print(u.urlopen(\"{url}\").read().decode())'");
    let seen = proxied.run(&fetch("http://api.myapp.test/v1/x?y=/v1/z")).await;
    assert!(seen.starts_with("GET /deep/x?y=/v1/z HTTP/1.1"), "{seen}");
    assert!(seen.to_ascii_lowercase().contains("host: api.myapp.test"), "{seen}");
    assert!(!seen.to_ascii_lowercase().contains("proxy"), "{seen}");
    // Outside the mapping's path, the name is resolved, and does not exist.
    assert!(proxied.get("http://api.myapp.test/v2").await.starts_with("HTTP/1.1 502"));
    // The next request follows the new rule immediately.
    proxied.map("api.myapp.test", &server.port.to_string()).await;
    assert!(proxied.get("http://api.myapp.test/v2").await.contains("GET /v2 HTTP/1.1"));
    assert_eq!(proxied.guest.get("/v1/proxy/mappings").await.as_array().unwrap().len(), 2);

    proxied.map("https://secure.test/x", "1").await;
    for (path, status) in [
        ("https:/secure.test/x", StatusCode::OK),
        ("api.myapp.test%2Fv1/*", StatusCode::OK),
        ("API.myapp.test", StatusCode::OK),
        ("api.myapp.test", StatusCode::NOT_FOUND),
        ("a b", StatusCode::NOT_FOUND),
    ] {
        let (got, answer) = proxied.guest.call("DELETE", &format!("/v1/proxy/mappings/{}", path.replace(' ', "%20")), "").await;
        assert_eq!(got, status, "{path} {answer}");
    }
    assert_eq!(proxied.run("echo $http_proxy").await, "");
}

#[tokio::test]
async fn https_is_tunnelled_as_it_is() {
    let (server, proxied) = (Server::start().await, Proxied::start(&[]).await);
    proxied.map("secure.test", &server.port.to_string()).await;
    let mut stream = TcpStream::connect(("127.0.0.1", proxied.port)).await.unwrap();
    // Bytes that arrive with the head are not lost.
    stream.write_all(b"CONNECT secure.test:443 HTTP/1.1\r\nHost: secure.test:443\r\n\r\nNOT TLS\r\n\r\n").await.unwrap();
    let answer = head(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut echoed = String::new();
    stream.read_to_string(&mut echoed).await.unwrap();
    assert!(echoed.ends_with("\r\n\r\nNOT TLS\r\n\r\n"), "{echoed}");
    // Without a mapping, connections are direct.
    let direct = proxied.ask(&format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n\r\nX\r\n\r\n", server.port)).await;
    assert!(direct.starts_with("HTTP/1.1 200") && direct.ends_with("X\r\n\r\n"), "{direct}");
}

#[tokio::test]
async fn the_upstream_gets_the_credentials_and_nobody_else_does() {
    let password = Arc::new(Mutex::new("sekrit".to_owned()));
    let (server, upstream) = (Server::start().await, Server::upstream(password.clone()).await);
    let variable = format!("http://me:sekrit@127.0.0.1:{}", upstream.port);
    let proxied = Proxied::start(&[("PROXY_SERVER", &variable), ("PROXY_EXCLUDE", "127.9.0.0/16")]).await;
    let info = proxied.guest.get("/v1/proxy/upstream").await;
    assert_eq!(info, json!({"addr": format!("127.0.0.1:{}", upstream.port), "username": "me", "password": null}));
    // Commands don't get the password either.
    assert!(!proxied.run("env; cat /proc/$PPID/environ | tr '\\0' '\\n'").await.contains("sekrit"));

    let answer = proxied.get("http://far.test/x?y").await;
    assert!(answer.contains("GET http://far.test/x?y HTTP/1.1"), "{answer}");
    assert!(upstream.heads.lock().unwrap()[0].to_ascii_lowercase().contains("proxy-authorization: basic bwu6c2vrcml0"));
    let tunnel = format!("CONNECT far.test:{} HTTP/1.1\r\n\r\nHELLO\r\n\r\n", server.port);
    let answer = proxied.ask(&tunnel).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("HELLO\r\n\r\n"), "{answer}");
    // Connections to loopback never use the upstream.
    assert!(proxied.get(&format!("http://localhost:{}/here", server.port)).await.contains("GET /here HTTP/1.1"));

    let diagnosed = proxied.diagnose(&format!("https://far.test:{}/", server.port)).await;
    assert_eq!(diagnosed["route"], format!("upstream 127.0.0.1:{}", upstream.port));
    assert_eq!(diagnosed["target_reachable"], true);
    let set = |body: Value| proxied.guest.call("PUT", "/v1/proxy/upstream", body.to_string());
    let wrong = format!("me:wrong@127.0.0.1:{}", upstream.port);
    let (status, answer) = set(json!({"server": wrong})).await;
    assert_eq!((status, &answer["data"]["password"]), (StatusCode::OK, &Value::Null));
    assert!(!answer.to_string().contains("wrong"));
    let answer = proxied.get("http://far.test/").await;
    assert!(answer.starts_with("HTTP/1.1 502") && !answer.contains("wrong"), "{answer}");
    assert!(proxied.ask(&tunnel).await.contains("answered 407"));
    assert_eq!(proxied.diagnose(&format!("https://far.test:{}/", server.port)).await["target_reachable"], false);

    // Credentials from a command, which runs again when they have changed.
    let file = proxied.guest.dir.join("token");
    std::fs::write(&file, "me:sekrit\n").unwrap();
    let server_text = format!("127.0.0.1:{}", upstream.port);
    let command = format!("cat {}", file.display());
    let (status, answer) = set(json!({"server": server_text, "auth_cmd": command})).await;
    assert_eq!((status, &answer["data"]["username"]), (StatusCode::OK, &json!("me")), "{answer}");
    assert!(proxied.get("http://far.test/").await.starts_with("HTTP/1.1 200"));
    *password.lock().unwrap() = "newer".to_owned();
    std::fs::write(&file, "me:newer").unwrap();
    assert!(proxied.get("http://far.test/").await.starts_with("HTTP/1.1 502"));
    assert!(proxied.get("http://far.test/").await.starts_with("HTTP/1.1 200"));

    for (body, status) in [
        (json!({"server": "no port"}), StatusCode::BAD_REQUEST),
        (json!({"server": "me:sekrit@"}), StatusCode::BAD_REQUEST),
        (json!({"server": format!("127.0.0.1:{}", proxied.port)}), StatusCode::BAD_REQUEST),
        (json!({"server": "a:1", "auth_cmd": "echo sekrit >&2; exit 3"}), StatusCode::BAD_REQUEST),
        (json!({"server": "a:1", "auth_cmd": "echo sekrit"}), StatusCode::BAD_REQUEST),
        (json!({"server": "a:1", "auth_cmd": "yes sekrit"}), StatusCode::BAD_REQUEST),
        (json!({"server": 3}), StatusCode::UNPROCESSABLE_ENTITY),
        (json!({}), StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        let (got, answer) = set(body.clone()).await;
        assert_eq!((got, &answer["success"]), (status, &json!(false)), "{body} {answer}");
        assert!(!answer.to_string().contains("sekrit"), "{answer}");
    }
    assert_eq!(proxied.guest.call("DELETE", "/v1/proxy/upstream", "").await.0, StatusCode::OK);
    assert_eq!(proxied.guest.get("/v1/proxy/upstream").await, Value::Null);
}

#[tokio::test]
async fn excludes_and_diagnosis() {
    let (server, upstream) = (Server::start().await, Server::upstream(Arc::default()).await);
    let variable = format!("me:@127.0.0.1:{}", upstream.port);
    let proxied = Proxied::start(&[("PROXY_SERVER", &variable)]).await;
    let change = |method: &'static str, pattern: &str| {
        let body = json!({"pattern": pattern}).to_string();
        let guest = &proxied.guest;
        async move { guest.call(method, "/v1/proxy/excludes", body).await.0 }
    };
    assert_eq!(change("POST", "127.9.0.0/16").await, StatusCode::OK);
    assert_eq!(change("POST", "127.9.0.0/16").await, StatusCode::OK);
    assert_eq!(change("POST", ".near.test").await, StatusCode::OK);
    assert_eq!(proxied.guest.get("/v1/proxy/excludes").await, json!(["127.9.0.0/16", ".near.test"]));
    let near = proxied.diagnose("http://user:pass@a.near.test/").await;
    assert_eq!(near["route"], "direct: excluded by .near.test");
    assert_eq!((&near["target_reachable"], &near["url"]), (&json!(false), &json!("http://a.near.test/")));
    assert!(proxied.get("http://a.near.test/").await.starts_with("HTTP/1.1 502"));
    assert_eq!(change("DELETE", ".near.test").await, StatusCode::OK);
    assert_eq!(change("DELETE", ".near.test").await, StatusCode::NOT_FOUND);
    assert_eq!(change("POST", "not a pattern").await, StatusCode::BAD_REQUEST);
    assert!(proxied.get("http://a.near.test/").await.starts_with("HTTP/1.1 200"));

    proxied.map("mapped.test/a", &format!("{}/b", server.port)).await;
    let mapped = proxied.diagnose("http://mapped.test/a/c").await;
    assert_eq!(mapped["matched_mapping"]["source"], "mapped.test/a");
    assert_eq!(mapped["resolved_target"], format!("127.0.0.1:{}/b/c", server.port));
    assert_eq!((&mapped["target_reachable"], &mapped["route"]), (&json!(true), &json!("mapping mapped.test/a")));
    for (url, status) in
        [("", StatusCode::BAD_REQUEST), ("ftp://a", StatusCode::BAD_REQUEST), ("http://a:port/", StatusCode::BAD_REQUEST)]
    {
        assert_eq!(proxied.guest.call("GET", &format!("/v1/proxy/diagnose?url={url}"), "").await.0, status, "{url}");
    }
    assert_eq!(proxied.guest.call("GET", "/v1/proxy/diagnose", "").await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let health = proxied.guest.get("/v1/proxy/health").await;
    assert_eq!((&health["healthy"], &health["inconsistencies"]), (&json!(true), &json!([])));
}

#[tokio::test]
async fn hostile_input_does_no_harm() {
    let (server, proxied) = (Server::start().await, Proxied::start(&[]).await);
    proxied.map("a.test", &server.port.to_string()).await;
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        ("GET https://a.test/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        ("CONNECT a.test HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        (format!("GET http://127.0.0.1:{}/ HTTP/1.1\r\nConnection: close\r\n\r\n", proxied.port), "400"),
        (format!("CONNECT localhost:{} HTTP/1.1\r\nConnection: close\r\n\r\n", proxied.port), "400"),
        ("CONNECT 127.0.0.1:1 HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), "502"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (format!("GET http://a.test/ HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(300_000)), "431"),
    ] {
        let answer = proxied.ask(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{:.80} {answer:.200}", request);
    }
    let seen = proxied.ask("GET http://u:sekrit@a.test/ HTTP/1.1\r\nProxy-Authorization: Basic x\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nX-Own: 2\r\n\r\n").await;
    assert!(seen.to_ascii_lowercase().contains("x-own: 2\r\n"), "{seen}");
    for gone in ["x-mine", "proxy-authorization", "x-hop", "sekrit"] {
        assert!(!seen.to_ascii_lowercase().contains(gone), "{gone} {seen}");
    }
    for (source, target) in
        [("", "1"), ("a", "x"), ("a", "http://b:1"), ("a b", "1"), ("a/*/b", "1"), ("a", &proxied.port.to_string())]
    {
        let status = proxied.guest.refused("/v1/proxy/mappings", json!({"source": source, "target": target})).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{source} {target}");
    }
    for n in 1..256 {
        proxied.map(&format!("n{n}.test"), "1").await;
    }
    let more = json!({"source": "more.test", "target": "1"});
    assert_eq!(proxied.guest.refused("/v1/proxy/mappings", more).await, StatusCode::CONFLICT);
    // The maximum number of connections, all idle: the next one is served when one of them closes.
    let mut idle = Vec::new();
    for _ in 0..256 {
        idle.push(TcpStream::connect(("127.0.0.1", proxied.port)).await.unwrap());
    }
    let waiting = proxied.get("http://a.test/late");
    let release = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        idle.clear();
    };
    let (answer, ()) = tokio::join!(waiting, release);
    assert!(answer.contains("GET /late"), "{answer}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let guest = Guest::start_with("root", &[("PROXY_PORT", &port)]).await;
    let (status, answer) = guest.call("POST", "/v1/proxy/mappings", json!({"source": "a", "target": "1"}).to_string()).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(answer["message"].as_str().unwrap().contains(&port), "{answer}");
    assert_eq!(guest.get("/v1/proxy/mappings").await, json!([]));
    assert_eq!(guest.get("/v1/proxy/health").await["healthy"], false);
    drop(taken);
    guest.post("/v1/proxy/mappings", json!({"source": "a", "target": "1"})).await;
    assert_eq!(guest.get("/v1/proxy/health").await["healthy"], true);
}
