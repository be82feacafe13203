//! Where a replay runs its steps: in a new sandbox, or with a new worker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use arenite_trajectory::replay::Ids;
use arenite_trajectory::{SessionChange, SessionEvent, Step};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Limited};
use serde_json::{Map, Value, json};

use super::start::{SealedAs, StartPoint};
use super::steps::Steps;
use crate::client::{Client, encoded, refusal};
use crate::failure::{Attempt, Failure};
use crate::wire;

const SANDBOXES: &str = "/api/v2/sandboxes";
const ANSWERS: usize = 64 << 20;

pub(super) enum ReplayTarget {
    Sandbox {
        name: String,
    },
    Worker {
        id: String,
        image: Option<String>,
        /// Kinds of resources with a session, and the id that the session had in the first run, once it is known.
        sessions: BTreeMap<String, Option<String>>,
        /// Later starts and ends of sessions.
        events: VecDeque<SessionEvent>,
    },
}

impl ReplayTarget {
    /// Creates one like the recorded one, or with another image, or as a state of it. Reads the first page of steps only.
    pub(super) async fn make(
        client: &Client,
        steps: &mut Steps<'_>,
        start: Option<&StartPoint>,
        image: Option<&str>,
        ids: &mut Ids,
    ) -> Result<Self, Failure> {
        let fresh = fresh()?;
        let early = steps.first().await?;
        let Some(first) = early.first() else { return Err(Failure::new("the trajectory has no steps")) };
        let (old_id, old_name) = (first.sandbox_id.clone(), first.sandbox_name.clone());
        if first.dialect == "agentflow" {
            if let Some(work) = &first.work {
                ids.learn(&work.worker, &fresh);
            }
            let events = steps.sessions().await?.into();
            return Ok(Self::Worker { id: fresh, image: image.map(str::to_owned), sessions: BTreeMap::new(), events });
        }
        let name = match start.map(|point| &point.state) {
            Some(SealedAs::Checkpoint { id, .. }) => fork(client, &old_name, id, &fresh).await?,
            Some(SealedAs::Snapshot { name: snapshot }) => {
                let (path, body) = creation(steps, &early, &fresh, image).await?;
                let mut body = if path == SANDBOXES { body } else { json!({ "name": fresh }) };
                if let Value::Object(fields) = &mut body {
                    fields.remove("image");
                    fields.insert("snapshot".to_owned(), json!(snapshot));
                }
                client.post::<Value>(SANDBOXES, &body).await?;
                fresh
            }
            None => {
                let (path, body) = creation(steps, &early, &fresh, image).await?;
                client.post::<Value>(path, &body).await?;
                fresh
            }
        };
        let made: wire::Sandbox = client.get(&format!("{SANDBOXES}/{name}")).await?;
        ids.learn(&old_id, &made.id);
        ids.learn(&old_name, &name);
        Ok(Self::Sandbox { name })
    }

    /// Its kind and its name.
    pub(super) fn name(&self) -> (&'static str, &str) {
        match self {
            Self::Sandbox { name } => ("sandbox", name),
            Self::Worker { id, .. } => ("worker", id),
        }
    }

