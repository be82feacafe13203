//! Placeholders where they may not be, and values that leave by another way.

use arenite_egress::{Protocol, Reason};
use data_encoding::{BASE32_NOPAD, BASE64, HEXLOWER};
use tokio::net::TcpListener;

use super::{PLACEHOLDER, Setting, VALUE, read_answer, secret, with_host};
use crate::fake_resolver::A;
use crate::harness::{SANDBOX, SERVER};
use crate::hello::client_hello;
use crate::names::ask;
use crate::tls::write;

#[tokio::test]
async fn a_placeholder_in_another_place_is_refused() {
    for (places, head, body, location) in [
        (&["query", "body"][..], format!("GET /\r\nX-Key: {PLACEHOLDER}\r\n"), "", "in a header"),
        (&["query"], format!("GET /\r\nAuthorization: Basic {}\r\n", BASE64.encode(PLACEHOLDER.as_bytes())), "", "in a header"),
        (&["header", "body"], format!("GET /?x={PLACEHOLDER}"), "", "in the query"),
        (&["header", "query", "body"], format!("GET /x/{PLACEHOLDER}/y"), "", "in the path"),
        (&["header"], format!("POST /\r\nContent-Length: {}\r\n", PLACEHOLDER.len()), PLACEHOLDER, "in the body"),
    ] {
        let mut setting = Setting::start(places).await;
        let answer = setting.request(&head, body).await;
        let hosts = setting.host("a.test");
        let expected = format!(
            "arenite: a.test:{} is refused: the secret KEY may not be {location}: it is for these places: {}; and for these \
             hosts: {hosts}\n",
            setting.port(),
            places.join(", ")
        );
        assert!(answer.starts_with("HTTP/1.1 403") && answer.ends_with(&expected), "{answer}");
        let refusal = setting.refusal().await;
        assert_eq!((refusal.reason, refusal.protocol), (Reason::SecretMisplaced, Protocol::Https));
        assert!(setting.server.received().is_empty());
    }
}

#[tokio::test]
async fn a_placeholder_late_in_a_body_is_refused() {
    let mut setting = Setting::start(&["header"]).await;
    let body = format!("{}{PLACEHOLDER}", "x".repeat(3 << 20));
    let answer = setting.request(&format!("POST /\r\nContent-Length: {}\r\n", body.len()), &body).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("may not be in the body"), "{answer}");
    assert_eq!(setting.refusal().await.reason, Reason::SecretMisplaced);
    assert!(setting.server.received().is_empty(), "the server got no whole request");
}

#[tokio::test]
async fn a_placeholder_for_another_host_is_refused() {
    let mut setting = Setting::start(super::ALL).await;
    let (a, b) = (setting.host("a.test"), setting.host("b.test"));
    let mut other = secret("value of the other", &[&b], super::ALL);
    (other.name, other.placeholders) = ("OTHER".into(), vec!["other_placeholder".into()]);
    setting.set(vec![secret(VALUE, &[&a], super::ALL), other]).await;
    for head in ["GET /\r\nX-Key: other_placeholder\r\n", "GET /?other_placeholder", "POST /\r\nContent-Length: 17\r\n"] {
        let answer = setting.request(head, if head.starts_with("POST") { "other_placeholder" } else { "" }).await;
        let expected = "the secret OTHER may not be in a request to this host: it is for these places: header, query, body; ";
        assert!(answer.contains(&format!("{expected}and for these hosts: {b}\n")), "{answer}");
        assert_eq!(setting.refusal().await.reason, Reason::SecretMisplaced);
    }
    assert!(setting.server.received().is_empty());
}

#[tokio::test]
async fn placeholders_do_not_go_without_tls() {
    let mut setting = Setting::start(super::ALL).await;
    let listener = TcpListener::bind((SERVER, 0)).await.unwrap();
    let server = listener.local_addr().unwrap();
    let close = "Connection: close\r\n";
    for (request, location) in [
        (with_host(&format!("GET /\r\nX-Key: {PLACEHOLDER}\r\n"), "a.test", close), "in a request without TLS"),
        (with_host(&format!("GET /?{PLACEHOLDER}"), "a.test", close), "in a request without TLS"),
        (with_host(&format!("GET /{PLACEHOLDER}"), "b.test", close), "in the path"),
        (
            format!("{}{PLACEHOLDER}", with_host("POST /", "a.test", &format!("Content-Length: 20\r\n{close}"))),
            "in a request without TLS",
        ),
    ] {
        let answer = setting.proxy.exchange(server, &request).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(&format!("may not be {location}")), "{answer}");
        let refusal = setting.refusal().await;
        assert_eq!((refusal.reason, refusal.protocol), (Reason::SecretMisplaced, Protocol::Http));
    }
}

