//! Idempotency keys: a client that got no answer repeats its create, and gets the answer instead of a second sandbox.
//!
//! ```text
//!            first row                        answer
//! (nothing) ───────────► record without one ─────────► record with its answer ──► removed after a day
//!     ▲                        │
//!     └────────────────────────┘ the create failed: it left nothing, so a repeat is a new create
//! ```
//!
//! A record without an answer is of a create in progress, or of one that ended with its server. A lock for each key tells them
//! apart: the create in progress holds it, and repeats wait for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::{IdempotencyKey, SandboxState, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

use crate::clock::later;
use crate::sandbox::Keyed;
use crate::store::{Record, RecordId, RecordKind, StoreError};
use crate::{Control, ControlError, Sandbox};

/// How long a key is kept.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// The most keys of a tenant.
const MAX_KEYS: usize = 10_000;
pub(crate) const WHAT: &str = "idempotency keys of this tenant";
/// Interval between removals of expired records.
const EXPIRE_EVERY: Duration = Duration::from_secs(10 * 60);

type Lock = Arc<tokio::sync::Mutex<()>>;

/// The keys of creates in progress.
#[derive(Default)]
pub(crate) struct Idempotency {
    locks: Arc<Mutex<HashMap<RecordId, Lock>>>,
    /// The most keys that a tenant may have in the store by now: each new key adds one, and a count corrects it.
    numbers: Mutex<HashMap<TenantId, u64>>,
}

fn locked(locks: &Mutex<HashMap<RecordId, Lock>>) -> MutexGuard<'_, HashMap<RecordId, Lock>> {
    locks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A held lock of a key. The last holder removes it from the map.
struct Held {
    locks: Arc<Mutex<HashMap<RecordId, Lock>>>,
    id: RecordId,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Idempotency {
    async fn hold(&self, id: &RecordId) -> Held {
        let lock = Arc::clone(locked(&self.locks).entry(id.clone()).or_default());
        // It also cleans up after a caller that leaves while it waits.
        let mut held = Held { locks: Arc::clone(&self.locks), id: id.clone(), guard: None };
        held.guard = Some(lock.lock_owned().await);
        held
    }

    fn numbers(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new key. False: the tenant may have the most, so they have to be counted.
    fn add_key(&self, tenant: &TenantId) -> bool {
        let mut numbers = self.numbers();
        let Some(number) = numbers.get_mut(tenant).filter(|number| **number < MAX_KEYS as u64) else { return false };
        *number += 1;
        true
    }

    /// The number of keys that creates hold or wait for.
    #[cfg(any(test, feature = "fake-engine"))]
    pub(crate) fn held(&self) -> usize {
        locked(&self.locks).len()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut locks = locked(&self.locks);
        drop(self.guard.take());
        if locks.get(&self.id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.id);
        }
    }
}

/// The value of a record.
#[derive(Serialize, Deserialize)]
struct Entry {
    fingerprint: String,
    since: Timestamp,
    answer: Option<Answered>,
}

/// The answer of a finished create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    pub status: u16,
    /// JSON, as text: a number that is read may be written differently.
    pub body: String,
}

/// What is known of a key.
pub enum KeyHold {
    /// The create with this key is done.
    Answered(Answered),
    /// It is the caller's turn to create.
    Held(HeldKey),
}

/// The right to create with a key, until it is dropped.
pub struct HeldKey {
    control: Arc<Control>,
    id: RecordId,
    key: IdempotencyKey,
    fingerprint: String,
    since: Timestamp,
    is_resumed: bool,
    _held: Held,
}

impl HeldKey {
    /// When an earlier create with this key began that ended with its server; none for a new key.
    pub fn resumes(&self) -> Option<Timestamp> {
        self.is_resumed.then_some(self.since)
    }

    /// For the provenance of the sandbox at this position of the create.
    pub fn keyed(&self, index: usize) -> Keyed {
        Keyed { key: self.key.clone(), fingerprint: self.fingerprint.clone(), since: self.since, index }
    }

    /// The sandboxes that the earlier create left.
    pub async fn left(&self) -> Result<Vec<Sandbox>, ControlError> {
        if !self.is_resumed {
            return Ok(Vec::new());
        }
        let mut all = self.control.list(&self.id.tenant).await?;
        all.retain(|sandbox| {
            let is_of_key = sandbox.provenance.keyed.as_ref().is_some_and(|keyed| *keyed == self.keyed(keyed.index));
            is_of_key && !matches!(sandbox.state, SandboxState::Creating | SandboxState::Deleting)
        });
        Ok(all)
    }

