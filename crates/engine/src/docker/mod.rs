//! Sandboxes as containers of a Docker daemon on this host.
//!
//! ```text
//!  image store ──archive, once for each digest──► Docker's images
//!  create ──► container (network none) ──► its guest connects to the start socket
//!                                            │  the process is known: connect its network, watch it
//!                                            ▼
//!             data_dir/docker/<id>/guest.sock: the guest gets this listener, as in the namespace engine
//! ```
//!
//! In the tier `gvisor`, the container runs under Docker's runtime `runsc`, and the guest connects to the server, which hands it
//! its connections: `calls.rs` says how.
//!
//! What Docker isolates, it isolates with this project's seccomp profile and capabilities. The network is not Docker's: the
//! container's namespace is connected like a sandbox's of the namespace engine, with the same policy, names and addresses.
//!
//! ```text
//!  data_dir/docker/<id>/sandbox.json   the record, from which a start finds the sandbox again
//!  data_dir/docker/<id>/guest.sock     where its guest listens; the container does not see this name
//!  data_dir/docker/<id>/in/            mounted read-only in the container: the program, and the start socket until it is used;
//!                                         under gVisor also the socket for connections
//! ```
//!
//! Containers carry the installation's tag and the sandbox's id as labels. They outlive the server.

mod api;
mod calls;
mod container;
mod death;
mod engine;
mod forward;
mod gvisor;
mod images;
mod record;
mod recovery;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arenite_model::Tier;

use crate::namespace::Volume;
use crate::namespace::network::NetworkConfig;
use crate::namespace::storage::StorageConfig;

pub use engine::DockerEngine;

/// Docker's own default.
pub const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// The name of gVisor's runtime in its own documents.
pub const DEFAULT_GVISOR_RUNTIME: &str = "runsc";

/// Settings of the Docker engine.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// Directory of all persistent state: images, records. The containers' files are Docker's.
    pub data_dir: PathBuf,
    /// The daemon's Unix socket.
    pub socket: PathBuf,
    /// This program, which is the first process of containers.
    pub program: PathBuf,
    /// Of images.
    pub storage: StorageConfig,
    pub network: NetworkConfig,
    /// Maximum number of open descriptors of a process in a sandbox.
    pub open_files: u64,
    /// Whether set-user-id programs gain nothing. Then `sudo` does not work.
    pub no_new_privileges: bool,
    /// The tier of sandboxes that request none: `namespace` or `gvisor`.
    pub default_tier: Tier,
    /// The name of Docker's runtime for the tier `gvisor`.
    pub gvisor_runtime: String,
    /// Host directories that sandboxes may mount, by name.
    pub volumes: BTreeMap<String, Volume>,
}

/// Whether a data directory has sandboxes of this engine.
pub fn has_sandboxes(data_dir: &Path) -> bool {
    // A directory that can't be read may have some.
    record::Records::new(data_dir).list().map_or(true, |ids| !ids.is_empty())
}
