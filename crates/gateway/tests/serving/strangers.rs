//! Every route of the table, called with keys that have no right to it: nothing is shown, and nothing changes.

use std::collections::BTreeMap;
use std::time::Duration;

use arenite_control::models::ModelRouteSpec;
use arenite_control::secrets::SetSecret;
use arenite_control::tenants::{AuditQuery, Role};
use arenite_gateway::{RouteFacts, route_facts};
use arenite_model::{PauseKind, SandboxId};
use serde_json::{Value, json};

use crate::harness::{Running, TestResponse};
use crate::rights::{Client, guest};

const UPGRADE: &str =
    "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGVzdGluZ3Rlc3Rpbmdp\r\nsec-websocket-version: 13\r\n";
/// The same page for all trajectories: its script reads them with the caller's credentials.
const SAME_PAGE: &str = "/trajectory/{id}";
/// Calls by a tenant's model route, in the path.
const MODELS: &str = "/models/**";
/// They belong to the server, and every tenant uses them.
const OF_THE_SERVER: [&str; 4] =
    ["/api/v2/corpora/{name}", "/api/v2/corpora/{name}/search", "/api/v1/tools/{tool_name}/schema", "/tools/{tool_name}/schema"];

/// A tenant with sandboxes, a record and keys.
struct Victim {
    running: Running,
    /// Running, with a record.
    a: SandboxId,
    /// Paused.
    p: SandboxId,
    key: String,
    webhook: String,
    digest: String,
    secrets: Vec<String>,
}

impl Victim {
    async fn new() -> Self {
        let running = Running::with_tenants(guest).await;
        let (key, owner) = running.key("acme", Role::Admin, |_| {}).await;
        let (a, p) = (running.create_in("acme", "a").await, running.create_in("acme", "p").await);
        let large = format!("{{\"content\":\"{}\"}}", "x".repeat(200_000));
        let request = format!(
            "POST /sandbox/a/v1/file/write HTTP/1.1\r\nhost: localhost\r\nx-api-key: {owner}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{large}",
            large.len()
        );
        assert_eq!(running.raw(request.as_bytes()).await.status, 200);
        let steps = running.recorder.steps(&"acme".parse().unwrap(), a.as_str(), 0, 10).unwrap();
        let arguments = serde_json::to_value(&steps[0]).unwrap()["arguments"].clone();
        let digest = arguments["blob"]["blake3"].as_str().unwrap_or_else(|| panic!("{arguments}")).to_owned();
        running.control.pause(&"acme".parse().unwrap(), &"p".parse().unwrap(), PauseKind::Freeze).await.unwrap();
        running.control.create_group(&"acme".parse().unwrap(), "a".parse().unwrap(), Duration::from_secs(3600)).await.unwrap();
        let webhooks = running.control.webhooks().unwrap();
        let hook = webhooks.create(&"acme".parse().unwrap(), "https://192.0.2.1/".to_owned(), Vec::new()).await.unwrap();
        let webhook = hook.id.to_string();
        let tenant = "acme".parse().unwrap();
        let [host, user, password] = ["registry.example", "their-user", "s3cret"].map(str::to_owned);
        running.control.set_registry_login(&tenant, host, user, password).await.unwrap();
        let value = Some("their-secret-value".to_owned().into());
        let set = SetSecret { value, hosts: Some(vec!["their-api.example".to_owned()]), ..SetSecret::default() };
        running.control.set_secret(&tenant, "a".parse().unwrap(), set).await.unwrap();
        let upstream = "https://their-upstream.example/v1".to_owned();
        let spec = ModelRouteSpec { upstream, ..ModelRouteSpec::default() };
        running.control.set_model_route(&tenant, "a".parse().unwrap(), spec).await.unwrap();
        let mut secrets = vec![a.to_string(), p.to_string(), key.to_string(), owner.clone(), "acme".to_owned(), webhook.clone()];
        secrets.extend(["their-user", "s3cret", "their-secret-value", "their-api.example", "their-upstream"].map(str::to_owned));
        Self { running, a, p, key: key.to_string(), webhook, digest, secrets }
    }

