//! Hostile guests.

use std::time::Duration;

use arenite_gateway::GatewayConfig;
use arenite_trajectory::{Limits, OutcomeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::harness::{Running, TestResponse, eventually, read_head, request, respond};

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
        // Without the limit, no answer would ever come.
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
        let answer = TestResponse::try_read(&mut client).await;
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
    let shared = running.get("/sandbox/a/code-server/").await;
    for header in ["set-cookie", "access-control-allow-origin", "service-worker-allowed", "clear-site-data"] {
        assert_eq!(shared.header(header), None, "{header}");
    }
    assert_eq!(shared.header("x-content-type-options"), Some("nosniff"));
    let policy = shared.header("content-security-policy").unwrap();
    assert!(policy.starts_with("sandbox ") && !policy.contains("allow-same-origin"), "{policy}");
    let own = running.get_with("/code-server/", &format!("host: {id}.localhost\r\n")).await;
    assert_eq!(own.text(), "hi");
    assert_eq!(own.header("content-security-policy"), None);
    // The sandbox's programs need their own cookies there; other routes don't.
    assert_eq!(own.header("set-cookie"), Some("a=b"));
    let other = running.get_with("/v1/file/download", &format!("host: {id}.localhost\r\n")).await;
    assert_eq!((other.text(), other.header("set-cookie")), ("hi", None));
    running.stop().await;
}

#[tokio::test]
async fn a_guest_that_gives_no_sign_of_life_holds_no_call() {
    let config = GatewayConfig { late: Duration::from_millis(200), ..GatewayConfig::default() };
    let running = Running::with(config, Limits::default(), |_, mut stream| async move {
        // It accepts the connection, and never answers.
        let _ = read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let id = running.create("a").await;
    let answer = tokio::time::timeout(Duration::from_secs(20), running.post("/sandbox/a/v1/bash/exec", "{}")).await.unwrap();
    assert_eq!(answer.status, 504, "{answer:?}");
    assert!(answer.json()["hint"].as_str().unwrap().contains("delete the sandbox"));
    assert_eq!(running.steps(&id)[0].outcome, Some(OutcomeKind::Failed));
    running.stop().await;
}

#[tokio::test]
async fn a_call_that_takes_long_is_waited_for() {
    let config = GatewayConfig { late: Duration::from_millis(100), ..GatewayConfig::default() };
    let running = Running::with(config, Limits::default(), |_, mut stream| async move {
        while let Some(head) = read_head(&mut stream).await {
            if head.starts_with("GET /internal/hello") {
                respond(&mut stream, "200 OK", "{}").await;
                continue;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            respond(&mut stream, "200 OK", "{}").await;
        }
    })
    .await;
    running.create("a").await;
    assert_eq!(running.get("/sandbox/a/v1/sandbox").await.status, 200);
    running.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_go_on_is_given_up() {
    let config = GatewayConfig { next_piece: Duration::from_millis(300), ..GatewayConfig::default() };
    let running = Running::with(config, Limits::default(), |_, mut stream| async move {
        while request(&mut stream).await.is_some() {
            respond(&mut stream, "200 OK", "{}").await;
        }
    })
    .await;
    let id = running.create("a").await;
    for kind in ["application/json", "application/octet-stream"] {
        let mut client = running.connect().await;
        let head = format!(
            "POST /sandbox/a/v1/file/upload HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: 10\r\n\r\nhalf"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(20), TestResponse::read(&mut client)).await.unwrap();
        assert_eq!(answer.status, 408, "{kind}: {answer:?}");
    }
    let steps = running.steps(&id);
    assert_eq!((steps.len(), steps[0].outcome), (1, Some(OutcomeKind::Aborted)));
    running.stop().await;
}

#[tokio::test]
async fn a_silent_connection_is_probed() {
    let running = Running::start(|_, stream| act(Malice::Silence, stream)).await;
    let mut client = running.connect().await;
    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let _ = client.read_u8().await.unwrap();
    // The kernel's table: the server's side of this connection, and its active timer (2: keepalive).
    let ports = format!("{:04X} 0100007F:{:04X}", running.address.port(), client.local_addr().unwrap().port());
    let timer = eventually(|| {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let line = table.lines().find(|line| line.contains(&ports))?;
        let timer = line.split_whitespace().nth(5)?.split(':').next()?.to_owned();
        (timer == "02").then_some(timer)
    })
    .await;
    assert_eq!(timer, "02");
    running.stop().await;
}
