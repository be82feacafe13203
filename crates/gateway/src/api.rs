//! `/api/v2`: Arenite's own control API, for the `arenite` command and the console.
//!
//! ```text
//! GET    /api/v2/info                      {name, version, engine, uptime_seconds, capacity, warnings}
//! GET    /api/v2/workers                   {workers: [{worker_id, sessions: [as session/list]}]}: AgentFlow's
//! GET    /api/v2/corpora, /api/v2/corpora/{name}, POST …/search    see [`crate::corpora`]
//! GET    /api/v2/templates                 {templates: [{name, description, services, spec}]}
//! GET    /api/v2/images                    {images: [{name, digest, size_bytes, created_at, layers, labels}]}
//! GET    /api/v2/sandboxes                 {sandboxes: [Sandbox]}, the oldest first
//! POST   /api/v2/sandboxes                 Create → 201 Sandbox, with Location
//! GET    /api/v2/sandboxes/{name}          Sandbox
//! DELETE /api/v2/sandboxes/{name}          {name, id, deleted: true}
//! POST   /api/v2/sandboxes/{name}/pause    Sandbox; succeeds for a paused one
//! POST   /api/v2/sandboxes/{name}/resume   Sandbox; succeeds for a running one
//! POST   /api/v2/sandboxes/{name}/start    Sandbox; runs a failed or lost one again on its disk; succeeds for a running one
//! GET    /api/v2/sandboxes/{name}/usage    {memory_bytes, cpu_nanoseconds, pids, disk_bytes?, oom_kills?, limits}
//! GET    /api/v2/sandboxes/{name}/steps    as a trajectory's, below
//! GET    /api/v2/sandboxes?follow=true     events: `change` {name, id, state}, state null when it was deleted
//! GET    /api/v2/sandboxes/{name}/logs     text: the main command's output, empty without one
//! GET    /api/v2/quarantine                {quarantine: [{id, name, reason, since, processes, has_disk, disk_bytes, has_record}]}
//! POST   /api/v2/quarantine/{id}/adopt     {name?} → Sandbox: lost when it has no usable record; see [`crate::quarantine`]
//! DELETE /api/v2/quarantine/{id}           {id, deleted: true}
//!
//! Create   {name?, template?, image?, args?, env?, workdir?, hostname?, labels?, network?: "none"|"open", ports?,
//!           volumes?: [{name, path, read_only?}],
//!           resources?: {memory_bytes?, cpu_millis?, pids?, disk_bytes?, shm_bytes?},
//!           timeout_seconds?, idle_timeout_seconds? (0: never), idle_policy?: "delete"|"pause"}
//! Sandbox  {id, name, state, reason, template, spec, isolation, origin, created_at, last_used_at, state_since,
//!           expires_at, deadline: {at, reason: "timeout"|"idle"|"kept", action: "delete"|"pause"}, stages: [{name, ms}],
//!           urls: {path, host}}
//! refusals {code, message, hint}, 429 with Retry-After
//! ```
//!
//! Without a name, a sandbox is named by its id. A create of an existing name is refused (409), so a client that repeats one
//! creates no second sandbox. A delete of a missing one is refused (404). Fields that are not listed are refused.
//!
//! `/api/v1/trajectories` belongs to the same API, see [`crate::trajectories`]:
//!
//! ```text
//! GET /api/v1/trajectories?worker=&task=          {trajectories: [{trajectory, sandbox_name, worker?, task?, first_at, last_at,
//!                                                  steps, bytes, ended}]}
//! GET /api/v1/trajectories/{id}/export?format=&origin=&result=    a file, see [`arenite_trajectory::Format`]; jsonl without one
//! GET /api/v1/trajectories/{id}?after=&limit=&origin=&result=     {trajectory, steps: [Step], next_after}
//! GET /api/v1/trajectories/{id}/sessions          {trajectory, sessions: [SessionEvent]}
//! GET /api/v1/trajectories/{id}/verify            [`arenite_trajectory::Verification`]
//! GET /api/v1/trajectories/{id}?format=jsonl      one Step a line; with bodies=inline also large bodies
//! GET /api/v1/trajectories/{id}/blobs/{blake3}    the bytes of a large body
//! GET /api/v1/trajectories/{id}/steps/{n}/observation, …/arguments    the bytes, wherever they are stored
//! GET /api/v1/trajectories/{id}?follow=true&after=&tail=    events, see [`crate::follow`]; `tail`: at most this many past steps
//! GET /steps, /sandbox/{name}/steps, and on a sandbox's own host    the same of that sandbox
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_control::{CreateRequest, ResourcesOverlay, Sandbox, SpecOverlay};
use arenite_model::{ErrorCode, IdlePolicy, ImageName, NetworkMode, SandboxName, VolumeMount};
use axum::body::Body;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::auth::Identity;
use crate::gateway::{Context, Gateway};
use crate::lifecycle::{self, LifecycleCall, Transition};
use crate::proxy::{self, InternalAnswer};
use crate::refusal::{Refusal, json_response};
use crate::request::require;
use crate::{corpora, follow, quarantine, trajectories};

