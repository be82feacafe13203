//! `/api/v2/secrets`: values that sandboxes use and never have. No answer shows a value.

use std::sync::Arc;

use arenite_control::secrets::{Secret, SetSecret};
use arenite_model::{SecretName, SecretPlace, SecretText};
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exchange::{Answered, Exchange};
use crate::lists::PageQuery;
use crate::refusal::{Refusal, json_response};
use crate::{audit, auth};

/// A secret to create or to change. What is absent stays.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PutSecret {
    /// 8 bytes to 8 KiB, without control characters if it is no SSH key. It can't be read again. Required for a new secret.
    #[schema(value_type = Option<String>)]
    value: Option<SecretText>,
    /// The servers that get it: `api.example.com`, `*.example.com`, or with ports, `api.example.com:8443`; without, 443, or 5432
    /// if its only place is `postgres`, or 22 for `ssh`. Without hosts, no sandbox can have it, and routes for models can use it.
    hosts: Option<Vec<String>>,
    /// Where in a request or a connection it may be; by default in headers. `ssh` is the only place of a secret, and stays: the value
    /// is a private key of OpenSSH (ed25519, ecdsa, or rsa) without a passphrase.
    places: Option<Vec<SecretPlace>>,
    /// With the place `ssh`: keys of the servers, up to 32, each as `TYPE KEY` or `HOST TYPE KEY`, as `ssh-keyscan` prints them. With
    /// one or more, only logins to servers with these keys are signed.
    host_keys: Option<Vec<String>>,
}

/// A secret without its value.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SecretInfo {
    name: SecretName,
    hosts: Vec<String>,
    places: Vec<SecretPlace>,
    /// Keys of the servers, for SSH.
    host_keys: Vec<String>,
    created_at: Timestamp,
    /// When its value was set.
    rotated_at: Timestamp,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SecretList {
    secrets: Vec<SecretInfo>,
    /// `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedSecret {
    name: SecretName,
    removed: bool,
}

/// The result of a re-encryption.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReencryptedSecrets {
    /// How many had another key than the first one.
    reencrypted: u64,
}

impl From<Secret> for SecretInfo {
    fn from(Secret { name, hosts, places, host_keys, created_at, rotated_at }: Secret) -> Self {
        Self { name, hosts, places, host_keys, created_at, rotated_at }
    }
}

fn name(exchange: &Exchange) -> Result<SecretName, Refusal> {
    exchange.param("name").parse().map_err(Refusal::from)
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let secrets = exchange.gateway.control.secrets(exchange.context.tenant()).await?;
    let (secrets, next_cursor) = PageQuery::read(exchange)?.take(secrets, |secret| secret.name.to_string())?;
    let secrets = secrets.into_iter().map(SecretInfo::from).collect();
    Ok(json_response(StatusCode::OK, &SecretList { secrets, next_cursor }))
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let secret = exchange.gateway.control.secret(exchange.context.tenant(), &name(exchange)?).await?;
    Ok(json_response(StatusCode::OK, &SecretInfo::from(secret)))
}

pub(crate) async fn put(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let name = name(exchange)?;
    let (PutSecret { value, hosts, places, host_keys }, _) = exchange.json().await?;
    let (control, tenant, of) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone(), name.clone());
    let set = SetSecret { value, hosts, places, host_keys };
    let change = Box::pin(async move { Ok(control.set_secret(&tenant, of, set).await?) });
    let set = audit::change_with(exchange, "secret.set", name.to_string(), change).await?;
    Ok(json_response(StatusCode::OK, &SecretInfo::from(set)))
}

pub(crate) async fn remove(exchange: &mut Exchange) -> Answered {
    auth::refuse_tickets(&exchange.caller)?;
    let name = name(exchange)?;
    let (control, tenant, of) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone(), name.clone());
    let change = Box::pin(async move { Ok(control.remove_secret(&tenant, &of).await?) });
    audit::change_with(exchange, "secret.remove", name.to_string(), change).await?;
    Ok(json_response(StatusCode::OK, &RemovedSecret { name, removed: true }))
}

