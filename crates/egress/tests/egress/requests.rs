use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use arenite_egress::{Protocol, Reason};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{OTHER_SERVER, Proxy, SERVER, read_exactly, read_text};

/// The requests that servers got: `METHOD PATH HOST BODY`.
type Log = Arc<Mutex<Vec<String>>>;

/// A server that answers with what it was asked for.
async fn web_server(proxy: &mut Proxy, address: Ipv4Addr, port: u16) -> (SocketAddr, Log) {
    let listener = TcpListener::bind((address, port)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let log = Log::default();
    let known = log.clone();
    proxy.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let log = known.clone();
            let service = service_fn(move |request| answer(request, log.clone()));
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection.with_upgrades());
        }
    });
    (address, log)
}

async fn answer(mut request: Request<Incoming>, log: Log) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.headers().contains_key("upgrade") {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut upgraded = TokioIo::new(upgrade.await.unwrap());
            upgraded.write_all(b"from the server").await.unwrap();
            let mut bytes = [0; 4];
            upgraded.read_exact(&mut bytes).await.unwrap();
            upgraded.write_all(&bytes).await.unwrap();
        });
        let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "websocket");
        return Ok(response.body(Full::default()).unwrap());
    }
    let (parts, body) = request.into_parts();
    let host = parts.headers.get("host").map_or("none", |host| host.to_str().unwrap());
    let body = body.collect().await.map_or("broken".into(), |body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
    let text = format!("{} {} {host} {body}", parts.method, parts.uri);
    log.lock().unwrap().push(text.clone());
    let mut response = Response::new(Full::from(text));
    if parts.uri.path() == "/redirect" {
        *response.status_mut() = StatusCode::FOUND;
        response.headers_mut().insert("location", "http://127.9.0.1/secret".parse().unwrap());
    }
    Ok(response)
}

