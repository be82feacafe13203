//! AgentFlow Sandbox: workers, their sessions, and tools. The contract is its code. The paths of its documents, without
//! `/api/v1`, work too.
//!
//! All differences: bodies that are not JSON are answered with 400 and JSON where the original broke; errors contain no paths of
//! the server; existing sessions report their status, and a failed one is recreated; a session's own `ttl` and `auto_extend`
//! apply; `trace_id` of a request is kept; a worker that is named only in `X-Worker-ID` is known; other sites' pages may call
//! only from origins that the configuration names.

mod check;
mod control;
pub(crate) mod openapi;
#[cfg(test)]
mod tests;

pub(crate) use control::*;

use std::sync::Arc;

use arenite_synthesis::answer::{Meta, ToolAnswer, code, trace_id};
use arenite_synthesis::{Action, Batch, Caller, Done, Execute, Synthesis};
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::exchange::{Answered, Exchange};
use crate::gateway::Gateway;
use crate::path::query_value;
use crate::proxy;
use crate::refusal::{Refusal, json_response};
use crate::routes::Route;

use check::{Checked, Kind, optional, required};

/// The root of its paths, which may be left out.
pub(crate) const ROOT: &str = "/api/v1";
/// The worker, in a header of each request of its client.
const WORKER: &str = "x-worker-id";
/// The original client's library; the client sends no other name.
const ORIGINAL_CLIENT: &str = "python-httpx/";
/// The most actions of one batch.
const MAX_ACTIONS: usize = 10_000;

/// One request.
struct Asked<'a> {
    exchange: &'a Exchange,
    synthesis: &'a Arc<Synthesis>,
    caller: Caller,
    /// The worker in the header.
    worker: Option<&'a str>,
    body: Bytes,
    /// The body's share of the memory for bodies.
    _permit: Option<OwnedSemaphorePermit>,
}

impl<'a> Asked<'a> {
    async fn read(exchange: &'a mut Exchange) -> Result<Self, Refusal> {
        let body = exchange.take_body();
        let exchange: &'a Exchange = exchange;
        let synthesis = exchange.gateway.synthesis()?;
        let context = &exchange.context;
        let caller =
            Caller { tenant: context.tenant.clone(), request_id: context.request_id.clone(), origin: context.client.clone() };
        let worker = exchange.parts.headers.get(WORKER).and_then(|worker| worker.to_str().ok());
        let (body, permit) = proxy::read_whole(&exchange.gateway, &exchange.parts, body).await?;
        Ok(Self { exchange, synthesis, caller, worker: worker.filter(|worker| !worker.is_empty()), body, _permit: permit })
    }
}

pub(crate) async fn execute(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.execute().await)
}

pub(crate) async fn execute_batch(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.batch().await)
}

pub(crate) async fn tools(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.tools().await)
}

pub(crate) async fn tool_schema(exchange: &mut Exchange) -> Answered {
    Ok(Asked::read(exchange).await?.schema().await)
}

/// FastAPI's answer for a path that it does not have.
pub(crate) async fn unknown(exchange: &mut Exchange) -> Answered {
    exchange.gateway.synthesis()?;
    Ok(json_response(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" })))
}

/// FastAPI's answer for a method that a path does not have.
pub(crate) fn wrong_method(_: &Exchange, refusal: Refusal) -> Answered {
    let answer = json_response(StatusCode::METHOD_NOT_ALLOWED, &json!({ "detail": "Method Not Allowed" }));
    Ok(refusal.finish(answer))
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
    pub(crate) fn applies_to(self, route: &Route) -> bool {
        match self {
            Self::Never => false,
            Self::Workers => route.surface.closes,
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

/// An answer in pydantic's form.
pub(super) fn unprocessable(detail: Value) -> Response<Body> {
    json_response(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "detail": detail }))
}

/// An answer in AgentFlow's envelope.
pub(super) fn enveloped(status: u16, answer: &ToolAnswer) -> Response<Body> {
    json_response(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), answer)
}

impl Asked<'_> {
    /// Reads the body and checks its fields.
    fn checked(&self, fields: &[check::Field]) -> Result<Checked, Value> {
        check::read(&self.exchange.parts.headers, &self.body, fields, self.worker)
    }

    fn done(&self, done: Done, is_tool: bool) -> Response<Body> {
        let as_200 = is_tool && self.exchange.gateway.workers_switches().failures_as_200;
        let status = if as_200 { 200 } else { done.status };
        let mut answer = Response::new(Body::from(done.json.get().to_owned()));
        *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        answer
    }

    /// Identifies this request, to recognize its repetition.
    fn request(&self, path: &'static str) -> impl Fn() -> [u8; 32] + Send + Sync + use<> {
        let (tenant, bytes) = (self.caller.tenant.clone(), self.body.clone());
        move || {
            let mut hash = sha2::Sha256::default();
            for part in [tenant.as_str().as_bytes(), path.as_bytes(), &bytes] {
                sha2::Digest::update(&mut hash, (part.len() as u64).to_le_bytes());
                sha2::Digest::update(&mut hash, part);
            }
            sha2::Digest::finalize(hash).into()
        }
    }

    async fn execute(&self) -> Response<Body> {
        const FIELDS: [check::Field; 5] = [
            required("worker_id", Kind::Text),
            required("action", Kind::Text),
            optional("params", Kind::Object),
            optional("timeout", Kind::MaybeInteger),
            optional("async_mode", Kind::Bool),
        ];
        let mut body = match self.checked(&FIELDS) {
            Ok(body) => body,
            Err(detail) => return unprocessable(detail),
        };
        let action = Action {
            name: body.text("action").unwrap_or_default(),
            params: Some(body.object("params")),
            timeout: body.integer("timeout"),
        };
        let execute = Execute { action, ..execute_from(&mut body) };
        let done = self.synthesis.execute(&self.caller, execute, self.request("execute")).await;
        self.done(done, true)
    }

    async fn batch(&self) -> Response<Body> {
        const FIELDS: [check::Field; 4] = [
            required("worker_id", Kind::Text),
            required("actions", Kind::Objects),
            optional("parallel", Kind::Bool),
            optional("stop_on_error", Kind::Bool),
        ];
        let mut body = match self.checked(&FIELDS) {
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
        let done = self.synthesis.execute_batch(&self.caller, batch, self.request("batch")).await;
        self.done(done, false)
    }

    async fn tools(&self) -> Response<Body> {
        let query = self.exchange.parts.uri.query();
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
            None => Some(tools.iter().map(|tool| json!(tool.info())).collect()),
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

    async fn schema(&self) -> Response<Body> {
        let name = self.exchange.param("name");
        if self.synthesis.tool(name).is_none() {
            self.synthesis.discovered().await;
        }
        match self.synthesis.tool(name) {
            Some(tool) => json_response(StatusCode::OK, &json!(tool.info())),
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