    /// What a call without rights may not change.
    async fn state(&self) -> BTreeMap<String, String> {
        let tenant = "acme".parse().unwrap();
        let mut state = BTreeMap::new();
        for sandbox in self.running.control.list_all().into_iter().filter(|sandbox| sandbox.tenant == tenant) {
            let steps = self.running.recorder.steps(&tenant, sandbox.id.as_str(), 0, 1000).unwrap_or_default().len();
            state.insert(sandbox.name.to_string(), format!("{} {} {steps}", sandbox.state, sandbox.last_used_at));
        }
        let counters = self.running.control.counters();
        state.insert("counters".to_owned(), format!("{} {} {}", counters.woken, counters.deleted, counters.leases));
        let tenants = self.running.control.tenants().unwrap();
        let webhooks = self.running.control.webhooks().unwrap();
        state.insert("webhooks".to_owned(), format!("{:?} {}", webhooks.list(&tenant), webhooks.waiting()));
        state.insert("groups".to_owned(), format!("{:?}", self.running.control.groups(&tenant)));
        state.insert("registries".to_owned(), format!("{:?}", self.running.control.registry_logins(&tenant)));
        state.insert("secrets".to_owned(), format!("{:?}", self.running.control.secrets(&tenant).await.unwrap()));
        state.insert("models".to_owned(), format!("{:?}", self.running.control.model_routes(&tenant).await.unwrap()));
        state.insert("tenants".to_owned(), format!("{:?}", tenants.get(&tenant)));
        state.insert("keys".to_owned(), format!("{:?}", tenants.key(&self.key.parse().unwrap())));
        state
    }

    async fn audit(&self, tenant: Option<&str>) -> Vec<arenite_control::tenants::AuditRow> {
        let query = AuditQuery { tenant: tenant.map(|name| name.parse().unwrap()), limit: 1000, ..AuditQuery::default() };
        self.running.control.tenants().unwrap().audit_page(query).await.unwrap()
    }

    /// A path that a pattern matches, which names the victim's objects.
    fn path(&self, facts: &RouteFacts, name: &str) -> String {
        let pattern = facts.pattern.as_str();
        let of = match pattern {
            _ if pattern.starts_with("/api/v2/tenants/") => "acme",
            _ if pattern.starts_with("/api/v2/keys/") => &self.key,
            _ if pattern.starts_with("/api/v2/webhooks/") => &self.webhook,
            _ if pattern.starts_with("/api/v2/quarantine/") => self.p.as_str(),
            _ if pattern.contains("/trajector") => self.a.as_str(),
            _ => name,
        };
        let segment = |segment: &str| match segment {
            "**" if pattern == MODELS => "a/v1/chat/completions".to_owned(),
            "**" => "80/x".to_owned(),
            "{name}" | "{id}" => of.to_owned(),
            "{number}" | "{tool_name}" => "1".to_owned(),
            "{part}" => "arguments".to_owned(),
            "{digest}" => self.digest.clone(),
            "{host}" => "registry.example".to_owned(),
            other => other.to_owned(),
        };
        pattern.split('/').map(segment).collect::<Vec<_>>().join("/")
    }
}

/// A call, and whether it names an object of the victim.
struct Call {
    method: String,
    path: String,
    host: String,
    headers: &'static str,
    names_object: bool,
    need: String,
    public: bool,
}

/// Every route with every method, wherever it exists.
fn calls(victim: &Victim) -> Vec<Call> {
    let mut calls = Vec::new();
    for facts in route_facts() {
        let methods = facts.methods.clone().unwrap_or_else(|| ["GET", "POST", "DELETE"].map(str::to_owned).into());
        for method in methods {
            let mut call = |path: String, host: String, headers: &'static str, names_object: bool| {
                let (method, need) = (method.clone(), (facts.need)(&facts, &method));
                // On a port's host, all paths belong to the program there.
                let is_port = host.starts_with("3000-");
                let (need, public) = if is_port { ("use".to_owned(), false) } else { (need, facts.public) };
                calls.push(Call { method, path, host, headers, names_object, need, public });
            };
            let localhost = || "localhost".to_owned();
            // A PUT creates the caller's own.
            let has_object = method != "PUT"
                && (facts.pattern.contains('{') || facts.pattern == MODELS)
                && facts.pattern != SAME_PAGE
                && !OF_THE_SERVER.contains(&facts.pattern.as_str());
            if facts.at_server {
                call(victim.path(&facts, "a"), localhost(), "", has_object);
                if has_object {
                    call(victim.path(&facts, "p"), localhost(), "", true);
                }
            }
            if facts.at_sandbox {
                let path = victim.path(&facts, "a");
                for name in ["a", "p"] {
                    call(format!("/sandbox/{name}{path}"), localhost(), "", true);
                }
                if facts.at_server {
                    call(path.clone(), localhost(), "x-arenite-sandbox: p\r\n", true);
                    if method == "GET" {
                        call(path.clone(), localhost(), UPGRADE, false);
                    }
                }
                for id in [&victim.a, &victim.p] {
                    call(path.clone(), format!("{id}.localhost"), "", true);
                    if method == "GET" {
                        call(path.clone(), format!("{id}.localhost"), UPGRADE, true);
                    }
                }
                call(path, format!("3000-{}.localhost", victim.p), if method == "GET" { UPGRADE } else { "" }, true);
            }
        }
    }
    assert!(calls.len() > 700, "the table has lost its routes: {}", calls.len());
    calls
}

