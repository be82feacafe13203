//! Webhooks and their deliveries in the SQLite file.

use arenite_model::WebhookId;
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::sqlite_tenants::{read_all, time, unreadable};
use super::webhooks::WebhookStore;
use super::{SqliteStore, StoreError, number, to_json};
use crate::webhooks::{Delivery, DeliveryQuery, DeliveryState, NewDelivery, PendingDelivery, Webhook};

pub(super) const SCHEMA: &str = "
    CREATE TABLE webhooks (
        id         TEXT PRIMARY KEY,
        tenant     TEXT NOT NULL,
        url        TEXT NOT NULL,
        secret     BLOB NOT NULL,
        kinds      TEXT NOT NULL,  -- JSON
        created_at INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE deliveries (
        number     INTEGER PRIMARY KEY AUTOINCREMENT,
        webhook    TEXT NOT NULL,
        event      TEXT NOT NULL,
        kind       TEXT NOT NULL,
        body       TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        state      TEXT NOT NULL,
        attempts   INTEGER NOT NULL,
        since      INTEGER NOT NULL,
        at         INTEGER NOT NULL,
        status     INTEGER,
        error      TEXT,
        UNIQUE (webhook, event)
    );
    CREATE INDEX deliveries_by_state ON deliveries (state, webhook, number);
";

const COLUMNS: &str = "number, webhook, event, kind, body, created_at, state, attempts, since, at, status, error";

fn read_webhook(row: &Row<'_>) -> Result<Webhook, StoreError> {
    let (id, tenant, kinds): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(4)?);
    Ok(Webhook {
        tenant: tenant.parse().map_err(|error| unreadable(&id, error))?,
        url: row.get(2)?,
        secret: row.get(3)?,
        kinds: serde_json::from_str(&kinds).map_err(|error| unreadable(&id, error))?,
        created_at: time(row.get(5)?)?,
        id: id.parse().map_err(|error| unreadable(&id, error))?,
    })
}

fn read_delivery(row: &Row<'_>) -> Result<Delivery, StoreError> {
    let number: i64 = row.get(0)?;
    let bad = |error: String| unreadable(&number.to_string(), error);
    let (webhook, kind, state): (String, String, String) = (row.get(1)?, row.get(3)?, row.get(6)?);
    Ok(Delivery {
        number: number.unsigned_abs(),
        webhook: webhook.parse().map_err(|error: arenite_model::IdError| bad(error.to_string()))?,
        event: row.get(2)?,
        kind: kind.parse().map_err(bad)?,
        body: row.get(4)?,
        created_at: time(row.get(5)?)?,
        state: state.parse().map_err(bad)?,
        attempts: row.get(7)?,
        since: time(row.get(8)?)?,
        at: time(row.get(9)?)?,
        status: row.get(10)?,
        error: row.get(11)?,
    })
}

fn read_pending(row: &Row<'_>) -> Result<PendingDelivery, StoreError> {
    let (number, webhook): (i64, String) = (row.get(0)?, row.get(1)?);
    let webhook = webhook.parse().map_err(|error| unreadable(&webhook, error))?;
    Ok(PendingDelivery { number: number.unsigned_abs(), webhook, at: time(row.get(2)?)? })
}

/// All webhooks.
pub(super) fn load(db: &Connection) -> Result<Vec<Webhook>, StoreError> {
    let mut select = db.prepare("SELECT id, tenant, url, secret, kinds, created_at FROM webhooks ORDER BY id")?;
    read_all(select.query([])?, read_webhook)
}

/// Adds webhooks. With `replace`, they take the place of all that are there, with their deliveries.
pub(super) fn import(db: &Connection, hooks: &[Webhook], replace: bool) -> Result<(), StoreError> {
    if replace {
        db.execute_batch("DELETE FROM deliveries; DELETE FROM webhooks")?;
    }
    hooks.iter().try_for_each(|hook| insert(db, hook))
}

fn insert(db: &Connection, hook: &Webhook) -> Result<(), StoreError> {
    let Webhook { id, tenant, url, secret, kinds, created_at } = hook;
    db.execute(
        "INSERT INTO webhooks (id, tenant, url, secret, kinds, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![id.as_str(), tenant.as_str(), url, secret, to_json(kinds)?, created_at.as_microsecond()],
    )?;
    Ok(())
}

