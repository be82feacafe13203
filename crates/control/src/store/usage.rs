//! The persistent store of usage. Both databases have the same statements: their parameters are numbered in the order in which they
//! appear first, which is how SQLite numbers them.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::StoreError;
use crate::usage::{
    HOUR_MICROS, Meter, Metered, UsageGroup, UsageHour, UsageQuery, UsageRow, UsageSample, UsedAmounts, hour_after, hour_of,
};

/// A store of usage. Each operation is one transaction.
#[async_trait]
pub trait UsageStore: Send + Sync + 'static {
    /// The last meter of each sandbox and volume.
    async fn meters(&self) -> Result<Vec<Meter>, StoreError>;
    /// Appends samples, and keeps their meters. Does nothing for those that it has.
    async fn append_usage(&self, samples: Vec<UsageSample>) -> Result<(), StoreError>;
    /// Merges samples into hours, and old hours of sandboxes into those of their templates. Removes hours that were kept long
    /// enough, and meters of sandboxes that are gone.
    async fn roll_up(&self, now: Timestamp) -> Result<(), StoreError>;
    async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageRow>, StoreError>;
}

/// How long hours are kept for each sandbox, and how long for all of a template together.
const KEEP_SANDBOXES: Duration = Duration::from_secs(31 * 86_400);
const KEEP: Duration = Duration::from_secs(400 * 86_400);
/// How long a volume's meter is kept after its last sample: a start continues from it.
const KEEP_METERS: Duration = Duration::from_secs(86_400);

pub(super) const SCHEMA: &str = "
    CREATE TABLE usage (
        sandbox            TEXT NOT NULL,
        at                 BIGINT NOT NULL,
        tenant             TEXT NOT NULL,
        name               TEXT NOT NULL,
        template           TEXT NOT NULL,  -- empty: none
        core_seconds       DOUBLE PRECISION NOT NULL,
        memory_gib_seconds DOUBLE PRECISION NOT NULL,
        disk_gib_hours     DOUBLE PRECISION NOT NULL,
        egress_bytes       BIGINT NOT NULL,
        ingress_bytes      BIGINT NOT NULL,
        tool_calls         BIGINT NOT NULL,
        PRIMARY KEY (sandbox, at)
    );
    CREATE TABLE usage_hours (
        hour               BIGINT NOT NULL,
        tenant             TEXT NOT NULL,
        sandbox            TEXT NOT NULL,  -- empty: several
        name               TEXT NOT NULL,
        template           TEXT NOT NULL,
        core_seconds       DOUBLE PRECISION NOT NULL,
        memory_gib_seconds DOUBLE PRECISION NOT NULL,
        disk_gib_hours     DOUBLE PRECISION NOT NULL,
        egress_bytes       BIGINT NOT NULL,
        ingress_bytes      BIGINT NOT NULL,
        tool_calls         BIGINT NOT NULL,
        PRIMARY KEY (hour, tenant, sandbox, template)
    );
    CREATE TABLE meters (
        sandbox         TEXT PRIMARY KEY,
        at              BIGINT NOT NULL,
        cpu_nanoseconds BIGINT NOT NULL,
        sent_bytes      BIGINT NOT NULL,
        received_bytes  BIGINT NOT NULL
    );
";

/// Calls of models.
pub(super) const MODELS: &str = "
    ALTER TABLE usage ADD COLUMN model_calls BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE usage ADD COLUMN model_input_tokens BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE usage ADD COLUMN model_output_tokens BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE usage ADD COLUMN model_cost_usd DOUBLE PRECISION NOT NULL DEFAULT 0;
    ALTER TABLE usage_hours ADD COLUMN model_calls BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE usage_hours ADD COLUMN model_input_tokens BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE usage_hours ADD COLUMN model_output_tokens BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE usage_hours ADD COLUMN model_cost_usd DOUBLE PRECISION NOT NULL DEFAULT 0;
";

pub(super) const CLEAR: &str = "DELETE FROM usage; DELETE FROM usage_hours; DELETE FROM meters";

const AMOUNTS: &str = "core_seconds, memory_gib_seconds, disk_gib_hours, egress_bytes, ingress_bytes, tool_calls, model_calls,
    model_input_tokens, model_output_tokens, model_cost_usd";
const SUMS: &str = "sum(core_seconds), sum(memory_gib_seconds), sum(disk_gib_hours), CAST(sum(egress_bytes) AS BIGINT),
    CAST(sum(ingress_bytes) AS BIGINT), CAST(sum(tool_calls) AS BIGINT), CAST(sum(model_calls) AS BIGINT),
    CAST(sum(model_input_tokens) AS BIGINT), CAST(sum(model_output_tokens) AS BIGINT), sum(model_cost_usd)";

pub(super) const METERS: &str = "SELECT sandbox, at, cpu_nanoseconds, sent_bytes, received_bytes FROM meters ORDER BY sandbox";

pub(super) const SET_METER: &str = "
    INSERT INTO meters (sandbox, at, cpu_nanoseconds, sent_bytes, received_bytes) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (sandbox) DO UPDATE SET at = excluded.at, cpu_nanoseconds = excluded.cpu_nanoseconds,
        sent_bytes = excluded.sent_bytes, received_bytes = excluded.received_bytes";

pub(super) fn append() -> String {
    format!(
        "INSERT INTO usage (sandbox, at, tenant, name, template, {AMOUNTS})
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) ON CONFLICT DO NOTHING"
    )
}

