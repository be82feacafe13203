//! Ports of sandboxes, by every route to them.

use std::time::Duration;

use arenite_gateway::{Authentication, GatewayConfig};
use arenite_trajectory::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::harness::{Running, TestResponse, read_chunk, read_head, request, respond};

/// A guest with a program on port 3000 that returns its request, and one on 3001 that does not speak HTTP.
async fn guest(mut stream: DuplexStream) {
    let head = read_head(&mut stream).await.unwrap_or_default();
    let line = head.lines().next().unwrap_or_default();
    let Some(port) = line.strip_prefix("GET /internal/ports/").and_then(|rest| rest.split(' ').next()) else {
        return respond(&mut stream, "404 Not Found", "").await;
    };
    assert!(head.contains("upgrade: arenite-port"), "{head}");
    match port {
        "3000" => {}
        "3001" => {
            let _ = stream.write_all(b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: arenite-port\r\n\r\n").await;
            let _ = read_head(&mut stream).await;
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n").await;
            return;
        }
        "3002" => return respond(&mut stream, "504 Gateway Timeout", "").await,
        "3003" => return respond(&mut stream, "503 Service Unavailable", "").await,
        "3004" => return respond(&mut stream, "404 Not Found", "").await,
        _ => return respond(&mut stream, "502 Bad Gateway", "<script>").await,
    }
    let _ = stream.write_all(b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: arenite-port\r\n\r\n").await;
    program(stream).await;
}

async fn program(mut stream: DuplexStream) {
    while let Some(got) = request(&mut stream).await {
        if got.headers.contains_key("upgrade") {
            let answer = b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: abc\r\n\r\n";
            let _ = stream.write_all(answer).await;
            let mut byte = [0; 64];
            while let Ok(n @ 1..) = stream.read(&mut byte).await {
                let _ = stream.write_all(&byte[..n].to_ascii_uppercase()).await;
            }
            return;
        }
        if got.line.contains("/redirect") {
            let _ = stream.write_all(b"HTTP/1.1 302 x\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n").await;
            continue;
        }
        if got.line.contains("/events") {
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            let _ = stream.write_all(head).await;
            let _ = stream.write_all(b"9\r\ndata: 1\n\n\r\n").await;
            let mut byte = [0; 1];
            // The connection lasts until the client leaves.
            let _ = stream.read(&mut byte).await;
            return;
        }
        let body = json!({ "line": got.line, "headers": got.headers, "body": String::from_utf8_lossy(&got.body) }).to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nset-cookie: of=program; Domain=localhost\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.write_all(body.as_bytes()).await;
    }
}

async fn running() -> Running {
    Running::start(|_, stream| guest(stream)).await
}

#[tokio::test]
async fn all_ways_lead_to_the_program() {
    let running = running().await;
    let id = running.create("a").await;
    let default = running.create("default").await;
    for (path, host, header, seen) in [
        ("/proxy/3000/x%2Fy?a=%2F", "localhost", "", "/x%2Fy?a=%2F"),
        ("/absproxy/3000/x%2Fy", "localhost", "", "/absproxy/3000/x%2Fy"),
        ("/sandbox/a/proxy/3000/", "localhost", "", "/"),
        ("/sandbox/a/absproxy/3000/x", "localhost", "", "/absproxy/3000/x"),
        ("/proxy/3000/x", "localhost", "x-arenite-sandbox: a\r\n", "/x"),
        ("/v1/bash/exec", "localhost", "x-aio-proxy-port: 3000\r\n", "/v1/bash/exec"),
        ("/sandbox/a/v1/ping", "localhost", "x-aio-proxy-port: 3000\r\n", "/v1/ping"),
        ("/proxy/3000/x", &*format!("{id}.localhost"), "", "/x"),
        ("/v1/x/..//%2e%2E/%2F", &*format!("3000-{id}.localhost"), "", "/v1/x/..//%2e%2E/%2F"),
        ("/", "3000-localhost", "", "/"),
        ("/internal/hello", &*format!("3000-{id}.localhost:1234"), "", ""),
    ] {
        let answer = running.get_with(path, &format!("host: {host}\r\n{header}")).await;
        if seen.is_empty() {
            // The script refuses that path itself, and was called.
            assert_eq!(answer.status, 404, "{path}");
            continue;
        }
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let got = answer.json();
        assert_eq!(got["line"], format!("GET {seen}"), "{path}");
        assert_eq!(got["headers"]["host"], host, "{path}");
        assert_eq!(got["headers"]["x-forwarded-host"], host);
        for gone in ["x-aio-proxy-port", "x-arenite-sandbox", "x-arenite-protocol"] {
            assert!(got["headers"].get(gone).is_none(), "{path} {gone}");
        }
        let is_own = host.starts_with("3000-");
        assert_eq!(answer.header("set-cookie"), is_own.then_some("of=program"), "{path}");
        let policy = answer.header("content-security-policy");
        assert_eq!(policy.is_some_and(|p| p.starts_with("sandbox")), host == "localhost", "{path} {policy:?}");
    }
    let got = running.get("/sandbox/a/proxy/3000/x").await;
    assert_eq!(got.json()["headers"]["x-forwarded-prefix"], "/sandbox/a/proxy/3000");
    let got = running.get("/sandbox/a/proxy/3000/redirect").await;
    assert_eq!((got.status, got.header("location")), (302, Some("/sandbox/a/proxy/3000/login")));
    let slash = running.get("/sandbox/a/proxy/3000?x=1").await;
    assert_eq!((slash.status, slash.header("location")), (308, Some("/sandbox/a/proxy/3000/?x=1")));
    // Viewing them is not a step.
    assert!(running.steps(&id).is_empty() && running.steps(&default).is_empty());
    running.stop().await;
}

#[tokio::test]
async fn bodies_events_and_websockets_pass() {
    let running = running().await;
    let id = running.create("a").await;
    let posted = running
        .raw(b"POST /sandbox/a/proxy/3000/form HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        .await;
    assert_eq!(posted.json()["body"], "hello");
    let mut events = running.connect().await;
    events.write_all(b"GET /sandbox/a/proxy/3000/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    read_head(&mut events).await.unwrap();
    assert_eq!(read_chunk(&mut events).await.unwrap(), b"data: 1\n\n");
    for (host, path) in [("localhost", "/sandbox/a/proxy/3000/ws"), (&*format!("3000-{id}.localhost"), "/ws")] {
        let mut socket = running.connect().await;
        let ask = format!(
            "GET {path} HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n"
        );
        socket.write_all(ask.as_bytes()).await.unwrap();
        let head = read_head(&mut socket).await.unwrap().to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 101") && head.contains("sec-websocket-accept: abc"), "{head}");
        socket.write_all(b"hello").await.unwrap();
        let mut got = [0; 5];
        socket.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"HELLO");
    }
    assert!(running.steps(&id).is_empty());
    running.stop().await;
}

const NAVIGATION: &str = "sec-fetch-site: none\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";

#[tokio::test]
async fn what_can_not_be_shown_says_why() {
    let running = running().await;
    running.create("a").await;
    for (port, status, word) in [
        (4000, 502, "nothing listens on port 4000"),
        (3001, 502, "no HTTP"),
        (3002, 504, "takes no connection"),
        (3003, 429, "too many"),
        (3004, 502, "knows no previews"),
        (8080, 403, "own API"),
    ] {
        let answer = running.get(&format!("/sandbox/a/proxy/{port}/")).await;
        assert_eq!(answer.status, status, "{port}: {answer:?}");
        let body = answer.json();
        assert!(body["message"].as_str().unwrap().contains(word) && body["success"] == false, "{port}: {body}");
    }
    let id = running.control.list(&arenite_model::TenantId::default_tenant()).await.unwrap()[0].id.clone();
    let page = running.get_with("/", &format!("host: 4000-{id}.localhost\r\n{NAVIGATION}")).await;
    assert_eq!((page.status, page.header("content-type")), (502, Some("text/html; charset=utf-8")));
    assert!(page.text().contains("nothing listens on port 4000") && !page.text().contains("<script"));
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    for bad in ["/proxy/0/", "/proxy/99999/", "/proxy/x/"] {
        assert_eq!(running.get(bad).await.status, 404, "{bad}");
    }
    assert_eq!(running.get_with("/", "x-aio-proxy-port: 80x\r\n").await.status, 400);
    for host in ["8080-localhost", &*format!("8080-{id}.localhost"), &*format!("0-{id}.localhost"), "3000-a.localhost"] {
        assert_eq!(running.get_with("/v1/ping", &format!("host: {host}\r\n")).await.status, 403, "{host}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_guest_that_never_connects_is_given_up() {
    let running = Running::start(|_, mut stream| async move {
        let _ = read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    running.create("a").await;
    let answer = tokio::time::timeout(Duration::from_secs(60), running.get("/sandbox/a/proxy/3000/")).await.unwrap();
    assert_eq!(answer.status, 504, "{answer:?}");
    running.stop().await;
}

fn location(answer: &TestResponse) -> (String, String) {
    let location = answer.header("location").unwrap().strip_prefix("http://").unwrap();
    let (host, path) = location.split_at(location.find('/').unwrap());
    (host.to_owned(), path.to_owned())
}

#[tokio::test]
async fn a_page_opened_by_path_gets_a_host_of_its_own() {
    let running = running().await;
    let id = running.create("a").await;
    for (path, seen) in [
        ("/sandbox/a/proxy/3000/x%2F?a=b", "/x%2F?a=b"),
        ("/sandbox/a/absproxy/3000/x", "/absproxy/3000/x"),
        ("/sandbox/a/proxy/3000", "/"),
    ] {
        for host in ["localhost:8080", "127.0.0.1:8080"] {
            let answer = running.get_with(path, &format!("host: {host}\r\n{NAVIGATION}")).await;
            assert_eq!(answer.status, 307, "{path}");
            assert_eq!(location(&answer), (format!("3000-{id}.localhost:8080"), seen.to_owned()), "{path}");
        }
    }
    // Frames and programs stay.
    let framed = NAVIGATION.replace("document", "iframe");
    assert_eq!(running.get_with("/sandbox/a/proxy/3000/", &framed).await.status, 200);
    running.stop().await;
}

#[tokio::test]
async fn signing_in_leads_along_and_stays_with_us() {
    const KEY: &str = "0123456789abcdef";
    let auth = Authentication::new(Some(KEY), None, Duration::from_secs(30)).unwrap();
    let config = GatewayConfig { auth, ..GatewayConfig::default() };
    let running = Running::with(config, Limits::default(), |_, stream| guest(stream)).await;
    let id = running.create("a").await;
    let opened = running.get_with("/sandbox/a/proxy/3000/x?a=b", &format!("{NAVIGATION}x-api-key: {KEY}\r\n")).await;
    let (host, path) = location(&opened);
    assert!(path.starts_with("/x?a=b&ticket="), "{path}");
    // The ticket is valid only there.
    let elsewhere = running.get_with(&path.replace("/x?", "/metrics?"), "").await;
    assert_eq!(elsewhere.status, 401);
    let entered = running.get_with(&path, &format!("host: {host}\r\n{NAVIGATION}")).await;
    assert_eq!((entered.status, entered.header("location")), (303, Some("/x?a=b")));
    let cookie = entered.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let shown = running
        .get_with("/x?a=b", &format!("host: {host}\r\ncookie: mine=1; {cookie}; more=2\r\nauthorization: Basic eA==\r\n"))
        .await;
    assert_eq!(shown.status, 200);
    let headers = &shown.json()["headers"];
    // The program's own headers pass, Arenite's don't.
    assert_eq!((&headers["cookie"], &headers["authorization"]), (&json!("mine=1; more=2"), &json!("Basic eA==")));
    assert_eq!(running.get_with("/x", &format!("host: 3001-{id}.localhost\r\ncookie: {cookie}\r\n")).await.status, 401);
    assert_eq!(running.get_with("/metrics", &format!("cookie: {cookie}\r\n")).await.status, 401);
    let by_key = running
        .get_with(
            &format!("/x?api_key={KEY}&ticket=theirs&y=1"),
            &format!("host: {host}\r\nx-api-key: {KEY}\r\nauthorization: Bearer {KEY}\r\nx-aio-api-key: theirs\r\n"),
        )
        .await;
    let got = by_key.json();
    assert_eq!(got["line"], "GET /x?ticket=theirs&y=1");
    assert!(!got.to_string().contains(KEY), "{got}");
    assert_eq!(got["headers"]["x-aio-api-key"], "theirs");
    let person = running.get_with("/x", &format!("host: {host}\r\n{NAVIGATION}")).await;
    assert_eq!(person.status, 401);
    assert!(person.text().contains("Never type a key") && !person.text().contains("password"));
    running.stop().await;
}
