//! `/api/v2/registries`: the users of a tenant for registries that it pulls from. Passwords are never shown.

use std::sync::Arc;

use arenite_control::images::RegistryLogin;
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exchange::{Answered, Exchange};
use crate::lists::PageQuery;
use crate::refusal::{Refusal, json_response};
use crate::{audit, auth};

/// A user of a registry.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SetRegistry {
    #[schema(required)]
    user: Option<String>,
    /// Or a token. It can't be read again.
    #[schema(required)]
    password: Option<String>,
}

/// A registry with the user that pulls are made with.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RegistryInfo {
    host: String,
    user: String,
    changed_at: Timestamp,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RegistryList {
    registries: Vec<RegistryInfo>,
    /// `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedRegistry {
    host: String,
    removed: bool,
}

impl From<RegistryLogin> for RegistryInfo {
    fn from(RegistryLogin { host, user, changed_at }: RegistryLogin) -> Self {
        Self { host, user, changed_at }
    }
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let registries = exchange.gateway.control.registry_logins(exchange.context.tenant());
    let (registries, next_cursor) = PageQuery::read(exchange)?.take(registries, |registry| registry.host.clone())?;
    let registries = registries.into_iter().map(RegistryInfo::from).collect();
    Ok(json_response(StatusCode::OK, &RegistryList { registries, next_cursor }))
}

pub(crate) async fn set(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let host = exchange.param("host").to_owned();
    let (SetRegistry { user, password }, _) = exchange.json().await?;
    let missing = |field: &str| Refusal::bad_request(format!("{field} is missing"));
    let (user, password) = (user.ok_or_else(|| missing("user"))?, password.ok_or_else(|| missing("password"))?);
    let (control, tenant, of) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone(), host.clone());
    let change = Box::pin(async move { Ok(control.set_registry_login(&tenant, of, user, password).await?) });
    let set = audit::change_with(exchange, "registry.set", host, change).await?;
    Ok(json_response(StatusCode::OK, &RegistryInfo::from(set)))
}

pub(crate) async fn remove(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let host = exchange.param("host").to_owned();
    let (control, tenant, of) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone(), host.clone());
    let change = Box::pin(async move { Ok(control.remove_registry_login(&tenant, &of).await?) });
    audit::change_with(exchange, "registry.remove", host.clone(), change).await?;
    Ok(json_response(StatusCode::OK, &RemovedRegistry { host, removed: true }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::harness::Harness;

    #[tokio::test]
    async fn a_registrys_password_is_never_shown() {
        let server = Harness::new().await;
        let path = "/api/v2/registries/registry.example:5000";
        let set = server.call("PUT", path, json!({ "user": "me", "password": "s3cret" })).await;
        assert_eq!((set.status, &set.json["user"]), (200, &json!("me")), "{}", set.text);
        server.call("PUT", path, json!({ "user": "you", "password": "s3cret" })).await;
        let list = server.call("GET", "/api/v2/registries", Value::Null).await;
        assert_eq!(list.json["registries"].as_array().unwrap().len(), 1);
        assert_eq!(list.json["registries"][0]["user"], "you");
        assert!(![&set, &list].iter().any(|answer| answer.text.contains("s3cret")));
        for bad in [json!({}), json!({ "user": "a" }), json!({ "user": "a:b", "password": "x" }), json!({ "user": 1 })] {
            let refused = server.call("PUT", path, bad.clone()).await;
            assert_eq!(refused.status, 400, "{bad}: {}", refused.text);
        }
        let no_host = server.call("PUT", "/api/v2/registries/library", json!({ "user": "a", "password": "s3cret" })).await;
        assert_eq!(no_host.status, 400, "{}", no_host.text);
        assert_eq!(server.call("DELETE", path, Value::Null).await.status, 200);
        assert_eq!(server.call("DELETE", path, Value::Null).await.status, 404);
    }
}
