//! Images and their configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use arenite_model::{ImageName, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::digest::FieldDigest;

/// A local image: layers and the configuration of its sandboxes.
#[derive(Debug, Clone, Serialize)]
pub struct Image {
    pub name: ImageName,
    /// SHA-256 over its top layer's digest and its config, 64 hexadecimal digits.
    pub digest: String,
    /// Lowest first, at least one.
    pub layers: Vec<Layer>,
    pub config: ImageConfig,
    /// The registry's reference with the digest of the manifest, if it was pulled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The tenant that alone may use it; none: all may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<TenantId>,
    pub created_at: Timestamp,
    /// The sum of its layers on disk.
    pub size_bytes: u64,
}

/// One sealed layer.
#[derive(Debug, Clone, Serialize)]
pub struct Layer {
    /// 64 hexadecimal digits. Of a build: SHA-256 over the digest of the layer below and the step that built this one, so it
    /// identifies the whole stack up to here. Of an archive or a registry: over the layer's content.
    pub digest: String,
    /// Its files, in overlayfs's format: character devices 0/0 are whiteouts, `user.overlay.opaque` marks opaque directories.
    /// Owners are the image's own ids (0, 1000), so that it is mounted through an id map.
    pub dir: PathBuf,
    /// Blocks on disk, in bytes; a hard-linked file counts once.
    pub bytes: u64,
    /// The instruction that built it.
    pub created_by: String,
    pub created_at: Timestamp,
}

/// The initial configuration of an image's sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    pub env: BTreeMap<String, String>,
    /// An absolute path. A build checks that it is a directory of the image; other images may lack it.
    pub workdir: Option<String>,
    /// A name of the image's `/etc/passwd`; of foreign images also `user:group` and numbers, as in Docker.
    pub user: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// The start of the image's own command, which runs only for a create that asks for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// The rest of that command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// Such as `8080/tcp`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub exposed_ports: BTreeSet<String>,
    /// Directories that Docker would keep outside the image. A sandbox has one disk, so they are recorded only.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub volumes: BTreeSet<String>,
    /// Recorded only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Recorded only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<HealthConfig>,
    /// The shell of later builds' RUN; empty for `/bin/sh -c`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shell: Vec<String>,
}

/// A HEALTHCHECK, with the names and units that Docker's images have. Times are in nanoseconds; 0 is Docker's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HealthConfig {
    /// `["NONE"]`, `["CMD", …]`, or `["CMD-SHELL", "…"]`.
    pub test: Vec<String>,
    pub interval: u64,
    pub timeout: u64,
    pub start_period: u64,
    pub start_interval: u64,
    pub retries: u32,
}

impl ImageConfig {
    /// The digest of an image with this configuration and top layer. The top layer's digest covers the layers below it.
    pub(crate) fn image_digest(&self, top: &str) -> String {
        let config = serde_json::to_vec(self).expect("a config is plain data");
        FieldDigest::new("image").field("top", top).field("config", config).hex()
    }
}