/// A proxy and a server, with the rules of `rules`, in which `PORT` stands for the server's.
async fn start(rules: &str) -> (Proxy, SocketAddr, Log) {
    let mut proxy = Proxy::start().await;
    let (server, log) = web_server(&mut proxy, SERVER, 0).await;
    let rules = rules.replace("PORT", &server.port().to_string());
    proxy.set(&format!(r#"{{"allow": {rules}}}"#), false).await;
    proxy.resolver.name("a.test", &[SERVER]);
    proxy.resolver.name("b.test", &[OTHER_SERVER]);
    (proxy, server, log)
}

fn get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn last_get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn requests_of_one_connection_are_decided_one_by_one() {
    let (mut proxy, server, log) = start(r#"["a.test:PORT", "b.test:PORT"]"#).await;
    let (_, other) = web_server(&mut proxy, OTHER_SERVER, server.port()).await;
    let requests =
        [get("/1", "a.test"), get("/2", "evil.test"), get("/3", "B.Test."), get("/4", "127.1.0.1"), last_get("/5", "a.test")];
    let answers = proxy.exchange(server, &requests.concat()).await;
    let port = server.port();
    assert_eq!(*log.lock().unwrap(), [format!("GET /1 a.test:{port} "), format!("GET /5 a.test:{port} ")]);
    assert_eq!(*other.lock().unwrap(), [format!("GET /3 b.test:{port} ")]);
    let statuses: Vec<&str> = answers.match_indices("HTTP/1.1 ").map(|(at, _)| &answers[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "403", "200", "403", "200"], "{answers}");
    assert!(answers.contains(&format!("arenite: evil.test:{port} is refused: no rule allows it\n")), "{answers}");
    assert!(answers.contains(&format!("add \"evil.test:{port}\" to the allow list")), "{answers}");
    let refusal = proxy.refusal().await;
    assert_eq!(
        (refusal.protocol, refusal.name.as_deref(), refusal.path.as_deref()),
        (Protocol::Http, Some("evil.test"), Some("/2"))
    );
    assert_eq!(proxy.end().await.bytes_sent, requests.concat().len() as u64);
}

#[tokio::test]
async fn methods_and_paths_are_compared() {
    let (mut proxy, server, log) =
        start(r#"[{"host": "a.test", "ports": [PORT], "protocol": "http", "methods": ["GET"], "paths": ["/api/*"]}]"#).await;
    for (request, status) in [
        (last_get("/api/x?y=/../", "a.test"), "200"),
        (last_get("/%61pi/x", "a.test"), "200"),
        (last_get("/other", "a.test"), "403"),
        (last_get("/api/../other", "a.test"), "403"),
        (last_get("/api/%2e%2e/other", "a.test"), "403"),
        (last_get("/api%2fx", "a.test"), "403"),
        (last_get("/api/x", "a.test").replace("GET", "DELETE"), "403"),
    ] {
        let answer = proxy.exchange(server, &request).await;
        assert_eq!(&answer[9..12], status, "{request}{answer}");
    }
    assert_eq!(log.lock().unwrap().len(), 2);
    assert_eq!(proxy.event(|event| event.reason == Reason::AmbiguousPath).await.path.as_deref(), Some("/api/../other"));
}

#[tokio::test]
async fn rules_with_addresses_take_any_host() {
    let (mut proxy, server, log) =
        start(r#"[{"cidr": "127.1.0.0/24", "ports": [PORT], "protocol": "http", "paths": ["/api"]}]"#).await;
    let port = server.port();
    for (path, host, status) in
        [("/api", "any.test", "200"), ("/api", "127.1.0.1", "200"), ("/", "any.test", "403"), ("/api", "127.1.0.2", "400")]
    {
        let answer = proxy.exchange(server, &last_get(path, host)).await;
        assert_eq!(&answer[9..12], status, "{path} {host} {answer}");
    }
    assert_eq!(*log.lock().unwrap(), [format!("GET /api any.test:{port} "), format!("GET /api 127.1.0.1:{port} ")]);
    assert_eq!(proxy.event(|event| event.allowed).await.name.as_deref(), Some("any.test"));
}

#[tokio::test]
async fn requests_with_two_readings_are_refused() {
    let (proxy, server, log) = start(r#"["a.test:PORT"]"#).await;
    for request in [
        "GET / HTTP/1.1\r\nHost: a.test\r\nHost: evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        "GET http://a.test/ HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test:1\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test@evil.test\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: +1\r\n\r\nx",
        "GET / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\n Transfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\nHost: a.test\nX: \0\n\n",
        "GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n",
    ] {
        let mut stream = proxy.connect(server).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{request}\n{answer}");
    }
    assert_eq!(*log.lock().unwrap(), [] as [String; 0]);
}

/// A server that keeps all bytes that it gets, and answers each with one empty answer.
async fn raw_server(proxy: &mut Proxy) -> (SocketAddr, Arc<Mutex<String>>) {
    let listener = TcpListener::bind((SERVER, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let log = Arc::new(Mutex::new(String::new()));
    let known = log.clone();
    proxy.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let log = known.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    log.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
                    let is_whole = {
                        let log = log.lock().unwrap();
                        log.ends_with("END") || (log.ends_with("\r\n\r\n") && !log.contains("Content-Length: 3"))
                    };
                    if is_whole {
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                    }
                }
            });
        }
    });
    (address, log)
}

#[tokio::test]
async fn nothing_is_smuggled_behind_a_request() {
    // Servers and proxies that differ in the end of such a body read the rest as another request.
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let both_lengths = format!(
        "POST /1 HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}",
        smuggled.len() + 5
    );
    let spaced =
        format!("POST /1 HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: xchunked\r\nContent-Length: 4\r\n\r\n0\r\n\r{smuggled}");
    let in_header = "GET /1 HTTP/1.1\r\nHost: a.test\r\nX: y\rGET /smuggled HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned();
    for request in [both_lengths, spaced, in_header] {
        let mut proxy = Proxy::start().await;
        let (server, log) = raw_server(&mut proxy).await;
        proxy.set(&format!(r#"{{"allow": ["a.test:{}"]}}"#, server.port()), false).await;
        proxy.resolver.name("a.test", &[SERVER]);
        let mut stream = proxy.connect(server).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let seen = log.lock().unwrap().clone();
        assert!(!seen.contains("smuggled") && !seen.contains("evil"), "{request}\n---\n{seen}");
        let lengths =
            seen.to_lowercase().matches("content-length").count() + seen.to_lowercase().matches("transfer-encoding").count();
        assert!(lengths <= 1, "{seen}");
    }
}

#[tokio::test]
async fn connect_is_refused() {
    let (mut proxy, server, log) = start(r#"["a.test:PORT"]"#).await;
    let port = server.port();
    let answer = proxy
        .exchange(server, &format!("CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n\r\n"))
        .await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("CONNECT is not allowed"), "{answer}");
    assert_eq!(proxy.refusal().await.reason, Reason::Connect);
    // A whole URL, as clients send it to a proxy that they were given.
    let answer = proxy
        .exchange(server, &format!("GET http://a.test:{port}/x HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n\r\n"))
        .await;
    assert!(answer.ends_with(&format!("GET /x a.test:{port} ")), "{answer}");
    assert_eq!(log.lock().unwrap().len(), 1);
    // HTTP/2 without TLS.
    let mut stream = proxy.connect(server).await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut byte = [0; 1];
    let read = stream.read(&mut byte).await;
    assert!(!matches!(read, Ok(1)) || byte == *b"H");
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn redirects_pass_and_are_not_followed_to_closed_addresses() {
    let (mut proxy, server, _log) = start(r#"["a.test:PORT", "127.9.0.1:*"]"#).await;
    let answer = proxy.exchange(server, &last_get("/redirect", "a.test")).await;
    assert!(answer.starts_with("HTTP/1.1 302") && answer.contains("http://127.9.0.1/secret"), "{answer}");
    let mut stream = proxy.connect("127.9.0.1:80".parse().unwrap()).await;
    let _ = stream.write_all(last_get("/secret", "127.9.0.1").as_bytes()).await;
    assert!(crate::harness::is_reset(&mut stream).await);
    assert_eq!(proxy.refusal().await.reason, Reason::ClosedAddress);
}

#[tokio::test]
async fn websockets_pass_and_other_upgrades_do_not() {
    let (mut proxy, server, log) = start(r#"["a.test:PORT"]"#).await;
    let mut stream = proxy.connect(server).await;
    stream
        .write_all(
            b"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
        )
        .await
        .unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert_eq!(read_exactly(&mut stream, 15).await, b"from the server");
    stream.write_all(b"ping").await.unwrap();
    assert_eq!(read_text(&mut stream).await, "ping");
    drop(stream);
    assert!(proxy.end().await.bytes_received > 19);
    let answer = proxy
        .exchange(server, "GET /h2 HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(log.lock().unwrap().len(), 1);
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(read_exactly(stream, 1).await);
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn bodies_stream_in_both_directions() {
    let mut proxy = Proxy::start().await;
    let listener = TcpListener::bind((SERVER, 0)).await.unwrap();
    let server = listener.local_addr().unwrap();
    proxy.set(&format!(r#"{{"allow": ["a.test:{}"]}}"#, server.port()), false).await;
    proxy.resolver.name("a.test", &[SERVER]);
    let mut client = proxy.connect(server).await;
    client.write_all(b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n").await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    let head = read_head(&mut upstream).await;
    assert!(head.to_lowercase().contains("transfer-encoding: chunked"), "{head}");
    assert_eq!(read_exactly(&mut upstream, 10).await, b"5\r\nfirst\r\n", "before the client has sent the rest");
    upstream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").await.unwrap();
    read_head(&mut client).await;
    assert_eq!(read_exactly(&mut client, 8).await, b"3\r\none\r\n", "before the server has sent the rest");
    client.write_all(b"6\r\nsecond\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(read_exactly(&mut upstream, 16).await, b"6\r\nsecond\r\n0\r\n\r\n");
    upstream.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(read_exactly(&mut client, 13).await, b"3\r\ntwo\r\n0\r\n\r\n");
}

#[tokio::test]
async fn a_refused_upload_gets_its_answer() {
    let (proxy, server, log) = start("[]").await;
    let body = "x".repeat(200_000);
    let answer = proxy
        .exchange(
            server,
            &format!("POST / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
        )
        .await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(log.lock().unwrap().is_empty());
}

#[tokio::test]
async fn answers_without_a_body_keep_their_length() {
    let mut proxy = Proxy::start().await;
    let listener = TcpListener::bind((SERVER, 0)).await.unwrap();
    let server = listener.local_addr().unwrap();
    proxy.set(&format!(r#"{{"allow": ["a.test:{}"]}}"#, server.port()), false).await;
    proxy.resolver.name("a.test", &[SERVER]);
    let mut client = proxy.connect(server).await;
    client.write_all(b"HEAD /large HTTP/1.1\r\nHost: a.test\r\nX-Case: a\r\n\r\n").await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    assert!(read_head(&mut upstream).await.contains("\r\nX-Case: a\r\n"), "the client's spelling");
    upstream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 123456\r\nETag: x\r\n\r\n").await.unwrap();
    assert!(read_head(&mut client).await.contains("\r\nContent-Length: 123456\r\nETag: x\r\n"));
    client.write_all(get("/", "a.test").as_bytes()).await.unwrap();
    read_head(&mut upstream).await;
    upstream.write_all(b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n").await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 304"));
    // An answer that ends with its connection.
    client.write_all(get("/", "a.test").as_bytes()).await.unwrap();
    read_head(&mut upstream).await;
    upstream.write_all(b"HTTP/1.0 200 OK\r\n\r\nall").await.unwrap();
    drop(upstream);
    assert!(read_head(&mut client).await.to_lowercase().contains("transfer-encoding: chunked"));
    assert_eq!(read_exactly(&mut client, 13).await, b"3\r\nall\r\n0\r\n\r\n");
}

#[tokio::test]
async fn bodies_are_asked_for_once_they_are_allowed() {
    let mut proxy = Proxy::start().await;
    let (server, log) = raw_server(&mut proxy).await;
    proxy.set(&format!(r#"{{"allow": ["a.test:{}"]}}"#, server.port()), false).await;
    proxy.resolver.name("a.test", &[SERVER]);
    let head = |host| {
        format!("POST / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    };
    let mut client = proxy.connect(server).await;
    client.write_all(head("b.test").as_bytes()).await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 403"));
    let mut client = proxy.connect(server).await;
    client.write_all(head("a.test").as_bytes()).await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 100"));
    client.write_all(b"END").await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"));
    let seen = log.lock().unwrap().to_lowercase();
    assert!(seen.ends_with("\r\n\r\nend") && !seen.contains("expect"), "{seen}");
}

#[tokio::test]
async fn a_new_policy_counts_for_the_next_request() {
    let (mut proxy, server, log) = start(r#"["a.test:PORT"]"#).await;
    let mut client = proxy.connect(server).await;
    client.write_all(get("/1", "a.test").as_bytes()).await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"));
    proxy.set("{}", false).await;
    client.write_all(last_get("/2", "a.test").as_bytes()).await.unwrap();
    assert!(read_text(&mut client).await.contains("HTTP/1.1 403"));
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_server_that_fails_is_reported() {
    let mut proxy = Proxy::start().await;
    let listener = TcpListener::bind((SERVER, 0)).await.unwrap();
    let server = listener.local_addr().unwrap();
    proxy.set(&format!(r#"{{"allow": ["a.test:{0}", "missing.test:{0}"]}}"#, server.port()), false).await;
    proxy.resolver.name("a.test", &[SERVER]);
    proxy.spawn(async move {
        // Accepts a request and leaves.
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
    });
    for host in ["a.test", "a.test", "missing.test"] {
        let answer = proxy.exchange(server, &last_get("/", host)).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("arenite: "), "{host} {answer}");
    }
}
