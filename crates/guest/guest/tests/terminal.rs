//! The terminal of a shell session over its WebSocket.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use standalone::{Guest, eventually};
use tokio::net::UnixStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

struct Terminal {
    socket: WebSocketStream<UnixStream>,
    session: String,
    seen: String,
}

impl Terminal {
    async fn open(guest: &Guest, query: &str) -> Result<Self, Error> {
        let url = format!("ws://guest/v1/shell/ws{query}");
        let (socket, _) = client_async(url, guest.connect().await).await?;
        let mut terminal = Self { socket, session: String::new(), seen: String::new() };
        let hello = terminal.frame().await;
        assert_eq!(hello["type"], "session_id");
        terminal.session = hello["data"].as_str().unwrap().to_owned();
        assert_eq!(terminal.frame().await["type"], "ready");
        Ok(terminal)
    }

    async fn frame(&mut self) -> Value {
        let next = tokio::time::timeout(Duration::from_secs(60), self.socket.next());
        match next.await.expect("a frame comes").unwrap().unwrap() {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn say(&mut self, frame: Value) {
        self.socket.send(Message::text(frame.to_string())).await.unwrap();
    }

    async fn type_in(&mut self, data: &str) {
        self.say(json!({"type": "input", "data": data})).await;
    }

    /// Reads until the terminal shows `text`, and drops the output up to there.
    async fn shows(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let frame = self.frame().await;
            if frame["type"] == "output" {
                self.seen += frame["data"].as_str().unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_person_types_and_everyone_sees_it() {
    let guest = Guest::start().await;
    let mut first = Terminal::open(&guest, "").await.unwrap();
    let mut second = Terminal::open(&guest, &format!("?session_id={}", first.session)).await.unwrap();
    assert_eq!(first.session, second.session);
    first.type_in("echo $((40+2))\r").await;
    first.shows("\n42\r\n").await;
    second.shows("\n42\r\n").await;
    second.say(json!({"type": "resize", "data": {"cols": 91, "rows": 33}})).await;
    second.say(json!({"type": "pong", "data": {"timestamp": 1}})).await;
    second.socket.send(Message::text("stty size\r")).await.unwrap();
    first.shows("33 91\r\n").await;
    second.socket.send(Message::binary("printf '\\xe2\\x82'; sleep 0.2; printf '\\xac\\n'\r")).await.unwrap();
    first.shows("€\r\n").await;
    // New connections receive earlier output.
    let mut third = Terminal::open(&guest, &format!("?session_id={}", first.session)).await.unwrap();
    third.shows("33 91").await;
    // A typed command is the session's command like any other.
    let body = json!({"id": first.session, "input": "echo written", "press_enter": true});
    guest.post("/v1/shell/write", body).await;
    first.shows("\nwritten\r\n").await;
    let view = || guest.post("/v1/shell/view", json!({"id": first.session}));
    while view().await["command"] != "echo written" || view().await["status"] != "completed" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(view().await["output"], "written");
    assert!(matches!(Terminal::open(&guest, "?session_id=none").await, Err(Error::Http(r)) if r.status() == 404));
}

#[tokio::test]
async fn terminals_that_were_left_make_room_for_others() {
    let guest = Guest::start().await;
    for _ in 0..128 {
        let mut terminal = Terminal::open(&guest, "").await.unwrap();
        terminal.type_in("PS1='> '\r").await;
        // The prompt is the last output, so the session's task is not woken when the viewer leaves.
        terminal.shows("\n> ").await;
    }
    let kept = Terminal::open(&guest, "").await.unwrap();
    let list = guest.get("/v1/shell/sessions").await;
    let list = list["sessions"].as_object().unwrap();
    assert_eq!(list.len(), 128);
    assert!(list.contains_key(&kept.session));
}

#[tokio::test]
async fn a_quiet_session_takes_one_viewer_after_the_other() {
    let guest = Guest::start().await;
    let mut first = Terminal::open(&guest, "").await.unwrap();
    first.type_in("echo $((40+2))\r").await;
    first.shows("\n42\r\n").await;
    let session = format!("?session_id={}", first.session);
    drop(first);
    for _ in 0..40 {
        let mut next = Terminal::open(&guest, &session).await.unwrap();
        next.shows("\n42\r\n").await;
    }
}

#[tokio::test]
async fn a_command_looks_like_one_that_was_typed() {
    let guest = Guest::start().await;
    let mut terminal = Terminal::open(&guest, "").await.unwrap();
    terminal.type_in("PS1='> '\r").await;
    terminal.shows("\n> ").await;
    let id = terminal.session.clone();
    let body = json!({"id": id, "command": "echo a\nX=5; echo \u{1b}[31mb"});
    let done = guest.post("/v1/shell/exec", body).await;
    assert_eq!(done["output"], "a\nb");
    assert_eq!(terminal.shows("b\r\n> ").await, "echo a\r\nX=5; echo \u{1b}[31mb\r\na\r\n\u{1b}[31mb\r\n> ");
    // Half a line at the prompt is discarded, and does not run as a part of the command.
    terminal.type_in("touch broken; echo half").await;
    terminal.shows("half").await;
    let done = guest.post("/v1/shell/exec", json!({"id": id, "command": "echo whole $X $?"})).await;
    assert_eq!((&done["output"], &done["status"]), (&json!("whole 5 0"), &json!("completed")));
    terminal.shows("^C").await;
    terminal.shows("whole 5 0").await;
    assert!(!guest.dir.join("broken").exists());
    // A command waits for one that a person runs.
    terminal.type_in("read line; echo got $line\r").await;
    terminal.shows("got $line").await;
    while guest.get("/v1/shell/sessions").await["sessions"][&id]["status"] != "running" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let body = json!({"id": id, "command": "echo later", "async_mode": true});
    guest.post("/v1/shell/exec", body).await;
    terminal.type_in("typed\r").await;
    terminal.shows("got typed").await;
    terminal.shows("\nlater\r\n").await;
    // When the shell ends, a new one starts.
    terminal.type_in("exit\r").await;
    terminal.shows("[the shell has ended]").await;
    terminal.type_in("echo again\r").await;
    terminal.shows("\nagain\r\n").await;
    let (status, _) = guest.call("DELETE", &format!("/v1/shell/sessions/{id}"), "").await;
    assert_eq!(status, 200);
    while terminal.frame().await["type"] != "error" {}
}

#[tokio::test]
async fn a_viewer_who_does_not_read_holds_nobody_up() {
    let guest = Guest::start().await;
    let terminal = Terminal::open(&guest, "").await.unwrap();
    let body = json!({"id": terminal.session, "command": "seq 2000000; echo end"});
    let done = guest.post("/v1/shell/exec", body).await;
    assert!(done["output"].as_str().unwrap().ends_with("\nend"));
    eventually("the shell is idle", || guest.processes("seq").is_empty()).await;
}
