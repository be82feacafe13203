//! Changes of a sandbox that exists: its labels and times (`PATCH /api/v2/sandboxes/{name}`), its end (`…/extend`), and its state
//! (`…/reset`).
//!
//! Each answer with one sandbox has its version as `ETag`, and each change takes it as `If-Match`. The version counts changes by
//! these routes only: a pause, a call or an end is none.

use std::collections::BTreeMap;

use arenite_control::{ControlError, Sandbox, SandboxChange, TimeoutChange};
use arenite_model::{IdlePolicy, NetworkMode};
use axum::body::Body;
use http::header::{ETAG, IF_MATCH};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::{self, DIALECT, PATH};
use crate::exchange::{Answered, Exchange};
use crate::lifecycle::{self, Change, LifecycleCall};
use crate::network::NetworkRequest;
use crate::refusal::{Refusal, json_response};

/// The most versions in one `If-Match`.
const MAX_VERSIONS: usize = 16;

/// Changes of a sandbox. Absent fields stay as they are.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ChangeSandbox {
    /// Labels to set. A null removes one, and absent ones stay.
    labels: BTreeMap<String, Option<String>>,
    /// The lifetime in seconds from the creation on. 0 or null: unlimited, or the longest that the tenant may have.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    timeout_seconds: Option<Option<u64>>,
    /// The lifetime in seconds from now on, instead of `timeout_seconds`. Null: as 0 there.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    expires_in_seconds: Option<Option<u64>>,
    /// When its lifetime ends, likewise.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<Timestamp>)]
    expires_at: Option<Option<Timestamp>>,
    /// 0 or null: never.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    idle_timeout_seconds: Option<Option<u64>>,
    idle_policy: Option<IdlePolicy>,
    /// 0 or null: a frozen sandbox stays frozen.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    disk_after_seconds: Option<Option<u64>>,
    /// Whether a frozen sandbox is paused to its disk when the host is short of memory.
    disk_under_pressure: Option<bool>,
    /// What it may reach. A network can't be added or taken away: `none` is refused.
    network: Option<NetworkRequest>,
    /// Closes connections that the new `network` refuses. Others go on until they end.
    close_open: bool,
}

/// Adds to the lifetime of a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ExtendSandbox {
    /// The seconds to add, from 1 on.
    #[schema(required)]
    seconds: Option<u64>,
}

/// A field that is there, also if it is null.
pub(crate) fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl ChangeSandbox {
    fn change(self, versions: Option<Vec<String>>) -> Result<SandboxChange, Refusal> {
        let unlimited = TimeoutChange::Lifetime(0);
        let timeouts = [
            self.timeout_seconds.map(|seconds| TimeoutChange::Lifetime(seconds.unwrap_or(0))),
            self.expires_in_seconds.map(|seconds| seconds.map_or(unlimited, TimeoutChange::FromNow)),
            self.expires_at.map(|end| end.map_or(unlimited, TimeoutChange::Until)),
        ];
        let mut timeouts = timeouts.into_iter().flatten();
        let timeout = timeouts.next();
        if timeouts.next().is_some() {
            return Err(Refusal::bad_request("timeout_seconds, expires_in_seconds and expires_at exclude each other"));
        }
        let network_policy = match self.network.map(NetworkRequest::read).transpose()? {
            Some((NetworkMode::Open, policy)) => Some(policy),
            Some(_) => {
                return Err(Refusal::bad_request(
                    "network is none, and a sandbox keeps its network; use an allowlist without rules",
                ));
            }
            None => None,
        };
        Ok(SandboxChange {
            labels: self.labels,
            timeout,
            idle_timeout_seconds: self.idle_timeout_seconds.map(Option::unwrap_or_default),
            idle_policy: self.idle_policy,
            disk_after_seconds: self.disk_after_seconds.map(Option::unwrap_or_default),
            disk_under_pressure: self.disk_under_pressure,
            network_policy,
            close_open: self.close_open,
            versions,
        })
    }
}

