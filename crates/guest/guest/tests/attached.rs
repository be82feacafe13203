//! A terminal for one command, over its WebSocket.

#![allow(clippy::unwrap_used, reason = "a test's own helpers")]

mod standalone;

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use standalone::{Guest, eventually};
use tokio::net::UnixStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

type Socket = WebSocketStream<UnixStream>;

async fn open(guest: &Guest, query: &str) -> Result<Socket, Error> {
    let url = format!("ws://guest/v1/shell/ws?once=true{query}");
    Ok(client_async(url, guest.connect().await).await?.0)
}

/// The next frame; `None` if the socket was closed.
async fn frame(socket: &mut Socket) -> Option<Value> {
    let next = tokio::time::timeout(Duration::from_secs(60), socket.next());
    match next.await.expect("a frame comes")?.unwrap() {
        Message::Text(text) => Some(serde_json::from_str(&text).unwrap()),
        Message::Close(_) => None,
        other => panic!("{other:?}"),
    }
}

async fn say(socket: &mut Socket, frame: Value) {
    socket.send(Message::text(frame.to_string())).await.unwrap();
}

/// Reads until the output contains `text`.
async fn shows(socket: &mut Socket, text: &str) {
    let mut seen = String::new();
    while !seen.contains(text) {
        let frame = frame(socket).await.expect("it goes on");
        if frame["type"] == "output" {
            seen += frame["data"].as_str().unwrap();
        }
    }
}

/// Reads to the end; returns all output and the exit code.
async fn end(socket: &mut Socket) -> (String, i64) {
    let mut seen = String::new();
    loop {
        let next = frame(socket).await.expect("the exit code comes before the close");
        match next["type"].as_str().unwrap() {
            "output" => seen += next["data"].as_str().unwrap(),
            "exit" => {
                assert_eq!(frame(socket).await, None);
                return (seen, next["data"]["code"].as_i64().unwrap());
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_command_has_its_size_its_directory_and_its_exit_code() {
    let guest = Guest::start().await;
    let command = "stty%20size;pwd;seq%2020000%7Ctail%20-1;exit%207";
    let mut socket = open(&guest, &format!("&command={command}&exec_dir=/usr&cols=91&rows=33")).await.unwrap();
    assert_eq!(end(&mut socket).await, ("33 91\r\n/usr\r\n20000\r\n".to_owned(), 7));
    // All output before the end arrives, however long it is.
    let mut socket = open(&guest, "&command=seq%20200000").await.unwrap();
    let (seen, code) = end(&mut socket).await;
    assert_eq!((seen.lines().count(), code), (200_000, 0));
}

#[tokio::test]
async fn what_is_typed_arrives_also_when_it_is_much() {
    let guest = Guest::start().await;
    let mut socket = open(&guest, "&command=read%20x;echo%20got%20$x;stty%20raw%20-echo;echo%20go;head%20-c%202000000%7Cwc%20-c")
        .await
        .unwrap();
    say(&mut socket, json!({"type": "resize", "data": {"cols": 70, "rows": 20}})).await;
    say(&mut socket, json!({"type": "input", "data": "wörld\r"})).await;
    shows(&mut socket, "got wörld\r\ngo").await;
    let piece = "x".repeat(100_000);
    for _ in 0..20 {
        say(&mut socket, json!({"type": "input", "data": piece})).await;
    }
    let (seen, code) = end(&mut socket).await;
    assert!(seen.contains("2000000"), "{seen}");
    assert_eq!(code, 0);
}

#[tokio::test]
async fn the_command_ends_with_its_viewer() {
    let guest = Guest::start().await;
    let mut socket = open(&guest, "&command=echo%20pid=$$;exec%20sleep%201000").await.unwrap();
    let mut seen = String::new();
    while !seen.contains('\n') {
        let next = frame(&mut socket).await.unwrap();
        seen += next["data"].as_str().unwrap_or_default();
    }
    let pid: u32 = seen.trim().strip_prefix("pid=").unwrap().parse().unwrap();
    drop(socket);
    eventually("the command is gone", || !std::path::Path::new(&format!("/proc/{pid}")).exists()).await;
}

#[tokio::test]
async fn what_cannot_be_run_is_refused_at_the_handshake() {
    let guest = Guest::start().await;
    for (query, status) in [("&exec_dir=/does/not/exist", 400), ("&command=a%00b", 400), ("&cols=-1", 422)] {
        assert!(matches!(open(&guest, query).await, Err(Error::Http(answer)) if answer.status() == status), "{query}");
    }
}
