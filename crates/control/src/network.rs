//! Networks that a tenant gives its sandboxes: a default for creates that name none, and a floor that nobody in it can widen.
//!
//! A floor is a network policy. What it refuses is refused whatever a sandbox's policy says, also in running sandboxes. It is in
//! no sandbox's spec: the engine gets it with each start, and again when it changes.

use std::collections::HashMap;

use arenite_model::{NetworkMode, NetworkPolicy, SandboxSpec, TenantId};
use serde::{Deserialize, Serialize};

use crate::tenants::Tenant;
use crate::{Control, ControlError, Sandbox};

/// The networks of a tenant's sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantNetwork {
    /// Of creates that name no network, neither in their request nor in their template. None: open.
    #[serde(default, rename = "network_default", skip_serializing_if = "Option::is_none")]
    pub default: Option<DefaultNetwork>,
    /// What its sandboxes may reach at most. None: all that their policies allow.
    #[serde(default, rename = "network_floor", skip_serializing_if = "Option::is_none")]
    pub floor: Option<NetworkPolicy>,
}

/// A mode, and its policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultNetwork {
    pub mode: NetworkMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<NetworkPolicy>,
}

impl Control {
    fn tenant_network(&self, tenant: &TenantId) -> TenantNetwork {
        self.tenants().map_or_else(TenantNetwork::default, |tenants| tenants.network(tenant))
    }

    /// Gives a spec that names no network that of its tenant.
    pub(crate) fn lay_default_network(&self, tenant: &TenantId, spec: &mut SandboxSpec) {
        if let Some(DefaultNetwork { mode, policy }) = self.tenant_network(tenant).default {
            (spec.network, spec.network_policy) = (mode, policy);
        }
    }

    /// What a tenant's sandboxes may reach at most.
    pub fn network_floor(&self, tenant: &TenantId) -> Option<NetworkPolicy> {
        self.tenant_network(tenant).floor
    }

    /// Changes default and floor of a tenant; absent ones stay. When this returns, the floor is in effect in all of its sandboxes on
    /// this node, also for open connections. Other nodes follow when they read the change.
    ///
    /// # Errors
    /// If a policy is invalid, or this engine can't enforce it.
    pub async fn set_tenant_network(
        &self,
        tenant: &TenantId,
        default: Option<Option<DefaultNetwork>>,
        floor: Option<Option<NetworkPolicy>>,
    ) -> Result<Tenant, ControlError> {
        let tenants = self.tenants().ok_or(ControlError::NoTenantStore)?;
        let policies = [default.iter().flatten().find_map(|default| default.policy.as_ref()), floor.iter().flatten().next()];
        for policy in policies.into_iter().flatten() {
            self.engine.check_network_policy(policy)?;
        }
        let changed = tenants.set_network(tenant, default, floor).await?;
        self.apply_floor(tenant).await?;
        Ok(changed)
    }

    /// Puts a tenant's floor into effect in its sandboxes.
    async fn apply_floor(&self, tenant: &TenantId) -> Result<(), ControlError> {
        let entries: Vec<_> = {
            let registry = self.registry();
            registry.tenant(tenant).into_iter().flat_map(|tenant| tenant.entries.values().cloned()).collect()
        };
        let mut result = Ok(());
        for entry in entries {
            // A start in progress may have the floor of before.
            let _change = entry.change.lock().await;
            if let Err(error) = self.renew_network(&entry.sandbox()).await {
                tracing::error!(id = %entry.id, %error, "the floor of a sandbox's tenant could not be put into effect");
                result = Err(error);
            }
        }
        result
    }

    /// Gives the engine policy and floor of a sandbox again.
    pub(crate) async fn renew_network(&self, sandbox: &Sandbox) -> Result<(), ControlError> {
        if sandbox.spec.network != NetworkMode::Open {
            return Ok(());
        }
        let spec = self.spec_for_engine(sandbox)?;
        Ok(self.engine.set_network_policy(&sandbox.id, &spec, true).await?)
    }

    /// Puts floors into effect as they change, also by other nodes. Until it is aborted.
    pub(crate) async fn follow_floors(self: std::sync::Arc<Self>) {
        let Some(tenants) = self.tenants().cloned() else { return };
        let mut changes = tenants.subscribe();
        let floors = || -> HashMap<TenantId, Option<NetworkPolicy>> {
            tenants.list().into_iter().map(|tenant| (tenant.name, tenant.network.floor)).collect()
        };
        // What the engine found may have the floors of before this start.
        let mut known = HashMap::new();
        loop {
            let now = floors();
            for (tenant, floor) in &now {
                let before = known.get(tenant).unwrap_or(&None);
                if before != floor
                    && let Err(error) = self.apply_floor(tenant).await
                {
                    tracing::error!(%tenant, %error, "the floor of a tenant is not in effect everywhere");
                }
            }
            known = now;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}