    /// Creates the session that a worker's step had in the first run, unless a step created it. A different id than before
    /// means that the session was another.
    pub(super) async fn prepare(
        &mut self,
        client: &Client,
        step: &Step,
        arguments: &[u8],
        recorded: &[u8],
    ) -> Result<(), Failure> {
        let Self::Worker { id, image, sessions, events } = self else { return Ok(()) };
        while let Some(event) = events.front().is_some_and(|event| event.after < step.step).then(|| events.pop_front()).flatten()
        {
            let known = sessions.get(&event.resource_type);
            // Reported again by a restarted server, on which it continues.
            if event.event == SessionChange::Begin && known.is_some_and(|id| id.as_ref() == Some(&event.id)) {
                continue;
            }
            match (event.event, known.is_some()) {
                (SessionChange::Begin, there) => {
                    if there {
                        destroy_session(client, id, &event.resource_type).await?;
                    }
                    create_session(client, id, &event.resource_type, (event.config, image.as_deref())).await?;
                    sessions.insert(event.resource_type, Some(event.id));
                }
                (SessionChange::End, true) => {
                    destroy_session(client, id, &event.resource_type).await?;
                    sessions.remove(&event.resource_type);
                }
                (SessionChange::End, false) => {}
            }
        }
        match wanted(sessions, step, arguments, recorded) {
            Wanted::Nothing => Ok(()),
            Wanted::Another(kind) => {
                destroy_session(client, id, &kind).await?;
                create_session(client, id, &kind, (None, image.as_deref())).await
            }
            Wanted::First(kind) => create_session(client, id, &kind, (None, image.as_deref())).await,
        }
    }

    /// The sandbox in which commands of the command line run again; none for a worker.
    pub(super) fn sandbox(&self) -> Option<&str> {
        match self {
            Self::Sandbox { name } => Some(name),
            Self::Worker { .. } => None,
        }
    }

    /// Runs a step again; returns the status and the body.
    pub(super) async fn call(&self, client: &Client, step: &Step, arguments: Bytes, ids: &Ids) -> Result<(u16, Bytes), Failure> {
        let (path, request) = match self {
            Self::Worker { id, .. } => of_worker(id, step, &arguments, ids)?,
            Self::Sandbox { name } => of_sandbox(name, step, arguments, ids)?,
        };
        let response = client.raw(&path, request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWERS).collect().await;
        let body = body.attempt(|| format!("the answer to step {} broke off", step.step))?.to_bytes();
        if status.as_u16() == 404 && step.status != Some(404) && matches!(self, Self::Worker { .. }) {
            return Err(refusal(status, &body).hint("does this server serve AgentFlow's API?"));
        }
        Ok((status.as_u16(), body))
    }

    pub(super) async fn remove(&self, client: &Client) -> Result<(), Failure> {
        match self {
            Self::Sandbox { name } => client.delete(&format!("{SANDBOXES}/{}", encoded(name))).await,
            Self::Worker { id, .. } => {
                client.post::<Value>("/api/v1/worker/disconnect", &json!({ "worker_id": id })).await.map(drop)
            }
        }
    }
}

impl fmt::Display for ReplayTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = self.name();
        write!(f, "the {kind} {name}")
    }
}

/// Creates a sandbox as a checkpoint of another. Returns its name.
async fn fork(client: &Client, of: &str, checkpoint: &str, name: &str) -> Result<String, Failure> {
    let body = json!({ "from_checkpoint": checkpoint, "count": 1, "name": name });
    let made: wire::Created = client.post(&format!("{SANDBOXES}/{}/fork", encoded(of)), &body).await?;
    let made = made.sandboxes.into_iter().next().map(|sandbox| sandbox.name);
    made.ok_or_else(|| Failure::new(format!("no fork of {of} was created")))
}

fn fresh() -> Result<String, Failure> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|error| Failure::new(format!("no random bytes: {error}")))?;
    Ok(format!("replay-{:08x}", u32::from_be_bytes(random)))
}

async fn destroy_session(client: &Client, worker: &str, kind: &str) -> Result<(), Failure> {
    let body = json!({ "worker_id": worker, "resource_type": kind });
    client.post::<Value>("/api/v1/session/destroy", &body).await.map(drop)
}

/// Creates a session with the configuration of the first run, as far as it is known.
async fn create_session(
    client: &Client,
    worker: &str,
    kind: &str,
    (config, image): (Option<Value>, Option<&str>),
) -> Result<(), Failure> {
    let mut config = config.unwrap_or_else(|| json!({}));
    if config.get("env").is_some_and(|env| env.to_string().contains("redacted")) {
        eprintln!("warning: passwords in the environment of its {kind} session were not recorded, and are missing in the replay");
    }
    if let Some(image) = image {
        config["image"] = json!(image);
    }
    let body = json!({ "worker_id": worker, "resource_type": kind, "session_config": config });
    client.post::<Value>("/api/v1/session/create", &body).await.map(drop)
}

