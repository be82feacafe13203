//! Rows and statements.

use arenite_model::SandboxId;
use jiff::Timestamp;
use tokio_postgres::{Client, Row, Statement};

use super::session::Fault;
use crate::Sandbox;
use crate::store::{StoreError, to_json};

const INSERT: &str = "
    INSERT INTO sandboxes (id, tenant, name, state, reason, template, origin, spec, isolation,
        created_at, last_used_at, state_since, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
    ON CONFLICT DO NOTHING";
const HOLDS: &str = "SELECT FROM sandboxes WHERE id = $1 AND tenant = $2 AND name = $3 AND spec = $4 AND created_at = $5";
const UPDATE: &str = "
    UPDATE sandboxes SET state = $2, reason = $3, state_since = $4, isolation = $5, last_used_at = $6 WHERE id = $1";
const TOUCH: &str = "
    UPDATE sandboxes SET last_used_at = used.at FROM unnest($1::text[], $2::bigint[]) AS used (id, at)
    WHERE sandboxes.id = used.id";
const REMOVE: &str = "DELETE FROM sandboxes WHERE id = ANY ($1::text[])";
const LOAD: &str = "
    SELECT id, tenant, name, state, reason, template, origin, spec, isolation, created_at, last_used_at, state_since, expires_at
    FROM sandboxes ORDER BY created_at, id";

/// The statements of one session.
pub(super) struct Statements {
    insert: Statement,
    holds: Statement,
    update: Statement,
    touch: Statement,
    remove: Statement,
}

impl Statements {
    pub(super) async fn prepare(client: &Client) -> Result<Self, tokio_postgres::Error> {
        let (insert, holds, update, touch, remove) = tokio::try_join!(
            client.prepare(INSERT),
            client.prepare(HOLDS),
            client.prepare(UPDATE),
            client.prepare(TOUCH),
            client.prepare(REMOVE)
        )?;
        Ok(Self { insert, holds, update, touch, remove })
    }

    /// Adds a row. `is_repeated` says that an earlier attempt may have added it.
    pub(super) async fn insert(&self, client: &Client, row: &Sandbox, is_repeated: bool) -> Result<(), Fault> {
        let spec = to_json(&row.spec).map_err(Fault::Refused)?;
        let isolation = to_json(&row.isolation).map_err(Fault::Refused)?;
        let (id, tenant, name) = (row.id.as_str(), row.tenant.as_str(), row.name.as_str());
        let (reason, template, origin) =
            (row.reason.as_deref().map(storable), row.template.as_deref().map(storable), storable(&row.origin));
        let created_at = row.created_at.as_microsecond();
        let inserted = client
            .execute(
                &self.insert,
                &[
                    &id,
                    &tenant,
                    &name,
                    &row.state.as_str(),
                    &reason,
                    &template,
                    &origin,
                    &spec,
                    &isolation,
                    &created_at,
                    &row.last_used_at.as_microsecond(),
                    &row.state_since.as_microsecond(),
                    &row.expires_at.map(Timestamp::as_microsecond),
                ],
            )
            .await?;
        if inserted == 1 {
            return Ok(());
        }
        let holds = is_repeated && client.query_opt(&self.holds, &[&id, &tenant, &name, &spec, &created_at]).await?.is_some();
        if holds { Ok(()) } else { Err(Fault::Refused(StoreError::Taken)) }
    }

    pub(super) async fn update(&self, client: &Client, row: &Sandbox) -> Result<(), Fault> {
        let isolation = to_json(&row.isolation).map_err(Fault::Refused)?;
        client
            .execute(
                &self.update,
                &[
                    &row.id.as_str(),
                    &row.state.as_str(),
                    &row.reason.as_deref().map(storable),
                    &row.state_since.as_microsecond(),
                    &isolation,
                    &row.last_used_at.as_microsecond(),
                ],
            )
            .await?;
        Ok(())
    }

    pub(super) async fn touch(&self, client: &Client, used: &[(SandboxId, Timestamp)]) -> Result<(), Fault> {
        let ids: Vec<&str> = used.iter().map(|(id, _)| id.as_str()).collect();
        let times: Vec<i64> = used.iter().map(|(_, at)| at.as_microsecond()).collect();
        client.execute(&self.touch, &[&ids, &times]).await?;
        Ok(())
    }

    pub(super) async fn remove(&self, client: &Client, ids: &[&str]) -> Result<(), Fault> {
        client.execute(&self.remove, &[&ids]).await?;
        Ok(())
    }
}

/// Postgres refuses the character 0 in a text.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) async fn load(client: &Client) -> Result<Vec<Sandbox>, Fault> {
    let rows = client.query(LOAD, &[]).await?;
    let read_row = |row: &Row| {
        read(row).map_err(|error| {
            let id = row.try_get(0).unwrap_or_default();
            Fault::Refused(StoreError::BadRow { id, reason: error.to_string() })
        })
    };
    rows.iter().map(read_row).collect()
}

fn read(row: &Row) -> Result<Sandbox, Box<dyn std::error::Error>> {
    let text = |at: usize| row.try_get::<_, &str>(at);
    let time =
        |at: usize| -> Result<Timestamp, Box<dyn std::error::Error>> { Ok(Timestamp::from_microsecond(row.try_get(at)?)?) };
    Ok(Sandbox {
        id: text(0)?.parse()?,
        tenant: text(1)?.parse()?,
        name: text(2)?.parse()?,
        state: text(3)?.parse()?,
        reason: row.try_get(4)?,
        template: row.try_get(5)?,
        origin: row.try_get(6)?,
        spec: serde_json::from_str(text(7)?)?,
        isolation: serde_json::from_str(text(8)?)?,
        created_at: time(9)?,
        last_used_at: time(10)?,
        state_since: time(11)?,
        expires_at: row.try_get::<_, Option<i64>>(12)?.map(Timestamp::from_microsecond).transpose()?,
        stages: Vec::new(),
    })
}
