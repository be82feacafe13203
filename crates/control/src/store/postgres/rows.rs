//! Rows and statements.

use arenite_model::{PauseKind, SandboxId, TenantId};
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::nodes::FORGET_WORKERS;
use super::session::Fault;
use crate::Sandbox;
use crate::nodes::SandboxKey;
use crate::store::{Op, Record, RecordId, RecordKind, Rows, StoreError, VolumeRow, number, to_json};
use crate::tenants::{Reserved, TenantLimits};

/// One statement, and so one transaction: the row and the record of its idempotency key.
const INSERT: &str = "
    WITH added AS (
        INSERT INTO sandboxes (id, tenant, name, state, reason, template, origin, spec, isolation,
            created_at, last_used_at, state_since, expires_at, cpu_millis, memory_bytes, disk_bytes, provenance, revision, died,
            pause_kind)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $21, $22, $23)
        ON CONFLICT DO NOTHING RETURNING id
    ), noted AS (
        INSERT INTO records (kind, tenant, key, value, expires_at)
        SELECT 'idempotency', $2, $18::text, $19::text, $20::bigint FROM added WHERE $18::text IS NOT NULL
        ON CONFLICT DO NOTHING
    ) SELECT FROM added";
/// What the tenant's other sandboxes reserve, and whether one more fits. One statement, since the statements of a batch are sent
/// together.
const USED: &str = "
    WITH used AS (
        SELECT count(*) AS sandboxes,
            coalesce(sum(cpu_millis), 0)::bigint AS cpu_millis,
            coalesce(sum(memory_bytes), 0)::bigint AS memory_bytes,
            coalesce(sum(disk_bytes), 0)::bigint AS disk_bytes
        FROM sandboxes WHERE tenant = $2 AND id <> $1
    ), fits AS (
        SELECT FROM used WHERE ($3::bigint IS NULL OR sandboxes + 1 <= $3) AND ($4::bigint IS NULL OR cpu_millis + $7 <= $4)
            AND ($5::bigint IS NULL OR memory_bytes + $8 <= $5) AND ($6::bigint IS NULL OR disk_bytes + $9 <= $6)
    )";
const INSERT_WITHIN: &str = "
    , written AS (
        INSERT INTO sandboxes (id, tenant, cpu_millis, memory_bytes, disk_bytes, name, state, reason, template, origin, spec,
            isolation, created_at, last_used_at, state_since, expires_at, provenance, revision, died)
        SELECT $1, $2, $7, $8, $9, $10::text, $11::text, $12::text, $13::text, $14::text, $15::text, $16::text,
            $17::bigint, $18::bigint, $19::bigint, $20::bigint, $21::text, $25::bigint, $26::text FROM fits
        ON CONFLICT DO NOTHING RETURNING id
    ), noted AS (
        INSERT INTO records (kind, tenant, key, value, expires_at)
        SELECT 'idempotency', $2, $22::text, $23::text, $24::bigint FROM written WHERE $22::text IS NOT NULL
        ON CONFLICT DO NOTHING
    ) SELECT (SELECT count(*) FROM written), used.* FROM used";
const RESERVE: &str = "
    , written AS (
        UPDATE sandboxes SET state = $10, reason = $11, state_since = $12, isolation = $13, last_used_at = $14,
            cpu_millis = $7, memory_bytes = $8, pause_kind = NULL
        WHERE id = $1 AND EXISTS (SELECT FROM fits) RETURNING id
    ) SELECT (SELECT count(*) FROM written), used.* FROM used";
const HOLDS: &str = "SELECT FROM sandboxes WHERE id = $1 AND tenant = $2 AND name = $3 AND spec = $4 AND created_at = $5";
const UPDATE: &str = "
    UPDATE sandboxes SET state = $2, reason = $3, state_since = $4, isolation = $5, last_used_at = $6, spec = $7, expires_at = $8,
        revision = $9, died = $10, cpu_millis = $11, memory_bytes = $12, pause_kind = $13
    WHERE id = $1";
const TOUCH: &str = "
    UPDATE sandboxes SET last_used_at = used.at FROM unnest($1::text[], $2::bigint[]) AS used (id, at)
    WHERE sandboxes.id = used.id";
const REMOVE: &str = "DELETE FROM sandboxes WHERE id = ANY ($1::text[])";
const LOAD: &str = "
    SELECT id, tenant, name, state, reason, template, origin, spec, isolation, created_at, last_used_at, state_since, expires_at,
        provenance, revision, died, pause_kind, NULLIF(node, arenite_node())
    FROM sandboxes";
