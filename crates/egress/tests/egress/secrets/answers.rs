//! Values in answers.

use bytes::Bytes;
use data_encoding::{BASE64, BASE64URL, HEXLOWER, HEXUPPER};
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::net::TcpListener;

use super::{ALL, PLACEHOLDER, Setting, VALUE, read_answer, secret, with_host};
use crate::harness::SERVER;
use crate::tls::{ServerStream, read_exactly, read_head, shake_hands, whole, write};

/// The value as servers may give it back.
fn forms() -> Vec<String> {
    let mut forms: Vec<String> = [
        VALUE,
        r#"sk+Live/42 \"q\"~z9"#,
        r#"sk+Live\/42 \"q\"~z9"#,
        "sk%2BLive%2F42%20%22q%22~z9",
        "sk%2bLive%2f42%20%22q%22~z9",
        "sk%2BLive%2F42+%22q%22%7Ez9",
    ]
    .map(str::to_owned)
    .to_vec();
    for before in ["", "u:", "user:", "user=1"] {
        let text = format!("{before}{VALUE}");
        forms.extend([BASE64.encode(text.as_bytes()), BASE64URL.encode(text.as_bytes())]);
    }
    forms.extend([HEXLOWER.encode(VALUE.as_bytes()), HEXUPPER.encode(VALUE.as_bytes())]);
    forms
}

#[tokio::test]
async fn values_are_masked_in_each_form() {
    let setting = Setting::with_answer(ALL, |received| {
        let body = received.body.clone();
        let number: usize = received.header("x-form").parse().unwrap();
        let mut response = Response::new(whole(format!("before {}, {body}", forms()[number])));
        response.headers_mut().insert("x-form", forms()[number].parse().unwrap());
        response.headers_mut().append("set-cookie", format!("key={}", forms()[number]).parse().unwrap());
        response
    })
    .await;
    let mut client = setting.connect("a.test").await;
    for (number, form) in forms().iter().enumerate() {
        let head = format!("POST /\r\nX-Form: {number}\r\nContent-Length: {}\r\n", PLACEHOLDER.len());
        write(&mut client, &format!("{}{PLACEHOLDER}", with_host(&head, "a.test", ""))).await;
        let (head, body) = read_answer(&mut client).await;
        assert_eq!(setting.server.last().body, VALUE);
        // Base64 with something before it keeps a few characters, which belong to both.
        let core = &form[4..form.len() - 4];
        assert!(!head.contains(core) && !body.contains(core), "{form}: {head}{body}");
        assert_eq!((head.matches(PLACEHOLDER).count(), body.matches(PLACEHOLDER).count()), (2, 2), "{form}: {head}{body}");
        if number < 6 {
            assert_eq!(body, format!("before {PLACEHOLDER}, {PLACEHOLDER}"), "{form}");
        }
    }
}

#[tokio::test]
async fn values_are_found_wherever_chunks_split_them() {
    let setting = Setting::with_answer(ALL, |received| {
        let at: usize = received.uri.path()[1..].parse().unwrap();
        let text = format!("<{VALUE}>");
        let pieces: Vec<_> =
            [&text[..at], &text[at..]].map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece.as_bytes())))).into();
        Response::new(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(pieces))))
    })
    .await;
    let mut client = setting.connect("a.test").await;
    for at in 1..=VALUE.len() {
        write(&mut client, &with_host(&format!("GET /{at}"), "a.test", "")).await;
        assert_eq!(read_answer(&mut client).await.1, format!("<{PLACEHOLDER}>"), "{at}");
    }
}

/// A server of `a.test` that the test plays itself.
async fn raw(places: &[&str]) -> (Setting, TcpListener, tokio_rustls::TlsAcceptor) {
    let mut setting = Setting::start(places).await;
    let listener = TcpListener::bind((SERVER, 0)).await.unwrap();
    let host = format!("a.test:{}", listener.local_addr().unwrap().port());
    setting.set(vec![secret(VALUE, &[&host], places)]).await;
    let acceptor = setting.servers.acceptor(&["a.test"]);
    (setting, listener, acceptor)
}

async fn accept(listener: &TcpListener, acceptor: &tokio_rustls::TlsAcceptor) -> ServerStream {
    let (stream, _) = listener.accept().await.unwrap();
    acceptor.accept(stream).await.unwrap()
}

