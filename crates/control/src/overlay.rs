//! The parts of a spec that a request or a template sets.

use std::collections::BTreeMap;

use arenite_model::{
    CheckpointPolicy, IdlePolicy, ImageName, NetworkMode, NetworkPolicy, Resources, SandboxSpec, SecretBinding, SecretName, Tier,
    VolumeMount,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A partial spec. What is set replaces; `env` and `labels` are merged key by key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpecOverlay {
    pub image: Option<ImageName>,
    pub args: Option<Vec<String>>,
    pub image_command: Option<bool>,
    pub env: Option<BTreeMap<String, String>>,
    pub workdir: Option<String>,
    pub hostname: Option<String>,
    pub resources: ResourcesOverlay,
    /// Without a policy, it also ends the policy of a template.
    pub network: Option<NetworkMode>,
    pub network_policy: Option<NetworkPolicy>,
    /// Secrets of the tenant. Those that `env` refers to need not be named.
    pub secrets: Option<Vec<SecretName>>,
    pub tier: Option<Tier>,
    pub volumes: Option<Vec<VolumeMount>>,
    pub ports: Option<Vec<u16>>,
    /// In seconds; 0: unlimited.
    pub timeout_seconds: Option<u64>,
    /// In seconds; 0: never idle.
    pub idle_timeout_seconds: Option<u64>,
    pub idle_policy: Option<IdlePolicy>,
    /// In seconds; 0: a frozen sandbox stays frozen.
    pub disk_after_seconds: Option<u64>,
    pub disk_under_pressure: Option<bool>,
    pub checkpoint: Option<CheckpointPolicy>,
    pub labels: Option<BTreeMap<String, String>>,
}

/// A partial [`Resources`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResourcesOverlay {
    pub memory_bytes: Option<u64>,
    pub cpu_millis: Option<u32>,
    pub pids: Option<u32>,
    pub disk_bytes: Option<u64>,
    pub shm_bytes: Option<u64>,
}

impl SpecOverlay {
    /// Applies this overlay to `spec`.
    pub fn lay_over(&self, spec: &mut SandboxSpec) {
        set(&mut spec.image, &self.image);
        set(&mut spec.args, &self.args);
        set(&mut spec.image_command, &self.image_command);
        set(&mut spec.network, &self.network);
        if self.network.is_some() || self.network_policy.is_some() {
            spec.network_policy.clone_from(&self.network_policy);
        }
        set(&mut spec.volumes, &self.volumes);
        set(&mut spec.ports, &self.ports);
        set(&mut spec.idle_policy, &self.idle_policy);
        set(&mut spec.disk_under_pressure, &self.disk_under_pressure);
        set(&mut spec.checkpoint, &self.checkpoint);
        for name in self.secrets.iter().flatten() {
            if spec.secrets.iter().all(|binding| binding.name != *name) {
                // Its placeholder comes with the create.
                let (name, placeholder, inherited) = (name.clone(), String::new(), Vec::new());
                spec.secrets.push(SecretBinding { name, placeholder, inherited, ssh: false });
            }
        }
        if self.tier.is_some() {
            spec.tier = self.tier;
        }
        if self.workdir.is_some() {
            spec.workdir.clone_from(&self.workdir);
        }
        if self.hostname.is_some() {
            spec.hostname.clone_from(&self.hostname);
        }
        for (theirs, ours) in [(&mut spec.env, &self.env), (&mut spec.labels, &self.labels)] {
            for (key, value) in ours.iter().flatten() {
                theirs.insert(key.clone(), value.clone());
            }
        }
        if let Some(seconds) = self.timeout_seconds {
            spec.timeout_seconds = (seconds > 0).then_some(seconds);
        }
        if let Some(seconds) = self.idle_timeout_seconds {
            spec.idle_timeout_seconds = (seconds > 0).then_some(seconds);
        }
        if let Some(seconds) = self.disk_after_seconds {
            spec.disk_after_seconds = (seconds > 0).then_some(seconds);
        }
        self.resources.lay_over(&mut spec.resources);
    }
}

impl ResourcesOverlay {
    pub fn lay_over(&self, resources: &mut Resources) {
        set(&mut resources.memory_bytes, &self.memory_bytes);
        set(&mut resources.cpu_millis, &self.cpu_millis);
        set(&mut resources.pids, &self.pids);
        set(&mut resources.disk_bytes, &self.disk_bytes);
        set(&mut resources.shm_bytes, &self.shm_bytes);
    }
}

fn set<T: Clone>(to: &mut T, from: &Option<T>) {
    if let Some(value) = from {
        to.clone_from(value);
    }
}
