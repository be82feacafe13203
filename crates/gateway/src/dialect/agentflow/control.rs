//! Sessions, workers, resources, warm-up and shutdown.

use std::time::Instant;

use arenite_synthesis::answer::{Meta, ToolAnswer, code, naive, trace_id};
use arenite_synthesis::{Create, Created};
use axum::body::Body;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::check::{self, Kind, optional, required};
use super::{Asked, enveloped, unprocessable};
use crate::exchange::{Answered, Exchange};
use crate::refusal::json_response;

/// Longest name of a resource type, in characters.
const MAX_TYPE: usize = 64;
/// Largest file that `init/from-config` reads, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// The answer of one route.
struct Reply {
    tool: &'static str,
    begun: Instant,
}

impl Reply {
    fn new(tool: &'static str) -> Self {
        Self { tool, begun: Instant::now() }
    }

    fn say(&self, status: u16, code: i64, message: &str, session: Option<&str>, data: Value) -> Response<Body> {
        let trace_id = trace_id();
        let meta = Meta {
            tool: self.tool,
            took: Some(self.begun.elapsed()),
            resource_type: Some("session"),
            session_id: session,
            trace_id: &trace_id,
        };
        enveloped(status, &ToolAnswer::new(code, message, data, meta))
    }

    fn ok(&self, session: Option<&str>, data: Value) -> Response<Body> {
        self.say(200, code::SUCCESS, "success", session, data)
    }

    fn invalid(&self, message: &str, data: Value) -> Response<Body> {
        self.say(400, code::INVALID_REQUEST_FORMAT, message, None, data)
    }
}

/// A field that exists and is not empty.
fn given(body: &Map<String, Value>, name: &str) -> Option<String> {
    match body.get(name)? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn or_null(body: &Map<String, Value>, name: &str) -> Value {
    body.get(name).cloned().unwrap_or_default()
}

fn object(value: Option<&Value>) -> Map<String, Value> {
    value.and_then(Value::as_object).cloned().unwrap_or_default()
}

pub(crate) async fn session_create(exchange: &mut Exchange) -> Answered {
    let (asked, reply) = (Asked::read(exchange).await?, Reply::new("session:create"));
    Ok(match asked.typed(&reply) {
        Ok(typed) => asked.create(&reply, typed).await,
        Err(refused) => *refused,
    })
}

pub(crate) async fn session_destroy(exchange: &mut Exchange) -> Answered {
    let (asked, reply) = (Asked::read(exchange).await?, Reply::new("session:destroy"));
    Ok(match asked.typed(&reply) {
        Ok(typed) => asked.destroy(&reply, &typed).await,
        Err(refused) => *refused,
    })
}

pub(crate) async fn session_list(exchange: &mut Exchange) -> Answered {
    let (asked, reply) = (Asked::read(exchange).await?, Reply::new("session:list"));
    Ok(asked.of_worker(&reply, |worker, _| {
        let sessions = asked.synthesis.list(&asked.caller.tenant, worker);
        reply.ok(None, json!({ "worker_id": worker, "count": sessions.len(), "sessions": sessions }))
    }))
}

pub(crate) async fn session_refresh(exchange: &mut Exchange) -> Answered {
    let (asked, reply) = (Asked::read(exchange).await?, Reply::new("session:refresh"));
    Ok(asked.of_worker(&reply, |worker, body| asked.refresh(&reply, worker, body)))
}

pub(crate) async fn heartbeat(exchange: &mut Exchange) -> Answered {
    let (asked, reply) = (Asked::read(exchange).await?, Reply::new("session:heartbeat"));
    Ok(asked.of_worker(&reply, |worker, _| {
        let (types, _) = asked.synthesis.status(&asked.caller.tenant, worker);
        let now = naive(Timestamp::now());
        reply.ok(None, json!({ "worker_id": worker, "active_sessions": types, "timestamp": now }))
    }))
}

pub(crate) async fn status(exchange: &mut Exchange) -> Answered {
    let (asked, reply) = (Asked::read(exchange).await?, Reply::new("session:status"));
    Ok(asked.of_worker(&reply, |worker, _| {
        let (types, sessions) = asked.synthesis.status(&asked.caller.tenant, worker);
        let tools = asked.synthesis.tools_count();
        let data = json!({ "worker_id": worker, "active_resources": types, "sessions": sessions, "tools_available": tools });
        reply.ok(None, data)
    }))
}

pub(crate) async fn disconnect(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.disconnect().await)
}

