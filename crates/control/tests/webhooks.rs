//! Webhooks and their deliveries on the real stores.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::store::{PostgresStore, SqliteStore, Store, WebhookStore};
use arenite_control::webhooks::{AttemptResult, DeliveryQuery, DeliveryState, NewDelivery, Webhook, Webhooks};
use arenite_control::{Control, ControlConfig, EventKind};
use arenite_model::WebhookId;
use jiff::Timestamp;
use support::cluster::Cluster;
use support::{named, tenant};

fn hook(tenant: &str) -> Webhook {
    Webhook {
        id: WebhookId::random(),
        tenant: tenant.parse().unwrap(),
        url: "https://example.org/?a=ä".to_owned(),
        secret: (0..=255).collect(),
        kinds: vec![EventKind::Died, EventKind::Deleted],
        // Whole microseconds, as in a store.
        created_at: Timestamp::from_microsecond(1_700_000_000_123_456).unwrap(),
    }
}

fn new(hook: &Webhook, number: i64) -> NewDelivery {
    NewDelivery {
        webhook: hook.id.clone(),
        event: format!("1-{number}"),
        kind: EventKind::Died,
        body: format!("{{\"n\":{number},\"x\":\"\\u0000\"}}"),
        at: Timestamp::from_second(1_700_000_000 + number).unwrap(),
    }
}

/// Every operation of a store.
async fn exercise(store: &dyn WebhookStore) {
    let (a, b) = (hook("acme"), hook("other"));
    store.create_webhook(&a).await.unwrap();
    store.create_webhook(&b).await.unwrap();
    let mut found = store.webhooks().await.unwrap();
    found.sort_by(|x, y| x.tenant.cmp(&y.tenant));
    assert_eq!(found, [a.clone(), b.clone()]);

    let added =
        store.add_deliveries((0..5).map(|n| new(&a, n)).chain([new(&b, 0), new(&hook("gone"), 0)]).collect()).await.unwrap();
    assert_eq!(added.len(), 6, "a webhook that does not exist gets none");
    let again = store.add_deliveries(vec![new(&a, 4), new(&a, 5)]).await.unwrap();
    assert_eq!((again.len(), again[0].number), (2, added[4].number), "each event once");
    let mut pending = store.pending_deliveries().await.unwrap();
    pending.sort_by_key(|pending| pending.number);
    assert_eq!((pending.len(), &pending[..5]), (7, &added[..5]));

    let mut delivery = store.delivery(added[1].number).await.unwrap().unwrap();
    let given = new(&a, 1);
    assert_eq!(
        (&delivery.webhook, &delivery.event, delivery.kind, &delivery.body),
        (&a.id, &given.event, given.kind, &given.body)
    );
    assert_eq!((delivery.created_at, delivery.since, delivery.at, delivery.attempts), (given.at, given.at, given.at, 0));
    assert_eq!((delivery.state, delivery.status, &delivery.error), (DeliveryState::Pending, None, &None));
    for (state, status, error) in
        [(DeliveryState::Dead, Some(503), Some("no\0t now".to_owned())), (DeliveryState::Delivered, None, None)]
    {
        (delivery.state, delivery.status, delivery.attempts) = (state, status, delivery.attempts + 1);
        delivery.error.clone_from(&error);
        delivery.at = Timestamp::from_second(1_800_000_000).unwrap();
        store.update_delivery(&delivery).await.unwrap();
        let stored = store.delivery(delivery.number).await.unwrap().unwrap();
        assert_eq!((stored.state, stored.status, stored.attempts, stored.at), (state, status, delivery.attempts, delivery.at));
        assert_eq!(stored.error.is_some(), error.is_some());
    }
    assert_eq!(store.pending_deliveries().await.unwrap().len(), 6);
    assert!(store.delivery(u64::MAX).await.unwrap().is_none());

    let page = async |state, before, limit| {
        let found = store.deliveries(DeliveryQuery { webhook: a.id.clone(), state, before, limit }).await.unwrap();
        found.into_iter().map(|delivery| delivery.number).collect::<Vec<_>>()
    };
    let all = page(None, None, 100).await;
    assert!(all.len() == 6 && all.is_sorted_by(|x, y| x > y));
    assert_eq!(page(None, Some(all[1]), 2).await, all[2..4]);
    assert_eq!(page(Some(DeliveryState::Delivered), None, 100).await, [delivery.number]);

    for pending in &added[..5] {
        let ended = store.delivery(pending.number).await.unwrap().unwrap();
        store.update_delivery(&arenite_control::webhooks::Delivery { state: DeliveryState::Dead, ..ended }).await.unwrap();
    }
    store.trim_deliveries(&a.id, 2).await.unwrap();
    assert_eq!(page(None, None, 100).await, [all[0], all[1], all[2]], "one waits, and the last two that ended are kept");
    store.remove_webhook(&a.id).await.unwrap();
    store.remove_webhook(&a.id).await.unwrap();
    assert!(page(None, None, 100).await.is_empty());
    assert_eq!(store.webhooks().await.unwrap(), [b]);
    assert_eq!(store.pending_deliveries().await.unwrap().len(), 1);
}

