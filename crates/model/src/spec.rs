//! The spec of a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

use crate::protocol::CarriedSessions;
use crate::{ImageName, NetworkPolicy, PauseKind, SecretBinding, StateId, TenantId, Tier, VolumeId};

/// A sandbox's limits. The kernel enforces every number, or the create fails.
#[derive(Debug, Clone, PartialEq, Hash, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// Memory of the whole sandbox, in bytes (RAM; swap is off). The guest keeps a reserve of it, the workload gets the rest.
    pub memory_bytes: u64,
    /// CPU time as thousandths of one core: 1500 is one and a half cores.
    pub cpu_millis: u32,
    /// Processes and threads of the whole sandbox.
    pub pids: u32,
    /// The writable layer, in bytes.
    pub disk_bytes: u64,
    /// `/dev/shm`, in bytes; counted as memory too.
    pub shm_bytes: u64,
}

impl Default for Resources {
    /// Source: Agent-Sandbox's default limits (1 core, 1 GiB), widened to what pip and npm need in practice.
    fn default() -> Self {
        Self { memory_bytes: 2 << 30, cpu_millis: 2000, pids: 1024, disk_bytes: 10 << 30, shm_bytes: 1 << 30 }
    }
}

impl Resources {
    /// Memory kept for the guest, in bytes, so that it can always answer and kill.
    pub const GUEST_RESERVE_BYTES: u64 = 48 << 20;
    /// Tasks kept for the guest.
    pub const GUEST_RESERVE_PIDS: u32 = 32;

    /// Refuses limits that no sandbox could work with.
    pub fn check(&self) -> Result<(), SpecError> {
        let bounds: [(&'static str, u64, u64, u64); 5] = [
            ("memory_bytes", self.memory_bytes, 96 << 20, 1 << 44),
            ("cpu_millis", self.cpu_millis.into(), 10, 1_024_000),
            ("pids", self.pids.into(), 64, 4_000_000),
            ("disk_bytes", self.disk_bytes, 16 << 20, 1 << 50),
            ("shm_bytes", self.shm_bytes, 0, 1 << 40),
        ];
        for (field, value, least, most) in bounds {
            if value < least || value > most {
                return Err(SpecError::OutOfBounds { field, value, least, most });
            }
        }
        Ok(())
    }
}

/// Network access of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Hash, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// Its own loopback only.
    None,
    /// The public internet; metadata addresses, private ranges and the host stay closed.
    #[default]
    Open,
    /// The host's own network. Image builds only: no dialect accepts it from a client.
    #[serde(skip)]
    Host,
}

/// The action after a sandbox's idle time.
#[derive(Debug, Clone, Copy, PartialEq, Hash, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum IdlePolicy {
    #[default]
    Delete,
    /// The same as `freeze`: its earlier name. Agent-Sandbox calls it `scaledown`.
    Pause,
    /// Frozen until the next call wakes it.
    Freeze,
    /// Paused to its disk until the next call starts it again.
    Disk,
}

impl IdlePolicy {
    /// How it pauses; none: it deletes.
    pub fn pause_kind(self) -> Option<PauseKind> {
        match self {
            Self::Delete => None,
            Self::Pause | Self::Freeze => Some(PauseKind::Freeze),
            Self::Disk => Some(PauseKind::Disk),
        }
    }
}

/// When checkpoints of a sandbox's disk are taken.
#[derive(Debug, Clone, Copy, PartialEq, Hash, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointPolicy {
    /// When a client asks for one.
    #[default]
    Manual,
    /// Also before and after each step that can change the disk, unless nothing changed. Each of these steps has the hash of the
    /// disk after it, and whether it changed anything.
    Auto,
}

impl CheckpointPolicy {
    pub fn is_auto(self) -> bool {
        self == Self::Auto
    }

    fn is_manual(&self) -> bool {
        !self.is_auto()
    }
}

/// A volume in a sandbox, or a directory of the host.
#[derive(Debug, Clone, Default, PartialEq, Hash, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    /// The name of a volume of the tenant; otherwise the one under which the operator declared a directory.
    pub name: String,
    /// Its path in the sandbox.
    pub path: String,
    /// Read-only, even if others write to it.
    #[serde(default)]
    pub read_only: bool,
    /// Mounts this directory of it alone, such as `datasets/first`. It is created if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// The tenant's volume; absent: it is a directory that the operator declared. The server sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_id: Option<VolumeId>,
}

impl VolumeMount {
    /// What the server or the system has at these paths, or below them, stays visible.
    const RESERVED: [&str; 9] = ["/proc", "/sys", "/dev", "/etc", "/run", "/usr", "/bin", "/lib", "/var/log/arenite"];

