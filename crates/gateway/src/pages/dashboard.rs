//! `/index.html` of a sandbox: its dashboard, with the sandbox's pages in frames.
//!
//! The framed pages are hostile, and some refuse to be framed by another origin. So the dashboard is on the sandbox's own host
//! with them, where there are no control routes. A browser that opens it on the server's host is redirected there. Without such a
//! host, the page is the same, except for what the sandbox itself serves.

use arenite_control::Sandbox;
use arenite_model::{ErrorCode, IdlePolicy, SandboxName};
use axum::body::Body;
use http::request::Parts;
use http::{Method, Response};

use super::Page;
use crate::auth::Identity;
use crate::gateway::{Context, Gateway};
use crate::guard::{Host, HostKind};
use crate::own_host;
use crate::path::Path;
use crate::refusal::Refusal;
use crate::request::require;
use crate::target::{self, SandboxRef, Target};

pub(super) static PAGE: Page = Page::new(
    include_str!("../../../../web/dashboard.html"),
    &[include_str!(concat!(env!("OUT_DIR"), "/dashboard.css"))],
    &[include_str!(concat!(env!("OUT_DIR"), "/dashboard.js"))],
)
.may("frame-src 'self'; img-src data: blob:");

pub(crate) async fn serve(
    gateway: &Gateway,
    context: &Context,
    host: &Host,
    who: &Identity,
    path: &Path,
    parts: &Parts,
) -> Result<Response<Body>, Refusal> {
    require(parts, &[Method::GET, Method::HEAD])?;
    let target = target::find(path, &parts.headers, &host.kind)?;
    let sandbox = find_sandbox(gateway, context, &target).await?;
    if host.kind == HostKind::Server
        && own_host::is_opened(parts)
        && let Some(domain) = own_host::domain(gateway, context, host)
        && let Some(answer) = own_host::lead(gateway, context, parts, who, &format!("{}.{domain}", sandbox.id), "/index.html")?
    {
        return Ok(answer);
    }
    let place = if host.kind == HostKind::Server { "shared" } else { "own" };
    let expires = sandbox.expires_at.map_or_else(String::new, |at| at.to_string());
    let ends_idle = sandbox.spec.idle_policy == IdlePolicy::Delete && !sandbox.name.is_default();
    let idle = sandbox.spec.idle_timeout_seconds.filter(|_| ends_idle);
    Ok(PAGE.with(&[
        ("{NAME}", sandbox.name.as_str()),
        ("{PLACE}", place),
        ("{CONSOLE}", &console(context, host)),
        ("{EXPIRES}", &expires),
        ("{IDLE}", &idle.map_or_else(String::new, |seconds| seconds.to_string())),
    ]))
}

/// Only reads: neither resumes nor creates a sandbox, except `default`, which every call creates.
async fn find_sandbox(gateway: &Gateway, context: &Context, target: &Target) -> Result<Sandbox, Refusal> {
    match target::look_up(&gateway.control, &context.tenant, &target.sandbox_ref).await {
        Err(refusal) if refusal.code == ErrorCode::NotFound && is_default(&target.sandbox_ref) => {
            Ok(target::lease(&gateway.control, &context.tenant, &target.sandbox_ref).await?.sandbox.as_ref().clone())
        }
        other => other,
    }
}

fn is_default(sandbox_ref: &SandboxRef) -> bool {
    matches!(sandbox_ref, SandboxRef::Name(name) if name.as_str() == SandboxName::DEFAULT)
}

/// The console's address for this client.
fn console(context: &Context, host: &Host) -> String {
    let Some((scheme, rest)) = context.base_url.split_once("://") else { return "/".to_owned() };
    match &host.kind {
        HostKind::Sandbox(id) => {
            let of_server = rest.strip_prefix(id.as_str()).and_then(|rest| rest.strip_prefix('.')).unwrap_or(rest);
            format!("{scheme}://{of_server}/")
        }
        _ => format!("{}/", context.base_url),
    }
}
