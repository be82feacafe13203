//! The documents of OCI and Docker images, as far as images here have their fields.

use std::collections::{BTreeMap, BTreeSet};

use arenite_model::ImageName;
use serde::{Deserialize, Serialize};

use crate::digest::is_digest;
use crate::image::{HealthConfig, Image, ImageConfig};

pub(crate) const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// The annotation with an image's name, or with its tag alone.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The annotation with an image's whole name, which containerd and Docker write.
const FULL_NAME: &str = "io.containerd.image.name";
/// This host's architecture, by its name in Go.
pub(crate) const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// Identifies a part by its SHA-256.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_default")]
    annotations: BTreeMap<String, String>,
    /// Of an index's manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    platform: Option<Platform>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    variant: Option<String>,
}

impl Descriptor {
    /// `digest` is in hexadecimal digits.
    pub(crate) fn new(media_type: &str, digest: &str, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: format!("sha256:{digest}"),
            size,
            annotations: BTreeMap::new(),
            platform: None,
        }
    }

    pub(crate) fn named(mut self, name: &ImageName) -> Self {
        self.annotations.insert(REF_NAME.to_owned(), name.to_string());
        self
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.annotations.get(FULL_NAME).or_else(|| self.annotations.get(REF_NAME)).map(String::as_str)
    }

    /// 64 hexadecimal digits; none if it is not a SHA-256.
    pub(crate) fn hex(&self) -> Option<&str> {
        hex_of(&self.digest)
    }

    pub(crate) fn is_index(&self) -> bool {
        matches!(self.media_type.as_str(), INDEX | DOCKER_INDEX)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    pub(crate) manifests: Vec<Descriptor>,
}

/// The hexadecimal digits of `sha256:…`.
pub(crate) fn hex_of(digest: &str) -> Option<&str> {
    digest.strip_prefix("sha256:").filter(|hex| is_digest(hex))
}

impl Index {
    /// The manifest for this host. The error lists the platforms that there are.
    pub(crate) fn for_this_host(&self) -> Result<&Descriptor, String> {
        let is_ours = |p: &Platform| p.os == "linux" && p.architecture == ARCHITECTURE;
        let ours = || self.manifests.iter().filter(|manifest| manifest.platform.as_ref().is_some_and(is_ours));
        // A variant, such as x86-64-v3, may need a newer processor.
        let plain = |manifest: &&Descriptor| manifest.platform.as_ref().is_some_and(|platform| platform.variant.is_none());
        if let Some(found) = ours().find(plain).or_else(|| ours().next()) {
            return Ok(found);
        }
        match &self.manifests[..] {
            [only] if only.platform.is_none() => Ok(only),
            others => {
                let shown = |m: &Descriptor| {
                    let platform = m.platform.as_ref().filter(|p| p.os != "unknown")?;
                    Some(format!("{}/{}", platform.os, platform.architecture))
                };
                let known: BTreeSet<_> = others.iter().filter_map(shown).take(16).collect();
                Err(format!("it is not for linux/{ARCHITECTURE}, but for: {}", Vec::from_iter(known).join(", ")))
            }
        }
    }

    pub(crate) fn new(manifests: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: INDEX.to_owned(), manifests }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    pub(crate) config: Descriptor,
    /// Lowest first.
    pub(crate) layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_default")]
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Manifest {
    pub(crate) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: MANIFEST.to_owned(), config, layers, annotations: BTreeMap::new() }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Config {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    pub(crate) architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default, deserialize_with = "null_is_default")]
    config: Settings,
    pub(crate) rootfs: RootFileSystem,
    #[serde(default, deserialize_with = "null_is_default")]
    history: Vec<History>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Settings {
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_is_default")]
    user: String,
    /// `NAME=VALUE`.
    #[serde(deserialize_with = "null_is_default")]
    env: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_is_default")]
    working_dir: String,
    #[serde(deserialize_with = "null_is_default")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    entrypoint: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    cmd: Vec<String>,
    /// The values are empty objects.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_default")]
    exposed_ports: BTreeMap<String, serde_json::Value>,
    /// The same.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_default")]
    volumes: BTreeMap<String, serde_json::Value>,
    /// A [`HealthConfig`], unless it is malformed.
    #[serde(skip_serializing_if = "Option::is_none")]
    healthcheck: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_is_default")]
    stop_signal: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    shell: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RootFileSystem {
    #[serde(rename = "type")]
    kind: String,
    /// Digests of the layers' tars without compression, lowest first.
    pub(crate) diff_ids: Vec<String>,
}

impl DockerArchived {
    pub(super) fn new(text: &str, config: &Descriptor, layers: &[Descriptor]) -> Self {
        let part = |descriptor: &Descriptor| format!("blobs/{}", descriptor.digest.replace(':', "/"));
        // Docker takes no digest here, and no name without a tag.
        let is_tagged = text.rsplit('/').next().is_some_and(|last| last.contains(':'));
        let tag = (!text.contains('@')).then(|| if is_tagged { text.to_owned() } else { format!("{text}:latest") });
        Self { config: part(config), repo_tags: Vec::from_iter(tag), layers: layers.iter().map(part).collect() }
    }
}

/// How a layer was built, or a change without a layer.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct History {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(default)]
    created_by: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    empty_layer: bool,
}

