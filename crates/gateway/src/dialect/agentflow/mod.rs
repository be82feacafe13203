//! AgentFlow Sandbox: workers, their sessions, and tools. The contract is its code. The paths of its documents, without
//! `/api/v1`, work too.
//!
//! All differences: bodies that are not JSON are answered with 400 and JSON where the original broke; errors contain no paths of
//! the server; existing sessions report their status, and a failed one is recreated; a session's own `ttl` and `auto_extend`
//! apply; `trace_id` of a request is kept; a worker that is named only in `X-Worker-ID` is known; other sites' pages may call
//! only from origins that the configuration names.

mod check;
mod control;
mod openapi;

use std::sync::Arc;

use arenite_synthesis::answer::{Meta, ToolAnswer, code, trace_id};
use arenite_synthesis::{Action, Batch, Caller, Done, Execute, Synthesis};
use axum::body::Body;
use http::header::{ALLOW, CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::auth::Identity;
use crate::gateway::{Context, Gateway};
use crate::path::query_value;
use crate::proxy;
use crate::refusal::{Refusal, json_response};
use crate::route::Owner;

use check::{Checked, Kind, optional, required};

const ROOT: &str = "/api/v1";
/// The worker, in a header of each request of its client.
const WORKER: &str = "x-worker-id";
/// The original client's library; the client sends no other name.
const ORIGINAL_CLIENT: &str = "python-httpx/";
/// The most actions of one batch.
const MAX_ACTIONS: usize = 10_000;

/// Whether a path of the server's own hosts belongs to AgentFlow's dialect.
pub(crate) fn owns_path(path: &str) -> bool {
    if path == "/shutdown" || path.starts_with("/api/v1/") || openapi::PATHS.contains(&path) {
        return true;
    }
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    matches!(first, "execute" | "session" | "tools" | "lifecycle" | "worker" | "init" | "warmup")
}

/// All named routes of this dialect.
pub(crate) fn routes() -> impl Iterator<Item = String> {
    let own = ["/execute", "/execute/batch", "/tools", "/tools/{name}/schema", "/warmup", "/warmup/status"];
    own.into_iter().chain(control::ROUTES).map(|path| format!("{ROOT}{path}"))
}

pub(crate) async fn serve(
    gateway: &Arc<Gateway>,
    context: &Context,
    who: &Identity,
    path: &str,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    if openapi::PATHS.contains(&path) {
        return openapi::serve(path, parts);
    }
    let synthesis = gateway.synthesis()?;
    let below = path.strip_prefix(ROOT).unwrap_or(path).trim_end_matches('/');
    let below = if below == "/shutdown" { "/server/shutdown" } else { below };
    let caller =
        Caller { tenant: context.tenant.clone(), request_id: context.request_id.clone(), origin: context.client.clone() };
    let worker = parts.headers.get(WORKER).and_then(|worker| worker.to_str().ok()).filter(|worker| !worker.is_empty());
    let wanted = match below {
        "/tools" | "/warmup/status" => Method::GET,
        _ if below.starts_with("/tools/") => Method::GET,
        _ => Method::POST,
    };
    let call = Asked { gateway, synthesis, caller: &caller, who, parts, worker };
    let route = match below {
        "/execute" | "/execute/batch" | "/tools" | "/warmup" | "/warmup/status" => true,
        _ if below.starts_with("/tools/") && below.ends_with("/schema") => true,
        _ => control::ROUTES.contains(&below),
    };
    if !route {
        return Ok(json_response(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" })));
    }
    if parts.method != wanted {
        let mut answer = json_response(StatusCode::METHOD_NOT_ALLOWED, &json!({ "detail": "Method Not Allowed" }));
        if let Ok(allow) = HeaderValue::from_str(wanted.as_str()) {
            answer.headers_mut().insert(ALLOW, allow);
        }
        return Ok(answer);
    }
    let (bytes, _turn) = proxy::read_whole(gateway, parts, body).await?;
    let answer = match below {
        "/execute" => call.execute(&bytes).await,
        "/execute/batch" => call.batch(&bytes).await,
        "/tools" => call.tools().await,
        _ if below.starts_with("/tools/") => call.schema(below).await,
        _ => call.control(below, &bytes).await,
    };
    Ok(answer)
}

/// Whether an answer closes its connection. Each sync call of the original client runs in a separate event loop with a shared
/// connection pool, so a connection that is kept fails the next call with "Event loop is closed".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    Never,
    /// `connection_close` is on.
    Workers,
    /// The original client calls.
    Always,
}

impl Closing {
    pub(crate) fn applies_to(self, owner: Owner) -> bool {
        match self {
            Self::Never => false,
            Self::Workers => matches!(owner, Owner::AgentFlow | Owner::Health),
            Self::Always => true,
        }
    }
}

pub(crate) fn closing(gateway: &Gateway, parts: &Parts) -> Closing {
    let agent = parts.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    if parts.version > http::Version::HTTP_11 {
        Closing::Never
    } else if parts.headers.contains_key(WORKER) && agent.starts_with(ORIGINAL_CLIENT) {
        Closing::Always
    } else if gateway.workers_switches().connection_close {
        Closing::Workers
    } else {
        Closing::Never
    }
}

/// One request.
pub(super) struct Asked<'a> {
    pub(super) gateway: &'a Arc<Gateway>,
    pub(super) synthesis: &'a Arc<Synthesis>,
    pub(super) caller: &'a Caller,
    pub(super) who: &'a Identity,
    pub(super) parts: &'a Parts,
    /// The worker in the header.
    pub(super) worker: Option<&'a str>,
}

/// An answer in pydantic's form.
pub(super) fn unprocessable(detail: Value) -> Response<Body> {
    json_response(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "detail": detail }))
}

