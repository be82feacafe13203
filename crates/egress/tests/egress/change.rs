//! Policies that change while sandboxes work.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arenite_egress::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::harness::{Connector, Proxy, SANDBOX, SERVER, is_reset, read_exactly};
use crate::hello::client_hello;

/// Whether the server answered.
async fn reaches(connector: Connector, server: SocketAddr, hello: &[u8]) -> bool {
    let mut stream = connector.connect(SANDBOX, server).await;
    let mut answer = vec![0; hello.len()];
    stream.write_all(hello).await.is_ok() && stream.read_exact(&mut answer).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_under_load_drop_and_pass_nothing_wrong() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    let port = server.port();
    let with_both = format!(r#"{{"allow": ["kept.test:{port}", "dropped.test:{port}"]}}"#);
    let with_one = format!(r#"{{"allow": ["kept.test:{port}"], "deny": ["other.test"]}}"#);
    proxy.set(&with_both, false).await;
    proxy.resolver.name("kept.test", &[SERVER]);
    proxy.resolver.name("dropped.test", &[SERVER]);
    let (kept, dropped) = (Arc::new(client_hello("kept.test")), Arc::new(client_hello("dropped.test")));

    let connector = proxy.connector();
    let is_denied = Arc::new(AtomicBool::new(false));
    let passed = Arc::new(AtomicUsize::new(0));
    let denied = is_denied.clone();
    let count = passed.clone();
    let load = tokio::spawn(async move {
        let mut requests = JoinSet::new();
        // 200 a second, for a second: half of them for what both policies allow.
        let mut ticks = interval(Duration::from_millis(10));
        for _ in 0..100 {
            ticks.tick().await;
            let (connector, kept) = (connector.clone(), kept.clone());
            let other = connector.clone();
            requests.spawn(async move { assert!(reaches(connector, server, &kept).await, "what both allow was dropped") });
            let (dropped, denied, count) = (dropped.clone(), denied.clone(), count.clone());
            requests.spawn(async move {
                let was_denied = denied.load(Ordering::SeqCst);
                if reaches(other, server, &dropped).await {
                    // Allowed again meanwhile is right, too.
                    assert!(!was_denied || !denied.load(Ordering::SeqCst), "what is denied passed");
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        requests.join_all().await;
    });
    for _ in 0..10 {
        proxy.set(&with_one, false).await;
        is_denied.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(60)).await;
        is_denied.store(false, Ordering::SeqCst);
        proxy.set(&with_both, false).await;
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    load.await.unwrap();
    let passed = passed.load(Ordering::SeqCst);
    assert!((10..90).contains(&passed), "both answers have to occur: {passed}");
}

#[tokio::test]
async fn open_connections_are_closed_by_choice() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    let port = server.port();
    proxy.set(&format!(r#"{{"allow": ["a.test:{port}", "b.test:{port}", "127.1.0.1:{port}/http"]}}"#), false).await;
    let mut clients = Vec::new();
    for name in ["a.test", "b.test"] {
        proxy.resolver.name(name, &[SERVER]);
        let mut client = proxy.connect(server).await;
        let hello = client_hello(name);
        client.write_all(&hello).await.unwrap();
        read_exactly(&mut client, hello.len()).await;
        clients.push(client);
    }
    let [mut a, mut b] = <[_; 2]>::try_from(clients).unwrap();
    let only_a = format!(r#"{{"allow": ["a.test:{port}"]}}"#);
    proxy.set(&only_a, false).await;
    b.write_all(b"more").await.unwrap();
    assert_eq!(read_exactly(&mut b, 4).await, b"more", "open connections stay");
    proxy.set(&only_a, true).await;
    assert!(is_reset(&mut b).await);
    a.write_all(b"more").await.unwrap();
    assert_eq!(read_exactly(&mut a, 4).await, b"more");
    let end = proxy.event(|event| event.name.as_deref() == Some("b.test") && event.bytes_sent > 0).await;
    assert!(end.allowed);
}

#[tokio::test]
async fn a_connection_that_is_being_made_is_decided_again() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    let port = server.port();
    for (name, request) in
        [("a.test", client_hello("a.test")), ("b.test", b"GET / HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n".to_vec())]
    {
        proxy.set(&format!(r#"{{"allow": ["*.test:{port}"]}}"#), false).await;
        proxy.resolver.name(name, &[SERVER]);
        proxy.resolver.hold(true);
        let mut client = proxy.connect(server).await;
        client.write_all(&request).await.unwrap();
        // It is allowed, and its name is being resolved.
        while !proxy.resolver.asked().iter().any(|(asked, _)| asked == name) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        proxy.set("{}", false).await;
        proxy.resolver.hold(false);
        let mut answer = Vec::new();
        let end = client.read_to_end(&mut answer).await;
        assert!(end.is_err() || answer.starts_with(b"HTTP/1.1 403"), "{}", String::from_utf8_lossy(&answer));
        let refusal = proxy.refusal().await;
        assert_eq!((refusal.name.as_deref(), refusal.reason), (Some(name), arenite_egress::Reason::NoRule));
    }
}

#[tokio::test]
async fn a_policy_counts_until_the_server_is_connected() {
    let mut proxy = Proxy::start().await;
    // A full queue makes the kernel drop further requests to connect, until one is accepted.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((SERVER, 0).into()).unwrap();
    let listener = socket.listen(0).unwrap();
    let server = listener.local_addr().unwrap();
    let _filler = TcpStream::connect(server).await.unwrap();
    proxy.set(&format!(r#"{{"allow": ["*.test:{}"]}}"#, server.port()), false).await;
    proxy.resolver.name("a.test", &[SERVER]);
    let mut clients = Vec::new();
    for request in [client_hello("a.test"), b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n".to_vec()] {
        let mut client = proxy.connect(server).await;
        client.write_all(&request).await.unwrap();
        clients.push(client);
    }
    while proxy.resolver.asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.set("{}", false).await;
    let bytes = Arc::new(AtomicUsize::new(0));
    let received = bytes.clone();
    proxy.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let received = received.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    received.fetch_add(length, Ordering::SeqCst);
                }
            });
        }
    });
    let [mut tls, mut http] = <[_; 2]>::try_from(clients).unwrap();
    assert!(is_reset(&mut tls).await);
    assert!(crate::harness::read_text(&mut http).await.starts_with("HTTP/1.1 403"));
    assert_eq!(bytes.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_floor_decides_on_names_that_the_policy_does_not_read() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    let port = server.port();
    // Alone, the rule with the address would pass everything there unread.
    let policy = format!(r#"{{"allow": ["127.1.0.0/16:{port}"]}}"#);
    let floor = r#"{"mode": "observe", "deny": ["denied.test"]}"#;
    let set = |floor: &str| {
        format!(
            r#"{{"set": {{"address": "{SANDBOX}", "sandbox": "box", "policy": {policy}, "floor": {floor}, "close_open": true}}}}"#
        )
    };
    proxy.send(&set(floor)).await;
    proxy.barrier().await;
    let (kept, denied) = (client_hello("kept.test"), client_hello("denied.test"));
    let mut open = proxy.connect(server).await;
    open.write_all(&kept).await.unwrap();
    assert_eq!(read_exactly(&mut open, kept.len()).await, kept);
    assert!(!reaches(proxy.connector(), server, &denied).await);
    let refusal = proxy.refusal().await;
    assert_eq!((refusal.reason, refusal.rule.as_deref()), (Reason::Floor, Some("denied.test")));
    // A narrower floor closes what is open.
    proxy.send(&set(r#"{"allow": ["other.test"]}"#)).await;
    proxy.barrier().await;
    assert!(is_reset(&mut open).await);
    assert!(!reaches(proxy.connector(), server, &kept).await);
    assert_eq!(proxy.refusal().await.reason, Reason::Floor);
}