pub(crate) const PATH: &str = "/api/v2";
pub(crate) const DIALECT: &str = "api";
/// Largest body, in bytes: far above what a spec's own limits allow.
pub(crate) const MAX_BODY: usize = 1 << 20;
/// The guest's route to the main command's output.
const MAIN_LOG: &str = "/v1/file/download?path=/var/log/arenite/main.log";
/// Labels of one sandbox, and the bytes of a label's key and value together.
const MAX_LABELS: usize = 64;
const MAX_LABEL_BYTES: usize = 1024;

/// A request for a sandbox, as described above.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Create {
    name: Option<SandboxName>,
    template: Option<String>,
    image: Option<ImageName>,
    args: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    workdir: Option<String>,
    hostname: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    resources: Option<ResourcesOverlay>,
    network: Option<NetworkMode>,
    volumes: Option<Vec<VolumeMount>>,
    ports: Option<Vec<u16>>,
    timeout_seconds: Option<u64>,
    idle_timeout_seconds: Option<u64>,
    idle_policy: Option<IdlePolicy>,
}

impl Create {
    fn request(self) -> Result<CreateRequest, Refusal> {
        let labels = self.labels.iter().flatten();
        if labels.clone().count() > MAX_LABELS {
            return Err(Refusal::bad_request(format!("labels: give at most {MAX_LABELS}")));
        }
        if let Some((key, _)) = labels.clone().find(|(k, v)| k.is_empty() || k.len() + v.len() > MAX_LABEL_BYTES) {
            let key: String = key.chars().take(80).collect();
            return Err(Refusal::bad_request(format!(
                "labels: {key:?} is not valid: a key is not empty, and with its value at most {MAX_LABEL_BYTES} bytes"
            )));
        }
        Ok(CreateRequest {
            name: self.name,
            template: self.template,
            spec: SpecOverlay {
                image: self.image,
                args: self.args,
                env: self.env,
                workdir: self.workdir,
                hostname: self.hostname,
                resources: self.resources.unwrap_or_default(),
                network: self.network,
                volumes: self.volumes,
                ports: self.ports,
                timeout_seconds: self.timeout_seconds,
                idle_timeout_seconds: self.idle_timeout_seconds,
                idle_policy: self.idle_policy,
                labels: self.labels,
            },
            origin: DIALECT.to_owned(),
        })
    }
}

/// A body without fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Nothing {}