#[tokio::test]
async fn sqlite_keeps_webhooks_and_deliveries() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("control.sqlite")).unwrap();
    exercise(&store).await;
    store.close().await;
}

#[tokio::test]
async fn postgres_keeps_webhooks_and_deliveries() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let store = PostgresStore::open(cluster.address(), data.path()).await.unwrap();
    exercise(&store).await;
    store.close().await;
}

async fn start(dir: &Path, retry: Duration) -> Arc<Control> {
    let mut config = ControlConfig::new(dir.to_owned(), "base".parse().unwrap());
    config.webhook_retry = retry;
    Control::start(config, FakeEngine::new()).await.unwrap()
}

/// Stores deliveries of all events so far.
async fn store_events(control: &Control) {
    let mut reader = control.read_events(None);
    let events: Vec<_> = std::iter::from_fn(|| reader.try_recv().ok()).collect();
    control.webhooks().unwrap().add(&events, |event| event.kind.to_string()).await.unwrap();
}

async fn attempt(webhooks: &Webhooks, error: Option<&str>) -> arenite_control::webhooks::Delivery {
    let attempt = tokio::time::timeout(Duration::from_secs(10), webhooks.next_attempt()).await.unwrap();
    let (_, delivery) = webhooks.load(&attempt).await.unwrap().unwrap();
    let status = if error.is_some() { 500 } else { 200 };
    webhooks.finish(delivery, AttemptResult { status: Some(status), error: error.map(str::to_owned) }).await.unwrap()
}

#[tokio::test]
async fn deliveries_that_were_not_made_outlive_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(86_400);
    let control = start(dir.path(), day).await;
    let webhooks = control.webhooks().unwrap();
    let hook = webhooks.create(&tenant(), "https://example.org".to_owned(), vec![EventKind::Created]).await.unwrap();
    control.create(&tenant(), named("a")).await.unwrap();
    store_events(&control).await;
    store_events(&control).await;
    assert_eq!(webhooks.waiting(), 1, "each event once");
    let failed = attempt(webhooks, Some("broken")).await;
    assert_eq!((failed.state, failed.attempts, failed.error.as_deref()), (DeliveryState::Pending, 1, Some("broken")));
    assert!(failed.at > failed.since);
    control.stop(false).await;

    let control = start(dir.path(), day).await;
    let webhooks = control.webhooks().unwrap();
    assert_eq!((webhooks.waiting(), webhooks.list(&tenant())), (1, vec![Arc::clone(&hook)]));
    let delivered = attempt(webhooks, None).await;
    assert_eq!((delivered.state, delivered.attempts, &delivered.body[..]), (DeliveryState::Delivered, 2, "sandbox.created"));
    assert_eq!(webhooks.waiting(), 0);
    let again = webhooks.redeliver(&hook, delivered.number).await.unwrap();
    assert_eq!((again.state, again.attempts, webhooks.waiting()), (DeliveryState::Pending, 0, 1));
    webhooks.remove_all(&tenant()).await.unwrap();
    assert_eq!((webhooks.waiting(), webhooks.list(&tenant()).len()), (0, 0));
    control.stop(false).await;
}

#[tokio::test]
async fn deliveries_die_when_the_time_for_retries_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let control = start(dir.path(), Duration::ZERO).await;
    let webhooks = control.webhooks().unwrap();
    webhooks.create(&tenant(), "https://example.org".to_owned(), vec![EventKind::Created]).await.unwrap();
    control.create(&tenant(), named("a")).await.unwrap();
    store_events(&control).await;
    let dead = attempt(webhooks, Some("broken")).await;
    assert_eq!((dead.state, webhooks.waiting()), (DeliveryState::Dead, 0));
    control.stop(false).await;
}
