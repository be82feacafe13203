//! Sessions, workers, resources, warm-up and shutdown.

use std::collections::BTreeMap;
use std::time::Instant;

use arenite_synthesis::answer::{Meta, ToolAnswer, code, naive, trace_id};
use arenite_synthesis::{Create, Created};
use axum::body::Body;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::types::{
    ActiveSessions, BackendStatus, CreatedSession, DestroyedSession, DisconnectedWorker, Given, InitBatchRequest,
    InitFromConfigRequest, InitResourceRequest, InitResult, InitializedBatch, InitializedResource, LoadedConfig,
    RefreshedSession, RefreshedSessions, ServerShutdown, SessionCreateRequest, SessionDestroyRequest, SessionRefreshRequest,
    ShutdownRequest, WarmedBackends, WarmupRequest, WarmupStatus, WarmupSummary, WorkerDisconnectRequest, WorkerRequest,
    WorkerSessions, WorkerStatus,
};
use super::{Asked, Refused, answered, enveloped, failed};
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

    fn say(&self, status: u16, code: i64, message: &str, session: Option<&str>, data: impl Serialize) -> Response<Body> {
        let trace_id = trace_id();
        let meta = Meta {
            tool: self.tool,
            took: Some(self.begun.elapsed()),
            resource_type: Some("session"),
            session_id: session,
            trace_id: &trace_id,
        };
        enveloped(status, &ToolAnswer::new(code, message, json!(data), meta))
    }

    fn ok(&self, session: Option<&str>, data: impl Serialize) -> Response<Body> {
        self.say(200, code::SUCCESS, "success", session, data)
    }

    fn invalid(&self, message: &str, data: Value) -> Response<Body> {
        self.say(400, code::INVALID_REQUEST_FORMAT, message, None, data)
    }

    fn no_session(&self, resource_type: &str) -> Response<Body> {
        let message = format!("No session found for {resource_type}");
        self.say(404, code::RESOURCE_NOT_INITIALIZED, &message, None, json!({ "resource_type": resource_type }))
    }

    /// The worker and the type of a request that needs both.
    fn named(&self, worker_id: &Given, resource_type: &Given) -> Result<(String, String), Refused> {
        let (Some(worker), Some(kind)) = (worker_id.text(), resource_type.text()) else {
            let data = json!({ "worker_id": worker_id, "resource_type": resource_type });
            return Err(self.invalid("worker_id and resource_type required", data).into());
        };
        if kind.chars().count() > MAX_TYPE || kind.chars().any(char::is_control) {
            let message = format!("resource_type has at most {MAX_TYPE} characters, and no control characters");
            return Err(self.invalid(&message, json!({})).into());
        }
        Ok((worker, kind))
    }

    fn worker(&self, worker_id: &Given) -> Result<String, Refused> {
        worker_id.text().ok_or_else(|| self.invalid("worker_id required", json!({ "worker_id": worker_id })).into())
    }
}

pub(crate) async fn session_create(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.create().await)
}

pub(crate) async fn session_destroy(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.destroy().await)
}

pub(crate) async fn session_list(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.list())
}

pub(crate) async fn session_refresh(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.refresh())
}

pub(crate) async fn heartbeat(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.heartbeat())
}

pub(crate) async fn status(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.status())
}

pub(crate) async fn disconnect(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.disconnect().await)
}

pub(crate) async fn init(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.init().await)
}

pub(crate) async fn init_batch(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.init_batch().await)
}

pub(crate) async fn init_from_config(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.init_from_config().await)
}

pub(crate) async fn warmup(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.warmup().await)
}

pub(crate) async fn warmup_status(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.warmup_status())
}

pub(crate) async fn shutdown(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.shutdown().await)
}

