//! Registries: pulling images and pushing them, by the protocol of Docker and OCI.
//!
//! ```text
//! reference ─► manifest ─► (index: this host's) ─► config ─► layers that are missing ─► downloads/<digest> ─► unpacked ─► image
//! ```
//!
//! Every part is compared with the digest that names it. A part is in the store's `downloads` until the image exists, so that an
//! interrupted pull goes on.

mod client;
mod credentials;
mod download;
mod mirror;
mod pull;
mod push;
mod reference;
pub(crate) mod web;

use std::path::PathBuf;
use std::time::Duration;

pub use credentials::docker_config_file;
pub use mirror::Mirror;
pub use pull::{PullRequest, pull};
pub use push::push;
pub use reference::Reference;
pub(crate) use reference::is_registry;

/// How registries are reached.
#[derive(Debug, Clone)]
pub struct RegistryOptions {
    /// Hosts, with or without a port, that may answer without TLS. Those on loopback may always.
    pub insecure: Vec<String>,
    /// Docker's `config.json`, with credentials.
    pub docker_config: Option<PathBuf>,
    /// Credentials of this registry, in place of those.
    pub credentials: Option<RegistryCredentials>,
    /// Asked before the registry, in this order, unless there are `credentials`.
    pub mirrors: Vec<Mirror>,
    /// The registry has to be on the public internet.
    pub public_only: bool,
    /// Bytes of the store's disk that a pull leaves free; 0: it does not look.
    pub keep_free_bytes: u64,
    pub connect_timeout: Duration,
    /// Until an answer begins.
    pub answer_timeout: Duration,
    /// Without a single byte.
    pub stall_timeout: Duration,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self {
            insecure: Vec::new(),
            docker_config: None,
            credentials: None,
            mirrors: Vec::new(),
            public_only: false,
            keep_free_bytes: 0,
            connect_timeout: client::CONNECT_TIMEOUT,
            answer_timeout: client::ANSWER_TIMEOUT,
            stall_timeout: client::STALL_TIMEOUT,
        }
    }
}

/// A user of a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryCredentials {
    pub user: String,
    pub password: String,
}

impl std::fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegistryCredentials(…)")
    }
}

/// Progress of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEvent {
    /// The image is known.
    Resolved {
        /// Of the manifest, `sha256:…`.
        digest: String,
        layers: usize,
        /// Layers to download.
        missing: usize,
        /// Their compressed size.
        bytes: u64,
    },
    /// More bytes of layers arrived, or were there from an earlier pull.
    Downloaded { bytes: u64 },
    /// All is downloaded.
    Unpacking,
    /// One more layer is here, from the lowest up.
    Unpacked,
}

/// Progress of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushEvent {
    Layer {
        number: usize,
        of: usize,
        /// Compressed.
        bytes: u64,
        /// The registry had it already.
        was_there: bool,
    },
}

#[cfg(test)]
mod tests;
