//! Connections to ports, as the gateway requests them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use arenite_model::protocol::{INSIDE_PORT, PORTS_PATH};
use standalone::Guest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// Requests a port; returns the status and the stream, which is the connection after a 101.
async fn ask(guest: &Guest, port: &str, headers: &str) -> (UnixStream, u16) {
    let mut stream = guest.connect().await;
    let request = format!("GET {PORTS_PATH}{port} HTTP/1.1\r\nhost: guest\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let status = String::from_utf8_lossy(&head).split(' ').nth(1).unwrap().parse().unwrap();
    (stream, status)
}

const UPGRADE: &str = "connection: upgrade\r\nupgrade: arenite-port\r\n";

#[tokio::test]
async fn bytes_pass_both_ways_until_either_side_ends() {
    let guest = Guest::start().await;
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).await.unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let echo = tokio::spawn(async move {
            let (mut stream, peer): (TcpStream, _) = listener.accept().await.unwrap();
            assert!(peer.ip().is_loopback());
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await.unwrap()
        });
        let (mut stream, status) = ask(&guest, &port, UPGRADE).await;
        assert_eq!(status, 101, "{address}");
        let sent: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let (mut from, mut to) = stream.split();
        let (mut got, copy) = (Vec::new(), sent.clone());
        let sending = async move {
            to.write_all(&copy).await.unwrap();
            to.shutdown().await.unwrap();
        };
        tokio::join!(sending, async { from.read_to_end(&mut got).await.unwrap() });
        assert!(got == sent);
        assert_eq!(echo.await.unwrap(), sent.len() as u64);
    }
}

#[tokio::test]
async fn what_is_no_preview_is_refused() {
    let guest = Guest::start().await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port().to_string();
    for (port, headers, wanted) in [
        (unused.as_str(), UPGRADE, 502),
        (unused.as_str(), "", 426),
        (unused.as_str(), "connection: upgrade\r\nupgrade: websocket\r\n", 426),
        (&INSIDE_PORT.to_string(), UPGRADE, 403),
        ("0", UPGRADE, 403),
        ("65536", UPGRADE, 400),
        ("3000%2F..", UPGRADE, 400),
        ("localhost", UPGRADE, 400),
    ] {
        assert_eq!(ask(&guest, port, headers).await.1, wanted, "{port} {headers}");
    }
}

#[tokio::test]
async fn too_many_at_once_are_refused() {
    let guest = Guest::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let accepting = tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            open.push(listener.accept().await.unwrap());
        }
    });
    let mut open = Vec::new();
    for _ in 0..256 {
        let (stream, status) = ask(&guest, &port, UPGRADE).await;
        assert_eq!(status, 101);
        open.push(stream);
    }
    assert_eq!(ask(&guest, &port, UPGRADE).await.1, 503);
    accepting.abort();
}