const IN_ORDER: &str = "ORDER BY created_at, id";
/// A group is its node's.
const RECORDS: &str = "
    SELECT tenant, key, value, expires_at FROM records WHERE kind = $1 AND (kind <> 'group' OR node = arenite_node())";
const RECORDS_OF: &str = "SELECT tenant, key, value, expires_at FROM records WHERE kind = $1 AND tenant = $2";
/// Adds or changes the record of a volume, within the limits of its tenant. One statement, and so one transaction. Returns the
/// number of rows that it wrote, the value that was there before, and what the tenant's other volumes use.
const PUT_VOLUME: &str = "
    WITH used AS (
        SELECT count(*) AS volumes, coalesce(sum((value::jsonb ->> 'size_bytes')::bigint), 0)::bigint AS bytes
        FROM records WHERE kind = $1 AND tenant = $2 AND key <> $3
    ), fits AS (
        SELECT FROM used WHERE ($6::bigint IS NULL OR volumes + 1 <= $6) AND ($7::bigint IS NULL OR bytes + $8::bigint <= $7)
    ), added AS (
        INSERT INTO records (kind, tenant, key, value) SELECT $1, $2, $3, $4::text FROM fits WHERE $5::text IS NULL
        ON CONFLICT DO NOTHING RETURNING key
    ), changed AS (
        UPDATE records SET value = $4::text
        WHERE kind = $1 AND tenant = $2 AND key = $3 AND value = $5::text AND EXISTS (SELECT FROM fits) RETURNING key
    ) SELECT (SELECT count(*) FROM added) + (SELECT count(*) FROM changed),
        (SELECT value FROM records WHERE kind = $1 AND tenant = $2 AND key = $3), volumes, bytes FROM used";
