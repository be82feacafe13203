//! Metering: what sandboxes use, by hour.
//!
//! ```text
//! engine's counters ──every 10 s──► a sample of each sandbox ──► series in the store ──every minute──► hours
//! ```
//!
//! A sample has what was used since the one before, and the counters that it was computed from. Both are in the store in one
//! transaction, so a server that starts again continues where the last one stopped: nothing is counted twice, and the work of
//! sandboxes that kept running is not lost. Samples that could not be written are written again, unchanged, before others.
//!
//! Memory and disk are what is in use, not the limits, as measured with each sample. Time without a server counts for an hour at
//! most. Failed and lost sandboxes are not measured. Volumes have samples of their disk alone, in the same series; those in
//! buckets have none. Calls of models count for the sandbox that they belong to, and otherwise for the tenant alone.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_engine::Usage;
use arenite_model::{IdError, SandboxId, SandboxState, TenantId, VolumeId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval};
use utoipa::ToSchema;

use crate::clock::later;
use crate::models::ModelUse;
use crate::registry::Entry;
use crate::store::{Store, StoreError, UsageStore};
use crate::{Control, ControlError};

/// Samples between two merges into hours.
const ROLL_UP: u64 = 6;
/// The most samples in one write.
const BATCH: usize = 500;
/// The most samples that wait for the store: final ones of deleted sandboxes, and one of each other.
const MAX_UNSENT: usize = 50_000;
/// The longest time without a server that counts.
const MAX_GAP: Duration = Duration::from_secs(3600);
const GIB: f64 = (1u64 << 30) as f64;

/// Amounts that were used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsedAmounts {
    /// Processor time.
    pub core_seconds: f64,
    /// Memory in use, over time.
    pub memory_gib_seconds: f64,
    /// Disk in use, over time.
    pub disk_gib_hours: f64,
    /// Bytes that it sent, with headers.
    pub egress_bytes: u64,
    /// Bytes that it received, with headers.
    pub ingress_bytes: u64,
    /// Calls of its API and its tools that are steps of its trajectory.
    pub tool_calls: u64,
    /// Calls of models through the tenant's routes.
    #[serde(default)]
    pub model_calls: u64,
    #[serde(default)]
    pub model_input_tokens: u64,
    #[serde(default)]
    pub model_output_tokens: u64,
    /// In dollars, by the prices of the routes at the time of each call.
    #[serde(default)]
    pub model_cost_usd: f64,
}

impl UsedAmounts {
    /// Adds what calls of models used.
    pub(crate) fn add_models(&mut self, used: &ModelUse) {
        self.model_calls = self.model_calls.saturating_add(used.calls);
        self.model_input_tokens = self.model_input_tokens.saturating_add(used.prompt_tokens);
        self.model_output_tokens = self.model_output_tokens.saturating_add(used.completion_tokens);
        self.model_cost_usd += used.cost_usd;
    }
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Metered {
    Sandbox(SandboxId),
    Volume(VolumeId),
    /// Calls of models that belong to no sandbox. They have samples, and no meter.
    Models,
}

impl Metered {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sandbox(id) => id.as_str(),
            Self::Volume(id) => id.as_str(),
            Self::Models => "",
        }
    }
}

impl FromStr for Metered {
    type Err = IdError;

    /// The first letter tells them apart.
    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.starts_with('v') { text.parse().map(Self::Volume) } else { text.parse().map(Self::Sandbox) }
    }
}

impl TryFrom<String> for Metered {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<Metered> for String {
    fn from(metered: Metered) -> Self {
        metered.as_str().to_owned()
    }
}

impl From<SandboxId> for Metered {
    fn from(id: SandboxId) -> Self {
        Self::Sandbox(id)
    }
}

/// Counters at a time. Those of a sandbox restart with its processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    #[serde(rename = "sandbox")]
    pub subject: Metered,
    pub at: Timestamp,
    pub cpu_nanoseconds: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// What a sandbox or a volume used up to the time of its meter.
#[derive(Debug, Clone)]
pub struct UsageSample {
    pub tenant: TenantId,
    pub name: String,
    /// Empty: none.
    pub template: String,
    pub used: UsedAmounts,
    pub meter: Meter,
}

impl UsageSample {
    /// Takes the calls that were counted for the sandbox.
    fn new(entry: &Entry, used: UsedAmounts, meter: Meter) -> Self {
        Self {
            tenant: entry.tenant.clone(),
            name: entry.name.to_string(),
            template: entry.sandbox().template.clone().unwrap_or_default(),
            used: entry.take_counted(used),
            meter,
        }
    }

