//! VS Code and JupyterLab: pages only on the sandbox's own host.

use std::time::Duration;

use arenite_gateway::{Authentication, GatewayConfig};
use arenite_trajectory::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::harness::{Running, read_head, request};

const NAVIGATION: &str = "sec-fetch-site: none\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";

/// Returns its request, with a cookie; echoes on a WebSocket.
async fn guest(mut stream: DuplexStream) {
    while let Some(got) = request(&mut stream).await {
        if got.headers.contains_key("upgrade") {
            let told = format!("cookie-was: {}\r\n", got.headers.get("cookie").map_or("none", |cookie| cookie));
            let head = "HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: abc\r\n";
            let _ = stream.write_all(format!("{head}{told}\r\n").as_bytes()).await;
            let mut byte = [0; 64];
            while let Ok(n @ 1..) = stream.read(&mut byte).await {
                let _ = stream.write_all(&byte[..n].to_ascii_uppercase()).await;
            }
            return;
        }
        let body = json!({ "line": got.line, "headers": got.headers }).to_string();
        let cookies = "set-cookie: _xsrf=1; Domain=localhost; Path=/jupyter/\r\nset-cookie: arenite_session=planted\r\n";
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n{cookies}content-length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
    }
}

async fn running() -> Running {
    Running::start(|_, stream| guest(stream)).await
}

#[tokio::test]
async fn a_person_is_led_to_the_sandboxes_host() {
    let running = running().await;
    let id = running.create("a").await;
    let default = running.create("default").await;
    for (path, host, header, to) in [
        (
            "/sandbox/a/code-server/?folder=/x%2Fy",
            "localhost:8080",
            NAVIGATION,
            format!("{id}.localhost:8080/code-server/?folder=/x%2Fy"),
        ),
        ("/sandbox/a/code-server", "127.0.0.1:8080", NAVIGATION, format!("{id}.localhost:8080/code-server")),
        ("/sandbox/a/jupyter/lab/tree/a%20b", "localhost", NAVIGATION, format!("{id}.localhost/jupyter/lab/tree/a%20b")),
        ("/jupyter", "localhost:8080", NAVIGATION, format!("{default}.localhost:8080/jupyter")),
        // A browser without headers about itself.
        ("/code-server/", "localhost", "accept: text/html,*/*\r\n", format!("{default}.localhost/code-server/")),
    ] {
        let answer = running.get_with(path, &format!("host: {host}\r\n{header}")).await;
        assert_eq!((answer.status, answer.header("location")), (307, Some(&*format!("http://{to}"))), "{path}: {answer:?}");
    }
    // Everything else passes unchanged, and has no power over the server's origin.
    for (path, header) in [
        ("/sandbox/a/code-server/healthz", ""),
        (
            "/sandbox/a/jupyter/api/status",
            "cookie: mine=1\r\naccept: text/html\r\nsec-fetch-mode: cors\r\nsec-fetch-site: same-origin\r\n",
        ),
    ] {
        let answer = running.get_with(path, header).await;
        assert_eq!((answer.status, answer.header("set-cookie")), (200, None), "{path}");
        assert!(answer.header("content-security-policy").unwrap().starts_with("sandbox "), "{path}");
        let got = answer.json();
        assert_eq!(got["line"], format!("GET {}", path.strip_prefix("/sandbox/a").unwrap()));
        assert!(got["headers"].get("cookie").is_none(), "{got}");
    }
    running.stop().await;
}

#[tokio::test]
async fn without_such_hosts_it_is_said_so() {
    let config = GatewayConfig { allowed_hosts: vec!["box.example".to_owned()], ..GatewayConfig::default() };
    let running = Running::with(config, Limits::default(), |_, stream| guest(stream)).await;
    running.create("a").await;
    let page = running.get_with("/sandbox/a/code-server/", &format!("host: box.example\r\n{NAVIGATION}")).await;
    assert_eq!((page.status, page.header("content-type")), (421, Some("text/html; charset=utf-8")));
    assert!(page.text().contains("VS Code") && page.text().contains("--domain"), "{}", page.text());
    running.stop().await;
}

