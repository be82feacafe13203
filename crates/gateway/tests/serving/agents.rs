//! Calls of agents from inside sandboxes: what their tokens reach, and what they don't.

use arenite_control::tenants::{AuditQuery, Role};
use arenite_control::{ChildBudget, CreateRequest, Provenance};
use arenite_model::protocol::{AGENT_KEY_ENV, SERVER_CALLS_PATH};
use arenite_model::{SandboxId, TenantId};
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::{Mutex, mpsc};

use crate::harness::{Running, TestResponse, read_head, respond};

/// A guest in which a process connects to the server at once, as often as the server lets it.
async fn guest(id: SandboxId, mut stream: DuplexStream, agents: mpsc::UnboundedSender<(SandboxId, DuplexStream)>) {
    while let Some(head) = read_head(&mut stream).await {
        if head.starts_with(&format!("GET {SERVER_CALLS_PATH} ")) {
            let switching = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: arenite-server\r\nx-arenite-protocol: 1\r\n\r\n";
            stream.write_all(switching.as_bytes()).await.unwrap();
            let _ = agents.send((id, stream));
            return;
        }
        let status = if head.contains("/internal/") { "404 Not Found" } else { "200 OK" };
        respond(&mut stream, status, "{}").await;
    }
}

struct Fixture {
    running: Running,
    agents: Mutex<mpsc::UnboundedReceiver<(SandboxId, DuplexStream)>>,
}

impl Fixture {
    async fn new(with_tenants: bool) -> Self {
        let (send, receive) = mpsc::unbounded_channel();
        let serve = move |id, stream| guest(id, stream, send.clone());
        let running = if with_tenants { Running::with_tenants(serve).await } else { Running::start(serve).await };
        Self { running, agents: Mutex::new(receive) }
    }

    /// Creates a sandbox with a budget, and returns its id and its token.
    async fn root(&self, tenant: &str, name: &str) -> (SandboxId, String) {
        let budget = ChildBudget { sandboxes: 2, cpu_millis: 100_000, memory_bytes: 1 << 40, depth: 1, lifetime_seconds: None };
        let provenance = Provenance { child_budget: Some(budget), ..Provenance::default() };
        let request = CreateRequest { name: Some(name.parse().unwrap()), provenance, ..CreateRequest::default() };
        let id = self.running.control.create(&tenant.parse().unwrap(), request).await.unwrap().id;
        let token = self.running.engine.spec(&id).unwrap().env[AGENT_KEY_ENV].clone();
        (id, token)
    }