    /// Calls of models of a tenant that belong to no sandbox.
    fn of_models(tenant: TenantId, used: UsedAmounts, at: Timestamp) -> Self {
        let meter = Meter { subject: Metered::Models, at, cpu_nanoseconds: 0, sent_bytes: 0, received_bytes: 0 };
        Self { tenant, name: String::new(), template: String::new(), used, meter }
    }

    /// The meter to keep with it.
    pub(crate) fn kept_meter(&self) -> Option<&Meter> {
        (self.meter.subject != Metered::Models).then_some(&self.meter)
    }
}

/// What a sandbox or a volume used in an hour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageHour {
    pub hour: Timestamp,
    pub tenant: TenantId,
    /// None: several, which were merged.
    #[serde(rename = "sandbox")]
    pub subject: Option<Metered>,
    pub name: Option<String>,
    /// Empty: none.
    pub template: String,
    #[serde(flatten)]
    pub used: UsedAmounts,
}

/// What the rows of an answer are sums of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum UsageGroup {
    #[default]
    Tenant,
    Sandbox,
    Hour,
    Template,
}

/// Selects hours.
#[derive(Debug, Clone, Default)]
pub struct UsageQuery {
    /// None: all tenants.
    pub tenant: Option<TenantId>,
    /// Hours from the one that has this time.
    pub since: Option<Timestamp>,
    /// Hours that begin before this time.
    pub until: Option<Timestamp>,
    pub group: UsageGroup,
    pub limit: usize,
}

/// A sum of hours. What it is not grouped by is absent.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct UsageRow {
    pub tenant: TenantId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hour: Option<Timestamp>,
    /// Also absent for a sum of sandboxes, because old hours are not kept one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// In place of a sandbox: rows by sandbox are of volumes, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
    /// The name of the sandbox, or of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(flatten)]
    pub used: UsedAmounts,
}

struct RunningMeter {
    meter: Meter,
    /// When this server read the counters last.
    read: Option<Instant>,
}

/// The meters of a server. Without a store, nothing is metered.
pub(crate) struct Meters {
    store: Option<Arc<dyn UsageStore>>,
    running: Mutex<HashMap<Metered, Arc<tokio::sync::Mutex<RunningMeter>>>>,
    /// Samples that are not in the store yet. New ones are added at the end, and only a flush removes the first.
    unsent: Mutex<Vec<UsageSample>>,
    /// What calls of models that belong to no sandbox used, and the time of their last sample.
    models: Mutex<(HashMap<TenantId, UsedAmounts>, Timestamp)>,
    flush: tokio::sync::Mutex<()>,
}

impl Meters {
    /// Reads the meters of the sandboxes that the last server had.
    pub(crate) async fn open(store: &Arc<dyn Store>) -> Result<Self, ControlError> {
        let store = Arc::clone(store).usage_store();
        let found = match &store {
            Some(store) => store.meters().await.map_err(ControlError::store("read the meters"))?,
            None => Vec::new(),
        };
        let running = found.into_iter().map(|meter| (meter.subject.clone(), RunningMeter::new(meter))).collect();
        Ok(Self {
            store,
            running: Mutex::new(running),
            unsent: Mutex::default(),
            models: Mutex::default(),
            flush: tokio::sync::Mutex::default(),
        })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Metered, Arc<tokio::sync::Mutex<RunningMeter>>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(any(test, feature = "fake-engine"))]
    pub(crate) fn ids(&self) -> Vec<SandboxId> {
        let ids = self.running();
        let sandboxes = ids.keys().filter_map(|metered| match metered {
            Metered::Sandbox(id) => Some(id.clone()),
            Metered::Volume(_) | Metered::Models => None,
        });
        sandboxes.collect()
    }

    /// The meter of a sandbox, which starts when the sandbox was created.
    fn find_or_start(&self, entry: &Entry) -> Arc<tokio::sync::Mutex<RunningMeter>> {
        self.start_at(Metered::Sandbox(entry.id.clone()), || entry.sandbox().created_at)
    }

