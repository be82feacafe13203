use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use arenite_egress::{EventKind, Protocol, Reason};
use tokio::io::AsyncWriteExt;

use crate::harness::{CLOSED, OTHER_SERVER, Proxy, SANDBOX, SERVER, is_reset, read_exactly, read_text};
use crate::hello::client_hello;

/// An address that answers to nobody.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(127, 1, 9, 9);

#[tokio::test]
async fn tls_goes_to_the_name_and_not_to_the_address() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    let wrong = proxy.echo(OTHER_SERVER, server.port(), "wrong server").await;
    proxy.set(&format!(r#"{{"allow": ["a.test:{}"]}}"#, server.port()), false).await;
    proxy.resolver.name("a.test", &[SERVER]);
    let hello = client_hello("a.test");
    // Another server of the same port, and one that is closed.
    for destination in [wrong, SocketAddr::new(CLOSED.into(), server.port())] {
        let mut client = proxy.connect(destination).await;
        client.write_all(&hello).await.unwrap();
        assert_eq!(read_exactly(&mut client, hello.len()).await, hello);
        client.write_all(b"more").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_text(&mut client).await, "more");
        let decision = proxy.event(|event| event.allowed).await;
        assert_eq!((decision.name.as_deref(), decision.address), (Some("a.test"), Some(SERVER.into())));
        assert_eq!((decision.protocol, decision.sandbox.as_str()), (Protocol::Tls, "box"));
        assert_eq!(decision.rule, Some(format!("a.test:{}", server.port())));
        let end = proxy.end().await;
        let bytes = hello.len() as u64 + 4;
        assert_eq!((end.bytes_sent, end.bytes_received, end.connection), (bytes, bytes, decision.connection));
    }
    assert_eq!(proxy.resolver.asked().len(), 1, "the second connection uses what is known");
}

