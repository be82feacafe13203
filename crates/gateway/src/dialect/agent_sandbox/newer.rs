//! Sandboxes and creates in the form of Agent-Sandbox 0.8, for clients that ask for it by the header `x-agent-sandbox-version`, and
//! for all if the server is configured so.
//!
//! Known differences: `autoPause` pauses a sandbox that nobody calls for its `timeout`, and such a sandbox has no other end;
//! `autoResume` can't be off, because a call always resumes a paused sandbox; `idle_timeout` ends a sandbox and `autoPause` makes
//! it pause. `port` is one of the sandbox's ports. Times of 0 mean the default, and -1 means none.

use std::collections::BTreeMap;
use std::str::FromStr;

use arenite_control::{CreateRequest, ResourcesOverlay, Sandbox, SpecOverlay};
use arenite_model::{IdlePolicy, ImageName, SandboxName, SandboxState};
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    AIO, Amounts, CUSTOM, DIALECT, LABEL_APP, LABEL_CPU, LABEL_CPU_LIMIT, LABEL_ENVIRONMENT, LABEL_MEMORY, LABEL_MEMORY_LIMIT,
    MAX_APP, amounts, given,
};
use crate::api;
use crate::gateway::{Context, Gateway};
use crate::refusal::Refusal;

const HEADER: &str = "x-agent-sandbox-version";
const CPU: &str = "50m";
const MEMORY: &str = "100Mi";
const CPU_LIMIT: &str = "2000m";
const MEMORY_LIMIT: &str = "4000Mi";
/// Seconds.
const TIMEOUT: u64 = 1_800;
const MAX_TIMEOUT: u64 = 86_400;
const MAX_IDLE_TIMEOUT: u64 = 3_000;
const LABEL_PREFIX: &str = "agent_sandbox.";
const LABEL_PORT: &str = "agent_sandbox.port";
const LABEL_AUTO_PAUSE: &str = "agent_sandbox.auto_pause";
/// The most entries of `metadata`, and the bytes of one with its key.
const MAX_METADATA: usize = 48;
const MAX_METADATA_BYTES: usize = 1_024;

/// The version of Agent-Sandbox that a client expects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AgentSandboxVersion {
    /// 0.1.0, the first.
    #[default]
    First,
    /// 0.8.
    Newer,
}

impl FromStr for AgentSandboxVersion {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().trim_start_matches('v') {
            "0.1" | "0.1.0" => Ok(Self::First),
            "0.8" | "0.8.0" | "0.8.1" => Ok(Self::Newer),
            _ => Err(format!(
                "{:?} is no version of Agent-Sandbox that is served: 0.1 or 0.8",
                text.chars().take(20).collect::<String>()
            )),
        }
    }
}

/// The version that the request names, otherwise the server's.
pub(super) fn version(headers: &HeaderMap, configured: AgentSandboxVersion) -> Result<AgentSandboxVersion, Refusal> {
    match headers.get(HEADER) {
        None => Ok(configured),
        Some(value) => {
            let text = value.to_str().map_err(|_| Refusal::bad_request(format!("the header {HEADER} is no text")))?;
            text.parse().map_err(|error| Refusal::bad_request(format!("{HEADER}: {error}")))
        }
    }
}

/// A request of version 0.8. `null` leaves a field unset, and so does empty text.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = AgentSandboxNewerRequest)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NewerCreate {
    pub(super) name: Option<String>,
    pub(super) template: Option<String>,
    image: Option<String>,
    app: Option<String>,
    /// Replaces the image's command.
    cmd: Option<String>,
    args: Option<Vec<String>>,
    #[serde(rename = "envVars")]
    env_vars: Option<BTreeMap<String, String>>,
    metadata: Option<BTreeMap<String, String>>,
    /// Seconds; -1: none.
    timeout: Option<i64>,
    /// Seconds; -1: none.
    idle_timeout: Option<i64>,
    #[serde(rename = "autoPause")]
    auto_pause: Option<bool>,
    #[serde(rename = "autoResume")]
    auto_resume: Option<bool>,
    port: Option<u16>,
    workdir: Option<String>,
    cpu: Option<String>,
    memory: Option<String>,
    cpu_limit: Option<String>,
    memory_limit: Option<String>,
    /// Read-only in the original too.
    #[serde(rename = "id")]
    _id: Option<Value>,
    #[serde(rename = "status")]
    _status: Option<Value>,
    #[serde(rename = "created_at")]
    _created_at: Option<Value>,
}

