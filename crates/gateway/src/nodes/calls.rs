//! Calls that this node makes to others by itself, for a caller: MCP's tools work on sandboxes of all nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use arenite_control::CreateRequest;
use arenite_control::tenants::Principal;
use arenite_model::{ErrorCode, NodeName, SandboxName, TenantId};
use axum::body::Body;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use crate::auth::Credential;
use crate::dialect;
use crate::gateway::{Context, Gateway};
use crate::guard::{Host, HostKind};
use crate::refusal::Refusal;
use crate::target::{SandboxRef, Target};

use super::pass::{Attempt, Passed, send_to};

/// Largest answer about a sandbox, in bytes.
const MAX_ANSWER: usize = 1 << 20;

impl Passed {
    pub(crate) fn from_context(context: &Context) -> Self {
        let (scheme, authority) = context.outer_origin().split_once("://").unwrap_or_default();
        let client = context.client.as_deref().and_then(|client| client.parse().ok());
        Self {
            principal: Principal::clone(&context.principal),
            shown: Credential::Header,
            by_ticket: false,
            host: Host { authority: authority.to_owned(), kind: HostKind::Server },
            client: client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            is_https: scheme == "https",
            prefix: context.outer_path().to_owned(),
            is_repeat: false,
            is_mcp: context.dialect == dialect::mcp::DIALECT,
        }
    }

    /// A call of this server itself, on behalf of a tenant.
    pub(crate) fn of_server(tenant: TenantId) -> Self {
        Self {
            principal: Principal::server(tenant),
            shown: Credential::Header,
            by_ticket: false,
            host: Host { authority: "localhost".to_owned(), kind: HostKind::Server },
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            is_https: false,
            prefix: String::new(),
            is_repeat: false,
            is_mcp: false,
        }
    }
}

/// The answer to a call of a sandbox's guest, if the sandbox is on another node.
pub(crate) async fn call_guest(
    gateway: &Gateway,
    context: &Context,
    target: &Target,
    request: &Request<Bytes>,
) -> Result<Option<Response<Body>>, Refusal> {
    let SandboxRef::Name(name) = &target.sandbox_ref else { return Ok(None) };
    let Some(node) = gateway.control.owner(context.tenant(), target.sandbox_ref.key()).await? else { return Ok(None) };
    let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
    let uri = format!("/sandbox/{name}{}{query}", target.path.raw);
    let mut passed = Request::new(Body::from(request.body().clone()));
    *passed.method_mut() = request.method().clone();
    *passed.uri_mut() = uri.parse().map_err(|_| Refusal::bad_request("the path can't be read"))?;
    passed.headers_mut().clone_from(request.headers());
    let answer = send_to(gateway, &node, &Passed::from_context(context), passed, Attempt::Wait).await?;
    if answer.status() == StatusCode::NOT_FOUND {
        gateway.control.forget_owner(context.tenant(), &target.sandbox_ref.key());
    }
    Ok(Some(answer))
}

/// Deletes a sandbox of another node that runs. False: there is none.
pub(crate) async fn delete(gateway: &Gateway, context: &Context, name: &SandboxName) -> Result<bool, Refusal> {
    let key = SandboxRef::Name(name.clone()).key();
    let owner = gateway.control.owner(context.tenant(), key.clone()).await?;
    let Some(node) = owner.filter(|node| gateway.control.may_answer(node)) else { return Ok(false) };
    let passed = Passed::from_context(context);
    let answer = send_json(gateway, &passed, &node, Method::DELETE, &format!("/api/v2/sandboxes/{name}"), None).await;
    gateway.control.forget_owner(context.tenant(), &key);
    answer.map(|_| true)
}

/// Creates a sandbox on the node that it is placed on. None: on this one.
pub(crate) async fn create(
    gateway: &Arc<Gateway>,
    context: &Context,
    path: &'static str,
    arguments: &Value,
) -> Result<Option<Value>, Refusal> {
    // An agent's children are made beside it.
    if context.principal.inside.is_some() {
        return Ok(None);
    }
    let template = arguments["environment"].as_str().map(str::to_owned);
    let wish = gateway.control.placement_wish(context.tenant(), &CreateRequest { template, ..CreateRequest::default() });
    let Some(node) = gateway.control.place(&wish, &[])? else { return Ok(None) };
    send_json(gateway, &Passed::from_context(context), &node, Method::POST, path, Some(arguments)).await.map(Some)
}

/// The JSON of a success.
pub(super) async fn send_json(
    gateway: &Gateway,
    passed: &Passed,
    node: &NodeName,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Refusal> {
    let mut request = Request::new(body.map_or_else(Body::empty, |body| Body::from(body.to_string())));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().map_err(|_| Refusal::bad_request("the path can't be read"))?;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let (head, body) = send_to(gateway, node, passed, request, Attempt::Wait).await?.into_parts();
    let broken = |_| Refusal::new(ErrorCode::SandboxFailed, format!("the answer of the node {node} broke off"));
    let bytes = Limited::new(body, MAX_ANSWER).collect().await.map_err(broken)?.to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    if head.status.is_success() {
        return Ok(answer);
    }
    let message = ["error", "message", "detail"].iter().find_map(|key| answer[key].as_str());
    let message = message.map_or_else(|| format!("the node {node} answered with status {}", head.status), str::to_owned);
    let code = ErrorCode::ALL.into_iter().find(|code| code.http_status() == head.status.as_u16());
    Err(Refusal::new(code.unwrap_or(ErrorCode::Internal), message))
}
