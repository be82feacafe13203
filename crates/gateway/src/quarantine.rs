//! `/api/v2/quarantine`: sandboxes that could not be explained when the server started.
//!
//! Only the operator may manage them: like shutdown, these routes need a key or a session, and tickets can't use them.

use std::sync::Arc;

use arenite_model::{ErrorCode, SandboxId, SandboxName};
use axum::body::Body;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::api::{self, DIALECT, PATH, read_json, shape};
use crate::auth::Identity;
use crate::gateway::{Context, Gateway};
use crate::lifecycle::{self, LifecycleCall};
use crate::refusal::{Refusal, json_response};
use crate::request::require;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Adopt {
    name: Option<SandboxName>,
}

pub(crate) async fn serve(
    gateway: &Arc<Gateway>,
    context: &Context,
    who: &Identity,
    rest: &[&str],
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    if !who.is_lasting() {
        return Err(Refusal::new(ErrorCode::Forbidden, "the quarantine needs a key, and not a ticket"));
    }
    match *rest {
        [] => {
            api::read_only(parts)?;
            Ok(json_response(StatusCode::OK, &json!({ "quarantine": gateway.control.quarantine().await })))
        }
        [id] => {
            require(parts, &[Method::DELETE])?;
            let id = sandbox_id(id)?;
            let call = LifecycleCall { dialect: DIALECT, action: format!("DELETE {PATH}/quarantine/{id}"), arguments: None };
            let (status, body) = lifecycle::remove_quarantined(gateway, context, call, id).await?;
            Ok(json_response(status, &body))
        }
        [id, "adopt"] => {
            require(parts, &[Method::POST])?;
            let id = sandbox_id(id)?;
            let (adopt, arguments) = read_json::<Adopt>(body).await?;
            let action = format!("POST {PATH}/quarantine/{id}/adopt");
            let call = LifecycleCall { dialect: DIALECT, action, arguments: Some(arguments) };
            let answer = {
                let (gateway, context) = (Arc::clone(gateway), context.clone());
                move |sandbox| (StatusCode::OK, shape(&gateway, &context, sandbox))
            };
            let (status, body) = lifecycle::adopt(gateway, context, call, id, adopt.name, answer).await?;
            Ok(json_response(status, &body))
        }
        _ => Err(Refusal::not_found(format!("there is no {PATH}/quarantine/{}", rest.join("/")))
            .hint("there are quarantine, quarantine/{id} and quarantine/{id}/adopt")),
    }
}

fn sandbox_id(text: &str) -> Result<SandboxId, Refusal> {
    text.parse().map_err(|error: arenite_model::IdError| Refusal::bad_request(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::harness::Harness;

    #[tokio::test]
    async fn nothing_is_in_quarantine_and_what_is_not_can_t_be_adopted() {
        let server = Harness::new().await;
        assert_eq!(server.call("GET", "/api/v2/quarantine", Value::Null).await.json, json!({ "quarantine": [] }));
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