#[tokio::test]
async fn there_it_is_a_website() {
    let running = running().await;
    let id = running.create("a").await;
    let host = format!("{id}.localhost:8080");
    for path in ["/code-server/", "/jupyter/lab"] {
        let answer = running.get_with(path, &format!("host: {host}\r\ncookie: _xsrf=1; arenite_session=x\r\n{NAVIGATION}")).await;
        assert_eq!((answer.status, answer.header("set-cookie")), (200, Some("_xsrf=1; Path=/jupyter/")), "{path}");
        assert_eq!(answer.header("content-security-policy"), None, "{path}");
        let got = answer.json();
        assert_eq!((&got["line"], &got["headers"]["cookie"]), (&json!(format!("GET {path}")), &json!("_xsrf=1")), "{path}");
    }
    // Other routes on that host have no cookies.
    let answer = running.get_with("/v1/sandbox", &format!("host: {host}\r\ncookie: _xsrf=1\r\n")).await;
    assert_eq!(answer.header("set-cookie"), None);
    assert!(answer.json()["headers"].get("cookie").is_none());
    for (path, cookie) in [("/code-server/socket", "_xsrf=1"), ("/v1/shell/ws", "none")] {
        let mut socket = running.connect().await;
        let ask = format!(
            "GET {path} HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\ncookie: _xsrf=1\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n"
        );
        socket.write_all(ask.as_bytes()).await.unwrap();
        let head = read_head(&mut socket).await.unwrap().to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 101") && head.contains(&format!("cookie-was: {cookie}\r\n")), "{head}");
        socket.write_all(b"hello").await.unwrap();
        let mut got = [0; 5];
        socket.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"HELLO");
    }
    // Pages of other origins are kept out, including those of another sandbox.
    for from in
        ["origin: http://sbbcdefghijk.localhost:8080\r\n", "origin: http://localhost:8080\r\n", "sec-fetch-site: cross-site\r\n"]
    {
        assert_eq!(running.get_with("/jupyter/api", &format!("host: {host}\r\n{from}")).await.status, 403, "{from}");
    }
    running.stop().await;
}

#[tokio::test]
async fn signing_in_leads_along() {
    const KEY: &str = "0123456789abcdef";
    let auth = Authentication::new(Some(KEY), None, Duration::from_secs(30)).unwrap();
    let config = GatewayConfig { auth, ..GatewayConfig::default() };
    let running = Running::with(config, Limits::default(), |_, stream| guest(stream)).await;
    let id = running.create("a").await;
    let refused = running.get_with("/sandbox/a/code-server/", NAVIGATION).await;
    assert_eq!(refused.status, 401);
    let opened = running.get_with("/sandbox/a/code-server/?folder=/x", &format!("{NAVIGATION}x-api-key: {KEY}\r\n")).await;
    let location = opened.header("location").unwrap().strip_prefix("http://").unwrap().to_owned();
    let (host, path) = location.split_at(location.find('/').unwrap());
    assert!(host.starts_with(&format!("{id}.localhost")) && path.starts_with("/code-server/?folder=/x&ticket="), "{location}");
    let entered = running.get_with(path, &format!("host: {host}\r\n{NAVIGATION}")).await;
    assert_eq!((entered.status, entered.header("location")), (303, Some("/code-server/?folder=/x")));
    let cookie = entered.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let shown = running.get_with("/code-server/", &format!("host: {host}\r\ncookie: mine=1; {cookie}\r\n")).await;
    assert_eq!((shown.status, &shown.json()["headers"]["cookie"]), (200, &json!("mine=1")));
    assert_eq!(running.get_with("/code-server/", &format!("host: {host}\r\ncookie: mine=1\r\n")).await.status, 401);
    running.stop().await;
}
