//! `/index.html` of a sandbox: its dashboard, with the sandbox's pages in frames.
//!
//! The framed pages are hostile, and some refuse to be framed by another origin. So the dashboard is on the sandbox's own host
//! with them, where there are no control routes. A browser that opens it on the server's host is redirected there. Without such a
//! host, the page is the same, except for what the sandbox itself serves.

use arenite_control::Sandbox;
use arenite_control::tenants::Role;
use arenite_model::{ErrorCode, SandboxName};
use axum::body::Body;
use http::header::LOCATION;
use http::{HeaderValue, Response, StatusCode};

use super::Page;
use super::built::{DASHBOARD_SCRIPT, DASHBOARD_STYLE};
use crate::exchange::{Answered, Exchange};
use crate::gateway::Context;
use crate::guard::{Host, HostKind};
use crate::own_host;
use crate::refusal::Refusal;
use crate::target::{self, SandboxRef, Target};

pub(super) static PAGE: Page = Page::built(include_str!("../../../../web/dashboard.html"), &DASHBOARD_STYLE, &DASHBOARD_SCRIPT)
    .may("frame-src 'self'; img-src data: blob:");

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    if let Some(redirect) = with_slash(exchange) {
        return Ok(redirect);
    }
    let target = exchange.target()?;
    let sandbox = find_sandbox(exchange, &target).await?;
    if exchange.host.kind == HostKind::Server
        && exchange.is_opened
        && let Some(domain) = own_host::domain(exchange)
        && let Some(answer) = own_host::lead(exchange, &format!("{}.{domain}", sandbox.id), "/index.html")?
    {
        return Ok(answer);
    }
    let Exchange { context, host, .. } = exchange;
    let place = if host.kind == HostKind::Server { "shared" } else { "own" };
    Ok(PAGE.with(&[("{NAME}", sandbox.name.as_str()), ("{PLACE}", place), ("{CONSOLE}", &console(context, host))]))
}

/// `/sandbox/{name}` is a folder: relative links of its page need the slash.
fn with_slash(exchange: &Exchange) -> Option<Response<Body>> {
    let path = exchange.path.raw.as_str();
    if path.strip_prefix("/sandbox/")?.contains('/') {
        return None;
    }
    let query = exchange.parts.uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::PERMANENT_REDIRECT;
    answer.headers_mut().insert(LOCATION, HeaderValue::from_str(&format!("{path}/{query}")).ok()?);
    Some(answer)
}

/// Only reads: neither resumes nor creates a sandbox, except `default`, which every call creates.
async fn find_sandbox(exchange: &Exchange, target: &Target) -> Result<Sandbox, Refusal> {
    let Exchange { gateway, context, .. } = exchange;
    let may_create = is_default(&target.sandbox_ref) && context.principal.may(Role::Use);
    match target::look_up(&gateway.control, context, &target.sandbox_ref).await {
        Err(refusal) if refusal.code == ErrorCode::NotFound && may_create => {
            Ok(target::lease(gateway, context, &target.sandbox_ref).await?.sandbox.as_ref().clone())
        }
        other => other,
    }
}

fn is_default(sandbox_ref: &SandboxRef) -> bool {
    matches!(sandbox_ref, SandboxRef::Name(name) if name.as_str() == SandboxName::DEFAULT)
}

/// The console's address for this client.
pub(super) fn console(context: &Context, host: &Host) -> String {
    let Some((scheme, rest)) = context.base_url().split_once("://") else { return "/".to_owned() };
    match &host.kind {
        HostKind::Sandbox(id) => {
            let of_server = rest.strip_prefix(id.as_str()).and_then(|rest| rest.strip_prefix('.')).unwrap_or(rest);
            format!("{scheme}://{of_server}/")
        }
        _ => format!("{}/", context.base_url()),
    }
}
