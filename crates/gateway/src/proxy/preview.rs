//! Proxying of calls to programs on ports of sandboxes. They are not steps: a page loads hundreds of files for a person to view.
//! What an agent does there, it does by calls that are steps.

use std::sync::Arc;
use std::time::Instant;

use arenite_control::Lease;
use arenite_model::ErrorCode;
use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, StatusCode};
use http_body::Body as _;

use super::call::Called;
use super::link::{Link, PortFailure};
use super::outgoing::{Outgoing, Progress, Streamed};
use super::record::Record;
use super::redirect::Redirected;
use super::relay::Relay;
use super::{preview_headers, tunnel};
use crate::auth::Credential;
use crate::exchange::{Answered, Exchange};
use crate::gateway::{Context, Gateway};
use crate::pages;
use crate::preview::{Preview, PreviewOrigin};
use crate::refusal::Refusal;
use crate::target;

/// Passes a request on to a port of its sandbox, and the answer back.
pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let preview = exchange.take_preview()?;
    preview.check()?;
    let lease = target::lease(&exchange.gateway, &exchange.context, &preview.sandbox_ref).await?;
    exchange.timing.mark("wake");
    if let Some(answer) = preview.to_own_host(exchange, &lease.sandbox.id)? {
        return Ok(answer);
    }
    if let Some(answer) = preview.with_slash(exchange) {
        return Ok(answer);
    }
    let body = exchange.take_body();
    let Exchange { gateway, context, parts, caller, timing, .. } = exchange;
    let called = match call(gateway, context, &preview, lease, parts, body).await {
        Ok(called) => called,
        Err(failed) if failed.of_program => {
            return pages::preview::failed(preview.port, exchange.is_navigation, failed.refusal);
        }
        Err(failed) => return Err(failed.refusal),
    };
    timing.mark_at("dial", called.dialled);
    timing.mark("tool");
    let status = called.answer.status();
    let bodiless = parts.method == Method::HEAD || status == StatusCode::NOT_MODIFIED;
    let owns = |path: &str| target::is_path_of(&preview.sandbox_ref, path, &parts.headers);
    let redirected = Redirected {
        path: parts.uri.path(),
        origin: context.outer_origin(),
        outer: context.outer_path(),
        owns: (preview.origin == PreviewOrigin::Server).then_some(&owns),
        keyed: caller.shown == Credential::Header,
        method: &parts.method,
        status,
    };
    let headers = preview_headers::to_client(called.answer.headers(), context, &preview, bodiless, &redirected);
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return tunnel::open(exchange, called, headers);
    }
    Ok(Relay::response(gateway, called, headers))
}

/// Calls a port of a leased sandbox, and waits for the head of the answer.
pub(super) async fn call(
    gateway: &Arc<Gateway>,
    context: &Context,
    preview: &Preview,
    lease: Lease,
    parts: &Parts,
    body: Body,
) -> Result<Called, PortFailure> {
    let port = preview.port;
    let mut link = Link::open_port(gateway, &lease.sandbox.id, port).await?;
    let dialled = Instant::now();
    let upgrade = tunnel::is_wanted(parts);
    let progress = Arc::new(Progress::default());
    let outgoing = if body.is_end_stream() {
        progress.sent();
        Outgoing::held(Bytes::new())
    } else {
        Outgoing::Streamed(Streamed::new(gateway, body, Record::default(), Arc::clone(&progress)))
    };
    let mut request = Request::new(outgoing);
    *request.method_mut() = parts.method.clone();
    let query = parts.uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let path = if preview.path.is_empty() { "/" } else { &preview.path };
    *request.uri_mut() =
        format!("{path}{query}").parse().map_err(|_| Refusal::bad_request("the path or the query can't be read"))?;
    *request.headers_mut() = preview_headers::to_program(&parts.headers, context, preview, upgrade);
    let spans = context.trace.as_ref().map(|trace| trace.call(request.headers_mut()));

    let limit = gateway.config.call_limit;
    let answer = match tokio::time::timeout(limit, link.send(request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) if progress.is_idle() => return Err(super::late_body().into()),
        Ok(Err(failed)) if failed.error.is_user() => {
            return Err(Refusal::bad_request("the request's body broke off").into());
        }
        Ok(Err(failed)) => {
            let what =
                if failed.error.is_parse() { "answers with what is no HTTP" } else { "closed the connection without an answer" };
            let refusal = Refusal::new(ErrorCode::SandboxFailed, format!("the program on port {port} {what}"));
            return Err(PortFailure::of_program(refusal.hint("its log may say more")));
        }
        Err(_) => {
            let message = format!("the program on port {port} gave no answer within {} s", limit.as_secs());
            return Err(Refusal::new(ErrorCode::Timeout, message).into());
        }
    };
    if let Some(spans) = spans {
        spans.finish(lease.sandbox.id.as_str(), dialled, answer.headers());
    }
    Ok(Called { link, lease, progress, record: Record::default(), checkpointed: None, answer, dialled })
}