pub(super) fn insert_hour() -> String {
    format!(
        "INSERT INTO usage_hours (hour, tenant, sandbox, name, template, {AMOUNTS})
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"
    )
}

/// All hours, with samples that are not merged yet.
pub(super) fn all_hours() -> String {
    format!(
        "SELECT hour, tenant, sandbox, max(name), template, {SUMS} FROM (
             SELECT hour, tenant, sandbox, name, template, {AMOUNTS} FROM usage_hours
             UNION ALL
             SELECT at - at % {HOUR_MICROS}, tenant, sandbox, name, template, {AMOUNTS} FROM usage
         ) AS hours GROUP BY hour, tenant, sandbox, template ORDER BY hour, tenant, sandbox, template"
    )
}

/// The statements of [`UsageStore::roll_up`], in order.
pub(super) fn roll_up(now: Timestamp) -> String {
    let add = AMOUNTS.split(',').map(str::trim).map(|amount| format!("{amount} = usage_hours.{amount} + excluded.{amount}"));
    let add = add.collect::<Vec<_>>().join(", ");
    let insert = format!("INSERT INTO usage_hours (hour, tenant, sandbox, name, template, {AMOUNTS})");
    let add = format!("ON CONFLICT (hour, tenant, sandbox, template) DO UPDATE SET {add}");
    let before = |keep: Duration| now.as_microsecond() - i64::try_from(keep.as_micros()).unwrap_or(i64::MAX);
    let (merged, kept, measured) = (before(KEEP_SANDBOXES), before(KEEP), before(KEEP_METERS));
    format!(
        "{insert} SELECT at - at % {HOUR_MICROS} AS hour, tenant, sandbox, max(name), template, {SUMS} FROM usage WHERE true
             GROUP BY hour, tenant, sandbox, template {add};
         DELETE FROM usage;
         {insert} SELECT hour, tenant, '', '', template, {SUMS} FROM usage_hours WHERE hour < {merged} AND sandbox <> ''
             GROUP BY hour, tenant, template {add};
         DELETE FROM usage_hours WHERE hour < {kept} OR hour < {merged} AND sandbox <> '';
         DELETE FROM meters WHERE NOT EXISTS (SELECT 1 FROM sandboxes WHERE sandboxes.id = meters.sandbox)
             AND (sandbox NOT LIKE 'v%' OR at < {measured})"
    )
}

/// The statement of [`UsageStore::usage`]: since, until, tenant (empty: all) and limit are its parameters.
pub(super) fn select(group: UsageGroup) -> String {
    let (columns, by) = match group {
        UsageGroup::Tenant => ("tenant, CAST(0 AS BIGINT), '', '', ''", "tenant"),
        UsageGroup::Hour => ("tenant, hour, '', '', ''", "tenant, hour"),
        UsageGroup::Sandbox => ("tenant, CAST(0 AS BIGINT), sandbox, max(name), template", "tenant, sandbox, template"),
        UsageGroup::Template => ("tenant, CAST(0 AS BIGINT), '', '', template", "tenant, template"),
    };
    format!(
        "SELECT {columns}, {SUMS} FROM (
             SELECT hour, tenant, sandbox, name, template, {AMOUNTS} FROM usage_hours WHERE hour >= $1 AND hour < $2
             UNION ALL
             SELECT at - at % {HOUR_MICROS}, tenant, sandbox, name, template, {AMOUNTS} FROM usage WHERE at >= $1 AND at < $2
         ) AS hours WHERE $3 = '' OR tenant = $3 GROUP BY {by} ORDER BY {by} LIMIT $4"
    )
}

/// The first and the last moment of the hours of a query, in microseconds.
pub(super) fn range(query: &UsageQuery) -> (i64, i64) {
    let since = query.since.map_or(i64::MIN, |time| hour_of(time).as_microsecond());
    (since, query.until.map_or(i64::MAX, |time| hour_after(time).as_microsecond()))
}

/// The columns of a row of [`select`], before its amounts.
pub(super) struct Key {
    pub(super) tenant: String,
    pub(super) hour: i64,
    pub(super) sandbox: String,
    pub(super) name: String,
    pub(super) template: String,
}

type Unreadable = Box<dyn std::error::Error>;

impl Key {
    pub(super) fn row(self, group: UsageGroup, used: UsedAmounts) -> Result<UsageRow, Unreadable> {
        let is_one = group == UsageGroup::Sandbox && !self.sandbox.is_empty();
        let (sandbox, volume) = match is_one.then(|| self.sandbox.parse()).transpose()? {
            Some(Metered::Sandbox(id)) => (Some(id), None),
            Some(Metered::Volume(id)) => (None, Some(id)),
            Some(Metered::Models) | None => (None, None),
        };
        Ok(UsageRow {
            tenant: self.tenant.parse()?,
            hour: (group == UsageGroup::Hour).then(|| Timestamp::from_microsecond(self.hour)).transpose()?,
            sandbox,
            volume,
            name: is_one.then_some(self.name),
            template: matches!(group, UsageGroup::Sandbox | UsageGroup::Template).then_some(self.template),
            used,
        })
    }

    pub(super) fn hour(self, used: UsedAmounts) -> Result<UsageHour, Unreadable> {
        let text = |text: String| (!text.is_empty()).then_some(text);
        Ok(UsageHour {
            hour: Timestamp::from_microsecond(self.hour)?,
            tenant: self.tenant.parse()?,
            subject: text(self.sandbox).map(|id| id.parse()).transpose()?,
            name: text(self.name),
            template: self.template,
            used,
        })
    }
}
