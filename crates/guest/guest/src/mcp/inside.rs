//! MCP for programs of the sandbox, beside the API that they reach on loopback. Each tool call goes through that API, and so is
//! recorded as any other.

use std::sync::Arc;

use arenite_mcp::rmcp::model::{JsonObject, Tool};
use arenite_mcp::{Endpoint, Error, MAX_BODY, Server, ToolResult, Tools, hub_request, read_answer, read_list};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::mpsc;
use tower_service::Service;

use arenite_guest_runtime::http::ApiError;

/// The host name in requests from programs of the sandbox.
const HERE: HeaderValue = HeaderValue::from_static("127.0.0.1:8080");

/// Calls tools over the sandbox's API.
struct Inside(Router);

impl Inside {
    async fn ask(&self, mut request: Request<bytes::Bytes>) -> Response {
        request.headers_mut().insert(HOST, HERE);
        match self.0.clone().call(request.map(Body::from)).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }
}

impl Tools for Inside {
    /// All callers inside are the sandbox.
    type Caller = ();

    fn introduction(&self) -> (&'static str, &'static str) {
        ("arenite-sandbox", "The tools of the sandbox that you are in: shell, files, code, browser and desktop.")
    }

    async fn list(&self, (): ()) -> Result<Vec<Tool>, Error> {
        read_list(self.ask(hub_request(None, false)).await).await
    }

    async fn call(&self, (): (), name: String, arguments: JsonObject, news: Option<mpsc::Sender<String>>) -> ToolResult {
        read_answer(self.ask(hub_request(Some((&name, &arguments)), news.is_some())).await, news.as_ref()).await
    }
}

/// MCP's routes over an API. `api` answers the tool calls.
pub(crate) fn router(api: Router) -> Router {
    let server = Arc::new(Server::new(Inside(api)));
    let at = |endpoint: Endpoint| {
        let server = Arc::clone(&server);
        any(move |request: Request| async move {
            let (parts, body) = request.into_parts();
            match to_bytes(body, MAX_BODY).await {
                Ok(body) => server.serve(endpoint, parts, body, (), "").await,
                Err(_) => {
                    let why = format!("the body is cut off or larger than {MAX_BODY} bytes");
                    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why).into_response()
                }
            }
        })
    };
    Router::new()
        .route("/mcp", at(Endpoint::Streamable))
        .route("/v1/mcp", at(Endpoint::Streamable))
        .route("/mcp/sse", at(Endpoint::Stream("messages")))
        .route("/sse", at(Endpoint::Stream("mcp/messages")))
        .route("/mcp/messages", at(Endpoint::Messages))
}