impl Asked<'_> {
    /// Reads a lenient body.
    fn lenient<T: DeserializeOwned>(&self, reply: &Reply) -> Result<T, Refused> {
        let mut body = match serde_json::from_slice::<Value>(&self.body) {
            Ok(Value::Object(body)) => body,
            Ok(_) => return Err(reply.invalid("the body is not a JSON object", json!({})).into()),
            Err(error) => return Err(reply.invalid(&format!("the body is not JSON: {error}"), json!({})).into()),
        };
        self.name_worker(&mut body);
        let read = serde_json::from_value(Value::Object(body));
        read.map_err(|error| reply.invalid(&format!("the body is not valid: {error}"), json!({})).into())
    }

    /// Reads a lenient body; an empty one and null mean one without fields.
    fn optional<T: DeserializeOwned + Default>(&self, reply: &Reply) -> Result<T, Refused> {
        match self.body.trim_ascii() {
            b"" | b"null" => Ok(T::default()),
            _ => self.lenient(reply),
        }
    }

    async fn create(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("session:create");
        let request: SessionCreateRequest = self.lenient(&reply)?;
        let (worker, resource_type) = reply.named(&request.worker_id, &request.resource_type)?;
        let config = match request.session_config.or(request.config) {
            Some(Value::Object(config)) => config,
            None => Map::new(),
            Some(_) => return Ok(reply.invalid("session_config has to be an object", json!({}))),
        };
        if request.ttl.is_some_and(|ttl| ttl <= 0.0) {
            return Ok(reply.invalid("ttl has to be more than 0 seconds", json!({})));
        }
        let create = Create {
            worker,
            resource_type,
            config,
            custom_name: request.custom_name.text(),
            ttl: request.ttl,
            auto_extend: request.auto_extend,
        };
        let created = match self.synthesis.create(&self.caller, create).await {
            Ok(created) => created,
            Err(error) => return Ok(reply.invalid(&error, json!({}))),
        };
        let facts = &created.session.facts;
        let mut data = CreatedSession {
            session_id: facts.id.clone(),
            session_name: facts.name.clone(),
            resource_type: facts.resource_type.clone(),
            session_status: created.status(),
            ..CreatedSession::default()
        };
        if !created.new {
            data.status = Some("exists");
            return Ok(reply.ok(Some(&facts.id), data));
        }
        data.error = Some(created.error().map(str::to_owned));
        data.compatibility_message = created.compatibility();
        data.compatibility_mode = data.compatibility_message.is_some().then_some(true);
        if created.error().is_some() {
            let code = code::RESOURCE_NOT_INITIALIZED;
            return Ok(reply.say(500, code, "Session creation failed", Some(&facts.id), data));
        }
        Ok(reply.ok(Some(&facts.id), data))
    }

    async fn destroy(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("session:destroy");
        let request: SessionDestroyRequest = self.lenient(&reply)?;
        let (worker, resource_type) = reply.named(&request.worker_id, &request.resource_type)?;
        let Some(session) = self.synthesis.destroy(&self.caller, &worker, &resource_type).await else {
            return Ok(reply.no_session(&resource_type));
        };
        let facts = &session.facts;
        let data = DestroyedSession {
            message: format!("Session destroyed for {resource_type}"),
            session_id: facts.id.clone(),
            session_name: facts.name.clone(),
            resource_type,
        };
        Ok(reply.ok(Some(&facts.id), data))
    }

    fn list(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("session:list");
        let worker_id = reply.worker(&self.lenient::<WorkerRequest>(&reply)?.worker_id)?;
        let sessions = self.synthesis.list(&self.caller.tenant, &worker_id);
        Ok(reply.ok(None, WorkerSessions { worker_id, count: sessions.len(), sessions }))
    }

    fn refresh(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("session:refresh");
        let request: SessionRefreshRequest = self.lenient(&reply)?;
        let worker_id = reply.worker(&request.worker_id)?;
        let resource_type = request.resource_type.text();
        let mut refreshed = self.synthesis.refresh(&self.caller.tenant, &worker_id, resource_type.as_deref());
        let Some(resource_type) = resource_type else {
            let details = refreshed
                .into_iter()
                .map(|(resource_type, _, expires_at)| (resource_type, RefreshedSession { status: "refreshed", expires_at }));
            let details: BTreeMap<_, _> = details.collect();
            let message = format!("Refreshed {} sessions", details.len());
            return Ok(reply.ok(None, RefreshedSessions::All { message, worker_id, refreshed_count: details.len(), details }));
        };
        let Some((_, session_id, expires_at)) = refreshed.pop() else { return Ok(reply.no_session(&resource_type)) };
        let message = format!("Session refreshed for {resource_type}");
        let id = session_id.clone();
        Ok(reply.ok(Some(&id), RefreshedSessions::One { message, resource_type, session_id, expires_at }))
    }

    fn heartbeat(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("session:heartbeat");
        let worker_id = reply.worker(&self.lenient::<WorkerRequest>(&reply)?.worker_id)?;
        let (active_sessions, _) = self.synthesis.status(&self.caller.tenant, &worker_id);
        Ok(reply.ok(None, ActiveSessions { worker_id, active_sessions, timestamp: naive(Timestamp::now()) }))
    }

    fn status(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("session:status");
        let worker_id = reply.worker(&self.lenient::<WorkerRequest>(&reply)?.worker_id)?;
        let (active_resources, sessions) = self.synthesis.status(&self.caller.tenant, &worker_id);
        let tools_available = self.synthesis.tools_count();
        Ok(reply.ok(None, WorkerStatus { worker_id, active_resources, sessions, tools_available }))
    }

    async fn disconnect(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("session:disconnect");
        let (WorkerDisconnectRequest { worker_id }, _) = self.strict()?;
        let sessions_cleaned = self.synthesis.disconnect(&self.caller, &worker_id).await;
        Ok(reply.ok(None, DisconnectedWorker { worker_id, sessions_cleaned }))
    }

    async fn made(&self, worker: &str, kind: &str, config: Map<String, Value>) -> Result<Created, String> {
        let create = Create { worker: worker.to_owned(), resource_type: kind.to_owned(), config, ..Create::default() };
        self.synthesis.create(&self.caller, create).await
    }

    async fn init(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("init:resource");
        let (request, _) = self.strict::<InitResourceRequest>()?;
        let created = match self.made(&request.worker_id, &request.resource_type, request.init_config).await {
            Ok(created) => created,
            Err(error) => return Ok(reply.invalid(&error, json!({}))),
        };
        let id = &created.session.facts.id;
        let data = InitializedResource {
            session_id: id.clone(),
            resource_type: request.resource_type,
            session_status: created.status(),
            error: created.error().map(str::to_owned),
        };
        if created.error().is_some() {
            let code = code::RESOURCE_NOT_INITIALIZED;
            return Ok(reply.say(500, code, "Resource initialization failed", Some(id), data));
        }
        Ok(reply.ok(Some(id), data))
    }

    async fn init_batch(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("init:batch");
        let (request, _) = self.strict::<InitBatchRequest>()?;
        let worker_id = request.worker_id;
        let total = request.resource_configs.len();
        // One after the other: the first creates the sandbox that all share.
        let (mut results, mut success_count) = (BTreeMap::new(), 0);
        for (kind, mut config) in request.resource_configs {
            if let Some(Value::Object(content)) = config.get_mut("content") {
                config = std::mem::take(content);
            }
            let result = match self.made(&worker_id, &kind, config).await {
                Ok(created) => {
                    success_count += usize::from(created.error().is_none());
                    InitResult {
                        status: if created.error().is_none() { "success" } else { "error" },
                        session_id: Some(created.session.facts.id.clone()),
                        session_status: created.status(),
                        error: created.error().map(str::to_owned),
                    }
                }
                Err(error) => InitResult { status: "error", session_id: None, session_status: "error", error: Some(error) },
            };
            results.insert(kind, result);
        }
        let data = InitializedBatch { worker_id, results, total, success_count };
        if success_count == total {
            return Ok(reply.ok(None, data));
        }
        if success_count == 0 {
            return Ok(reply.say(500, code::ALL_FAILED, "All resources failed", None, data));
        }
        let message = format!("{} out of {total} resources failed", total - success_count);
        Ok(reply.say(207, code::PARTIAL_FAILURE, &message, None, data))
    }

    async fn init_from_config(&self) -> Result<Response<Body>, Refused> {
        let reply = Reply::new("init:from_config");
        let (request, _) = self.strict::<InitFromConfigRequest>()?;
        let path = request.config_path;
        let root = self.exchange.gateway.workers_switches().config_root.clone();
        let told = json!({ "config_path": path });
        let given = path.clone();
        let read = tokio::task::spawn_blocking(move || confined(root.as_deref(), &given)).await;
        let mut config = match read.ok().flatten() {
            Some(Ok(config)) => config,
            Some(Err(error)) => return Ok(reply.invalid(&format!("Config file is not valid: {error}"), told)),
            // A file that may not be read is reported as missing.
            None => {
                let message = format!("Config file not found: {path}");
                return Ok(reply.say(404, code::INVALID_REQUEST_FORMAT, &message, None, told));
            }
        };
        for (name, value) in request.override_params {
            match (config.get_mut(&name), value) {
                (Some(Value::Object(theirs)), Value::Object(ours)) => theirs.extend(ours),
                (Some(theirs), value) => *theirs = value,
                (None, _) => {}
            }
        }
        Ok(reply.ok(None, LoadedConfig { config_loaded: path, config }))
    }

    async fn warmup(&self) -> Result<Response<Body>, Refused> {
        let request: WarmupRequest = self.optional(&Reply::new("warmup"))?;
        let warmed = self.synthesis.warm_up(request.backends.as_deref()).await;
        let results = warmed.iter().map(|(name, done)| (name.clone(), done.is_ok())).collect();
        let errors: BTreeMap<_, _> = warmed.into_iter().filter_map(|(name, done)| Some((name, done.err()?))).collect();
        let status = if errors.is_empty() { "success" } else { "partial_error" };
        let answer = WarmedBackends { status, results, summary: self.summary(), errors };
        Ok(json_response(StatusCode::OK, &json!(answer)))
    }

    fn summary(&self) -> WarmupSummary {
        let all = self.synthesis.warm();
        let warmed_up = all.iter().filter(|(_, warm)| *warm).count();
        WarmupSummary { total: all.len(), warmed_up, pending: all.len() - warmed_up }
    }

    fn warmup_status(&self) -> Response<Body> {
        let one = |(name, warmed_up): (String, bool)| (name, BackendStatus { loaded: true, warmed_up });
        let backends = self.synthesis.warm().into_iter().map(one).collect();
        json_response(StatusCode::OK, &json!(WarmupStatus { backends, summary: self.summary() }))
    }

    /// Stops the server. If the server has keys, the caller needs one.
    async fn shutdown(&self) -> Result<Response<Body>, Refused> {
        let request: ShutdownRequest = self.optional(&Reply::new("shutdown"))?;
        if self.exchange.gateway.needs_credentials() && !self.exchange.caller.is_lasting() {
            return Ok(failed(StatusCode::FORBIDDEN, "the server is ended with a key, and not with a ticket"));
        }
        let cleanup = request.cleanup_sessions.unwrap_or(true);
        let sessions_cleaned = if cleanup { self.synthesis.disconnect_all(&self.caller).await } else { 0 };
        tracing::info!(origin = self.caller.origin, "a client ends the server");
        let shutdown = self.exchange.gateway.shutdown.clone();
        tokio::spawn(async move {
            // The answer is sent by then.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            shutdown.cancel();
        });
        let answer = ServerShutdown { status: "success", message: "Server shutdown initiated", sessions_cleaned };
        Ok(json_response(StatusCode::OK, &json!(answer)))
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
