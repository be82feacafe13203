//! What is used of routes: counted in memory while calls are made, and written after each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::{SandboxId, TenantId};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedRwLockReadGuard;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::{ModelBudget, ModelRoute};
use crate::clock::later;
use crate::store::{Record, RecordId, RecordKind, to_json};
use crate::{Control, ControlError};

/// The most counters in memory; those without a call in progress are read again when they are needed.
const MOST: usize = 10_000;
/// How long the use of a sandbox or a worker is kept after its last call.
const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

/// What calls used. Tokens of a call without counts are estimated: a quarter of its bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ModelUse {
    pub calls: u64,
    /// The calls with estimated tokens.
    pub estimated_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// The part of `prompt_tokens` that the upstream had in its cache.
    pub cached_tokens: u64,
    /// In dollars, by the prices of the route at the time of each call.
    pub cost_usd: f64,
}

impl ModelUse {
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    fn add(&mut self, more: &Self) {
        self.calls = self.calls.saturating_add(more.calls);
        self.estimated_calls = self.estimated_calls.saturating_add(more.estimated_calls);
        self.prompt_tokens = self.prompt_tokens.saturating_add(more.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(more.completion_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(more.cached_tokens);
        self.cost_usd += more.cost_usd;
    }
}

/// A sandbox or a worker, with what it uses of a route.
#[derive(Debug, Clone, Copy)]
pub struct ModelSubject<'a> {
    /// Differs from that of every other one of the tenant.
    pub key: &'a str,
    /// For messages.
    pub label: &'a str,
}

/// A call that is about to be made.
#[derive(Debug, Clone, Copy)]
pub struct ModelCall<'a> {
    pub route: &'a ModelRoute,
    pub model: &'a str,
    /// The sandbox or the worker with the budget; none: only the route's applies.
    pub subject: Option<ModelSubject<'a>>,
    /// The sandbox that the call belongs to. Its use is that of this sandbox in reports.
    pub sandbox: Option<&'a SandboxId>,
    /// What it may use, as far as that can be said before.
    pub expected: ModelUse,
}

/// Counters and the calls in progress that have reserved something of the budget.
#[derive(Debug, Clone, Copy, Default)]
struct Meter {
    used: ModelUse,
    tokens_reserved: u64,
    cost_reserved: f64,
    /// Calls that are in progress, or have not been written.
    open: u32,
}

impl Meter {
    /// Refuses a call when nothing of the budget is left. `others`: the use by other nodes.
    fn check(&self, of: &dyn Fn() -> String, budget: &ModelBudget, others: &ModelUse) -> Result<(), ControlError> {
        let over =
            |limit: String, used: String, is_reserved| Err(ControlError::ModelBudget { of: of(), limit, used, is_reserved });
        if let Some(limit) = budget.tokens {
            let used = self.used.tokens().saturating_add(others.tokens());
            if used.saturating_add(self.tokens_reserved) >= limit {
                return over(format!("{limit} tokens"), used.to_string(), used < limit);
            }
        }
        if let Some(limit) = budget.cost_usd {
            let used = self.used.cost_usd + others.cost_usd;
            if used + self.cost_reserved >= limit {
                return over(format!("${limit}"), format!("${used:.6}"), used < limit);
            }
        }
        Ok(())
    }

    fn reserve(&mut self, expected: &ModelUse) {
        self.tokens_reserved = self.tokens_reserved.saturating_add(expected.tokens());
        self.cost_reserved += expected.cost_usd;
        self.open += 1;
    }

    fn settle(&mut self, expected: &ModelUse, used: &ModelUse) {
        self.tokens_reserved = self.tokens_reserved.saturating_sub(expected.tokens());
        self.cost_reserved = (self.cost_reserved - expected.cost_usd).max(0.0);
        self.used.add(used);
    }
}

/// The requests that a route may make at once, and those of the next minute.
struct Bucket {
    requests: f64,
    filled: Instant,
}

#[derive(Default)]
struct Counted {
    /// By the id of the record in which they are written.
    meters: HashMap<RecordId, Meter>,
    rates: HashMap<RecordId, Bucket>,
}

#[derive(Default)]
pub(crate) struct ModelMeters {
    counted: Mutex<Counted>,
    /// Held while routes change.
    pub(super) change: tokio::sync::Mutex<()>,
    /// Held while a counter is read or written, so that a later value is never replaced by an earlier one.
    stored: tokio::sync::Mutex<()>,
}