    fn start_at(&self, subject: Metered, at: impl FnOnce() -> Timestamp) -> Arc<tokio::sync::Mutex<RunningMeter>> {
        let new = || {
            RunningMeter::new(Meter { subject: subject.clone(), at: at(), cpu_nanoseconds: 0, sent_bytes: 0, received_bytes: 0 })
        };
        Arc::clone(self.running().entry(subject.clone()).or_insert_with(new))
    }

    fn unsent(&self) -> MutexGuard<'_, Vec<UsageSample>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts for the tenant alone.
    fn count_models(&self, tenant: &TenantId, used: &ModelUse) {
        let models = &mut self.models.lock().unwrap_or_else(PoisonError::into_inner).0;
        models.entry(tenant.clone()).or_default().add_models(used);
    }

    /// Samples of what was counted. Samples without a sandbox differ in their times.
    fn sample_models(&self, now: Timestamp) -> Vec<UsageSample> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let (counted, last) = &mut *models;
        let samples = counted.drain().map(|(tenant, used)| {
            *last = if *last >= now { later(*last, Duration::from_micros(1)) } else { now };
            UsageSample::of_models(tenant, used, *last)
        });
        samples.collect()
    }

    fn keep(&self, samples: impl IntoIterator<Item = UsageSample>) {
        let mut unsent = self.unsent();
        unsent.extend(samples);
        if unsent.len() > MAX_UNSENT {
            tracing::error!(lost = unsent.len() - MAX_UNSENT, "usage is lost: the store could not be written for long");
            unsent.truncate(MAX_UNSENT);
        }
    }

    /// Writes all samples that wait.
    async fn flush(&self) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        let _flush = self.flush.lock().await;
        loop {
            let next: Vec<UsageSample> = self.unsent().iter().take(BATCH).cloned().collect();
            let number = next.len();
            if number == 0 {
                return Ok(());
            }
            store.append_usage(next).await?;
            self.unsent().drain(..number);
        }
    }
}

/// The growth of a counter that may have restarted.
fn grown(from: u64, to: u64) -> u64 {
    if to < from { to } else { to - from }
}

impl RunningMeter {
    fn new(meter: Meter) -> Arc<tokio::sync::Mutex<Self>> {
        Arc::new(tokio::sync::Mutex::new(Self { meter, read: None }))
    }

    /// Moves to a reading, and returns what was used since the one before.
    fn advance(&mut self, usage: &Usage, now: Timestamp) -> UsedAmounts {
        // The host's clock may have been set while no server ran.
        let gap = || Duration::try_from(now.duration_since(self.meter.at)).unwrap_or_default().min(MAX_GAP);
        let seconds = self.read.map_or_else(gap, |read| read.elapsed()).as_secs_f64();
        let before = self.meter.clone();
        self.set(usage, now);
        UsedAmounts {
            core_seconds: grown(before.cpu_nanoseconds, self.meter.cpu_nanoseconds) as f64 / 1e9,
            memory_gib_seconds: usage.memory_bytes as f64 / GIB * seconds,
            disk_gib_hours: usage.disk_bytes.unwrap_or_default() as f64 / GIB * seconds / 3600.0,
            egress_bytes: grown(before.sent_bytes, self.meter.sent_bytes),
            ingress_bytes: grown(before.received_bytes, self.meter.received_bytes),
            ..UsedAmounts::default()
        }
    }

    fn set(&mut self, usage: &Usage, now: Timestamp) {
        self.read = Some(Instant::now());
        let meter = &mut self.meter;
        // A sandbox has one sample of a time.
        meter.at = if meter.at == now { later(now, Duration::from_micros(1)) } else { now };
        meter.cpu_nanoseconds = usage.cpu_nanoseconds;
        meter.sent_bytes = usage.network_sent_bytes.unwrap_or(meter.sent_bytes);
        meter.received_bytes = usage.network_received_bytes.unwrap_or(meter.received_bytes);
    }
}

impl Control {
    /// What was used, as sums of whole hours, in the order of what they are grouped by.
    pub async fn usage_rows(&self, query: UsageQuery) -> Result<Vec<UsageRow>, ControlError> {
        let Some(store) = &self.meters.store else { return Ok(Vec::new()) };
        store.usage(query).await.map_err(ControlError::store("read the usage"))
    }

