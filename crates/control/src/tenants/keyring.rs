//! All keys and tenants in memory: authentication needs no store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arenite_model::{KeyId, TenantId};
use jiff::Timestamp;
use subtle::ConstantTimeEq;

use super::key::{self, ApiKey};
use super::{Principal, Tenant};

/// Why a presented key is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// It is no key of this server.
    Unknown,
    /// It is a key of this server, but it is revoked or expired, or its tenant is disabled.
    Ended(Arc<Principal>),
}

/// A snapshot of all keys and tenants. Changes replace it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keyring {
    keys: HashMap<KeyId, Arc<Held>>,
    pub(super) tenants: BTreeMap<TenantId, Tenant>,
}

#[derive(Debug)]
struct Held {
    key: ApiKey,
    principal: Arc<Principal>,
}

impl Keyring {
    pub(super) fn new(tenants: Vec<Tenant>, keys: Vec<ApiKey>) -> Self {
        let mut keyring = Self::default();
        keyring.tenants.extend(tenants.into_iter().map(|tenant| (tenant.name.clone(), tenant)));
        keys.into_iter().for_each(|key| keyring.insert(key));
        keyring
    }

    /// Adds a key, or replaces the one with its id.
    pub(super) fn insert(&mut self, key: ApiKey) {
        let principal = Arc::new(Principal::of_key(&key));
        self.keys.insert(key.id.clone(), Arc::new(Held { key, principal }));
    }

    pub(super) fn remove(&mut self, id: &KeyId) {
        self.keys.remove(id);
    }

    pub(super) fn remove_tenant(&mut self, name: &TenantId) {
        self.tenants.remove(name);
        self.keys.retain(|_, held| held.key.tenant != *name);
    }

    pub(super) fn key(&self, id: &KeyId) -> Option<&ApiKey> {
        self.keys.get(id).map(|held| &held.key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ApiKey> {
        self.keys.values().map(|held| &held.key)
    }

    /// One look at the map, one hash and one comparison, for keys that exist and for those that don't.
    pub(super) fn authenticate(&self, text: &str, now: Timestamp) -> Result<Arc<Principal>, Denied> {
        let presented = key::parse(text).ok_or(Denied::Unknown)?;
        let held = self.keys.get(&presented.id);
        let expected = held.map_or([0; 32], |held| held.key.hash);
        let is_right: bool = expected.ct_eq(&presented.hash()).into();
        match held {
            Some(held) if is_right && self.is_accepted(&held.key, now) => Ok(Arc::clone(&held.principal)),
            Some(held) if is_right => Err(Denied::Ended(Arc::clone(&held.principal))),
            _ => Err(Denied::Unknown),
        }
    }

    fn is_accepted(&self, key: &ApiKey, now: Timestamp) -> bool {
        key.is_valid_at(now) && self.tenants.get(&key.tenant).is_some_and(|tenant| !tenant.disabled)
    }

    /// How long a caller's key or token is still accepted; none: it is not. `Duration::MAX`: it does not expire.
    pub(super) fn remaining(&self, caller: &Principal, now: Timestamp) -> Option<Duration> {
        let expires_at = match (&caller.key, &caller.subject) {
            (Some(id), _) => self.key(id).filter(|key| self.is_accepted(key, now))?.expires_at,
            (None, Some(_)) if self.tenants.get(&caller.tenant).is_none_or(|tenant| tenant.disabled) => return None,
            (None, Some(_)) => Some(caller.expires_at.filter(|end| now < *end)?),
            (None, None) => None,
        };
        let left = |end: Timestamp| Duration::try_from(end.duration_since(now)).unwrap_or_default();
        Some(expires_at.map_or(Duration::MAX, left))
    }
}