pub(crate) async fn serve(
    gateway: &Arc<Gateway>,
    context: &Context,
    who: &Identity,
    path: &str,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    let rest = path.strip_prefix(PATH).unwrap_or(path);
    let segments: Vec<&str> = rest.split('/').filter(|s| !s.is_empty()).collect();
    match segments[..] {
        ["info"] => {
            read_only(parts)?;
            info(gateway).await
        }
        ["workers"] => {
            read_only(parts)?;
            Ok(json_response(StatusCode::OK, &gateway.synthesis()?.overview(&context.tenant)))
        }
        ["quarantine", ref rest @ ..] => quarantine::serve(gateway, context, who, rest, parts, body).await,
        ["corpora", ref rest @ ..] => corpora::serve(gateway, rest, parts, body).await,
        ["templates"] => {
            read_only(parts)?;
            Ok(json_response(StatusCode::OK, &json!({ "templates": gateway.control.templates() })))
        }
        ["images"] => {
            read_only(parts)?;
            images(gateway).await
        }
        ["sandboxes"] => {
            require(parts, &[Method::GET, Method::HEAD, Method::POST])?;
            match parts.method {
                Method::POST => create(gateway, context, body).await,
                _ if follow::is_wanted(parts) => Ok(follow::changes(gateway, context.tenant.clone())),
                _ => list(gateway, context).await,
            }
        }
        ["sandboxes", name] => {
            require(parts, &[Method::GET, Method::HEAD, Method::DELETE])?;
            let name = sandbox_name(name)?;
            match parts.method {
                Method::DELETE => delete(gateway, context, name).await,
                _ => {
                    let sandbox = gateway.control.get(&context.tenant, &name).await?;
                    Ok(json_response(StatusCode::OK, &shape(gateway, context, sandbox)))
                }
            }
        }
        ["sandboxes", name, verb @ ("pause" | "resume" | "start")] => {
            require(parts, &[Method::POST])?;
            let name = sandbox_name(name)?;
            read_json::<Nothing>(body).await?;
            transition(gateway, context, name, verb).await
        }
        ["sandboxes", name, "usage"] => {
            read_only(parts)?;
            usage(gateway, context, sandbox_name(name)?).await
        }
        ["sandboxes", name, "steps", ref rest @ ..] => {
            read_only(parts)?;
            let sandbox = gateway.control.get(&context.tenant, &sandbox_name(name)?).await?;
            let rest: Vec<String> = rest.iter().map(|&segment| segment.to_owned()).collect();
            trajectories::of_sandbox(gateway, context, sandbox.id.to_string(), &rest, parts).await
        }
        ["sandboxes", name, "logs"] => {
            read_only(parts)?;
            logs(gateway, context, sandbox_name(name)?).await
        }
        _ => Err(Refusal::not_found(format!("there is no {PATH}{rest}")).hint(
            "there are info, templates, images, corpora, workers, quarantine, sandboxes and sandboxes/{name}/{pause,resume,start,usage,logs,steps}",
        )),
    }
}

pub(crate) fn read_only(parts: &Parts) -> Result<(), Refusal> {
    require(parts, &[Method::GET, Method::HEAD])
}

fn sandbox_name(text: &str) -> Result<SandboxName, Refusal> {
    text.parse().map_err(|error: arenite_model::IdError| Refusal::bad_request(error.to_string()))
}

/// Reads a JSON body; an empty one means an object without fields. Errors name the position.
pub(crate) async fn read_json<T: DeserializeOwned + Default>(body: Body) -> Result<(T, Value), Refusal> {
    let bytes = read(body).await?;
    if bytes.trim_ascii().is_empty() {
        return Ok((T::default(), json!({})));
    }
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| Refusal::bad_request(format!("the body is not JSON: {e}")))?;
    if !value.is_object() {
        return Err(Refusal::bad_request("the body is not a JSON object"));
    }
    let read = serde_path_to_error::deserialize(&value).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.into_inner());
        Refusal::bad_request(if path == "." { inner.to_string() } else { format!("{path}: {inner}") })
    })?;
    Ok((read, value))
}

/// Reads a whole body up to its limit.
pub(crate) async fn read(body: Body) -> Result<bytes::Bytes, Refusal> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(Refusal::new(ErrorCode::TooLarge, format!("the body is larger than {MAX_BODY} bytes")))
        }
        Err(error) => Err(Refusal::bad_request(format!("the body broke off: {error}"))),
    }
}

