//! Browser sign-in: a person presents a key, a token or a ticket once, and from then on a cookie replaces it.
//!
//! The cookie belongs to one host, is not readable by scripts, and is never passed on to a sandbox.

use std::sync::Arc;

use axum::body::Body;
use http::header::{ACCEPT, CACHE_CONTROL, LOCATION, SET_COOKIE};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use utoipa::ToSchema;

use super::presented::{COOKIE_NAME, Credential, Identity, of_handover, of_query, sessions, unauthorized};
use super::{Grant, SESSION_TTL, Scope};
use crate::audit;
use crate::exchange::{Answered, Exchange};
use crate::guard::HostKind;
use crate::pages;
use crate::proxy;
use crate::refusal::Refusal;

const MAX_BODY_BYTES: usize = 16 << 10;

/// Signs a browser in.
#[derive(Deserialize, ToSchema)]
pub(crate) struct SignIn {
    /// A key, a token or a ticket.
    key: String,
}

/// The sign-in page, for a person's request without valid credentials. None for programs.
pub(crate) fn page(exchange: &Exchange) -> Option<Response<Body>> {
    let parts = &exchange.parts;
    let accepts = parts.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_person = exchange.is_navigation || accepts.into_iter().any(|value| value.contains("text/html"));
    if !is_person || parts.method != Method::GET {
        return None;
    }
    let mut answer = match exchange.host.kind {
        HostKind::Server => pages::sign_in::form(),
        // People should not get used to typing keys where sandboxes show their pages.
        HostKind::Sandbox(_) | HostKind::Preview { .. } => pages::sign_in::elsewhere(),
    };
    *answer.status_mut() = StatusCode::UNAUTHORIZED;
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(answer)
}

/// `POST /login` with `{"key": …}`: a key, a token or a ticket.
pub(crate) async fn sign_in(exchange: &mut Exchange) -> Answered {
    let body = exchange.take_body();
    let gateway = &exchange.gateway;
    // The caller is not authenticated yet.
    let body = tokio::time::timeout(gateway.config.connections.head, Limited::new(body, MAX_BODY_BYTES).collect()).await;
    let body = body
        .map_err(|_| proxy::late_body())?
        .map_err(|_| Refusal::bad_request("the body broke off, or is too large"))?
        .to_bytes();
    let shown: SignIn = serde_json::from_slice(&body).map_err(|_| Refusal::bad_request("the body is not {\"key\": text}"))?;
    let given = shown.key.trim();
    let ticket = || Identity::granted(gateway, gateway.tickets.find(given, &exchange.host)?, Credential::Ticket);
    let who = super::check(gateway, given, Credential::Key).or_else(ticket).ok_or_else(unauthorized)?;
    audit::record(gateway, &who.principal, &exchange.context, "sign_in", "", "ok").await;
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer.headers_mut().insert(SET_COOKIE, cookie(exchange, &who)?);
    Ok(answer)
}

/// `POST /logout`.
pub(crate) async fn sign_out(exchange: &mut Exchange) -> Answered {
    sessions(&exchange.parts.headers).for_each(|word| exchange.gateway.sessions.revoke(word));
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let over = format!("{COOKIE_NAME}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    if let Ok(over) = HeaderValue::try_from(over) {
        answer.headers_mut().insert(SET_COOKIE, over);
    }
    Ok(answer)
}

/// Handles a page that a person opened with a key or a ticket in its address: stores it as a cookie, and redirects to the same
/// address without it, so that it stays in no address bar and no history. `query`: as received; the request's own has already
/// lost it.
pub(crate) async fn enter(exchange: &Exchange, query: Option<&str>) -> Result<Option<Response<Body>>, Refusal> {
    let Exchange { gateway, context, host, parts, .. } = exchange;
    if !gateway.needs_credentials() || !exchange.is_opened {
        return Ok(None);
    }
    let Some(who) = of_query(gateway, host, query).or_else(|| of_handover(exchange, query)) else {
        return Ok(None);
    };
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    // One slash: two would name a host.
    let location = format!("{}/{}", context.outer_path(), path.trim_start_matches(['/', '\\']));
    let location = HeaderValue::try_from(location).map_err(|_| Refusal::bad_request("the path can't be led to"))?;
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SEE_OTHER;
    let headers = answer.headers_mut();
    headers.insert(LOCATION, location);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(SET_COOKIE, cookie(exchange, &who)?);
    audit::record(gateway, &who.principal, context, "sign_in", &host.authority, "ok").await;
    Ok(Some(answer))
}

/// Creates a session of this host, which expires with the credential behind it.
fn cookie(exchange: &Exchange, who: &Identity) -> Result<HeaderValue, Refusal> {
    let Exchange { gateway, context, host, .. } = exchange;
    let until = who.end_of(SESSION_TTL);
    let scope = Scope::Host(host.authority.clone());
    let (principal, maker_until, by_ticket) = (Arc::clone(&who.principal), who.until, who.by_ticket);
    let word = gateway.sessions.issue(Grant { principal, until, scope, maker_until, by_ticket })?;
    let seconds = until.saturating_duration_since(std::time::Instant::now()).as_secs();
    // People come to a sandbox's host by a link on the server's, which is another site to browsers.
    let same_site = if host.kind == HostKind::Server { "Strict" } else { "Lax" };
    let secure = if context.base_url().starts_with("https:") { "; Secure" } else { "" };
    let text = format!("{COOKIE_NAME}={word}; Path=/; HttpOnly; SameSite={same_site}; Max-Age={seconds}{secure}");
    HeaderValue::try_from(text).map_err(|_| Refusal::bad_request("no cookie can be made"))
}
