//! The persistent store of webhooks and their deliveries.

use arenite_model::WebhookId;
use async_trait::async_trait;

use super::StoreError;
use crate::webhooks::{Delivery, DeliveryQuery, NewDelivery, PendingDelivery, Webhook};

/// A store of webhooks. Each operation is one transaction.
#[async_trait]
pub trait WebhookStore: Send + Sync + 'static {
    async fn webhooks(&self) -> Result<Vec<Webhook>, StoreError>;
    async fn create_webhook(&self, hook: &Webhook) -> Result<(), StoreError>;
    /// Removes a webhook with its deliveries.
    async fn remove_webhook(&self, id: &WebhookId) -> Result<(), StoreError>;
    /// Adds deliveries to webhooks that exist, each event once, and returns them. Also those that an earlier call has added, since its
    /// answer may have been lost.
    async fn add_deliveries(&self, new: Vec<NewDelivery>) -> Result<Vec<PendingDelivery>, StoreError>;
    /// All deliveries that wait. Read once, at start.
    async fn pending_deliveries(&self) -> Result<Vec<PendingDelivery>, StoreError>;
    async fn delivery(&self, number: u64) -> Result<Option<Delivery>, StoreError>;
    /// Writes state, attempts, times and the last attempt's result. Does nothing if the row doesn't exist.
    async fn update_delivery(&self, delivery: &Delivery) -> Result<(), StoreError>;
    async fn deliveries(&self, query: DeliveryQuery) -> Result<Vec<Delivery>, StoreError>;
    /// Deletes the oldest ended deliveries of a webhook until `keep` are left.
    async fn trim_deliveries(&self, webhook: &WebhookId, keep: u64) -> Result<(), StoreError>;
}
