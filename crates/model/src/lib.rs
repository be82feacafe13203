//! Types that every other crate shares: ids, specs, states, limits and error codes.
//!
//! Owns plain types and their validation. Never does I/O, and never knows a dialect's wire format.

#![forbid(unsafe_code)]

mod address;
mod annotation;
mod code;
mod death;
mod error_text;
mod id;
mod network;
mod pause;
pub mod protocol;
mod secret;
mod spec;
mod state;
mod tier;

pub use address::is_public_address;
pub use annotation::{Annotation, AnnotationError, AnnotationParts, AnnotationSummary, Rating};
pub use code::ErrorCode;
pub use death::{Death, DeathReason};
pub use error_text::with_sources;
pub use id::{
    AnnotationId, AnnotationLabel, GroupName, IdError, IdempotencyKey, ImageName, KeyId, ModelRouteName, NodeName, SandboxId,
    SandboxName, SecretName, SnapshotName, StateId, TenantId, VolumeId, VolumeName, WebhookId,
};
pub use network::{NetworkPolicy, NetworkProcess, NetworkRule, PolicyMode, RuleFields, RulePorts, RuleProtocol};
pub use pause::PauseKind;
pub use secret::{SecretBinding, SecretPlace, SecretText, SshLogin};
pub use spec::{CheckpointPolicy, IdlePolicy, NetworkMode, Resources, SandboxSpec, SpecError, VolumeMount};
pub use state::SandboxState;
pub use tier::Tier;
