//! `/healthz`, `/health` and `/ready`: Agent-Sandbox's and AgentFlow's bodies, followed by Arenite's fields.

use arenite_model::SandboxState;
use arenite_synthesis::answer::naive;
use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::exchange::{Answered, Exchange};
use crate::guard::HostKind;
use crate::refusal::{Refusal, json_response};

#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    status: &'static str,
    timestamp: String,
    version: &'static str,
}

/// The first four fields are AgentFlow's. Counts of all tenants are for operators.
#[derive(Serialize, ToSchema)]
pub(crate) struct Ready {
    status: &'static str,
    tools_count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_workers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_sessions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandboxes: Option<u64>,
    engine: &'static str,
    version: &'static str,
    /// What does not work, although sandboxes can be created.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'static str>,
}

/// Why no sandbox can be created now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NotReady {
    ready: bool,
    status: &'static str,
    reasons: Vec<String>,
}

/// Without details, since anyone may read it.
const ARCHIVE_PROBLEM: &str = "trajectories can't be archived now";
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) async fn healthz(_: &mut Exchange) -> Answered {
    let mut answer = Response::new(Body::from("OK"));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(answer)
}

pub(crate) async fn health(_: &mut Exchange) -> Answered {
    Ok(json_response(StatusCode::OK, &Health { status: "healthy", timestamp: naive(Timestamp::now()), version: VERSION }))
}

pub(crate) async fn ready(exchange: &mut Exchange) -> Answered {
    let gateway = &exchange.gateway;
    let problems = gateway.control.problems().await;
    if !problems.is_empty() {
        let body = NotReady { ready: false, status: "not_ready", reasons: problems.to_vec() };
        return Ok(json_response(StatusCode::SERVICE_UNAVAILABLE, &body));
    }
    let archive = gateway.config.archive.as_ref();
    let synthesis = gateway.synthesis.get();
    let (active_workers, total_sessions) = synthesis.map(|synthesis| synthesis.counts()).unwrap_or_default();
    let sandboxes = gateway.control.counters().sandboxes;
    let counted = gateway.control.tenants().is_none() || exchange.context.principal.operator;
    let live = |(state, count): (SandboxState, u64)| match state {
        SandboxState::Creating | SandboxState::Running | SandboxState::Paused => count,
        SandboxState::Deleting | SandboxState::Failed | SandboxState::Lost => 0,
    };
    Ok(json_response(
        StatusCode::OK,
        &Ready {
            status: "ready",
            tools_count: synthesis.map_or(0, |synthesis| synthesis.tools_count()),
            active_workers: counted.then_some(active_workers),
            total_sessions: counted.then_some(total_sessions),
            sandboxes: counted.then(|| sandboxes.into_iter().map(live).sum()),
            engine: gateway.control.engine().name(),
            version: VERSION,
            warnings: archive.and_then(|archive| archive.problem()).map(|_| ARCHIVE_PROBLEM).into_iter().collect(),
        },
    ))
}

/// Whether a request without credentials only wants to know that the server runs.
pub(crate) fn is_public_ping(exchange: &Exchange) -> bool {
    exchange.host.kind == HostKind::Server && exchange.path.decoded == "/v1/ping"
}