#[tokio::test]
async fn values_do_not_leave_by_another_way() {
    let mut setting = Setting::start(super::ALL).await;
    let (a, b) = (setting.host("a.test"), setting.host("b.test"));
    let mut other = secret("value of the other", &[&b], super::ALL);
    (other.name, other.placeholders) = ("OTHER".into(), vec!["other_placeholder".into()]);
    setting.set(vec![secret(VALUE, &[&a], super::ALL), other]).await;
    let encoded = BASE64.encode(b"xx value of the other");
    for head in [
        "GET /\r\nX-Key: value of the other\r\n".to_owned(),
        format!("GET /\r\nX-Key: {encoded}\r\n"),
        "GET /?x=value%20of%20the%20other".to_owned(),
        "GET /value%20of%20the%20other".to_owned(),
        format!("GET /{}", HEXLOWER.encode(b"value of the other")),
    ] {
        let answer = setting.request(&head, "").await;
        assert!(answer.contains("is refused: it has the value of the secret OTHER, which is not for it\n"), "{answer}");
        let refusal = setting.refusal().await;
        assert_eq!(refusal.reason, Reason::SecretLeak);
        let path = refusal.path.unwrap();
        assert!(path == "/" || path == "/other_placeholder", "{path}");
    }
    // The host of the secret may get its value, but not without TLS.
    assert!(setting.request(&format!("GET /\r\nX-Key: {VALUE}\r\n"), "").await.starts_with("HTTP/1.1 200"));
    let request = with_host(&format!("GET /\r\nX-Key: {VALUE}\r\n"), "a.test", "Connection: close\r\n");
    let answer = setting.proxy.exchange(setting.server.address, &request).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert_eq!(setting.refusal().await.reason, Reason::SecretLeak);
    assert_eq!(setting.server.received().len(), 1);
}

#[tokio::test]
async fn names_with_values_do_not_exist() {
    let mut setting = Setting::start(super::ALL).await;
    let host = setting.host("a.test");
    setting.set(vec![secret("Sk-Live-0123456789", &[&host], super::ALL)]).await;
    let value = "Sk-Live-0123456789";
    let hex = HEXLOWER.encode(value.as_bytes());
    let names = [
        format!("x{value}.b.test"),
        format!("{}.{}.b.test", &hex[..20], &hex[20..]),
        format!("{}.b.test", BASE32_NOPAD.encode(format!("k={value}").as_bytes()).to_lowercase()),
        format!("{}.b.test", data_encoding::BASE64URL_NOPAD.encode(value.as_bytes())),
    ];
    for name in &names {
        let answer = ask(&setting.proxy, SANDBOX, name, A).await;
        assert_eq!(answer.rcode, 3, "{name}");
        let refusal = setting.refusal().await;
        assert_eq!((refusal.reason, refusal.protocol, refusal.name), (Reason::SecretLeak, Protocol::Dns, None));
    }
    assert!(setting.proxy.resolver.asked().is_empty(), "{:?}", setting.proxy.resolver.asked());
    // In a server name of TLS, and in a host.
    let mut client = setting.proxy.connect(setting.server.address).await;
    tokio::io::AsyncWriteExt::write_all(&mut client, &client_hello(&names[0])).await.unwrap();
    assert!(crate::harness::is_reset(&mut client).await);
    let refusal = setting.refusal().await;
    assert_eq!((refusal.reason, refusal.protocol, refusal.name), (Reason::SecretLeak, Protocol::Tls, None));
    let request = with_host("GET /", &names[0], "Connection: close\r\n");
    let answer = setting.proxy.exchange(setting.server.address, &request).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let refusal = setting.refusal().await;
    assert_eq!((refusal.reason, refusal.protocol, refusal.name), (Reason::SecretLeak, Protocol::Http, None));
}

#[tokio::test]
async fn short_values_are_put_in_and_not_looked_for() {
    let mut setting =
        Setting::with_answer(super::ALL, |received| http::Response::new(crate::tls::whole(received.header("x-key").to_owned())))
            .await;
    let host = setting.host("a.test");
    setting.set(vec![secret("short", &[&host], super::ALL)]).await;
    let mut client = setting.connect("a.test").await;
    write(&mut client, &with_host(&format!("GET /short\r\nX-Key: {PLACEHOLDER}\r\n"), "a.test", "")).await;
    assert_eq!(read_answer(&mut client).await.1, "short");
}
