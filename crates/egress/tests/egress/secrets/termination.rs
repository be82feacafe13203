//! Where TLS ends, and what is checked there.

use std::time::Instant;

use arenite_egress::{EventKind, Protocol, Reason, ToServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ALL, PLACEHOLDER, Setting, VALUE, read_answer, secret, with_host};
use crate::harness::is_reset;
use crate::hello::client_hello;
use crate::tls::{ServerAuthority, certificate_of, read_to_end, shake_hands, trust, trust_with, write};

#[tokio::test]
async fn only_hosts_of_secrets_have_their_tls_ended() {
    let mut setting = Setting::start(ALL).await;
    let servers = trust(setting.servers.certificate());
    // The name of no secret, and the name of one on another port.
    for hosts in [[setting.host("a.test")], ["b.test:1".to_owned()]] {
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        setting.set(vec![secret(VALUE, &hosts, ALL)]).await;
        let mut client = shake_hands(&servers, "b.test", setting.proxy.connect(setting.server.address).await).await.unwrap();
        let request = with_host(&format!("GET /{PLACEHOLDER}"), "b.test", "Connection: close\r\n");
        write(&mut client, &request).await;
        assert!(read_to_end(&mut client).await.starts_with("HTTP/1.1 200"));
        assert_eq!(setting.server.last().uri.path(), format!("/{PLACEHOLDER}"), "it is passed on as it is");
        assert_eq!(setting.proxy.event(|event| event.allowed && event.name.is_some()).await.protocol, Protocol::Tls);
    }
    // Names below one.
    let below = setting.host("*.test");
    setting.set(vec![secret(VALUE, &[&below], ALL)]).await;
    setting.connect("b.test").await;
    // Without an authority, nothing ends.
    let set = serde_json::json!({"set": {"address": "127.0.0.7", "sandbox": "box", "policy": {"allow": ["*:*"]},
        "secrets": [secret(VALUE, &[&below], ALL)]}});
    setting.proxy.send(&set.to_string()).await;
    setting.proxy.barrier().await;
    shake_hands(&servers, "a.test", setting.proxy.connect(setting.server.address).await).await.unwrap();
}

#[tokio::test]
async fn both_versions_of_tls_and_http_1_are_spoken() {
    let mut setting = Setting::start(ALL).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = trust_with(certificate_of(&setting.keys), &[version]);
        for is_resumed in [false, true] {
            let stream = setting.proxy.connect(setting.server.address).await;
            let mut client = shake_hands(&client, "a.test", stream).await.unwrap();
            let (_, session) = client.get_ref();
            assert_eq!((session.protocol_version(), session.alpn_protocol()), (Some(version.version), Some(&b"http/1.1"[..])));
            let kind = session.handshake_kind().unwrap();
            assert_eq!(kind == rustls::HandshakeKind::Resumed, is_resumed, "{kind:?}");
            write(&mut client, &with_host("GET /", "a.test", "Connection: close\r\n")).await;
            assert!(read_to_end(&mut client).await.starts_with("HTTP/1.1 200"));
        }
        let end = setting.proxy.event(|event| event.kind == EventKind::End).await;
        assert!(end.protocol == Protocol::Https && end.bytes_sent > 200 && end.bytes_received > 200, "{end:?}");
    }
    // HTTP/2 alone is not.
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate_of(&setting.keys)).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into());
    let mut config = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    assert!(shake_hands(&connector, "a.test", setting.proxy.connect(setting.server.address).await).await.is_err());
    assert_eq!(setting.refusal().await.reason, Reason::ClientHandshake);
}