pub(crate) async fn reencrypt(exchange: &mut Exchange) -> Answered {
    let control = Arc::clone(&exchange.gateway.control);
    let change = Box::pin(async move { Ok(control.reencrypt_secrets().await?) });
    let reencrypted = audit::change_with(exchange, "secret.reencrypt", "all".to_owned(), change).await?;
    Ok(json_response(StatusCode::OK, &ReencryptedSecrets { reencrypted }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::harness::Harness;

    const PATH: &str = "/api/v2/secrets/api";

    #[tokio::test]
    async fn a_secrets_value_is_never_shown() {
        let server = Harness::new().await;
        let set = json!({ "value": "t0psecret-value", "hosts": ["api.example.com"] });
        let made = server.call("PUT", PATH, set).await;
        assert_eq!((made.status, &made.json["places"]), (200, &json!(["header"])), "{}", made.text);
        let changed = server.call("PUT", PATH, json!({ "places": ["query", "body", "query"] })).await;
        assert_eq!(changed.json["places"], json!(["query", "body"]), "{}", changed.text);
        assert_eq!(
            (&changed.json["hosts"], &changed.json["rotated_at"]),
            (&json!(["api.example.com"]), &made.json["rotated_at"])
        );
        let rotated = server.call("PUT", PATH, json!({ "value": "t0psecret-other" })).await;
        assert_ne!(rotated.json["rotated_at"], made.json["rotated_at"]);
        let list = server.call("GET", "/api/v2/secrets", Value::Null).await;
        assert_eq!(list.json["secrets"].as_array().unwrap().len(), 1);
        let one = server.call("GET", PATH, Value::Null).await;
        assert!(![&made, &changed, &rotated, &list, &one].iter().any(|answer| answer.text.contains("t0psecret")));
        let reencrypted = server.call("POST", "/api/v2/secrets/reencrypt", json!({})).await;
        assert_eq!((reencrypted.status, &reencrypted.json["reencrypted"]), (200, &json!(0)), "{}", reencrypted.text);
        assert_eq!(server.call("DELETE", PATH, Value::Null).await.status, 200);
        assert_eq!(server.call("DELETE", PATH, Value::Null).await.status, 404);
        assert_eq!(server.call("GET", PATH, Value::Null).await.status, 404);
    }

    #[tokio::test]
    async fn bad_secrets_are_refused() {
        let server = Harness::new().await;
        let (value, hosts) = ("t0psecret-value", json!(["api.example.com"]));
        for bad in [
            json!({}),
            json!({ "hosts": hosts }),
            json!({ "value": "short", "hosts": hosts }),
            json!({ "value": "t0psecret\nvalue", "hosts": hosts }),
            json!({ "value": value, "hosts": ["192.0.2.1"] }),
            json!({ "value": value, "hosts": ["[2001:db8::1]:443"] }),
            json!({ "value": value, "hosts": ["*"] }),
            json!({ "value": value, "hosts": ["https://api.example.com"] }),
            json!({ "value": value, "hosts": ["api.example.com:0"] }),
            json!({ "value": value, "hosts": hosts, "places": [] }),
            json!({ "value": value, "hosts": hosts, "places": ["cookie"] }),
            json!({ "value": value, "hosts": hosts, "extra": 1 }),
            json!({ "value": value, "hosts": hosts, "places": ["ssh"] }),
            json!({ "value": value, "hosts": hosts, "host_keys": ["ssh-ed25519 AAAA"] }),
        ] {
            let refused = server.call("PUT", PATH, bad.clone()).await;
            assert_eq!(refused.status, 400, "{bad}: {}", refused.text);
            assert!(!refused.text.contains("t0psecret"), "{bad}: {}", refused.text);
        }
        let no_name = server.call("PUT", "/api/v2/secrets/a%20b", json!({ "value": value, "hosts": hosts })).await;
        assert_eq!(no_name.status, 400, "{}", no_name.text);
        assert_eq!(server.call("GET", "/api/v2/secrets", Value::Null).await.json["secrets"], json!([]));
    }
}
