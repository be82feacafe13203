//! Quotas: what a tenant may use, and what its sandboxes reserve of it.

use std::fmt;
use std::str::FromStr;

use arenite_model::{PauseKind, SandboxSpec, SandboxState, Tier};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

use crate::Sandbox;

/// The largest limit, which a store can still add up.
const MAX_LIMIT: u64 = 1 << 60;

/// An amount that a limit applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Quota {
    /// Sandboxes in any state.
    Sandboxes,
    /// Creates in progress or in the queue.
    ConcurrentCreates,
    /// The CPU limits of sandboxes that are neither failed nor lost, in thousandths of a core.
    CpuMillis,
    /// The memory limits of the same sandboxes.
    MemoryBytes,
    /// The disk limits of sandboxes in any state.
    DiskBytes,
    /// Named states of sandboxes' disks.
    Snapshots,
    /// Log lines of trajectories.
    TrajectoryBytes,
    RequestsPerSecond,
    /// The lifetime of one sandbox, from its creation. Also the lifetime of those that are created without one.
    MaxTimeoutSeconds,
    /// Volumes on all nodes.
    Volumes,
    /// The sizes of volumes.
    VolumeBytes,
}

impl Quota {
    pub const ALL: [Self; 11] = [
        Self::Sandboxes,
        Self::ConcurrentCreates,
        Self::CpuMillis,
        Self::MemoryBytes,
        Self::DiskBytes,
        Self::Snapshots,
        Self::TrajectoryBytes,
        Self::RequestsPerSecond,
        Self::MaxTimeoutSeconds,
        Self::Volumes,
        Self::VolumeBytes,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sandboxes => "sandboxes",
            Self::ConcurrentCreates => "concurrent_creates",
            Self::CpuMillis => "cpu_millis",
            Self::MemoryBytes => "memory_bytes",
            Self::DiskBytes => "disk_bytes",
            Self::Snapshots => "snapshots",
            Self::TrajectoryBytes => "trajectory_bytes",
            Self::RequestsPerSecond => "requests_per_second",
            Self::MaxTimeoutSeconds => "max_timeout_seconds",
            Self::Volumes => "volumes",
            Self::VolumeBytes => "volume_bytes",
        }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Quota {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|quota| quota.as_str() == text);
        found.ok_or_else(|| format!("there is no quota {text:?}; there are {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

/// The limits of a tenant. The server's default replaces an unset one; without a default, the amount is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TenantLimits {
    pub sandboxes: Option<u64>,
    pub concurrent_creates: Option<u64>,
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub snapshots: Option<u64>,
    pub trajectory_bytes: Option<u64>,
    pub requests_per_second: Option<u64>,
    pub max_timeout_seconds: Option<u64>,
    pub volumes: Option<u64>,
    pub volume_bytes: Option<u64>,
    /// The tier that each of its sandboxes must have: `gvisor` or `machine`. With `namespace`, all are allowed.
    #[schema(ignore)]
    pub min_tier: Option<Tier>,
}

impl TenantLimits {
    pub fn get(&self, quota: Quota) -> Option<u64> {
        match quota {
            Quota::Sandboxes => self.sandboxes,
            Quota::ConcurrentCreates => self.concurrent_creates,
            Quota::CpuMillis => self.cpu_millis,
            Quota::MemoryBytes => self.memory_bytes,
            Quota::DiskBytes => self.disk_bytes,
            Quota::Snapshots => self.snapshots,
            Quota::TrajectoryBytes => self.trajectory_bytes,
            Quota::RequestsPerSecond => self.requests_per_second,
            Quota::MaxTimeoutSeconds => self.max_timeout_seconds,
            Quota::Volumes => self.volumes,
            Quota::VolumeBytes => self.volume_bytes,
        }
    }

    /// Sets a limit, or removes it.
    ///
    /// # Errors
    /// A description, if no server could apply it.
    pub fn set(&mut self, quota: Quota, limit: Option<u64>) -> Result<(), String> {
        // With a rate of 0, nobody could raise it again. A lifetime of 0 stands for an unlimited one elsewhere.
        let least = u64::from(matches!(quota, Quota::RequestsPerSecond | Quota::MaxTimeoutSeconds));
        if let Some(limit) = limit
            && !(least..=MAX_LIMIT).contains(&limit)
        {
            return Err(format!("{quota} is {limit}, outside {least} to {MAX_LIMIT}"));
        }
        *match quota {
            Quota::Sandboxes => &mut self.sandboxes,
            Quota::ConcurrentCreates => &mut self.concurrent_creates,
            Quota::CpuMillis => &mut self.cpu_millis,
            Quota::MemoryBytes => &mut self.memory_bytes,
            Quota::DiskBytes => &mut self.disk_bytes,
            Quota::Snapshots => &mut self.snapshots,
            Quota::TrajectoryBytes => &mut self.trajectory_bytes,
            Quota::RequestsPerSecond => &mut self.requests_per_second,
            Quota::MaxTimeoutSeconds => &mut self.max_timeout_seconds,
            Quota::Volumes => &mut self.volumes,
            Quota::VolumeBytes => &mut self.volume_bytes,
        } = limit;
        Ok(())
    }

    /// These limits, with unset ones from `defaults`.
    pub(crate) fn over(&self, defaults: &Self) -> Self {
        Self {
            sandboxes: self.sandboxes.or(defaults.sandboxes),
            concurrent_creates: self.concurrent_creates.or(defaults.concurrent_creates),
            cpu_millis: self.cpu_millis.or(defaults.cpu_millis),
            memory_bytes: self.memory_bytes.or(defaults.memory_bytes),
            disk_bytes: self.disk_bytes.or(defaults.disk_bytes),
            snapshots: self.snapshots.or(defaults.snapshots),
            trajectory_bytes: self.trajectory_bytes.or(defaults.trajectory_bytes),
            requests_per_second: self.requests_per_second.or(defaults.requests_per_second),
            max_timeout_seconds: self.max_timeout_seconds.or(defaults.max_timeout_seconds),
            volumes: self.volumes.or(defaults.volumes),
            volume_bytes: self.volume_bytes.or(defaults.volume_bytes),
            min_tier: self.min_tier.or(defaults.min_tier),
        }
    }

    /// Those that a sandbox which runs again needs: it already has its place and its disk.
    pub(crate) fn of_restarts(&self) -> Self {
        Self { cpu_millis: self.cpu_millis, memory_bytes: self.memory_bytes, ..Self::default() }
    }

    /// Whether sandboxes reserve anything.
    pub(crate) fn apply_to_sandboxes(&self) -> bool {
        self.sandboxes.or(self.cpu_millis).or(self.memory_bytes).or(self.disk_bytes).is_some()
    }

    /// Whether volumes reserve anything.
    pub(crate) fn apply_to_volumes(&self) -> bool {
        self.volumes.or(self.volume_bytes).is_some()
    }
}

/// What sandboxes and volumes hold of their tenant's quotas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserved {
    pub sandboxes: u64,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub volumes: u64,
    pub volume_bytes: u64,
}

impl Reserved {
    /// What one sandbox reserves while it may run.
    pub(crate) fn from_spec(spec: &SandboxSpec) -> Self {
        let resources = &spec.resources;
        Self {
            sandboxes: 1,
            cpu_millis: resources.cpu_millis.into(),
            memory_bytes: resources.memory_bytes,
            disk_bytes: resources.disk_bytes,
            ..Self::default()
        }
    }

