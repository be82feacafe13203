//! Usage in the database.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_postgres::{Client, Row, Statement};

use super::PostgresStore;
use super::rows::{Unreadable, read_all, read_time};
use super::session::{Fault, pipeline};
use super::tenants::IMPORTED;
use crate::store::usage::{self, Key, UsageStore};
use crate::store::{StoreError, UsageContents, number};
use crate::usage::{Meter, UsageGroup, UsageHour, UsageQuery, UsageRow, UsageSample, UsedAmounts};

fn count(row: &Row, at: usize) -> Result<u64, Unreadable> {
    Ok(row.try_get::<_, i64>(at)?.unsigned_abs())
}

fn read_meter(row: &Row) -> Result<Meter, Unreadable> {
    Ok(Meter {
        subject: row.try_get::<_, &str>(0)?.parse()?,
        at: read_time(row, 1)?,
        cpu_nanoseconds: count(row, 2)?,
        sent_bytes: count(row, 3)?,
        received_bytes: count(row, 4)?,
    })
}

/// The columns of a sum of hours, with its amounts from the sixth on.
fn read_sum(row: &Row, [tenant, hour, sandbox, name, template]: [usize; 5]) -> Result<(Key, UsedAmounts), Unreadable> {
    let key = Key {
        tenant: row.try_get(tenant)?,
        hour: row.try_get(hour)?,
        sandbox: row.try_get(sandbox)?,
        name: row.try_get(name)?,
        template: row.try_get(template)?,
    };
    let used = UsedAmounts {
        core_seconds: row.try_get(5)?,
        memory_gib_seconds: row.try_get(6)?,
        disk_gib_hours: row.try_get(7)?,
        egress_bytes: count(row, 8)?,
        ingress_bytes: count(row, 9)?,
        tool_calls: count(row, 10)?,
        model_calls: count(row, 11)?,
        model_input_tokens: count(row, 12)?,
        model_output_tokens: count(row, 13)?,
        model_cost_usd: row.try_get(14)?,
    };
    Ok((key, used))
}

fn read_row(row: &Row, group: UsageGroup) -> Result<UsageRow, Unreadable> {
    let (key, used) = read_sum(row, [0, 1, 2, 3, 4])?;
    key.row(group, used)
}

fn read_hour(row: &Row) -> Result<UsageHour, Unreadable> {
    let (key, used) = read_sum(row, [1, 0, 2, 3, 4])?;
    key.hour(used)
}

async fn set_meter(client: &Client, statement: &Statement, meter: &Meter) -> Result<(), Fault> {
    let [cpu, sent, received] = [meter.cpu_nanoseconds, meter.sent_bytes, meter.received_bytes].map(number);
    client.execute(statement, &[&meter.subject.as_str(), &meter.at.as_microsecond(), &cpu, &sent, &received]).await?;
    Ok(())
}

async fn append(client: &Client, statement: &Statement, sample: &UsageSample) -> Result<(), Fault> {
    let UsageSample { tenant, name, template, used, meter } = sample;
    let [egress, ingress, calls] = [used.egress_bytes, used.ingress_bytes, used.tool_calls].map(number);
    client
        .execute(
            statement,
            &[
                &meter.subject.as_str(),
                &meter.at.as_microsecond(),
                &tenant.as_str(),
                &name.as_str(),
                template,
                &used.core_seconds,
                &used.memory_gib_seconds,
                &used.disk_gib_hours,
                &egress,
                &ingress,
                &calls,
                &number(used.model_calls),
                &number(used.model_input_tokens),
                &number(used.model_output_tokens),
                &used.model_cost_usd,
            ],
        )
        .await?;
    Ok(())
}

async fn insert_hour(client: &Client, statement: &Statement, hour: &UsageHour) -> Result<(), Fault> {
    let used = &hour.used;
    let [egress, ingress, calls] = [used.egress_bytes, used.ingress_bytes, used.tool_calls].map(number);
    client
        .execute(
            statement,
            &[
                &hour.hour.as_microsecond(),
                &hour.tenant.as_str(),
                &hour.subject.as_ref().map_or("", |id| id.as_str()),
                &hour.name.as_deref().unwrap_or_default(),
                &hour.template,
                &used.core_seconds,
                &used.memory_gib_seconds,
                &used.disk_gib_hours,
                &egress,
                &ingress,
                &calls,
                &number(used.model_calls),
                &number(used.model_input_tokens),
                &number(used.model_output_tokens),
                &used.model_cost_usd,
            ],
        )
        .await?;
    Ok(())
}

async fn set_meters(client: &Client, meters: impl Iterator<Item = &Meter>) -> Result<(), Fault> {
    let statement = client.prepare(usage::SET_METER).await?;
    pipeline(meters.map(|meter| set_meter(client, &statement, meter)).collect()).await.into_iter().collect()
}

/// All rows of usage.
pub(super) async fn load(client: &Client) -> Result<UsageContents, Fault> {
    let hours = client.query(&usage::all_hours(), &[]).await?;
    let meters = client.query(usage::METERS, &[]).await?;
    Ok(UsageContents { hours: read_all(&hours, read_hour)?, meters: read_all(&meters, read_meter)? })
}

/// Replaces all rows of usage.
pub(super) async fn import(client: &Client, contents: &UsageContents) -> Result<(), Fault> {
    client.batch_execute(usage::CLEAR).await?;
    let statement = client.prepare(&usage::insert_hour()).await?;
    for hours in contents.hours.chunks(IMPORTED) {
        let inserts = hours.iter().map(|hour| insert_hour(client, &statement, hour)).collect();
        pipeline(inserts).await.into_iter().collect::<Result<(), Fault>>()?;
    }
    for meters in contents.meters.chunks(IMPORTED) {
        set_meters(client, meters.iter()).await?;
    }
    Ok(())
}

#[async_trait]
impl UsageStore for PostgresStore {
    async fn meters(&self) -> Result<Vec<Meter>, StoreError> {
        self.transaction(|client, _| Box::pin(async move { read_all(&client.query(usage::METERS, &[]).await?, read_meter) }))
            .await
    }

    async fn append_usage(&self, samples: Vec<UsageSample>) -> Result<(), StoreError> {
        let samples = Arc::new(samples);
        self.transaction(move |client, _| {
            let samples = Arc::clone(&samples);
            Box::pin(async move {
                let statement = client.prepare(&usage::append()).await?;
                let appends = samples.iter().map(|sample| append(client, &statement, sample)).collect();
                pipeline(appends).await.into_iter().collect::<Result<(), Fault>>()?;
                set_meters(client, samples.iter().filter_map(UsageSample::kept_meter)).await
            })
        })
        .await
    }

    async fn roll_up(&self, now: Timestamp) -> Result<(), StoreError> {
        // Other nodes neither merge the same samples, nor append some in between.
        let roll_up = Arc::new(format!("LOCK TABLE usage IN SHARE ROW EXCLUSIVE MODE; {}", usage::roll_up(now)));
        self.transaction(move |client, _| {
            let roll_up = Arc::clone(&roll_up);
            Box::pin(async move { Ok(client.batch_execute(&roll_up).await?) })
        })
        .await
    }

    async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
        self.transaction(move |client, _| {
            let (since, until) = usage::range(&query);
            let tenant = query.tenant.as_ref().map_or_else(String::new, ToString::to_string);
            let (group, limit) = (query.group, i64::try_from(query.limit).unwrap_or(i64::MAX));
            Box::pin(async move {
                let rows = client.query(&usage::select(group), &[&since, &until, &tenant, &limit]).await?;
                read_all(&rows, |row| read_row(row, group))
            })
        })
        .await
    }
}
