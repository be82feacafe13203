//! Calls: their target, their authorization, and their record.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arenite_control::fake_engine::{EngineCall, Point};
use arenite_gateway::GatewayConfig;
use arenite_model::PauseKind;
use arenite_trajectory::{Limits, OutcomeKind};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::harness::{Running, TestResponse, echo, request, respond};

#[tokio::test]
async fn a_call_goes_to_the_sandbox_that_it_names() {
    let running = Running::start(|id, mut stream| async move {
        while let Some(got) = request(&mut stream).await {
            let body = json!({"id": id, "line": got.line, "prefix": got.headers.get("x-forwarded-prefix")});
            respond(&mut stream, "200 OK", &body.to_string()).await;
        }
    })
    .await;
    let a = running.create("a").await;
    let b = running.create("b").await;
    let by_path = running.get("/sandbox/a/v1/x?q=%20").await;
    assert_eq!(by_path.json(), json!({"id": a, "line": "GET /v1/x?q=%20", "prefix": "/sandbox/a"}));
    let by_header = running.get_with("/v1/x", "x-arenite-sandbox: b\r\n").await;
    assert_eq!(by_header.json(), json!({"id": b, "line": "GET /v1/x", "prefix": null}));
    let by_host = running.get_with("/v1/x", &format!("host: {a}.localhost:1\r\n")).await;
    assert_eq!(by_host.json()["id"], json!(a));
    let default = running.get("//v1//x").await;
    assert_eq!(default.json()["line"], "GET /v1/x");
    assert!(default.json()["id"] != json!(a) && default.json()["id"] != json!(b));
    for header in ["x-request-id", "server-timing"] {
        assert!(default.header(header).is_some(), "{header}");
    }
    let timing = default.header("server-timing").unwrap();
    for stage in ["target", "wake", "record", "dial", "tool", "total"] {
        assert!(timing.contains(&format!("{stage};dur=")), "{timing}");
    }
    let nobody = running.get("/sandbox/nobody/v1/x").await;
    assert_eq!(nobody.status, 404);
    assert_eq!(nobody.json()["success"], false);
    assert!(nobody.json()["hint"].as_str().unwrap().contains("arenite create"), "{nobody:?}");
    running.stop().await;
}

