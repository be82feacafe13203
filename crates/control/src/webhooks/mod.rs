//! Webhooks: addresses of tenants that get events, and what was delivered to them.
//!
//! ```text
//!  event ──► a stored delivery for each webhook ──due──► attempt ──► delivered
//!                              ▲                            │
//!                              └── later, with a backoff ───┴──► dead, when the time for retries is over
//! ```
//!
//! A delivery is stored before its first attempt, and its result after each one. So one with a lost result is attempted again
//! after a restart: receivers get an event at least once, with the same id. The gateway makes the attempts.

mod queue;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use arenite_model::{TenantId, WebhookId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::{Clock, later};
use crate::store::WebhookStore;
use crate::{ControlError, Event, EventKind};

use queue::Queue;
pub use queue::{Attempt, MAX_ATTEMPTS};

/// The most webhooks of a tenant.
const MAX_WEBHOOKS: usize = 32;
/// The most deliveries of a webhook that wait; further events are dropped.
const MAX_PENDING: usize = 1_000;
/// The most ended deliveries of a webhook that are kept for listing.
const KEEP_ENDED: u64 = 1_000;
/// Ended deliveries of a webhook between two removals of its oldest.
const TRIM_EVERY: u32 = 100;
/// The pause after the first failed attempt, doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// An address that gets events.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    pub id: WebhookId,
    pub tenant: TenantId,
    pub url: String,
    /// Signs deliveries.
    #[serde(with = "hexadecimal")]
    pub secret: Vec<u8>,
    /// The events that it gets; empty: all.
    pub kinds: Vec<EventKind>,
    pub created_at: Timestamp,
}

/// The secret as text.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(secret: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(secret))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        hex::decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("id", &self.id).field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryState {
    Pending,
    Delivered,
    /// The time for retries is over. It is delivered only by hand.
    Dead,
}

impl DeliveryState {
    pub const ALL: [Self; 3] = [Self::Pending, Self::Delivered, Self::Dead];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

impl std::str::FromStr for DeliveryState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| "a delivery is pending, delivered or dead".to_owned())
    }
}

/// An event for a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDelivery {
    pub webhook: WebhookId,
    /// The event's id.
    pub event: String,
    pub kind: EventKind,
    /// JSON.
    pub body: String,
    pub at: Timestamp,
}

/// A stored delivery. Numbers grow with time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub number: u64,
    pub webhook: WebhookId,
    pub event: String,
    pub kind: EventKind,
    pub body: String,
    pub created_at: Timestamp,
    pub state: DeliveryState,
    pub attempts: u32,
    /// When the present attempts started: at the event, or at a redelivery by hand.
    pub since: Timestamp,
    /// When the next attempt is due, or when the last one ended.
    pub at: Timestamp,
    /// The last attempt's HTTP status.
    pub status: Option<u16>,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

/// A delivery that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDelivery {
    pub number: u64,
    pub webhook: WebhookId,
    pub at: Timestamp,
}

/// Selects deliveries of a webhook, the newest first.
#[derive(Debug, Clone)]
pub struct DeliveryQuery {
    pub webhook: WebhookId,
    pub state: Option<DeliveryState>,
    /// The last one of the page before.
    pub before: Option<u64>,
    pub limit: usize,
}

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptResult {
    pub status: Option<u16>,
    /// None: it was delivered.
    pub error: Option<String>,
}

/// All webhooks of a server.
pub struct Webhooks {
    store: Arc<dyn WebhookStore>,
    clock: Clock,
    /// How long a delivery is retried.
    retry_for: Duration,
    hooks: RwLock<Arc<HashMap<WebhookId, Arc<Webhook>>>>,
    /// Held while the store and the map change.
    change: tokio::sync::Mutex<()>,
    queue: Queue,
}

impl Webhooks {
    pub(crate) async fn open(store: Arc<dyn WebhookStore>, clock: Clock, retry_for: Duration) -> Result<Self, ControlError> {
        let unread = ControlError::store("read the webhooks");
        let hooks = store.webhooks().await.map_err(&unread)?;
        let hooks: HashMap<_, _> = hooks.into_iter().map(|hook| (hook.id.clone(), Arc::new(hook))).collect();
        let queue = Queue::default();
        for pending in store.pending_deliveries().await.map_err(&unread)? {
            if let Some(hook) = hooks.get(&pending.webhook) {
                queue.push(hook, pending.number, pending.at);
            }
        }
        Ok(Self { store, clock, retry_for, hooks: RwLock::new(Arc::new(hooks)), change: tokio::sync::Mutex::default(), queue })
    }