#[async_trait]
impl WebhookStore for SqliteStore {
    async fn webhooks(&self) -> Result<Vec<Webhook>, StoreError> {
        self.transaction(load).await
    }

    async fn create_webhook(&self, hook: &Webhook) -> Result<(), StoreError> {
        let hook = hook.clone();
        self.transaction(move |db| insert(db, &hook)).await
    }

    async fn remove_webhook(&self, id: &WebhookId) -> Result<(), StoreError> {
        let id = id.clone();
        self.transaction(move |db| {
            db.execute("DELETE FROM deliveries WHERE webhook = ?1", [id.as_str()])?;
            db.execute("DELETE FROM webhooks WHERE id = ?1", [id.as_str()])?;
            Ok(())
        })
        .await
    }

    async fn add_deliveries(&self, new: Vec<NewDelivery>) -> Result<Vec<PendingDelivery>, StoreError> {
        self.transaction(move |db| {
            let mut insert = db.prepare_cached(
                "INSERT INTO deliveries (webhook, event, kind, body, created_at, state, attempts, since, at)
                 SELECT ?1, ?2, ?3, ?4, ?5, 'pending', 0, ?5, ?5 FROM webhooks WHERE id = ?1
                 ON CONFLICT (webhook, event) DO UPDATE SET event = excluded.event RETURNING number, webhook, at",
            )?;
            let mut added = Vec::new();
            for delivery in &new {
                let NewDelivery { webhook, event, kind, body, at } = delivery;
                let rows = insert.query(params![webhook.as_str(), event, kind.as_str(), body, at.as_microsecond()])?;
                added.extend(read_all(rows, read_pending)?);
            }
            Ok(added)
        })
        .await
    }

    async fn pending_deliveries(&self) -> Result<Vec<PendingDelivery>, StoreError> {
        self.transaction(|db| {
            let mut select = db.prepare("SELECT number, webhook, at FROM deliveries WHERE state = 'pending'")?;
            read_all(select.query([])?, read_pending)
        })
        .await
    }

    async fn delivery(&self, number: u64) -> Result<Option<Delivery>, StoreError> {
        self.transaction(move |db| {
            let mut select = db.prepare_cached(&format!("SELECT {COLUMNS} FROM deliveries WHERE number = ?1"))?;
            let found = select.query_row([super::number(number)], |row| Ok(read_delivery(row))).optional()?;
            found.transpose()
        })
        .await
    }

    async fn update_delivery(&self, delivery: &Delivery) -> Result<(), StoreError> {
        let delivery = delivery.clone();
        self.transaction(move |db| {
            let Delivery { number, state, attempts, since, at, status, error, .. } = &delivery;
            db.prepare_cached(
                "UPDATE deliveries SET state = ?2, attempts = ?3, since = ?4, at = ?5, status = ?6, error = ?7 WHERE number = ?1",
            )?
            .execute(params![
                super::number(*number),
                state.as_str(),
                attempts,
                since.as_microsecond(),
                at.as_microsecond(),
                status,
                error
            ])?;
            Ok(())
        })
        .await
    }

    async fn deliveries(&self, query: DeliveryQuery) -> Result<Vec<Delivery>, StoreError> {
        self.transaction(move |db| {
            let mut select = db.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM deliveries WHERE webhook = ?1 AND (?2 IS NULL OR state = ?2) AND number < ?3
                 ORDER BY number DESC LIMIT ?4"
            ))?;
            let state = query.state.map(DeliveryState::as_str);
            let (before, limit) = (query.before.map_or(i64::MAX, number), number(query.limit as u64));
            read_all(select.query(params![query.webhook.as_str(), state, before, limit])?, read_delivery)
        })
        .await
    }

    async fn trim_deliveries(&self, webhook: &WebhookId, keep: u64) -> Result<(), StoreError> {
        let webhook = webhook.clone();
        self.transaction(move |db| {
            let last: Option<i64> = db
                .query_row(
                    "SELECT number FROM deliveries WHERE webhook = ?1 AND state <> 'pending' ORDER BY number DESC LIMIT 1 OFFSET ?2",
                    params![webhook.as_str(), number(keep)],
                    |row| row.get(0),
                )
                .optional()?;
            if let Some(last) = last {
                db.execute(
                    "DELETE FROM deliveries WHERE webhook = ?1 AND state <> 'pending' AND number <= ?2",
                    params![webhook.as_str(), last],
                )?;
            }
            Ok(())
        })
        .await
    }
}