    fn check(&self) -> Result<(), SpecError> {
        let invalid = |reason: String| Err(SpecError::Invalid { field: "volumes", reason });
        let path = self.path.as_str();
        let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        let is_normal = path.len() <= 1024 && path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain));
        if !is_normal {
            return invalid(format!("the path {path:?} is not absolute and normalised, such as /home/gem/project"));
        }
        if let Some(sub_path) = &self.sub_path
            && (sub_path.len() > 1024 || !sub_path.split('/').all(is_plain))
        {
            return invalid(format!("sub_path {sub_path:?} is not relative and normalised, such as datasets/first"));
        }
        if let Some(reserved) = Self::RESERVED.iter().find(|reserved| overlap(path, reserved)) {
            return invalid(format!("nothing may be mounted at {path}: the sandbox needs its own {reserved}"));
        }
        Ok(())
    }
}

impl VolumeMount {
    /// Whether everything that this mounts is in what `other` mounts, with no more rights.
    pub fn is_within(&self, other: &Self) -> bool {
        let is_below = match (&self.sub_path, &other.sub_path) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(other)) => {
                own.strip_prefix(other.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        };
        is_below && self.name == other.name && self.volume_id == other.volume_id && (self.read_only || !other.read_only)
    }
}

/// Whether one of the two is the other, or below it.
fn overlap(a: &str, b: &str) -> bool {
    let below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    below(a, b) || below(b, a)
}

