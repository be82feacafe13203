//! AgentFlow Sandbox: workers, their sessions, and tools. The contract is its code. The paths of its documents, without
//! `/api/v1`, work too.
//!
//! All differences: bodies that are not JSON are answered with 400 and JSON where the original broke; errors contain no paths of
//! the server; existing sessions report their status, and a failed one is recreated; a session's own `ttl` and `auto_extend`
//! apply; `trace_id` of a request is kept; a worker that is named only in `X-Worker-ID` is known; other sites' pages may call
//! only from origins that the configuration names.

mod check;
mod control;
#[cfg(test)]
mod tests;
pub(crate) mod types;

pub(crate) use control::*;

use std::sync::Arc;

use arenite_synthesis::answer::{Meta, ToolAnswer, code, trace_id};
use arenite_synthesis::{Action, Batch, Caller, Done, Synthesis};
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::OwnedSemaphorePermit;
use utoipa::ToSchema;

use crate::exchange::{Answered, Exchange};
use crate::gateway::Gateway;
use crate::path::query_value;
use crate::proxy;
use crate::refusal::{Refusal, json_response};
use crate::routes::Route;

use types::{ErrorMessage, ExecuteBatchRequest, ExecuteRequest, Message, ToolList};

/// The root of its paths, which may be left out.
pub(crate) const ROOT: &str = "/api/v1";
/// The worker, in a header of each request of its client.
pub(crate) const WORKER: &str = "x-worker-id";
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
            Caller { tenant: context.tenant().clone(), request_id: context.request_id.clone(), origin: context.client.clone() };
        let worker = exchange.parts.headers.get(WORKER).and_then(|worker| worker.to_str().ok());
        let (body, permit) = proxy::read_whole(&exchange.gateway, &exchange.parts, body).await?;
        Ok(Self { exchange, synthesis, caller, worker: worker.filter(|worker| !worker.is_empty()), body, _permit: permit })
    }
}

/// The answer to a body that can't be used.
type Refused = Box<Response<Body>>;

fn answered(answer: Result<Response<Body>, Refused>) -> Answered {
    Ok(answer.unwrap_or_else(|refused| *refused))
}

pub(crate) async fn execute(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.execute().await)
}

pub(crate) async fn execute_batch(exchange: &mut Exchange) -> Answered {
    answered(Asked::read(exchange).await?.batch().await)
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
            Self::Workers => route.surface.is_agentflow,
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
fn unprocessable(detail: Value) -> Response<Body> {
    json_response(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "detail": detail }))
}

/// A failure outside of AgentFlow's envelope.
fn failed(status: StatusCode, message: impl Into<String>) -> Response<Body> {
    json_response(status, &json!(ErrorMessage { status: "error", message: message.into() }))
}

/// An answer in AgentFlow's envelope.
fn enveloped(status: u16, answer: &ToolAnswer) -> Response<Body> {
    json_response(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), answer)
}

impl Asked<'_> {
    /// Reads a strict body.
    fn strict<T: DeserializeOwned + ToSchema>(&self) -> Result<(T, Message), Refused> {
        check::read(self).map_err(|detail| unprocessable(detail).into())
    }

    /// Adds the worker of the header to a body that names none.
    fn name_worker(&self, body: &mut Map<String, Value>) {
        if let Some(worker) = self.worker {
            body.entry("worker_id").or_insert_with(|| worker.into());
        }
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

    async fn execute(&self) -> Result<Response<Body>, Refused> {
        let (request, message) = self.strict::<ExecuteRequest>()?;
        let action = Action { name: request.action, params: Some(request.params), timeout: request.timeout };
        let execute = message.execute(request.worker_id, action);
        let done = self.synthesis.execute(&self.caller, execute, self.request("execute")).await;
        Ok(self.done(done, true))
    }

    async fn batch(&self) -> Result<Response<Body>, Refused> {
        let (request, message) = self.strict::<ExecuteBatchRequest>()?;
        let count = request.actions.len();
        if count > MAX_ACTIONS {
            let trace_id = trace_id();
            let meta = Meta { tool: "batch:execute", took: None, resource_type: None, session_id: None, trace_id: &trace_id };
            let message = format!("a batch has at most {MAX_ACTIONS} actions, and this one has {count}");
            return Ok(enveloped(400, &ToolAnswer::new(code::INVALID_REQUEST_FORMAT, message, json!({}), meta)));
        }
        let batch = Batch {
            each: message.execute(request.worker_id, Action::default()),
            actions: request.actions.into_iter().map(Action::from).collect(),
            parallel: request.parallel,
            stop_on_error: request.stop_on_error,
        };
        let done = self.synthesis.execute_batch(&self.caller, batch, self.request("batch")).await;
        Ok(self.done(done, false))
    }

    async fn tools(&self) -> Response<Body> {
        let query = self.exchange.parts.uri.query();
        let hidden = query_value(query, "include_hidden").map_or(Value::Bool(false), Value::String);
        let Some(include_hidden) = check::truth(&hidden) else {
            let loc = ["query", "include_hidden"];
            return unprocessable(json!([check::problem("bool_parsing", loc, check::NOT_BOOLEAN, hidden)]));
        };
        self.synthesis.discovered().await;
        let tools = self.synthesis.tools(include_hidden);
        let tools: Option<Vec<Value>> = match query_value(query, "format") {
            None => Some(tools.iter().map(|tool| json!(tool.info())).collect()),
            Some(format) => tools.iter().map(|tool| tool.formatted(&format)).collect(),
        };
        match tools {
            Some(tools) => {
                let list = ToolList { count: tools.len(), tools, errors: self.synthesis.problems() };
                json_response(StatusCode::OK, &json!(list))
            }
            None => failed(StatusCode::BAD_REQUEST, "format is openai, openai_responses, anthropic, mcp or agentflow"),
        }
    }

    async fn schema(&self) -> Response<Body> {
        let name = self.exchange.param("tool_name");
        if self.synthesis.tool(name).is_none() {
            self.synthesis.discovered().await;
        }
        match self.synthesis.tool(name) {
            Some(tool) => json_response(StatusCode::OK, &json!(tool.info())),
            None => {
                let name: String = name.chars().take(200).collect();
                failed(StatusCode::NOT_FOUND, format!("Tool not found: {name}"))
            }
        }
    }
}