#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Nothing,
    First(String),
    Another(String),
}

/// The session that a step needs. Records that it will exist.
fn wanted(sessions: &mut BTreeMap<String, Option<String>>, step: &Step, arguments: &[u8], recorded: &[u8]) -> Wanted {
    if let Some((family @ ("session" | "init"), verb)) = step.action.split_once(':') {
        let asked: Map<String, Value> = serde_json::from_slice(arguments).unwrap_or_default();
        let one = asked.get("resource_type").and_then(Value::as_str).map(str::to_owned);
        let several =
            asked.get("resource_configs").and_then(Value::as_object).into_iter().flat_map(|configs| configs.keys().cloned());
        for kind in one.into_iter().chain(several) {
            match (family, verb) {
                ("session", "destroy") => sessions.remove(&kind),
                _ => sessions.insert(kind, None),
            };
        }
        return Wanted::Nothing;
    }
    let Some((kind, _)) = step.action.split_once(':') else { return Wanted::Nothing };
    let answer: Value = serde_json::from_slice(recorded).unwrap_or_default();
    let meta = &answer["meta"];
    let Some(old) = meta["session_id"].as_str().filter(|_| meta["temporary_session"] != Value::Bool(true)) else {
        return Wanted::Nothing;
    };
    match sessions.insert(kind.to_owned(), Some(old.to_owned())) {
        None => Wanted::First(kind.to_owned()),
        Some(Some(before)) if before != old => Wanted::Another(kind.to_owned()),
        Some(_) => Wanted::Nothing,
    }
}

/// The request that created the sandbox in the first run.
async fn creation(steps: &Steps<'_>, early: &[Step], fresh: &str, image: Option<&str>) -> Result<(&'static str, Value), Failure> {
    let step =
        early.iter().find(|step| matches!(&*step.action, "POST /api/v2/sandboxes" | "POST /api/v1/sandbox" | "createSandbox"));
    let (path, mut body) = match step {
        Some(step) => {
            let path = if step.action == "POST /api/v2/sandboxes" { SANDBOXES } else { "/api/v1/sandbox" };
            let bytes = steps.body(step.step, "arguments", step.arguments.as_ref()).await?;
            (path, serde_json::from_slice::<Map<String, Value>>(&bytes).unwrap_or_default())
        }
        None => (SANDBOXES, Map::new()),
    };
    if body.get("env").is_some_and(|env| env.to_string().contains("redacted")) {
        eprintln!("warning: passwords in its environment were not recorded, and are missing in the replay");
    }
    body.insert("name".to_owned(), json!(fresh));
    if let Some(image) = image {
        body.retain(|field, _| !matches!(&**field, "template" | "environment"));
        body.insert("image".to_owned(), json!(image));
    }
    Ok((path, Value::Object(body)))
}

fn of_worker(id: &str, step: &Step, arguments: &[u8], ids: &Ids) -> Result<(String, Request<Bytes>), Failure> {
    let params: Value = if arguments.is_empty() { json!({}) } else { parsed(step, arguments)? };
    let params = ids.value(&params);
    let (path, body) = match step.action.split_once(':') {
        Some((family @ ("session" | "init"), verb)) => {
            let mut body = params;
            if let Value::Object(fields) = &mut body {
                fields.insert("worker_id".to_owned(), json!(id));
            }
            (format!("/api/v1/{family}/{}", verb.replace('_', "-")), body)
        }
        _ => {
            let mut body = json!({ "worker_id": id, "action": step.action, "params": params });
            if let Some(timeout) = step.work.as_ref().and_then(|work| work.timeout) {
                body["timeout"] = json!(timeout);
            }
            ("/api/v1/execute".to_owned(), body)
        }
    };
    Ok((path, request(&Method::POST, Some("application/json"), body.to_string().into())?))
}

