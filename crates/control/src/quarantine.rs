//! Quarantine: sandboxes that a start could not explain. They stay unchanged until an operator adopts or removes them.
//!
//! A sandbox with a row keeps its name: no other sandbox can take it, and calls to it are refused with a hint.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_engine::Remains;
use arenite_model::{SandboxId, SandboxName, SandboxSpec, SandboxState, TenantId};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::later;
use crate::events::EventKind;
use crate::memo::{self, Memo};
use crate::recovery::state_of;
use crate::{Control, ControlError, Provenance, Sandbox};

/// A listed sandbox in quarantine.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct QuarantinedSandbox {
    pub id: SandboxId,
    /// The tenant and the name from its row or its record.
    pub tenant: Option<TenantId>,
    pub name: Option<SandboxName>,
    pub reason: String,
    pub since: Timestamp,
    #[serde(flatten)]
    pub remains: Remains,
}

#[derive(Debug, Clone)]
struct Held {
    memo: Option<Memo>,
    reason: String,
    since: Timestamp,
    /// The store has its row.
    has_row: bool,
}

#[derive(Default)]
pub(crate) struct Quarantine {
    held: Mutex<BTreeMap<SandboxId, Held>>,
    /// Allows one adoption or removal at a time.
    change: tokio::sync::Mutex<()>,
}

impl Quarantine {
    fn held(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox that has this name in its row.
    pub(crate) fn named(&self, tenant: &TenantId, name: &SandboxName) -> Option<SandboxId> {
        let held = self.held();
        let is_it = |held: &Held| held.has_row && held.memo.as_ref().is_some_and(|m| m.tenant == *tenant && m.name == *name);
        held.iter().find(|(_, held)| is_it(held)).map(|(id, _)| id.clone())
    }

    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.held().contains_key(id)
    }

    pub(crate) fn len(&self) -> usize {
        self.held().len()
    }
}

impl Control {
    pub(crate) fn set_apart(&self, quarantined: arenite_engine::Quarantined, memo: Option<Memo>, has_row: bool) {
        let arenite_engine::Quarantined { id, reason, since } = quarantined;
        let name = memo.as_ref().map(|memo| memo.name.to_string());
        tracing::error!(%id, name, %reason, "a sandbox is in quarantine: nothing of it was changed; adopt or remove it with arenite quarantine");
        self.quarantine.held().insert(id, Held { memo, reason, since, has_row });
    }

    /// Sandboxes that the last start could not explain. Queries the engine about each.
    pub async fn quarantine(&self) -> Vec<QuarantinedSandbox> {
        let held = self.quarantine.held().clone();
        let mut all = Vec::with_capacity(held.len());
        for (id, held) in held {
            let remains = self.engine.remains(&id).await.unwrap_or_else(|error| {
                tracing::warn!(%id, %error, "a sandbox in quarantine could not be looked at");
                Remains::default()
            });
            let (tenant, name) = held.memo.map(|memo| (memo.tenant, memo.name)).unzip();
            all.push(QuarantinedSandbox { id, tenant, name, reason: held.reason, since: held.since, remains });
        }
        all
    }

    fn held(&self, id: &SandboxId) -> Result<Held, ControlError> {
        self.quarantine.held().get(id).cloned().ok_or_else(|| ControlError::NotQuarantined { id: id.clone() })
    }

    /// Makes a quarantined sandbox an ordinary one, optionally with a new name. Without a usable record, its processes end and
    /// it becomes lost, with its disk. `tenant` owns it if nothing names its owner.
    pub async fn adopt_quarantined(
        &self,
        tenant: &TenantId,
        id: &SandboxId,
        name: Option<SandboxName>,
    ) -> Result<Sandbox, ControlError> {
        let operation = self.operation()?;
        let (tenant, id) = (tenant.clone(), id.clone());
        self.detached(operation, |control| async move {
            let _change = control.quarantine.change.lock().await;
            let held = control.held(&id)?;
            let is_lost = !control.engine.remains(&id).await?.has_record;
            let row = control.row_of(&held, tenant, &id, name, is_lost)?;
            // The row first, as in a create: after a crash from here on, the sandbox is in quarantine with its row.
            if held.has_row {
                control.store.remove(&id).await.map_err(ControlError::store("forget a sandbox"))?;
            }
            control.store.insert(&row).await.map_err(ControlError::store("remember an adopted sandbox"))?;
            let adopted = control.bounded("the adoption", &row.name, control.engine.take_back(&memo::row(&row))).await;
            let adopted = match adopted {
                Ok(adopted) => adopted,
                Err(error) => {
                    let held = Held { memo: Some(Memo::from_sandbox(&row)), has_row: true, ..held };
                    control.quarantine.held().insert(id, held);
                    return Err(error);
                }
            };
            let (state, pause_kind, died) = state_of(adopted.state);
            let reason = died.as_ref().map(|death| death.message.clone());
            let mut row = Sandbox { state, pause_kind, reason, died, isolation: adopted.isolation, ..row };
            row.spec.tier = adopted.tier.or(row.spec.tier);
            if let Err(error) = control.store.update(&row).await {
                tracing::error!(%id, %error, "a sandbox's state could not be stored");
            }
            tracing::info!(%id, name = %row.name, %state, "a sandbox was adopted out of quarantine");
            control.quarantine.held().remove(&id);
            if let Err(error) = control.renew_network(&row).await {
                // It stays closed, or keeps what its record says.
                tracing::error!(%id, %error, "the network policy of an adopted sandbox could not be put into effect");
            }
            control.enter_open(row.clone());
            control.announce(&row, EventKind::Adopted);
            Ok(row)
        })
        .await
    }