    /// Reads webhooks that another node of a cluster has changed.
    pub(crate) async fn read_again(&self) -> Result<(), ControlError> {
        let _change = self.change.lock().await;
        let hooks = self.store.webhooks().await.map_err(ControlError::store("read the webhooks"))?;
        for gone in self.hooks().keys().filter(|id| !hooks.iter().any(|hook| hook.id == **id)) {
            self.queue.forget(gone);
        }
        self.publish(|map| *map = hooks.into_iter().map(|hook| (hook.id.clone(), Arc::new(hook))).collect());
        Ok(())
    }

    fn hooks(&self) -> Arc<HashMap<WebhookId, Arc<Webhook>>> {
        Arc::clone(&self.hooks.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn publish(&self, change: impl FnOnce(&mut HashMap<WebhookId, Arc<Webhook>>)) {
        let mut hooks = HashMap::clone(&self.hooks());
        change(&mut hooks);
        *self.hooks.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(hooks);
    }

    /// A tenant's webhooks, the oldest first.
    pub fn list(&self, tenant: &TenantId) -> Vec<Arc<Webhook>> {
        let mut hooks: Vec<_> = self.hooks().values().filter(|hook| hook.tenant == *tenant).cloned().collect();
        hooks.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        hooks
    }

    /// A tenant's webhook. Another tenant's is not found.
    pub fn get(&self, tenant: &TenantId, id: &WebhookId) -> Result<Arc<Webhook>, ControlError> {
        let found = self.hooks().get(id).filter(|hook| hook.tenant == *tenant).cloned();
        found.ok_or_else(|| ControlError::NoWebhook { id: id.to_string() })
    }

    /// Creates a webhook with a random secret.
    pub async fn create(&self, tenant: &TenantId, url: String, kinds: Vec<EventKind>) -> Result<Arc<Webhook>, ControlError> {
        let _change = self.change.lock().await;
        if self.list(tenant).len() >= MAX_WEBHOOKS {
            return Err(ControlError::TooMany { what: "webhooks of this tenant", most: MAX_WEBHOOKS });
        }
        let mut secret = vec![0; 32];
        getrandom::fill(&mut secret).expect("the kernel's random source answers");
        let (id, created_at) = (WebhookId::random(), self.clock.now());
        let hook = Arc::new(Webhook { id, tenant: tenant.clone(), url, secret, kinds, created_at });
        self.store.create_webhook(&hook).await.map_err(ControlError::store("remember a webhook"))?;
        self.publish(|hooks| drop(hooks.insert(hook.id.clone(), Arc::clone(&hook))));
        Ok(hook)
    }

    /// Removes a webhook with its deliveries. Attempts that have started go on.
    pub async fn remove(&self, tenant: &TenantId, id: &WebhookId) -> Result<(), ControlError> {
        let _change = self.change.lock().await;
        self.get(tenant, id)?;
        self.store.remove_webhook(id).await.map_err(ControlError::store("forget a webhook"))?;
        self.publish(|hooks| drop(hooks.remove(id)));
        self.queue.forget(id);
        Ok(())
    }

    /// Removes all webhooks of a tenant.
    pub async fn remove_all(&self, tenant: &TenantId) -> Result<(), ControlError> {
        for hook in self.list(tenant) {
            self.remove(tenant, &hook.id).await?;
        }
        Ok(())
    }

    /// Stores deliveries of events. Those that are stored already are not added again.
    pub async fn add(&self, events: &[Event], body: impl Fn(&Event) -> String) -> Result<(), ControlError> {
        let hooks = self.hooks();
        if hooks.is_empty() {
            return Ok(());
        }
        let mut new = Vec::new();
        for event in events {
            let gets =
                |hook: &&Arc<Webhook>| hook.tenant == event.tenant && (hook.kinds.is_empty() || hook.kinds.contains(&event.kind));
            for hook in hooks.values().filter(gets) {
                if self.queue.waiting(&hook.id) >= MAX_PENDING {
                    tracing::warn!(webhook = %hook.id, event = %event.event, "an event is dropped: too many deliveries wait");
                    continue;
                }
                new.push(NewDelivery {
                    webhook: hook.id.clone(),
                    event: event.event.to_string(),
                    kind: event.kind,
                    body: body(event),
                    at: event.at,
                });
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let added = self.store.add_deliveries(new).await.map_err(ControlError::store("remember deliveries"))?;
        for PendingDelivery { number, webhook, at } in added {
            if let Some(hook) = hooks.get(&webhook) {
                self.queue.push(hook, number, at);
            }
        }
        Ok(())
    }

    /// The next attempt, as soon as one is due and the webhook, its tenant and the server have not too many.
    pub async fn next_attempt(&self) -> Attempt {
        self.queue.next(&self.clock).await
    }

    /// What to deliver in an attempt. None: it was removed in the meantime.
    pub async fn load(&self, attempt: &Attempt) -> Result<Option<(Arc<Webhook>, Delivery)>, ControlError> {
        let Some(hook) = self.hooks().get(&attempt.webhook).cloned() else { return Ok(None) };
        let delivery = self.store.delivery(attempt.number).await.map_err(ControlError::store("read a delivery"))?;
        Ok(delivery.filter(|delivery| delivery.state == DeliveryState::Pending).map(|delivery| (hook, delivery)))
    }

    /// Stores the result of an attempt, and enqueues the next one if it failed.
    pub async fn finish(&self, mut delivery: Delivery, result: AttemptResult) -> Result<Delivery, ControlError> {
        let now = self.clock.now();
        delivery.attempts += 1;
        delivery.status = result.status;
        delivery.error = result.error;
        (delivery.state, delivery.at) = match delivery.error {
            None => (DeliveryState::Delivered, now),
            Some(_) if now.duration_since(delivery.since).unsigned_abs() >= self.retry_for => (DeliveryState::Dead, now),
            Some(_) => (DeliveryState::Pending, later(now, pause(delivery.attempts, random_share()))),
        };
        let stored = self.store.update_delivery(&delivery).await;
        if stored.is_err() && delivery.state != DeliveryState::Pending {
            // It is still pending in the store, so it is delivered again.
            delivery.at = later(now, LONGEST_PAUSE.min(self.retry_for));
        }
        let is_waiting = delivery.state == DeliveryState::Pending || stored.is_err();
        if let Some(hook) = self.hooks().get(&delivery.webhook).filter(|_| is_waiting) {
            self.queue.push(hook, delivery.number, delivery.at);
        }
        stored.map_err(ControlError::store("remember an attempt"))?;
        if !is_waiting && self.queue.is_trim_due(&delivery.webhook, TRIM_EVERY) {
            let trimmed = self.store.trim_deliveries(&delivery.webhook, KEEP_ENDED).await;
            trimmed.map_err(ControlError::store("forget old deliveries"))?;
        }
        Ok(delivery)
    }

    /// Returns an attempt that was not made to the queue.
    pub fn postpone(&self, attempt: &Attempt, by: Duration) {
        if let Some(hook) = self.hooks().get(&attempt.webhook) {
            self.queue.push(hook, attempt.number, later(self.clock.now(), by));
        }
    }

    /// A page of a webhook's deliveries. The caller has looked the webhook up.
    pub async fn deliveries(&self, query: DeliveryQuery) -> Result<Vec<Delivery>, ControlError> {
        self.store.deliveries(query).await.map_err(ControlError::store("read deliveries"))
    }

    /// Delivers again, now and with all retries. A delivery that waits is due at once.
    pub async fn redeliver(&self, hook: &Webhook, number: u64) -> Result<Delivery, ControlError> {
        let found = self.store.delivery(number).await.map_err(ControlError::store("read a delivery"))?;
        let found = found.filter(|delivery| delivery.webhook == hook.id);
        let delivery = found.ok_or_else(|| ControlError::NoWebhook { id: format!("{}/deliveries/{number}", hook.id) })?;
        let now = self.clock.now();
        let delivery = Delivery { state: DeliveryState::Pending, attempts: 0, since: now, at: now, ..delivery };
        self.store.update_delivery(&delivery).await.map_err(ControlError::store("remember a redelivery"))?;
        self.queue.push(hook, number, now);
        Ok(delivery)
    }

    /// The number of deliveries that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }
}

/// The pause after a number of failed attempts. `share`: from 0 to 1, so that not all are repeated at the same time.
fn pause(attempts: u32, share: f64) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << attempts.saturating_sub(1).min(20));
    doubled.min(LONGEST_PAUSE).mul_f64(0.5 + share)
}

fn random_share() -> f64 {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).expect("the kernel's random source answers");
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_differ() {
        let seconds = |attempts, share| pause(attempts, share).as_secs_f64();
        assert_eq!([1, 2, 3].map(|n| seconds(n, 0.5)), [1.0, 2.0, 4.0]);
        assert_eq!((seconds(3, 0.0), seconds(3, 1.0)), (2.0, 6.0));
        assert_eq!([13, 100, u32::MAX].map(|n| seconds(n, 0.5)), [3600.0; 3]);
        let share = random_share();
        assert!((0.0..=1.0).contains(&share));
    }
}