async fn info(gateway: &Arc<Gateway>) -> Result<Response<Body>, Refusal> {
    let engine = gateway.control.engine();
    let capacity = engine.capacity().await.ok();
    let mut warnings: Vec<String> = gateway.config.warnings.iter().cloned().chain(gateway.control.warnings()).collect();
    warnings.extend(gateway.control.problems().await.iter().cloned());
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "name": "arenite",
            "version": env!("CARGO_PKG_VERSION"),
            "engine": engine.name(),
            "uptime_seconds": gateway.started.elapsed().as_secs(),
            "capacity": capacity,
            "warnings": warnings,
        }),
    ))
}

/// Reads files, so it runs off the async threads.
async fn images(gateway: &Arc<Gateway>) -> Result<Response<Body>, Refusal> {
    let Some(catalog) = gateway.config.images.clone() else {
        return Err(Refusal::new(ErrorCode::Unsupported, "this server's engine keeps no list of images"));
    };
    let listed = tokio::task::spawn_blocking(move || catalog.list()).await.unwrap_or_else(|error| Err(error.to_string()));
    match listed {
        Ok(images) => Ok(json_response(StatusCode::OK, &json!({ "images": images }))),
        Err(error) => {
            tracing::error!(error, "images could not be listed");
            Err(Refusal::new(ErrorCode::Internal, "the images could not be listed; the server's log says why"))
        }
    }
}

async fn list(gateway: &Arc<Gateway>, context: &Context) -> Result<Response<Body>, Refusal> {
    let all = gateway.control.list(&context.tenant).await?;
    let all: Vec<Value> = all.into_iter().map(|sandbox| shape(gateway, context, sandbox)).collect();
    Ok(json_response(StatusCode::OK, &json!({ "sandboxes": all })))
}

async fn create(gateway: &Arc<Gateway>, context: &Context, body: Body) -> Result<Response<Body>, Refusal> {
    let (create, arguments) = read_json::<Create>(body).await?;
    let request = create.request()?;
    let call = LifecycleCall { dialect: DIALECT, action: format!("POST {PATH}/sandboxes"), arguments: Some(arguments) };
    let answer = {
        let (gateway, context) = (Arc::clone(gateway), context.clone());
        move |sandbox| (StatusCode::CREATED, shape(&gateway, &context, sandbox))
    };
    let (status, sandbox) = lifecycle::create(gateway, context, call, request, answer).await?;
    let mut response = json_response(status, &sandbox);
    let name = sandbox["name"].as_str().unwrap_or_default();
    if let Ok(location) = HeaderValue::from_str(&format!("{PATH}/sandboxes/{name}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

async fn delete(gateway: &Arc<Gateway>, context: &Context, name: SandboxName) -> Result<Response<Body>, Refusal> {
    let call = LifecycleCall { dialect: DIALECT, action: format!("DELETE {PATH}/sandboxes/{name}"), arguments: None };
    let answer = |sandbox: Sandbox| (StatusCode::OK, json!({ "name": sandbox.name, "id": sandbox.id, "deleted": true }));
    let (status, body) = lifecycle::delete(gateway, context, call, name, answer).await?;
    Ok(json_response(status, &body))
}

async fn transition(gateway: &Arc<Gateway>, context: &Context, name: SandboxName, verb: &str) -> Result<Response<Body>, Refusal> {
    let call = LifecycleCall { dialect: DIALECT, action: format!("POST {PATH}/sandboxes/{name}/{verb}"), arguments: None };
    let way = match verb {
        "pause" => Transition::Pause,
        "resume" => Transition::Resume,
        _ => Transition::Start,
    };
    let answer = {
        let (gateway, context) = (Arc::clone(gateway), context.clone());
        move |sandbox| (StatusCode::OK, shape(&gateway, &context, sandbox))
    };
    let (status, body) = lifecycle::transition(gateway, context, call, name, way, answer).await?;
    Ok(json_response(status, &body))
}

async fn usage(gateway: &Arc<Gateway>, context: &Context, name: SandboxName) -> Result<Response<Body>, Refusal> {
    let usage = gateway.control.usage(&context.tenant, &name).await?;
    let limits = gateway.control.get(&context.tenant, &name).await?.spec.resources;
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "memory_bytes": usage.memory_bytes,
            "cpu_nanoseconds": usage.cpu_nanoseconds,
            "pids": usage.pids,
            "disk_bytes": usage.disk_bytes,
            "oom_kills": usage.oom_kills,
            "limits": limits,
        }),
    ))
}

