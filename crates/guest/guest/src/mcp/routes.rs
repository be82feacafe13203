//! The registry in AIO's wire format.
//!
//! A call that accepts `application/x-ndjson` is answered in JSON lines: `{"progress": "…"}` for each progress message, then
//! `{"status": 200, "answer": …}` with the ordinary answer.

use std::convert::Infallible;
use std::pin::Pin;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use rmcp::model::JsonObject;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use utoipa::{IntoParams, OpenApi};

use super::service::McpError;
use super::{hub, types};
use crate::SharedGuest;
use crate::tools::{Caller, Progress};
use arenite_guest_runtime::http::{Address, ApiError, Body, Envelope, QueryArgs, Reply, ok};

/// Progress messages that wait for a slow client. When it is full, the tool waits.
const NEWS: usize = 64;
const JSON_LINES: &str = "application/x-ndjson";

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(servers, tools, call))]
pub struct McpApi;

/// The service's routes, under `/v1`.
pub fn router(state: SharedGuest) -> Router {
    Router::new()
        .route("/v1/mcp/servers", get(servers))
        .route("/v1/mcp/{server_name}/tools", get(tools))
        .route("/v1/mcp/{server_name}/tools/{tool_name}", post(call))
        .with_state(state)
}

impl From<McpError> for ApiError {
    fn from(error: McpError) -> Self {
        let status = match error {
            McpError::NoServer(_) | McpError::NoTool(_) => StatusCode::NOT_FOUND,
            McpError::TooManyCalls(_) => StatusCode::TOO_MANY_REQUESTS,
            McpError::Refused { .. } => StatusCode::BAD_REQUEST,
            // Not a 5xx: AIO's JavaScript client would repeat the call.
            McpError::Configuration { .. } | McpError::NotStarted { .. } | McpError::TimedOut { .. } | McpError::Lost { .. } => {
                StatusCode::FAILED_DEPENDENCY
            }
        };
        let answer = Self::new(status, error.to_string());
        match error {
            McpError::NoServer(_) => answer.hint("GET /v1/mcp/servers?include_hidden=true lists the servers"),
            McpError::NoTool(_) | McpError::Refused { .. } => {
                answer.hint("GET /v1/mcp/{server_name}/tools tells the tools and their arguments")
            }
            McpError::TimedOut { .. } => answer.hint("`timeout` in the server's configuration sets the limit, in seconds"),
            McpError::Lost { .. } => answer.hint("the next call starts it again"),
            _ => answer,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ServersQuery {
    /// Also those that are configured as hidden.
    #[serde(default)]
    #[param(default = false)]
    include_hidden: bool,
}

/// The names of the MCP servers: the sandbox's own, and the configured ones.
#[utoipa::path(get, path = "/v1/mcp/servers", tag = "mcp", operation_id = "list_mcp_servers_v1_mcp_servers_get",
    params(ServersQuery), responses((status = 200, body = Envelope<Vec<String>>)))]
async fn servers(State(guest): State<SharedGuest>, QueryArgs(query): QueryArgs<ServersQuery>) -> Reply<Vec<String>> {
    ok(hub::servers(&guest, query.include_hidden).await?)
}

/// All tools of a server, which is started when it isn't running.
#[utoipa::path(get, path = "/v1/mcp/{server_name}/tools", tag = "mcp",
    operation_id = "list_mcp_tools_v1_mcp__server_name__tools_get",
    params(("server_name" = String, Path, description = "The server")),
    responses((status = 200, body = Envelope<types::ListToolsResult>)))]
async fn tools(State(guest): State<SharedGuest>, Path(server_name): Path<String>) -> Reply<rmcp::model::ListToolsResult> {
    ok(hub::tools(&guest, &server_name).await?)
}

/// Calls a tool of a server with the body as its arguments. A tool's own failure is a result with `isError`.
#[utoipa::path(post, path = "/v1/mcp/{server_name}/tools/{tool_name}", tag = "mcp",
    operation_id = "execute_mcp_tool_v1_mcp__server_name__tools__tool_name__post",
    params(("server_name" = String, Path, description = "The server"),
        ("tool_name" = String, Path, description = "Name of the tool")),
    request_body = types::ToolArguments, responses((status = 200, body = Envelope<types::CallToolResult>)))]
async fn call(
    State(guest): State<SharedGuest>,
    Path((server_name, tool_name)): Path<(String, String)>,
    headers: HeaderMap,
    Body(arguments): Body<JsonObject>,
) -> Response {
    let address = Address::from_headers(&headers);
    let wants_news = headers.get(header::ACCEPT).is_some_and(|accept| accept.as_bytes() == JSON_LINES.as_bytes());
    if !wants_news {
        let caller = Caller { guest, address, progress: Progress::default() };
        return answer(caller, server_name, tool_name, arguments).await.into_response();
    }
    let (sender, news) = mpsc::channel(NEWS);
    let caller = Caller { guest, address, progress: Progress::to(sender) };
    let following = Following { news, work: Some(Box::pin(answer(caller, server_name, tool_name, arguments))), last: None };
    let lines = futures_util::stream::unfold(following, |mut following| async move {
        let line = following.next().await?;
        Some((Ok::<_, Infallible>(line), following))
    });
    let mut response = Response::new(axum::body::Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON_LINES));
    response
}

async fn answer(caller: Caller, server: String, tool: String, arguments: JsonObject) -> Reply<types::Answered> {
    ok(types::Answered::from(hub::call(caller, &server, &tool, arguments).await?))
}

/// A call in progress, as lines. Dropping it drops the call.
struct Following {
    news: mpsc::Receiver<String>,
    work: Option<Pin<Box<dyn Future<Output = Reply<types::Answered>> + Send>>>,
    last: Option<Bytes>,
}

impl Following {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(work) = &mut self.work {
            tokio::select! {
                biased;
                Some(text) = self.news.recv() => return Some(line(&json!({"progress": text}))),
                reply = work => {
                    self.work = None;
                    self.last = Some(match reply {
                        Ok(answer) => line(&json!({"status": 200, "answer": answer})),
                        Err(error) => {
                            let answer = Envelope::<()> { success: false, message: Some(error.message), data: None, hint: error.hint };
                            line(&json!({"status": error.status.as_u16(), "answer": answer}))
                        }
                    });
                }
            }
        }
        // The sender is dropped with the work, so this ends.
        if let Some(text) = self.news.recv().await {
            return Some(line(&json!({"progress": text})));
        }
        self.last.take()
    }
}

fn line(value: &serde_json::Value) -> Bytes {
    format!("{value}\n").into()
}
