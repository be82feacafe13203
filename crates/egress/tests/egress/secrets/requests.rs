//! Values in requests.

use data_encoding::BASE64;
use http::Method;

use super::{ALL, PLACEHOLDER, Setting, VALUE, read_answer, secret, with_host};
use crate::tls::write;

/// The value in a query or a form.
const IN_URL: &str = "sk%2BLive%2F42%20%22q%22~z9";

#[tokio::test]
async fn values_are_put_into_each_place() {
    let setting = Setting::start(ALL).await;
    let target = format!("/x?a=1&key={PLACEHOLDER}&b={PLACEHOLDER}");
    let two = format!("{PLACEHOLDER} inherited_placeholder");
    let head = format!("GET {target}\r\nAuthorization: Bearer {PLACEHOLDER}\r\nX-Two: {two}\r\n");
    let answer = setting.request(&head, "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("fine"), "{answer}");
    let received = setting.server.last();
    assert_eq!(received.uri.to_string(), format!("/x?a=1&key={IN_URL}&b={IN_URL}"));
    assert_eq!(received.header("authorization"), format!("Bearer {VALUE}"));
    assert_eq!(received.header("x-two"), format!("{VALUE} {VALUE}"));
    assert_eq!((received.header("host"), received.header("accept-encoding")), (&*setting.host("a.test"), "identity"));
    for (kind, body, expected) in [
        (
            "application/json; charset=utf-8",
            format!(r#"{{"key": "{PLACEHOLDER}"}}"#),
            r#"{"key": "sk+Live/42 \"q\"~z9"}"#.to_owned(),
        ),
        ("application/vnd.api+json", format!(r#"["{PLACEHOLDER}"]"#), r#"["sk+Live/42 \"q\"~z9"]"#.to_owned()),
        ("application/x-www-form-urlencoded", format!("a=1&key={PLACEHOLDER}&b"), format!("a=1&key={IN_URL}&b")),
        ("text/plain", format!("{PLACEHOLDER}{PLACEHOLDER}"), format!("{VALUE}{VALUE}")),
        ("text/plain", "nothing".to_owned(), "nothing".to_owned()),
    ] {
        let head = format!("POST /\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
        let answer = setting.request(&head, &body).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let received = setting.server.last();
        assert_eq!((received.method.clone(), received.body.as_str()), (Method::POST, expected.as_str()), "{kind}");
        assert_eq!(received.header("content-length"), expected.len().to_string(), "the length is known");
    }
}

#[tokio::test]
async fn user_and_password_are_decoded() {
    let setting = Setting::start(&["header"]).await;
    for (scheme, user) in [("Basic", "user:"), ("basic", "us:"), ("BASIC", "")] {
        let encoded = BASE64.encode(format!("{user}{PLACEHOLDER}").as_bytes());
        for encoded in [encoded.as_str(), encoded.trim_end_matches('=')] {
            setting.request(&format!("GET /\r\nAuthorization: {scheme} {encoded}\r\n"), "").await;
            let expected = format!("Basic {}", BASE64.encode(format!("{user}{VALUE}").as_bytes()));
            assert_eq!(setting.server.last().header("authorization"), expected);
        }
    }
    // Without a placeholder, and not in base64.
    for other in [format!("Basic {}", BASE64.encode(b"user:password")), "Basic ???".into(), "Basic".into(), "Digest x".into()] {
        setting.request(&format!("GET /\r\nAuthorization: {other}\r\n"), "").await;
        assert_eq!(setting.server.last().header("authorization"), other);
    }
}

#[tokio::test]
async fn placeholders_are_found_wherever_chunks_split_them() {
    let setting = Setting::start(&["body"]).await;
    let mut client = setting.connect("a.test").await;
    let body = format!("a{PLACEHOLDER}b");
    for at in 1..body.len() {
        let (first, second) = body.split_at(at);
        let head = with_host("POST /", "a.test", "Transfer-Encoding: chunked\r\n");
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        write(&mut client, &format!("{head}{}", chunk(first))).await;
        write(&mut client, &format!("{}0\r\n\r\n", chunk(second))).await;
        assert_eq!(read_answer(&mut client).await.1, "fine");
        assert_eq!(setting.server.last().body, format!("a{VALUE}b"), "{at}");
    }
}

#[tokio::test]
async fn large_bodies_are_passed_on_in_chunks() {
    let setting = Setting::start(&["body"]).await;
    let filler = "x".repeat(3 << 20);
    let body = format!("{filler}{PLACEHOLDER}");
    let answer = setting.request(&format!("POST /\r\nContent-Length: {}\r\n", body.len()), &body).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let received = setting.server.last();
    assert!(received.body == format!("{filler}{VALUE}"), "{} bytes", received.body.len());
    assert_eq!((received.header("transfer-encoding"), received.header("content-length")), ("chunked", ""));
}

#[tokio::test]
async fn bodies_without_a_secret_keep_their_length() {
    let setting = Setting::start(&["header"]).await;
    let body = "x".repeat(3 << 20);
    let answer = setting.request(&format!("POST /\r\nContent-Length: {}\r\n", body.len()), &body).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(setting.server.last().header("content-length"), body.len().to_string());
    // They are not read whole first.
    let mut client = setting.connect("a.test").await;
    write(&mut client, &format!("{}12345", with_host("POST /slow", "a.test", "Content-Length: 10\r\n"))).await;
    while !setting.server.begun().contains(&"/slow".to_owned()) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    write(&mut client, "67890").await;
    assert_eq!(read_answer(&mut client).await.1, "fine");
    // What is compressed is passed as it is.
    let setting = Setting::start(ALL).await;
    let head = format!("POST /\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n", PLACEHOLDER.len());
    setting.request(&head, PLACEHOLDER).await;
    assert_eq!(setting.server.last().body, PLACEHOLDER);
}

#[tokio::test]
async fn a_connection_serves_many_requests_over_one_to_the_server() {
    let mut setting = Setting::start(ALL).await;
    let mut client = setting.connect("a.test").await;
    for n in 0..3 {
        write(&mut client, &with_host(&format!("GET /{n}?{PLACEHOLDER}"), "A.test.", "")).await;
        assert_eq!(read_answer(&mut client).await.1, "fine");
    }
    // All at once.
    let pipelined: String = (3..6).map(|n| with_host(&format!("GET /{n}?{PLACEHOLDER}"), "a.test", "")).collect();
    write(&mut client, &pipelined).await;
    for _ in 3..6 {
        assert_eq!(read_answer(&mut client).await.1, "fine");
    }
    let received = setting.server.received();
    let uris: Vec<String> = received.iter().map(|received| received.uri.to_string()).collect();
    assert_eq!(uris, (0..6).map(|n| format!("/{n}?{IN_URL}")).collect::<Vec<_>>());
    assert!(received.iter().all(|one| one.from == received[0].from), "the connection to the server is kept");
    let event = setting.proxy.event(|event| event.allowed && event.path.as_deref() == Some("/0")).await;
    let text = serde_json::to_string(&event).unwrap();
    assert!(text.contains(r#""protocol":"https""#) && text.contains(r#""name":"a.test""#) && !text.contains("sk"), "{text}");
}

#[tokio::test]
async fn secrets_change_on_open_connections() {
    let mut setting = Setting::start(&["header"]).await;
    let host = setting.host("a.test");
    let mut client = setting.connect("a.test").await;
    let request = with_host(&format!("GET /\r\nX-Key: {PLACEHOLDER}\r\n"), "a.test", "");
    for value in [VALUE, "another value", "a third value"] {
        setting.set(vec![secret(value, &[&host], &["header"])]).await;
        write(&mut client, &request).await;
        assert_eq!(read_answer(&mut client).await.1, "fine");
        assert_eq!(setting.server.last().header("x-key"), value);
    }
    // Without its value, the secret is revoked.
    setting.set(vec![secret("", &[&host], &["header"])]).await;
    write(&mut client, &request).await;
    let (head, body) = read_answer(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 403") && body.contains("the secret KEY was revoked"), "{head}{body}");
    assert_eq!(setting.refusal().await.reason, arenite_egress::Reason::SecretRevoked);
    // Without the secret, its placeholder is text.
    setting.set(Vec::new()).await;
    write(&mut client, &request).await;
    read_answer(&mut client).await;
    assert_eq!(setting.server.last().header("x-key"), PLACEHOLDER);
    assert_eq!(setting.server.received().len(), 4);
}

#[tokio::test]
async fn a_secret_that_changes_before_a_request_is_sent_does_not_leave() {
    let mut setting = Setting::start(&["header"]).await;
    let host = setting.host("*.test");
    setting.set(vec![secret(VALUE, &[&host], &["header"])]).await;
    // Set again as it is, and revoked.
    for (name, value, status) in [("a.test", VALUE, "200"), ("b.test", "", "403")] {
        let mut client = setting.connect(name).await;
        setting.proxy.resolver.hold(true);
        write(&mut client, &with_host(&format!("GET /\r\nX-Key: {PLACEHOLDER}\r\n"), name, "")).await;
        // The values are in the request, and it waits for its server.
        while !setting.proxy.resolver.asked().iter().any(|(asked, _)| asked == name) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        setting.set(vec![secret(value, &[&host], &["header"])]).await;
        setting.proxy.resolver.hold(false);
        assert_eq!(read_answer(&mut client).await.0.get(9..12), Some(status));
        assert_eq!(setting.server.received().len(), 1);
    }
}
