//! Tenants, their keys, and the audit log.
//!
//! Every caller is a [`Principal`]: a tenant, and the rights of the key that it presented. Keys and tenants are in memory as a
//! snapshot ([`keyring`]), and the store is read only at start. So authentication needs no store, and a revocation takes effect
//! at once: open connections wait on [`Tenants::ended`]. Rights are given after the store was written, and taken before.
//!
//! The name of a removed tenant can't be used again, because its trajectories and audit rows stay.

mod audit;
mod binding;
mod key;
mod keyring;
mod limits;
mod principal;
mod rate;
mod role;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::{KeyId, NetworkPolicy, TenantId, Tier};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use crate::ControlError;
use crate::clock::{Clock, later};
use crate::network::{DefaultNetwork, TenantNetwork};
use crate::store::{RemovedTenant, StoreError, TenantStore};

use keyring::Keyring;

pub use audit::{AuditEntry, AuditQuery, AuditRow};
pub use binding::Binding;
pub use key::{ApiKey, KeyText};
pub(crate) use key::{is_key_text, key_text};
pub use keyring::Denied;
pub use limits::{Quota, QuotaExceeded, Reserved, TenantLimits};
pub use principal::Principal;
pub(crate) use rate::Rates;
pub use role::Role;

/// The most tenants, and the most keys of each. Ended keys make room for new ones.
const MAX_TENANTS: usize = 10_000;
const MAX_KEYS: usize = 1_000;
/// The most bounds of a key.
const MAX_BOUND: usize = 32;
/// Longest name of a key, in characters.
const MAX_NAME: usize = 100;
/// Longest life of a key, and longest overlap at its rotation.
const MAX_LIFE: Duration = Duration::from_secs(10 * 366 * 86_400);
const MAX_OVERLAP: Duration = Duration::from_secs(30 * 86_400);
/// The most rows of a tenant in the audit log, and of callers without a tenant. Older rows are removed.
const MAX_ROWS: u64 = 100_000;
const MAX_ROWS_OF_STRANGERS: u64 = 10_000;
/// Rows of a tenant between two removals of its oldest.
const TRIM_EVERY: u64 = 1_000;
/// The most refusals that wait to be written; further ones are counted and dropped.
const MAX_REFUSALS: usize = 4_096;

/// A tenant: owns sandboxes, keys, workers and trajectories that other tenants can't see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    pub name: TenantId,
    pub created_at: Timestamp,
    /// Its own limits, without the server's defaults.
    pub limits: TenantLimits,
    #[serde(flatten)]
    pub network: TenantNetwork,
    /// Its keys are refused; its sandboxes stay as they are.
    pub disabled: bool,
}

/// What the store keeps in one column.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TenantSettings {
    #[serde(flatten)]
    pub(crate) limits: TenantLimits,
    #[serde(flatten)]
    pub(crate) network: TenantNetwork,
}

impl Tenant {
    pub(crate) fn settings(&self) -> TenantSettings {
        TenantSettings { limits: self.limits.clone(), network: self.network.clone() }
    }
}

/// A request for a new key.
#[derive(Debug, Clone)]
pub struct NewKey {
    pub tenant: TenantId,
    pub name: String,
    pub role: Role,
    pub expires_in: Option<Duration>,
    pub bound: Vec<Binding>,
    pub operator: bool,
}

/// All tenants of a server.
pub struct Tenants {
    store: Arc<dyn TenantStore>,
    clock: Clock,
    keyring: watch::Sender<Arc<Keyring>>,
    /// Held while the store and the snapshot change.
    change: tokio::sync::Mutex<()>,
    refusals: Mutex<Vec<AuditEntry>>,
    refused: Notify,
    dropped: AtomicU64,
    /// Rows appended since the last trim, by tenant.
    appended: Mutex<HashMap<Option<TenantId>, u64>>,
}