/// `/v1/ping` for unauthenticated callers: shows that the server runs. Calls or creates no sandbox.
pub(crate) fn ping(exchange: &Exchange) -> Answered {
    if !matches!(exchange.parts.method, Method::GET | Method::HEAD) {
        return Err(Refusal::method_not_allowed(&[Method::GET, Method::HEAD]));
    }
    let body = serde_json::json!({ "success": true, "message": "Operation successful", "data": "pong", "hint": null });
    Ok(json_response(StatusCode::OK, &body))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::harness::Harness;

    #[test]
    fn times_are_written_as_python_writes_them() {
        assert_eq!(naive("2026-11-20T22:43:29.216754Z".parse().unwrap()), "2026-11-20T22:43:29.216754");
        assert_eq!(naive("2026-11-20T22:43:29Z".parse().unwrap()), "2026-11-20T22:43:29.000000");
    }

    #[tokio::test]
    async fn bodies_begin_as_the_contracts_have_them() {
        let server = Harness::new().await;
        let healthz = server.call("GET", "/healthz", Value::Null).await;
        assert_eq!((healthz.status, healthz.text.as_str()), (200, "OK"));
        let health = server.call("GET", "/health", Value::Null).await;
        assert!(health.text.starts_with(r#"{"status":"healthy","timestamp":"2"#), "{}", health.text);
        let timestamp = health.json["timestamp"].as_str().unwrap();
        assert_eq!((timestamp.len(), timestamp.ends_with('Z')), (26, false), "{timestamp}");
        server.call("POST", "/api/v2/sandboxes", json!({})).await;
        let ready = server.call("GET", "/ready", Value::Null).await;
        let theirs = r#"{"status":"ready","tools_count":0,"active_workers":0,"total_sessions":0,"sandboxes":1,"#;
        assert!(ready.status == 200 && ready.text.starts_with(theirs), "{}", ready.text);
        server.engine.set_problems(&["the launcher hangs"]);
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        let not = server.call("GET", "/ready", Value::Null).await;
        let body = json!({ "ready": false, "status": "not_ready", "reasons": ["the launcher hangs"] });
        assert_eq!((not.status, &not.json), (503, &body));
        let info = server.call("GET", "/api/v2/info", Value::Null).await.json;
        assert_eq!(info["warnings"], json!(["the launcher hangs"]));
        server.engine.set_problems(&[]);
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        assert_eq!(server.call("GET", "/ready", Value::Null).await.status, 200);
        let head = server.call("HEAD", "/health", Value::Null).await;
        assert_eq!((head.status, head.headers["allow"].to_str().unwrap(), head.text.len()), (405, "GET", 31));
    }

    #[tokio::test]
    async fn usage_of_all_sandboxes_is_one_answer() {
        let server = Harness::new().await;
        assert_eq!(server.call("GET", "/api/v2/usage/live", Value::Null).await.json, json!({ "sandboxes": [], "left_out": 0 }));
        for name in ["a", "b"] {
            assert_eq!(server.call("POST", "/api/v2/sandboxes", json!({ "name": name })).await.status, 201);
        }
        assert_eq!(server.call("POST", "/api/v2/sandboxes/a/pause", json!({})).await.status, 200);
        let answer = server.call("GET", "/api/v2/usage/live", Value::Null).await.json;
        let mut found: Vec<_> =
            answer["sandboxes"].as_array().unwrap().iter().map(|s| (s["name"].clone(), s["state"].clone())).collect();
        found.sort_by_key(|(name, _)| name.to_string());
        assert_eq!(found, [(json!("a"), json!("paused")), (json!("b"), json!("running"))], "measuring wakes none");
        let first = &answer["sandboxes"][0];
        assert_eq!(
            (&first["usage"]["memory_bytes"], &first["calls"], &first["image"]),
            (&json!(1 << 20), &json!(0), &json!("base"))
        );
        assert!(first["usage"]["limits"]["memory_bytes"].as_u64() > Some(0), "{first}");
    }

    #[tokio::test]
    async fn metrics_tell_what_control_and_the_recorder_count() {
        let server = Harness::new().await;
        server.call("POST", "/api/v2/sandboxes", json!({})).await;
        let metrics = server.call("GET", "/metrics", Value::Null).await.text;
        for line in [
            "arenite_sandboxes{state=\"running\"} 1",
            "arenite_sandbox_creates_total{result=\"ok\"} 1",
            "arenite_trajectory_steps_finished_total 1",
        ] {
            assert!(metrics.lines().any(|l| l == line), "{line} in {metrics}");
        }
    }
}
