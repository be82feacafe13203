//! Records beside the sandboxes: small JSON texts of one kind each, by tenant and key.

use std::str::FromStr;

use arenite_model::{IdError, TenantId};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::StoreError;

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// A create with an `Idempotency-Key`: `idempotency::Entry`.
    Idempotency,
    /// A group of sandboxes: `groups::Stored`.
    Group,
    /// A tenant's user for a registry: `images::logins::Stored`.
    Registry,
    /// A named state of a sandbox's disk: `states::Snapshot`.
    Snapshot,
    /// A snapshot's copy on another node: `states::copies::Copied`.
    SnapshotCopy,
    /// A snapshot that was removed while its node did not run: `states::copies::Removal`.
    SnapshotRemoval,
    /// A volume: `volumes::Stored`.
    Volume,
    /// A tenant's encrypted secret: `secrets::Stored`.
    Secret,
    /// A route to models: `models::Stored`.
    ModelRoute,
    /// What one node used of a model route: `models::ModelUse`.
    ModelTotal,
    /// What a sandbox or a worker used of a model route: `models::ModelUse`.
    ModelEach,
}

impl RecordKind {
    pub const ALL: [Self; 11] = [
        Self::Idempotency,
        Self::Group,
        Self::Registry,
        Self::Snapshot,
        Self::SnapshotCopy,
        Self::SnapshotRemoval,
        Self::Volume,
        Self::Secret,
        Self::ModelRoute,
        Self::ModelTotal,
        Self::ModelEach,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idempotency => "idempotency",
            Self::Group => "group",
            Self::Registry => "registry",
            Self::Snapshot => "snapshot",
            Self::SnapshotCopy => "snapshot_copy",
            Self::SnapshotRemoval => "snapshot_removal",
            Self::Volume => "volume",
            Self::Secret => "secret",
            Self::ModelRoute => "model_route",
            Self::ModelTotal => "model_total",
            Self::ModelEach => "model_each",
        }
    }
}

/// Identifies a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RecordId {
    pub kind: RecordKind,
    pub tenant: TenantId,
    pub key: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub id: RecordId,
    /// JSON.
    pub value: String,
    /// None: it is kept until it is removed.
    pub expires_at: Option<Timestamp>,
}

impl Record {
    /// The key as a name.
    ///
    /// # Errors
    /// [`StoreError::BadRow`].
    pub(crate) fn parse_key<N: FromStr<Err = IdError>>(&self) -> Result<N, StoreError> {
        let bad = |error: IdError| StoreError::BadRow { id: self.id.key.clone(), reason: error.to_string() };
        self.id.key.parse().map_err(bad)
    }

    /// The value.
    ///
    /// # Errors
    /// [`StoreError::BadRow`].
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, StoreError> {
        let bad = |error: serde_json::Error| StoreError::BadRow { id: self.id.key.clone(), reason: error.to_string() };
        serde_json::from_str(&self.value).map_err(bad)
    }
}
