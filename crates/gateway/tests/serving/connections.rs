//! Unauthenticated connections: they end, and block no others.

use std::time::Duration;

use arenite_gateway::{Authentication, ConnectionLimits, GatewayConfig};
use arenite_trajectory::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Running, TestResponse, echo, eventually, read_head, request, respond};

const KEY: &str = "0123456789abcdef-the-key";
/// Anything that ends at all ends within this time, on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// HTTP/2's greeting and an empty SETTINGS frame.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

async fn guarded(connections: ConnectionLimits) -> Running {
    let auth = Authentication::new(Some(KEY), None, Duration::from_secs(30)).unwrap();
    Running::with(GatewayConfig { auth, connections, ..GatewayConfig::default() }, Limits::default(), |_, stream| echo(stream))
        .await
}

fn short() -> ConnectionLimits {
    let (head, whole) = (Duration::from_millis(300), Duration::from_millis(600));
    ConnectionLimits { head, unadmitted: whole, idle: whole, ..ConnectionLimits::default() }
}

/// A call over HTTP/2, as the bytes of its frame: `GET {path}` with a key.
fn http2_get(path: &str, key: Option<&str>) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
    block.extend(path.as_bytes());
    block.extend([0x01, 9]);
    block.extend(b"localhost");
    if let Some(key) = key {
        block.extend([0x00, 9]);
        block.extend(b"x-api-key");
        block.push(key.len() as u8);
        block.extend(key.as_bytes());
    }
    let mut frame = vec![0, 0, block.len() as u8, 0x01, 0x05, 0, 0, 0, 1];
    frame.extend(block);
    frame
}

/// Reads until the connection ends, without an answer.
async fn end_of(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    // A reset counts as an end, too.
    assert!(ended.is_ok(), "it never ended; it had said {:?}", String::from_utf8_lossy(&all));
    all
}

