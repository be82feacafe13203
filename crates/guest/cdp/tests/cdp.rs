//! The client of the DevTools protocol against a stand-in for the browser, which fails on demand.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use arenite_guest_cdp::{CdpError, Client, Lost};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

type Socket = WebSocketStream<TcpStream>;

async fn connected() -> (Client, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = async { tokio_tungstenite::accept_async(listener.accept().await.unwrap().0).await.unwrap() };
    let (client, socket) = tokio::join!(Client::connect(port, "/devtools/browser/x"), accepted);
    (client.unwrap(), socket)
}

async fn next(socket: &mut Socket) -> Value {
    serde_json::from_str(socket.next().await.unwrap().unwrap().to_text().unwrap()).unwrap()
}

async fn say(socket: &mut Socket, message: Value) {
    socket.send(Message::text(message.to_string())).await.unwrap();
}

#[tokio::test]
async fn answers_find_their_calls_in_any_order() {
    let (client, mut socket) = connected().await;
    let call = |n: i32| {
        let client = client.clone();
        tokio::spawn(async move { client.call::<i32>("Test.same", json!({"n": n})).await })
    };
    let calls = [call(1), call(2), call(3)];
    let mut asked = Vec::new();
    for _ in 0..3 {
        asked.push(next(&mut socket).await);
    }
    for message in asked.into_iter().rev() {
        assert!(message.get("sessionId").is_none());
        say(&mut socket, json!({"id": message["id"], "result": message["params"]["n"]})).await;
    }
    for (call, n) in calls.into_iter().zip(1..) {
        assert_eq!(call.await.unwrap().unwrap(), n);
    }
}

#[tokio::test]
async fn refusals_and_nonsense_are_errors_of_their_call_alone() {
    let (client, mut socket) = connected().await;
    let browser = tokio::spawn(async move {
        let asked = next(&mut socket).await;
        let error = json!({"code": -32000, "message": "no such thing", "data": "really"});
        say(&mut socket, json!({"id": asked["id"], "error": error})).await;
        socket.send(Message::text("nonsense")).await.unwrap();
        say(&mut socket, json!({"id": 99999, "result": {}})).await;
        let asked = next(&mut socket).await;
        say(&mut socket, json!({"id": asked["id"], "result": "a text"})).await;
        socket
    });
    match client.call::<Value>("Test.refused", json!({})).await {
        Err(CdpError::Refused { method: "Test.refused", code: -32000, message }) => assert_eq!(message, "no such thing: really"),
        other => panic!("{other:?}"),
    }
    let unreadable = client.call::<i32>("Test.number", json!({})).await;
    assert!(matches!(unreadable, Err(CdpError::Unreadable { .. })), "{unreadable:?}");
    assert!(!client.is_closed());
    drop(browser.await.unwrap());
}

#[tokio::test]
async fn a_silent_browser_costs_the_time_that_was_given() {
    let (client, mut socket) = connected().await;
    let late = client.send::<Value>(None, "Test.late", json!({}), Duration::from_millis(50)).await;
    assert!(matches!(late, Err(CdpError::TimedOut { method: "Test.late", .. })), "{late:?}");
    // The answer to the abandoned call is discarded, and the next call gets its own.
    let first = next(&mut socket).await;
    let again = tokio::spawn({
        let client = client.clone();
        async move { client.call::<String>("Test.again", json!({})).await }
    });
    let second = next(&mut socket).await;
    say(&mut socket, json!({"id": first["id"], "result": "too late"})).await;
    say(&mut socket, json!({"id": second["id"], "result": "in time"})).await;
    assert_eq!(again.await.unwrap().unwrap(), "in time");
}

#[tokio::test]
async fn events_are_heard_by_session() {
    let (client, mut socket) = connected().await;
    let (mut all, mut one) = (client.events(), client.session("one").events());
    for (session, method) in [(Some("two"), "Page.a"), (None, "Target.b"), (Some("one"), "Page.c")] {
        say(&mut socket, json!({"method": method, "sessionId": session, "params": {"n": 1}})).await;
    }
    let mut heard = Vec::new();
    for _ in 0..3 {
        heard.push(all.next().await.unwrap().method.clone());
    }
    assert_eq!(heard, ["Page.a", "Target.b", "Page.c"]);
    let event = one.next().await.unwrap();
    assert_eq!((event.method.as_str(), event.session.as_deref()), ("Page.c", Some("one")));
    assert_eq!(event.read::<Value>().unwrap(), json!({"n": 1}));
}

#[tokio::test]
async fn a_listener_that_is_too_slow_is_told() {
    let (client, mut socket) = connected().await;
    let mut events = client.events();
    for n in 0..5000 {
        say(&mut socket, json!({"method": "Network.many", "params": n})).await;
    }
    let after = tokio::spawn({
        let client = client.clone();
        async move { client.call::<Value>("Test.after", json!({})).await }
    });
    let asked = next(&mut socket).await;
    say(&mut socket, json!({"id": asked["id"], "result": {}})).await;
    after.await.unwrap().unwrap();
    assert!(matches!(events.next().await, Err(Lost::Behind(missed)) if missed > 0));
    assert!(events.next().await.unwrap().read::<u64>().unwrap() > 0);
}

#[tokio::test]
async fn the_end_of_the_browser_ends_all_that_waits() {
    let (client, mut socket) = connected().await;
    let mut events = client.events();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.call::<Value>("Test.never", json!({})).await }
    });
    next(&mut socket).await;
    drop(socket);
    assert!(matches!(waiting.await.unwrap(), Err(CdpError::Closed)));
    assert!(matches!(events.next().await, Err(Lost::Closed)));
    client.closed().await;
    assert!(client.is_closed());
    assert!(matches!(client.call::<Value>("Test.more", json!({})).await, Err(CdpError::Closed)));
}

#[tokio::test]
async fn the_connection_ends_with_its_last_holder() {
    let (client, mut socket) = connected().await;
    let session = client.session("one");
    drop(client);
    let asked = tokio::spawn(async move { session.call::<i32>("Test.alive", json!({})).await });
    let message = next(&mut socket).await;
    assert_eq!(message["sessionId"], "one");
    say(&mut socket, json!({"id": message["id"], "result": 7})).await;
    assert_eq!(asked.await.unwrap().unwrap(), 7);
    // No clone is left.
    assert!(!matches!(socket.next().await, Some(Ok(Message::Text(_)))));
}