const FIND_RECORD: &str = "SELECT tenant, key, value, expires_at FROM records WHERE kind = $1 AND tenant = $2 AND key = $3";
const COUNT_RECORDS: &str = "SELECT count(*) FROM records WHERE kind = $1 AND tenant = $2";
const PUT_RECORD: &str = "
    INSERT INTO records (kind, tenant, key, value, expires_at) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (kind, tenant, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at";
const REMOVE_RECORD: &str = "DELETE FROM records WHERE kind = $1 AND tenant = $2 AND key = $3";
const REMOVE_EXPIRED: &str = "DELETE FROM records WHERE expires_at < $1";

/// The statements of one session.
pub(super) struct Statements {
    insert: Statement,
    insert_within: Statement,
    reserve: Statement,
    holds: Statement,
    update: Statement,
    touch: Statement,
    remove: Statement,
}

impl Statements {
    pub(super) async fn prepare(client: &Client) -> Result<Self, tokio_postgres::Error> {
        let (insert_within, reserve) = (format!("{USED}{INSERT_WITHIN}"), format!("{USED}{RESERVE}"));
        let (insert, insert_within, reserve, holds, update, touch, remove) = tokio::try_join!(
            client.prepare(INSERT),
            client.prepare(&insert_within),
            client.prepare(&reserve),
            client.prepare(HOLDS),
            client.prepare(UPDATE),
            client.prepare(TOUCH),
            client.prepare(REMOVE)
        )?;
        Ok(Self { insert, insert_within, reserve, holds, update, touch, remove })
    }

    /// Adds a row within its tenant's limits. `is_repeated` says that an earlier attempt may have added it.
    pub(super) async fn insert(
        &self,
        client: &Client,
        row: &Sandbox,
        limits: &TenantLimits,
        is_repeated: bool,
    ) -> Result<(), Fault> {
        let spec = to_json(&row.spec).map_err(Fault::Refused)?;
        let isolation = to_json(&row.isolation).map_err(Fault::Refused)?;
        let (id, tenant, name) = (row.id.as_str(), row.tenant.as_str(), row.name.as_str());
        let (reason, template, origin) =
            (row.reason.as_deref().map(storable), row.template.as_deref().map(storable), storable(&row.origin));
        let [created_at, last_used_at, state_since] =
            [row.created_at, row.last_used_at, row.state_since].map(Timestamp::as_microsecond);
        let (state, expires_at) = (row.state.as_str(), row.expires_at.map(Timestamp::as_microsecond));
        let [cpu, memory, disk] = amounts(row);
        let provenance = to_json(&row.provenance).map_err(Fault::Refused)?;
        let (revision, died) = (number(row.revision), died_of(row)?);
        let record = row.key_record().map_err(Fault::Refused)?;
        let (key, value) = (record.as_ref().map(|record| &record.id.key), record.as_ref().map(|record| &record.value));
        let key_expires_at = record.as_ref().and_then(|record| Some(record.expires_at?.as_microsecond()));
        let written = if limits.apply_to_sandboxes() {
            let [most, most_cpu, most_memory, most_disk] = bounds(limits);
            let found = client
                .query_one(
                    &self.insert_within,
                    &[
                        &id,
                        &tenant,
                        &most,
                        &most_cpu,
                        &most_memory,
                        &most_disk,
                        &cpu,
                        &memory,
                        &disk,
                        &name,
                        &state,
                        &reason,
                        &template,
                        &origin,
                        &spec,
                        &isolation,
                        &created_at,
                        &last_used_at,
                        &state_since,
                        &expires_at,
                        &provenance,
                        &key,
                        &value,
                        &key_expires_at,
                        &revision,
                        &died,
                    ],
                )
                .await?;
            is_within(&found, row, limits)?
        } else {
            let values: [&(dyn ToSql + Sync); 23] = [
                &id,
                &tenant,
                &name,
                &state,
                &reason,
                &template,
                &origin,
                &spec,
                &isolation,
                &created_at,
                &last_used_at,
                &state_since,
                &expires_at,
                &cpu,
                &memory,
                &disk,
                &provenance,
                &key,
                &value,
                &key_expires_at,
                &revision,
                &died,
                &row.pause_kind.map(PauseKind::as_str),
            ];
            client.query_opt(&self.insert, &values).await?.is_some()
        };
        if written {
            return Ok(());
        }
        let holds = is_repeated && client.query_opt(&self.holds, &[&id, &tenant, &name, &spec, &created_at]).await?.is_some();
        if holds { Ok(()) } else { Err(Fault::Refused(StoreError::Taken)) }
    }

    /// Updates a row within its tenant's limits. Does nothing if it doesn't exist.
    pub(super) async fn reserve(&self, client: &Client, row: &Sandbox, limits: &TenantLimits) -> Result<(), Fault> {
        let isolation = to_json(&row.isolation).map_err(Fault::Refused)?;
        let [cpu, memory, disk] = amounts(row);
        let [most, most_cpu, most_memory, most_disk] = bounds(limits);
        let found = client
            .query_one(
                &self.reserve,
                &[
                    &row.id.as_str(),
                    &row.tenant.as_str(),
                    &most,
                    &most_cpu,
                    &most_memory,
                    &most_disk,
                    &cpu,
                    &memory,
                    &disk,
                    &row.state.as_str(),
                    &row.reason.as_deref().map(storable),
                    &row.state_since.as_microsecond(),
                    &isolation,
                    &row.last_used_at.as_microsecond(),
                ],
            )
            .await?;
        is_within(&found, row, limits).map(drop)
    }

    pub(super) async fn update(&self, client: &Client, row: &Sandbox) -> Result<(), Fault> {
        let isolation = to_json(&row.isolation).map_err(Fault::Refused)?;
        let spec = to_json(&row.spec).map_err(Fault::Refused)?;
        let [cpu, memory, _] = amounts(row);
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
                    &spec,
                    &row.expires_at.map(Timestamp::as_microsecond),
                    &number(row.revision),
                    &died_of(row)?,
                    &cpu,
                    &memory,
                    &row.pause_kind.map(PauseKind::as_str),
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

/// How it died, as JSON.
fn died_of(row: &Sandbox) -> Result<Option<String>, Fault> {
    row.died.as_ref().map(to_json).transpose().map_err(Fault::Refused)
}

/// What a row reserves: CPU, memory, disk.
fn amounts(row: &Sandbox) -> [i64; 3] {
    let reserved = Reserved::from_sandbox(row);
    [reserved.cpu_millis, reserved.memory_bytes, reserved.disk_bytes].map(number)
}

fn bounds(limits: &TenantLimits) -> [Option<i64>; 4] {
    [limits.sandboxes, limits.cpu_millis, limits.memory_bytes, limits.disk_bytes].map(|limit| limit.map(number))
}

/// Whether a row was written. If it was not, for want of room, this is an error.
fn is_within(found: &Row, row: &Sandbox, limits: &TenantLimits) -> Result<bool, Fault> {
    if found.get::<_, i64>(0) > 0 {
        return Ok(true);
    }
    let [sandboxes, cpu_millis, memory_bytes, disk_bytes] = [1, 2, 3, 4].map(|at| found.get::<_, i64>(at).unsigned_abs());
    let used = Reserved { sandboxes, cpu_millis, memory_bytes, disk_bytes, ..Reserved::default() };
    used.check(&Reserved::from_sandbox(row), limits).map_err(|exceeded| Fault::Refused(exceeded.into()))?;
    Ok(false)
}

/// Reads or writes records. These are few, so the database plans them each time.
pub(super) async fn apply_record(client: &Client, op: &Op) -> Result<Rows, Fault> {
    let (kind, rows) = match op {
        Op::Records(kind) => (*kind, client.query(RECORDS, &[&kind.as_str()]).await?),
        Op::RecordsOf(kind, tenant) => (*kind, client.query(RECORDS_OF, &[&kind.as_str(), &tenant.as_str()]).await?),
        Op::FindRecord(RecordId { kind, tenant, key }) => {
            (*kind, client.query(FIND_RECORD, &[&kind.as_str(), &tenant.as_str(), key]).await?)
        }
        Op::CountRecords(kind, tenant) => {
            let count: i64 = client.query_one(COUNT_RECORDS, &[&kind.as_str(), &tenant.as_str()]).await?.get(0);
            return Ok(Rows { count: count.unsigned_abs(), ..Rows::default() });
        }
        Op::PutRecord(Record { id: RecordId { kind, tenant, key }, value, expires_at }) => {
            let expires_at = expires_at.map(Timestamp::as_microsecond);
            client.execute(PUT_RECORD, &[&kind.as_str(), &tenant.as_str(), key, value, &expires_at]).await?;
            return Ok(Rows::default());
        }
        Op::RemoveRecord(RecordId { kind, tenant, key }) => {
            client.execute(REMOVE_RECORD, &[&kind.as_str(), &tenant.as_str(), key]).await?;
            return Ok(Rows::default());
        }
        Op::RemoveExpired(now) => {
            client.execute(REMOVE_EXPIRED, &[&now.as_microsecond()]).await?;
            client.execute(FORGET_WORKERS, &[&now.as_microsecond()]).await?;
            return Ok(Rows::default());
        }
        _ => return Ok(Rows::default()),
    };
    let read_row = |row: &Row| {
        read_record(row, kind).map_err(|error| {
            let id = row.try_get(1).unwrap_or_default();
            Fault::Refused(StoreError::BadRow { id, reason: error.to_string() })
        })
    };
    Ok(Rows { records: rows.iter().map(read_row).collect::<Result<_, _>>()?, ..Rows::default() })
}

/// Writes the record of a volume. `is_repeated` says that an earlier attempt may have written it.
pub(super) async fn put_volume(client: &Client, row: &VolumeRow, is_repeated: bool) -> Result<(), Fault> {
    let VolumeRow { record: Record { id: RecordId { kind, tenant, key }, value, .. }, size_bytes, before, limits } = row;
    let [most, most_bytes] = [limits.volumes, limits.volume_bytes].map(|limit| limit.map(number));
    let (kind, tenant, size) = (kind.as_str(), tenant.as_str(), number(*size_bytes));
    let found = client.query_one(PUT_VOLUME, &[&kind, &tenant, key, value, before, &most, &most_bytes, &size]).await?;
    let there: Option<String> = found.get(1);
    if found.get::<_, i64>(0) > 0 || is_repeated && there.as_ref() == Some(value) {
        return Ok(());
    }
    if there != *before {
        return Err(Fault::Refused(StoreError::Taken));
    }
    let [volumes, bytes] = [2, 3].map(|at| found.get::<_, i64>(at).unsigned_abs());
    row.check(volumes, bytes).map_err(Fault::Refused)?;
    // Another node was faster.
    Err(Fault::Refused(StoreError::Taken))
}

/// The records of all kinds.
pub(super) async fn all_records(client: &Client) -> Result<Vec<Record>, Fault> {
    let mut all = Vec::new();
    for kind in RecordKind::ALL {
        all.extend(apply_record(client, &Op::Records(kind)).await?.records);
    }
    Ok(all)
}

/// Adds records. With `replace`, they take the place of all that are there.
pub(super) async fn import_records(client: &Client, records: &[Record], replace: bool) -> Result<(), Fault> {
    if replace {
        client.batch_execute("DELETE FROM records").await?;
    }
    for record in records {
        // A sandbox's row has added the record of its key, without the answer.
        apply_record(client, &Op::PutRecord(record.clone())).await?;
    }
    Ok(())
}

fn read_record(row: &Row, kind: RecordKind) -> Result<Record, Box<dyn std::error::Error>> {
    Ok(Record {
        id: RecordId { kind, tenant: row.try_get::<_, &str>(0)?.parse()?, key: row.try_get(1)? },
        value: row.try_get(2)?,
        expires_at: row.try_get::<_, Option<i64>>(3)?.map(Timestamp::from_microsecond).transpose()?,
    })
}

/// Postgres refuses the character 0 in a text.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The rows of this node, or of a server without a cluster.
pub(super) async fn load(client: &Client) -> Result<Vec<Sandbox>, Fault> {
    let own = format!("{LOAD} WHERE node = arenite_node() {IN_ORDER}");
    read_all(&client.query(&own, &[]).await?, read)
}

/// A tenant's rows of other nodes.
pub(super) async fn load_of_others(client: &Client, tenant: &TenantId) -> Result<Vec<Sandbox>, Fault> {
    let others = format!("{LOAD} WHERE tenant = $1 AND node NOT IN ('', arenite_node()) {IN_ORDER}");
    read_all(&client.query(&others, &[&tenant.as_str()]).await?, read)
}

/// A tenant's row of another node.
pub(super) async fn load_of_other(client: &Client, tenant: &TenantId, sandbox: &SandboxKey) -> Result<Option<Sandbox>, Fault> {
    let (column, value) = match sandbox {
        SandboxKey::Name(name) => ("name", name.as_str()),
        SandboxKey::Id(id) => ("id", id.as_str()),
    };
    let other = format!("{LOAD} WHERE tenant = $1 AND {column} = $2 AND node NOT IN ('', arenite_node())");
    Ok(read_all(&client.query(&other, &[&tenant.as_str(), &value]).await?, read)?.pop())
}

/// The rows of all nodes.
pub(super) async fn load_all(client: &Client) -> Result<Vec<Sandbox>, Fault> {
    read_all(&client.query(&format!("{LOAD} {IN_ORDER}"), &[]).await?, read)
}

/// Why a row can't be read.
pub(super) type Unreadable = Box<dyn std::error::Error>;

pub(super) fn read_all<T>(rows: &[Row], read: impl Fn(&Row) -> Result<T, Unreadable>) -> Result<Vec<T>, Fault> {
    let read_row = |row: &Row| {
        read(row).map_err(|error| {
            let id = row.try_get(0).unwrap_or_default();
            Fault::Refused(StoreError::BadRow { id, reason: error.to_string() })
        })
    };
    rows.iter().map(read_row).collect()
}

pub(super) fn read_time(row: &Row, at: usize) -> Result<Timestamp, Unreadable> {
    Ok(Timestamp::from_microsecond(row.try_get(at)?)?)
}

pub(super) fn read_optional_time(row: &Row, at: usize) -> Result<Option<Timestamp>, Unreadable> {
    Ok(row.try_get::<_, Option<i64>>(at)?.map(Timestamp::from_microsecond).transpose()?)
}

fn read(row: &Row) -> Result<Sandbox, Unreadable> {
    let text = |at: usize| row.try_get::<_, &str>(at);
    let time = |at| read_time(row, at);
    Ok(Sandbox {
        id: text(0)?.parse()?,
        tenant: text(1)?.parse()?,
        name: text(2)?.parse()?,
        state: text(3)?.parse()?,
        pause_kind: row.try_get::<_, Option<&str>>(16)?.map(str::parse).transpose()?,
        reason: row.try_get(4)?,
        template: row.try_get(5)?,
        origin: row.try_get(6)?,
        spec: serde_json::from_str(text(7)?)?,
        isolation: serde_json::from_str(text(8)?)?,
        created_at: time(9)?,
        last_used_at: time(10)?,
        state_since: time(11)?,
        expires_at: read_optional_time(row, 12)?,
        provenance: serde_json::from_str(text(13)?)?,
        revision: row.try_get::<_, i64>(14)?.unsigned_abs(),
        died: row.try_get::<_, Option<&str>>(15)?.map(serde_json::from_str).transpose()?,
        stages: Vec::new(),
        node: row.try_get::<_, Option<&str>>(17)?.filter(|node| !node.is_empty()).map(str::parse).transpose()?,
    })
}