#[tokio::test]
async fn events_are_not_held_back() {
    let (setting, listener, acceptor) = raw(ALL).await;
    let stream = setting.proxy.connect(listener.local_addr().unwrap()).await;
    let mut client = shake_hands(&setting.client, "a.test", stream).await.unwrap();
    write(&mut client, &with_host("GET /events", "a.test", "")).await;
    let mut server = accept(&listener, &acceptor).await;
    read_head(&mut server).await;
    write(&mut server, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    read_head(&mut client).await;
    for (sent, expected) in [
        ("data: 1\n\n", "data: 1\n\n"),
        // The start of a value waits for the rest, and what is before it does not.
        ("data: sk+Li", "data: "),
        ("on\n\n", "sk+Lion\n\n"),
        (VALUE, PLACEHOLDER),
        ("\n\n", "\n\n"),
    ] {
        write(&mut server, &format!("{:x}\r\n{sent}\r\n", sent.len())).await;
        let chunk = format!("{:X}\r\n{expected}\r\n", expected.len());
        assert_eq!(read_exactly(&mut client, chunk.len()).await, chunk, "after {sent:?}");
    }
    // The start of a value at the end is none.
    write(&mut server, "3\r\nsk+\r\n0\r\n\r\n").await;
    assert_eq!(read_exactly(&mut client, 13).await, "3\r\nsk+\r\n0\r\n\r\n");
}

#[tokio::test]
async fn answers_without_a_body_keep_their_headers() {
    let (setting, listener, acceptor) = raw(ALL).await;
    let stream = setting.proxy.connect(listener.local_addr().unwrap()).await;
    let mut client = shake_hands(&setting.client, "a.test", stream).await.unwrap();
    write(&mut client, &with_host("HEAD /", "a.test", "")).await;
    let mut server = accept(&listener, &acceptor).await;
    for (answer, next) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 12345678\r\nContent-Encoding: gzip\r\nETag: x\r\n\r\n", "GET /"),
        ("HTTP/1.1 204 No Content\r\nETag: x\r\n\r\n", "GET /"),
        ("HTTP/1.1 304 Not Modified\r\nContent-Encoding: br\r\nETag: x\r\n\r\n", "GET /"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Encoding: br\r\nETag: x\r\n\r\n", "GET /"),
        // What a status is called may be the value, too.
        ("HTTP/1.1 200 sk+Live/42 \"q\"~z9\r\nContent-Length: 0\r\n\r\n", "GET /"),
    ] {
        read_head(&mut server).await;
        write(&mut server, answer).await;
        let head = read_head(&mut client).await;
        let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<String>>();
        assert_eq!(sorted(&head), sorted(&answer.replace(VALUE, "OK")));
        write(&mut client, &with_host(next, "a.test", "")).await;
    }
}

#[tokio::test]
async fn encoded_answers_are_refused() {
    let mut setting = Setting::with_answer(ALL, |_| {
        let mut response = Response::new(whole("whatever"));
        response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        response
    })
    .await;
    let answer = setting.request("GET /\r\nAccept-Encoding: gzip, br\r\n", "").await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("the server's answer is encoded"), "{answer}");
    assert_eq!(setting.server.last().header("accept-encoding"), "identity");
    assert_eq!(setting.refusal().await.reason, arenite_egress::Reason::EncodedAnswer);
    // Compressed on the way.
    let (setting, listener, acceptor) = raw(ALL).await;
    let stream = setting.proxy.connect(listener.local_addr().unwrap()).await;
    let mut client = shake_hands(&setting.client, "a.test", stream).await.unwrap();
    write(&mut client, &with_host("GET /", "a.test", "")).await;
    let mut server = accept(&listener, &acceptor).await;
    read_head(&mut server).await;
    write(&mut server, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n").await;
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 502"));
}

#[tokio::test]
async fn large_answers_are_passed_on_in_chunks() {
    let filler = "x".repeat(3 << 20);
    let body = format!("{filler}{VALUE}{filler}");
    let setting = Setting::with_answer(ALL, move |_| Response::new(whole(body.clone()))).await;
    let mut client = setting.connect("a.test").await;
    write(&mut client, &with_host("GET /", "a.test", "")).await;
    let (head, body) = read_answer(&mut client).await;
    assert!(head.to_lowercase().contains("chunked") && body == format!("{filler}{PLACEHOLDER}{filler}"), "{head}");
}

#[tokio::test]
async fn websockets_pass_unread() {
    let (setting, listener, acceptor) = raw(ALL).await;
    let stream = setting.proxy.connect(listener.local_addr().unwrap()).await;
    let mut client = shake_hands(&setting.client, "a.test", stream).await.unwrap();
    let upgrade = format!("Connection: Upgrade\r\nUpgrade: websocket\r\nAuthorization: Bearer {PLACEHOLDER}\r\n");
    write(&mut client, &with_host("GET /ws", "a.test", &upgrade)).await;
    let mut server = accept(&listener, &acceptor).await;
    let head = read_head(&mut server).await;
    assert!(head.contains(&format!("Authorization: Bearer {VALUE}\r\n")) && head.contains("Upgrade: websocket"), "{head}");
    write(&mut server, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfrom the server")
        .await;
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 101"));
    assert_eq!(read_exactly(&mut client, 15).await, "from the server");
    write(&mut client, PLACEHOLDER).await;
    assert_eq!(read_exactly(&mut server, PLACEHOLDER.len()).await, PLACEHOLDER);
}
