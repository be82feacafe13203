//! Stores deliveries of events as they happen, and makes the attempts that are due.

use std::sync::Arc;
use std::time::Duration;

use arenite_control::webhooks::{Attempt, Webhooks};
use arenite_control::{ControlError, Event, EventReader, MissedEvents};
use tokio::task::JoinSet;

use super::send::Message;
use crate::events::EventInfo;
use crate::gateway::Gateway;

/// The most events that are stored together.
const BATCH: usize = 256;
/// The pause before events are stored, or a delivery is read, again.
const AGAIN: Duration = Duration::from_secs(1);

/// Delivers events until the server stops. Attempts that have not ended by then are repeated by the next server.
pub(crate) async fn run(gateway: Arc<Gateway>) {
    let Some(webhooks) = gateway.control.webhooks().cloned() else { return };
    // From the first one: a start that finds dead sandboxes has events before this.
    let events = gateway.control.read_events(None);
    let delivering = async {
        tokio::join!(store_events(&webhooks, events), attempt_all(&gateway, &webhooks));
    };
    gateway.stopping.run_until_cancelled(delivering).await;
}

async fn store_events(webhooks: &Webhooks, mut events: EventReader) {
    loop {
        let mut batch = Vec::new();
        match events.recv().await {
            Ok(event) => batch.push(event),
            Err(MissedEvents) => tracing::error!("events were not delivered to webhooks: the store was away for too long"),
        }
        while batch.len() < BATCH
            && let Ok(event) = events.try_recv()
        {
            batch.push(event);
        }
        let body = |event: &Event| serde_json::to_string(&EventInfo::from(event.clone())).unwrap_or_default();
        let mut is_logged = false;
        // Meanwhile, events wait in the history.
        while let Err(error) = webhooks.add(&batch, body).await {
            if !std::mem::replace(&mut is_logged, true) {
                tracing::warn!(%error, "events could not be stored for webhooks; trying again");
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn attempt_all(gateway: &Arc<Gateway>, webhooks: &Arc<Webhooks>) {
    let mut attempts = JoinSet::new();
    loop {
        let attempt = webhooks.next_attempt().await;
        while attempts.try_join_next().is_some() {}
        let (gateway, webhooks) = (Arc::clone(gateway), Arc::clone(webhooks));
        attempts.spawn(async move {
            if let Err(error) = make_attempt(&gateway, &webhooks, attempt).await {
                tracing::warn!(%error, "a delivery to a webhook is repeated");
            }
        });
    }
}

async fn make_attempt(gateway: &Gateway, webhooks: &Webhooks, attempt: Attempt) -> Result<(), ControlError> {
    let loaded = webhooks.load(&attempt).await.inspect_err(|_| webhooks.postpone(&attempt, AGAIN))?;
    let Some((hook, delivery)) = loaded else { return Ok(()) };
    let message = Message { id: &delivery.event, body: delivery.body.clone() };
    let result = gateway.webhooks.send(&hook, message).await;
    let delivery = webhooks.finish(delivery, result).await?;
    if let Some(error) = &delivery.error {
        let (event, state) = (&delivery.event, delivery.state.as_str());
        tracing::debug!(webhook = %hook.id, tenant = %hook.tenant, event, state, error, "an attempt to deliver an event failed");
    }
    Ok(())
}