pub(crate) async fn init(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.init().await)
}

pub(crate) async fn init_batch(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.init_batch().await)
}

pub(crate) async fn init_from_config(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.init_from_config().await)
}

pub(crate) async fn warmup(exchange: &mut Exchange) -> Answered {
    let (asked, reply) = (Asked::read(exchange).await?, Reply::new("warmup"));
    Ok(match asked.optional(&reply) {
        Ok(body) => asked.warmup(&body).await,
        Err(refused) => *refused,
    })
}

pub(crate) async fn warmup_status(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.warmup_status())
}

pub(crate) async fn shutdown(exchange: &mut Exchange) -> Answered {
    let (asked, reply) = (Asked::read(exchange).await?, Reply::new("shutdown"));
    Ok(match asked.optional(&reply) {
        Ok(body) => asked.shutdown(&body).await,
        Err(refused) => *refused,
    })
}

/// The answer to a body that can't be used.
type Refused = Box<Response<Body>>;

/// A body that names a worker and a type of its sessions.
struct Typed {
    worker: String,
    kind: String,
    body: Map<String, Value>,
}

impl Asked<'_> {
    /// The body's object, with the worker of the header if it names none.
    fn object(&self, reply: &Reply) -> Result<Map<String, Value>, Refused> {
        let mut body = match serde_json::from_slice::<Value>(&self.body) {
            Ok(Value::Object(body)) => body,
            Ok(_) => return Err(reply.invalid("the body is not a JSON object", json!({})).into()),
            Err(error) => return Err(reply.invalid(&format!("the body is not JSON: {error}"), json!({})).into()),
        };
        if let Some(worker) = self.worker
            && !body.contains_key("worker_id")
        {
            body.insert("worker_id".to_owned(), worker.into());
        }
        Ok(body)
    }

    /// The body's object; an empty body and null mean one without fields.
    fn optional(&self, reply: &Reply) -> Result<Map<String, Value>, Refused> {
        match self.body.trim_ascii() {
            b"" | b"null" => Ok(Map::new()),
            _ => self.object(reply),
        }
    }

    /// Answers for the worker in the body.
    fn of_worker(&self, reply: &Reply, answer: impl FnOnce(&str, &Map<String, Value>) -> Response<Body>) -> Response<Body> {
        let body = match self.object(reply) {
            Ok(body) => body,
            Err(refused) => return *refused,
        };
        match given(&body, "worker_id") {
            Some(worker) => answer(&worker, &body),
            None => reply.invalid("worker_id required", json!({ "worker_id": or_null(&body, "worker_id") })),
        }
    }

    fn typed(&self, reply: &Reply) -> Result<Typed, Refused> {
        let body = self.object(reply)?;
        let (Some(worker), Some(kind)) = (given(&body, "worker_id"), given(&body, "resource_type")) else {
            let data = json!({ "worker_id": or_null(&body, "worker_id"), "resource_type": or_null(&body, "resource_type") });
            return Err(reply.invalid("worker_id and resource_type required", data).into());
        };
        if kind.chars().count() > MAX_TYPE || kind.chars().any(char::is_control) {
            let message = format!("resource_type has at most {MAX_TYPE} characters, and no control characters");
            return Err(reply.invalid(&message, json!({})).into());
        }
        Ok(Typed { worker, kind, body })
    }

    async fn create(&self, reply: &Reply, typed: Typed) -> Response<Body> {
        let Typed { worker, kind, body } = typed;
        let config = body.get("session_config").filter(|config| !config.is_null()).or_else(|| body.get("config"));
        if config.is_some_and(|config| !config.is_object() && !config.is_null()) {
            return reply.invalid("session_config has to be an object", json!({}));
        }
        let ttl = body.get("ttl").and_then(Value::as_f64);
        if ttl.is_some_and(|ttl| ttl <= 0.0) {
            return reply.invalid("ttl has to be more than 0 seconds", json!({}));
        }
        let create = Create {
            worker,
            resource_type: kind,
            config: object(config),
            custom_name: given(&body, "custom_name"),
            ttl,
            auto_extend: body.get("auto_extend").and_then(Value::as_bool),
        };
        let created = match self.synthesis.create(&self.caller, create).await {
            Ok(created) => created,
            Err(error) => return reply.invalid(&error, json!({})),
        };
        let facts = &created.session.facts;
        let mut data = json!({
            "session_id": facts.id,
            "session_name": facts.name,
            "resource_type": facts.resource_type,
            "session_status": created.status(),
        });
        if !created.new {
            data["status"] = "exists".into();
            return reply.ok(Some(&facts.id), data);
        }
        data["error"] = created.error().into();
        if let Some(said) = created.compatibility() {
            data["compatibility_mode"] = true.into();
            data["compatibility_message"] = said.into();
        }
        if created.error().is_some() {
            return reply.say(500, code::RESOURCE_NOT_INITIALIZED, "Session creation failed", Some(&facts.id), data);
        }
        reply.ok(Some(&facts.id), data)
    }

    async fn destroy(&self, reply: &Reply, typed: &Typed) -> Response<Body> {
        let Typed { worker, kind, .. } = typed;
        let Some(session) = self.synthesis.destroy(&self.caller, worker, kind).await else {
            let message = format!("No session found for {kind}");
            return reply.say(404, code::RESOURCE_NOT_INITIALIZED, &message, None, json!({ "resource_type": kind }));
        };
        let data = json!({
            "message": format!("Session destroyed for {kind}"),
            "session_id": session.facts.id,
            "session_name": session.facts.name,
            "resource_type": kind,
        });
        reply.ok(Some(&session.facts.id), data)
    }

    fn refresh(&self, reply: &Reply, worker: &str, body: &Map<String, Value>) -> Response<Body> {
        let kind = given(body, "resource_type");
        let refreshed = self.synthesis.refresh(&self.caller.tenant, worker, kind.as_deref());
        match (kind, refreshed.first()) {
            (Some(kind), None) => {
                let message = format!("No session found for {kind}");
                reply.say(404, code::RESOURCE_NOT_INITIALIZED, &message, None, json!({ "resource_type": kind }))
            }
            (Some(kind), Some((_, id, expires_at))) => {
                let message = format!("Session refreshed for {kind}");
                let data = json!({ "message": message, "resource_type": kind, "session_id": id, "expires_at": expires_at });
                reply.ok(Some(id), data)
            }
            (None, _) => {
                let count = refreshed.len();
                let details: Map<String, Value> = refreshed
                    .into_iter()
                    .map(|(kind, _, at)| (kind, json!({ "status": "refreshed", "expires_at": at })))
                    .collect();
                let message = format!("Refreshed {count} sessions");
                let data = json!({ "message": message, "worker_id": worker, "refreshed_count": count, "details": details });
                reply.ok(None, data)
            }
        }
    }

    async fn disconnect(&self) -> Response<Body> {
        let reply = Reply::new("session:disconnect");
        let mut body = match self.checked(&[required("worker_id", Kind::Text)]) {
            Ok(body) => body,
            Err(detail) => return unprocessable(detail),
        };
        let worker = body.text("worker_id").unwrap_or_default();
        let cleaned = self.synthesis.disconnect(&self.caller, &worker).await;
        reply.ok(None, json!({ "worker_id": worker, "sessions_cleaned": cleaned }))
    }

    async fn made(&self, worker: &str, kind: &str, config: Map<String, Value>) -> Result<Created, String> {
        let create = Create { worker: worker.to_owned(), resource_type: kind.to_owned(), config, ..Create::default() };
        self.synthesis.create(&self.caller, create).await
    }

    async fn init(&self) -> Response<Body> {
        const FIELDS: [check::Field; 3] =
            [required("worker_id", Kind::Text), required("resource_type", Kind::Text), optional("init_config", Kind::Object)];
        let reply = Reply::new("init:resource");
        let mut body = match self.checked(&FIELDS) {
            Ok(body) => body,
            Err(detail) => return unprocessable(detail),
        };
        let (worker, kind) = (body.text("worker_id").unwrap_or_default(), body.text("resource_type").unwrap_or_default());
        let created = match self.made(&worker, &kind, body.object("init_config")).await {
            Ok(created) => created,
            Err(error) => return reply.invalid(&error, json!({})),
        };
        let id = &created.session.facts.id;
        let data = json!({
            "session_id": id, "resource_type": kind, "session_status": created.status(), "error": created.error(),
        });
        if created.error().is_some() {
            return reply.say(500, code::RESOURCE_NOT_INITIALIZED, "Resource initialization failed", Some(id), data);
        }
        reply.ok(Some(id), data)
    }

    async fn init_batch(&self) -> Response<Body> {
        const FIELDS: [check::Field; 4] = [
            required("worker_id", Kind::Text),
            optional("resource_configs", Kind::ObjectOfObjects),
            optional("allocated_resources", Kind::Object),
            optional("task_session_id", Kind::MaybeText),
        ];
        let reply = Reply::new("init:batch");
        let mut body = match self.checked(&FIELDS) {
            Ok(body) => body,
            Err(detail) => return unprocessable(detail),
        };
        let worker = body.text("worker_id").unwrap_or_default();
        let configs = body.object("resource_configs");
        let total = configs.len();
        // One after the other: the first creates the sandbox that all share.
        let (mut results, mut success_count) = (Map::new(), 0);
        for (kind, config) in configs {
            let config = object(config.get("content").filter(|content| content.is_object()).or(Some(&config)));
            let told = match self.made(&worker, &kind, config).await {
                Ok(created) => {
                    success_count += usize::from(created.error().is_none());
                    json!({
                        "status": if created.error().is_none() { "success" } else { "error" },
                        "session_id": created.session.facts.id,
                        "session_status": created.status(),
                        "error": created.error(),
                    })
                }
                Err(error) => json!({ "status": "error", "session_id": null, "session_status": "error", "error": error }),
            };
            results.insert(kind, told);
        }
        let data = json!({ "worker_id": worker, "results": results, "total": total, "success_count": success_count });
        if success_count == total {
            return reply.ok(None, data);
        }
        if success_count == 0 {
            return reply.say(500, code::ALL_FAILED, "All resources failed", None, data);
        }
        let message = format!("{} out of {total} resources failed", total - success_count);
        reply.say(207, code::PARTIAL_FAILURE, &message, None, data)
    }

    async fn init_from_config(&self) -> Response<Body> {
        const FIELDS: [check::Field; 3] =
            [required("worker_id", Kind::Text), required("config_path", Kind::Text), optional("override_params", Kind::Object)];
        let reply = Reply::new("init:from_config");
        let mut body = match self.checked(&FIELDS) {
            Ok(body) => body,
            Err(detail) => return unprocessable(detail),
        };
        let path = body.text("config_path").unwrap_or_default();
        let over = body.object("override_params");
        let root = self.exchange.gateway.workers_switches().config_root.clone();
        let told = json!({ "config_path": path });
        let given = path.clone();
        let read = tokio::task::spawn_blocking(move || confined(root.as_deref(), &given)).await;
        let mut config = match read.ok().flatten() {
            Some(Ok(config)) => config,
            Some(Err(error)) => return reply.invalid(&format!("Config file is not valid: {error}"), told),
            // A file that may not be read is reported as missing.
            None => return reply.say(404, code::INVALID_REQUEST_FORMAT, &format!("Config file not found: {path}"), None, told),
        };
        for (name, value) in over {
            match (config.get_mut(&name), value) {
                (Some(Value::Object(theirs)), Value::Object(ours)) => theirs.extend(ours),
                (Some(theirs), value) => *theirs = value,
                (None, _) => {}
            }
        }
        reply.ok(None, json!({ "config_loaded": path, "config": config }))
    }

    async fn warmup(&self, body: &Map<String, Value>) -> Response<Body> {
        let names: Option<Vec<String>> = match body.get("backends") {
            Some(Value::String(name)) => Some(vec![name.clone()]),
            Some(Value::Array(names)) => Some(names.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
            _ => None,
        };
        let warmed = self.synthesis.warm_up(names.as_deref()).await;
        let results: Map<String, Value> = warmed.iter().map(|(name, done)| (name.clone(), done.is_ok().into())).collect();
        let errors: Map<String, Value> =
            warmed.iter().filter_map(|(name, done)| Some((name.clone(), done.as_ref().err()?.as_str().into()))).collect();
        let mut answer = json!({
            "status": if errors.is_empty() { "success" } else { "partial_error" },
            "results": results,
            "summary": self.summary(),
        });
        if !errors.is_empty() {
            answer["errors"] = errors.into();
        }
        json_response(StatusCode::OK, &answer)
    }

    fn summary(&self) -> Value {
        let all = self.synthesis.warm();
        let warm = all.iter().filter(|(_, warm)| *warm).count();
        json!({ "total": all.len(), "warmed_up": warm, "pending": all.len() - warm })
    }

    fn warmup_status(&self) -> Response<Body> {
        let one = |(name, warm): (String, bool)| (name, json!({ "loaded": true, "warmed_up": warm }));
        let backends: Map<String, Value> = self.synthesis.warm().into_iter().map(one).collect();
        json_response(StatusCode::OK, &json!({ "backends": backends, "summary": self.summary() }))
    }

    /// Stops the server. If the server has keys, the caller needs one.
    async fn shutdown(&self, body: &Map<String, Value>) -> Response<Body> {
        if self.exchange.gateway.config.auth.is_required() && !self.exchange.caller.is_lasting() {
            let message = "the server is ended with a key, and not with a ticket";
            return json_response(StatusCode::FORBIDDEN, &json!({ "status": "error", "message": message }));
        }
        let cleanup = body.get("cleanup_sessions").and_then(Value::as_bool).unwrap_or(true);
        let cleaned = if cleanup { self.synthesis.disconnect_all(&self.caller).await } else { 0 };
        tracing::info!(origin = self.caller.origin, "a client ends the server");
        let shutdown = self.exchange.gateway.shutdown.clone();
        tokio::spawn(async move {
            // The answer is sent by then.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            shutdown.cancel();
        });
        let answer = json!({ "status": "success", "message": "Server shutdown initiated", "sessions_cleaned": cleaned });
        json_response(StatusCode::OK, &answer)
    }
}

/// Reads a file of the configured folder. None: no folder is configured, or the file does not exist in it.
fn confined(root: Option<&std::path::Path>, given: &str) -> Option<Result<Map<String, Value>, String>> {
    let root = root?.canonicalize().ok()?;
    let path = root.join(given).canonicalize().ok().filter(|path| path.starts_with(&root))?;
    let about = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
    if about.len() > MAX_FILE {
        return Some(Err(format!("it is larger than {} MiB", MAX_FILE >> 20)));
    }
    let text = std::fs::read(&path).ok()?;
    Some(serde_json::from_slice(&text).map_err(|error| error.to_string()))
}