/// A sandbox in version 0.8: the original's fields, then Arenite's.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AgentSandboxNewer)]
pub(crate) struct NewerSandbox {
    id: String,
    name: SandboxName,
    template: String,
    image: String,
    app: String,
    args: Vec<String>,
    #[serde(rename = "envVars")]
    env_vars: BTreeMap<String, String>,
    metadata: BTreeMap<String, String>,
    port: String,
    /// Seconds; -1: none.
    timeout: i64,
    /// Seconds; -1: none.
    idle_timeout: i64,
    #[serde(rename = "autoPause")]
    auto_pause: bool,
    #[serde(rename = "autoResume")]
    auto_resume: bool,
    status: &'static str,
    created_at: String,
    cpu: String,
    memory: String,
    cpu_limit: String,
    memory_limit: String,
    state: &'static str,
    url: String,
}

/// Seconds up to their maximum. None: the default; -1 becomes 0, which means none.
fn seconds(field: &str, given: Option<i64>, most: u64) -> Result<Option<u64>, Refusal> {
    match given {
        None | Some(0) => Ok(None),
        Some(-1) => Ok(Some(0)),
        Some(seconds) if seconds < 0 => {
            Err(Refusal::bad_request(format!("{field} is {seconds}; give seconds from 1 to {most}, or -1 for none")))
        }
        Some(seconds) => Ok(Some(seconds.unsigned_abs().min(most))),
    }
}

/// Converts the request for `control`, and names its template. Defaults are this version's.
pub(super) fn request(
    gateway: &Gateway,
    create: NewerCreate,
    name: Option<SandboxName>,
) -> Result<(String, CreateRequest), Refusal> {
    let image = given(&create.image).map(str::parse::<ImageName>).transpose()?;
    let template = given(&create.template).map(str::to_owned);
    let shown = template.clone().unwrap_or_else(|| if image.is_some() { CUSTOM } else { AIO }.to_owned());
    let theirs = gateway.control.templates().into_iter().find(|known| known.name == shown).map(|known| known.spec);
    let app = create.app.unwrap_or_default();
    if app.chars().count() > MAX_APP {
        return Err(Refusal::bad_request(format!("app is longer than {MAX_APP} characters")));
    }
    if create.auto_resume == Some(false) {
        return Err(Refusal::bad_request("autoResume can't be off: a call resumes a paused sandbox"));
    }
    let metadata = create.metadata.unwrap_or_default();
    if metadata.len() > MAX_METADATA {
        return Err(Refusal::bad_request(format!("metadata: give at most {MAX_METADATA} entries")));
    }
    for (key, value) in &metadata {
        if key.is_empty() || key.starts_with(LABEL_PREFIX) || key.len() + value.len() > MAX_METADATA_BYTES {
            let key: String = key.chars().take(80).collect();
            return Err(Refusal::bad_request(format!(
                "metadata: {key:?} is not valid: a key is not empty, does not begin with {LABEL_PREFIX:?}, and has with its value at most {MAX_METADATA_BYTES} bytes"
            )));
        }
    }
    let asked = [&create.cpu, &create.memory, &create.cpu_limit, &create.memory_limit];
    let resources = theirs.as_ref().map(|spec| spec.resources.clone()).unwrap_or_default();
    let Amounts { cpu, memory, cpu_limit, memory_limit, cpu_millis, memory_bytes } =
        amounts(asked, &resources, [CPU, MEMORY, CPU_LIMIT, MEMORY_LIMIT])?;

    let timeout = seconds("timeout", create.timeout, MAX_TIMEOUT)?;
    let timeout = timeout.or(theirs.as_ref().and_then(|spec| spec.timeout_seconds)).unwrap_or(TIMEOUT);
    let idle_timeout = seconds("idle_timeout", create.idle_timeout, MAX_IDLE_TIMEOUT)?;
    let idle_timeout = idle_timeout.or(theirs.as_ref().and_then(|spec| spec.idle_timeout_seconds)).unwrap_or_default();
    let auto_pause = create.auto_pause.unwrap_or_default();
    let (timeout_seconds, idle_timeout_seconds, idle_policy) = match auto_pause {
        // The shorter time counts, and 0 is none.
        true => (0, [timeout, idle_timeout].into_iter().filter(|time| *time > 0).min().unwrap_or_default(), IdlePolicy::Pause),
        false => (timeout, idle_timeout, IdlePolicy::Delete),
    };
    let args = match (given(&create.cmd), create.args) {
        (None, args) => args,
        (Some(cmd), args) => Some([cmd.to_owned()].into_iter().chain(args.unwrap_or_default()).collect()),
    };
    let mut labels = metadata;
    labels.extend(
        [
            (LABEL_ENVIRONMENT, Some(shown.clone())),
            (LABEL_APP, Some(app)),
            (LABEL_CPU, Some(cpu)),
            (LABEL_MEMORY, Some(memory)),
            (LABEL_CPU_LIMIT, cpu_limit),
            (LABEL_MEMORY_LIMIT, memory_limit),
            (LABEL_PORT, create.port.map(|port| port.to_string())),
            (LABEL_AUTO_PAUSE, auto_pause.then(|| timeout.to_string())),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?))),
    );
    let spec = SpecOverlay {
        image,
        args,
        env: create.env_vars,
        workdir: given(&create.workdir).map(str::to_owned),
        resources: ResourcesOverlay {
            memory_bytes,
            cpu_millis: cpu_millis.map(|millis| u32::try_from(millis).unwrap_or(u32::MAX)),
            ..ResourcesOverlay::default()
        },
        ports: create.port.map(|port| vec![port]),
        timeout_seconds: Some(timeout_seconds),
        idle_timeout_seconds: Some(idle_timeout_seconds),
        idle_policy: Some(idle_policy),
        labels: Some(labels),
        ..SpecOverlay::default()
    };
    Ok((shown, CreateRequest { name, template, spec, origin: DIALECT.to_owned(), ..CreateRequest::default() }))
}