    /// Samples all sandboxes again and again.
    pub(crate) async fn meter_all(self: Arc<Self>) {
        let Some(store) = self.meters.store.clone() else { return };
        let mut ticks = interval(self.config.meter_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut troubled = false;
        for number in 1.. {
            ticks.tick().await;
            let mut stored = self.sample_all().await;
            if stored.is_ok() && number % ROLL_UP == 0 {
                stored = store.roll_up(self.clock.now()).await;
            }
            if let Err(error) = &stored
                && !troubled
            {
                tracing::warn!(%error, "usage could not be stored; it is tried again");
            }
            troubled = stored.is_err();
        }
    }

    /// Appends a sample of each running and paused sandbox. While older ones wait, sandboxes only count on.
    pub(crate) async fn sample_all(&self) -> Result<(), StoreError> {
        if self.meters.store.is_none() {
            return Ok(());
        }
        self.meters.flush().await?;
        let entries: Vec<Arc<Entry>> = self.registry().all().cloned().collect();
        let mut samples = self.meters.sample_models(self.clock.now());
        for entry in entries {
            samples.extend(self.sample(&entry).await);
        }
        match self.sample_volumes().await {
            Ok(of_volumes) => samples.extend(of_volumes),
            Err(error) => tracing::warn!(%error, "volumes could not be measured"),
        }
        self.meters.keep(samples);
        self.meters.flush().await
    }

    /// Counts what a call of a model used, for its sandbox if that is here, and otherwise for its tenant. It is in the next sample.
    pub(crate) fn count_model_use(&self, tenant: &TenantId, sandbox: Option<&SandboxId>, used: &ModelUse) {
        if *used == ModelUse::default() {
            return;
        }
        match sandbox.and_then(|id| self.registry().by_id(id).cloned()) {
            Some(entry) => entry.count_models(used),
            None => self.meters.count_models(tenant, used),
        }
    }

    /// None: it does not run, or can't be measured now.
    async fn sample(&self, entry: &Entry) -> Option<UsageSample> {
        let sandbox = entry.sandbox();
        if !matches!(sandbox.state, SandboxState::Running | SandboxState::Paused) {
            return None;
        }
        let running = self.meters.find_or_start(entry);
        // Held while the counters are read, so that readings are in order.
        let mut running = running.lock().await;
        let usage = self.engine.usage(&entry.id).await.ok()?;
        let used = running.advance(&usage, self.clock.now());
        Some(UsageSample::new(entry, used, running.meter.clone()))
    }

    /// Samples of the volumes that this server has on its disk.
    async fn sample_volumes(&self) -> Result<Vec<UsageSample>, ControlError> {
        let mut samples = Vec::new();
        let now = self.clock.now();
        let measured = self.measured_volumes().await?;
        for (volume, bytes) in &measured {
            // One without a meter was just created, or was not measured by an earlier version.
            let running = self.meters.start_at(Metered::Volume(volume.id.clone()), || now);
            let mut running = running.lock().await;
            let used = running.advance(&Usage { disk_bytes: Some(*bytes), ..Usage::default() }, now);
            let (tenant, name, template) = (volume.tenant.clone(), volume.name.to_string(), String::new());
            samples.push(UsageSample { tenant, name, template, used, meter: running.meter.clone() });
        }
        self.meters.running().retain(|subject, _| match subject {
            Metered::Sandbox(_) | Metered::Models => true,
            Metered::Volume(id) => measured.iter().any(|(volume, _)| volume.id == *id),
        });
        Ok(samples)
    }

    /// Samples a sandbox for the last time. The sample is stored with the next ones.
    pub(crate) async fn sample_last(&self, entry: &Entry) {
        if self.meters.store.is_some() {
            let last = self.sample(entry).await;
            self.meters.keep(last);
        }
    }

    /// Forgets the meters of sandboxes that are gone. The store keeps them until the next merge.
    pub(crate) fn forget_meters_of_gone(&self) {
        let registry = self.registry();
        self.meters.running().retain(|subject, _| match subject {
            Metered::Sandbox(id) => registry.by_id(id).is_some() || self.quarantine.has(id),
            Metered::Volume(_) | Metered::Models => true,
        });
    }

    pub(crate) fn forget_meter(&self, id: &SandboxId) {
        self.meters.running().remove(&Metered::Sandbox(id.clone()));
    }

    /// Starts a sandbox's meter at zero: its processes are new. That is in the store before they run.
    pub(crate) async fn reset_meter(&self, entry: &Entry) {
        if self.meters.store.is_none() {
            return;
        }
        let running = self.meters.find_or_start(entry);
        let mut running = running.lock().await;
        running
            .set(&Usage { network_sent_bytes: Some(0), network_received_bytes: Some(0), ..Usage::default() }, self.clock.now());
        self.meters.keep([UsageSample::new(entry, UsedAmounts::default(), running.meter.clone())]);
        if let Err(error) = self.meters.flush().await {
            tracing::warn!(id = %entry.id, %error, "usage could not be stored; it is tried again");
        }
    }

    /// Starts the meter of a sandbox from a pool at its counters: what it used before belongs to no tenant.
    pub(crate) async fn claim_meter(&self, entry: &Entry) {
        if self.meters.store.is_some()
            && let Ok(usage) = self.engine.usage(&entry.id).await
        {
            self.meters.find_or_start(entry).lock().await.set(&usage, self.clock.now());
        }
    }
}

/// The start of an hour.
pub(crate) fn hour_of(time: Timestamp) -> Timestamp {
    let micros = time.as_microsecond();
    Timestamp::from_microsecond(micros - micros.rem_euclid(HOUR_MICROS)).unwrap_or(time)
}

/// The start of the first hour that does not begin before a time.
pub(crate) fn hour_after(time: Timestamp) -> Timestamp {
    let hour = hour_of(time);
    if hour == time { hour } else { later(hour, Duration::from_secs(3600)) }
}

pub(crate) const HOUR_MICROS: i64 = 3_600_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn counters_that_restart_are_never_counted_twice_or_backwards() {
        let start = Timestamp::from_second(1_700_000_000).unwrap();
        let at = |seconds| later(start, Duration::from_secs(seconds));
        let sandbox = SandboxId::random();
        let loaded = Meter { subject: sandbox.into(), at: start, cpu_nanoseconds: 0, sent_bytes: 0, received_bytes: 0 };
        let mut meter = RunningMeter { meter: loaded.clone(), read: None };
        let reading = |cpu: u64, sent| Usage {
            cpu_nanoseconds: cpu * 1_000_000_000,
            network_sent_bytes: sent,
            memory_bytes: 1 << 30,
            disk_bytes: Some(1 << 30),
            ..Usage::default()
        };
        let used = meter.advance(&reading(5, Some(100)), at(10));
        assert_eq!((used.core_seconds, used.egress_bytes, used.ingress_bytes), (5.0, 100, 0));
        assert_eq!((used.memory_gib_seconds, used.disk_gib_hours), (10.0, 10.0 / 3600.0));
        assert_eq!(meter.advance(&reading(5, Some(100)), at(10)), UsedAmounts::default());
        assert!(meter.meter.at > at(10), "a sandbox has one sample of a time");
        // It was restarted, and has no network for a moment.
        tokio::time::advance(Duration::from_secs(10)).await;
        let used = meter.advance(&reading(2, None), at(20));
        assert_eq!((used.core_seconds, used.memory_gib_seconds, used.egress_bytes), (2.0, 10.0, 0));
        assert_eq!(meter.advance(&reading(3, Some(150)), at(30)).egress_bytes, 50);
        // The host's clock was set back, or far ahead, while no server ran.
        for (now, seconds) in [(at(0), 0.0), (at(1_000_000), 3600.0)] {
            let mut meter = RunningMeter { meter: Meter { at: at(30), ..loaded.clone() }, read: None };
            assert_eq!(meter.advance(&reading(0, None), now).memory_gib_seconds, seconds);
        }
    }

    #[test]
    fn hours_begin_at_whole_hours_also_before_1970() {
        for (time, hour, after) in [
            ("2026-01-31T10:59:59.9Z", "2026-01-31T10:00:00Z", "2026-01-31T11:00:00Z"),
            ("2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z"),
            ("1969-12-31T23:30:00Z", "1969-12-31T23:00:00Z", "1970-01-01T00:00:00Z"),
        ] {
            let time = time.parse().unwrap();
            assert_eq!((hour_of(time).to_string(), hour_after(time).to_string()), (hour.to_owned(), after.to_owned()));
        }
    }
}
