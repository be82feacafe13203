//! `POST /tickets` and `GET /auth`: bodies are bare maps, as in AIO.

use std::sync::Arc;
use std::time::Instant;

use arenite_model::ErrorCode;
use http::header::CACHE_CONTROL;
use http::{HeaderValue, StatusCode};
use serde_json::json;
use utoipa::OpenApi;

use super::presented::{Credential, of_query, unauthorized};
use super::{Grant, Scope};
use crate::exchange::{Answered, Exchange};
use crate::refusal::{Refusal, json_response};

const ORIGINAL_URI: &str = "x-original-uri";

/// These routes' part of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(paths(create_ticket, authenticate))]
pub(crate) struct AuthApi;

/// Creates a ticket, which replaces the caller's credential in `?ticket=` for a short time and for any number of calls.
#[utoipa::path(post, path = "/tickets", tag = "auth", operation_id = "create_ticket_tickets_post",
    responses((status = 200, body = BTreeMap<String, serde_json::Value>)))]
pub(crate) async fn create_ticket(exchange: &mut Exchange) -> Answered {
    let Exchange { gateway, host, caller: who, .. } = exchange;
    if !who.is_lasting() {
        return Err(Refusal::new(ErrorCode::Forbidden, "a ticket can't be used to make another")
            .hint("make it with the API key or a token"));
    }
    if who.principal.inside.is_some() {
        return Err(Refusal::new(ErrorCode::Forbidden, "an agent's token makes no tickets: they would work outside its sandbox"));
    }
    let until = who.end_of(gateway.config.auth.ticket_ttl());
    let (principal, scope) = (Arc::clone(&who.principal), Scope::from_host(host));
    let grant = Grant { principal, until, scope, maker_until: who.until, by_ticket: true };
    let ticket = gateway.tickets.issue(grant)?;
    let left = until.saturating_duration_since(Instant::now());
    let seconds = (left.as_secs_f64().ceil() as u64).min(gateway.config.auth.ticket_ttl().as_secs());
    let mut answer = json_response(StatusCode::OK, &json!({ "ticket": ticket, "expires_in": seconds }));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}

/// Checks for a proxy whether a request may pass: by the credentials of this call, or of the address in `x-original-uri`.
#[utoipa::path(get, path = "/auth", tag = "auth", operation_id = "authenticate_request_auth_get",
    responses((status = 200, body = BTreeMap<String, String>)))]
pub(crate) async fn authenticate(exchange: &mut Exchange) -> Answered {
    let Exchange { gateway, host, caller, parts, .. } = exchange;
    let original = parts.headers.get(ORIGINAL_URI).and_then(|value| value.to_str().ok());
    let query = original.and_then(|address| address.split_once('?')).map(|(_, query)| query);
    let who = match caller.shown {
        Credential::Nothing => of_query(gateway, host, query).ok_or_else(unauthorized)?,
        _ => caller.clone(),
    };
    let mut answer =
        json_response(StatusCode::OK, &json!({ "status": "authenticated", "tenant": who.principal.tenant.to_string() }));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}
