//! Guests that have been taken over.

use std::time::Duration;

use arenite_trajectory::OutcomeKind;
use tokio::io::{AsyncWriteExt, DuplexStream};

use crate::harness::{Answer, Running, eventually, request};

/// What a guest may do with a request.
#[derive(Clone, Copy, Debug)]
enum Malice {
    EndlessHeaders,
    OneEndlessHeader,
    EndlessInformational,
    Garbage,
    Silence,
    UnaskedUpgrade,
    OtherProtocol,
    /// The head is fine; the body is not.
    ShortBody,
    HugeChunkSize,
    BrokenChunk,
}

async fn act(malice: Malice, mut stream: DuplexStream) {
    if request(&mut stream).await.is_none() {
        return;
    }
    let once: &[u8] = match malice {
        Malice::EndlessHeaders | Malice::OneEndlessHeader | Malice::EndlessInformational => b"",
        Malice::Garbage => b"\x16\x03\x01 this is not HTTP at all\r\n\r\n",
        Malice::Silence => b"",
        Malice::UnaskedUpgrade => b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        Malice::OtherProtocol => b"HTTP/1.1 200 OK\r\nx-arenite-protocol: 7\r\ncontent-length: 0\r\n\r\n",
        Malice::ShortBody => b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
        Malice::HugeChunkSize => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
        Malice::BrokenChunk => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloXX",
    };
    let _ = stream.write_all(once).await;
    let (head, again): (&[u8], &[u8]) = match malice {
        Malice::EndlessHeaders => (b"HTTP/1.1 200 OK\r\n", b"x-more: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n"),
        Malice::OneEndlessHeader => (b"HTTP/1.1 200 OK\r\nx-long: ", &[b'y'; 4096]),
        Malice::EndlessInformational => (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"),
        _ => return,
    };
    let mut piece = head;
    // Ends when the gateway has closed the connection.
    while stream.write_all(piece).await.is_ok() {
        piece = again;
    }
}

async fn attack(malice: Malice) -> Running {
    let running = Running::start(move |_, stream| act(malice, stream)).await;
    running.create("a").await;
    running
}

#[tokio::test]
async fn an_answer_without_an_end_or_a_meaning_is_a_502() {
    for malice in [
        Malice::EndlessHeaders,
        Malice::OneEndlessHeader,
        Malice::EndlessInformational,
        Malice::Garbage,
        Malice::Silence,
        Malice::UnaskedUpgrade,
        Malice::OtherProtocol,
    ] {
        let running = attack(malice).await;
        let id = running.control.list(&arenite_model::TenantId::default_tenant()).await.unwrap()[0].id.clone();
        // Without the bound there would be no answer ever.
        let answer = tokio::time::timeout(Duration::from_secs(60), running.post("/sandbox/a/v1/bash/exec", "{}")).await;
        let answer = answer.unwrap_or_else(|_| panic!("{malice:?}: no answer"));
        assert_eq!(answer.status, 502, "{malice:?}: {answer:?}");
        assert_eq!(answer.json()["success"], false, "{malice:?}");
        let steps = running.steps(&id);
        assert_eq!(steps.len(), 1, "{malice:?}");
        assert_eq!(steps[0].outcome, Some(OutcomeKind::Failed), "{malice:?}: {:?}", steps[0]);
        running.stop().await;
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_passed_on_as_whole() {
    for malice in [Malice::ShortBody, Malice::HugeChunkSize, Malice::BrokenChunk] {
        let running = attack(malice).await;
        let id = running.control.list(&arenite_model::TenantId::default_tenant()).await.unwrap()[0].id.clone();
        let mut client = running.connect().await;
        client.write_all(b"GET /sandbox/a/v1/file/download HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let answer = Answer::try_read(&mut client).await;
        assert!(answer.as_ref().is_none_or(|answer| !answer.whole), "{malice:?}: {answer:?}");
        let outcome = eventually(|| running.steps(&id).first().and_then(|step| step.outcome)).await;
        assert_eq!(outcome, OutcomeKind::Failed, "{malice:?}");
        running.stop().await;
    }
}

#[tokio::test]
async fn a_guests_head_has_no_power_over_the_host() {
    let running = Running::start(|_, mut stream| async move {
        while request(&mut stream).await.is_some() {
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\naccess-control-allow-origin: *\r\nservice-worker-allowed: /\r\nclear-site-data: \"*\"\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi")
                .await;
        }
    })
    .await;
    let id = running.create("a").await;
    let shared = running.get("/sandbox/a/index.html").await;
    for header in ["set-cookie", "access-control-allow-origin", "service-worker-allowed", "clear-site-data"] {
        assert_eq!(shared.header(header), None, "{header}");
    }
    assert_eq!(shared.header("x-content-type-options"), Some("nosniff"));
    let policy = shared.header("content-security-policy").unwrap();
    assert!(policy.starts_with("sandbox ") && !policy.contains("allow-same-origin"), "{policy}");
    let own = running.get_with("/index.html", &format!("host: {id}.localhost\r\n")).await;
    assert_eq!(own.text(), "hi");
    assert_eq!(own.header("content-security-policy"), None);
    assert_eq!(own.header("set-cookie"), None);
    running.stop().await;
}