/// Docker writes null for what is empty.
fn null_is_default<'de, T: Default + Deserialize<'de>, D: serde::Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// An image in the `manifest.json` of `docker save`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DockerArchived {
    /// The name of a part.
    pub(crate) config: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) repo_tags: Vec<String>,
    /// Names of parts, lowest first.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) layers: Vec<String>,
}

impl Config {
    pub(crate) fn new(image: &Image, diff_ids: impl Iterator<Item = String>) -> Self {
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
                entrypoint: config.entrypoint.clone(),
                cmd: config.cmd.clone(),
                exposed_ports: config.exposed_ports.iter().map(|port| (port.clone(), serde_json::json!({}))).collect(),
                volumes: config.volumes.iter().map(|dir| (dir.clone(), serde_json::json!({}))).collect(),
                healthcheck: config.healthcheck.as_ref().and_then(|health| serde_json::to_value(health).ok()),
                stop_signal: config.stop_signal.clone().unwrap_or_default(),
                shell: config.shell.clone(),
            },
            rootfs: RootFileSystem { kind: "layers".to_owned(), diff_ids: diff_ids.collect() },
            history: history.collect(),
        }
    }

    /// What made each layer, lowest first.
    pub(crate) fn created_by(&self) -> Vec<String> {
        self.history.iter().filter(|step| !step.empty_layer).map(|step| step.created_by.clone()).collect()
    }

    /// Why it is no image for this host.
    pub(crate) fn check_platform(&self) -> Result<(), String> {
        let os = if self.os.is_empty() { "linux" } else { &self.os };
        if os == "linux" && self.architecture == ARCHITECTURE {
            return Ok(());
        }
        Err(format!("it is for {os}/{}, and this host is linux/{ARCHITECTURE}", self.architecture))
    }

    /// The configuration, if its size is within the bounds of a build's.
    pub(crate) fn into_image(self) -> Result<ImageConfig, String> {
        let Settings { user, env, working_dir, labels, entrypoint, cmd, exposed_ports, volumes, healthcheck, stop_signal, shell } =
            self.config;
        let pairs = |texts: &[String]| texts.iter().map(|text| text.len() + 1).sum::<usize>();
        let of_labels = labels.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let healthcheck = healthcheck.and_then(|health| serde_json::from_value::<HealthConfig>(health).ok());
        let sizes = [
            pairs(&env),
            of_labels,
            pairs(&entrypoint) + pairs(&cmd) + pairs(&shell),
            exposed_ports.keys().chain(volumes.keys()).map(String::len).sum(),
            healthcheck.as_ref().map_or(0, |health| pairs(&health.test)),
        ];
        let is_long = user.len() > 256 || working_dir.len() > 4096 || stop_signal.len() > 256;
        if sizes.iter().any(|size| *size > MAX_SETTING_BYTES) || is_long {
            return Err(format!("its environment, labels, or command have more than {MAX_SETTING_BYTES} bytes"));
        }
        Ok(ImageConfig {
            env: env.iter().filter_map(|pair| pair.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
            workdir: Some(working_dir).filter(|dir| dir.starts_with('/')),
            user: Some(user).filter(|user| !user.is_empty()),
            labels,
            entrypoint,
            cmd,
            exposed_ports: exposed_ports.into_keys().collect(),
            volumes: volumes.into_keys().collect(),
            stop_signal: Some(stop_signal).filter(|signal| !signal.is_empty()),
            healthcheck,
            shell,
        })
    }
}

/// Maximum size of the environment, of the labels, and of the command, in bytes.
const MAX_SETTING_BYTES: usize = 128 << 10;
