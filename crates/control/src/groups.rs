//! Groups: sandboxes that live and end together under one lease, which their owner renews.
//!
//! ```text
//! (nothing) ──create──► open ◄──renew──┐
//!                        │ └───────────┘
//!                        │ its lease ends, or it is deleted
//!                        ▼
//!                      ending: takes no more sandboxes, and those that it has are deleted ──► (nothing)
//! ```
//!
//! Leases are in memory: after a start, each group has its whole lease again, since no owner could renew it while the server was
//! down. A group that was ending goes on to end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::{DeathReason, GroupName, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::clock::later;
use crate::registry::Entry;
use crate::store::{Record, RecordId, RecordKind, StoreError};
use crate::{Control, ControlError, Sandbox};

/// The most groups of a tenant.
const MAX_GROUPS: usize = 1_000;
pub(crate) const WHAT: &str = "groups of this tenant";
/// The shortest and the longest lease.
const LEASES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30 * 86_400)];
/// Delay before a group that could not be ended is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// A group of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub tenant: TenantId,
    pub name: GroupName,
    pub created_at: Timestamp,
    /// The length of its lease.
    pub ttl: Duration,
    /// When its lease ends unless it is renewed.
    pub expires_at: Timestamp,
    /// It takes no more sandboxes, and those that it has are being deleted.
    pub is_ending: bool,
}

/// The value of a record.
#[derive(Serialize, Deserialize)]
struct Stored {
    created_at: Timestamp,
    ttl_seconds: u64,
    is_ending: bool,
}

impl Group {
    fn id(&self) -> RecordId {
        RecordId { kind: RecordKind::Group, tenant: self.tenant.clone(), key: self.name.to_string() }
    }

    fn record(&self) -> Result<Record, StoreError> {
        let stored = Stored { created_at: self.created_at, ttl_seconds: self.ttl.as_secs(), is_ending: self.is_ending };
        let value = serde_json::to_string(&stored).map_err(|error| StoreError::Database(error.to_string()))?;
        Ok(Record { id: self.id(), value, expires_at: None })
    }

    /// Reads a record. An open group has its whole lease from `now`.
    fn read(record: &Record, now: Timestamp) -> Result<Self, StoreError> {
        let Stored { created_at, ttl_seconds, is_ending } = record.parse()?;
        let ttl = Duration::from_secs(ttl_seconds);
        Ok(Self {
            tenant: record.id.tenant.clone(),
            name: record.parse_key()?,
            created_at,
            ttl,
            expires_at: if is_ending { now } else { later(now, ttl) },
            is_ending,
        })
    }
}

type Map = BTreeMap<(TenantId, GroupName), Group>;

/// All groups.
#[derive(Default)]
pub(crate) struct Groups {
    map: Mutex<Map>,
    changed: Notify,
    /// Held while the store and the map change.
    change: tokio::sync::Mutex<()>,
}

impl Groups {
    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, group: Group) {
        self.map().insert((group.tenant.clone(), group.name.clone()), group);
        self.changed.notify_one();
    }

    /// Changes a group. Both checks and changes of its end are made under the lock.
    fn with<T>(
        &self,
        tenant: &TenantId,
        name: &GroupName,
        work: impl FnOnce(&mut Group) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let mut map = self.map();
        match map.get_mut(&(tenant.clone(), name.clone())) {
            Some(group) => work(group),
            None => Err(ControlError::NoGroup { name: name.clone() }),
        }
    }

    /// Takes out the groups that are due to end, and the time of the next.
    fn due(&self, now: Timestamp) -> (Vec<Group>, Option<Timestamp>) {
        let mut map = self.map();
        let mut due = Vec::new();
        for group in map.values_mut().filter(|group| group.expires_at <= now) {
            group.is_ending = true;
            // If it is still there by then, it is tried again.
            group.expires_at = later(now, RETRY);
            due.push(group.clone());
        }
        (due, map.values().map(|group| group.expires_at).min())
    }
}

/// A lease in bounds.
fn check_ttl(ttl: Duration) -> Result<Duration, ControlError> {
    let [least, most] = LEASES;
    if (least..=most).contains(&ttl) { Ok(ttl) } else { Err(ControlError::InvalidLease { least, most }) }
}

impl Control {
    /// Reads all groups.
    pub(crate) async fn load_groups(&self) -> Result<(), ControlError> {
        let unread = ControlError::store("read the groups");
        for record in self.store.records(RecordKind::Group).await.map_err(&unread)? {
            self.groups.put(Group::read(&record, self.clock.now()).map_err(&unread)?);
        }
        Ok(())
    }

    /// Creates a group with a lease.
    pub async fn create_group(&self, tenant: &TenantId, name: GroupName, ttl: Duration) -> Result<Group, ControlError> {
        let (ttl, tenant) = (check_ttl(ttl)?, tenant.clone());
        self.detached(self.operation()?, |control| async move {
            let _change = control.groups.change.lock().await;
            let theirs = control.groups(&tenant);
            if theirs.iter().any(|other| other.name == name) {
                return Err(ControlError::GroupExists { name });
            }
            if theirs.len() >= MAX_GROUPS {
                return Err(ControlError::TooMany { what: WHAT, most: MAX_GROUPS });
            }
            let now = control.clock.now();
            let group = Group { tenant, name, created_at: now, ttl, expires_at: later(now, ttl), is_ending: false };
            control.write_group(&group).await?;
            control.groups.put(group.clone());
            Ok(group)
        })
        .await
    }