/// A path below another route may have only that route's methods.
fn is_refused(answer: &TestResponse) -> bool {
    matches!(answer.status, 401 | 403 | 404 | 405)
}

/// Whether a sandbox's guest answered.
fn is_of_guest(answer: &TestResponse) -> bool {
    serde_json::from_slice::<Value>(&answer.body).is_ok_and(|body| body["reached"].is_string())
}

/// Routes of a sandbox that show nothing of it: pages and documents that are the same for all.
fn is_same_for_all(path: &str) -> bool {
    let path = path.strip_prefix("/sandbox/a").or(path.strip_prefix("/sandbox/p")).unwrap_or(path);
    ["/v1/docs", "/v1/openapi.json", "/llms.txt", "/terminal", "/auth", "/tickets"].contains(&path)
        || path.starts_with("/vnc")
        || path.starts_with("/static/")
}

impl Client<'_> {
    async fn send(&mut self, call: &Call, key: &str) -> (TestResponse, String) {
        let headers = format!("{}{key}", call.headers);
        let answer = self.call(&call.method, &call.path, &call.host, &headers).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let upgrade = if call.headers == UPGRADE { " (WebSocket)" } else { call.headers.trim() };
        let what = format!("{} {} on {}{upgrade}: {} {text}", call.method, call.path, call.host, answer.status);
        (answer, what)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_without_a_valid_key_reaches_nothing() {
    let victim = Victim::new().await;
    let running = &victim.running;
    let (_, expired) = running.key("acme", Role::Admin, |new| new.expires_in = Some(Duration::from_millis(1))).await;
    let (id, revoked) = running.key("acme", Role::Admin, |_| {}).await;
    running.control.tenants().unwrap().revoke_key(&id).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let before = victim.state().await;
    let calls = calls(&victim);
    let mut client = Client::new(running);
    for (name, header, tenant) in [
        ("no key", String::new(), None),
        ("an expired key", format!("x-api-key: {expired}\r\n"), Some("acme")),
        ("a revoked key", format!("authorization: Bearer {revoked}\r\n"), Some("acme")),
    ] {
        let rows_before = victim.audit(tenant).await.len();
        let mut refusals = 0;
        for call in calls.iter().filter(|call| !call.public) {
            let (answer, what) = client.send(call, &header).await;
            let is_ping = call.path == "/v1/ping";
            assert!(answer.status == 401 || is_ping, "{name}: {what}");
            // It names the path, which the caller wrote.
            let is_leaked = |secret: &String| answer.text().contains(secret.as_str()) && !call.path.contains(secret.as_str());
            assert!(!victim.secrets.iter().any(is_leaked), "{name}: {what}");
            assert!(!is_of_guest(&answer), "{name}: {what}");
            refusals += usize::from(answer.status == 401);
        }
        assert_eq!(victim.state().await, before, "{name} changed something");
        let rows = victim.audit(tenant).await;
        assert_eq!(rows.len(), (rows_before + refusals).min(1000), "{name}: only refusals are in the audit log");
        assert!(rows.iter().take(refusals).all(|row| row.entry.action == "request" && row.entry.outcome == "unauthorized"));
    }
    victim.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenants_admin_finds_nothing_and_changes_nothing() {
    let victim = Victim::new().await;
    let running = &victim.running;
    let (_, stranger) = running.key("other", Role::Admin, |_| {}).await;
    let (before, rows) = (victim.state().await, victim.audit(Some("acme")).await);
    let header = format!("x-api-key: {stranger}\r\n");
    let mut client = Client::new(running);
    for call in calls(&victim).iter().filter(|call| !call.public) {
        let (answer, what) = client.send(call, &header).await;
        let is_port = call.host.starts_with("3000-");
        if call.names_object && (is_port || !is_same_for_all(&call.path)) {
            assert!(is_refused(&answer), "{what}");
            // The answer for an object that never existed.
            assert_ne!(answer.status, 401, "{what}");
        }
        if call.need == "operator" {
            assert_eq!(answer.status, 403, "{what}");
        }
        let shown = String::from_utf8_lossy(&answer.body).into_owned();
        // It may repeat what the caller wrote.
        let leaked = victim.secrets.iter().find(|secret| {
            shown.contains(secret.as_str()) && !call.path.contains(secret.as_str()) && !call.host.contains(secret.as_str())
        });
        if call.path == "/api/v2/audit" && answer.status == 200 {
            // It repeats what the caller requested.
            assert!(answer.json()["rows"].as_array().unwrap().iter().all(|row| row["tenant"] == "other"), "{what}");
            continue;
        }
        assert!(leaked.is_none(), "{what}");
        assert!(!is_of_guest(&answer) || !shown.contains(victim.a.as_str()) && !shown.contains(victim.p.as_str()), "{what}");
    }
    // A body's hash is no right to read it: not in the stranger's own trajectory either.
    let own = running.create_in("other", "own").await;
    running.raw(format!("GET /sandbox/own/v1/x HTTP/1.1\r\nhost: localhost\r\n{header}\r\n").as_bytes()).await;
    let path = format!("/api/v1/trajectories/{own}/blobs/{}", victim.digest);
    assert_eq!(running.get_with(&path, &header).await.status, 404);
    assert_eq!(victim.state().await, before, "a stranger changed something");
    assert_eq!(victim.audit(Some("acme")).await, rows, "a stranger's call is in the tenant's audit log");
    victim.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_key_reads_and_changes_nothing() {
    let victim = Victim::new().await;
    let running = &victim.running;
    let (reader_id, reader) = running.key("acme", Role::Read, |_| {}).await;
    let before = victim.state().await;
    let rows_before = victim.audit(Some("acme")).await.len();
    let header = format!("x-api-key: {reader}\r\n");
    let mut client = Client::new(running);
    let mut refusals = 0;
    for call in calls(&victim).iter().filter(|call| !call.public) {
        let (answer, what) = client.send(call, &header).await;
        refusals += usize::from(answer.status == 403);
        match call.need.as_str() {
            "read" => assert!(!matches!(answer.status, 401 | 403), "{what}"),
            _ => assert_eq!(answer.status, 403, "{what}"),
        }
        assert!(!is_of_guest(&answer), "{what}");
    }
    assert_eq!(victim.state().await, before, "a read-only key changed something");
    let rows = victim.audit(Some("acme")).await;
    assert_eq!(rows.len(), (rows_before + refusals).min(1000));
    let refused = rows.iter().take(refusals);
    assert!(
        refused.clone().count() > 100
            && refused.clone().all(|row| row.entry.outcome == "forbidden" && row.entry.key.as_ref() == Some(&reader_id))
    );
    victim.running.stop().await;
}

async fn tool(running: &Running, key: &str, tool: &str, arguments: Value) -> (Value, String) {
    let body = json!({ "method": "tools/call", "params": { "name": tool, "arguments": arguments } }).to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = running.raw(request.as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    (answer.json()["result"].clone(), answer.text().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_of_mcp_work_by_tenant_and_by_role() {
    let victim = Victim::new().await;
    let running = &victim.running;
    let (_, stranger) = running.key("other", Role::Admin, |_| {}).await;
    let (_, user) = running.key("acme", Role::Use, |_| {}).await;
    let before = victim.state().await;
    for (name, arguments) in [
        ("getSandbox", json!({ "name": "a" })),
        ("deleteSandbox", json!({ "name": "p" })),
        ("sandboxExecutor", json!({ "sandbox_name": "p", "tool_name": "sandbox_execute_bash", "arguments": { "cmd": "id" } })),
        ("listSandbox", json!({})),
    ] {
        let (result, text) = tool(running, &stranger, name, arguments).await;
        assert_eq!(result["isError"], json!(name != "listSandbox"), "{name}: {text}");
        assert!(victim.secrets.iter().all(|secret| !text.contains(secret.as_str())), "{name}: {text}");
    }
    for (name, arguments) in [("createSandbox", json!({ "name": "new" })), ("deleteSandbox", json!({ "name": "a" }))] {
        let (result, text) = tool(running, &user, name, arguments).await;
        assert!(result["isError"] == true && text.contains("role manage"), "{name}: {text}");
    }
    let list = json!({ "method": "tools/list" }).to_string();
    for (key, wanted) in [(&user, false), (&stranger, true)] {
        let headers = format!("x-api-key: {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", list.len());
        let answer = running.raw(format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n{list}").as_bytes()).await;
        assert_eq!(answer.text().contains(r#""name":"createSandbox""#), wanted, "{}", answer.text());
        assert!(answer.text().contains(r#""name":"listSandbox""#));
    }
    assert_eq!(victim.state().await, before, "a tool changed something");
    let (result, text) = tool(running, &user, "listSandbox", json!({})).await;
    assert!(result["isError"] != true && text.contains(victim.a.as_str()), "{text}");
    victim.running.stop().await;
}