/// A sandbox in this version's form.
pub(super) fn stored(gateway: &Gateway, context: &Context, sandbox: Sandbox) -> Value {
    let url = api::urls(gateway, context, &sandbox).path;
    let mut spec = sandbox.spec;
    // Only this dialect's own labels are used.
    let ours = sandbox.origin == DIALECT;
    let mut label = |key: &str| spec.labels.remove(key).filter(|_| ours);
    let template = label(LABEL_ENVIRONMENT).or(sandbox.template).unwrap_or_else(|| CUSTOM.to_owned());
    let (app, cpu, memory, port) = (label(LABEL_APP), label(LABEL_CPU), label(LABEL_MEMORY), label(LABEL_PORT));
    let paused_after = label(LABEL_AUTO_PAUSE).and_then(|seconds| seconds.parse::<u64>().ok());
    let cpu_limit = label(LABEL_CPU_LIMIT).unwrap_or_else(|| format!("{}m", spec.resources.cpu_millis));
    let memory_limit = label(LABEL_MEMORY_LIMIT).unwrap_or_else(|| format!("{}Mi", spec.resources.memory_bytes >> 20));
    let shown = |seconds: Option<u64>| match seconds {
        None | Some(0) => -1,
        Some(seconds) => i64::try_from(seconds).unwrap_or(i64::MAX),
    };
    json!(NewerSandbox {
        id: sandbox.id.to_string(),
        name: sandbox.name,
        template,
        image: spec.image.to_string(),
        app: app.unwrap_or_default(),
        args: spec.args,
        env_vars: spec.env,
        metadata: spec.labels,
        port: port.or_else(|| spec.ports.first().map(u16::to_string)).unwrap_or_default(),
        timeout: shown(paused_after.or(spec.timeout_seconds)),
        idle_timeout: shown(spec.idle_timeout_seconds.filter(|_| paused_after.is_none())),
        auto_pause: spec.idle_policy != IdlePolicy::Delete,
        auto_resume: true,
        status: match sandbox.state {
            SandboxState::Creating => "creating",
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
            _ => "unready",
        },
        created_at: sandbox.created_at.to_string(),
        cpu: cpu.unwrap_or_else(|| "0".to_owned()),
        memory: memory.unwrap_or_else(|| "0".to_owned()),
        cpu_limit,
        memory_limit,
        state: sandbox.state.as_str(),
        url,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Harness;

    const AT: &str = "/api/v1/sandbox";

    async fn newer() -> Harness {
        Harness::with(|_, gateway| gateway.agent_sandbox_version = AgentSandboxVersion::Newer).await
    }

    #[tokio::test]
    async fn a_create_answers_with_the_sandbox_and_every_field_has_its_effect() {
        let server = newer().await;
        let body = json!({
            "name": "all", "template": "aio", "image": "team/tools:2", "app": "crawler", "cmd": "sh", "args": ["-c", "true"],
            "envVars": {"A": "1"}, "metadata": {"user": "abc"}, "timeout": 90, "idle_timeout": 60, "port": 8000,
            "workdir": "/srv", "cpu": "250m", "memory": "200Mi", "cpu_limit": "1.5", "memory_limit": "0.5Gi",
        });
        let created = server.call("POST", AT, body.clone()).await;
        assert_eq!((created.status, &created.json["code"]), (200, &json!("0")), "{}", created.text);
        let data = &created.json["data"];
        for field in
            ["name", "template", "image", "app", "envVars", "metadata", "timeout", "idle_timeout", "cpu", "memory", "cpu_limit"]
        {
            assert_eq!(data[field], body[field], "{field}");
        }
        assert_eq!(
            (&data["args"], &data["port"], &data["status"]),
            (&json!(["sh", "-c", "true"]), &json!("8000"), &json!("running"))
        );
        let spec = server.call("GET", "/api/v2/sandboxes/all", Value::Null).await.json["spec"].take();
        assert_eq!((&spec["timeout_seconds"], &spec["idle_timeout_seconds"]), (&json!(90), &json!(60)));
        assert_eq!((&spec["idle_policy"], &spec["ports"], &spec["workdir"]), (&json!("delete"), &json!([8000]), &json!("/srv")));
        assert_eq!((&spec["resources"]["cpu_millis"], &spec["resources"]["memory_bytes"]), (&json!(1500), &json!(512 << 20)));
        assert_eq!(server.call("GET", "/api/v1/sandbox/all", Value::Null).await.json["data"], *data);
        assert_eq!(server.call("GET", AT, Value::Null).await.json["data"], json!([data]));
    }

    #[tokio::test]
    async fn defaults_and_ends_are_those_of_the_version() {
        let server = newer().await;
        let data = server.call("POST", AT, json!({})).await.json["data"].take();
        assert!(data["name"].as_str().unwrap().starts_with("sbx-aio-"), "{data}");
        assert_eq!((&data["timeout"], &data["idle_timeout"], &data["autoPause"]), (&json!(1800), &json!(-1), &json!(false)));
        assert_eq!((&data["cpu"], &data["memory"]), (&json!("50m"), &json!("100Mi")));
        assert_eq!((&data["cpu_limit"], &data["memory_limit"]), (&json!("2000m"), &json!("4000Mi")));

        let paused =
            server.call("POST", AT, json!({"name": "naps", "timeout": 100_000, "autoPause": true})).await.json["data"].take();
        assert_eq!((&paused["timeout"], &paused["autoPause"]), (&json!(86_400), &json!(true)));
        let spec = server.call("GET", "/api/v2/sandboxes/naps", Value::Null).await.json["spec"].take();
        assert_eq!((&spec["idle_timeout_seconds"], &spec["idle_policy"]), (&json!(86_400), &json!("pause")));

        let lasting = server.call("POST", AT, json!({"name": "lasts", "timeout": -1})).await.json["data"].take();
        assert_eq!(lasting["timeout"], json!(-1));
    }

    #[tokio::test]
    async fn a_header_chooses_the_version() {
        let server = Harness::new().await;
        let made = server.call("POST", AT, json!({"name": "first"})).await;
        assert_eq!(made.json["data"], json!("Sandbox first created successfully"));
        let get = |path: &str, version: &str| {
            let request = http::Request::get(path).header("host", "127.0.0.1:8080").header(HEADER, version);
            server.send(request.body(axum::body::Body::empty()).unwrap())
        };
        let found = get("/api/v1/sandbox/first", "0.8").await.json["data"].take();
        assert_eq!((&found["name"], &found["template"]), (&json!("first"), &json!("aio")));
        let refused = get(AT, "0.5").await;
        assert_eq!((refused.status, &refused.json["code"]), (400, &json!("400")), "{}", refused.text);
    }

    #[tokio::test]
    async fn bad_requests_are_refused_and_create_nothing() {
        let server = newer().await;
        for (body, word) in [
            (json!({"timeout": -5}), "timeout"),
            (json!({"autoResume": false}), "autoResume"),
            (json!({"metadata": {"agent_sandbox.cpu": "9"}}), "metadata"),
            (json!({"metadata": {"": "9"}}), "metadata"),
            (json!({"environment": "aio"}), "environment"),
            (json!({"port": 70_000}), "port"),
            (json!({"cpu_limit": "lots"}), "cpu_limit"),
            (json!({"name": "../../etc"}), "name"),
            (json!({"template": "nix"}), "nix"),
            (json!([]), "object"),
        ] {
            let answer = server.call("POST", AT, body.clone()).await;
            assert!([400, 404].contains(&answer.status), "{body}: {}", answer.text);
            assert!(answer.json["error"].as_str().unwrap().contains(word), "{body}: {}", answer.text);
        }
        assert_eq!(server.call("GET", AT, Value::Null).await.json["data"], json!([]));
    }

    #[tokio::test]
    async fn paths_that_can_t_be_read_are_refused_in_the_form_of_the_dialect() {
        let server = Harness::new().await;
        for path in ["sandbox/%0e", "sandbox/files/%0e/upload", "logs/sandbox/%ff", "terminal/sandbox/%0e"] {
            let answer = server.call("GET", &format!("/api/v1/{path}"), Value::Null).await;
            assert_eq!((answer.status, &answer.json["code"]), (400, &json!("400")), "{path}: {}", answer.text);
            assert!(answer.json["error"].is_string(), "{path}: {}", answer.text);
        }
    }

    #[tokio::test]
    async fn pause_resume_metrics_and_limits() {
        let server = newer().await;
        server.call("POST", AT, json!({"name": "one"})).await;
        let paused = server.call("POST", "/api/v1/sandbox/pause/one", Value::Null).await;
        assert_eq!(paused.json, json!({"code": "0", "data": "Sandbox one paused successfully"}));
        assert_eq!(server.call("GET", "/api/v1/sandbox/one", Value::Null).await.json["data"]["status"], json!("paused"));
        let resumed = server.call("POST", "/api/v1/sandbox/resume/one", Value::Null).await;
        assert_eq!(resumed.json["data"], json!("Sandbox one resumed successfully"));
        for verb in ["pause", "resume"] {
            let missing = server.call("POST", &format!("/api/v1/sandbox/{verb}/none"), Value::Null).await;
            assert_eq!((missing.status, &missing.json["error"]), (404, &json!("sandbox none not found")));
        }
        let measured =
            server.call("POST", "/api/v1/sandbox/metrics", json!({"names": ["one", " one ", "none", "No/such"]})).await;
        let items = measured.json["data"]["items"].as_object().unwrap();
        assert_eq!(items.keys().collect::<Vec<_>>(), ["one"], "{}", measured.text);
        assert_eq!(items["one"]["sandbox"], json!("one"));
        assert_eq!(server.call("POST", "/api/v1/sandbox/metrics", json!({"names": []})).await.status, 400);
        let limits = server.call("GET", "/api/v1/ratelimit", Value::Null).await.json["data"].take();
        assert_eq!(limits["users"][0]["sandbox_current"], json!(1));
        assert_eq!(server.call("GET", "/api/v1/pool", Value::Null).await.json["data"], json!([]));
    }
}
