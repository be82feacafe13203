//! Rows of the audit log, for a server with tenants: changes, sign-ins, and refusals. They contain no bodies and no queries.

use std::sync::Arc;

use arenite_control::tenants::{AuditEntry, Principal};
use futures_util::future::BoxFuture;
use http::StatusCode;
use jiff::Timestamp;

use crate::exchange::Exchange;
use crate::gateway::{Context, Gateway};
use crate::refusal::Refusal;

/// Longest path in a row, in characters.
const MAX_PATH: usize = 200;

fn entry(principal: Option<&Principal>, context: &Context, action: &str, object: &str, outcome: &str) -> AuditEntry {
    AuditEntry {
        at: Timestamp::now(),
        tenant: principal.map(|principal| principal.tenant.clone()),
        key: principal.and_then(|principal| principal.key.clone()),
        subject: principal.and_then(|principal| principal.subject.clone()),
        action: action.to_owned(),
        object: object.to_owned(),
        client: context.client.clone(),
        outcome: outcome.to_owned(),
    }
}

/// Records what a caller did. `principal` may differ from the context's: a sign-in is a call of nobody.
pub(crate) async fn record(
    gateway: &Gateway,
    principal: &Principal,
    context: &Context,
    action: &str,
    object: &str,
    outcome: &str,
) {
    if let Some(tenants) = gateway.control.tenants() {
        tenants.audit(entry(Some(principal), context, action, object, outcome)).await;
    }
}

/// The same with the result of an operation.
pub(crate) async fn record_result<T>(
    gateway: &Gateway,
    context: &Context,
    action: &str,
    object: &str,
    result: Result<T, Refusal>,
) -> Result<T, Refusal> {
    let outcome = result.as_ref().map_or_else(|refusal| refusal.code.as_str(), |_| "ok");
    record(gateway, &context.principal, context, action, object, outcome).await;
    result.map_err(|refusal| Refusal { is_audited: true, ..refusal })
}

/// Runs a change to its end, also if its client leaves or revokes its own key, and records it in the audit log.
pub(crate) async fn change_with<T: Send + 'static>(
    exchange: &Exchange,
    action: &'static str,
    object: String,
    change: BoxFuture<'static, Result<T, Refusal>>,
) -> Result<T, Refusal> {
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let audited = async move {
        let changed = change.await;
        record_result(&gateway, &context, action, &object, changed).await
    };
    exchange.gateway.run_to_end(audited).await
}

/// Records a request that was refused for want of credentials or rights.
pub(crate) fn record_refusal(exchange: &Exchange, refusal: &Refusal) {
    let is_refusal = matches!(refusal.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let Some(tenants) = exchange.gateway.control.tenants().filter(|_| is_refusal && !refusal.is_audited) else { return };
    let principal = Some(&exchange.context.principal).filter(|principal| principal.role.is_some());
    let ended = if principal.is_none() { crate::auth::ended_key(&exchange.gateway, &exchange.parts) } else { None };
    let path: String = exchange.parts.uri.path().chars().take(MAX_PATH).collect();
    let object = format!("{} {path}", exchange.parts.method);
    let principal = principal.or(ended.as_ref()).map(|principal| &**principal);
    tenants.audit_refusal(entry(principal, &exchange.context, "request", &object, refusal.code.as_str()));
}