#[tokio::test]
async fn who_shows_nothing_does_not_stay() {
    let running = guarded(short()).await;
    running.create("a").await;
    let partial = &HTTP2[..10];
    let stalled_head = b"GET /healthz HTTP/1.1\r\nhost: loc";
    let stalled_sign_in = b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n{\"key\"";
    let stalled_call = b"POST /sandbox/a/v1/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n{\"key\"";
    let unread = [&b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"[..]; 3].concat();
    let unknown_http2 = [HTTP2, &http2_get("/api/v2/sandboxes", None)].concat();
    for (name, sent) in [
        ("nothing", &b""[..]),
        ("one byte", b"P"),
        ("a part of HTTP/2's greeting", partial),
        ("HTTP/2's greeting", HTTP2),
        ("an HTTP/2 call without a key", &unknown_http2),
        ("a part of a head", stalled_head),
        ("a part of a sign-in", stalled_sign_in),
        ("a part of a call without a key", stalled_call),
        ("calls for everybody", &unread),
    ] {
        let mut client = running.connect().await;
        client.write_all(sent).await.unwrap();
        let said = end_of(&mut client).await;
        if name == "a part of a sign-in" {
            assert!(said.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&said));
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn a_known_http2_peer_that_falls_silent_ends() {
    let running = guarded(short()).await;
    let mut client = running.connect().await;
    client.write_all(&[HTTP2, &http2_get("/api/v2/sandboxes", Some(KEY))].concat()).await.unwrap();
    let said = end_of(&mut client).await;
    assert!(said.windows(13).any(|bytes| bytes == b"\"sandboxes\":["), "{}", String::from_utf8_lossy(&said));
    running.stop().await;
}

#[tokio::test]
async fn a_flood_of_silent_connections_keeps_nobody_out() {
    let limits = ConnectionLimits { waiting: 64, waiting_per_peer: 48, admitted: 4, ..ConnectionLimits::default() };
    let running = guarded(limits).await;
    running.create("a").await;
    let mut silent = Vec::new();
    for _ in 0..500 {
        silent.push(running.connect().await);
    }
    for _ in 0..20 {
        assert_eq!(running.get("/healthz").await.status, 200);
        assert_eq!(running.get_with("/sandbox/a/v1/x", &format!("x-api-key: {KEY}\r\n")).await.status, 200);
    }
    // All but the newest have ended.
    for client in &mut silent[..400] {
        end_of(client).await;
    }
    running.stop().await;
}

/// Where the rest of a body is short, the connection stays.
#[tokio::test]
async fn a_refusal_reaches_a_client_that_is_still_sending() {
    let running = guarded(ConnectionLimits::default()).await;
    let call = |header: &str| format!("POST /sandbox/a/v1/x HTTP/1.1\r\nhost: localhost\r\n{header}\r\n\r\n");
    let mut client = running.connect().await;
    for _ in 0..2 {
        client.write_all(format!("{}{{\"key\"", call("content-length: 9")).as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        client.write_all(b":1}").await.unwrap();
        let answer = TestResponse::read(&mut client).await;
        assert_eq!((answer.status, answer.header("connection")), (401, None), "{answer:?}");
    }
    for header in ["content-length: 9000000", "transfer-encoding: chunked", "content-length: 9\r\nexpect: 100-continue"] {
        let mut client = running.connect().await;
        client.write_all(call(header).as_bytes()).await.unwrap();
        let answer = TestResponse::read(&mut client).await;
        assert_eq!((answer.status, answer.header("connection")), (401, Some("close")), "{header}: {answer:?}");
        for _ in 0..64 {
            client.write_all(&[b'1'; 128 << 10]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let ended = tokio::time::timeout(PATIENCE, client.read_to_end(&mut Vec::new())).await.unwrap();
        assert_eq!(ended.unwrap(), 0, "{header}");
    }
    running.stop().await;
}

#[tokio::test]
async fn health_is_answered_when_all_places_are_taken() {
    let limits = ConnectionLimits { admitted: 2, ..short() };
    let auth = Authentication::new(Some(KEY), None, Duration::from_secs(30)).unwrap();
    let config = GatewayConfig { auth, connections: limits, ..GatewayConfig::default() };
    let (go, _) = tokio::sync::broadcast::channel::<()>(8);
    let going = go.clone();
    let running = Running::with(config, Limits::default(), move |_, mut stream| {
        let mut going = going.subscribe();
        async move {
            while let Some(got) = request(&mut stream).await {
                if got.headers.contains_key("upgrade") {
                    let answer =
                        b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: abc\r\n\r\n";
                    let _ = stream.write_all(answer).await;
                    let _ = stream.read_u8().await;
                    return;
                }
                // Longer than an unauthenticated connection may stay.
                let _ = going.recv().await;
                respond(&mut stream, "200 OK", "{}").await;
            }
        }
    })
    .await;
    running.create("a").await;
    let key = format!("host: localhost\r\nx-api-key: {KEY}\r\n");
    let mut socket = running.connect().await;
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n";
    socket.write_all(format!("GET /sandbox/a/v1/shell/ws HTTP/1.1\r\n{key}{upgrade}\r\n").as_bytes()).await.unwrap();
    assert!(read_head(&mut socket).await.unwrap().starts_with("HTTP/1.1 101"));
    let mut long = running.connect().await;
    long.write_all(format!("GET /sandbox/a/v1/long HTTP/1.1\r\n{key}\r\n").as_bytes()).await.unwrap();
    let refused = async || running.get_with("/api/v2/sandboxes", &format!("x-api-key: {KEY}\r\n")).await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = refused().await;
        if answer.status != 200 {
            assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "there was always a place");
    }
    for path in ["/healthz", "/health", "/ready"] {
        assert_eq!(running.get(path).await.status, 200, "{path}");
    }
    // Authenticated connections stay as long as their calls take.
    tokio::time::sleep(Duration::from_secs(2)).await;
    eventually(|| go.send(()).ok()).await;
    assert_eq!(TestResponse::read(&mut long).await.status, 200);
    drop(socket);
    drop(long);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while refused().await.status != 200 {
        assert!(tokio::time::Instant::now() < deadline, "the places were never free again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.stop().await;
}
