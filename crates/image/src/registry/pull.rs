//! Pulls an image: its manifest, its config, and the layers that the store lacks.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arenite_model::{ErrorCode, ImageName};
use ureq::http::{Method, header};

use super::client::{Access, Client, Payload, is_page};
use super::{PullEvent, Reference, RegistryOptions, download};
use crate::archive::oci::{self, Descriptor, Index, Manifest};
use crate::archive::{LayerSource, MAX_JSON_BYTES, Stack, diffs, install, sha256};
use crate::error::ImageError;
use crate::image::Image;
use crate::store::ImageStore;

/// Maximum number of indexes in one another.
const MAX_INDEXES: usize = 4;
/// After this time, what an interrupted pull left is removed by the next pull.
const KEEP_DOWNLOADS: Duration = Duration::from_secs(7 * 24 * 3600);

/// What to pull.
#[derive(Debug)]
pub struct PullRequest<'a> {
    pub reference: &'a Reference,
    /// The image's name here. None: the reference's, which must not be that of an image that was built here.
    pub name: Option<&'a ImageName>,
    pub options: &'a RegistryOptions,
    /// Ends the pull soon after it is set. What was downloaded stays for the next pull.
    pub cancel: &'a AtomicBool,
}

/// Pulls an image. Blocks on network and disk. Layers that the store has are not downloaded. The store is locked only while
/// layers are unpacked.
///
/// # Errors
/// [`ImageError::Registry`] for what the registry refuses or does wrong. [`ImageError::Cancelled`].
pub fn pull(store: &ImageStore, request: &PullRequest<'_>, progress: &mut dyn FnMut(PullEvent)) -> Result<Image, ImageError> {
    store.remove_downloads(Some(KEEP_DOWNLOADS));
    let reference = request.reference;
    let client = Client::new(reference, Access::Pull, request.options)?;
    let name = name_for(store, request, &client)?;
    let (digest, manifest) = manifest(&client, reference)?;
    let config: oci::Config = document(&client, &manifest.config)?;
    let refuse = |reason: String| client.error(ErrorCode::Unsupported, reason, None);
    config.check_platform().map_err(refuse)?;
    let diffs = diffs(&config, manifest.layers.len()).map_err(refuse)?;
    if let Some(layer) =
        manifest.layers.iter().find(|layer| layer.media_type.contains("foreign") || layer.media_type.contains("encrypted"))
    {
        return Err(refuse(format!("layers of type {} are not supported", layer.media_type)));
    }

    let mut stack = Stack::default();
    let mut missing: Vec<Descriptor> = Vec::new();
    for (layer, diff) in manifest.layers.iter().zip(&diffs) {
        match stack.find(store, diff) {
            Some(digest) => stack.push(digest),
            None if missing.iter().any(|other| other.digest == layer.digest) => {}
            None => missing.push(layer.clone()),
        }
    }
    let bytes = missing.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    progress(PullEvent::Resolved {
        digest: format!("sha256:{digest}"),
        layers: manifest.layers.len(),
        missing: missing.len(),
        bytes,
    });
    let downloads = store.downloads();
    download::all(&client, &missing, &downloads, request.cancel, &mut |bytes| progress(PullEvent::Downloaded { bytes }))?;
    progress(PullEvent::Unpacking);
    let lock = store.lock()?;
    store.sweep(&lock);
    let layers = Downloaded { client: &client, dir: &downloads, layers: &manifest.layers, cancel: request.cancel };
    let source = reference.with_digest(&digest).to_string();
    let installed = install(store, &lock, &[name], config, Some(&source), &layers);
    if let Err(ImageError::Cancelled) = &installed {
        // They are whole, and the next pull unpacks them.
        return Err(ImageError::Cancelled);
    }
    for layer in &missing {
        if let Some(hex) = layer.hex() {
            // What can't be removed now goes with age.
            let _ = std::fs::remove_file(downloads.join(hex));
        }
    }
    let image = installed?.into_iter().next();
    image.ok_or_else(|| client.strange("the image has no name"))
}

fn name_for(store: &ImageStore, request: &PullRequest<'_>, client: &Client<'_>) -> Result<ImageName, ImageError> {
    if let Some(name) = request.name {
        return Ok(name.clone());
    }
    let name = request.reference.name().ok_or_else(|| client.strange("its name is too long for an image here"))?;
    match store.get(&name) {
        Ok(image) if image.source.is_none() => Err(client.error(
            ErrorCode::Conflict,
            format!("image \"{name}\" was built or loaded here, and would be replaced"),
            Some(format!("give the pulled one another name: arenite image pull {} NAME", request.reference)),
        )),
        _ => Ok(name),
    }
}

