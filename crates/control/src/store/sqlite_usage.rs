//! Usage in the SQLite file.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::sqlite_tenants::{read_all, time, unreadable};
use super::usage::{self, Key, UsageStore};
use super::{SqliteStore, StoreError, UsageContents, number};
use crate::usage::{Meter, UsageHour, UsageQuery, UsageRow, UsageSample, UsedAmounts};

fn read_meter(row: &Row<'_>) -> Result<Meter, StoreError> {
    let id: String = row.get(0)?;
    let counter = |at: usize| Ok::<_, StoreError>(row.get::<_, i64>(at)?.unsigned_abs());
    Ok(Meter {
        subject: id.parse().map_err(|error| unreadable(&id, error))?,
        at: time(row.get(1)?)?,
        cpu_nanoseconds: counter(2)?,
        sent_bytes: counter(3)?,
        received_bytes: counter(4)?,
    })
}

fn set_meter(db: &Connection, meter: &Meter) -> Result<(), StoreError> {
    let [cpu, sent, received] = [meter.cpu_nanoseconds, meter.sent_bytes, meter.received_bytes].map(number);
    let values = params![meter.subject.as_str(), meter.at.as_microsecond(), cpu, sent, received];
    db.prepare_cached(usage::SET_METER)?.execute(values)?;
    Ok(())
}

fn append(db: &Connection, sample: &UsageSample) -> Result<(), StoreError> {
    let UsageSample { tenant, name, template, used, meter } = sample;
    let [egress, ingress, calls] = [used.egress_bytes, used.ingress_bytes, used.tool_calls].map(number);
    db.prepare_cached(&usage::append())?.execute(params![
        meter.subject.as_str(),
        meter.at.as_microsecond(),
        tenant.as_str(),
        name.as_str(),
        template,
        used.core_seconds,
        used.memory_gib_seconds,
        used.disk_gib_hours,
        egress,
        ingress,
        calls,
        number(used.model_calls),
        number(used.model_input_tokens),
        number(used.model_output_tokens),
        used.model_cost_usd,
    ])?;
    sample.kept_meter().map_or(Ok(()), |meter| set_meter(db, meter))
}

/// The columns of a sum of hours, with its amounts from the sixth on.
fn read_sum(row: &Row<'_>, [tenant, hour, sandbox, name, template]: [usize; 5]) -> Result<(Key, UsedAmounts), StoreError> {
    let key = Key {
        tenant: row.get(tenant)?,
        hour: row.get(hour)?,
        sandbox: row.get(sandbox)?,
        name: row.get(name)?,
        template: row.get(template)?,
    };
    let count = |at: usize| Ok::<_, StoreError>(row.get::<_, i64>(at)?.unsigned_abs());
    let used = UsedAmounts {
        core_seconds: row.get(5)?,
        memory_gib_seconds: row.get(6)?,
        disk_gib_hours: row.get(7)?,
        egress_bytes: count(8)?,
        ingress_bytes: count(9)?,
        tool_calls: count(10)?,
        model_calls: count(11)?,
        model_input_tokens: count(12)?,
        model_output_tokens: count(13)?,
        model_cost_usd: row.get(14)?,
    };
    Ok((key, used))
}

fn read_hour(row: &Row<'_>) -> Result<UsageHour, StoreError> {
    let (key, used) = read_sum(row, [1, 0, 2, 3, 4])?;
    key.hour(used).map_err(|error| unreadable("of an hour", error))
}

/// All rows of usage.
pub(super) fn load(db: &Connection) -> Result<UsageContents, StoreError> {
    let (mut hours, mut meters) = (db.prepare(&usage::all_hours())?, db.prepare(usage::METERS)?);
    Ok(UsageContents { hours: read_all(hours.query([])?, read_hour)?, meters: read_all(meters.query([])?, read_meter)? })
}

/// Replaces all rows of usage.
pub(super) fn import(db: &Connection, contents: &UsageContents) -> Result<(), StoreError> {
    db.execute_batch(usage::CLEAR)?;
    for hour in &contents.hours {
        let used = &hour.used;
        let [egress, ingress, calls] = [used.egress_bytes, used.ingress_bytes, used.tool_calls].map(number);
        db.prepare_cached(&usage::insert_hour())?.execute(params![
            hour.hour.as_microsecond(),
            hour.tenant.as_str(),
            hour.subject.as_ref().map_or("", |id| id.as_str()),
            hour.name.as_deref().unwrap_or_default(),
            hour.template,
            used.core_seconds,
            used.memory_gib_seconds,
            used.disk_gib_hours,
            egress,
            ingress,
            calls,
            number(used.model_calls),
            number(used.model_input_tokens),
            number(used.model_output_tokens),
            used.model_cost_usd,
        ])?;
    }
    contents.meters.iter().try_for_each(|meter| set_meter(db, meter))
}

#[async_trait]
impl UsageStore for SqliteStore {
    async fn meters(&self) -> Result<Vec<Meter>, StoreError> {
        self.transaction(|db| read_all(db.prepare(usage::METERS)?.query([])?, read_meter)).await
    }

    async fn append_usage(&self, samples: Vec<UsageSample>) -> Result<(), StoreError> {
        self.transaction(move |db| samples.iter().try_for_each(|sample| append(db, sample))).await
    }

    async fn roll_up(&self, now: Timestamp) -> Result<(), StoreError> {
        self.transaction(move |db| Ok(db.execute_batch(&usage::roll_up(now))?)).await
    }

    async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
        self.transaction(move |db| {
            let (since, until) = usage::range(&query);
            let tenant = query.tenant.as_ref().map_or("", |tenant| tenant.as_str());
            let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
            let mut select = db.prepare_cached(&usage::select(query.group))?;
            let read_row = |row: &Row<'_>| {
                let (key, used) = read_sum(row, [0, 1, 2, 3, 4])?;
                key.row(query.group, used).map_err(|error| unreadable("of usage", error))
            };
            read_all(select.query(params![since, until, tenant, limit])?, read_row)
        })
        .await
    }
}
