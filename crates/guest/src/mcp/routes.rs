//! The registry in AIO's wire format.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use rmcp::model::JsonObject;
use serde::Deserialize;
use utoipa::{IntoParams, OpenApi};

use super::service::McpError;
use super::types;
use crate::SharedGuest;
use crate::http::{ApiError, Body, Envelope, QueryArgs, Reply, ok};

/// Its part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(servers, tools, call))]
pub struct McpApi;

/// Its routes, under `/v1`.
pub fn router() -> Router<SharedGuest> {
    Router::new()
        .route("/v1/mcp/servers", get(servers))
        .route("/v1/mcp/{server_name}/tools", get(tools))
        .route("/v1/mcp/{server_name}/tools/{tool_name}", post(call))
}

impl From<McpError> for ApiError {
    fn from(error: McpError) -> Self {
        let status = match error {
            McpError::NoServer(_) => StatusCode::NOT_FOUND,
            McpError::TooManyCalls(_) => StatusCode::TOO_MANY_REQUESTS,
            McpError::Refused { .. } => StatusCode::BAD_REQUEST,
            // Not a 5xx: AIO's JavaScript client would make the call again.
            McpError::Configuration { .. } | McpError::NotStarted { .. } | McpError::TimedOut { .. } | McpError::Lost { .. } => {
                StatusCode::FAILED_DEPENDENCY
            }
        };
        let answer = Self::new(status, error.to_string());
        match error {
            McpError::NoServer(_) => answer.hint("GET /v1/mcp/servers?include_hidden=true lists the servers"),
            McpError::Refused { .. } => answer.hint("GET /v1/mcp/{server_name}/tools tells the tools and their arguments"),
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

/// The names of the configured MCP servers.
#[utoipa::path(get, path = "/v1/mcp/servers", tag = "mcp", operation_id = "list_mcp_servers_v1_mcp_servers_get",
    params(ServersQuery), responses((status = 200, body = Envelope<Vec<String>>)))]
async fn servers(State(guest): State<SharedGuest>, QueryArgs(query): QueryArgs<ServersQuery>) -> Reply<Vec<String>> {
    ok(guest.mcp.servers(&guest, query.include_hidden).await?)
}

/// All tools of a server, which is started when it isn't running.
#[utoipa::path(get, path = "/v1/mcp/{server_name}/tools", tag = "mcp",
    operation_id = "list_mcp_tools_v1_mcp__server_name__tools_get",
    params(("server_name" = String, Path, description = "The server")),
    responses((status = 200, body = Envelope<types::ListToolsResult>)))]
async fn tools(State(guest): State<SharedGuest>, Path(server_name): Path<String>) -> Reply<rmcp::model::ListToolsResult> {
    ok(guest.mcp.tools(&guest, &server_name).await?)
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
    Body(arguments): Body<JsonObject>,
) -> Reply<types::Answered> {
    let result = guest.mcp.call(&guest, &server_name, &tool_name, arguments).await?;
    ok(types::Answered::from(result))
}