/// The manifest for this host, and its digest in hexadecimal digits.
fn manifest(client: &Client<'_>, reference: &Reference) -> Result<(String, Manifest), ImageError> {
    let mut version = reference.version().to_owned();
    let mut size = None;
    for _ in 0..MAX_INDEXES {
        let (media_type, bytes) = fetch_manifest(client, &version)?;
        let digest = sha256(&bytes);
        if oci::hex_of(&version).is_some_and(|hex| hex != digest) || size.is_some_and(|size| size != bytes.len() as u64) {
            return Err(lies(client, &version));
        }
        let malformed = |error: serde_json::Error| client.strange(format!("its manifest is malformed: {error}"));
        let kind: Kind = serde_json::from_slice(&bytes).map_err(malformed)?;
        let media_type = kind.media_type.unwrap_or(media_type);
        if media_type != oci::INDEX && media_type != oci::DOCKER_INDEX && kind.manifests.is_none() {
            if kind.config.is_none() {
                let reason = format!("manifests of type {media_type:?} (version {}) are not supported", kind.schema_version);
                return Err(client.error(ErrorCode::Unsupported, reason, None));
            }
            return Ok((digest, serde_json::from_slice(&bytes).map_err(malformed)?));
        }
        let index: Index = serde_json::from_slice(&bytes).map_err(malformed)?;
        let chosen = index.for_this_host().map_err(|reason| client.error(ErrorCode::Unsupported, reason, None))?;
        if chosen.hex().is_none() {
            return Err(client.strange("it names a manifest by something that is not a SHA-256"));
        }
        (version, size) = (chosen.digest.clone(), Some(chosen.size));
    }
    Err(client.strange("its indexes contain each other"))
}

/// What tells manifests and indexes apart.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    #[serde(default)]
    schema_version: u32,
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
    config: Option<serde::de::IgnoredAny>,
}

fn lies(client: &Client<'_>, digest: &str) -> ImageError {
    client.error(
        ErrorCode::InvalidRequest,
        format!("it sends other bytes than those of {digest}"),
        Some("the registry or something between is broken or hostile; pull from another one".to_owned()),
    )
}

fn fetch_manifest(client: &Client<'_>, version: &str) -> Result<(String, Vec<u8>), ImageError> {
    let accepted = [oci::INDEX, oci::MANIFEST, oci::DOCKER_INDEX, oci::DOCKER_MANIFEST].join(", ");
    let url = client.url(&format!("manifests/{version}"));
    let answer = client.call(&Method::GET, &url, &[(header::ACCEPT, accepted)], Payload::Nothing)?;
    if !answer.status().is_success() {
        return Err(client.refusal(answer));
    }
    if is_page(answer.headers()) {
        return Err(client.page(answer.status()));
    }
    let text = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let media_type = text("content-type").unwrap_or_default();
    let stated = text("docker-content-digest");
    let bytes = client.read(answer, MAX_JSON_BYTES)?;
    if let Some(stated) = stated.filter(|stated| oci::hex_of(stated).is_some_and(|hex| hex != sha256(&bytes))) {
        return Err(lies(client, &stated));
    }
    Ok((media_type, bytes))
}

/// A small part in JSON.
fn document<T: serde::de::DeserializeOwned>(client: &Client<'_>, part: &Descriptor) -> Result<T, ImageError> {
    let hex = part.hex().ok_or_else(|| client.strange("it names a part by something that is not a SHA-256"))?;
    let answer = client.call(&Method::GET, &client.url(&format!("blobs/{}", part.digest)), &[], Payload::Nothing)?;
    if !answer.status().is_success() {
        return Err(client.refusal(answer));
    }
    if is_page(answer.headers()) {
        return Err(client.page(answer.status()));
    }
    let bytes = client.read(answer, MAX_JSON_BYTES)?;
    if sha256(&bytes) != hex || bytes.len() as u64 != part.size {
        return Err(lies(client, &part.digest));
    }
    serde_json::from_slice(&bytes).map_err(|error| client.strange(format!("the image's config is malformed: {error}")))
}

/// Layers that were downloaded, and compared with their digests.
struct Downloaded<'a> {
    client: &'a Client<'a>,
    dir: &'a Path,
    layers: &'a [Descriptor],
    cancel: &'a AtomicBool,
}

impl LayerSource for Downloaded<'_> {
    fn damaged(&self, reason: String) -> ImageError {
        if self.cancel.load(Ordering::Relaxed) {
            return ImageError::Cancelled;
        }
        self.client.strange(reason)
    }

    fn open(&self, index: usize) -> Result<Box<dyn Read + '_>, ImageError> {
        let path = self.dir.join(self.layers[index].hex().unwrap_or_default());
        match File::open(&path) {
            Ok(file) => Ok(Box::new(Cancellable { inner: file, cancel: self.cancel })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.client.error(
                ErrorCode::Conflict,
                "a layer was removed while others were downloaded".to_owned(),
                Some("pull again".to_owned()),
            )),
            Err(error) => Err(ImageError::io("could not read", path)(error)),
        }
    }

    fn digest(&self, _: usize) -> Option<&str> {
        None
    }
}

struct Cancellable<'a, R> {
    inner: R,
    cancel: &'a AtomicBool,
}

impl<R: Read> Read for Cancellable<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("the pull was cancelled"));
        }
        self.inner.read(buffer)
    }
}