fn parsed(step: &Step, bytes: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(bytes)
        .map_err(|error| Failure::new(format!("the arguments of step {} are not JSON: {error}", step.step)))
}

fn of_sandbox(name: &str, step: &Step, arguments: Bytes, ids: &Ids) -> Result<(String, Request<Bytes>), Failure> {
    let unknown = || Failure::new(format!("step {} is no call of a sandbox: {}", step.step, step.action));
    let (method, place) = step.action.split_once(' ').filter(|(_, place)| place.starts_with('/')).ok_or_else(unknown)?;
    let method: Method = method.parse().map_err(|_| unknown())?;
    let path = format!("/sandbox/{name}{}", ids.path(place));
    if arguments.is_empty() || is_query(&method, place, &arguments) {
        return Ok((path, request(&method, None, Bytes::new())?));
    }
    let Ok(value) = serde_json::from_slice::<Value>(&arguments) else {
        let kind = match boundary(&arguments) {
            Some(boundary) => format!("multipart/form-data; boundary={boundary}"),
            // A body that was not JSON was sent where JSON is expected.
            None => "application/json".to_owned(),
        };
        return Ok((path, request(&method, Some(&kind), ids.bytes(&arguments).into())?));
    };
    let translated = ids.value(&value);
    // Unchanged, unless something in it has another name now: numbers may have more digits than we read.
    let body = if translated == value { arguments } else { translated.to_string().into() };
    Ok((path, request(&method, Some("application/json"), body)?))
}

fn request(method: &Method, kind: Option<&str>, body: Bytes) -> Result<Request<Bytes>, Failure> {
    let mut request = Request::builder().method(method).uri("/");
    if let Some(kind) = kind {
        request = request.header(header::CONTENT_TYPE, kind);
    }
    request.body(body).map_err(|error| Failure::new(format!("the request can't be sent: {error}")))
}

/// Whether the arguments are those of the query, which is recorded for calls without a body.
fn is_query(method: &Method, place: &str, arguments: &[u8]) -> bool {
    if matches!(*method, Method::GET | Method::HEAD) {
        return true;
    }
    let Some((_, query)) = place.split_once('?') else { return false };
    let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(arguments) else { return false };
    let keys: BTreeSet<&str> = query.split('&').filter_map(|pair| pair.split('=').next()).filter(|key| !key.is_empty()).collect();
    fields.keys().map(String::as_str).collect::<BTreeSet<_>>() == keys && fields.values().all(Value::is_string)
}