    /// A call out of a sandbox, on a connection that nobody used.
    async fn call(&self, from: &SandboxId, token: &str, method: &str, path: &str, body: Value) -> TestResponse {
        let mut agents = self.agents.lock().await;
        let mut stream = loop {
            let (id, stream) = agents.recv().await.unwrap();
            if id == *from {
                break stream;
            }
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:8077\r\nx-api-key: {token}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        TestResponse::read(&mut stream).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_creates_sandboxes_and_reaches_only_those() {
    let server = Fixture::new(true).await;
    server.running.key("acme", Role::Admin, |_| {}).await;
    let (root, token) = server.root("acme", "root").await;
    server.running.create_in("acme", "sibling").await;
    let call = async |method: &str, path: &str, body: Value| server.call(&root, &token, method, path, body).await;
    let made = call("POST", "/api/v2/sandboxes", json!({ "name": "kid" })).await;
    assert_eq!((made.status, &made.json()["parent"]), (201, &json!(root)), "{}", made.text());
    let list = call("GET", "/api/v2/sandboxes", Value::Null).await.json();
    assert_eq!(list["sandboxes"].as_array().unwrap().iter().map(|one| &one["name"]).collect::<Vec<_>>(), [&json!("kid")]);
    assert_eq!(call("GET", "/sandbox/kid/v1/ping", Value::Null).await.status, 200);
    let me = call("GET", "/api/v2/me", Value::Null).await.json();
    assert_eq!((&me["tenant"], &me["key"], &me["role"]), (&json!("acme"), &json!(root), &json!("manage")));
    for (method, path) in [
        ("GET", "/api/v2/sandboxes/root"),
        ("DELETE", "/api/v2/sandboxes/root"),
        ("GET", "/api/v2/sandboxes/sibling"),
        ("DELETE", "/api/v2/sandboxes/sibling"),
        ("POST", "/api/v2/sandboxes/sibling/pause"),
        ("GET", "/sandbox/sibling/v1/ping"),
        ("GET", "/v1/file/list"),
        ("GET", "/api/v1/sandbox/sibling"),
    ] {
        let refused = call(method, path, Value::Null).await;
        assert_eq!(refused.status, 404, "{method} {path}: {}", refused.text());
    }
    for (method, path) in [
        ("GET", "/api/v2/groups"),
        ("GET", "/api/v2/keys"),
        ("POST", "/api/v2/keys"),
        ("GET", "/api/v2/tenants"),
        ("GET", "/api/v2/audit"),
        ("GET", "/api/v2/workers"),
        ("POST", "/api/v1/execute"),
        ("POST", "/tickets"),
        ("POST", "/api/v1/server/shutdown"),
        ("GET", "/metrics"),
    ] {
        let refused = call(method, path, Value::Null).await;
        assert_eq!(refused.status, 403, "{method} {path}: {}", refused.text());
    }
    // What judges agents is not written by one.
    let annotations = format!("/api/v1/trajectories/{}/annotations", made.json()["id"].as_str().unwrap());
    assert_eq!(call("GET", &annotations, Value::Null).await.status, 200);
    let refused = call("POST", &annotations, json!({ "rating": 5 })).await;
    assert_eq!((refused.status, &refused.json()["hint"]), (403, &json!("use a key")), "{}", refused.text());
    let usage = call("GET", "/api/v2/usage/live", Value::Null).await.text().to_owned();
    assert!(usage.contains("kid") && !usage.contains("sibling"), "{usage}");

    // MCP's tools, and the end of the budget.
    let tool = async |name: &str, arguments: Value| {
        let body = json!({ "method": "tools/call", "params": { "name": name, "arguments": arguments } });
        call("POST", "/mcp", body).await.json()["result"].clone()
    };
    let made = tool("createSandbox", json!({ "name": "second" })).await;
    assert!(made["isError"] != true, "{made}");
    let full = call("POST", "/api/v2/sandboxes", json!({ "name": "third" })).await;
    assert_eq!((full.status, &full.json()["code"]), (429, &json!("exhausted")), "{}", full.text());
    let deleted = tool("deleteSandbox", json!({ "name": "second" })).await;
    assert!(deleted["isError"] != true, "{deleted}");
    assert_eq!(tool("deleteSandbox", json!({ "name": "sibling" })).await["isError"], true);

    let query = AuditQuery { tenant: Some("acme".parse().unwrap()), limit: 100, ..AuditQuery::default() };
    let rows = server.running.control.tenants().unwrap().audit_page(query).await.unwrap();
    let created = rows.iter().find(|row| row.entry.action == "sandbox.create" && row.entry.object == "kid").unwrap();
    assert_eq!(created.entry.key.as_ref().unwrap().as_str(), root.as_str());
    assert_eq!(created.entry.client, Some(format!("sandbox {root}")));

    // Its tree ends with it.
    let tenant: TenantId = "acme".parse().unwrap();
    server.running.control.delete(&tenant, &"root".parse().unwrap()).await.unwrap();
    let left: Vec<_> = server.running.control.list(&tenant).await.unwrap().into_iter().map(|one| one.name.to_string()).collect();
    assert_eq!(left, ["sibling"]);
    server.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_works_only_out_of_its_sandbox_and_nothing_else_does_there() {
    for with_tenants in [true, false] {
        let server = Fixture::new(with_tenants).await;
        let (a, token) = server.root("default", "a").await;
        let (b, other) = server.root("default", "b").await;
        let operator = match server.running.control.tenants() {
            Some(_) => server.running.key("default", Role::Admin, |new| new.operator = true).await.1,
            None => "any".to_owned(),
        };
        for (from, given) in [(&a, &other), (&b, &token), (&a, &operator), (&a, &String::new())] {
            let refused = server.call(from, given, "GET", "/api/v2/sandboxes", Value::Null).await;
            assert_eq!(refused.status, 401, "{with_tenants} {given}: {}", refused.text());
        }
        assert_eq!(server.call(&a, &token, "GET", "/api/v2/sandboxes", Value::Null).await.status, 200);
        if with_tenants {
            let outside = server.running.get_with("/api/v2/sandboxes", &format!("x-api-key: {token}\r\n")).await;
            assert_eq!(outside.status, 401, "{}", outside.text());
        }
        server.running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_without_a_budget_has_no_way_to_the_server() {
    let server = Fixture::new(false).await;
    server.running.create("plain").await;
    let (root, token) = server.root("default", "root").await;
    assert_eq!(server.call(&root, &token, "GET", "/api/v2/info", Value::Null).await.status, 200);
    let mut agents = server.agents.lock().await;
    while let Ok((id, _)) = agents.try_recv() {
        assert_eq!(id, root);
    }
    drop(agents);
    server.running.stop().await;
}
