//! Users and passwords of tenants for registries. They are in the store as they are, since registries want them so, and are never
//! shown again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arenite_image::{Reference, RegistryCredentials};
use arenite_model::TenantId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::store::{Record, RecordId, RecordKind, StoreError};
use crate::{Control, ControlError};

/// The most registries of a tenant.
const MOST: usize = 32;
pub(crate) const WHAT: &str = "registries of this tenant";
/// The longest user and password, in bytes. Tokens of cloud registries have a few thousand.
const MAX_USER: usize = 256;
const MAX_PASSWORD: usize = 16 << 10;

/// A registry with a user, as it may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    /// Host and perhaps port, such as `registry.example:5000`.
    pub host: String,
    pub user: String,
    pub changed_at: Timestamp,
}

/// The value of a record.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    user: String,
    password: String,
    changed_at: Timestamp,
}

/// All of them, by tenant and host.
#[derive(Default)]
pub(crate) struct Logins {
    map: Mutex<BTreeMap<(TenantId, String), Stored>>,
    /// Held while the store and the map change.
    change: tokio::sync::Mutex<()>,
}

impl Logins {
    fn map(&self) -> MutexGuard<'_, BTreeMap<(TenantId, String), Stored>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn credentials(&self, tenant: &TenantId, host: &str) -> Option<RegistryCredentials> {
        let map = self.map();
        let found = map.get(&(tenant.clone(), host.to_owned()))?;
        Some(RegistryCredentials { user: found.user.clone(), password: found.password.clone() })
    }
}

fn record_id(tenant: &TenantId, host: &str) -> RecordId {
    RecordId { kind: RecordKind::Registry, tenant: tenant.clone(), key: host.to_owned() }
}

/// A registry's host as references have it.
fn check_host(host: &str) -> Result<(), ControlError> {
    let parsed = format!("{host}/x").parse::<Reference>();
    if !host.contains('/') && parsed.is_ok_and(|reference| reference.registry == host) {
        return Ok(());
    }
    Err(ControlError::InvalidLogin { reason: format!("{host:?} is not the host of a registry, such as registry.example:5000") })
}

fn check(user: &str, password: &str) -> Result<(), ControlError> {
    let refuse = |reason: String| Err(ControlError::InvalidLogin { reason });
    let is_text = |text: &str| !text.is_empty() && !text.contains(char::is_control);
    if !is_text(user) || user.len() > MAX_USER || user.contains(':') {
        return refuse(format!("a user has 1 to {MAX_USER} bytes, without colons and control characters"));
    }
    if !is_text(password) || password.len() > MAX_PASSWORD {
        return refuse(format!("a password has 1 to {MAX_PASSWORD} bytes, without control characters"));
    }
    Ok(())
}

impl Control {
    /// Reads all of them.
    pub(crate) async fn load_registry_logins(&self) -> Result<(), ControlError> {
        let unread = ControlError::store("read the registries");
        for record in self.store.records(RecordKind::Registry).await.map_err(&unread)? {
            let stored: Stored = record.parse().map_err(&unread)?;
            self.registry_logins.map().insert((record.id.tenant, record.id.key), stored);
        }
        Ok(())
    }

    /// A tenant's registries, by host.
    pub fn registry_logins(&self, tenant: &TenantId) -> Vec<RegistryLogin> {
        let map = self.registry_logins.map();
        let theirs = map.iter().filter(|((of, _), _)| of == tenant);
        theirs
            .map(|((_, host), stored)| RegistryLogin {
                host: host.clone(),
                user: stored.user.clone(),
                changed_at: stored.changed_at,
            })
            .collect()
    }

    /// Sets the user of a tenant for a registry.
    pub async fn set_registry_login(
        &self,
        tenant: &TenantId,
        host: String,
        user: String,
        password: String,
    ) -> Result<RegistryLogin, ControlError> {
        check_host(&host)?;
        check(&user, &password)?;
        let tenant = tenant.clone();
        self.detached(self.operation()?, |control| async move {
            let _change = control.registry_logins.change.lock().await;
            let theirs = control.registry_logins(&tenant);
            if theirs.len() >= MOST && theirs.iter().all(|other| other.host != host) {
                return Err(ControlError::TooMany { what: WHAT, most: MOST });
            }
            let stored = Stored { user: user.clone(), password, changed_at: control.clock.now() };
            let failed = ControlError::store("remember a registry");
            let value = serde_json::to_string(&stored).map_err(|error| failed(StoreError::Database(error.to_string())))?;
            let record = Record { id: record_id(&tenant, &host), value, expires_at: None };
            control.store.put_record(record).await.map_err(failed)?;
            let login = RegistryLogin { host: host.clone(), user, changed_at: stored.changed_at };
            control.registry_logins.map().insert((tenant, host), stored);
            Ok(login)
        })
        .await
    }

    /// Forgets the user of a tenant for a registry.
    pub async fn remove_registry_login(&self, tenant: &TenantId, host: &str) -> Result<(), ControlError> {
        let key = (tenant.clone(), host.to_owned());
        self.detached(self.operation()?, |control: Arc<Self>| async move {
            let _change = control.registry_logins.change.lock().await;
            if !control.registry_logins.map().contains_key(&key) {
                return Err(ControlError::NoRegistry { host: key.1.chars().take(80).collect() });
            }
            let forgotten = control.store.remove_record(&record_id(&key.0, &key.1)).await;
            forgotten.map_err(ControlError::store("forget a registry"))?;
            control.registry_logins.map().remove(&key);
            Ok(())
        })
        .await
    }

    /// Removes a tenant's registries and images, before the tenant is removed.
    pub async fn remove_images_of(&self, tenant: &TenantId) -> Result<(), ControlError> {
        for login in self.registry_logins(tenant) {
            match self.remove_registry_login(tenant, &login.host).await {
                Ok(()) | Err(ControlError::NoRegistry { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if self.images.is_none() {
            return Ok(());
        }
        for image in self.list_images(tenant).await? {
            if image.owner.as_ref() == Some(tenant) {
                self.remove_image(tenant, &image.name).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_those_of_references() {
        for host in ["docker.io", "ghcr.io", "localhost:5000", "registry.example:443", "127.0.0.1:1"] {
            check_host(host).unwrap();
        }
        for host in
            ["", "library", "index.docker.io", "https://a.example", "a.example/x", "A.example", "a.example:x", "a b.example"]
        {
            assert!(check_host(host).is_err(), "{host:?}");
        }
        check("user", "pass:word").unwrap();
        for (user, password) in [("", "x"), ("x", ""), ("a:b", "x"), ("a\n", "x"), ("x", "a\r\nb")] {
            assert!(check(user, password).is_err(), "{user:?}");
        }
    }
}