    /// What a sandbox reserves in its state. One that is dead, or paused to its disk, has no processes. It keeps its
    /// disk, also while it is deleted.
    pub(crate) fn from_sandbox(sandbox: &Sandbox) -> Self {
        let reserved = Self::from_spec(&sandbox.spec);
        let is_dead = match sandbox.state {
            SandboxState::Failed | SandboxState::Lost => true,
            SandboxState::Paused | SandboxState::Deleting if sandbox.pause_kind == Some(PauseKind::Disk) => true,
            SandboxState::Deleting => sandbox.died.as_ref().is_some_and(|died| !died.reason.is_removal()),
            _ => false,
        };
        if is_dead { Self { cpu_millis: 0, memory_bytes: 0, ..reserved } } else { reserved }
    }

    pub fn get(&self, quota: Quota) -> Option<u64> {
        match quota {
            Quota::Sandboxes => Some(self.sandboxes),
            Quota::CpuMillis => Some(self.cpu_millis),
            Quota::MemoryBytes => Some(self.memory_bytes),
            Quota::DiskBytes => Some(self.disk_bytes),
            Quota::Volumes => Some(self.volumes),
            Quota::VolumeBytes => Some(self.volume_bytes),
            Quota::ConcurrentCreates
            | Quota::Snapshots
            | Quota::TrajectoryBytes
            | Quota::RequestsPerSecond
            | Quota::MaxTimeoutSeconds => None,
        }
    }