#[tokio::test]
async fn the_host_of_a_request_is_the_server_name() {
    let mut setting = Setting::start(ALL).await;
    let port = setting.port();
    for (request, status) in [
        (with_host("GET /", "b.test", "Connection: close\r\n"), "421"),
        (with_host("GET /", "127.1.0.1", "Connection: close\r\n"), "421"),
        (with_host("GET /", "a.test:1", "Connection: close\r\n"), "400"),
        (with_host(&format!("GET https://b.test:{port}/"), "b.test", "Connection: close\r\n"), "421"),
        (with_host(&format!("GET http://a.test:{port}/"), "a.test", "Connection: close\r\n"), "400"),
        (with_host(&format!("CONNECT a.test:{port}"), "a.test", "Connection: close\r\n"), "403"),
        (with_host(&format!("GET https://a.test:{port}/"), "a.test", "Connection: close\r\n"), "200"),
    ] {
        let mut client = setting.connect("a.test").await;
        write(&mut client, &request).await;
        let answer = read_to_end(&mut client).await;
        assert_eq!(answer.get(9..12), Some(status), "{request}{answer}");
    }
    let refusal = setting.refusal().await;
    let seen = (refusal.reason, refusal.protocol, refusal.name.as_deref());
    assert_eq!(seen, (Reason::HostMismatch, Protocol::Https, Some("a.test")));
    assert_eq!(setting.server.received().len(), 1);
}