#[tokio::test]
async fn nothing_internal_and_nothing_crooked_reaches_a_guest() {
    let reached = Arc::new(AtomicUsize::new(0));
    let count = reached.clone();
    let running = Running::start(move |_, mut stream| {
        let count = count.clone();
        async move {
            while request(&mut stream).await.is_some() {
                count.fetch_add(1, Ordering::SeqCst);
                respond(&mut stream, "200 OK", "{}").await;
            }
        }
    })
    .await;
    let id = running.create("a").await;
    for path in [
        "/internal/hello",
        "/sandbox/a/internal/hello",
        "/sandbox/a/%69nternal/hello",
        "/sandbox/a//internal/hello",
        "/sandbox/a/v1/../internal/hello",
        "/sandbox/a/v1/%2e%2e/internal/hello",
        "/sandbox/a/v1%2f..%2finternal",
        "/sandbox/a/v1/x%00",
        "/sandbox/a/api/v1/sandbox",
    ] {
        let answer = running.get(path).await;
        assert!([400, 404, 501].contains(&answer.status), "{path}: {answer:?}");
    }
    for path in ["/internal/hello", "/api/v1/sandbox", "/api/v2/sandboxes", "/metrics", "/sandbox/a/v1/x"] {
        let answer = running.get_with(path, &format!("host: {id}.localhost\r\n")).await;
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
    }
    assert_eq!(reached.load(Ordering::SeqCst), 0);
    let whole = running.raw(b"GET http://localhost/sandbox/a/v1/x HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!((whole.status, reached.load(Ordering::SeqCst)), (200, 1));
    running.stop().await;
}

#[tokio::test]
async fn foreign_hosts_and_pages_are_refused_everywhere() {
    let config = GatewayConfig { allowed_origins: vec!["https://app.example".to_owned()], ..GatewayConfig::default() };
    let running = Running::with(config, Limits::default(), |_, stream| echo(stream)).await;
    running.create("a").await;
    for path in [
        "/sandbox/a/v1/x",
        "/v1/x",
        "/api/v1/sandbox",
        "/api/v2/sandboxes",
        "/api/v1/trajectories",
        "/metrics",
        "/",
        "/index.html",
        "/sandbox/a/steps?follow=true",
        "/api/v2/sandboxes?follow=true",
        "/v1/shell/ws",
    ] {
        for headers in [
            "host: evil.example\r\n",
            "origin: http://evil.example\r\n",
            "origin: null\r\n",
            "sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n",
            "connection: upgrade\r\nupgrade: websocket\r\norigin: http://evil.example\r\n",
        ] {
            let answer = running.get_with(path, headers).await;
            assert_eq!(answer.status, 403, "{path} {headers}: {answer:?}");
        }
    }
    assert_eq!(running.get_with("/sandbox/a/v1/x", "origin: http://localhost\r\n").await.status, 200);
    let allowed = running.get_with("/sandbox/a/v1/x", "origin: https://app.example\r\n").await;
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://app.example"));
    let preflight = b"OPTIONS /sandbox/a/v1/x HTTP/1.1\r\nhost: localhost\r\norigin: https://app.example\r\naccess-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n\r\n";
    let preflight = running.raw(preflight).await;
    assert_eq!((preflight.status, preflight.header("access-control-allow-methods")), (204, Some("POST")));
    running.stop().await;
}

#[tokio::test]
async fn the_intent_is_there_before_the_dial_and_the_outcome_before_the_last_byte() {
    let gate = Arc::new(Semaphore::new(0));
    let pass = gate.clone();
    let running = Running::start(move |_, mut stream| {
        let pass = pass.clone();
        async move {
            while request(&mut stream).await.is_some() {
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n{\"a\":")
                    .await;
                pass.acquire().await.unwrap().forget();
                let _ = stream.write_all(b" 1}").await;
            }
        }
    })
    .await;
    let id = running.create("a").await;
    let halted = running.engine.halt(Point::Dial);
    let mut stuck = running.connect().await;
    let call = b"POST /sandbox/a/v1/bash/exec?token=sekrit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{\"command\": 17}";
    stuck.write_all(call).await.unwrap();
    halted.notified().await;
    let steps = loop {
        // The gateway's own dial, for inside steps, may have been the one that was blocked.
        let steps = running.steps(&id);
        if !steps.is_empty() {
            break steps;
        }
        halted.notified().await;
    };
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0].action, "POST /v1/bash/exec?token=redacted");
    assert_eq!(serde_json::to_value(&steps[0]).unwrap()["arguments"]["json"], json!({"command": 17}));
    drop(stuck);
    running.engine.heal();

    let mut client = running.connect().await;
    client.write_all(call).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"{\"a\":") {
        seen.push(client.read_u8().await.unwrap());
    }
    let open = running.steps(&id).pop().unwrap();
    assert!(open.ended_at.is_none(), "{open:?}");
    gate.add_permits(1);
    while !seen.ends_with(b"}") {
        seen.push(client.read_u8().await.unwrap());
    }
    // Immediately.
    let step = running.steps(&id).pop().unwrap();
    assert_eq!((step.outcome, step.status, step.bytes_out), (Some(OutcomeKind::Ok), Some(200), 8));
    assert_eq!(serde_json::to_value(&step).unwrap()["observation"]["json"], json!({"a": 1}));
    running.stop().await;
}