    async fn write_group(&self, group: &Group) -> Result<(), ControlError> {
        let failed = ControlError::store("remember a group");
        self.store.put_record(group.record().map_err(&failed)?).await.map_err(failed)
    }

    /// A tenant's groups, by name.
    pub fn groups(&self, tenant: &TenantId) -> Vec<Group> {
        self.groups.map().values().filter(|group| group.tenant == *tenant).cloned().collect()
    }

    pub fn group(&self, tenant: &TenantId, name: &GroupName) -> Result<Group, ControlError> {
        self.groups.with(tenant, name, |group| Ok(group.clone()))
    }

    /// Starts a group's lease again, with another length if one is given.
    pub async fn renew_group(&self, tenant: &TenantId, name: &GroupName, ttl: Option<Duration>) -> Result<Group, ControlError> {
        let (ttl, tenant, name) = (ttl.map(check_ttl).transpose()?, tenant.clone(), name.clone());
        self.detached(self.operation()?, |control| async move {
            let _change = control.groups.change.lock().await;
            let before = control.group(&tenant, &name)?;
            if let Some(ttl) = ttl.filter(|ttl| *ttl != before.ttl && !before.is_ending) {
                control.write_group(&Group { ttl, ..before }).await?;
            }
            let renewed = control.groups.with(&tenant, &name, |group| {
                if group.is_ending {
                    return Err(ControlError::GroupEnding { name: name.clone() });
                }
                group.ttl = ttl.unwrap_or(group.ttl);
                group.expires_at = later(control.clock.now(), group.ttl);
                Ok(group.clone())
            })?;
            control.groups.changed.notify_one();
            Ok(renewed)
        })
        .await
    }

    /// Lets a group take no more sandboxes, also after a restart. [`Control::end_group`] follows.
    pub async fn close_group(&self, tenant: &TenantId, name: &GroupName) -> Result<(), ControlError> {
        let _change = self.groups.change.lock().await;
        let closed = self.groups.with(tenant, name, |group| {
            group.is_ending = true;
            group.expires_at = later(self.clock.now(), RETRY);
            Ok(group.clone())
        })?;
        self.groups.changed.notify_one();
        self.write_group(&closed).await
    }

    /// Deletes the sandboxes of a closed group, then the group. Returns their number.
    pub async fn end_group(&self, tenant: &TenantId, name: &GroupName) -> Result<usize, ControlError> {
        let mut deleted = 0;
        for (_, destroyed) in self.destroy_each(self.entries_of(tenant, name), DeathReason::GroupEnded).await {
            match destroyed {
                Ok(()) => deleted += 1,
                Err(ControlError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let _change = self.groups.change.lock().await;
        let id = self.group(tenant, name)?.id();
        self.store.remove_record(&id).await.map_err(ControlError::store("forget a group"))?;
        self.groups.map().remove(&(tenant.clone(), name.clone()));
        Ok(deleted)
    }

    fn entries_of(&self, tenant: &TenantId, name: &GroupName) -> Vec<Arc<Entry>> {
        let registry = self.registry();
        let theirs = registry.tenant(tenant).into_iter().flat_map(|theirs| theirs.entries.values());
        theirs.filter(|entry| entry.sandbox().provenance.group.as_ref() == Some(name)).cloned().collect()
    }

    /// The sandboxes of a group, in any state.
    pub fn sandboxes_of_group(&self, tenant: &TenantId, name: &GroupName) -> Vec<Sandbox> {
        self.entries_of(tenant, name).iter().map(|entry| entry.current()).collect()
    }

    /// Refuses a sandbox for a group that does not take any.
    pub(crate) fn check_group(&self, tenant: &TenantId, name: Option<&GroupName>) -> Result<(), ControlError> {
        let Some(name) = name else { return Ok(()) };
        if self.group(tenant, name)?.is_ending { Err(ControlError::GroupEnding { name: name.clone() }) } else { Ok(()) }
    }

    /// Ends groups when their leases do.
    pub(crate) async fn reap_groups(self: Arc<Self>) {
        loop {
            let (due, next) = self.groups.due(self.clock.now());
            for group in due {
                tokio::spawn(Arc::clone(&self).reap_group(group));
            }
            tokio::select! {
                () = self.clock.sleep_until(next) => {}
                () = self.groups.changed.notified() => {}
            }
        }
    }

    async fn reap_group(self: Arc<Self>, Group { tenant, name, .. }: Group) {
        let Ok(_operation) = self.operation() else { return };
        // Before the first sandbox is gone: after a crash, the group must not go on with the rest.
        let ended = match self.close_group(&tenant, &name).await {
            Ok(()) => self.end_group(&tenant, &name).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(sandboxes) => tracing::info!(%tenant, group = %name, sandboxes, "ended a group, because its lease was over"),
            Err(ControlError::NoGroup { .. }) => {}
            Err(error) => tracing::error!(%tenant, group = %name, %error, "a group could not be ended; trying again"),
        }
    }
}
