//! `/api/v2/webhooks`: addresses that get a tenant's events, and what was delivered to them.
//!
//! A delivery is a POST of an event's JSON, signed as <https://www.standardwebhooks.com> specifies:
//!
//! | header | content |
//! | --- | --- |
//! | `webhook-id` | the event's id, the same in each attempt |
//! | `webhook-timestamp` | when the attempt was made, in seconds since 1970 |
//! | `webhook-signature` | `v1,` and the base64 of HMAC-SHA256 over `{id}.{timestamp}.{body}` |
//!
//! Any status 2xx accepts it.

mod deliver;
mod send;

use std::sync::Arc;

use arenite_control::webhooks::{Delivery, DeliveryQuery, DeliveryState, Webhook, Webhooks};
use arenite_control::{ControlError, EventKind};
use arenite_model::{ErrorCode, WebhookId};
use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::CACHE_CONTROL;
use http::{HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::exchange::{Answered, Exchange};
use crate::idempotency::{self, Begun};
use crate::lists::PageQuery;
use crate::outgoing::Target;
use crate::refusal::{Refusal, json_response};
use crate::{audit, auth};

pub(crate) use deliver::run;
use send::Message;
pub(crate) use send::WebhookSender;

/// Starts the text of a secret.
const SECRET_PREFIX: &str = "whsec_";

/// A request for a webhook.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CreateWebhook {
    /// An http or https URL with a public address.
    #[schema(required)]
    url: Option<String>,
    /// The events that it gets; absent or empty: all.
    types: Vec<EventKind>,
}

/// A webhook, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WebhookInfo {
    id: WebhookId,
    url: String,
    /// The events that it gets; empty: all.
    types: Vec<EventKind>,
    created_at: Timestamp,
}

/// A new webhook.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NewWebhookInfo {
    /// Signs deliveries. It can't be read again.
    secret: String,
    #[serde(flatten)]
    info: WebhookInfo,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WebhookList {
    webhooks: Vec<WebhookInfo>,
    /// `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedWebhook {
    id: WebhookId,
    removed: bool,
}

/// The result of a test.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WebhookTest {
    delivered: bool,
    /// The HTTP status of the answer.
    status: Option<u16>,
    /// Why it was not delivered.
    error: Option<String>,
    ms: f64,
}