/// The boundary of a multipart form: its head was not recorded, but its first line has it.
fn boundary(body: &[u8]) -> Option<&str> {
    let line = body.get(..body.len().min(200))?.split(|byte| *byte == b'\r').next()?;
    let boundary = std::str::from_utf8(line.strip_prefix(b"--")?).ok()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"'()+_-./:=?".contains(&b);
    ((1..=70).contains(&boundary.len()) && boundary.bytes().all(plain)).then_some(boundary)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(dialect: &str, action: &str, arguments: Value, observation: Value) -> Step {
        serde_json::from_str(
            &json!({
                "v": 1, "step": 1, "tenant": "default", "sandbox_id": "s", "sandbox_name": "s", "dialect": dialect, "action": action,
                "arguments": {"json": arguments}, "observation": {"json": observation}, "started_at": "2026-01-01T00:00:00Z",
                "ended_at": null, "duration_ms": 1.0, "outcome": "ok", "status": 200, "error": null, "origin": null,
                "request_id": "r", "bytes_in": 0, "bytes_out": 0,
            })
            .to_string(),
        )
        .unwrap()
    }

    #[test]
    fn sessions_are_made_as_steps_had_them_in_the_first_run() {
        let mut sessions = BTreeMap::new();
        let mut needs = |action: &str, id: Value, temporary: bool| {
            let answer = json!({"code": 0, "meta": {"session_id": id, "temporary_session": temporary}}).to_string();
            let step = step("agentflow", action, json!({}), json!({}));
            wanted(&mut sessions, &step, br#"{"resource_type":"vm"}"#, answer.as_bytes())
        };
        assert_eq!(needs("session:create", Value::Null, false), Wanted::Nothing);
        assert_eq!(needs("vm:click", json!("vm_1"), false), Wanted::Nothing);
        assert_eq!(needs("bash:run", json!("bash_1"), false), Wanted::First("bash".to_owned()));
        assert_eq!(needs("bash:run", json!("bash_1"), false), Wanted::Nothing);
        // Destroyed and recreated by calls that are no steps.
        assert_eq!(needs("bash:run", json!("bash_2"), false), Wanted::Another("bash".to_owned()));
        assert_eq!(needs("code:execute", json!("code_1"), true), Wanted::Nothing);
        assert_eq!(needs("ds_run_python", Value::Null, false), Wanted::Nothing);
        assert_eq!(needs("session:destroy", Value::Null, false), Wanted::Nothing);
        assert_eq!(needs("vm:click", json!("vm_2"), false), Wanted::First("vm".to_owned()));
    }

    #[test]
    fn a_step_becomes_the_same_call_of_the_fresh_one() {
        let mut ids = Ids::default();
        ids.learn("old-session-1", "new-session-1");
        let exec = step("aio", "POST /v1/bash/exec", json!({"session_id": "old-session-1", "command": "x"}), json!({}));
        let body = Bytes::from(r#"{"session_id": "old-session-1", "command": "x"}"#);
        let (path, request) = of_sandbox("replay-1", &exec, body, &ids).unwrap();
        assert_eq!((&*path, request.method()), ("/sandbox/replay-1/v1/bash/exec", &Method::POST));
        assert_eq!(serde_json::from_slice::<Value>(request.body()).unwrap()["session_id"], "new-session-1");

        let plain = Bytes::from(r#"{"n": 123456789012345678901234567890}"#);
        let (_, request) = of_sandbox("r", &exec, plain.clone(), &ids).unwrap();
        assert_eq!(request.body(), &plain);

        let query = step("aio", "DELETE /v1/shell/sessions/old-session-1?force=yes", json!({}), json!({}));
        let (path, request) = of_sandbox("r", &query, Bytes::from(r#"{"force":"yes"}"#), &ids).unwrap();
        assert_eq!(path, "/sandbox/r/v1/shell/sessions/new-session-1?force=yes");
        assert!(request.body().is_empty() && request.headers().is_empty());

        let upload = step("aio", "POST /v1/file/upload", json!({}), json!({}));
        let form = Bytes::from("--b1-2\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n/f\r\n--b1-2--\r\n");
        let (_, request) = of_sandbox("r", &upload, form, &ids).unwrap();
        assert_eq!(request.headers()[header::CONTENT_TYPE], "multipart/form-data; boundary=b1-2");

        let run = step("agentflow", "bash:run", json!({"command": "x"}), json!({}));
        let (path, request) = of_worker("replay-2", &run, br#"{"command":"x"}"#, &ids).unwrap();
        assert_eq!(path, "/api/v1/execute");
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        assert_eq!(body, json!({"worker_id": "replay-2", "action": "bash:run", "params": {"command": "x"}}));
        let create = step("agentflow", "session:create", json!({}), json!({}));
        let (path, request) = of_worker("replay-2", &create, br#"{"worker_id":"w","resource_type":"vm"}"#, &ids).unwrap();
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        assert_eq!((&*path, &body["worker_id"]), ("/api/v1/session/create", &json!("replay-2")));
    }
}