#[tokio::test]
async fn a_hello_in_many_packets_is_read() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    proxy.set(&format!(r#"{{"allow": ["*.test:{}"]}}"#, server.port()), false).await;
    proxy.resolver.name("a.test", &[SERVER]);
    let hello = client_hello("a.test");
    let mut client = proxy.connect(server).await;
    client.set_nodelay(true).unwrap();
    for piece in hello.chunks(40) {
        client.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(read_exactly(&mut client, hello.len()).await, hello);
}

#[tokio::test]
async fn what_is_not_allowed_is_reset_with_one_event() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    let port = server.port();
    proxy.set(&format!(r#"{{"allow": ["a.test:{port}", "ssh.test:{port}/tcp"], "deny": ["bad.a.test"]}}"#), false).await;
    proxy.resolver.name("a.test", &[SERVER]);
    let mut malformed = client_hello("a.test");
    malformed[5] = 2;
    for (sent, name, reason) in [
        (client_hello("b.test"), Some("b.test"), Reason::NoRule),
        (client_hello("x.a.test"), Some("x.a.test"), Reason::NoRule),
        (client_hello("bad.a.test"), Some("bad.a.test"), Reason::Denied),
        (client_hello("127.1.0.1"), None, Reason::NoName),
        (malformed, None, Reason::MalformedTls),
        (b"SSH-2.0-client\r\n".to_vec(), None, Reason::UnknownProtocol),
        (b"\0\0\0\x08\x04\xd2\x16\x2f".to_vec(), None, Reason::UnknownProtocol),
    ] {
        let mut client = proxy.connect(server).await;
        client.write_all(&sent).await.unwrap();
        assert!(is_reset(&mut client).await, "{name:?} {reason:?}");
        let refusal = proxy.refusal().await;
        assert_eq!((refusal.name.as_deref(), refusal.reason, refusal.count), (name, reason, 1));
        assert_eq!((refusal.address, refusal.port), (Some(SERVER.into()), port));
    }
    assert!(proxy.resolver.asked().is_empty(), "no name was asked for");
}

#[tokio::test]
async fn closed_addresses_stay_closed() {
    let mut proxy = Proxy::start().await;
    let closed = proxy.echo(CLOSED, 0, "a service of the host").await;
    let port = closed.port();
    let rules = format!(r#"["127.9.0.0/16:{port}", "10.0.0.0/8:{port}", "*:{port}"]"#);
    for mode in ["allowlist", "observe"] {
        proxy.set(&format!(r#"{{"mode": "{mode}", "allow": {rules}}}"#), false).await;
        for (name, address) in
            [("a.test", CLOSED), ("b.test", Ipv4Addr::new(169, 254, 169, 254)), ("c.test", Ipv4Addr::UNSPECIFIED)]
        {
            proxy.resolver.name(name, &[address]);
            let mut client = proxy.connect(SocketAddr::new(NOWHERE.into(), port)).await;
            client.write_all(&client_hello(name)).await.unwrap();
            assert!(is_reset(&mut client).await, "{mode} {name}");
            assert_eq!(proxy.event(|event| event.name.as_deref() == Some(name)).await.reason, Reason::ClosedAddress);
        }
        let mapped = SocketAddr::new(CLOSED.to_ipv6_mapped().into(), port);
        for address in [closed, mapped, SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), port)] {
            let mut client = proxy.connect(address).await;
            let _ = client.write_all(b"\0").await;
            assert!(is_reset(&mut client).await, "{mode} {address}");
        }
    }
}

#[tokio::test]
async fn closed_addresses_are_left_out_and_rebinding_changes_nothing() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    proxy.echo(CLOSED, server.port(), "a service of the host").await;
    proxy.set(&format!(r#"{{"allow": ["a.test:{}"]}}"#, server.port()), false).await;
    proxy.resolver.name("a.test", &[CLOSED, SERVER]);
    let hello = client_hello("a.test");
    for _ in 0..2 {
        let mut client = proxy.connect(SocketAddr::new(CLOSED.into(), server.port())).await;
        client.write_all(&hello).await.unwrap();
        assert_eq!(read_exactly(&mut client, hello.len()).await, hello);
        proxy.resolver.name("a.test", &[CLOSED]);
    }
}

#[tokio::test]
async fn rules_with_addresses_pass_any_protocol() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "220 hello\r\n").await;
    proxy.set(&format!(r#"{{"allow": ["127.1.0.0/24:{}"], "deny": ["127.1.0.2"]}}"#, server.port()), false).await;
    let mut client = proxy.connect(server).await;
    assert_eq!(read_exactly(&mut client, 11).await, b"220 hello\r\n");
    client.write_all(b"QUIT").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_text(&mut client).await, "QUIT");
    let denied = proxy.echo(OTHER_SERVER, server.port(), "").await;
    assert!(is_reset(&mut proxy.connect(denied).await).await);
    assert_eq!(proxy.refusal().await.reason, Reason::Denied);
}

#[tokio::test]
async fn rules_with_addresses_may_be_for_one_protocol() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    let port = server.port();
    proxy.set(&format!(r#"{{"allow": ["127.1.0.0/24:{port}/https"], "deny": ["bad.test"]}}"#), false).await;
    for (name, is_allowed) in [("any.test", true), ("127.1.0.1", true), ("bad.test", false)] {
        let hello = client_hello(name);
        let mut client = proxy.connect(server).await;
        client.write_all(&hello).await.unwrap();
        if is_allowed {
            assert_eq!(read_exactly(&mut client, hello.len()).await, hello);
            let noted = proxy.event(|event| event.allowed && event.kind == EventKind::Decision).await.name;
            assert_eq!(noted.is_some(), name == "any.test");
        } else {
            assert!(is_reset(&mut client).await);
        }
    }
    let mut client = proxy.connect(server).await;
    client.write_all(b"\0\0\0\x08\x04\xd2\x16\x2f").await.unwrap();
    assert!(is_reset(&mut client).await);
}

#[tokio::test]
async fn a_slow_reader_makes_its_server_wait() {
    let mut proxy = Proxy::start().await;
    let listener = tokio::net::TcpListener::bind((SERVER, 0)).await.unwrap();
    let server = listener.local_addr().unwrap();
    proxy.set(&format!(r#"{{"allow": ["127.1.0.1:{}"]}}"#, server.port()), false).await;
    let _client = proxy.connect(server).await;
    let (upstream, _) = listener.accept().await.unwrap();
    let (piece, mut written) = (vec![0; 1 << 20], 0);
    while let Ok(ready) = tokio::time::timeout(Duration::from_millis(300), upstream.writable()).await {
        ready.unwrap();
        match upstream.try_write(&piece) {
            Ok(length) => written += length,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        // The kernel's buffers of two connections.
        assert!(written < 100 << 20, "the proxy takes what its client does not read");
    }
}

#[tokio::test]
async fn large_transfers_pass_in_both_directions() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "").await;
    proxy.set(&format!(r#"{{"allow": ["127.1.0.1:{}"]}}"#, server.port()), false).await;
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    let (mut read, mut write) = proxy.connect(server).await.into_split();
    let sent = bytes.clone();
    let sender = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut read, &mut received).await.unwrap();
    sender.await.unwrap();
    assert!(received == bytes);
    let end = proxy.end().await;
    assert_eq!((end.bytes_sent, end.bytes_received), (3_000_000, 3_000_000));
}

#[tokio::test]
async fn a_server_may_speak_first_at_an_address_of_an_allowed_name() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "SSH-2.0-server\r\n").await;
    proxy.set(&format!(r#"{{"allow": ["git.test:{}/tcp"]}}"#, server.port()), false).await;
    proxy.resolver.name("git.test", &[SERVER]);
    // Nothing has asked for the name, so the address is unknown.
    let mut client = proxy.connect(server).await;
    client.write_all(b"SSH-2.0-client\r\n").await.unwrap();
    assert!(is_reset(&mut client).await);
    crate::names::ask(&proxy, SANDBOX, "git.test", 1).await;
    let start = Instant::now();
    let mut client = proxy.connect(server).await;
    assert_eq!(read_exactly(&mut client, 16).await, b"SSH-2.0-server\r\n");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    let mut client = proxy.connect(server).await;
    client.write_all(b"SSH-2.0-client\r\n").await.unwrap();
    assert_eq!(read_exactly(&mut client, 32).await, b"SSH-2.0-server\r\nSSH-2.0-client\r\n");
    // Another name at the address is no part of the rule.
    let mut client = proxy.connect(server).await;
    client.write_all(&client_hello("other.test")).await.unwrap();
    assert!(is_reset(&mut client).await);
}

#[tokio::test]
async fn observing_passes_and_notes_names() {
    let mut proxy = Proxy::with_policy(r#"{"mode": "observe", "deny": ["bad.test"]}"#).await;
    let server = proxy.echo(SERVER, 0, "").await;
    let speaks_first = proxy.echo(OTHER_SERVER, 0, "220\n").await;
    proxy.resolver.name("a.test", &[SERVER]);
    proxy.resolver.name("mail.test", &[OTHER_SERVER]);
    let hello = client_hello("a.test");
    let mut client = proxy.connect(server).await;
    client.write_all(&hello).await.unwrap();
    assert_eq!(read_exactly(&mut client, hello.len()).await, hello);
    assert_eq!(proxy.event(|e| e.name.as_deref() == Some("a.test")).await.reason, Reason::Observe);
    // TLS without a name, and a server that speaks first.
    let hello = client_hello("127.1.0.1");
    let mut client = proxy.connect(server).await;
    client.write_all(&hello).await.unwrap();
    assert_eq!(read_exactly(&mut client, hello.len()).await, hello);
    crate::names::ask(&proxy, SANDBOX, "mail.test", 1).await;
    let mut client = proxy.connect(speaks_first).await;
    assert_eq!(read_exactly(&mut client, 4).await, b"220\n");
    let noted = proxy.event(|e| e.name.as_deref() == Some("mail.test") && e.protocol == Protocol::Tcp).await;
    assert_eq!((noted.address, noted.port), (Some(OTHER_SERVER.into()), speaks_first.port()));
    let mut client = proxy.connect(server).await;
    client.write_all(&client_hello("bad.test")).await.unwrap();
    assert!(is_reset(&mut client).await);
}

#[tokio::test]
async fn senders_without_a_policy_reach_nothing() {
    let mut proxy = Proxy::with_policy(r#"{"mode": "observe"}"#).await;
    let server = proxy.echo(SERVER, 0, "x").await;
    assert!(is_reset(&mut proxy.connector().connect(Ipv4Addr::new(127, 0, 0, 8), server).await).await);
    // A connection to the proxy itself.
    assert!(is_reset(&mut proxy.connect(proxy.address).await).await);
    proxy.send(&format!(r#"{{"remove": {{"address": "{SANDBOX}"}}}}"#)).await;
    proxy.barrier().await;
    assert!(is_reset(&mut proxy.connect(server).await).await);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_a_refusal() {
    let mut proxy = Proxy::with_policy(r#"{"allow": ["a.test:9", "missing.test:9"]}"#).await;
    proxy.resolver.name("a.test", &[NOWHERE]);
    for (name, reason) in [("a.test", Reason::NotConnected), ("missing.test", Reason::NoAddress)] {
        let mut client = proxy.connect(SocketAddr::new(NOWHERE.into(), 9)).await;
        client.write_all(&client_hello(name)).await.unwrap();
        assert!(is_reset(&mut client).await);
        assert_eq!(proxy.refusal().await.reason, reason);
    }
}

#[tokio::test]
async fn equal_refusals_are_one_event_and_their_number() {
    let mut proxy = Proxy::with_policy("{}").await;
    let to = SocketAddr::new(SERVER.into(), 443);
    for _ in 0..20 {
        let mut client = proxy.connect(to).await;
        client.write_all(&client_hello("a.test")).await.unwrap();
        assert!(is_reset(&mut client).await);
    }
    assert_eq!(proxy.refusal().await.count, 1);
    let mut rest = 0;
    while rest < 19 {
        rest += proxy.refusal().await.count;
    }
    assert_eq!(rest, 19);
}

#[tokio::test]
async fn the_proxy_ends_with_its_server() {
    let mut proxy = Proxy::start().await;
    let server = proxy.echo(SERVER, 0, "hello").await;
    proxy.set(&format!(r#"{{"allow": ["127.1.0.1:{}"]}}"#, server.port()), false).await;
    let mut open = proxy.connect(server).await;
    assert_eq!(read_exactly(&mut open, 5).await, b"hello");
    proxy.end_server().await.unwrap();
    assert!(is_reset(&mut open).await, "open connections end");
    assert!(tokio::net::TcpStream::connect(proxy.address).await.is_err(), "the redirect leads to a closed port");
}