    /// Its new row: the one it had, or one from its record, or one from its id alone.
    fn row_of(
        &self,
        held: &Held,
        tenant: TenantId,
        id: &SandboxId,
        name: Option<SandboxName>,
        is_lost: bool,
    ) -> Result<Sandbox, ControlError> {
        let now = self.clock.now();
        let mut row = match held.memo.clone() {
            Some(memo) => memo.sandbox(id.clone(), SandboxState::Lost, None, now),
            None => Sandbox {
                id: id.clone(),
                tenant,
                name: named_as(id),
                state: SandboxState::Lost,
                pause_kind: None,
                spec: SandboxSpec::of_image(self.config.default_image.clone()),
                template: None,
                reason: None,
                died: None,
                isolation: Vec::new(),
                origin: "quarantine".to_owned(),
                created_at: now,
                last_used_at: now,
                state_since: now,
                expires_at: None,
                revision: 1,
                provenance: Provenance::default(),
                stages: Vec::new(),
                node: None,
            },
        };
        row.name = match name {
            Some(name) => name,
            // The next call to a lost `default` would remove its disk and create another.
            None if is_lost && row.name.is_default() => named_as(id),
            None => row.name,
        };
        // Its lifetime may have ended long ago, which would delete it at once.
        row.expires_at = row.spec.timeout_seconds.map(|seconds| later(now, Duration::from_secs(seconds)));
        let registry = self.registry();
        let is_taken = registry.by_name(&row.tenant, &row.name).is_some()
            || registry.claim(&row.tenant, &row.name).is_some()
            || self.quarantine.named(&row.tenant, &row.name).is_some_and(|other| other != *id);
        if is_taken { Err(ControlError::AlreadyExists { name: row.name }) } else { Ok(row) }
    }

    /// Ends the processes of a quarantined sandbox and removes its disk. Returns the tenant that owned it, if known.
    pub async fn remove_quarantined(&self, id: &SandboxId) -> Result<Option<TenantId>, ControlError> {
        let operation = self.operation()?;
        let id = id.clone();
        self.detached(operation, |control| async move {
            let _change = control.quarantine.change.lock().await;
            let held = control.held(&id)?;
            let limit = control.config.engine_timeout;
            match tokio::time::timeout(limit, control.engine.destroy(&id)).await {
                Ok(destroyed) => destroyed?,
                Err(_) => return Err(arenite_engine::EngineError::Timeout { what: "the removal", limit }.into()),
            }
            if held.has_row {
                control.store.remove(&id).await.map_err(ControlError::store("forget a sandbox"))?;
            }
            control.quarantine.held().remove(&id);
            tracing::info!(%id, "removed a sandbox that was in quarantine");
            Ok(held.memo.map(|memo| memo.tenant))
        })
        .await
    }

    /// The warning for the operator, if any.
    pub(crate) fn quarantine_warning(&self) -> Option<String> {
        match self.quarantine.len() {
            0 => None,
            1 => Some("1 sandbox is in quarantine: see arenite quarantine ls".to_owned()),
            number => Some(format!("{number} sandboxes are in quarantine: see arenite quarantine ls")),
        }
    }
}

/// The id as a name. An id is a valid name: both are DNS labels.
fn named_as(id: &SandboxId) -> SandboxName {
    id.as_str().parse().expect("an id is a DNS label")
}