#[tokio::test]
async fn a_policy_decides_on_requests() {
    let mut setting = Setting::start(ALL).await;
    let (port, host) = (setting.port(), setting.host("a.test"));
    let rule = |protocol: &str| {
        format!(r#"{{"host": "*.test", "ports": [{port}], "protocol": "{protocol}", "methods": ["GET"], "paths": ["/api/*"]}}"#)
    };
    setting.set_with(&format!(r#"{{"allow": [{}]}}"#, rule("https")), vec![secret(VALUE, &[&host], ALL)]).await;
    for (head, status) in [("GET /api/x", "200"), ("POST /api/x", "403"), ("GET /other", "403"), ("GET /api/../x", "403")] {
        let answer = setting.request(head, "").await;
        assert_eq!(answer.get(9..12), Some(status), "{head} {answer}");
    }
    let refusal = setting.refusal().await;
    assert_eq!((refusal.reason, refusal.protocol, refusal.method.as_deref()), (Reason::NoRule, Protocol::Https, Some("POST")));
    // Where TLS does not end, such a rule can't be checked.
    let mut client = setting.proxy.connect(setting.server.address).await;
    client.write_all(&client_hello("b.test")).await.unwrap();
    assert!(is_reset(&mut client).await);
    // Rules for HTTP are not for it, and secrets open nothing.
    for policy in [format!(r#"{{"allow": [{}]}}"#, rule("http")), "{}".into(), r#"{"allow": ["*:*"], "deny": ["a.test"]}"#.into()]
    {
        setting.set_with(&policy, vec![secret(VALUE, &[&host], ALL)]).await;
        let mut client = setting.proxy.connect(setting.server.address).await;
        client.write_all(&client_hello("a.test")).await.unwrap();
        assert!(is_reset(&mut client).await, "{policy}");
    }
    let deny = format!(r#"{{"allow": ["*:*"], "deny": [{}]}}"#, rule("https"));
    setting.set_with(&deny, vec![secret(VALUE, &[&host], ALL)]).await;
    for (head, status) in [("GET /api/x", "403"), ("GET /x", "200")] {
        assert_eq!(setting.request(head, "").await.get(9..12), Some(status), "{head}");
    }
    let mut client = setting.proxy.connect(setting.server.address).await;
    client.write_all(&client_hello("b.test")).await.unwrap();
    assert!(is_reset(&mut client).await, "what can't be checked is denied");
}

#[tokio::test]
async fn the_certificate_of_the_server_is_checked() {
    let mut setting = Setting::start(ALL).await;
    let unknown = ServerAuthority::new("unknown");
    for (acceptor, text) in
        [(unknown.acceptor(&["a.test"]), "UnknownIssuer"), (setting.servers.acceptor(&["c.test"]), "not valid for name")]
    {
        let server =
            crate::tls::WebServer::start(&mut setting.proxy, acceptor, |_| http::Response::new(crate::tls::whole("x"))).await;
        let host = format!("a.test:{}", server.address.port());
        setting.set(vec![secret(VALUE, &[&host], ALL)]).await;
        let mut client = shake_hands(&setting.client, "a.test", setting.proxy.connect(server.address).await).await.unwrap();
        write(&mut client, &with_host(&format!("GET /?{PLACEHOLDER}"), "a.test", "Connection: close\r\n")).await;
        let answer = read_to_end(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("the certificate of a.test is not valid: "), "{answer}");
        assert!(answer.contains(text), "{answer}");
        assert_eq!(setting.refusal().await.reason, Reason::InvalidCertificate);
        assert!(server.received().is_empty());
    }
}

#[tokio::test]
async fn servers_that_fail_are_reported() {
    let mut setting = Setting::start(ALL).await;
    let plain = setting.proxy.echo(crate::harness::SERVER, 0, "HTTP/1.1 200 OK\r\n\r\n").await;
    let (closed, port) = (std::net::SocketAddr::new(plain.ip(), 1), plain.port());
    setting.set(vec![secret(VALUE, &[&format!("a.test:1,{port}")], ALL)]).await;
    for (server, text) in [(plain, "TLS with a.test failed"), (closed, "the address did not accept a connection")] {
        let mut client = shake_hands(&setting.client, "a.test", setting.proxy.connect(server).await).await.unwrap();
        write(&mut client, &with_host("GET /", "a.test", "Connection: close\r\n")).await;
        let answer = read_to_end(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains(text), "{answer}");
        assert_eq!(setting.refusal().await.reason, Reason::NotConnected);
    }
}

#[tokio::test]
async fn a_client_that_does_not_trust_the_authority_is_an_event() {
    let mut setting = Setting::start(ALL).await;
    let other = trust(setting.servers.certificate());
    assert!(shake_hands(&other, "a.test", setting.proxy.connect(setting.server.address).await).await.is_err());
    let refusal = setting.refusal().await;
    assert_eq!((refusal.reason, refusal.name.as_deref()), (Reason::ClientHandshake, Some("a.test")));
    // What follows the first message is malformed, or nothing.
    for rest in [&b"\x17\x03\x03\x00\x05hello"[..], b"GET / HTTP/1.1\r\n\r\n", b""] {
        let mut client = setting.proxy.connect(setting.server.address).await;
        client.write_all(&client_hello("a.test")).await.unwrap();
        client.write_all(rest).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
    }
    assert!(setting.server.received().is_empty());
    assert!(setting.request("GET /", "").await.starts_with("HTTP/1.1 200"), "the proxy goes on");
}

#[tokio::test]
async fn what_can_not_be_compiled_closes_the_sandbox() {
    let mut setting = Setting::start(ALL).await;
    let set = serde_json::json!({"set": {"address": "127.0.0.7", "sandbox": "box", "policy": {},
        "secrets": [secret("topsecret", &["*"], ALL)]}});
    setting.proxy.send(&set.to_string()).await;
    let ToServer::Refused { code, message, .. } = setting.proxy.refused().await else { panic!("no refusal") };
    assert!(code == "invalid_secret" && message.contains("KEY") && !message.contains("topsecret"), "{code} {message}");
    setting.keys.key = "no key".to_owned().into();
    let set = serde_json::json!({"set": {"address": "127.0.0.7", "sandbox": "box", "policy": {},
        "secrets": [secret(VALUE, &["a.test"], ALL)], "authority": setting.keys}});
    setting.proxy.send(&set.to_string()).await;
    let ToServer::Refused { code, .. } = setting.proxy.refused().await else { panic!("no refusal") };
    assert_eq!(code, "invalid_authority");
    assert!(is_reset(&mut setting.proxy.connect(setting.server.address).await).await);
}

#[tokio::test]
async fn a_warm_connection_adds_little() {
    let setting = Setting::start(ALL).await;
    let servers = trust(setting.servers.certificate());
    let direct = shake_hands(&servers, "a.test", tokio::net::TcpStream::connect(setting.server.address).await.unwrap());
    let mut fastest = [f64::MAX; 2];
    for (client, fastest) in [direct.await.unwrap(), setting.connect("a.test").await].iter_mut().zip(&mut fastest) {
        for _ in 0..100 {
            let start = Instant::now();
            let head = format!("GET /?{PLACEHOLDER}\r\nAuthorization: Bearer {PLACEHOLDER}\r\n");
            write(client, &with_host(&head, "a.test", "")).await;
            assert_eq!(read_answer(client).await.1, "fine");
            *fastest = fastest.min(start.elapsed().as_secs_f64());
        }
    }
    let added = (fastest[1] - fastest[0]) * 1e3;
    assert!(added < 3.0, "{added:.2} ms more than without the proxy");
}
