//! `/api/v2/quarantine`: sandboxes that could not be explained when the server started.
//!
//! Only the operator may manage them, and not with a ticket.

use std::sync::Arc;

use arenite_model::{ErrorCode, SandboxId};
use http::StatusCode;

use crate::api::types::{AdoptSandbox, QuarantineList};
use crate::api::{DIALECT, PATH, shape};
use crate::exchange::{Answered, Exchange};
use crate::lifecycle::{self, LifecycleCall};
use crate::lists::PageQuery;
use crate::refusal::{Refusal, json_response};

/// Refuses callers that only have a ticket.
fn check(exchange: &Exchange) -> Result<(), Refusal> {
    if exchange.caller.is_lasting() {
        return Ok(());
    }
    Err(Refusal::new(ErrorCode::Forbidden, "the quarantine needs a key, and not a ticket"))
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    check(exchange)?;
    let held = exchange.gateway.control.quarantine().await;
    let (quarantine, next_cursor) = PageQuery::read(exchange)?.take(held, |sandbox| sandbox.id.to_string())?;
    Ok(json_response(StatusCode::OK, &QuarantineList { quarantine, next_cursor }))
}

pub(crate) async fn remove(exchange: &mut Exchange) -> Answered {
    check(exchange)?;
    let id: SandboxId = exchange.param("id").parse()?;
    let call = LifecycleCall { dialect: DIALECT, action: format!("DELETE {PATH}/quarantine/{id}"), arguments: None };
    let (status, body) = lifecycle::remove_quarantined(&exchange.gateway, &exchange.context, call, id).await?;
    Ok(json_response(status, &body))
}

pub(crate) async fn adopt(exchange: &mut Exchange) -> Answered {
    check(exchange)?;
    let id: SandboxId = exchange.param("id").parse()?;
    let (adopt, arguments) = exchange.json::<AdoptSandbox>().await?;
    let action = format!("POST {PATH}/quarantine/{id}/adopt");
    let call = LifecycleCall { dialect: DIALECT, action, arguments: Some(arguments) };
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let answer = move |sandbox| (StatusCode::OK, shape(&gateway, &context, sandbox));
    let (status, body) = lifecycle::adopt(&exchange.gateway, &exchange.context, call, id, adopt.name, answer).await?;
    Ok(json_response(status, &body))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::harness::Harness;

    #[tokio::test]
    async fn nothing_is_in_quarantine_and_what_is_not_can_t_be_adopted() {
        let server = Harness::new().await;
        assert_eq!(
            server.call("GET", "/api/v2/quarantine", Value::Null).await.json,
            json!({ "quarantine": [], "next_cursor": null })
        );
        for (method, path, status) in [
            ("POST", "/api/v2/quarantine/s00000000001/adopt", 404),
            ("DELETE", "/api/v2/quarantine/s00000000001", 404),
            ("DELETE", "/api/v2/quarantine/none", 400),
            ("POST", "/api/v2/quarantine", 405),
            ("GET", "/api/v2/quarantine/s00000000001", 405),
            ("GET", "/api/v2/quarantine/s00000000001/x", 404),
        ] {
            let answer = server.call(method, path, Value::Null).await;
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
        }
        let answer = server.call("POST", "/api/v2/quarantine/s00000000001/adopt", json!({ "nmae": "x" })).await;
        assert_eq!(answer.status, 400);
    }
}