/// An answer in AgentFlow's envelope.
pub(super) fn enveloped(status: u16, answer: &ToolAnswer) -> Response<Body> {
    json_response(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), answer)
}

impl Asked<'_> {
    fn done(&self, done: Done, is_tool: bool) -> Response<Body> {
        let as_200 = is_tool && self.gateway.workers_switches().failures_as_200;
        let status = if as_200 { 200 } else { done.status };
        let mut answer = Response::new(Body::from(done.json.get().to_owned()));
        *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        answer
    }

    /// Identifies this request, to recognize its repetition.
    fn request(&self, path: &'static str, bytes: &bytes::Bytes) -> impl Fn() -> [u8; 32] + Send + Sync + use<> {
        let (tenant, bytes) = (self.caller.tenant.clone(), bytes.clone());
        move || {
            let mut hash = sha2::Sha256::default();
            for part in [tenant.as_str().as_bytes(), path.as_bytes(), &bytes] {
                sha2::Digest::update(&mut hash, (part.len() as u64).to_le_bytes());
                sha2::Digest::update(&mut hash, part);
            }
            sha2::Digest::finalize(hash).into()
        }
    }

    async fn execute(&self, bytes: &bytes::Bytes) -> Response<Body> {
        const FIELDS: [check::Field; 5] = [
            required("worker_id", Kind::Text),
            required("action", Kind::Text),
            optional("params", Kind::Object),
            optional("timeout", Kind::MaybeInteger),
            optional("async_mode", Kind::Bool),
        ];
        let mut body = match check::read(&self.parts.headers, bytes, &FIELDS, self.worker) {
            Ok(body) => body,
            Err(detail) => return unprocessable(detail),
        };
        let action = Action {
            name: body.text("action").unwrap_or_default(),
            params: Some(body.object("params")),
            timeout: body.integer("timeout"),
        };
        let execute = Execute { action, ..execute_from(&mut body) };
        let done = self.synthesis.execute(self.caller, execute, self.request("execute", bytes)).await;
        self.done(done, true)
    }

    async fn batch(&self, bytes: &bytes::Bytes) -> Response<Body> {
        const FIELDS: [check::Field; 4] = [
            required("worker_id", Kind::Text),
            required("actions", Kind::Objects),
            optional("parallel", Kind::Bool),
            optional("stop_on_error", Kind::Bool),
        ];
        let mut body = match check::read(&self.parts.headers, bytes, &FIELDS, self.worker) {
            Ok(body) => body,
            Err(detail) => return unprocessable(detail),
        };
        let actions = body.list("actions");
        if actions.len() > MAX_ACTIONS {
            let trace_id = trace_id();
            let meta = Meta { tool: "batch:execute", took: None, resource_type: None, session_id: None, trace_id: &trace_id };
            let message = format!("a batch has at most {MAX_ACTIONS} actions, and this one has {}", actions.len());
            return enveloped(400, &ToolAnswer::new(code::INVALID_REQUEST_FORMAT, message, json!({}), meta));
        }
        let batch = Batch {
            actions: actions.into_iter().map(action).collect(),
            parallel: body.truth("parallel", false),
            stop_on_error: body.truth("stop_on_error", true),
            each: execute_from(&mut body),
        };
        let done = self.synthesis.execute_batch(self.caller, batch, self.request("batch", bytes)).await;
        self.done(done, false)
    }

    async fn tools(&self) -> Response<Body> {
        let query = self.parts.uri.query();
        let hidden = query_value(query, "include_hidden").unwrap_or_else(|| "false".to_owned());
        let Some(include_hidden) = check::truth(&hidden) else {
            return unprocessable(json!([{
                "type": "bool_parsing",
                "loc": ["query", "include_hidden"],
                "msg": "Input should be a valid boolean, unable to interpret input",
                "input": hidden,
            }]));
        };
        self.synthesis.discovered().await;
        let tools = self.synthesis.tools(include_hidden);
        let tools: Option<Vec<Value>> = match query_value(query, "format") {
            None => Some(tools.iter().map(|tool| tool.json()).collect()),
            Some(format) => tools.iter().map(|tool| tool.formatted(&format)).collect(),
        };
        match tools {
            Some(tools) => {
                let mut answer = json!({ "count": tools.len(), "tools": tools });
                let problems = self.synthesis.problems();
                if !problems.is_empty() {
                    answer["errors"] = json!(problems);
                }
                json_response(StatusCode::OK, &answer)
            }
            None => {
                let message = "format is openai, openai_responses, anthropic, mcp or agentflow";
                json_response(StatusCode::BAD_REQUEST, &json!({ "status": "error", "message": message }))
            }
        }
    }

    async fn schema(&self, below: &str) -> Response<Body> {
        let name = below.strip_prefix("/tools/").and_then(|rest| rest.strip_suffix("/schema")).unwrap_or_default();
        if self.synthesis.tool(name).is_none() {
            self.synthesis.discovered().await;
        }
        match self.synthesis.tool(name) {
            Some(tool) => json_response(StatusCode::OK, &tool.json()),
            None => {
                let message = format!("Tool not found: {}", name.chars().take(200).collect::<String>());
                json_response(StatusCode::NOT_FOUND, &json!({ "status": "error", "message": message }))
            }
        }
    }
}

/// Reads all fields of a call except its action.
fn execute_from(body: &mut Checked) -> Execute {
    let tokens = ["tokens", "usage", "token_usage"].iter().find_map(|name| body.any(name));
    Execute {
        worker: body.text("worker_id").unwrap_or_default(),
        trace_id: body.text("trace_id").filter(|id| (1..=128).contains(&id.len())),
        task: body.text("task_id").filter(|id| !id.is_empty()),
        parent: body.integer("parent").and_then(|step| u64::try_from(step).ok()),
        tokens: tokens.and_then(|tokens| serde_json::value::to_raw_value(&tokens).ok()),
        ..Execute::default()
    }
}

/// One action of a batch.
fn action(item: Value) -> Action {
    let Value::Object(mut item) = item else { return Action::default() };
    Action {
        timeout: check::integer(item.get("timeout")),
        name: match item.remove("action") {
            Some(Value::String(name)) => name,
            _ => String::new(),
        },
        params: match item.remove("params") {
            None => Some(Map::new()),
            Some(Value::Object(params)) => Some(params),
            Some(_) => None,
        },
    }
}