#[tokio::test]
async fn failures_are_recorded_as_what_they_are() {
    let running = Running::start(|_, mut stream| async move {
        while let Some(got) = request(&mut stream).await {
            let status = if got.line.ends_with("/ok") { "200 OK" } else { "422 Unprocessable Entity" };
            respond(&mut stream, status, "{}").await;
        }
    })
    .await;
    let id = running.create("a").await;
    assert_eq!(running.post("/sandbox/a/v1/ok", "{}").await.status, 200);
    assert_eq!(running.post("/sandbox/a/v1/bad", "{not json").await.status, 422);
    assert_eq!(running.get("/sandbox/a/v1/ping").await.status, 422);
    // No connection may be idle, so that the next call dials.
    let name = "a".parse().unwrap();
    let tenant = arenite_model::TenantId::default_tenant();
    running.control.pause(&tenant, &name, PauseKind::Freeze).await.unwrap();
    running.engine.fail(Point::Dial, usize::MAX);
    let failed = loop {
        // The pool is emptied when the gateway is notified of the pause.
        let answer = running.post("/sandbox/a/v1/ok", "{}").await;
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!(failed.status, 502);
    assert_eq!(failed.json()["success"], false);
    let steps = running.steps(&id);
    assert_eq!(steps[0].outcome, Some(OutcomeKind::Ok));
    assert_eq!((steps[1].outcome, steps[1].status), (Some(OutcomeKind::Error), Some(422)));
    assert_eq!(serde_json::to_value(&steps[1]).unwrap()["arguments"]["text"], json!("{not json"));
    assert_eq!(steps.last().unwrap().outcome, Some(OutcomeKind::Failed));
    running.stop().await;
}

#[tokio::test]
async fn without_a_record_there_is_no_call() {
    let limits = Limits { logs_bytes: 1, ..Limits::default() };
    let running = Running::with(GatewayConfig::default(), limits, |_, stream| echo(stream)).await;
    running.create("a").await;
    // The first may still be written: it reaches the limit.
    let mut refused = running.post("/sandbox/a/v1/x", "{}").await;
    if refused.status == 200 {
        refused = running.post("/sandbox/a/v1/x", "{}").await;
    }
    assert!([503, 507].contains(&refused.status), "{refused:?}");
    assert_eq!(refused.json()["success"], false);
    running.stop().await;
}

#[tokio::test]
async fn a_connection_that_the_guest_closed_is_replaced() {
    // Every connection serves one request and is closed without notice.
    let running = Running::start(|_, mut stream| async move {
        if let Some(got) = request(&mut stream).await {
            respond(&mut stream, "200 OK", &json!({"line": got.line}).to_string()).await;
        }
    })
    .await;
    running.create("a").await;
    for _ in 0..20 {
        let answer = running.post("/sandbox/a/v1/x", "{\"a\": 1}").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_call_that_may_have_been_made_is_not_made_twice() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let running = Running::start(move |_, mut stream| {
        let count = count.clone();
        async move {
            if request(&mut stream).await.is_some() {
                respond(&mut stream, "200 OK", "{}").await;
            }
            // The guest receives the second one, and dies of it.
            if request(&mut stream).await.is_some() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    running.create("a").await;
    assert_eq!(running.post("/sandbox/a/v1/x", "{}").await.status, 200);
    assert_eq!(running.post("/sandbox/a/v1/x", "{}").await.status, 502);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    running.stop().await;
}

#[tokio::test]
async fn connections_are_kept_and_let_go_of() {
    let running = Running::start(|_, stream| echo(stream)).await;
    let id = running.create("a").await;
    let dials = || running.engine.calls().iter().filter(|c| **c == EngineCall::Dial(id.clone())).count();
    running.post("/sandbox/a/v1/x", "{}").await;
    let before = dials();
    for _ in 0..10 {
        running.post("/sandbox/a/v1/x", "{}").await;
    }
    // At most one more: the gateway's own, for inside steps.
    assert!(dials() <= before + 1, "{} dials after {before}", dials());
    running.stop().await;
}

#[tokio::test]
async fn a_large_body_is_refused_before_anything_is_called() {
    let running = Running::start(|_, stream| echo(stream)).await;
    let id = running.create("a").await;
    let declared = b"POST /sandbox/a/v1/file/write HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 33554433\r\n\r\n{";
    let answer = running.raw(declared).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.json()["success"], false);
    // A body without a stated length.
    let mut stream = running.connect().await;
    stream.write_all(b"POST /sandbox/a/v1/file/write HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let send = async {
        let chunk = [b"100000\r\n".as_slice(), &vec![b'x'; 1 << 20], b"\r\n"].concat();
        for _ in 0..40 {
            if writer.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    let (answer, ()) = tokio::join!(TestResponse::read(&mut reader), send);
    assert_eq!(answer.status, 413);
    assert!(running.steps(&id).is_empty());
    // The largest that is accepted.
    let body = format!("{{\"a\": \"{}\"}}", "x".repeat((32 << 20) - 9));
    let answer = running.post("/sandbox/a/v1/file/write", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text().chars().take(200).collect::<String>());
    assert_eq!(running.steps(&id).len(), 1);
    running.stop().await;
}
