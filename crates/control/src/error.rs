use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arenite_engine::EngineError;
use arenite_image::ImageError;
use arenite_model::{
    AnnotationError, AnnotationId, ErrorCode, GroupName, IdError, IdempotencyKey, ImageName, KeyId, ModelRouteName, NodeName,
    SandboxId, SandboxName, SandboxState, SecretName, SnapshotName, SpecError, TenantId, Tier, VolumeName,
};
use thiserror::Error;

use crate::store::StoreError;
use crate::tenants::{Quota, QuotaExceeded};
use crate::{annotations, groups, idempotency, images, models, volumes};

/// Why an operation of control failed. Cheap to clone, since all callers that wait for one create get its error.
#[derive(Debug, Error, Clone)]
pub enum ControlError {
    #[error("there is no sandbox {name}")]
    NotFound { name: SandboxName },
    #[error("there is no sandbox {id}")]
    NoSuchId { id: SandboxId },
    #[error("sandbox {name} already exists")]
    AlreadyExists { name: SandboxName },
    #[error("sandbox {name} is {state}, so it can't be {wanted}")]
    Conflict { name: SandboxName, state: SandboxState, wanted: &'static str },
    #[error("the creation of sandbox {name} was cancelled: it was deleted, or the server stops")]
    Cancelled { name: SandboxName },
    /// Its lifetime ended before the change.
    #[error("the lifetime of sandbox {name} is over, so it can't be changed")]
    Expired { name: SandboxName },
    /// The change is for another version of it.
    #[error("sandbox {name} has changed: its version is {version}")]
    Changed { name: SandboxName, version: String },
    #[error("the change would take sandbox {name} out of the bounds of the caller's key")]
    OutOfBounds { name: SandboxName },
    /// Lost or failed; the reason is from the engine.
    #[error("sandbox {name} is {state}: {reason}")]
    Gone { name: SandboxName, state: SandboxState, reason: String },
    #[error("there is no template {name:?}")]
    NoTemplate { name: String, known: Vec<String> },
    #[error("template {name:?} can't be used: {reason}")]
    BadTemplate { name: String, reason: String },
    #[error("environments file {} can't be used: {reason}", path.display())]
    BadEnvironments { path: PathBuf, reason: String },
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A limit of admission was reached; nothing was created.
    #[error("no further sandbox is admitted: {reason}")]
    Exhausted { reason: String, retry_after: Duration },
    /// A quota of the tenant was reached; nothing was created.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// A minimum of the tenant, or of the sandbox above.
    #[error("the tier {tier} is less than the minimum for this sandbox, {minimum}")]
    BelowTier { tier: Tier, minimum: Tier },
    #[error("the limit is not valid: {reason}")]
    InvalidLimit { reason: String },
    #[error("sandbox {name} is in quarantine since its state could not be read; its id is {id}")]
    Quarantined { name: SandboxName, id: SandboxId },
    #[error("no sandbox {id} is in quarantine")]
    NotQuarantined { id: SandboxId },
    #[error("there is no tenant {name}")]
    NoTenant { name: TenantId },
    #[error("tenant {name} already exists")]
    TenantExists { name: TenantId },
    #[error("a tenant that was removed had the name {name}, and its records stay")]
    TenantRemoved { name: TenantId },
    #[error("tenant {name} has {sandboxes} sandboxes")]
    TenantInUse { name: TenantId, sandboxes: u64 },
    #[error("tenant {name} has {volumes} volumes")]
    TenantHasVolumes { name: TenantId, volumes: u64 },
    #[error("the tenant default can't be disabled or removed: it has the operator's keys and the server's own sandboxes")]
    DefaultTenant,
    #[error("there is no key {id}")]
    NoKey { id: KeyId },
    #[error("key {id} is revoked or expired")]
    KeyEnded { id: KeyId },
    #[error("the key is not valid: {reason}")]
    InvalidKey { reason: String },
    #[error("there are {most} {what}, which is the most")]
    TooMany { what: &'static str, most: usize },
    #[error("there is no webhook {id}")]
    NoWebhook { id: String },
    #[error("there is no annotation {id} of this trajectory")]
    NoAnnotation { id: String },
    #[error("annotation {id} has changed: its version is {version}")]
    AnnotationChanged { id: AnnotationId, version: String },
    #[error("the annotation is not valid: {0}")]
    Annotation(#[from] AnnotationError),
    #[error("this server's store keeps no annotations")]
    NoAnnotations,
    /// The agent in a sandbox may not create it.
    #[error("the sandbox can't be created from inside another: {reason}")]
    NotBelow { reason: String },
    #[error("the budget of the sandbox above allows {limit} {what}: {used} are in use, and this needs {wanted}")]
    OverBudget { what: &'static str, limit: u64, used: u64, wanted: u64, retry_after: Duration },
    #[error("the secret {} of the tokens for agents can't be used: {reason}", path.display())]
    AgentSecret { path: PathBuf, reason: String },
    #[error("there is no group {name}")]
    NoGroup { name: GroupName },
    #[error("group {name} already exists")]
    GroupExists { name: GroupName },
    #[error("group {name} is ending, with its sandboxes")]
    GroupEnding { name: GroupName },
    #[error("there is no volume {name}")]
    NoVolume { name: VolumeName },
    #[error("volume {name} already exists")]
    VolumeExists { name: VolumeName },
    #[error("volume {name} is in use by {}", listed(sandboxes))]
    VolumeInUse { name: VolumeName, sandboxes: Vec<SandboxName>, may_force: bool },
    #[error("volume {name} is being removed")]
    VolumeRemoving { name: VolumeName },
    #[error("volume {name} is in use by a change of it, or by a sandbox that is being created")]
    VolumeBusy { name: VolumeName },
    #[error("the files of volume {name} are gone")]
    VolumeMissing { name: VolumeName },
    #[error("volume {name} is on the node {node}")]
    VolumeElsewhere { name: VolumeName, node: NodeName },
    /// Only operators may mount what is not their tenant's.
    #[error("there is no volume {name:?} of this tenant, and directories of the host are mounted with an operator's key only")]
    NotOwnVolume { name: String },
    #[error("this server's engine has no volumes")]
    NoVolumes,
    #[error("volumes can't be copied here: {reason}")]
    NoVolumeCopies { reason: &'static str, hint: &'static str },
    #[error("volume {name} has {size_bytes} bytes, and volumes of a cluster can only grow")]
    VolumeOnlyGrows { name: VolumeName, size_bytes: u64 },
    #[error("the files of volume {name} can't be reached by the server: the cluster mounts them in sandboxes only")]
    NoVolumeFiles { name: VolumeName },
    #[error("volume {name} can't be copied: copies are not made in or from a bucket")]
    NoBucketCopies { name: VolumeName },
    #[error("a lease is from {least:?} to {most:?}")]
    InvalidLease { least: Duration, most: Duration },
    #[error("the idempotency key {key} was used for another request")]
    IdempotencyKeyReused { key: IdempotencyKey },
    #[error("there is no snapshot {name}")]
    NoSnapshot { name: SnapshotName },
    #[error("snapshot {name} is on the node {node}, and not on this one")]
    SnapshotElsewhere { name: SnapshotName, node: NodeName },
    #[error("snapshot {name} already exists")]
    SnapshotExists { name: SnapshotName },
    #[error("there is no node {name}")]
    NoNode { name: NodeName },
    #[error("no node can create the sandbox: {reason}")]
    NoNodeFits { reason: String },
    #[error("this server's store keeps no tenants")]
    NoTenantStore,
    #[error("the server is stopping")]
    Stopping,
    #[error("{what} of sandbox {name} took longer than {limit:?}")]
    Timeout { what: &'static str, name: SandboxName, limit: Duration },
    #[error(transparent)]
    Engine(Arc<EngineError>),
    #[error(transparent)]
    Image(Arc<ImageError>),
    #[error("image {image:?} could not be pulled within {limit:?}")]
    PullTimeout { image: ImageName, limit: Duration },
    #[error("image {image:?} was being pulled for a create that was cancelled, or that its client left")]
    PullAbandoned { image: ImageName },
    #[error("the build was cancelled, since its client left")]
    BuildAbandoned,
    #[error("the build took longer than {limit:?}")]
    BuildTimeout { limit: Duration },
    #[error("this server builds no images for this tenant: {reason}")]
    NoBuilds { reason: &'static str },
    #[error("there is no user for the registry {host}")]
    NoRegistry { host: String },
    #[error("the registry's user is not valid: {reason}")]
    InvalidLogin { reason: String },
    #[error("there is no model route {name}")]
    NoModelRoute { name: String },
    #[error("the model route is not valid: {reason}")]
    InvalidModelRoute { reason: String },
    #[error("the model route {route} does not allow the model {model:?}")]
    ModelNotAllowed { route: ModelRouteName, model: String },
    #[error("the model route {route} has a budget in money and no price for the model {model:?}")]
    NoModelPrice { route: ModelRouteName, model: String },
    #[error("the budget of {of} is used up: {used} of {limit} are used{}", if *is_reserved { ", with what calls in progress may use" } else { "" })]
    ModelBudget { of: String, limit: String, used: String, is_reserved: bool },
    #[error("the model route {route} allows {limit} requests a minute")]
    ModelRate { route: ModelRouteName, limit: u32, retry_after: Duration },
    #[error("there is no secret {name}")]
    NoSecret { name: SecretName },
    #[error("the secret is not valid: {reason}")]
    InvalidSecret { reason: String },
    #[error("secrets can't be encrypted or decrypted: {reason}")]
    SecretKeys { reason: String },
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("this server's engine keeps no images")]
    NoImages,
    #[error("the store could not {what}: {source}")]
    Store { what: &'static str, source: StoreError },
    #[error("the store {store} has schema version {found}, made by a newer arenite; this one knows up to {known}")]
    NewerStore { store: String, found: i64, known: i64 },
    /// Its node came back just now, and has to make the change.
    #[error("the node {node} of sandbox {name} runs again")]
    NodeRuns { name: SandboxName, node: NodeName },
    #[error("another server uses the store {store}")]
    StoreInUse { store: String },
}

impl From<EngineError> for ControlError {
    fn from(source: EngineError) -> Self {
        Self::Engine(Arc::new(source))
    }
}

impl From<ImageError> for ControlError {
    fn from(source: ImageError) -> Self {
        Self::Image(Arc::new(source))
    }
}

impl ControlError {
    pub(crate) fn store(what: &'static str) -> impl Fn(StoreError) -> Self {
        move |source| match source {
            StoreError::Quota(exceeded) => Self::Quota(exceeded),
            source => Self::Store { what, source },
        }
    }

    /// The error's stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound { .. }
            | Self::NoSuchId { .. }
            | Self::NoTemplate { .. }
            | Self::NotQuarantined { .. }
            | Self::NoTenant { .. }
            | Self::NoKey { .. }
            | Self::NoWebhook { .. }
            | Self::NoAnnotation { .. }
            | Self::NoGroup { .. }
            | Self::NoVolume { .. }
            | Self::NoRegistry { .. }
            | Self::NoSecret { .. }
            | Self::NoSnapshot { .. }
            | Self::NoModelRoute { .. }
            | Self::NoNode { .. } => ErrorCode::NotFound,
            Self::AlreadyExists { .. }
            | Self::TenantExists { .. }
            | Self::TenantRemoved { .. }
            | Self::GroupExists { .. }
            | Self::SnapshotExists { .. }
            | Self::VolumeExists { .. } => ErrorCode::AlreadyExists,
            Self::Conflict { .. }
            | Self::Cancelled { .. }
            | Self::Expired { .. }
            | Self::Quarantined { .. }
            | Self::TenantInUse { .. }
            | Self::TenantHasVolumes { .. }
            | Self::DefaultTenant
            | Self::KeyEnded { .. }
            | Self::VolumeInUse { .. }
            | Self::VolumeRemoving { .. }
            | Self::VolumeBusy { .. }
            | Self::VolumeMissing { .. }
            | Self::VolumeElsewhere { .. }
            | Self::SnapshotElsewhere { .. }
            | Self::GroupEnding { .. } => ErrorCode::Conflict,
            Self::IdempotencyKeyReused { .. } => ErrorCode::IdempotencyKeyReused,
            Self::Changed { .. } | Self::AnnotationChanged { .. } => ErrorCode::PreconditionFailed,
            Self::NotBelow { .. } | Self::BelowTier { .. } | Self::OutOfBounds { .. } | Self::NotOwnVolume { .. } => {
                ErrorCode::Forbidden
            }
            Self::OverBudget { limit, wanted, .. } if wanted > limit => ErrorCode::Forbidden,
            Self::OverBudget { .. } => ErrorCode::Exhausted,
            Self::AgentSecret { .. } | Self::SecretKeys { .. } => ErrorCode::Internal,
            Self::NoTenantStore
            | Self::NoAnnotations
            | Self::NoImages
            | Self::NoBuilds { .. }
            | Self::NoVolumes
            | Self::NoVolumeCopies { .. }
            | Self::VolumeOnlyGrows { .. }
            | Self::NoVolumeFiles { .. }
            | Self::NoBucketCopies { .. } => ErrorCode::Unsupported,
            Self::Gone { .. } => ErrorCode::SandboxFailed,
            Self::BadTemplate { .. }
            | Self::Spec(_)
            | Self::InvalidKey { .. }
            | Self::InvalidLimit { .. }
            | Self::InvalidLease { .. }
            | Self::InvalidSecret { .. }
            | Self::Id(_)
            | Self::Annotation(_)
            | Self::InvalidLogin { .. }
            | Self::InvalidModelRoute { .. } => ErrorCode::InvalidRequest,
            Self::ModelNotAllowed { .. } | Self::NoModelPrice { .. } => ErrorCode::Forbidden,
            Self::ModelBudget { .. } => ErrorCode::QuotaExceeded,
            Self::ModelRate { .. } => ErrorCode::Exhausted,
            Self::Quota(exceeded) if exceeded.is_permanent() => ErrorCode::QuotaExceeded,
            Self::Quota(_) => ErrorCode::Exhausted,
            Self::Exhausted { .. } | Self::NoNodeFits { .. } | Self::NodeRuns { .. } | Self::Stopping | Self::TooMany { .. } => {
                ErrorCode::Exhausted
            }
            Self::Timeout { .. } | Self::PullTimeout { .. } | Self::BuildTimeout { .. } => ErrorCode::Timeout,
            Self::PullAbandoned { .. } | Self::BuildAbandoned => ErrorCode::Conflict,
            Self::Image(source) => image_code(source),
            Self::Engine(source) => source.code(),
            Self::Store { source: StoreError::Full | StoreError::Locked | StoreError::Unavailable(_), .. } => {
                ErrorCode::Exhausted
            }
            Self::BadEnvironments { .. } | Self::Store { .. } | Self::NewerStore { .. } | Self::StoreInUse { .. } => {
                ErrorCode::Internal
            }
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotFound { name } => {
                return Some(format!(
                    "create it with: arenite create {name}, or POST /api/v1/sandbox with {{\"name\": \"{name}\"}}; only the sandbox called default is made by being called"
                ));
            }
            Self::AlreadyExists { name } => {
                return Some(format!("choose another name, or delete it with: arenite rm {name}"));
            }
            Self::Gone { name, .. } => {
                return Some(format!(
                    "its files are kept: start it again with: arenite start {name}, or delete it with: arenite rm {name}"
                ));
            }
            Self::NoTemplate { known, .. } => {
                return Some(format!("known templates: {}", known.join(", ")));
            }
            Self::Quarantined { id, .. } => {
                return Some(format!(
                    "adopt it with: arenite quarantine adopt {id}, or remove it with: arenite quarantine rm {id}"
                ));
            }
            Self::TenantInUse { name, .. } | Self::TenantHasVolumes { name, .. } => {
                return Some(format!("delete them with it: arenite tenant rm {name} --force, or DELETE with force=true"));
            }
            Self::OverBudget { limit, wanted, .. } if wanted > limit => "ask for less: it is more than the whole budget",
            Self::OverBudget { .. } => "delete sandboxes that are not needed",
            Self::NoGroup { .. } => "create it with: arenite group create, or see which there are: arenite group ls",
            Self::NoSnapshot { .. } => "see which there are: arenite snapshot ls",
            Self::SnapshotElsewhere { .. } => "arenite node ls shows whether that node is up",
            Self::SnapshotExists { .. } => "choose another name, or remove it with: arenite snapshot rm NAME",
            Self::NoSecret { .. } => "create it with: arenite secret set NAME, or see which there are: arenite secret ls",
            Self::NoVolume { .. } => "create it with: arenite volume create, or see which there are: arenite volume ls",
            Self::VolumeExists { .. } => "choose another name, or remove it with: arenite volume rm",
            Self::VolumeInUse { may_force: true, .. } => {
                "these sandboxes have ended: with --force, or force=true, they lose it and can't be started again"
            }
            Self::VolumeInUse { .. } => "delete these sandboxes first",
            Self::VolumeRemoving { .. } | Self::VolumeBusy { .. } => "try again in a moment",
            Self::VolumeMissing { .. } => {
                "they are on another storage, or were lost with it; arenite volume rm forgets the volume"
            }
            Self::VolumeElsewhere { .. } => {
                "call that node, and create sandboxes with this volume there: they need volumes of one node"
            }
            Self::NotOwnVolume { .. } => {
                "create it with: arenite volume create; an operator can declare directories of the host in a template"
            }
            Self::NoVolumes => "the engines namespace and kubernetes have them",
            Self::VolumeOnlyGrows { .. } => "create a smaller volume, and copy the files in a sandbox that mounts both",
            Self::NoVolumeFiles { .. } => {
                "create a sandbox that mounts it, and use that sandbox's API of files: arenite create NAME --volume VOLUME:/data"
            }
            Self::NoBucketCopies { .. } => "copy its objects with the bucket's own tools",
            Self::NoVolumeCopies { hint, .. } => hint,
            Self::NoNode { .. } => "see which there are: arenite node ls",
            Self::NoNodeFits { .. } => "arenite node ls shows states, drains and labels; arenite node uncordon NAME ends a drain",
            Self::GroupExists { .. } => "renew its lease, or choose another name",
            Self::GroupEnding { .. } => "wait until it is gone, or create another group",
            Self::NoModelRoute { .. } => "see which there are: arenite model ls",
            Self::ModelNotAllowed { .. } | Self::NoModelPrice { .. } | Self::ModelBudget { .. } => {
                "an admin of the tenant can change the route: arenite model set"
            }
            Self::TooMany { what: models::WHAT, .. } => "remove model routes that are not needed",
            Self::TooMany { what: images::LOGINS, .. } => "remove registries that are not needed",
            Self::TooMany { what: volumes::WHAT, .. } => "remove volumes that are not needed",
            Self::TooMany { what: groups::WHAT, .. } => "delete groups that are not needed",
            Self::NoTenant { .. } => "see which there are: arenite tenant ls",
            Self::TenantRemoved { .. } => "choose another name",
            Self::NoKey { .. } => "see which there are: arenite key ls",
            Self::KeyEnded { .. } => "create another: arenite key create",
            Self::NoWebhook { .. } => "see which there are: arenite webhook ls",
            Self::NoAnnotation { .. } => "see which there are: arenite trajectory annotations ID",
            Self::TooMany { what: annotations::OF_TRAJECTORY | annotations::OF_TENANT, .. } => {
                "remove annotations that are not needed: arenite trajectory unannotate ID"
            }
            Self::TooMany { what: "webhooks of this tenant", .. } => "remove webhooks that are not needed",
            Self::IdempotencyKeyReused { .. } => "repeat the request with the same body, or send another key",
            Self::TooMany { what: idempotency::WHAT, .. } => "each is kept for a day; leave the key out, or retry later",
            Self::TooMany { what: "tenants", .. } => "remove tenants that are not needed",
            Self::TooMany { .. } => "revoke keys that are not needed",
            Self::NotQuarantined { .. } => "see which are: arenite quarantine ls",
            Self::Engine(source) => return source.hint(),
            Self::Image(source) => return image_hint(source),
            Self::PullTimeout { .. } | Self::PullAbandoned { .. } => {
                "what was downloaded is kept for the next try; a pull without a create: POST /api/v2/images/pull"
            }
            Self::NoBuilds { .. } => "an operator builds it on the server's host: arenite image build",
            Self::BuildTimeout { .. } => "split it into several images, each of which starts from the one before",
            Self::BadTemplate { .. } | Self::BadEnvironments { .. } => "correct the file; it is read again at the next create",
            Self::Changed { .. } | Self::AnnotationChanged { .. } => "read it again, and repeat the change for its new version",
            Self::BelowTier { minimum, .. } => {
                return Some(format!("request the tier {minimum}, or none: then it is {minimum}"));
            }
            Self::OutOfBounds { .. } => "keep a name or a label that the key is bound to",
            Self::Quota(QuotaExceeded { quota: Quota::Volumes | Quota::VolumeBytes, .. }) => {
                "remove volumes that are not needed, request less, or ask an operator for a higher limit"
            }
            Self::Quota(exceeded) if exceeded.is_permanent() => "request less, or ask an operator for a higher limit",
            Self::Quota(QuotaExceeded { quota: Quota::RequestsPerSecond | Quota::ConcurrentCreates, .. }) => "retry later",
            Self::Quota(QuotaExceeded { quota: Quota::TrajectoryBytes, .. }) => "export and remove old trajectories",
            Self::Exhausted { .. } | Self::Quota(_) => "delete sandboxes that are not needed, or retry later",
            Self::Store { source: StoreError::Full, .. } => {
                "free space on the disk of the data directory, or on that of the database; deletions work meanwhile"
            }
            Self::Store { source: StoreError::Locked, .. } => {
                "end the process that has locked it, such as a shell of sqlite3 or psql; the server goes on by itself"
            }
            Self::Store { source: StoreError::ReadOnly, .. } => {
                "make control.sqlite in the data directory, or the database, writable; the server opens it again by itself"
            }
            Self::Store { source: StoreError::Unavailable(_), .. } => {
                "see that the database of --store runs and can be reached; the server connects again by itself"
            }
            Self::NewerStore { .. } => "start the newer arenite, or give this one another store",
            Self::StoreInUse { .. } => "stop the other server, or give this one another store",
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// Whether the server itself lacks what the call needs, as opposed to a reached limit.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::NoNodeFits { .. } => true,
            Self::Store { source, .. } => source.is_temporary(),
            Self::NodeRuns { .. } => true,
            Self::Engine(source) => matches!(**source, EngineError::Storage { .. } | EngineError::Busy { .. }),
            _ => false,
        }
    }

    /// When to retry, for `Retry-After`.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Exhausted { retry_after, .. } | Self::ModelRate { retry_after, .. } => Some(*retry_after),
            Self::Quota(exceeded) if exceeded.is_permanent() => None,
            Self::Quota(QuotaExceeded { quota, .. }) => Some(Duration::from_secs(match quota {
                Quota::RequestsPerSecond => 1,
                Quota::ConcurrentCreates => 2,
                _ => 30,
            })),
            Self::OverBudget { retry_after, limit, wanted, .. } => (wanted <= limit).then_some(*retry_after),
            Self::Stopping | Self::NoNodeFits { .. } => Some(Duration::from_secs(5)),
            Self::NodeRuns { .. } => Some(Duration::from_secs(1)),
            Self::Engine(source) => match &**source {
                EngineError::Busy { retry_after, .. } => Some(*retry_after),
                other => (other.code() == ErrorCode::Exhausted).then_some(Duration::from_secs(5)),
            },
            Self::Store { source, .. } if source.is_temporary() => Some(Duration::from_secs(2)),
            _ => None,
        }
    }
}

/// The first names of a list.
fn listed(names: &[SandboxName]) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(SandboxName::as_str).collect();
    let rest = names.len().saturating_sub(SHOWN);
    let rest = if rest == 0 { String::new() } else { format!(" and {rest} more") };
    format!("sandbox {}{rest}", shown.join(", "))
}

/// A registry's refusal of the server is not one of the server's own client.
fn image_code(error: &ImageError) -> ErrorCode {
    match error {
        ImageError::Registry { code: ErrorCode::Unauthorized, .. } => ErrorCode::Forbidden,
        // What failed is another server.
        ImageError::Registry { code: ErrorCode::Internal, .. } => ErrorCode::SandboxFailed,
        error => error.code(),
    }
}

/// The hints are for the command line on the server's host; clients are elsewhere.
fn image_hint(error: &ImageError) -> Option<String> {
    match error {
        ImageError::Registry { code: ErrorCode::Unauthorized, .. } => {
            Some("store a user for the registry: PUT /api/v2/registries/{host}".to_owned())
        }
        ImageError::Registry { code: ErrorCode::NotFound, .. } => {
            Some("check the name and the tag; a private image needs a user: PUT /api/v2/registries/{host}".to_owned())
        }
        error => error.hint(),
    }
}
