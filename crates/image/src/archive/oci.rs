//! The documents of an OCI image layout, as far as images here have their fields.

use std::collections::BTreeMap;

use arenite_model::ImageName;
use serde::{Deserialize, Serialize};

use crate::image::{Image, ImageConfig};

pub(super) const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(super) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(super) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// The annotation with an image's name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// This host's architecture, by its name in Go.
pub(super) const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// Identifies a part by its SHA-256.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: String,
    size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// `digest` is in hexadecimal digits.
    pub(super) fn new(media_type: &str, digest: &str, size: u64) -> Self {
        Self { media_type: media_type.to_owned(), digest: format!("sha256:{digest}"), size, annotations: BTreeMap::new() }
    }

    pub(super) fn named(mut self, name: &ImageName) -> Self {
        self.annotations.insert(REF_NAME.to_owned(), name.to_string());
        self
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Index {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    pub(super) manifests: Vec<Descriptor>,
}

impl Index {
    pub(super) fn new(manifests: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: INDEX.to_owned(), manifests }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    pub(super) config: Descriptor,
    /// Lowest first.
    pub(super) layers: Vec<Descriptor>,
}

impl Manifest {
    pub(super) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: MANIFEST.to_owned(), config, layers }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Config {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    pub(super) architecture: String,
    os: String,
    #[serde(default)]
    config: Settings,
    pub(super) rootfs: RootFileSystem,
    #[serde(default)]
    history: Vec<History>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Settings {
    #[serde(skip_serializing_if = "String::is_empty")]
    user: String,
    /// `NAME=VALUE`.
    env: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    working_dir: String,
    #[serde(deserialize_with = "null_is_empty")]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RootFileSystem {
    #[serde(rename = "type")]
    kind: String,
    /// Digests of the layers' tars without compression, lowest first.
    pub(super) diff_ids: Vec<String>,
}

/// How a layer was built, or a change without a layer.
#[derive(Debug, Serialize, Deserialize)]
struct History {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(default)]
    created_by: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    empty_layer: bool,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Config {
    pub(super) fn new(image: &Image, diff_ids: impl Iterator<Item = String>) -> Self {
        let config = &image.config;
        let history = image.layers.iter().map(|layer| History {
            created: Some(layer.created_at.to_string()),
            created_by: layer.created_by.clone(),
            empty_layer: false,
        });
        Self {
            created: Some(image.created_at.to_string()),
            architecture: ARCHITECTURE.to_owned(),
            os: "linux".to_owned(),
            config: Settings {
                user: config.user.clone().unwrap_or_default(),
                env: config.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
                working_dir: config.workdir.clone().unwrap_or_default(),
                labels: config.labels.clone(),
            },
            rootfs: RootFileSystem { kind: "layers".to_owned(), diff_ids: diff_ids.collect() },
            history: history.collect(),
        }
    }

    /// What made each layer, lowest first.
    pub(super) fn created_by(&self) -> Vec<String> {
        self.history.iter().filter(|step| !step.empty_layer).map(|step| step.created_by.clone()).collect()
    }

    pub(super) fn into_image(self) -> ImageConfig {
        let Settings { user, env, working_dir, labels } = self.config;
        ImageConfig {
            env: env.iter().filter_map(|pair| pair.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
            workdir: Some(working_dir).filter(|dir| !dir.is_empty()),
            user: Some(user).filter(|user| !user.is_empty()),
            labels,
        }
    }
}
