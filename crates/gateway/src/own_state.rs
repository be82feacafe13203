//! `/state` of a sandbox, for its dashboard: its state, its limits, and what it uses. Reading it neither resumes the sandbox nor
//! counts as its use, and is no step. So a page that reads it every few seconds changes nothing.
//!
//! The sandbox's own pages can read it too. It contains only what concerns this sandbox, and nothing that gives a right.

use arenite_control::{Deadline, Sandbox};
use arenite_engine::Usage;
use arenite_model::{IdlePolicy, ImageName, Resources, SandboxId, SandboxName, SandboxState, Tier};
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::exchange::{Answered, Exchange};
use crate::refusal::json_response;
use crate::target;

/// What a sandbox's dashboard shows of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OwnState {
    id: SandboxId,
    name: SandboxName,
    state: SandboxState,
    /// Why it is in this state.
    reason: Option<String>,
    image: ImageName,
    tier: Tier,
    created_at: Timestamp,
    state_since: Timestamp,
    expires_at: Option<Timestamp>,
    /// The next timeout.
    deadline: Option<Deadline>,
    idle_timeout_seconds: Option<u64>,
    idle_policy: IdlePolicy,
    limits: Resources,
    /// Null while it can't be measured.
    usage: Option<OwnUsage>,
    /// The server requires keys, so an address alone opens nothing.
    keys: bool,
}

/// What it uses.
#[derive(Debug, Serialize, ToSchema)]
struct OwnUsage {
    memory_bytes: u64,
    cpu_nanoseconds: u64,
    pids: u64,
    disk_bytes: Option<u64>,
}

impl From<Usage> for OwnUsage {
    fn from(usage: Usage) -> Self {
        Self {
            memory_bytes: usage.memory_bytes,
            cpu_nanoseconds: usage.cpu_nanoseconds,
            pids: usage.pids,
            disk_bytes: usage.disk_bytes,
        }
    }
}

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let target = exchange.target()?;
    let Exchange { gateway, context, .. } = exchange;
    let sandbox = target::look_up(&gateway.control, context, &target.sandbox_ref).await?;
    let usage = gateway.control.usage(context.tenant(), &sandbox.name).await.ok().map(OwnUsage::from);
    let deadline = gateway.control.next_deadline(context.tenant(), &sandbox.id);
    Ok(json_response(StatusCode::OK, &described(sandbox, deadline, usage, gateway.needs_credentials())))
}

fn described(sandbox: Sandbox, deadline: Option<Deadline>, usage: Option<OwnUsage>, keys: bool) -> OwnState {
    OwnState {
        tier: sandbox.spec.tier.unwrap_or_default(),
        id: sandbox.id,
        name: sandbox.name,
        state: sandbox.state,
        reason: sandbox.reason,
        image: sandbox.spec.image,
        created_at: sandbox.created_at,
        state_since: sandbox.state_since,
        expires_at: sandbox.expires_at,
        deadline,
        idle_timeout_seconds: sandbox.spec.idle_timeout_seconds,
        idle_policy: sandbox.spec.idle_policy,
        limits: sandbox.spec.resources,
        usage,
        keys,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::harness::Harness;

    #[tokio::test]
    async fn it_shows_this_sandbox_and_does_not_wake_it() {
        let server = Harness::new().await;
        let body = json!({ "name": "demo", "timeout_seconds": 3600, "env": { "SECRET": "hidden" }, "labels": { "team": "red" } });
        let id = server.call("POST", "/api/v2/sandboxes", body).await.json["id"].as_str().unwrap().to_owned();
        let host = format!("{id}.localhost");
        for (path, headers) in [("/sandbox/demo/state", vec![]), ("/state", vec![("host", host.as_str())])] {
            let answer = server.call_with("GET", path, &headers, json!(null)).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text);
            let state = &answer.json;
            assert_eq!((&state["name"], &state["state"], &state["id"]), (&json!("demo"), &json!("running"), &json!(id)));
            assert_eq!(state["deadline"]["action"], "delete");
            assert!(state["limits"]["memory_bytes"].is_u64() && state["usage"]["memory_bytes"].is_u64(), "{}", answer.text);
            assert_eq!(state["keys"], false);
            for hidden in ["hidden", "SECRET", "team"] {
                assert!(!answer.text.contains(hidden), "{hidden}");
            }
        }
        assert_eq!(server.call("POST", "/api/v2/sandboxes/demo/pause", json!({})).await.status, 200);
        let used = server.call("GET", "/api/v2/sandboxes/demo", json!(null)).await.json["last_used_at"].clone();
        assert_eq!(server.call("GET", "/sandbox/demo/state", json!(null)).await.json["state"], "paused");
        assert_eq!(server.call("GET", "/api/v2/sandboxes/demo", json!(null)).await.json["last_used_at"], used);
        // Another sandbox is none of this host's, and one that is gone has no state.
        let other =
            server.call("POST", "/api/v2/sandboxes", json!({ "name": "other" })).await.json["id"].as_str().unwrap().to_owned();
        let host = format!("{other}.localhost");
        let other = server.call_with("GET", "/sandbox/demo/state", &[("host", host.as_str())], json!(null)).await;
        assert_eq!(other.status, 404, "{}", other.text);
        assert_eq!(server.call("DELETE", "/api/v2/sandboxes/demo", json!(null)).await.status, 200);
        assert_eq!(server.call("GET", "/sandbox/demo/state", json!(null)).await.status, 404);
    }
}
