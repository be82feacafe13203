use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use arenite_engine::HostCapacity;
use arenite_model::ImageName;
use jiff::Timestamp;

use crate::SpecOverlay;
use crate::images::{ClusterImages, ImagesConfig};
use crate::nodes::LeaseTimes;
use crate::secrets::SecretKeySource;
use crate::tenants::TenantLimits;

/// Settings of the control service, passed at start.
#[derive(Debug, Clone)]
pub struct ControlConfig {
    /// The directory of the store, `control.sqlite`.
    pub data_dir: PathBuf,
    /// The image of a sandbox that names neither template nor image, and of the sandbox called `default`.
    pub default_image: ImageName,
    /// Overlay on the default template for the sandbox `default`, if a call creates it.
    pub default_spec: SpecOverlay,
    pub limits: Limits,
    /// Directory of `NAME.toml` templates.
    pub templates_dir: Option<PathBuf>,
    /// Agent-Sandbox's environments: a JSON array of `{name, image, description}`.
    pub environments_file: Option<PathBuf>,
    /// Sandboxes to create in advance: a template or image, and their number. In addition to templates' own pools.
    pub pools: Vec<(String, usize)>,
    /// How long the disk of a lost or failed sandbox is kept, unless its own timeout ends earlier.
    pub lost_keep: Duration,
    /// Timeout of one engine operation (create, destroy, pause, resume).
    pub engine_timeout: Duration,
    /// How long deliveries of webhooks are retried.
    pub webhook_retry: Duration,
    /// Where the keys are that secrets are encrypted with.
    pub secret_keys: SecretKeySource,
    /// Keeps tenants and their keys. Otherwise `default` is the only tenant.
    pub tenants: bool,
    /// Interval between two samples of what sandboxes use.
    pub meter_every: Duration,
    /// Limits of tenants without separate ones.
    pub tenant_limits: TenantLimits,
    /// None: the engine keeps images itself.
    pub images: Option<ImagesConfig>,
    /// What creates can select this node of a cluster by.
    pub node_labels: BTreeMap<String, String>,
    /// Of an engine that runs sandboxes in a cluster.
    pub cluster_images: Option<ClusterImages>,
    /// Of a node's lease.
    pub lease: LeaseTimes,
    /// Reads the host's clock. Tests replace it, to keep their own time over restarts.
    pub host_clock: fn() -> Timestamp,
}

impl ControlConfig {
    pub fn new(data_dir: PathBuf, default_image: ImageName) -> Self {
        Self {
            data_dir,
            default_image,
            default_spec: SpecOverlay::default(),
            limits: Limits::default(),
            templates_dir: None,
            environments_file: None,
            pools: Vec::new(),
            lost_keep: Duration::from_secs(24 * 60 * 60),
            engine_timeout: Duration::from_secs(120),
            webhook_retry: Duration::from_secs(24 * 60 * 60),
            secret_keys: SecretKeySource::default(),
            tenants: false,
            meter_every: Duration::from_secs(10),
            tenant_limits: TenantLimits::default(),
            images: None,
            node_labels: BTreeMap::new(),
            cluster_images: None,
            lease: LeaseTimes::default(),
            host_clock: Timestamp::now,
        }
    }
}

/// Limits of admission. Beyond them, a create is refused with [`crate::ControlError::Exhausted`].
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of concurrent creates in the engine.
    pub max_concurrent_creates: usize,
    /// Maximum number of creates in the queue.
    pub create_queue: usize,
    /// Maximum time in the queue.
    pub create_queue_wait: Duration,
    /// Host memory that sandboxes never get, in bytes.
    pub memory_reserve_bytes: u64,
    /// Estimated host memory of a new sandbox, in bytes. Its limit is usually far higher.
    pub memory_estimate_bytes: u64,
    /// Disk space that must stay free, in bytes.
    pub disk_reserve_bytes: u64,
    /// Estimated disk space of a new sandbox, in bytes.
    pub disk_estimate_bytes: u64,
    /// Maximum number of sandboxes of all tenants, in any state.
    pub max_sandboxes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            max_concurrent_creates: (cores * 2).clamp(4, 64),
            create_queue: 256,
            create_queue_wait: Duration::from_secs(60),
            memory_reserve_bytes: 512 << 20,
            memory_estimate_bytes: 32 << 20,
            disk_reserve_bytes: 1 << 30,
            disk_estimate_bytes: 16 << 20,
            max_sandboxes: 20_000,
        }
    }
}

impl Limits {
    /// How many more sandboxes a host admits that has this capacity left, and `sandboxes` already.
    pub(crate) fn remaining_sandboxes(&self, capacity: &HostCapacity, sandboxes: u64) -> u64 {
        let by_number = (self.max_sandboxes as u64).saturating_sub(sandboxes);
        // A total of zero means that the engine doesn't know.
        let by = |total: u64, available: u64, reserve: u64, estimate: u64| match total {
            0 => u64::MAX,
            _ => available.saturating_sub(reserve).checked_div(estimate).unwrap_or(u64::MAX),
        };
        let memory = (capacity.memory_total_bytes, capacity.memory_available_bytes);
        let disk = (capacity.disk_total_bytes, capacity.disk_available_bytes);
        by_number.min(by(memory.0, memory.1, self.memory_reserve_bytes, self.memory_estimate_bytes)).min(by(
            disk.0,
            disk.1,
            self.disk_reserve_bytes,
            self.disk_estimate_bytes,
        ))
    }
}
