//! Routes of tenants to models, with their budgets. The gateway makes the calls and reads what they used.
//!
//! ```text
//!  admit: model ──► rate ──► budgets ──► reservation ──► the call ──► settle: reservation out, use in ──► written
//! ```
//!
//! A call is admitted while something of each budget is left, counting what calls in progress have reserved. So a budget is
//! exceeded by one call at most. The use is in memory, and written after each call.

mod meter;
mod route;

use std::sync::Arc;

use arenite_model::{ModelRouteName, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub(crate) use meter::ModelMeters;
pub use meter::{ModelCall, ModelPermit, ModelSubject, ModelUse};
pub use route::{ModelBudget, ModelDialect, ModelPrice, ModelRoute, ModelRouteSpec};

use crate::store::{Record, RecordId, RecordKind, to_json};
use crate::{Control, ControlError};

/// The most routes of a tenant.
const MOST: u64 = 64;
pub(crate) const WHAT: &str = "model routes of this tenant";

/// The value of a record.
#[derive(Serialize, Deserialize)]
struct Stored {
    spec: ModelRouteSpec,
    created_at: Timestamp,
    changed_at: Timestamp,
}

fn record_id(tenant: &TenantId, name: &ModelRouteName) -> RecordId {
    RecordId { kind: RecordKind::ModelRoute, tenant: tenant.clone(), key: name.to_string() }
}

fn read_record(record: Record) -> Result<ModelRoute, ControlError> {
    let unread = ControlError::store("read a model route");
    let name = record.parse_key().map_err(&unread)?;
    let Stored { spec, created_at, changed_at } = record.parse().map_err(unread)?;
    Ok(ModelRoute { tenant: record.id.tenant, name, spec, created_at, changed_at })
}

impl Control {
    /// A tenant's model routes, by name. Reads the store: any node may have changed them.
    pub async fn model_routes(&self, tenant: &TenantId) -> Result<Vec<ModelRoute>, ControlError> {
        let read = self.store.records_of(RecordKind::ModelRoute, tenant).await;
        let records = read.map_err(ControlError::store("read the model routes"))?;
        let mut routes = records.into_iter().map(read_record).collect::<Result<Vec<_>, _>>()?;
        routes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(routes)
    }

    /// A model route. Another tenant's is not found.
    pub async fn model_route(&self, tenant: &TenantId, name: &ModelRouteName) -> Result<ModelRoute, ControlError> {
        let read = self.store.record(&record_id(tenant, name)).await.map_err(ControlError::store("read a model route"))?;
        read_record(read.ok_or_else(|| ControlError::NoModelRoute { name: name.to_string() })?)
    }

    /// Adds a model route, or replaces it. It keeps what it used.
    pub async fn set_model_route(
        &self,
        tenant: &TenantId,
        name: ModelRouteName,
        spec: ModelRouteSpec,
    ) -> Result<ModelRoute, ControlError> {
        spec.check()?;
        let tenant = tenant.clone();
        self.detached(self.operation()?, |control: Arc<Self>| async move {
            let _change = control.models.change.lock().await;
            let now = control.clock.now();
            let created_at = match control.model_route(&tenant, &name).await {
                Ok(route) => route.created_at,
                Err(ControlError::NoModelRoute { .. }) => {
                    let failed = ControlError::store("count the model routes");
                    let count = control.store.count_records(RecordKind::ModelRoute, &tenant).await.map_err(failed)?;
                    if count >= MOST {
                        return Err(ControlError::TooMany { what: WHAT, most: MOST as usize });
                    }
                    now
                }
                Err(error) => return Err(error),
            };
            let failed = ControlError::store("remember a model route");
            let value = to_json(&Stored { spec: spec.clone(), created_at, changed_at: now }).map_err(&failed)?;
            let record = Record { id: record_id(&tenant, &name), value, expires_at: None };
            control.store.put_record(record).await.map_err(failed)?;
            Ok(ModelRoute { tenant, name, spec, created_at, changed_at: now })
        })
        .await
    }

    /// Removes a model route with what it used. Calls in progress end as they would.
    pub async fn remove_model_route(&self, tenant: &TenantId, name: &ModelRouteName) -> Result<(), ControlError> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.detached(self.operation()?, |control: Arc<Self>| async move {
            let _change = control.models.change.lock().await;
            let route = control.model_route(&tenant, &name).await?;
            let failed = ControlError::store("remove a model route");
            control.store.remove_record(&record_id(&tenant, &name)).await.map_err(&failed)?;
            control.forget_model_use(&route).await
        })
        .await
    }

    /// Removes a tenant's model routes, before the tenant is removed.
    pub async fn remove_model_routes_of(&self, tenant: &TenantId) -> Result<(), ControlError> {
        for route in self.model_routes(tenant).await? {
            match self.remove_model_route(tenant, &route.name).await {
                Ok(()) | Err(ControlError::NoModelRoute { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
