//! Traffic that passes without being held: large bodies, events, WebSockets; and clients that leave.

use std::sync::Arc;

use arenite_trajectory::OutcomeKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::harness::{Running, TestResponse, echo, eventually, read_chunk, read_head, request, respond};

#[tokio::test]
async fn a_client_that_leaves_takes_its_call_along() {
    let left = Arc::new(Notify::new());
    let notify = left.clone();
    let running = Running::start(move |_, mut stream| {
        let notify = notify.clone();
        async move {
            while request(&mut stream).await.is_some() {
                // Never answers. The stream ends when the gateway closes it.
                if stream.read_u8().await.is_err() {
                    notify.notify_one();
                    return;
                }
            }
        }
    })
    .await;
    let id = running.create("a").await;
    let mut client = running.connect().await;
    client.write_all(b"POST /sandbox/a/v1/bash/exec HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    eventually(|| running.steps(&id).pop()).await;
    drop(client);
    left.notified().await;
    let outcome = eventually(|| running.steps(&id)[0].outcome).await;
    assert_eq!(outcome, OutcomeKind::Aborted);
    running.stop().await;
}

#[tokio::test]
async fn a_large_stream_passes_both_ways_and_is_hashed() {
    const SIZE: usize = 24 << 20;
    let running = Running::start(|_, mut stream| async move {
        while let Some(got) = request(&mut stream).await {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", got.body.len());
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(&got.body).await;
        }
    })
    .await;
    let id = running.create("a").await;
    let data: Vec<u8> = (0..SIZE).map(|i| (i * 31 + i / 251) as u8).collect();
    let mut stream = running.connect().await;
    let head = format!(
        "POST /sandbox/a/v1/file/upload HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=x\r\ncontent-length: {SIZE}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&data).await.unwrap();
    let answer = TestResponse::read(&mut stream).await;
    assert!(answer.whole && answer.body == data);
    let step = &running.steps(&id)[0];
    assert_eq!((step.bytes_in, step.bytes_out), (SIZE as u64, SIZE as u64));
    let step = serde_json::to_value(step).unwrap();
    assert_eq!(step["arguments"]["blob"]["blake3"], step["observation"]["blob"]["blake3"], "{step}");
    assert!(step["arguments"].to_string().contains("blake3"), "{step}");
    running.stop().await;
}

#[tokio::test]
async fn a_slow_reader_holds_the_guest_back() {
    const PIECE: usize = 64 << 10;
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = sent.clone();
    let running = Running::start(move |_, mut stream| {
        let count = count.clone();
        async move {
            if request(&mut stream).await.is_none() {
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            let chunk = [b"10000\r\n".as_slice(), &[b'x'; PIECE], b"\r\n"].concat();
            while stream.write_all(&chunk).await.is_ok() {
                count.fetch_add(PIECE, std::sync::atomic::Ordering::SeqCst);
            }
        }
    })
    .await;
    running.create("a").await;
    let mut client = running.connect().await;
    client.write_all(b"GET /sandbox/a/v1/file/download HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    read_head(&mut client).await.unwrap();
    // It stops when the sockets' own buffers are full.
    let mut last = usize::MAX;
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let now = sent.load(std::sync::atomic::Ordering::SeqCst);
        if now == last {
            break;
        }
        last = now;
        assert!(now < 64 << 20, "nobody reads, and {now} bytes were taken");
    }
    drop(client);
    running.stop().await;
}

#[tokio::test]
async fn events_pass_as_they_come() {
    let gate = Arc::new(Semaphore::new(0));
    let pass = gate.clone();
    let running = Running::start(move |_, mut stream| {
        let pass = pass.clone();
        async move {
            if request(&mut stream).await.is_none() {
                return;
            }
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                .await;
            for i in 0..3 {
                pass.acquire().await.unwrap().forget();
                let _ = stream.write_all(format!("9\r\ndata: {i}\n\n\r\n").as_bytes()).await;
            }
            let _ = stream.write_all(b"0\r\n\r\n").await;
        }
    })
    .await;
    running.create("a").await;
    let mut client = running.connect().await;
    client.write_all(b"GET /sandbox/a/v1/shell/stream HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    read_head(&mut client).await.unwrap();
    for i in 0..3 {
        // The next one is only generated after this one has arrived.
        gate.add_permits(1);
        assert_eq!(read_chunk(&mut client).await.unwrap(), format!("data: {i}\n\n").as_bytes());
    }
    assert!(read_chunk(&mut client).await.unwrap().is_empty());
    running.stop().await;
}

#[tokio::test]
async fn a_websocket_is_a_tunnel_and_one_step() {
    let running = Running::start(|_, mut stream| async move {
        let Some(got) = request(&mut stream).await else { return };
        if got.headers.get("upgrade").map(String::as_str) != Some("websocket") {
            return respond(&mut stream, "400 Bad Request", "{}").await;
        }
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: abc\r\nsec-websocket-protocol: binary\r\n\r\nearly";
        let _ = stream.write_all(answer).await;
        let mut byte = [0; 64];
        loop {
            match stream.read(&mut byte).await {
                Ok(n) if n > 0 => stream.write_all(&byte[..n].to_ascii_uppercase()).await.unwrap(),
                _ => return,
            }
        }
    })
    .await;
    let id = running.create("a").await;
    let mut client = running.connect().await;
    client
        .write_all(b"GET /sandbox/a/v1/shell/ws?ticket=sekrit HTTP/1.1\r\nhost: localhost\r\nconnection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n")
        .await
        .unwrap();
    let head = read_head(&mut client).await.unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("sec-websocket-accept: abc") && head.contains("sec-websocket-protocol: binary"), "{head}");
    let mut got = [0; 5];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"early");
    for word in [b"hello", b"world"] {
        client.write_all(word).await.unwrap();
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(got, word.to_ascii_uppercase()[..]);
    }
    assert!(running.steps(&id)[0].ended_at.is_none());
    client.shutdown().await.unwrap();
    assert_eq!(client.read(&mut got).await.unwrap(), 0);
    let step = eventually(|| running.steps(&id).pop().filter(|step| step.ended_at.is_some())).await;
    assert_eq!(step.action, "GET /v1/shell/ws");
    assert_eq!((step.outcome, step.status), (Some(OutcomeKind::Ok), Some(101)));
    assert_eq!((step.bytes_in, step.bytes_out), (10, 15));
    running.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_the_sandbox_sends_does_not_fail_the_step() {
    let running = Running::start(|_, mut stream| async move {
        if request(&mut stream).await.is_none() {
            return;
        }
        let _ = stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
        // The pictures of a desktop.
        let picture = vec![0; 64 << 10];
        while stream.write_all(&picture).await.is_ok() {}
    })
    .await;
    let id = running.create("a").await;
    let mut client = running.connect().await;
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n";
    client.write_all(format!("GET /sandbox/a/websockify HTTP/1.1\r\nhost: localhost\r\n{upgrade}").as_bytes()).await.unwrap();
    read_head(&mut client).await.unwrap();
    client.read_exact(&mut vec![0; 1 << 20]).await.unwrap();
    drop(client);
    let step = eventually(|| running.steps(&id).pop().filter(|step| step.ended_at.is_some())).await;
    assert_eq!((step.outcome, step.status), (Some(OutcomeKind::Ok), Some(101)));
    running.stop().await;
}

#[tokio::test]
async fn a_stop_lets_calls_end_and_cuts_what_does_not() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let pass = gate.clone();
    let running = Running::start(move |_, mut stream| {
        let (pass, tell) = (pass.clone(), tell.clone());
        async move {
            while let Some(got) = request(&mut stream).await {
                tell.send(()).unwrap();
                if got.line.contains("never") {
                    std::future::pending::<()>().await;
                }
                pass.acquire().await.unwrap().forget();
                respond(&mut stream, "200 OK", "{}").await;
            }
        }
    })
    .await;
    let id = running.create("a").await;
    let recorder = running.recorder.clone();
    let mut soon = running.connect().await;
    soon.write_all(b"GET /sandbox/a/v1/soon HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut never = running.connect().await;
    never.write_all(b"GET /sandbox/a/v1/never HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    told.recv().await.unwrap();
    told.recv().await.unwrap();
    let stopped = tokio::spawn(running.stop());
    gate.add_permits(1);
    assert_eq!(TestResponse::read(&mut soon).await.status, 200);
    let _kept = stopped.await.unwrap();
    assert!(never.read_u8().await.is_err());
    let steps = recorder.steps(&arenite_model::TenantId::default_tenant(), id.as_str(), 0, 10).unwrap();
    assert_eq!(steps[1].outcome, Some(OutcomeKind::Aborted));
}

#[tokio::test]
async fn http2_without_tls_is_spoken_too() {
    let running = Running::start(|_, stream| echo(stream)).await;
    running.create("a").await;
    let stream = hyper_util::rt::TokioIo::new(running.connect().await);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, stream).await.unwrap();
    let driving = tokio::spawn(connection);
    let request = http::Request::post(format!("http://{}/sandbox/a/v1/x", running.address))
        .header("content-type", "application/json")
        .body(axum::body::Body::from("{\"a\": 1}"))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["body"], "{\"a\": 1}");
    driving.abort();
    running.stop().await;
}
