use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{AnnotationRow, Record};
use crate::Sandbox;
use crate::tenants::{ApiKey, AuditRow, Tenant};
use crate::usage::{Meter, UsageHour};
use crate::webhooks::Webhook;

/// All rows of a store.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    pub sandboxes: Vec<Sandbox>,
    /// None: unknown, as in an archive of version 1.
    pub tenants: Option<TenantContents>,
    /// None: unknown, likewise.
    pub usage: Option<UsageContents>,
    /// Groups and idempotency keys. None: unknown, as in archives before version 3.
    pub records: Option<Vec<Record>>,
    /// Without their deliveries. None: unknown, likewise.
    pub webhooks: Option<Vec<Webhook>>,
    /// Of trajectories. None: unknown, as in archives before version 4.
    pub annotations: Option<Vec<AnnotationRow>>,
}

/// What was metered, and where the meters of sandboxes stand.
#[derive(Debug, Clone, Default)]
pub struct UsageContents {
    pub hours: Vec<UsageHour>,
    pub meters: Vec<Meter>,
}

/// All rows of a store that belong to tenants.
#[derive(Debug, Clone, Default)]
pub struct TenantContents {
    pub tenants: Vec<TenantRow>,
    pub keys: Vec<ApiKey>,
    pub audit: Vec<AuditRow>,
}

/// A tenant, or the name of a removed one, which stays taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRow {
    #[serde(flatten)]
    pub tenant: Tenant,
    pub removed_at: Option<Timestamp>,
}
