//! Every kind of answer to every kind of body, compared with the golden file `golden/agentflow-answers.txt`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use arenite_synthesis::config::{Switches, Workers};
use arenite_synthesis::{SandboxRequest, Setup, Synthesis};
use axum::body::Body;
use http::Request;
use http::header::{CONTENT_TYPE, HOST};

use crate::harness::Harness;
use crate::workers::WorkerSandboxes;

const JSON: &str = "application/json";

/// Path, content type, worker in the header, body. In this order: later ones find earlier sessions.
const REQUESTS: &[(&str, &str, &str, &str)] = &[
    // Bodies that pydantic checks.
    ("/api/v1/execute", JSON, "", ""),
    ("/api/v1/execute", "text/plain", "", r#"{"worker_id": "w1", "action": "a:b"}"#),
    ("/api/v1/execute", "", "", r#"{"worker_id": "w1", "action": "a:b"}"#),
    ("/api/v1/execute", "application/vnd.x+json; charset=utf-8", "", r#"{"worker_id": "w1", "action": "a:b"}"#),
    ("/api/v1/execute", JSON, "", "{\n\"a\": }"),
    ("/api/v1/execute", JSON, "", "{1: 2}"),
    ("/api/v1/execute", JSON, "", "{} {}"),
    ("/api/v1/execute", JSON, "", "[1]"),
    ("/api/v1/execute", JSON, "", "{}"),
    ("/api/v1/execute", JSON, "w1", r#"{"params": null}"#),
    ("/api/v1/execute", JSON, "w1", r#"{"worker_id": null, "action": 5, "params": [], "timeout": [], "async_mode": null}"#),
    ("/api/v1/execute", JSON, "", r#"{"worker_id": "w1", "action": "a:b", "timeout": 1.5, "async_mode": "maybe"}"#),
    ("/api/v1/execute", JSON, "", r#"{"worker_id": "w1", "action": "a:b", "timeout": "1.5", "async_mode": 2}"#),
    (
        "/api/v1/execute",
        JSON,
        "",
        r#"{"message_id": 1, "message_type": null, "timestamp": 2, "session_id": 3, "worker_id": "w1"}"#,
    ),
    (
        "/api/v1/execute",
        JSON,
        "",
        r#"{"worker_id": "w1", "action": "a:b", "timeout": "5.0", "async_mode": "Yes", "session_id": null}"#,
    ),
    (
        "/api/v1/execute",
        JSON,
        "",
        r#"{"worker_id": "w1", "action": "a:b", "timeout": true, "trace_id": "t1", "task_id": 4, "parent": "x"}"#,
    ),
    ("/api/v1/execute", JSON, "", r#"{"worker_id": "", "action": "a:b", "trace_id": 5, "usage": {"in": 1}}"#),
    ("/execute/", JSON, "w1", r#"{"action": "nothing"}"#),
    ("/api/v1/execute/batch", JSON, "w1", r#"{"actions": {}}"#),
    ("/api/v1/execute/batch", JSON, "w1", r#"{"actions": [1, {}, null], "parallel": 3, "stop_on_error": {}}"#),
    ("/api/v1/execute/batch", JSON, "w1", r#"{"actions": []}"#),
    ("/api/v1/execute/batch", JSON, "w1", r#"{"actions": [{}, {"action": "a:b", "params": null, "timeout": "x"}]}"#),
    (
        "/api/v1/execute/batch",
        JSON,
        "w1",
        r#"{"actions": [{"action": 1}, {"action": "a:b", "params": {}}], "stop_on_error": "off", "parallel": 1.0}"#,
    ),
    ("/api/v1/worker/disconnect", JSON, "", r#"{"worker_id": 1}"#),
    ("/api/v1/worker/disconnect", JSON, "", r#"{"worker_id": "unknown"}"#),
    ("/api/v1/init/resource", JSON, "", r#"{"worker_id": "w2"}"#),
    ("/api/v1/init/resource", JSON, "", r#"{"worker_id": "w2", "resource_type": {}, "init_config": "x"}"#),
    ("/api/v1/init/resource", JSON, "", r#"{"worker_id": "", "resource_type": "web"}"#),
    ("/api/v1/init/resource", JSON, "", r#"{"worker_id": "w2", "resource_type": "web", "init_config": {"a": 1}}"#),
    (
        "/api/v1/init/batch",
        JSON,
        "w2",
        r#"{"resource_configs": {"web": 1, "bash": {}}, "allocated_resources": 1, "task_session_id": 1}"#,
    ),
    ("/api/v1/init/batch", JSON, "w2", r#"{"resource_configs": []}"#),
    ("/api/v1/init/batch", JSON, "w2", "{}"),
    (
        "/api/v1/init/batch",
        JSON,
        "w2",
        r#"{"resource_configs": {"web": {"content": {"a": 1}}, "bash": {"content": 1}}, "task_session_id": null}"#,
    ),
    ("/api/v1/init/batch", JSON, "", r#"{"worker_id": "", "resource_configs": {"web": {}}}"#),
    ("/api/v1/init/from-config", JSON, "w2", r#"{"config_path": null}"#),
    ("/api/v1/init/from-config", JSON, "w2", r#"{"config_path": "../outside.json", "override_params": {}}"#),
    ("/api/v1/init/from-config", JSON, "w2", r#"{"config_path": "broken.json"}"#),
    (
        "/api/v1/init/from-config",
        JSON,
        "w2",
        r#"{"config_path": "a.json", "override_params": {"b": {"d": 4}, "a": 2, "new": 1}}"#,
    ),
    // Bodies that handlers read themselves.
    ("/api/v1/session/create", "", "", ""),
    ("/api/v1/session/create", "", "", "{"),
    ("/api/v1/session/create", "", "", "[]"),
    ("/api/v1/session/create", "", "", "{}"),
    ("/api/v1/session/create", "", "w3", r#"{"worker_id": null, "resource_type": "bash"}"#),
    ("/api/v1/session/create", "", "w3", r#"{"resource_type": ""}"#),
    ("/api/v1/session/create", "", "w3", r#"{"resource_type": {"a": 1}}"#),
    ("/api/v1/session/create", "", "w3", r#"{"resource_type": "a\u0000b"}"#),
    (
        "/api/v1/session/create",
        "",
        "w3",
        r#"{"resource_type": "0123456789012345678901234567890123456789012345678901234567890123456789"}"#,
    ),
    ("/api/v1/session/create", "", "w3", r#"{"resource_type": "bash", "session_config": 1}"#),
    ("/api/v1/session/create", "", "w3", r#"{"resource_type": "bash", "session_config": null, "config": []}"#),
    ("/api/v1/session/create", "", "w3", r#"{"resource_type": "bash", "ttl": 0}"#),
    ("/api/v1/session/create", "", "w3", r#"{"resource_type": "bash", "ttl": -1.5}"#),
    (
        "/api/v1/session/create",
        "",
        "",
        r#"{"worker_id": 7, "resource_type": 8, "custom_name": 9, "ttl": "x", "auto_extend": "x"}"#,
    ),
    (
        "/api/v1/session/create",
        "",
        "w3",
        r#"{"resource_type": "x", "resource_type": "bash", "session_config": {}, "custom_name": "mine", "ttl": 60, "auto_extend": false}"#,
    ),
    ("/session/create", "", "w3", r#"{"resource_type": "bash"}"#),
    ("/api/v1/session/list", "", "", r#"{"worker_id": ""}"#),
    ("/api/v1/session/list", "", "", r#"{"worker_id": true}"#),
    ("/api/v1/session/list", "", "w3", "{}"),
    ("/api/v1/session/refresh", "", "w3", r#"{"resource_type": "nothing"}"#),
    ("/api/v1/session/refresh", "", "w3", r#"{"resource_type": "bash"}"#),
    ("/api/v1/session/refresh", "", "w3", r#"{"resource_type": null}"#),
    ("/api/v1/session/refresh", "", "w3", r#"{"resource_type": []}"#),
    ("/api/v1/lifecycle/heartbeat", "", "w3", "{}"),
    ("/api/v1/lifecycle/heartbeat", "", "", "{}"),
    ("/api/v1/lifecycle/status", "", "w3", "{}"),
    ("/api/v1/lifecycle/status", "", "", "null"),
    ("/api/v1/session/destroy", "", "w3", r#"{"resource_type": "nothing"}"#),
    ("/api/v1/session/destroy", "", "w3", r#"{"resource_type": null}"#),
    ("/api/v1/session/destroy", "", "w3", r#"{"resource_type": "bash"}"#),
    ("/api/v1/worker/disconnect", JSON, "w2", "{}"),
    ("/api/v1/warmup", "", "", ""),
    ("/api/v1/warmup", "", "", " null "),
    ("/api/v1/warmup", "", "", "[]"),
    ("/api/v1/warmup", "", "", r#"{"backends": null}"#),
    ("/api/v1/warmup", "", "", r#"{"backends": "nothing"}"#),
    ("/api/v1/warmup", "", "", r#"{"backends": ["none", 5, "other"]}"#),
    ("/api/v1/warmup", "", "", r#"{"backends": {"a": 1}}"#),
    ("/api/v1/server/shutdown", "", "", "x"),
    ("/api/v1/server/shutdown", "", "", r#"{"cleanup_sessions": false, "force": 1}"#),
    ("/shutdown", "", "", r#"{"cleanup_sessions": "no"}"#),
    // Requests without a body.
    ("GET /api/v1/tools", "", "", ""),
    ("GET /api/v1/tools?include_hidden=True", "", "", ""),
    ("GET /api/v1/tools?include_hidden=perhaps", "", "", ""),
    ("GET /api/v1/tools?format=openai", "", "", ""),
    ("GET /api/v1/tools/a:b/schema", "", "", ""),
    ("GET /api/v1/warmup/status", "", "", ""),
    ("GET /api/v1/nothing", "", "", ""),
    ("GET /api/v1/execute", "", "", ""),
    ("POST /api/v1/tools", "", "", ""),
];

#[tokio::test]
async fn golden_answers() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("configs");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(dir.path().join("outside.json"), "{}").unwrap();
    std::fs::write(root.join("broken.json"), "{").unwrap();
    std::fs::write(root.join("a.json"), r#"{"a": 1, "b": {"c": 3}}"#).unwrap();
    let server = Harness::with(|_, gateway| {
        gateway.workers = Some(Workers {
            dir: dir.path().join("workers"),
            parts: Vec::new(),
            session_ttl: Duration::from_secs(300),
            sandbox_request: SandboxRequest::default(),
            warmup: Vec::new(),
            switches: Switches { config_root: Some(root.clone()), ..Switches::default() },
        });
    })
    .await;
    let setup = Setup {
        dir: dir.path().join("workers"),
        recorder: server.gateway.recorder.clone(),
        sandboxes: Arc::new(WorkerSandboxes::new(&server.gateway)),
        backends: Vec::new(),
        session_ttl: Duration::from_secs(300),
        sandbox_request: SandboxRequest::default(),
    };
    let synthesis = Synthesis::start(setup).unwrap();
    synthesis.discover().await;
    assert!(server.gateway.synthesis.set(synthesis).is_ok());

    let mut ours = String::new();
    for (path, content_type, worker, body) in REQUESTS {
        let (method, path) = path.split_once(' ').unwrap_or(("POST", path));
        let mut request = Request::builder().method(method).uri(path).header(HOST, "127.0.0.1:8080");
        if !content_type.is_empty() {
            request = request.header(CONTENT_TYPE, *content_type);
        }
        if !worker.is_empty() {
            request = request.header(super::WORKER, *worker);
        }
        let answer = server.send(request.body(Body::from(*body)).unwrap()).await;
        let kind = answer.headers[CONTENT_TYPE].to_str().unwrap();
        writeln!(ours, "{method} {path} [{content_type}] [{worker}] {body}").unwrap();
        writeln!(ours, "  {} {kind} {}", answer.status, masked(&answer.text)).unwrap();
    }
    let path = format!("{}/golden/agentflow-answers.txt", std::env::var("CARGO_MANIFEST_DIR").unwrap());
    if std::env::var_os("ARENITE_BLESS").is_some() {
        std::fs::write(&path, &ours).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = ours.lines().zip(golden.lines()).find(|(a, b)| a != b);
    assert!(ours == golden, "{path} differs, first at {differ:#?}; if that is meant: cargo xtask openapi --bless");
}

#[test]
fn every_route_is_described() {
    let document = crate::pages::openapi::agentflow_document();
    for path in crate::routes::patterns("agentflow").filter(|path| path.starts_with(super::ROOT) && !path.ends_with("/**")) {
        assert!(document["paths"].get(path).is_some(), "{path}");
    }
    assert_eq!(document["paths"].as_object().map(serde_json::Map::len), Some(19));
    assert_eq!(document["paths"]["/api/v1/execute"]["post"]["requestBody"]["required"], true);
    assert_eq!(document["components"]["schemas"]["ExecuteRequest"]["required"], serde_json::json!(["worker_id", "action"]));
}

/// Without times, random ids and durations.
fn masked(text: &str) -> String {
    const KEYS: [&str; 6] = ["trace_id", "created_at", "last_activity", "expires_at", "timestamp", "execution_time_ms"];
    let mut masked = text.to_owned();
    for key in KEYS.map(|key| format!("\"{key}\":")) {
        let mut parts = masked.split(&key);
        let mut result = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find([',', '}']).unwrap_or(part.len());
            let value = match &part[..end] {
                "null" => "null",
                value if value.starts_with('"') => "\"…\"",
                value if value.parse::<f64>().is_ok() => "0.0",
                value => value,
            };
            result.push_str(&format!("{key}{value}{}", &part[end..]));
        }
        masked = result;
    }
    // Session ids end with eight random digits.
    let mut parts = masked.split("\"session_id\":\"");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find('"').unwrap_or(part.len());
        result.push_str(&format!("\"session_id\":\"{}…{}", &part[..end.saturating_sub(8)], &part[end..]));
    }
    result
}
