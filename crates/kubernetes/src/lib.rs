//! Sandboxes as pods of a Kubernetes cluster.
//!
//! ```text
//!  create ──► Secret arenite-<id> (the record) ──► Pod arenite-<id>, owned by it
//!                                                    │ init container: copies this program into the pod
//!                                                    │ main container: any image, with `arenite guest pod` as its command
//!  TLS, pinned keys  ◄───────────────────────────────┘ waits, assigned to nobody
//!    │ its service account token ──► TokenReview: which pod is it?
//!    ▼
//!  name, environment, main command ──► the guest
//! ```
//!
//! # Identity
//!
//! A pod's address is not proof: addresses are used again, and other pods can listen. So both sides prove keys on each connection
//! ([`arenite_channel`]). The guest knows the server's public key from its environment. The server takes a guest's key on the
//! first connection, asks for the token that Kubernetes made for this one pod, and lets the API server name its pod. Only then
//! it keeps the key in the record, and sends what the sandbox is. Everything else fails the create.
//!
//! # Record
//!
//! The Secret is created before the pod and removed after it. It has the sandbox's row, so that a lost store loses no sandbox.
//! A start lists Secrets and pods, adopts pairs of them, and removes what was never used.

#![forbid(unsafe_code)]

mod api;
mod claims;
mod engine;
mod guest;
mod pod;
mod record;
mod recovery;
mod state;
mod template;
mod volumes;

pub use claims::warm_pool;
pub use engine::KubernetesEngine;

/// Label of all objects, with the installation's name.
const INSTALLATION: &str = "arenite.installation";
/// Label of all objects, with the sandbox's id.
const SANDBOX: &str = "arenite.sandbox";
/// Label of pods, with `open` or `none`.
const NETWORK: &str = "arenite.network";

/// The name of a sandbox's objects.
fn object_name(id: &arenite_model::SandboxId) -> String {
    format!("arenite-{id}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use arenite_engine::{KubernetesConfig, VolumeAccess};
    use arenite_model::Tier;

    /// The settings of a test.
    pub(crate) fn config() -> KubernetesConfig {
        KubernetesConfig {
            kubeconfig: None,
            namespace: Some("sandboxes".to_owned()),
            name: "test".to_owned(),
            guest_image: "localhost/arenite:1".to_owned(),
            images: BTreeMap::new(),
            warm_pools: BTreeMap::new(),
            template: None,
            identity: "identity.pem".into(),
            runtime_classes: BTreeMap::new(),
            default_tier: Tier::Namespace,
            has_network_policies: false,
            schedule_wait: Duration::ZERO,
            volume_class: None,
            volume_access: VolumeAccess::default(),
        }
    }
}