impl Tenants {
    /// Reads all tenants and keys, and creates the tenant `default` if it does not exist.
    pub(crate) async fn open(store: Arc<dyn TenantStore>, clock: Clock) -> Result<Self, ControlError> {
        let unread = ControlError::store("read the tenants");
        let mut tenants = store.tenants().await.map_err(&unread)?;
        let keys = store.keys().await.map_err(&unread)?;
        if !tenants.iter().any(|tenant| tenant.name.is_default()) {
            let default = Tenant {
                name: TenantId::default_tenant(),
                created_at: clock.now(),
                limits: TenantLimits::default(),
                network: TenantNetwork::default(),
                disabled: false,
            };
            store.create_tenant(&default).await.map_err(ControlError::store("remember the tenant default"))?;
            tenants.push(default);
        }
        Ok(Self {
            store,
            clock,
            keyring: watch::Sender::new(Arc::new(Keyring::new(tenants, keys))),
            change: tokio::sync::Mutex::default(),
            refusals: Mutex::default(),
            refused: Notify::new(),
            dropped: AtomicU64::new(0),
            appended: Mutex::default(),
        })
    }

    /// Reads tenants and keys that another node of a cluster has changed.
    pub(crate) async fn read_again(&self) -> Result<(), ControlError> {
        let _change = self.change.lock().await;
        let unread = ControlError::store("read the tenants");
        let tenants = self.store.tenants().await.map_err(&unread)?;
        let keys = self.store.keys().await.map_err(&unread)?;
        self.publish(|keyring| *keyring = Keyring::new(tenants, keys));
        Ok(())
    }

    /// The later of two clocks, so that a step of the host's clock never makes an expired key valid again.
    fn now(&self) -> Timestamp {
        self.clock.now().max(self.clock.host_now())
    }

    fn keyring(&self) -> Arc<Keyring> {
        Arc::clone(&self.keyring.borrow())
    }

    fn publish(&self, change: impl FnOnce(&mut Keyring)) {
        let mut keyring = Keyring::clone(&self.keyring.borrow());
        change(&mut keyring);
        self.keyring.send_replace(Arc::new(keyring));
    }

    /// The caller that a key identifies.
    pub fn authenticate(&self, key: &str) -> Result<Arc<Principal>, Denied> {
        self.keyring.borrow().authenticate(key, self.now())
    }

    /// Whether the caller's key or token is still accepted.
    pub fn is_accepted(&self, principal: &Principal) -> bool {
        self.keyring.borrow().remaining(principal, self.now()).is_some()
    }

    /// How long the caller's key or token is still accepted. None: without end.
    pub fn remaining(&self, principal: &Principal) -> Option<Duration> {
        let left = self.keyring.borrow().remaining(principal, self.now()).unwrap_or_default();
        (left != Duration::MAX).then_some(left)
    }

