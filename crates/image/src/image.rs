//! Images and their configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use arenite_model::ImageName;
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
    pub created_at: Timestamp,
    /// The sum of its layers on disk.
    pub size_bytes: u64,
}

/// One sealed layer.
#[derive(Debug, Clone, Serialize)]
pub struct Layer {
    /// SHA-256 over the digest of the layer below and the step that built this one, 64 hexadecimal digits: it identifies the
    /// whole stack up to here.
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
    /// An absolute path that exists as a directory in the image.
    pub workdir: Option<String>,
    /// A name of the image's `/etc/passwd`.
    pub user: Option<String>,
    pub labels: BTreeMap<String, String>,
}

impl ImageConfig {
    /// The digest of an image with this configuration and top layer. The top layer's digest covers the layers below it.
    pub(crate) fn image_digest(&self, top: &str) -> String {
        let config = serde_json::to_vec(self).expect("a config is plain data");
        FieldDigest::new("image").field("top", top).field("config", config).hex()
    }
}
