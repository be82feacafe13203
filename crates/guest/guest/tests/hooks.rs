//! Hooks: registering, listing, and running them when the sandbox ends.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::{Value, json};
use standalone::Guest;

/// Sends the host's call before it ends a sandbox.
async fn shut_down(guest: &Guest) -> StatusCode {
    let request =
        axum::http::Request::post("/internal/shutdown").header("host", "guest").body(axum::body::Body::empty()).unwrap();
    let answer = guest.send(request).await;
    let status = answer.status();
    http_body_util::BodyExt::collect(answer.into_body()).await.unwrap();
    status
}

async fn register(guest: &Guest, name: &str, command: &str, extra: Value) -> Value {
    let mut body = json!({"name": name, "command": command});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    guest.post("/v1/sandbox/hooks", body).await
}

#[tokio::test]
async fn hooks_are_kept_by_name_and_checked() {
    let guest = Guest::start().await;
    let made = register(&guest, "save", "true", json!({})).await;
    let whole =
        json!({"name": "save", "event": "shutdown", "command": "true", "timeout": 10.0, "priority": 100, "source": "api"});
    assert_eq!(made, whole);
    register(&guest, "first", "true", json!({"priority": -1, "timeout": 0.5})).await;
    register(&guest, "save", "false", json!({})).await;
    let listed = guest.get("/v1/sandbox/hooks").await;
    assert_eq!(
        (&listed[0]["name"], &listed[1]["command"], listed.as_array().unwrap().len()),
        (&json!("first"), &json!("false"), 2)
    );
    assert_eq!(guest.get("/v1/sandbox/hooks?event=init").await, json!([]));
    assert_eq!(guest.call("GET", "/v1/sandbox/hooks?event=start", "").await.0, StatusCode::BAD_REQUEST);
    for (body, status) in [
        (json!({"name": "x", "command": "true", "event": "start"}), 400),
        (json!({"name": "x", "command": "true", "timeout": 0}), 400),
        (json!({"name": "a b", "command": "true"}), 422),
        (json!({"name": "", "command": "true"}), 422),
        (json!({"name": "x".repeat(65), "command": "true"}), 422),
        (json!({"name": "x", "command": "y".repeat(4097)}), 422),
        (json!({"name": "x"}), 422),
        (json!({"name": "x", "command": "true", "priority": "high"}), 422),
    ] {
        assert_eq!(guest.call("POST", "/v1/sandbox/hooks", body.to_string()).await.0, status, "{body}");
    }
    assert_eq!(guest.call("DELETE", "/v1/sandbox/hooks/save", "").await.0, StatusCode::OK);
    assert_eq!(guest.call("DELETE", "/v1/sandbox/hooks/save", "").await.0, StatusCode::NOT_FOUND);
    for number in 1..64 {
        register(&guest, &format!("h{number}"), "true", json!({})).await;
    }
    let (status, _) = guest.call("POST", "/v1/sandbox/hooks", json!({"name": "more", "command": "true"}).to_string()).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn they_run_in_order_and_equal_ones_at_once() {
    let guest = Guest::start().await;
    assert_eq!(shut_down(&guest).await, StatusCode::NO_CONTENT);
    let say = |what: &str| format!("echo {what} >> {}/said", guest.dir.display());
    register(&guest, "last", &say("last"), json!({"priority": 200})).await;
    for name in ["a", "b", "c"] {
        register(&guest, name, &format!("sleep 0.5; {}", say("middle")), json!({})).await;
    }
    register(&guest, "first", &say("first"), json!({"priority": 1})).await;
    // A hook that hangs is killed at its timeout, with what it started. One that fails does not stop the others.
    register(&guest, "stuck", "sleep 4000 & sleep 4000", json!({"priority": 2, "timeout": 0.3})).await;
    register(&guest, "failing", "exit 3", json!({"priority": 3})).await;
    let begun = Instant::now();
    assert_eq!(shut_down(&guest).await, StatusCode::OK);
    let took = begun.elapsed();
    let said = std::fs::read_to_string(guest.dir.join("said")).unwrap();
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["first", "middle", "middle", "middle", "last"]);
    assert!(took >= Duration::from_millis(800) && took < Duration::from_millis(1900), "{took:?}");
    guest.gone("sleep 4000").await;
}

#[tokio::test]
async fn hooks_of_the_environment_run_at_the_beginning_and_stay() {
    let guest = Guest::start_with(
        "root",
        &[
            ("RUN_HOOK_INIT", "sleep 0.3; echo init >> $HOME/said"),
            ("RUN_HOOK_PRE_SERVICES", "echo before >> $HOME/said; exit 1"),
            ("RUN_HOOK_POST_READY", "echo ready >> $HOME/said"),
            ("RUN_HOOK_SHUTDOWN", "echo end >> $HOME/said"),
        ],
    )
    .await;
    let said = || std::fs::read_to_string(guest.dir.join("said")).unwrap_or_default().replace('\n', " ");
    let hooks = guest.get("/v1/sandbox/hooks").await;
    assert!(said().starts_with("init before "), "the first call waits for these: {:?}", said());
    assert_eq!((&hooks[0]["name"], &hooks[0]["source"]), (&json!("RUN_HOOK_SHUTDOWN"), &json!("env")));
    standalone::eventually("the sandbox is ready", || said().ends_with("ready ")).await;
    assert_eq!(guest.call("DELETE", "/v1/sandbox/hooks/RUN_HOOK_SHUTDOWN", "").await.0, StatusCode::FORBIDDEN);
    let same = json!({"name": "RUN_HOOK_SHUTDOWN", "command": "true"});
    assert_eq!(guest.call("POST", "/v1/sandbox/hooks", same.to_string()).await.0, StatusCode::FORBIDDEN);
    assert_eq!(shut_down(&guest).await, StatusCode::OK);
    assert_eq!(said(), "init before ready end ");
}