/// The requested properties of a sandbox. All of them take effect, or the create fails.
#[derive(Debug, Clone, PartialEq, Hash, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxSpec {
    pub image: ImageName,
    /// The tenant to which the image belongs; absent: it belongs to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_owner: Option<TenantId>,
    /// The sealed state that its disk starts as; absent: the image alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateId>,
    /// Starts the main command, and leaves out the processes that the state keeps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restart_processes: bool,
    /// The main command, run by the guest as the sandbox's user with its output kept; empty: none.
    #[serde(default)]
    pub args: Vec<String>,
    /// The main command is the image's own: its ENTRYPOINT and then `args`, or its CMD if `args` is empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub image_command: bool,
    /// Environment of every command, over the image's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Default directory of commands; unset: the image's, else the user's home.
    #[serde(default)]
    pub workdir: Option<String>,
    /// Host name; unset: the sandbox's name.
    #[serde(default)]
    pub hostname: Option<String>,
    #[serde(default)]
    pub resources: Resources,
    #[serde(default)]
    pub network: NetworkMode,
    /// What it may reach through the egress proxy; absent: all that `network` allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    /// What its tenant's floor allows at most. Only in what the engine gets: the floor may change.
    #[serde(skip)]
    pub network_floor: Option<NetworkPolicy>,
    /// The sessions of its parent, which a fork opens at its start. Only in what the engine gets, and only then.
    #[serde(skip)]
    pub sessions: Option<Arc<CarriedSessions>>,
    /// The secrets that the egress proxy puts into its requests, and those that its SSH agent signs with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretBinding>,
    /// What isolates it. Of an existing sandbox: the tier that it has. Unset in a template: the server's default, or `machine` if
    /// the image has a VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Volumes of the tenant, and directories of the host that the operator declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// Ports that the sandbox will serve: shown to people and previews, never opened on the host.
    #[serde(default)]
    pub ports: Vec<u16>,
    /// Lifetime in seconds from creation; none: unlimited.
    #[serde(default)]
    pub timeout_seconds: Option<u64>,
    /// Idle time in seconds until `idle_policy` applies; none: never.
    #[serde(default)]
    pub idle_timeout_seconds: Option<u64>,
    #[serde(default)]
    pub idle_policy: IdlePolicy,
    /// Time in seconds after which a frozen sandbox is paused to its disk; none: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_after_seconds: Option<u64>,
    /// A frozen sandbox is paused to its disk when the host is short of memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk_under_pressure: bool,
    #[serde(default, skip_serializing_if = "CheckpointPolicy::is_manual")]
    pub checkpoint: CheckpointPolicy,
    /// Free text that a dialect stores for its own answers.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Why a spec was refused.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum SpecError {
    #[error("{field} is {value}, outside {least} to {most}")]
    OutOfBounds { field: &'static str, value: u64, least: u64, most: u64 },
    #[error("{field} is not valid: {reason}")]
    Invalid { field: &'static str, reason: String },
}

impl SandboxSpec {
    /// Whether the egress proxy puts secrets into its requests.
    pub fn has_proxied_secrets(&self) -> bool {
        self.secrets.iter().any(|binding| !binding.ssh)
    }

    /// Whether an SSH agent signs its logins.
    pub fn has_ssh_keys(&self) -> bool {
        self.secrets.iter().any(|binding| binding.ssh)
    }

    /// Maximum size of `env` and `args` together, in bytes.
    pub const MAX_ENV_BYTES: usize = 128 << 10;
    pub const MAX_VOLUMES: usize = 16;

    /// A spec with defaults for everything except the image.
    pub fn of_image(image: ImageName) -> Self {
        Self {
            image,
            image_owner: None,
            state: None,
            restart_processes: false,
            args: Vec::new(),
            image_command: false,
            env: BTreeMap::new(),
            workdir: None,
            hostname: None,
            resources: Resources::default(),
            network: NetworkMode::default(),
            network_policy: None,
            network_floor: None,
            sessions: None,
            secrets: Vec::new(),
            tier: None,
            volumes: Vec::new(),
            ports: Vec::new(),
            timeout_seconds: None,
            idle_timeout_seconds: None,
            idle_policy: IdlePolicy::default(),
            disk_after_seconds: None,
            disk_under_pressure: false,
            checkpoint: CheckpointPolicy::default(),
            labels: BTreeMap::new(),
        }
    }

    /// Refuses a spec that could not be carried out as written.
    pub fn check(&self) -> Result<(), SpecError> {
        self.resources.check()?;
        let invalid = |field, reason: &str| Err(SpecError::Invalid { field, reason: reason.to_owned() });
        let mut bytes = 0;
        for (key, value) in &self.env {
            let first_ok = key.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
            if !first_ok || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                return invalid("env", "a variable's name is a letter or _ and then letters, digits or _");
            }
            if value.contains('\0') {
                return invalid("env", "a value holds a NUL byte");
            }
            bytes += key.len() + value.len() + 2;
        }
        for arg in &self.args {
            if arg.contains('\0') {
                return invalid("args", "an argument holds a NUL byte");
            }
            bytes += arg.len() + 1;
        }
        if bytes > Self::MAX_ENV_BYTES {
            return Err(SpecError::OutOfBounds {
                field: "env and args, in bytes",
                value: bytes as u64,
                least: 0,
                most: Self::MAX_ENV_BYTES as u64,
            });
        }
        if let Some(dir) = &self.workdir
            && (!dir.starts_with('/') || dir.contains('\0') || dir.len() > 4096)
        {
            return invalid("workdir", "give an absolute path of at most 4096 bytes");
        }
        if let Some(host) = &self.hostname
            && (host.is_empty() || host.len() > 63 || !host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
        {
            return invalid("hostname", "use 1 to 63 letters, digits and hyphens");
        }
        if self.volumes.len() > Self::MAX_VOLUMES {
            return invalid("volumes", "give at most 16");
        }
        for (number, volume) in self.volumes.iter().enumerate() {
            volume.check()?;
            if let Some(other) = self.volumes[..number].iter().find(|other| overlap(&volume.path, &other.path)) {
                let reason = format!("{} and {} overlap", other.path, volume.path);
                return Err(SpecError::Invalid { field: "volumes", reason });
            }
        }
        if self.ports.contains(&0) || self.ports.len() > 64 {
            return invalid("ports", "give at most 64 ports from 1 to 65535");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(sub_path: Option<&str>) -> VolumeMount {
        VolumeMount {
            name: "v".to_owned(),
            path: "/data".to_owned(),
            sub_path: sub_path.map(str::to_owned),
            ..Default::default()
        }
    }

    #[test]
    fn a_directory_of_a_volume_is_a_normalised_path() {
        for good in ["a", "a/b", ".hidden", "a b/ü", "...", "a\\b"] {
            assert_eq!(mount(Some(good)).check(), Ok(()), "{good:?}");
        }
        let long = "x/".repeat(600) + "x";
        for bad in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0b", &long] {
            assert!(mount(Some(bad)).check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_child_mounts_no_more_than_its_parent() {
        let all = mount(None);
        let part = mount(Some("a"));
        assert!(all.is_within(&all) && part.is_within(&all) && mount(Some("a/b")).is_within(&part));
        assert!(!all.is_within(&part) && !mount(Some("ab")).is_within(&part));
        let read_only = VolumeMount { read_only: true, ..all.clone() };
        assert!(read_only.is_within(&all) && !all.is_within(&read_only));
        let other = VolumeMount { volume_id: Some(VolumeId::random()), ..all.clone() };
        assert!(!other.is_within(&all) && !all.is_within(&other));
    }
}