impl ModelMeters {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_request(&self, key: &RecordId, per_minute: u32) -> Result<(), Duration> {
        let most = f64::from(per_minute);
        let now = Instant::now();
        let rates = &mut self.counted().rates;
        if rates.len() >= MOST && !rates.contains_key(key) {
            rates.clear();
        }
        let bucket = rates.entry(key.clone()).or_insert(Bucket { requests: most, filled: now });
        let more = now.duration_since(bucket.filled).as_secs_f64() * most / 60.0;
        bucket.requests = (bucket.requests + more).min(most);
        bucket.filled = now;
        if bucket.requests < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.requests) * 60.0 / most));
        }
        bucket.requests -= 1.0;
        Ok(())
    }
}

/// The right to make a call. Dropping it counts what was expected.
pub struct ModelPermit {
    control: Arc<Control>,
    tenant: TenantId,
    sandbox: Option<SandboxId>,
    keys: Vec<RecordId>,
    expected: ModelUse,
    is_settled: bool,
}

impl ModelPermit {
    /// What the call was expected to use.
    pub fn expected(&self) -> ModelUse {
        self.expected
    }

    /// Counts what the call used.
    pub fn settle(mut self, used: &ModelUse) {
        self.count(used);
    }

    fn count(&mut self, used: &ModelUse) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        self.control.count_model_use(&self.tenant, self.sandbox.as_ref(), used);
        let models = &self.control.models;
        let counted = &mut models.counted();
        for key in &self.keys {
            // None: the route was removed meanwhile.
            if let Some(meter) = counted.meters.get_mut(key) {
                meter.settle(&self.expected, used);
            }
        }
    }
}

impl Drop for ModelPermit {
    fn drop(&mut self) {
        let expected = self.expected;
        self.count(&expected);
        let (control, keys) = (Arc::clone(&self.control), std::mem::take(&mut self.keys));
        // A stop waits for the write. Without a runtime, nothing is left to write to.
        if let (Ok(operation), Ok(runtime)) = (control.operation(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { control.write_model_use(keys, operation).await });
        }
    }
}

/// Differs for a route of the same name that was removed and set again.
fn prefix(route: &ModelRoute) -> String {
    format!("{}.{}/", route.name, route.created_at.as_microsecond())
}

impl Control {
    fn model_total_key(&self, route: &ModelRoute) -> RecordId {
        let node = self.nodes_store().map(|nodes| nodes.claim().name.to_string()).unwrap_or_default();
        RecordId { kind: RecordKind::ModelTotal, tenant: route.tenant.clone(), key: format!("{}{node}", prefix(route)) }
    }

    fn model_each_key(route: &ModelRoute, subject: &str) -> RecordId {
        RecordId { kind: RecordKind::ModelEach, tenant: route.tenant.clone(), key: format!("{}{subject}", prefix(route)) }
    }

    /// Admits a call, which reserves what it is expected to use.
    ///
    /// # Errors
    /// [`ControlError::ModelNotAllowed`], [`ControlError::NoModelPrice`], [`ControlError::ModelRate`], or
    /// [`ControlError::ModelBudget`].
    pub async fn admit_model_call(&self, call: ModelCall<'_>) -> Result<ModelPermit, ControlError> {
        let ModelCall { route, model, subject, sandbox, mut expected } = call;
        let spec = &route.spec;
        let named = || (route.name.clone(), model.chars().take(200).collect());
        if !spec.allows(model) {
            let (route, model) = named();
            return Err(ControlError::ModelNotAllowed { route, model });
        }
        if spec.has_cost_budget() && !spec.has_price(model) {
            let (route, model) = named();
            return Err(ControlError::NoModelPrice { route, model });
        }
        let total = self.model_total_key(route);
        if let Some(limit) = spec.requests_per_minute {
            let taken = self.models.take_request(&total, limit);
            taken.map_err(|retry_after| ControlError::ModelRate { route: route.name.clone(), limit, retry_after })?;
        }
        expected.cost_usd = spec.cost(model, &expected);
        let each = subject.map(|subject| Self::model_each_key(route, subject.key));
        let keys: Vec<RecordId> = std::iter::once(total.clone()).chain(each.clone()).collect();
        let others = match spec.budget == ModelBudget::default() {
            true => ModelUse::default(),
            false => self.model_use_of_others(route, &total).await?,
        };
        for key in &keys {
            self.load_model_use(key).await?;
        }
        let mut counted = self.models.counted();
        let meter = |counted: &Counted, key: &RecordId| counted.meters.get(key).copied().unwrap_or_default();
        meter(&counted, &total).check(&|| format!("the model route {}", route.name), &spec.budget, &others)?;
        if let (Some(key), Some(subject)) = (&each, subject) {
            let of = || format!("{} on the model route {}", subject.label, route.name);
            meter(&counted, key).check(&of, &spec.budget_each, &ModelUse::default())?;
        }
        for key in &keys {
            counted.meters.entry(key.clone()).or_default().reserve(&expected);
        }
        drop(counted);
        let (tenant, sandbox) = (route.tenant.clone(), sandbox.cloned());
        Ok(ModelPermit { control: self.shared(), tenant, sandbox, keys, expected, is_settled: false })
    }