/// An event for a webhook.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryInfo {
    number: u64,
    /// The event's id.
    event: String,
    r#type: EventKind,
    state: DeliveryState,
    attempts: u32,
    created_at: Timestamp,
    /// Null: there is no further attempt.
    next_attempt_at: Option<Timestamp>,
    /// Null: it has not ended.
    ended_at: Option<Timestamp>,
    /// The HTTP status of the last attempt's answer.
    status: Option<u16>,
    /// Why the last attempt failed.
    error: Option<String>,
    /// The event.
    #[schema(value_type = Object)]
    body: Value,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryPage {
    deliveries: Vec<DeliveryInfo>,
    /// `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

impl From<&Webhook> for WebhookInfo {
    fn from(hook: &Webhook) -> Self {
        Self { id: hook.id.clone(), url: hook.url.clone(), types: hook.kinds.clone(), created_at: hook.created_at }
    }
}

impl From<Delivery> for DeliveryInfo {
    fn from(delivery: Delivery) -> Self {
        let is_pending = delivery.state == DeliveryState::Pending;
        Self {
            number: delivery.number,
            event: delivery.event,
            r#type: delivery.kind,
            state: delivery.state,
            attempts: delivery.attempts,
            created_at: delivery.created_at,
            next_attempt_at: is_pending.then_some(delivery.at),
            ended_at: (!is_pending).then_some(delivery.at),
            status: delivery.status,
            error: delivery.error,
            body: serde_json::from_str(&delivery.body).unwrap_or_default(),
        }
    }
}

/// The webhooks of the server, for a caller with more than a ticket.
fn webhooks(exchange: &Exchange) -> Result<Arc<Webhooks>, Refusal> {
    auth::refuse_tickets(&exchange.caller)?;
    let webhooks = exchange.gateway.control.webhooks().cloned();
    webhooks.ok_or_else(|| Refusal::new(ErrorCode::Unsupported, "this server's store keeps no webhooks"))
}

/// The webhook in the path. Another tenant's is not found.
fn find(exchange: &Exchange, webhooks: &Webhooks) -> Result<Arc<Webhook>, Refusal> {
    let given = exchange.param("id");
    let absent = || ControlError::NoWebhook { id: given.chars().take(80).collect() };
    let id: WebhookId = given.parse().map_err(|_| absent())?;
    Ok(webhooks.get(exchange.context.tenant(), &id)?)
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let hooks = webhooks(exchange)?.list(exchange.context.tenant());
    let position = |hook: &Arc<Webhook>| (hook.created_at.as_microsecond(), hook.id.to_string());
    let (hooks, next_cursor) = PageQuery::read(exchange)?.take(hooks, position)?;
    let webhooks = hooks.iter().map(|hook| (&**hook).into()).collect();
    Ok(json_response(StatusCode::OK, &WebhookList { webhooks, next_cursor }))
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    let hook = find(exchange, &*webhooks(exchange)?)?;
    Ok(json_response(StatusCode::OK, &WebhookInfo::from(&*hook)))
}

pub(crate) async fn create(exchange: &mut Exchange) -> Answered {
    let webhooks = webhooks(exchange)?;
    let (CreateWebhook { url, types }, arguments) = exchange.json().await?;
    let url = url.ok_or_else(|| Refusal::bad_request("url is missing"))?;
    Target::parse(&url).map_err(|reason| Refusal::bad_request(format!("url: {reason}")))?;
    let key = match idempotency::begin(exchange, &arguments, 1).await? {
        Begun::Create(key) => key,
        Begun::Replay(answer) => return Ok(secret(idempotency::replay(answer))),
    };
    let since = idempotency::note(key.as_ref()).await?;
    let tenant = exchange.context.tenant().clone();
    let left = since.and_then(|since| {
        let is_left = |hook: &Arc<Webhook>| hook.created_at >= since && hook.url == url && hook.kinds == types;
        webhooks.list(&tenant).into_iter().find(is_left)
    });
    let created = match left {
        Some(hook) => Ok(hook),
        None => {
            let created = Box::pin(async move { Ok(webhooks.create(&tenant, url, types).await?) });
            audit::change_with(exchange, "webhook.create", String::new(), created).await
        }
    };
    let created = created.map(|hook| {
        let secret = format!("{SECRET_PREFIX}{}", STANDARD.encode(&hook.secret));
        (StatusCode::CREATED, json!(NewWebhookInfo { secret, info: WebhookInfo::from(&*hook) }))
    });
    let (status, body) = idempotency::settle(key, created).await?;
    Ok(secret(json_response(status, &body)))
}

/// Keeps an answer with a secret out of caches.
fn secret(mut answer: Response<Body>) -> Response<Body> {
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

pub(crate) async fn remove(exchange: &mut Exchange) -> Answered {
    let webhooks = webhooks(exchange)?;
    let hook = find(exchange, &webhooks)?;
    let (tenant, id) = (hook.tenant.clone(), hook.id.clone());
    let removed = Box::pin(async move { Ok(webhooks.remove(&tenant, &id).await?) });
    audit::change_with(exchange, "webhook.remove", hook.id.to_string(), removed).await?;
    Ok(json_response(StatusCode::OK, &RemovedWebhook { id: hook.id.clone(), removed: true }))
}

/// Sends an event of the type `webhook.test` once, and answers with its result. It is not listed.
pub(crate) async fn test(exchange: &mut Exchange) -> Answered {
    let webhooks = webhooks(exchange)?;
    let hook = find(exchange, &webhooks)?;
    let permit = exchange.gateway.webhooks.test_permit(exchange.context.tenant());
    let _permit = permit.ok_or_else(|| {
        let busy = Refusal::new(ErrorCode::Exhausted, "another test of this tenant's webhooks is in progress");
        Refusal { retry_after: Some(1), ..busy }
    })?;
    let id = format!("test-{}", exchange.context.request_id);
    let body = json!({ "id": id, "type": "webhook.test", "at": Timestamp::now() }).to_string();
    let begun = std::time::Instant::now();
    let result = exchange.gateway.webhooks.send(&hook, Message { id: &id, body }).await;
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    let test = WebhookTest { delivered: result.error.is_none(), status: result.status, error: result.error, ms };
    Ok(json_response(StatusCode::OK, &test))
}

pub(crate) async fn deliveries(exchange: &mut Exchange) -> Answered {
    let webhooks = webhooks(exchange)?;
    let hook = find(exchange, &webhooks)?;
    let state = exchange.query("state").map(|text| text.parse()).transpose().map_err(Refusal::bad_request)?;
    let page = PageQuery::read(exchange)?;
    let query = DeliveryQuery { webhook: hook.id.clone(), state, before: page.after()?, limit: page.limit + 1 };
    let mut found = webhooks.deliveries(query).await?;
    let next_cursor = page.end(&mut found, |delivery| delivery.number);
    let deliveries = found.into_iter().map(DeliveryInfo::from).collect();
    Ok(json_response(StatusCode::OK, &DeliveryPage { deliveries, next_cursor }))
}

pub(crate) async fn redeliver(exchange: &mut Exchange) -> Answered {
    let webhooks = webhooks(exchange)?;
    let hook = find(exchange, &webhooks)?;
    let given = exchange.param("number");
    let number = given
        .parse()
        .map_err(|_| Refusal::not_found(format!("there is no delivery {:?}", given.chars().take(80).collect::<String>())))?;
    let object = format!("{}/{number}", hook.id);
    let redelivered = Box::pin(async move { Ok(webhooks.redeliver(&hook, number).await?) });
    let delivery = audit::change_with(exchange, "webhook.redeliver", object, redelivered).await?;
    Ok(json_response(StatusCode::ACCEPTED, &DeliveryInfo::from(delivery)))
}
