//! Keys at work: roles, bounds, revocation of what is open, tickets and sessions, the routes that manage them.

use std::time::Duration;

use arenite_control::tenants::Role;
use arenite_model::{PauseKind, SandboxId};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::auth::NAVIGATION;
use crate::harness::{Running, TestResponse, read_head, respond};
use crate::rights::guest;

const SECOND: Duration = Duration::from_secs(1);

impl Running {
    /// A call with a key and a JSON body.
    async fn with_key(&self, key: &str, method: &str, path: &str, body: &str) -> TestResponse {
        let length = body.len();
        self.raw(
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-length: {length}\r\n\r\n{body}")
                .as_bytes(),
        )
        .await
    }

    async fn operator(&self) -> String {
        let (_, text) = self.control.tenants().unwrap().first_operator_key().await.unwrap().unwrap();
        text.as_str().to_owned()
    }
}

#[tokio::test]
async fn tenants_keys_and_roles_are_managed_over_http() {
    let running = Running::with_tenants(guest).await;
    let operator = running.operator().await;
    let me = running.with_key(&operator, "GET", "/api/v2/me", "").await.json();
    assert_eq!((&me["tenant"], &me["operator"], &me["tenants"]), (&json!("default"), &json!(true), &json!(true)));
    let made = running.with_key(&operator, "POST", "/api/v2/tenants", r#"{"name": "acme"}"#).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(running.with_key(&operator, "POST", "/api/v2/tenants", r#"{"name": "acme"}"#).await.status, 409);
    for bad in ["{}", r#"{"name": ""}"#, r#"{"name": "../x"}"#, r#"{"name": "Ünï"}"#, r#"{"nmae": "x"}"#, "[]", "x"] {
        assert_eq!(running.with_key(&operator, "POST", "/api/v2/tenants", bad).await.status, 400, "{bad}");
    }
    let create = r#"{"tenant": "acme", "name": "first", "role": "admin"}"#;
    let created = running.with_key(&operator, "POST", "/api/v2/keys", create).await;
    assert_eq!((created.status, created.header("cache-control")), (201, Some("no-store")), "{created:?}");
    let admin = created.json()["key"].as_str().unwrap().to_owned();
    assert!(admin.starts_with("arn_") && created.json().get("hash").is_none());

    // An admin manages its tenant's keys, and no others.
    let made =
        running.with_key(&admin, "POST", "/api/v2/keys", r#"{"name": "agent", "role": "use", "bound": ["a", "team=red"]}"#).await;
    assert_eq!(made.status, 201, "{made:?}");
    let (id, agent) = (made.json()["id"].as_str().unwrap().to_owned(), made.json()["key"].as_str().unwrap().to_owned());
    for (body, status) in [
        (r#"{"tenant": "default", "name": "x", "role": "read"}"#, 403),
        (r#"{"name": "x", "role": "admin", "operator": true}"#, 403),
        (r#"{"name": "x", "role": "root"}"#, 400),
        (r#"{"name": "x"}"#, 400),
        (r#"{"role": "read"}"#, 400),
        (r#"{"name": "x", "role": "read", "bound": ["No"]}"#, 400),
        (r#"{"name": "x", "role": "read", "expires_in_seconds": 0}"#, 400),
    ] {
        assert_eq!(running.with_key(&admin, "POST", "/api/v2/keys", body).await.status, status, "{body}");
    }
    let listed = running.with_key(&admin, "GET", "/api/v2/keys", "").await.json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 2);
    assert!(!listed.to_string().contains("arn_"));
    assert_eq!(running.with_key(&admin, "GET", "/api/v2/keys?tenant=default", "").await.status, 403);
    let operators = running.with_key(&operator, "GET", "/api/v2/keys", "").await.json()["keys"][0]["id"].clone();
    let operators = operators.as_str().unwrap();
    for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/rotate")] {
        let path = format!("/api/v2/keys/{operators}{path}");
        assert_eq!(running.with_key(&admin, method, &path, "").await.status, 404, "{method} {path}");
    }
    // An admin of the operator's tenant sees the operator's key, and can't take it.
    let (_, local) = running.key("default", Role::Admin, |_| {}).await;
    for (method, path, status) in [("GET", "", 200), ("DELETE", "", 403), ("POST", "/rotate", 403)] {
        let path = format!("/api/v2/keys/{operators}{path}");
        assert_eq!(running.with_key(&local, method, &path, "").await.status, status, "{method} {path}");
    }
    for odd in ["x", "..%2F..", "%00", "ZZZZZZZZZZZZ"] {
        let answer = running.with_key(&admin, "GET", &format!("/api/v2/keys/{odd}"), "").await;
        assert!([400, 404].contains(&answer.status), "{odd}: {answer:?}");
    }

    let rotated = running.with_key(&admin, "POST", &format!("/api/v2/keys/{id}/rotate"), r#"{"overlap_seconds": 60}"#).await;
    assert_eq!(rotated.status, 201, "{rotated:?}");
    let newer = rotated.json()["key"].as_str().unwrap().to_owned();
    for key in [&agent, &newer] {
        let me = running.with_key(key, "GET", "/api/v2/me", "").await.json();
        assert_eq!((&me["role"], &me["bound"]), (&json!("use"), &json!(["a", "team=red"])));
    }
    assert_eq!(running.with_key(&admin, "DELETE", &format!("/api/v2/keys/{id}"), "").await.json()["state"], "revoked");
    assert_eq!(running.with_key(&agent, "GET", "/api/v2/me", "").await.status, 401);
    assert_eq!(running.with_key(&newer, "GET", "/api/v2/me", "").await.status, 200);

    let rows = running.with_key(&admin, "GET", "/api/v2/audit?limit=1000", "").await.json()["rows"].clone();
    let actions: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    for action in ["key.create", "key.rotate", "key.revoke", "request"] {
        assert!(actions.contains(&action), "{actions:?}");
    }
    assert!(rows.as_array().unwrap().iter().all(|row| row["tenant"] == "acme"), "{rows}");
    assert!(!rows.to_string().contains(&agent[17..49]));
    let first = running.with_key(&admin, "GET", "/api/v2/audit?limit=2", "").await.json();
    let next = format!("/api/v2/audit?limit=2&cursor={}", first["next_cursor"].as_str().unwrap());
    let second = running.with_key(&admin, "GET", &next, "").await.json();
    assert_eq!([&first["rows"][0], &first["rows"][1], &second["rows"][0]], [&rows[0], &rows[1], &rows[2]]);
    assert_eq!(running.with_key(&admin, "GET", "/api/v2/audit?tenant=default", "").await.status, 403);
    for bad in ["limit=0", "limit=1001", "limit=x", "cursor=x", "since=yesterday"] {
        assert_eq!(running.with_key(&admin, "GET", &format!("/api/v2/audit?{bad}"), "").await.status, 400, "{bad}");
    }

    // A tenant with sandboxes is removed only by force, and its keys with it.
    running.create_in("acme", "a").await;
    assert_eq!(running.with_key(&operator, "DELETE", "/api/v2/tenants/acme", "").await.status, 409);
    assert_eq!(running.with_key(&admin, "GET", "/api/v2/me", "").await.status, 200);
    let removed = running.with_key(&operator, "DELETE", "/api/v2/tenants/acme?force=true", "").await;
    assert_eq!((removed.status, &removed.json()["deleted_sandboxes"]), (200, &json!(1)), "{removed:?}");
    assert_eq!(running.with_key(&admin, "GET", "/api/v2/me", "").await.status, 401);
    assert_eq!(running.with_key(&operator, "POST", "/api/v2/tenants", r#"{"name": "acme"}"#).await.status, 409);
    assert_eq!(running.with_key(&operator, "DELETE", "/api/v2/tenants/default?force=true", "").await.status, 409);
    running.stop().await;
}

#[tokio::test]
async fn without_tenants_every_caller_is_the_operator_and_keeps_no_keys() {
    let running = Running::start(guest).await;
    let me = running.get("/api/v2/me").await.json();
    assert_eq!((&me["role"], &me["operator"], &me["tenants"]), (&json!("admin"), &json!(true), &json!(false)));
    for path in ["/api/v2/tenants", "/api/v2/keys", "/api/v2/audit"] {
        assert_eq!(running.get(path).await.status, 404, "{path}");
    }
    running.stop().await;
}

#[tokio::test]
async fn texts_that_are_no_keys_are_refused() {
    let running = Running::with_tenants(guest).await;
    let (_, key) = running.key("acme", Role::Admin, |_| {}).await;
    let last = key.chars().last().unwrap();
    let other = if last == '0' { '1' } else { '0' };
    let changed = format!("{}{other}", &key[..key.len() - 1]);
    let huge = "a".repeat(20_000);
    for bad in
        [&key[..54], &changed, &key.to_uppercase(), "arn_", "arn__", "", "' OR 1=1", &huge, &format!("{key}{key}"), &key[1..]]
    {
        assert_eq!(running.with_key(bad, "GET", "/api/v2/me", "").await.status, 401, "{bad}");
        let query = running.get(&format!("/api/v2/me?api_key={}", bad.replace([' ', '\''], "%20"))).await;
        assert_eq!(query.status, 401, "{bad}");
    }
    for header in [format!("authorization: Bearer {key}\r\n"), format!("x-aio-api-key: {key}\r\n")] {
        assert_eq!(running.get_with("/api/v2/me", &header).await.status, 200);
    }
    running.stop().await;
}

#[tokio::test]
async fn names_are_each_tenants_own() {
    let running = Running::with_tenants(guest).await;
    let keys = [running.key("one", Role::Manage, |_| {}).await.1, running.key("two", Role::Manage, |_| {}).await.1];
    let mut ids = Vec::new();
    for key in &keys {
        let made = running.with_key(key, "POST", "/api/v2/sandboxes", r#"{"name": "same"}"#).await;
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.json()["id"].as_str().unwrap().to_owned();
        assert_eq!(running.with_key(key, "GET", "/sandbox/same/v1/x", "").await.json()["reached"], id.as_str());
        let default = running.with_key(key, "GET", "/v1/x", "").await.json()["reached"].as_str().unwrap().to_owned();
        ids.push((id, default));
    }
    assert_ne!(ids[0], ids[1]);
    for (key, (id, default)) in keys.iter().zip(&ids) {
        let listed = running.with_key(key, "GET", "/api/v1/sandbox", "").await.json();
        let mut listed: Vec<&str> = listed["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
        let mut wanted = [id.as_str(), default.as_str()];
        listed.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(listed, wanted);
        let trajectories = running.with_key(key, "GET", "/api/v1/trajectories", "").await.json();
        assert_eq!(trajectories["trajectories"].as_array().unwrap().len(), 2);
    }
    // A delete in one tenant leaves the other's.
    assert_eq!(running.with_key(&keys[0], "DELETE", "/api/v2/sandboxes/same", "").await.status, 200);
    assert_eq!(running.with_key(&keys[1], "GET", "/api/v2/sandboxes/same", "").await.status, 200);
    running.stop().await;
}

#[tokio::test]
async fn a_bound_key_sees_only_its_sandboxes() {
    let running = Running::with_tenants(guest).await;
    let (_, admin) = running.key("acme", Role::Admin, |_| {}).await;
    let make = async |body: Value| {
        let made = running.with_key(&admin, "POST", "/api/v2/sandboxes", &body.to_string()).await;
        assert_eq!(made.status, 201, "{made:?}");
        made.json()["id"].as_str().unwrap().to_owned()
    };
    let mine = make(json!({ "name": "mine" })).await;
    let red = make(json!({ "name": "red-1", "labels": { "team": "red" } })).await;
    let blue = make(json!({ "name": "blue-1", "labels": { "team": "blue" } })).await;
    running.with_key(&admin, "GET", "/v1/x", "").await;
    for name in ["mine", "red-1", "blue-1"] {
        running.with_key(&admin, "GET", &format!("/sandbox/{name}/v1/x"), "").await;
    }
    running.control.pause(&"acme".parse().unwrap(), &"blue-1".parse().unwrap(), PauseKind::Freeze).await.unwrap();
    let bound = vec!["mine".parse().unwrap(), "team=red".parse().unwrap()];
    let (_, key) = running.key("acme", Role::Manage, |new| new.bound = bound).await;
    let (_, bound_admin) = running.key("acme", Role::Admin, |new| new.bound = vec!["mine".parse().unwrap()]).await;

    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&running.with_key(&key, "GET", "/api/v2/sandboxes", "").await.json()["sandboxes"]), ["mine", "red-1"]);
    assert_eq!(names(&running.with_key(&key, "GET", "/api/v1/sandbox", "").await.json()["data"]), ["mine", "red-1"]);
    let trajectories = running.with_key(&key, "GET", "/api/v1/trajectories", "").await;
    assert!(trajectories.text().contains(&mine) && trajectories.text().contains(&red) && !trajectories.text().contains(&blue));
    assert_eq!(running.with_key(&key, "GET", &format!("/api/v1/trajectories/{red}"), "").await.status, 200);
    for name in ["mine", "red-1"] {
        assert_eq!(running.with_key(&key, "GET", &format!("/sandbox/{name}/v1/x"), "").await.status, 200);
    }
    for absent in ["blue-1", "nothing", "default"] {
        for (method, path) in [
            ("GET", format!("/api/v2/sandboxes/{absent}")),
            ("GET", format!("/api/v2/sandboxes/{absent}/steps")),
            ("GET", format!("/api/v2/sandboxes/{absent}/logs")),
            ("POST", format!("/api/v2/sandboxes/{absent}/resume")),
            ("DELETE", format!("/api/v2/sandboxes/{absent}")),
            ("GET", format!("/api/v1/sandbox/{absent}")),
            ("DELETE", format!("/api/v1/sandbox/{absent}")),
            ("GET", format!("/sandbox/{absent}/v1/x")),
            ("POST", format!("/sandbox/{absent}/v1/bash/exec")),
            ("GET", format!("/sandbox/{absent}/proxy/3000/")),
            ("GET", format!("/sandbox/{absent}/steps")),
            ("GET", format!("/sandbox/{absent}/")),
        ] {
            let answer = running.with_key(&key, method, &path, "").await;
            assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
            let never = path.replace(absent, "nothing");
            let like = running.with_key(&key, method, &never, "").await.text().replace("nothing", absent);
            assert!(absent == "default" || answer.text() == like, "{method} {path}: {} {like}", answer.text());
        }
    }
    for path in ["/v1/x", &format!("/api/v1/trajectories/{blue}"), &format!("/api/v1/trajectories/{blue}/export")] {
        assert_eq!(running.with_key(&key, "GET", path, "").await.status, 404, "{path}");
    }
    let own = format!("host: {blue}.localhost\r\nx-api-key: {key}\r\n");
    assert_eq!(running.get_with("/v1/x", &own).await.status, 404);
    // It creates what it is bound to, and nothing that concerns the tenant.
    for (body, status) in [
        (r#"{"name": "other"}"#, 403),
        ("{}", 403),
        (r#"{"name": "blue-2", "labels": {"team": "blue"}}"#, 403),
        (r#"{"name": "red-2", "labels": {"team": "red"}}"#, 201),
    ] {
        assert_eq!(running.with_key(&key, "POST", "/api/v2/sandboxes", body).await.status, status, "{body}");
    }
    assert_eq!(running.with_key(&key, "POST", "/api/v1/sandbox", r#"{"name": "other"}"#).await.status, 403);
    for (method, path) in
        [("GET", "/api/v2/keys"), ("POST", "/api/v2/keys"), ("GET", "/api/v2/audit"), ("GET", "/api/v2/workers")]
    {
        assert_eq!(running.with_key(&bound_admin, method, path, "").await.status, 403, "{method} {path}");
    }
    assert_eq!(running.with_key(&key, "POST", "/execute", r#"{"worker_id": "w", "action": "a:b"}"#).await.status, 403);
    let state = running.control.get(&"acme".parse().unwrap(), &"blue-1".parse().unwrap()).await.unwrap().state;
    assert_eq!(state, arenite_model::SandboxState::Paused);
    running.stop().await;
}

#[tokio::test]
async fn only_operators_mount_directories_of_the_host() {
    let running = Running::with_tenants(guest).await;
    let (_, key) = running.key("acme", Role::Admin, |_| {}).await;
    let body = r#"{"name": "a", "volumes": [{"name": "data", "path": "/home/gem/data"}]}"#;
    assert_eq!(running.with_key(&key, "POST", "/api/v2/sandboxes", body).await.status, 403);
    let operator = running.operator().await;
    assert_ne!(running.with_key(&operator, "POST", "/api/v2/sandboxes", body).await.status, 403);
    running.stop().await;
}

/// Answers WebSockets and an endless stream of events, and repeats what it receives.
async fn streaming(_: SandboxId, mut stream: DuplexStream) {
    while let Some(head) = read_head(&mut stream).await {
        if head.contains("/v1/shell/ws") {
            let _ = stream.write_all(b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
            let mut buffer = [0; 1024];
            while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                let _ = stream.write_all(&buffer[..n]).await;
            }
            return;
        } else if head.contains("/v1/events") {
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            let _ = stream.write_all(head).await;
            while stream.write_all(b"8\r\ndata: 1\n\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        } else if head.contains("/v1/slow") {
            tokio::time::sleep(60 * SECOND).await;
        } else {
            respond(&mut stream, "404 Not Found", "").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_open_ends_with_its_key() {
    let running = Running::with_tenants(streaming).await;
    let id = running.create_in("acme", "a").await;
    let tenants = running.control.tenants().unwrap();
    let (_, kept) = running.key("acme", Role::Manage, |_| {}).await;
    for by_expiry in [false, true] {
        let life = by_expiry.then_some(2 * SECOND);
        let (key_id, key) = running.key("acme", Role::Manage, |new| new.expires_in = life).await;
        let ticket = running.with_key(&key, "POST", "/tickets", "").await.json()["ticket"].as_str().unwrap().to_owned();
        let login = running.post("/login", &json!({ "key": key }).to_string()).await;
        let session = format!("cookie: {}\r\n", login.header("set-cookie").unwrap().split(';').next().unwrap());
        let header = format!("x-api-key: {key}\r\n");
        let ticketed = format!("/sandbox/a/v1/shell/ws?ticket={ticket}");
        let websocket = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n";
        let own = format!("host: {id}.localhost\r\n");
        let mut open = Vec::new();
        for (path, headers) in [
            ("/sandbox/a/v1/shell/ws", format!("host: localhost\r\n{header}{websocket}")),
            (&*ticketed, format!("host: localhost\r\n{websocket}")),
            ("/sandbox/a/v1/shell/ws", format!("host: localhost\r\n{session}{websocket}")),
            ("/v1/shell/ws", format!("{own}{header}{websocket}")),
            ("/sandbox/a/v1/events", format!("host: localhost\r\n{header}")),
            ("/api/v2/sandboxes?follow=true", format!("host: localhost\r\n{header}")),
            ("/sandbox/a/steps?follow=true", format!("host: localhost\r\n{session}")),
            ("/mcp/sse", format!("host: localhost\r\n{header}")),
        ] {
            let mut stream = running.connect().await;
            stream.write_all(format!("GET {path} HTTP/1.1\r\n{headers}\r\n").as_bytes()).await.unwrap();
            let head = read_head(&mut stream).await.unwrap();
            assert!(head.starts_with("HTTP/1.1 101") || head.starts_with("HTTP/1.1 200"), "{path}: {head}");
            open.push((path.to_owned(), stream));
        }
        // A call without an answer yet.
        let mut waiting = running.connect().await;
        waiting
            .write_all(format!("GET /sandbox/a/v1/slow HTTP/1.1\r\nhost: localhost\r\n{header}\r\n").as_bytes())
            .await
            .unwrap();
        // Another key's stream goes on.
        let mut other = running.connect().await;
        let request = format!("GET /sandbox/a/v1/shell/ws HTTP/1.1\r\nhost: localhost\r\nx-api-key: {kept}\r\n{websocket}\r\n");
        other.write_all(request.as_bytes()).await.unwrap();
        read_head(&mut other).await.unwrap();

        if !by_expiry {
            tenants.revoke_key(&key_id).await.unwrap();
        }
        let most = if by_expiry { 3 * SECOND } else { SECOND };
        let begun = tokio::time::Instant::now();
        let until_closed = async |mut stream: tokio::net::TcpStream| {
            let mut buffer = [0; 4096];
            while let Ok(1..) = stream.read(&mut buffer).await {}
        };
        for (path, stream) in open {
            let left = most.saturating_sub(begun.elapsed());
            tokio::time::timeout(left, until_closed(stream)).await.unwrap_or_else(|_| panic!("{path} is still open"));
        }
        let answer = tokio::time::timeout(SECOND, TestResponse::read(&mut waiting)).await.expect("the call goes on");
        assert_eq!(answer.status, 401);
        other.write_all(b"still").await.unwrap();
        let mut echoed = [0; 5];
        other.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, b"still");
        for headers in [header, session] {
            assert_eq!(running.get_with("/api/v2/me", &headers).await.status, 401);
        }
        assert_eq!(running.get(&format!("/api/v2/me?ticket={ticket}")).await.status, 401);
    }
    running.stop().await;
}

#[tokio::test]
async fn a_key_may_revoke_itself_and_gets_the_answer() {
    let running = Running::with_tenants(guest).await;
    let (id, key) = running.key("acme", Role::Admin, |_| {}).await;
    let answer = running.with_key(&key, "DELETE", &format!("/api/v2/keys/{id}"), "").await;
    assert_eq!((answer.status, answer.whole, &answer.json()["state"]), (200, true, &json!("revoked")));
    assert_eq!(running.with_key(&key, "GET", "/api/v2/me", "").await.status, 401);
    running.stop().await;
}

#[tokio::test]
async fn tickets_and_sessions_carry_the_rights_and_create_no_keys_by_a_detour() {
    let running = Running::with_tenants(guest).await;
    running.create_in("acme", "a").await;
    let bound = |new: &mut arenite_control::tenants::NewKey| new.bound = vec!["a".parse().unwrap()];
    let (_, reader) = running.key("acme", Role::Use, bound).await;
    let (_, admin) = running.key("acme", Role::Admin, |_| {}).await;
    let session_of = async |given: &str| {
        let login = running.post("/login", &json!({ "key": given }).to_string()).await;
        format!("cookie: {}\r\n", login.header("set-cookie").unwrap().split(';').next().unwrap())
    };
    let ticket_of =
        async |key: &str| running.with_key(key, "POST", "/tickets", "").await.json()["ticket"].as_str().unwrap().to_owned();
    let ticket = ticket_of(&reader).await;
    let of_ticket = session_of(&ticket).await;
    let (led, _) = {
        let answer = running.get_with("/sandbox/a/", &format!("{NAVIGATION}{of_ticket}")).await;
        (answer.header("location").unwrap_or_default().to_owned(), ())
    };
    assert!(led.contains("ticket="), "{led}");
    for headers in [session_of(&reader).await, of_ticket] {
        let me = running.get_with("/api/v2/me", &headers).await.json();
        assert_eq!((&me["tenant"], &me["role"], &me["bound"]), (&json!("acme"), &json!("use"), &json!(["a"])), "{headers}");
        assert_eq!(running.get_with("/sandbox/b/v1/x", &headers).await.status, 404);
        let deletes =
            running.raw(format!("DELETE /api/v2/sandboxes/a HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes()).await;
        assert_eq!(deletes.status, 403);
    }
    // An admin's ticket is in addresses: it must not become a key.
    let ticket = ticket_of(&admin).await;
    let session = session_of(&ticket).await;
    let body = r#"{"name": "x", "role": "admin"}"#;
    for (path, headers) in [(format!("/api/v2/keys?ticket={ticket}"), String::new()), ("/api/v2/keys".to_owned(), session)] {
        let length = body.len();
        let request = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}");
        assert_eq!(running.raw(request.as_bytes()).await.status, 403, "{path}");
    }
    let session = session_of(&admin).await;
    let length = body.len();
    let request = format!("POST /api/v2/keys HTTP/1.1\r\nhost: localhost\r\n{session}content-length: {length}\r\n\r\n{body}");
    assert_eq!(running.raw(request.as_bytes()).await.status, 201);
    running.stop().await;
}

#[tokio::test]
async fn an_mcp_session_is_its_callers() {
    let running = Running::with_tenants(guest).await;
    let (_, one) = running.key("one", Role::Manage, |_| {}).await;
    let (_, two) = running.key("two", Role::Manage, |_| {}).await;
    let initialize = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
    })
    .to_string();
    let send = async |key: &str, session: &str, body: &str| {
        let length = body.len();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n{session}content-length: {length}\r\n\r\n{body}"
        );
        let mut stream = running.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        TestResponse::try_read_whole(&mut stream).await.unwrap()
    };
    let begun = send(&one, "", &initialize).await;
    let session = format!("mcp-session-id: {}\r\n", begun.header("mcp-session-id").unwrap());
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
    assert_eq!(send(&one, &session, &initialized).await.status, 202);
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }).to_string();
    assert_eq!(send(&two, &session, &list).await.status, 404);
    assert_eq!(send(&one, &session, &list).await.status, 200);
    let read = format!("GET /mcp HTTP/1.1\r\nhost: localhost\r\nx-api-key: {two}\r\naccept: text/event-stream\r\n{session}\r\n");
    assert_eq!(running.raw(read.as_bytes()).await.status, 404);
    running.stop().await;
}

#[tokio::test]
async fn changes_of_other_tenants_are_not_followed() {
    let running = Running::with_tenants(guest).await;
    let (_, one) = running.key("one", Role::Manage, |_| {}).await;
    let (_, bound) = running.key("one", Role::Read, |new| new.bound = vec!["team=red".parse().unwrap()]).await;
    running.key("two", Role::Read, |_| {}).await;
    let mut readers = Vec::new();
    for key in [&one, &bound] {
        let mut stream = running.connect().await;
        let request = format!("GET /api/v2/sandboxes?follow=true HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        read_head(&mut stream).await.unwrap();
        readers.push(stream);
    }
    let others = running.create_in("two", "x").await;
    running.with_key(&one, "POST", "/api/v2/sandboxes", r#"{"name": "blue"}"#).await;
    running.with_key(&one, "POST", "/api/v2/sandboxes", r#"{"name": "red", "labels": {"team": "red"}}"#).await;
    running.with_key(&one, "DELETE", "/api/v2/sandboxes/blue", "").await;
    running.with_key(&one, "DELETE", "/api/v2/sandboxes/red", "").await;
    for (mut reader, sees_blue) in readers.into_iter().zip([true, false]) {
        let mut text = String::new();
        while !text.contains(r#""name":"red","state":null"#) && !text.contains(r#""state":null,"name":"red""#) {
            let piece = tokio::time::timeout(5 * SECOND, crate::harness::read_chunk(&mut reader)).await;
            text += std::str::from_utf8(&piece.unwrap_or_else(|_| panic!("no end: {text}")).unwrap()).unwrap();
            if text.contains("\"red\"") && text.matches("null").count() >= if sees_blue { 2 } else { 1 } {
                break;
            }
        }
        assert!(!text.contains(others.as_str()), "{text}");
        assert_eq!(text.contains("blue"), sees_blue, "{text}");
    }
    running.stop().await;
}