/// The main command's output, as the guest keeps it. Resumes a paused sandbox, because its guest reads the file.
async fn logs(gateway: &Arc<Gateway>, context: &Context, name: SandboxName) -> Result<Response<Body>, Refusal> {
    // A lease would create the sandbox `default`.
    gateway.control.get(&context.tenant, &name).await?;
    let lease = gateway.control.lease(&context.tenant, &name).await?;
    let (link, answer) = proxy::internal_get(gateway, &lease.sandbox.id, MAIN_LOG).await?;
    let body = match answer.status() {
        StatusCode::OK => {
            let answer = InternalAnswer::new(link, answer.into_body());
            let pieces = futures_util::stream::unfold((answer, lease), |(mut answer, lease)| async move {
                Some((answer.next().await?, (answer, lease)))
            });
            Body::from_stream(pieces)
        }
        StatusCode::NOT_FOUND => Body::empty(),
        other => {
            return Err(Refusal::new(
                ErrorCode::SandboxFailed,
                format!("the guest of sandbox {name} answered {} for its log", other.as_u16()),
            ));
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    // Output of a sandbox must not become a page of this server.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    Ok(response)
}

/// A sandbox in the form of this API.
pub(crate) fn shape(gateway: &Gateway, context: &Context, sandbox: Sandbox) -> Value {
    let stages: Vec<Value> = sandbox.stages.iter().map(|(name, ms)| json!({ "name": name, "ms": ms })).collect();
    let urls = urls(gateway, context, &sandbox);
    json!({
        "id": sandbox.id,
        "name": sandbox.name,
        "state": sandbox.state,
        "reason": sandbox.reason,
        "template": sandbox.template,
        "spec": sandbox.spec,
        "isolation": sandbox.isolation,
        "origin": sandbox.origin,
        "created_at": sandbox.created_at,
        "last_used_at": sandbox.last_used_at,
        "state_since": sandbox.state_since,
        "expires_at": sandbox.expires_at,
        "deadline": gateway.control.next_deadline(&sandbox.id),
        "stages": stages,
        "urls": urls,
    })
}

/// The addresses of its services: `path` below this server's own address, `host` on its own origin.
pub(crate) fn urls(gateway: &Gateway, context: &Context, sandbox: &Sandbox) -> Value {
    let base = context.base_url.as_str();
    json!({
        "path": format!("{base}/sandbox/{}/", sandbox.name),
        "host": own_host(base, gateway.config.domain.as_deref(), sandbox.id.as_str()),
    })
}

/// The sandbox's own host. A client on this machine gets a name that resolves there whatever the domain is.
fn own_host(base: &str, domain: Option<&str>, id: &str) -> String {
    let (scheme, authority) = base.split_once("://").unwrap_or(("http", base));
    // The colons of a bracketed address don't separate a port.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, format!(":{port}")),
        _ => (authority, String::new()),
    };
    let local = host == "localhost" || host.starts_with("127.") || host == "[::1]" || host.ends_with(".localhost");
    match domain {
        Some(domain) if !local => format!("{scheme}://{id}.{domain}{port}/"),
        _ => format!("{scheme}://{id}.localhost{port}/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Harness;

    #[tokio::test]
    async fn a_sandboxs_life_over_the_api() {
        let server = Harness::new().await;
        let body = json!({
            "name": "demo", "env": {"A": "b=c"}, "args": ["sleep", "9"], "network": "none", "timeout_seconds": 3600,
            "resources": {"memory_bytes": 1u64 << 30, "cpu_millis": 500}, "labels": {"k": "v"}, "idle_policy": "pause",
        });
        let made = server.call("POST", "/api/v2/sandboxes", body.clone()).await;
        assert_eq!(made.status, 201, "{}", made.text);
        assert_eq!(made.headers[LOCATION], "/api/v2/sandboxes/demo");
        let sandbox = &made.json;
        let id = sandbox["id"].as_str().unwrap().to_owned();
        assert_eq!(
            (&sandbox["name"], &sandbox["state"], &sandbox["template"], &sandbox["reason"], &sandbox["origin"]),
            (&json!("demo"), &json!("running"), &json!("default"), &json!(null), &json!("api"))
        );
        assert_eq!(
            sandbox["urls"],
            json!({ "path": "http://127.0.0.1:8080/sandbox/demo/", "host": format!("http://{id}.localhost:8080/") })
        );
        assert!(sandbox["stages"].as_array().unwrap().iter().all(|s| s["name"].is_string() && s["ms"].is_number()));
        let spec = &sandbox["spec"];
        assert_eq!((&spec["network"], &spec["env"], &spec["args"]), (&json!("none"), &body["env"], &body["args"]));
        assert_eq!((&spec["resources"]["memory_bytes"], &spec["resources"]["cpu_millis"]), (&json!(1 << 30), &json!(500)));
        assert_eq!((&spec["timeout_seconds"], &spec["idle_timeout_seconds"]), (&json!(3600), &json!(null)));

        let got = server.call("GET", "/api/v2/sandboxes/demo", Value::Null).await.json;
        let list = server.call("GET", "/api/v2/sandboxes", Value::Null).await.json;
        assert_eq!(list["sandboxes"], json!([got]));
        for (verb, state) in [("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("resume", "running")] {
            let changed = server.call("POST", &format!("/api/v2/sandboxes/demo/{verb}"), json!({})).await;
            assert_eq!((changed.status, &changed.json["state"]), (200, &json!(state)));
        }
        let usage = server.call("GET", "/api/v2/sandboxes/demo/usage", Value::Null).await.json;
        assert!(usage["memory_bytes"].is_number() && usage["cpu_nanoseconds"].is_number(), "{usage}");

        let again = server.call("POST", "/api/v2/sandboxes", json!({ "name": "demo" })).await;
        assert_eq!((again.status, &again.json["code"]), (409, &json!("already_exists")));
        let deleted = server.call("DELETE", "/api/v2/sandboxes/demo", Value::Null).await;
        assert_eq!((deleted.status, deleted.json), (200, json!({ "name": "demo", "id": id, "deleted": true })));
        let gone = server.call("DELETE", "/api/v2/sandboxes/demo", Value::Null).await;
        assert_eq!((gone.status, &gone.json["code"]), (404, &json!("not_found")));
        assert!(gone.json["message"].is_string() && gone.json["hint"].is_string());

        // Everything is in the sandbox's own trajectory, which has ended.
        let list = server.call("GET", "/api/v1/trajectories", Value::Null).await.json;
        assert_eq!((&list["trajectories"][0]["trajectory"], &list["trajectories"][0]["ended"]), (&json!(id), &json!(true)));
        let page = server.call("GET", &format!("/api/v1/trajectories/{id}"), Value::Null).await.json;
        let steps = page["steps"].as_array().unwrap();
        let actions: Vec<_> = steps.iter().map(|s| s["action"].as_str().unwrap()).collect();
        assert_eq!(actions[0], "POST /api/v2/sandboxes");
        assert_eq!(actions[1], "POST /api/v2/sandboxes/demo/pause");
        assert_eq!(*actions.last().unwrap(), "DELETE /api/v2/sandboxes/demo");
        assert!(steps.iter().all(|s| s["outcome"] == "ok" && s["dialect"] == "api"), "{steps:?}");
        assert_eq!((&steps[0]["arguments"]["json"], &steps[0]["status"]), (&body, &json!(201)));
        assert_eq!(steps[0]["observation"]["json"], made.json);
    }

    #[tokio::test]
    async fn what_is_not_understood_is_refused_with_its_place() {
        let server = Harness::new().await;
        for (body, word) in [
            (json!({ "nmae": "x" }), "nmae"),
            (json!({ "name": "No" }), "sandbox name"),
            (json!({ "resources": { "memory": 1 } }), "resources"),
            (json!({ "resources": { "memory_bytes": "1Gi" } }), "resources.memory_bytes"),
            (json!({ "resources": { "memory_bytes": 1 } }), "memory_bytes"),
            (json!({ "network": "host" }), "network"),
            (json!({ "ports": [70000] }), "ports"),
            (json!({ "workdir": "here" }), "workdir"),
            (json!({ "env": { "A B": "1" } }), "env"),
            (json!({ "labels": { "": "1" } }), "labels"),
            (json!([]), "object"),
            (json!("{"), "object"),
        ] {
            let answer = server.call("POST", "/api/v2/sandboxes", body.clone()).await;
            assert_eq!((answer.status, &answer.json["code"]), (400, &json!("invalid_request")), "{body}: {}", answer.text);
            assert!(answer.json["message"].as_str().unwrap().contains(word), "{body}: {}", answer.text);
        }
        let answer = server.bytes("POST", "/api/v2/sandboxes", b"{".to_vec()).await;
        assert_eq!(answer.status, 400);
        let answer = server.bytes("POST", "/api/v2/sandboxes", vec![b' '; MAX_BODY + 1]).await;
        assert_eq!((answer.status, &answer.json["code"]), (413, &json!("too_large")));
        let answer = server.call("POST", "/api/v2/sandboxes", json!({ "template": "nothing" })).await;
        assert_eq!(answer.status, 404);
        assert_eq!(answer.json["hint"], "known templates: aio, default");
        let answer = server.call("PUT", "/api/v2/sandboxes", Value::Null).await;
        assert_eq!((answer.status, answer.headers["allow"].to_str().unwrap()), (405, "GET, HEAD, POST"));
        assert_eq!(server.call("GET", "/api/v2/nothing", Value::Null).await.status, 404);
        assert_eq!(server.call("GET", "/api/v2/sandboxes", Value::Null).await.json, json!({ "sandboxes": [] }));
    }

    #[tokio::test]
    async fn a_full_server_says_when_to_come_back() {
        let server = Harness::with(|control, _| control.limits.max_sandboxes = 1).await;
        // Without a name, it is named by its id.
        let first = server.bytes("POST", "/api/v2/sandboxes", Vec::new()).await;
        assert_eq!((first.status, &first.json["name"]), (201, &first.json["id"]));
        let full = server.call("POST", "/api/v2/sandboxes", json!({})).await;
        assert_eq!((full.status, &full.json["code"]), (429, &json!("exhausted")));
        assert!(full.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() > 0);
    }

    #[tokio::test]
    async fn the_server_tells_of_itself() {
        let server = Harness::with(|_, gateway| gateway.warnings.push("swap is on".to_owned())).await;
        let info = server.call("GET", "/api/v2/info", Value::Null).await.json;
        assert_eq!((&info["name"], &info["warnings"]), (&json!("arenite"), &json!(["swap is on"])));
        assert!(info["engine"].is_string() && info["version"].is_string());
        let templates = server.call("GET", "/api/v2/templates", Value::Null).await.json;
        assert_eq!(templates["templates"][0]["name"], "aio");
        assert!(templates["templates"][0]["spec"]["image"].is_string());
        assert_eq!(server.call("GET", "/api/v2/images", Value::Null).await.status, 501);
    }

    #[test]
    fn a_sandboxs_own_host_resolves_for_whoever_asks() {
        for (base, domain, expected) in [
            ("http://127.0.0.1:8080", None, "http://s1.localhost:8080/"),
            ("http://localhost", None, "http://s1.localhost/"),
            ("http://[::1]:8080", Some("box.example"), "http://s1.localhost:8080/"),
            ("http://[::1]", Some("box.example"), "http://s1.localhost/"),
            ("https://box.example", Some("box.example"), "https://s1.box.example/"),
            ("http://box.example:81", Some("box.example"), "http://s1.box.example:81/"),
        ] {
            assert_eq!(own_host(base, domain, "s1"), expected);
        }
    }
}