/// The versions in `If-Match`; none: any.
pub(crate) fn versions(parts: &Parts) -> Result<Option<Vec<String>>, Refusal> {
    let invalid = || Refusal::bad_request(format!("If-Match is not *, or 1 to {MAX_VERSIONS} values of ETag"));
    let mut versions = Vec::new();
    for value in parts.headers.get_all(IF_MATCH) {
        for tag in value.to_str().map_err(|_| invalid())?.split(',').map(str::trim) {
            if tag == "*" {
                return Ok(None);
            }
            // A weak one matches nothing here, see RFC 9110, 13.1.1.
            let is_weak = tag.starts_with("W/");
            let opaque = tag.strip_prefix("W/").unwrap_or(tag);
            let version = opaque.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or_else(invalid)?;
            versions.push(if is_weak { String::new() } else { version.to_owned() });
        }
    }
    match versions.len() {
        0 => Ok(None),
        1..=MAX_VERSIONS => Ok(Some(versions)),
        _ => Err(invalid()),
    }
}

/// Adds the version of the sandbox or the annotation in an answer.
pub(crate) fn tagged(mut response: Response<Body>, body: &Value) -> Response<Body> {
    let tag = body["id"].as_str().zip(body["revision"].as_u64()).map(|(id, revision)| format!("\"{id}-{revision}\""));
    if let Some(Ok(tag)) = tag.map(HeaderValue::try_from) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

pub(crate) async fn change(exchange: &mut Exchange) -> Answered {
    // A caller without rights to it learns nothing about the request either.
    api::find(exchange).await?;
    let (change, arguments) = exchange.json::<ChangeSandbox>().await?;
    let change = change.change(versions(&exchange.parts)?)?;
    let name = api::named(exchange)?;
    let action = format!("PATCH {PATH}/sandboxes/{name}");
    make(exchange, action, arguments, Change::Set(change)).await
}

pub(crate) async fn extend(exchange: &mut Exchange) -> Answered {
    api::find(exchange).await?;
    let (ExtendSandbox { seconds }, arguments) = exchange.json().await?;
    let seconds = seconds.filter(|seconds| *seconds > 0).ok_or_else(|| Refusal::bad_request("seconds is missing, or 0"))?;
    let versions = versions(&exchange.parts)?;
    let change = SandboxChange { timeout: Some(TimeoutChange::Extend(seconds)), versions, ..SandboxChange::default() };
    let name = api::named(exchange)?;
    let action = format!("POST {PATH}/sandboxes/{name}/extend");
    make(exchange, action, arguments, Change::Extend(change)).await
}

async fn make(exchange: &Exchange, action: String, arguments: Value, change: Change) -> Answered {
    let call = LifecycleCall { dialect: DIALECT, action, arguments: Some(arguments) };
    let answer = api::shaped(exchange, StatusCode::OK);
    let (gateway, context) = (&exchange.gateway, &exchange.context);
    let (status, body) = lifecycle::change(gateway, context, call, api::named(exchange)?, change, answer).await?;
    Ok(tagged(json_response(status, &body), &body))
}

/// Refuses a change of a sandbox that has another version than `If-Match` names.
pub(crate) fn check_version(exchange: &Exchange, sandbox: &Sandbox) -> Result<(), Refusal> {
    match versions(&exchange.parts)?.is_some_and(|versions| !versions.contains(&sandbox.version())) {
        true => Err(ControlError::Changed { name: sandbox.name.clone(), version: sandbox.version() }.into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::harness::Harness;

    const ONE: &str = "/api/v2/sandboxes/one";

    #[tokio::test]
    async fn a_sandbox_is_changed_over_the_api_with_its_steps() {
        let server = Harness::new().await;
        let body = json!({ "name": "one", "labels": { "team": "a", "old": "x" }, "timeout_seconds": 600 });
        let created = server.call("POST", "/api/v2/sandboxes", body).await;
        let id = created.json["id"].as_str().unwrap().to_owned();
        let first = format!("\"{id}-1\"");
        assert_eq!((&created.json["revision"], &created.json["died"]), (&json!(1), &json!(null)));
        assert_eq!(created.headers["etag"], first);
        server.call("POST", &format!("{ONE}/pause"), Value::Null).await;

        let change = json!({ "labels": { "team": "b", "old": null }, "timeout_seconds": 900, "idle_timeout_seconds": 60, "idle_policy": "pause" });
        let changed = server.call("PATCH", ONE, change.clone()).await;
        assert_eq!((changed.status, &changed.json["state"]), (200, &json!("paused")), "{}", changed.text);
        let spec = &changed.json["spec"];
        assert_eq!(spec["labels"], json!({ "team": "b" }));
        assert_eq!(
            (&spec["timeout_seconds"], &spec["idle_timeout_seconds"], &spec["idle_policy"]),
            (&json!(900), &json!(60), &json!("pause"))
        );
        assert_eq!((&changed.json["revision"], changed.headers["etag"].to_str().unwrap()), (&json!(2), &*format!("\"{id}-2\"")));
        let got = server.call("GET", ONE, Value::Null).await;
        assert_eq!((got.headers["etag"].to_str().unwrap(), &got.json), (&*format!("\"{id}-2\""), &changed.json));

        let extended = server.call("POST", &format!("{ONE}/extend"), json!({ "seconds": 100 })).await;
        assert_eq!((extended.status, &extended.json["spec"]["timeout_seconds"]), (200, &json!(1000)), "{}", extended.text);
        let until = extended.json["expires_at"].clone();
        let unlimited = server.call("PATCH", ONE, json!({ "timeout_seconds": null, "idle_timeout_seconds": 0 })).await;
        assert_eq!(
            (&unlimited.json["expires_at"], &unlimited.json["spec"]["idle_timeout_seconds"]),
            (&json!(null), &json!(null))
        );
        let again = server.call("PATCH", ONE, json!({ "expires_at": until })).await;
        assert_eq!((&again.json["expires_at"], &again.json["spec"]["timeout_seconds"]), (&until, &json!(1000)));
        let none = server.call("PATCH", ONE, json!({})).await;
        assert_eq!((none.status, &none.json["revision"]), (200, &again.json["revision"]));

        let page = server.call("GET", &format!("/api/v1/trajectories/{id}"), Value::Null).await.json;
        let steps: Vec<_> = page["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| (step["action"].as_str().unwrap(), &step["arguments"]["json"]))
            .collect();
        assert_eq!(steps[2], ("PATCH /api/v2/sandboxes/one", &change));
        assert_eq!(steps[3], ("POST /api/v2/sandboxes/one/extend", &json!({ "seconds": 100 })));
        let events = server.call("GET", "/api/v2/events", Value::Null).await.json;
        let kinds: Vec<_> = events["events"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(&kinds[3..5], ["sandbox.extended", "sandbox.extended"]);
        assert!(!kinds.contains(&"sandbox.resumed"), "{kinds:?}");
    }

    #[tokio::test]
    async fn a_change_for_another_version_is_refused() {
        let server = Harness::new().await;
        let id = server.call("POST", "/api/v2/sandboxes", json!({ "name": "one" })).await.json["id"].as_str().unwrap().to_owned();
        let patch = async |tag: &str| {
            let body = json!({ "labels": { "tag": tag } });
            server.call_with("PATCH", ONE, &[("if-match", tag)], body).await
        };
        let of = |revision: u64| format!("\"{id}-{revision}\"");
        assert_eq!(patch(&of(1)).await.status, 200);
        for stale in [of(1), format!("W/{}", of(2)), "\"\"".to_owned(), "\"x\", \"y\"".to_owned()] {
            let refused = patch(&stale).await;
            assert_eq!(
                (refused.status, &refused.json["code"]),
                (412, &json!("precondition_failed")),
                "{stale}: {}",
                refused.text
            );
        }
        assert_eq!(patch(&format!("\"x\", {}", of(2))).await.status, 200);
        assert_eq!(patch("*").await.status, 200);
        for invalid in ["x", "\"", "", &vec!["\"x\""; 17].join(",")] {
            assert_eq!(patch(invalid).await.status, 400, "{invalid}");
        }
        let extend = server.call_with("POST", &format!("{ONE}/extend"), &[("if-match", &of(1))], json!({ "seconds": 1 })).await;
        assert_eq!(extend.status, 412);
        assert_eq!(server.call("GET", ONE, Value::Null).await.json["revision"], 4);
    }

    #[tokio::test]
    async fn bad_changes_are_refused_with_their_place() {
        let server = Harness::with(|control, _| control.tenant_limits.max_timeout_seconds = Some(1000)).await;
        let created = server.call("POST", "/api/v2/sandboxes", json!({ "name": "one" })).await.json;
        assert_eq!(created["spec"]["timeout_seconds"], 1000);
        for (body, word) in [
            (json!({ "labels": null }), "labels"),
            (json!({ "labels": { "": "x" } }), "labels"),
            (json!({ "labels": { "k": 1 } }), "labels.k"),
            (json!({ "timeout_seconds": -1 }), "timeout_seconds"),
            (json!({ "timeout_seconds": 5, "expires_at": null }), "exclude"),
            (json!({ "expires_at": "2001-01-01T00:00:00Z" }), "ended"),
            (json!({ "expires_in_seconds": 0 }), "ended"),
            (json!({ "expires_at": "soon" }), "expires_at"),
            (json!({ "idle_policy": "sleep" }), "idle_policy"),
            (json!({ "image": "base" }), "image"),
            (json!([]), "object"),
        ] {
            let refused = server.call("PATCH", ONE, body.clone()).await;
            assert_eq!((refused.status, &refused.json["code"]), (400, &json!("invalid_request")), "{body}: {}", refused.text);
            assert!(refused.json["message"].as_str().unwrap().contains(word), "{body}: {}", refused.text);
        }
        for body in [json!({}), json!({ "seconds": 0 }), json!({ "seconds": -1 }), json!({ "minutes": 1 })] {
            assert_eq!(server.call("POST", &format!("{ONE}/extend"), body).await.status, 400);
        }
        for (method, path, body) in [
            ("POST", "/api/v2/sandboxes", json!({ "timeout_seconds": 1001 })),
            ("PATCH", ONE, json!({ "timeout_seconds": 1001 })),
            ("POST", &format!("{ONE}/extend"), json!({ "seconds": 1 })),
        ] {
            let refused = server.call(method, path, body).await;
            assert_eq!((refused.status, &refused.json["code"]), (403, &json!("quota_exceeded")), "{}", refused.text);
            assert_eq!(refused.json["quota"]["limit"], 1000);
        }
        let missing = server.call("PATCH", "/api/v2/sandboxes/two", json!({ "nothing": 1 })).await;
        assert_eq!((missing.status, &missing.json["code"]), (404, &json!("not_found")));
    }

    #[tokio::test]
    async fn a_reset_is_checked_and_unsupported() {
        let server = Harness::new().await;
        server.call("POST", "/api/v2/sandboxes", json!({ "name": "one" })).await;
        server.call("POST", &format!("{ONE}/pause"), Value::Null).await;
        for body in [Value::Null, json!({ "snapshot": "clean" })] {
            let refused = server.call("POST", &format!("{ONE}/reset"), body).await;
            assert_eq!((refused.status, &refused.json["code"]), (501, &json!("unsupported")), "{}", refused.text);
            assert!(refused.json["hint"].is_string());
        }
        assert_eq!(server.call("POST", &format!("{ONE}/reset"), json!({ "to": "x" })).await.status, 400);
        assert_eq!(server.call("POST", "/api/v2/sandboxes/two/reset", Value::Null).await.status, 404);
        assert_eq!(server.call("GET", ONE, Value::Null).await.json["state"], "paused");
    }

    #[tokio::test]
    async fn an_end_says_why() {
        let server = Harness::new().await;
        let created = server.call("POST", "/api/v2/sandboxes", json!({ "name": "one" })).await.json;
        server.engine.end(&created["id"].as_str().unwrap().parse().unwrap(), "its guest crashed with SIGSEGV");
        let died = async || server.call("GET", ONE, Value::Null).await.json["died"].take();
        let died = tokio::time::timeout(Duration::from_secs(5), async {
            loop {
                match died().await {
                    Value::Null => tokio::task::yield_now().await,
                    died => return died,
                }
            }
        });
        let died = died.await.unwrap();
        assert_eq!((&died["reason"], &died["message"]), (&json!("guest_failed"), &json!("its guest crashed with SIGSEGV")));
        server.call("DELETE", ONE, Value::Null).await;
        let events = server.call("GET", "/api/v2/events?type=sandbox.died,sandbox.deleted", Value::Null).await.json;
        let told: Vec<_> = events["events"].as_array().unwrap().iter().map(|event| &event["died"]).collect();
        assert_eq!(told, [&died, &died]);
    }
}