    fn record(&self, answer: Option<Answered>) -> Result<Record, StoreError> {
        record(self.id.clone(), &Entry { fingerprint: self.fingerprint.clone(), since: self.since, answer })
    }

    /// Stores the key before something that is no sandbox is created.
    pub async fn note(&self) -> Result<(), ControlError> {
        let failed = ControlError::store("remember an idempotency key");
        self.control.store.put_record(self.record(None).map_err(&failed)?).await.map_err(failed)
    }

    /// Stores the answer, which all repeats get. If it can't be written, a repeat finds what was created.
    pub async fn finish(self, status: u16, body: &Value) {
        let written = match self.record(Some(Answered { status, body: body.to_string() })) {
            Ok(record) => self.control.store.put_record(record).await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::error!(key = %self.key, %error, "the answer of a create could not be stored for its repeats");
        }
    }

    /// Forgets the key: its create failed and left nothing.
    pub async fn free(self) {
        if let Err(error) = self.control.store.remove_record(&self.id).await {
            tracing::warn!(key = %self.key, %error, "the key of a failed create could not be removed");
        }
    }
}

fn record(id: RecordId, entry: &Entry) -> Result<Record, StoreError> {
    let value = serde_json::to_string(entry).map_err(|error| StoreError::Database(error.to_string()))?;
    Ok(Record { id, value, expires_at: Some(later(entry.since, KEPT)) })
}

fn id_of(tenant: &TenantId, key: &IdempotencyKey) -> RecordId {
    RecordId { kind: RecordKind::Idempotency, tenant: tenant.clone(), key: key.to_string() }
}

impl Sandbox {
    /// The record of the create's key, which is written with the row.
    pub(crate) fn key_record(&self) -> Result<Option<Record>, StoreError> {
        let Some(Keyed { key, fingerprint, since, .. }) = &self.provenance.keyed else { return Ok(None) };
        let entry = Entry { fingerprint: fingerprint.clone(), since: *since, answer: None };
        record(id_of(&self.tenant, key), &entry).map(Some)
    }
}

impl Control {
    /// Waits for a create in progress with this key, and returns its answer. Without one, the caller may create. `fingerprint`
    /// identifies the request.
    ///
    /// # Errors
    /// [`ControlError::IdempotencyKeyReused`] if the key belongs to another request.
    pub async fn hold_key(&self, tenant: &TenantId, key: IdempotencyKey, fingerprint: String) -> Result<KeyHold, ControlError> {
        let id = id_of(tenant, &key);
        let held = self.idempotency.hold(&id).await;
        let now = self.clock.now();
        let unread = ControlError::store("read an idempotency key");
        let found = self.store.record(&id).await.map_err(&unread)?;
        let (since, is_resumed) = match found.filter(|record| record.expires_at.is_none_or(|end| now < end)) {
            Some(record) => {
                let entry: Entry = record.parse().map_err(&unread)?;
                if entry.fingerprint != fingerprint {
                    return Err(ControlError::IdempotencyKeyReused { key });
                }
                if let Some(answer) = entry.answer {
                    return Ok(KeyHold::Answered(answer));
                }
                (entry.since, true)
            }
            None => {
                // A count reads all keys of the tenant, so creates do without it.
                if !self.idempotency.add_key(tenant) {
                    let keys = self.store.count_records(RecordKind::Idempotency, tenant).await.map_err(&unread)?;
                    if keys >= MAX_KEYS as u64 {
                        return Err(ControlError::TooMany { what: WHAT, most: MAX_KEYS });
                    }
                    self.idempotency.numbers().insert(tenant.clone(), keys + 1);
                }
                (now, false)
            }
        };
        Ok(KeyHold::Held(HeldKey { control: self.shared(), id, key, fingerprint, since, is_resumed, _held: held }))
    }

    /// Removes expired records from time to time.
    pub(crate) async fn expire_records(self: Arc<Self>) {
        loop {
            if let Err(error) = self.store.remove_expired(self.clock.now()).await {
                tracing::warn!(%error, "expired records could not be removed");
            }
            tokio::time::sleep(EXPIRE_EVERY).await;
        }
    }
}