    /// Refuses `more` beyond the limits. Names a quota that never has room before one that may have some later.
    pub(crate) fn check(&self, more: &Self, limits: &TenantLimits) -> Result<(), QuotaExceeded> {
        let exceeded = Quota::ALL.into_iter().filter_map(|quota| {
            let (limit, used, requested) = (limits.get(quota)?, self.get(quota)?, more.get(quota)?);
            (requested > 0 && used.saturating_add(requested) > limit).then_some(QuotaExceeded { quota, limit, used, requested })
        });
        exceeded.min_by_key(|exceeded| !exceeded.is_permanent()).map_or(Ok(()), Err)
    }
}

impl std::iter::Sum for Reserved {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            sandboxes: sum.sandboxes + one.sandboxes,
            cpu_millis: sum.cpu_millis + one.cpu_millis,
            memory_bytes: sum.memory_bytes + one.memory_bytes,
            disk_bytes: sum.disk_bytes + one.disk_bytes,
            volumes: sum.volumes + one.volumes,
            volume_bytes: sum.volume_bytes + one.volume_bytes,
        })
    }
}

/// A request beyond a tenant's quota.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct QuotaExceeded {
    pub quota: Quota,
    pub limit: u64,
    pub used: u64,
    pub requested: u64,
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, limit, used, requested } = self;
        match quota {
            Quota::MaxTimeoutSeconds => write!(
                f,
                "the quota {quota} of this tenant is {limit}: no sandbox lives longer from its creation, and {requested} seconds were requested"
            ),
            _ => write!(f, "the quota {quota} of this tenant is {limit}, {used} are in use, and {requested} more were requested"),
        }
    }
}

impl QuotaExceeded {
    /// Whether a repeat can't succeed by itself: the request alone exceeds the limit, or what is in use does not end by itself.
    pub fn is_permanent(&self) -> bool {
        self.requested > self.limit || matches!(self.quota, Quota::Volumes | Quota::VolumeBytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_read_back_as_written_and_defaults_fill_gaps() {
        let mut limits = TenantLimits::default();
        for (number, quota) in (1..).zip(Quota::ALL) {
            assert_eq!(quota.as_str().parse(), Ok(quota));
            assert_eq!(serde_json::to_value(quota).unwrap(), quota.as_str());
            limits.set(quota, Some(number)).unwrap();
            assert_eq!(limits.get(quota), Some(number));
            assert_eq!(TenantLimits::default().over(&limits).get(quota), Some(number));
            assert!(limits.set(quota, Some(MAX_LIMIT + 1)).is_err());
        }
        assert!(limits.set(Quota::RequestsPerSecond, Some(0)).is_err());
        assert!(limits.set(Quota::MaxTimeoutSeconds, Some(0)).is_err());
        let text = serde_json::to_string(&limits).unwrap();
        assert_eq!(serde_json::from_str::<TenantLimits>(&text).unwrap(), limits);
        assert_eq!(serde_json::from_str::<TenantLimits>("{}").unwrap(), TenantLimits::default());
        limits.set(Quota::Sandboxes, None).unwrap();
        assert_eq!(limits.over(&TenantLimits { sandboxes: Some(9), ..Default::default() }).sandboxes, Some(9));
    }

    #[test]
    fn a_request_above_the_whole_limit_is_permanent_and_named_first() {
        let limits = TenantLimits { sandboxes: Some(2), memory_bytes: Some(10), ..Default::default() };
        let one = |memory_bytes| Reserved { sandboxes: 1, memory_bytes, ..Default::default() };
        let used: Reserved = [one(4), one(4)].into_iter().sum();
        assert_eq!(one(8).check(&one(2), &limits), Ok(()));
        let exceeded = used.check(&one(1), &limits).unwrap_err();
        assert_eq!(exceeded, QuotaExceeded { quota: Quota::Sandboxes, limit: 2, used: 2, requested: 1 });
        assert!(!exceeded.is_permanent());
        let exceeded = used.check(&one(11), &limits).unwrap_err();
        assert!(exceeded.is_permanent() && exceeded.quota == Quota::MemoryBytes, "{exceeded}");
        assert_eq!(used.check(&one(u64::MAX), &TenantLimits::default()), Ok(()));
    }
}