    /// What a route used in all.
    pub async fn model_use(&self, route: &ModelRoute) -> Result<ModelUse, ControlError> {
        let total = self.model_total_key(route);
        self.load_model_use(&total).await?;
        let mut sum = self.model_use_of_others(route, &total).await?;
        let own = self.models.counted().meters.get(&total).map(|meter| meter.used);
        sum.add(&own.unwrap_or_default());
        Ok(sum)
    }

    /// What other nodes wrote of a route, and this server under another name.
    async fn model_use_of_others(&self, route: &ModelRoute, own: &RecordId) -> Result<ModelUse, ControlError> {
        let mut sum = ModelUse::default();
        for record in self.model_totals(route).await?.iter().filter(|record| record.id != *own) {
            sum.add(&read(record)?);
        }
        Ok(sum)
    }

    async fn model_totals(&self, route: &ModelRoute) -> Result<Vec<Record>, ControlError> {
        let totals = self.store.records_of(RecordKind::ModelTotal, &route.tenant).await;
        let mut totals = totals.map_err(ControlError::store("read the use of models"))?;
        let prefix = prefix(route);
        totals.retain(|record| record.id.key.starts_with(&prefix));
        Ok(totals)
    }

    /// Reads a counter that is not in memory.
    async fn load_model_use(&self, key: &RecordId) -> Result<(), ControlError> {
        if self.models.counted().meters.contains_key(key) {
            return Ok(());
        }
        let _stored = self.models.stored.lock().await;
        let found = self.store.record(key).await.map_err(ControlError::store("read the use of models"))?;
        let used = found.as_ref().map(read).transpose()?.unwrap_or_default();
        let meters = &mut self.models.counted().meters;
        if meters.len() >= MOST {
            meters.retain(|_, meter| meter.open > 0);
        }
        meters.entry(key.clone()).or_insert(Meter { used, ..Meter::default() });
        Ok(())
    }

    async fn write_model_use(&self, keys: Vec<RecordId>, _operation: OwnedRwLockReadGuard<()>) {
        let _stored = self.models.stored.lock().await;
        for key in keys {
            let Some(used) = self.models.counted().meters.get(&key).map(|meter| meter.used) else { continue };
            let expires_at = (key.kind == RecordKind::ModelEach).then(|| later(self.clock.now(), KEPT));
            let written = match to_json(&used) {
                Ok(value) => self.store.put_record(Record { id: key.clone(), value, expires_at }).await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                // The next call writes it.
                tracing::warn!(key = key.key, %error, "the use of a model route could not be written");
            }
            if let Some(meter) = self.models.counted().meters.get_mut(&key) {
                meter.open = meter.open.saturating_sub(1);
            }
        }
    }

    /// Removes what a removed route used. Records of sandboxes and workers expire.
    pub(super) async fn forget_model_use(&self, route: &ModelRoute) -> Result<(), ControlError> {
        let _stored = self.models.stored.lock().await;
        for record in self.model_totals(route).await? {
            self.store.remove_record(&record.id).await.map_err(ControlError::store("remove the use of models"))?;
        }
        let prefix = prefix(route);
        let is_of_route = |key: &RecordId| key.tenant == route.tenant && key.key.starts_with(&prefix);
        self.models.counted().meters.retain(|key, _| !is_of_route(key));
        Ok(())
    }
}

fn read(record: &Record) -> Result<ModelUse, ControlError> {
    record.parse().map_err(ControlError::store("read the use of models"))
}