    /// Completes when the caller's key or token is no longer accepted; never for a caller without one.
    pub fn ended(self: &Arc<Self>, principal: &Principal) -> impl Future<Output = ()> + Send + use<> {
        let (tenants, principal) = (Arc::clone(self), principal.clone());
        async move {
            if !principal.may_end() {
                return std::future::pending().await;
            }
            let mut changes = tenants.keyring.subscribe();
            loop {
                let Some(left) = changes.borrow_and_update().remaining(&principal, tenants.now()) else { return };
                // A year at most: the end is then computed again.
                let expired = tokio::time::sleep(left.min(Duration::from_secs(366 * 86_400)));
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = expired => {}
                }
            }
        }
    }

    /// All tenants, by name.
    pub fn list(&self) -> Vec<Tenant> {
        self.keyring().tenants.values().cloned().collect()
    }

    pub fn get(&self, name: &TenantId) -> Result<Tenant, ControlError> {
        let found = self.keyring().tenants.get(name).cloned();
        found.ok_or_else(|| ControlError::NoTenant { name: name.clone() })
    }

    pub async fn create(&self, name: TenantId) -> Result<Tenant, ControlError> {
        let _change = self.change.lock().await;
        let keyring = self.keyring();
        if keyring.tenants.contains_key(&name) {
            return Err(ControlError::TenantExists { name });
        }
        if keyring.tenants.len() >= MAX_TENANTS {
            return Err(ControlError::TooMany { what: "tenants", most: MAX_TENANTS });
        }
        let (limits, network) = (TenantLimits::default(), TenantNetwork::default());
        let tenant = Tenant { name, created_at: self.clock.now(), limits, network, disabled: false };
        self.store.create_tenant(&tenant).await.map_err(|error| match error {
            StoreError::Taken => ControlError::TenantRemoved { name: tenant.name.clone() },
            error => ControlError::store("remember a tenant")(error),
        })?;
        self.publish(|keyring| drop(keyring.tenants.insert(tenant.name.clone(), tenant.clone())));
        Ok(tenant)
    }

    /// Accepts the tenant's keys, or refuses them at once, even if the store can't be written. The tenant `default` can't be disabled.
    pub async fn set_disabled(&self, name: &TenantId, disabled: bool) -> Result<Tenant, ControlError> {
        let _change = self.change.lock().await;
        let tenant = Tenant { disabled, ..self.get(name)? };
        if disabled && name.is_default() {
            return Err(ControlError::DefaultTenant);
        }
        let publish = || self.publish(|keyring| drop(keyring.tenants.insert(name.clone(), tenant.clone())));
        if disabled {
            publish();
        }
        self.store.set_tenant(&tenant).await.map_err(ControlError::store("change a tenant"))?;
        publish();
        Ok(tenant)
    }

    /// Changes limits of a tenant: to a number, or to the server's default. They apply to what is requested from then on.
    pub async fn set_limits(&self, name: &TenantId, limits: &BTreeMap<Quota, Option<u64>>) -> Result<Tenant, ControlError> {
        let _change = self.change.lock().await;
        let mut tenant = self.get(name)?;
        for (quota, limit) in limits {
            tenant.limits.set(*quota, *limit).map_err(|reason| ControlError::InvalidLimit { reason })?;
        }
        self.store.set_tenant(&tenant).await.map_err(ControlError::store("change a tenant"))?;
        self.publish(|keyring| drop(keyring.tenants.insert(name.clone(), tenant.clone())));
        Ok(tenant)
    }

    /// Changes the tier that each new sandbox of a tenant must have. None: the server's default.
    pub async fn set_min_tier(&self, name: &TenantId, minimum: Option<Tier>) -> Result<Tenant, ControlError> {
        let _change = self.change.lock().await;
        let mut tenant = self.get(name)?;
        tenant.limits.min_tier = minimum;
        self.store.set_tenant(&tenant).await.map_err(ControlError::store("change a tenant"))?;
        self.publish(|keyring| drop(keyring.tenants.insert(name.clone(), tenant.clone())));
        Ok(tenant)
    }

    /// Changes default and floor of its sandboxes' networks; absent ones stay. [`crate::Control::set_tenant_network`] puts the floor
    /// into effect.
    pub(crate) async fn set_network(
        &self,
        name: &TenantId,
        default: Option<Option<DefaultNetwork>>,
        floor: Option<Option<NetworkPolicy>>,
    ) -> Result<Tenant, ControlError> {
        let _change = self.change.lock().await;
        let mut tenant = self.get(name)?;
        tenant.network.default = default.unwrap_or(tenant.network.default);
        tenant.network.floor = floor.unwrap_or(tenant.network.floor);
        self.store.set_tenant(&tenant).await.map_err(ControlError::store("change a tenant"))?;
        self.publish(|keyring| drop(keyring.tenants.insert(name.clone(), tenant.clone())));
        Ok(tenant)
    }

    /// The networks of a tenant's sandboxes; open for a tenant that does not exist.
    pub(crate) fn network(&self, name: &TenantId) -> TenantNetwork {
        self.keyring.borrow().tenants.get(name).map_or_else(TenantNetwork::default, |tenant| tenant.network.clone())
    }

    /// Changes of tenants and keys.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Keyring>> {
        self.keyring.subscribe()
    }

    /// A tenant's own limits; none of them for a tenant that does not exist.
    pub(crate) fn limits(&self, name: &TenantId) -> TenantLimits {
        self.keyring.borrow().tenants.get(name).map_or_else(TenantLimits::default, |tenant| tenant.limits.clone())
    }

    /// Removes a tenant without sandboxes, with its keys.
    pub async fn remove(&self, name: &TenantId) -> Result<(), ControlError> {
        let _change = self.change.lock().await;
        self.get(name)?;
        if name.is_default() {
            return Err(ControlError::DefaultTenant);
        }
        let removed = self.store.remove_tenant(name, self.clock.now()).await;
        match removed.map_err(ControlError::store("forget a tenant"))? {
            RemovedTenant::Removed => {}
            RemovedTenant::HasSandboxes(sandboxes) => return Err(ControlError::TenantInUse { name: name.clone(), sandboxes }),
        }
        self.publish(|keyring| keyring.remove_tenant(name));
        Ok(())
    }

    /// The keys of a tenant, or of all tenants, the oldest first.
    pub fn keys(&self, tenant: Option<&TenantId>) -> Vec<ApiKey> {
        let keyring = self.keyring();
        let mut keys: Vec<ApiKey> =
            keyring.keys().filter(|key| tenant.is_none_or(|tenant| key.tenant == *tenant)).cloned().collect();
        keys.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        keys
    }

    pub fn key(&self, id: &KeyId) -> Result<ApiKey, ControlError> {
        self.keyring().key(id).cloned().ok_or_else(|| ControlError::NoKey { id: id.clone() })
    }

    /// Creates a key. Its text can't be read again.
    pub async fn create_key(&self, new: NewKey) -> Result<(ApiKey, KeyText), ControlError> {
        let invalid = |reason: String| Err(ControlError::InvalidKey { reason });
        if new.name.is_empty() || new.name.chars().count() > MAX_NAME || new.name.contains(char::is_control) {
            return invalid(format!("its name has 1 to {MAX_NAME} characters, and no control characters"));
        }
        if new.bound.len() > MAX_BOUND {
            return invalid(format!("it is bound to {MAX_BOUND} names and labels at most"));
        }
        if new.expires_in.is_some_and(|life| life.is_zero() || life > MAX_LIFE) {
            return invalid("its life is from 1 second to 10 years".to_owned());
        }
        if new.operator && (new.role != Role::Admin || !new.bound.is_empty()) {
            return invalid("an operator's key has the role admin and is bound to no sandbox".to_owned());
        }
        let _change = self.change.lock().await;
        let tenant = self.get(&new.tenant)?.name;
        let now = self.clock.now();
        let (id, text, hash) = self.unused_id();
        let key = ApiKey {
            id,
            tenant,
            name: new.name,
            role: new.role,
            hash,
            created_at: now,
            expires_at: new.expires_in.map(|life| later(now, life)),
            revoked_at: None,
            bound: new.bound,
            operator: new.operator,
        };
        let ended = self.make_room(&key.tenant)?;
        self.store.create_key(&key, &ended).await.map_err(ControlError::store("remember a key"))?;
        self.publish(|keyring| {
            ended.iter().for_each(|id| keyring.remove(id));
            keyring.insert(key.clone());
        });
        Ok((key, text))
    }

    fn unused_id(&self) -> (KeyId, KeyText, [u8; 32]) {
        let keyring = self.keyring();
        let unused = std::iter::repeat_with(KeyId::random).find(|id| keyring.key(id).is_none());
        let id = unused.expect("random ids don't run out");
        let (text, hash) = key::generate(&id);
        (id, text, hash)
    }

    /// The ended keys to forget before another key is created: none until the tenant has the most.
    fn make_room(&self, tenant: &TenantId) -> Result<Vec<KeyId>, ControlError> {
        let keys = self.keys(Some(tenant));
        if keys.len() < MAX_KEYS {
            return Ok(Vec::new());
        }
        let now = self.now();
        let ended: Vec<KeyId> = keys.into_iter().filter(|key| !key.is_valid_at(now)).map(|key| key.id).collect();
        if ended.is_empty() { Err(ControlError::TooMany { what: "keys of this tenant", most: MAX_KEYS }) } else { Ok(ended) }
    }

    /// Replaces a key by a new one with the same rights and a life of the same length. The old one is accepted for `overlap`.
    pub async fn rotate_key(&self, id: &KeyId, overlap: Duration) -> Result<(ApiKey, KeyText), ControlError> {
        if overlap > MAX_OVERLAP {
            return Err(ControlError::InvalidKey { reason: "two keys overlap for 30 days at most".to_owned() });
        }
        let _change = self.change.lock().await;
        let old = self.key(id)?;
        let now = self.clock.now();
        if !old.is_valid_at(self.now()) {
            return Err(ControlError::KeyEnded { id: id.clone() });
        }
        let life = old.expires_at.map(|end| Duration::try_from(end.duration_since(old.created_at)).unwrap_or_default());
        let (new_id, text, hash) = self.unused_id();
        let new = ApiKey { id: new_id, hash, created_at: now, expires_at: life.map(|life| later(now, life)), ..old.clone() };
        let end = later(now, overlap);
        let old = ApiKey { expires_at: Some(old.expires_at.map_or(end, |expiry| expiry.min(end))), ..old };
        let ended = self.make_room(&new.tenant)?;
        self.store.rotate_key(&old, &new, &ended).await.map_err(ControlError::store("rotate a key"))?;
        self.publish(|keyring| {
            ended.iter().for_each(|id| keyring.remove(id));
            keyring.insert(old);
            keyring.insert(new.clone());
        });
        Ok((new, text))
    }

    /// Ends a key at once, even if the store can't be written: then it is accepted again after a restart, as the error says.
    /// Writes it again if it is revoked already.
    pub async fn revoke_key(&self, id: &KeyId) -> Result<ApiKey, ControlError> {
        let _change = self.change.lock().await;
        let key = self.key(id)?;
        let key = ApiKey { revoked_at: key.revoked_at.or(Some(self.clock.now())), ..key };
        self.publish(|keyring| keyring.insert(key.clone()));
        self.store.revoke_key(&key).await.map_err(ControlError::store("remember that a key is revoked until a restart"))?;
        Ok(key)
    }

    /// An operator's key for a server that has none, in the tenant `default`.
    pub async fn first_operator_key(&self) -> Result<Option<(ApiKey, KeyText)>, ControlError> {
        let now = self.now();
        if self.keyring().keys().any(|key| key.operator && key.is_valid_at(now)) {
            return Ok(None);
        }
        let new = NewKey {
            tenant: TenantId::default_tenant(),
            name: "first operator".to_owned(),
            role: Role::Admin,
            expires_in: None,
            bound: Vec::new(),
            operator: true,
        };
        self.create_key(new).await.map(Some)
    }

    /// Appends a row to the audit log. A row that can't be written is logged: what it describes has happened.
    pub async fn audit(&self, entry: AuditEntry) {
        self.append(vec![entry.bounded()]).await;
    }

    /// Appends the row of a refused request soon. Refusals cost their client nothing, so they can be many: those beyond the
    /// queue are only counted.
    pub fn audit_refusal(&self, entry: AuditEntry) {
        let mut refusals = self.refusals();
        if refusals.len() >= MAX_REFUSALS {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        refusals.push(entry.bounded());
        drop(refusals);
        self.refused.notify_one();
    }

    /// Refusals that are not in the audit log, because too many came at once.
    pub fn dropped_refusals(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn refusals(&self) -> MutexGuard<'_, Vec<AuditEntry>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes refusals as they come, until it is aborted.
    pub(crate) async fn write_refusals(self: Arc<Self>) {
        loop {
            self.refused.notified().await;
            self.flush_refusals().await;
        }
    }

    pub(crate) async fn flush_refusals(&self) {
        let waiting = std::mem::take(&mut *self.refusals());
        if !waiting.is_empty() {
            self.append(waiting).await;
        }
    }

    async fn append(&self, rows: Vec<AuditEntry>) {
        let due = self.due_for_trim(&rows);
        if let Err(error) = self.store.append_audit(rows).await {
            tracing::error!(%error, "rows of the audit log could not be stored");
            return;
        }
        for tenant in due {
            let keep = if tenant.is_some() { MAX_ROWS } else { MAX_ROWS_OF_STRANGERS };
            if let Err(error) = self.store.trim_audit(tenant.as_ref(), keep).await {
                tracing::warn!(%error, "old rows of the audit log could not be removed");
            }
        }
    }

    /// Counts rows, and returns the tenants with enough new ones, or with the first one since the start.
    fn due_for_trim(&self, rows: &[AuditEntry]) -> Vec<Option<TenantId>> {
        let mut appended = self.appended.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = Vec::new();
        for row in rows {
            let count = appended.entry(row.tenant.clone()).or_insert(TRIM_EVERY);
            *count += 1;
            if *count > TRIM_EVERY {
                *count = 0;
                due.push(row.tenant.clone());
            }
        }
        due
    }

    /// A page of the audit log, the newest row first.
    pub async fn audit_page(&self, query: AuditQuery) -> Result<Vec<AuditRow>, ControlError> {
        self.flush_refusals().await;
        self.store.audit(query).await.map_err(ControlError::store("read the audit log"))
    }
}
