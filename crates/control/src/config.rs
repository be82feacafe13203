use std::path::PathBuf;
use std::time::Duration;

use arenite_model::ImageName;

use crate::SpecOverlay;

/// What control is told at start.
#[derive(Debug, Clone)]
pub struct ControlConfig {
    /// The store is `control.sqlite` in it.
    pub data_dir: PathBuf,
    /// The image of a sandbox that names neither template nor image, and of the sandbox called `default`.
    pub default_image: ImageName,
    /// Laid over the default template for the sandbox called `default` when it is made by being called.
    pub default_spec: SpecOverlay,
    pub limits: Limits,
    /// Directory of `NAME.toml` templates.
    pub templates_dir: Option<PathBuf>,
    /// Agent-Sandbox's environments: a JSON array of `{name, image, description}`.
    pub environments_file: Option<PathBuf>,
    /// Sandboxes to keep made ahead: a template or image, and how many. Beside what templates say of themselves.
    pub pools: Vec<(String, usize)>,
    /// How long the disk of a lost or failed sandbox is kept when its own time isn't up before.
    pub lost_keep: Duration,
    /// How long one step of the engine may take (create, destroy, pause, resume).
    pub engine_timeout: Duration,
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
        }
    }
}

/// Admission's bounds. Beyond each a create is refused with [`crate::ControlError::Exhausted`].
#[derive(Debug, Clone)]
pub struct Limits {
    /// Creates that the engine works on at once.
    pub max_concurrent_creates: usize,
    /// Creates that wait for their turn.
    pub create_queue: usize,
    /// How long one waits for its turn.
    pub create_queue_wait: Duration,
    /// Memory of the host that is never given to sandboxes, in bytes.
    pub memory_reserve_bytes: u64,
    /// What a new sandbox is expected to take of the host's memory, in bytes. Its own limit is usually far higher.
    pub memory_estimate_bytes: u64,
    /// Free disk that must be left, in bytes.
    pub disk_reserve_bytes: u64,
    /// What a new sandbox is expected to take of the disk, in bytes.
    pub disk_estimate_bytes: u64,
    /// Sandboxes of all tenants, in any state.
    pub max_sandboxes: usize,
    /// Sandboxes of one tenant, in any state.
    pub max_sandboxes_per_tenant: usize,
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
            max_sandboxes_per_tenant: 20_000,
        }
    }
}
