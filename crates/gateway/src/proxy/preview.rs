//! Proxying of calls to programs on ports of sandboxes. They are not steps: a page loads hundreds of files for a person to view.
//! What an agent does there, it does by calls that are steps.

use std::sync::Arc;

use arenite_model::ErrorCode;
use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;

use super::link::Link;
use super::outgoing::{Outgoing, Progress, Streamed};
use super::record::Record;
use super::redirect::Redirected;
use super::relay::Relay;
use super::{preview_headers, tunnel};
use crate::auth::{Credential, Identity};
use crate::gateway::{Context, Gateway};
use crate::guard::Host;
use crate::pages;
use crate::preview::{Preview, PreviewOrigin};
use crate::refusal::Refusal;
use crate::target;
use crate::timing::Timing;

/// Passes one call on to a port.
#[allow(clippy::too_many_arguments)]
pub(crate) async fn forward(
    gateway: &Arc<Gateway>,
    context: &Context,
    host: &Host,
    who: &Identity,
    preview: &Preview,
    parts: &mut Parts,
    body: Body,
    timing: &mut Timing,
) -> Result<Response<Body>, Refusal> {
    preview.check()?;
    let lease = target::lease(&gateway.control, &context.tenant, &preview.sandbox_ref).await?;
    timing.mark("wake");
    let id = &lease.sandbox.id;
    if let Some(answer) = preview.to_own_host(gateway, context, host, parts, who, id)? {
        return Ok(answer);
    }
    if let Some(answer) = preview.with_slash(context, parts) {
        return Ok(answer);
    }
    let mut link = match Link::open_port(gateway, id, preview.port).await {
        Ok(link) => link,
        Err(refusal) => return pages::preview::failed(preview.port, parts, refusal),
    };
    timing.mark("dial");
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

    let limit = gateway.config.call_limit;
    let port = preview.port;
    let answer = match tokio::time::timeout(limit, link.send(request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) if progress.is_idle() => return Err(super::late_body()),
        Ok(Err(failed)) if failed.error.is_user() => return Err(Refusal::bad_request("the request's body broke off")),
        Ok(Err(failed)) => {
            let what =
                if failed.error.is_parse() { "answers with what is no HTTP" } else { "closed the connection without an answer" };
            let refusal = Refusal::new(ErrorCode::SandboxFailed, format!("the program on port {port} {what}"));
            return pages::preview::failed(port, parts, refusal.hint("its log may say more"));
        }
        Err(_) => {
            let message = format!("the program on port {port} gave no answer within {} s", limit.as_secs());
            return Err(Refusal::new(ErrorCode::Timeout, message));
        }
    };
    timing.mark("tool");
    let (head, body) = answer.into_parts();
    let bodiless = parts.method == Method::HEAD || head.status == StatusCode::NOT_MODIFIED;
    let owns = |path: &str| target::is_path_of(&preview.sandbox_ref, path, &parts.headers);
    let redirected = Redirected {
        path: parts.uri.path(),
        origin: context.outer_origin(),
        outer: context.outer_path(),
        owns: (preview.origin == PreviewOrigin::Server).then_some(&owns),
        keyed: who.shown == Credential::Header,
        method: &parts.method,
        status: head.status,
    };
    let headers = preview_headers::to_client(&head.headers, context, preview, bodiless, &redirected);
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return tunnel::open(gateway, parts, upgrade, link, lease, headers, Record::default());
    }
    let about = (head.status.as_u16(), &head.headers);
    let relay = Relay::new(Arc::clone(gateway), (link, lease, progress), body, Record::default(), about);
    let mut answer = Response::new(Body::new(relay));
    *answer.status_mut() = head.status;
    *answer.headers_mut() = headers;
    Ok(answer)
}
