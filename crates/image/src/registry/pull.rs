//! Pulls an image: its manifest, its config, and the layers that the store lacks.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arenite_model::{ErrorCode, ImageName, TenantId};
use ureq::http::{Method, header};

use super::client::{Access, Client, Payload, is_page};
use super::{PullEvent, Reference, RegistryOptions, download};
use crate::archive::oci::{self, Descriptor, Index, Manifest};
use crate::archive::{LayerSource, MAX_JSON_BYTES, Stack, diffs, sha256, unpack_layers};
use crate::error::ImageError;
use crate::image::Image;
use crate::store::{ImageStore, Origin, SharedLayers};

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
    /// The tenant that the image will belong to; none: to all.
    pub owner: Option<&'a TenantId>,
    pub options: &'a RegistryOptions,
    /// Ends the pull soon after it is set. What was downloaded stays for the next pull.
    pub cancel: &'a AtomicBool,
}

/// Pulls an image. Blocks on network and disk. Layers that the store has are not downloaded, unless only images of other tenants
/// have them. The store is locked only to add the image. Mirrors come first.
///
/// # Errors
/// [`ImageError::Registry`] for what the registry refuses or does wrong. [`ImageError::Cancelled`].
pub fn pull(store: &ImageStore, request: &PullRequest<'_>, progress: &mut dyn FnMut(PullEvent)) -> Result<Image, ImageError> {
    store.remove_downloads(Some(KEEP_DOWNLOADS));
    // A registry that the caller signs in to is asked itself.
    let is_signed_in = request.options.credentials.is_some();
    let mirrors = request.options.mirrors.iter().filter(|_| !is_signed_in);
    for mirrored in mirrors.filter_map(|mirror| mirror.mirrored(request.reference)) {
        match pull_at(store, request, &mirrored, progress) {
            Err(error @ ImageError::Registry { .. }) => {
                tracing::info!(mirror = %mirrored, %error, "a mirror does not give an image");
            }
            pulled => return pulled,
        }
    }
    pull_at(store, request, request.reference, progress)
}

/// Pulls what `place` names: the reference, or the same in a mirror.
fn pull_at(
    store: &ImageStore,
    request: &PullRequest<'_>,
    place: &Reference,
    progress: &mut dyn FnMut(PullEvent),
) -> Result<Image, ImageError> {
    let client = Client::new(place, Access::Pull, request.options)?;
    let name = name_for(store, request, &client)?;
    let (digest, manifest) = manifest(&client, place)?;
    let config: oci::Config = document(&client, &manifest.config)?;
    let refuse = |reason: String| client.error(ErrorCode::Unsupported, reason, None);
    config.check_platform().map_err(refuse)?;
    let diffs = diffs(&config, manifest.layers.len()).map_err(refuse)?;
    if let Some(layer) =
        manifest.layers.iter().find(|layer| layer.media_type.contains("foreign") || layer.media_type.contains("encrypted"))
    {
        return Err(refuse(format!("layers of type {} are not supported", layer.media_type)));
    }
    let source = request.reference.with_digest(&digest).to_string();
    let found = Found { store, request, client: &client, manifest: &manifest, diffs: &diffs, name, digest, source };
    // A second time if a layer was removed while others were downloaded.
    let pulled = found.pull(config.clone(), progress)?;
    if let Some(image) = pulled {
        return Ok(image);
    }
    found.pull(config, progress)?.ok_or_else(|| {
        let reason = "layers were removed while others were downloaded".to_owned();
        client.error(ErrorCode::Conflict, reason, Some("pull again".to_owned()))
    })
}

/// An image that the registry has.
struct Found<'a> {
    store: &'a ImageStore,
    request: &'a PullRequest<'a>,
    client: &'a Client<'a>,
    manifest: &'a Manifest,
    diffs: &'a [String],
    name: ImageName,
    digest: String,
    source: String,
}

impl Found<'_> {
    /// None: a layer that the store had is gone.
    fn pull(&self, config: oci::Config, progress: &mut dyn FnMut(PullEvent)) -> Result<Option<Image>, ImageError> {
        let Self { store, request, client, manifest, .. } = self;
        let owner = request.owner;
        let shared = store.shared_layers(owner)?;
        let missing = self.missing(&shared);
        let bytes = missing.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
        let digest = format!("sha256:{}", self.digest);
        progress(PullEvent::Resolved { digest, layers: manifest.layers.len(), missing: missing.len(), bytes });
        self.check_space(bytes)?;
        let dir = store.downloads();
        download::all(client, &missing, (&dir, owner), request.cancel, &mut |bytes| progress(PullEvent::Downloaded { bytes }))?;
        progress(PullEvent::Unpacking);
        let layers = Downloaded { found: self, dir: &dir };
        let unpacked = unpack_layers(store, config, &layers, Some(&shared), &mut || progress(PullEvent::Unpacked));
        let committed = unpacked.and_then(|unpacked| {
            let lock = store.lock()?;
            if request.cancel.load(Ordering::Relaxed) {
                unpacked.abandon(store);
                return Err(ImageError::Cancelled);
            }
            store.sweep(&lock);
            unpacked.commit(store, &lock, std::slice::from_ref(&self.name), Origin { source: Some(&self.source), owner })
        });
        // What is whole stays for the next pull.
        if !matches!(committed, Err(ImageError::Cancelled) | Ok(None)) {
            for hex in missing.iter().filter_map(Descriptor::hex) {
                // What can't be removed now goes with age.
                let _ = std::fs::remove_file(download::file_of(&dir, owner, hex));
            }
        }
        let Some(images) = committed? else { return Ok(None) };
        images.into_iter().next().map(Some).ok_or_else(|| client.strange("the image has no name"))
    }

    /// The layers to download, each once.
    fn missing(&self, shared: &SharedLayers) -> Vec<Descriptor> {
        let mut stack = Stack::default();
        let mut missing: Vec<Descriptor> = Vec::new();
        for (layer, diff) in self.manifest.layers.iter().zip(self.diffs) {
            let found = stack.find(self.store, diff);
            let is_shared = found.as_ref().is_some_and(|digest| shared.contains(digest));
            if let Some(digest) = found {
                stack.push(digest);
            }
            if !is_shared && missing.iter().all(|other| other.digest != layer.digest) {
                missing.push(layer.clone());
            }
        }
        missing
    }

    /// Refuses an image for which the disk has no space.
    fn check_space(&self, bytes: u64) -> Result<(), ImageError> {
        let least = self.request.options.keep_free_bytes;
        let free = free_bytes(self.store.dir()).unwrap_or(u64::MAX);
        if least == 0 || free >= bytes.saturating_add(least) {
            return Ok(());
        }
        let reason = format!(
            "it needs {} MiB of disk, and {} MiB are free, of which {} MiB stay so",
            bytes >> 20,
            free >> 20,
            least >> 20
        );
        let hint = "remove images that are not needed: arenite image rm, arenite image prune".to_owned();
        Err(self.client.error(ErrorCode::Exhausted, reason, Some(hint)))
    }
}

fn free_bytes(dir: &Path) -> io::Result<u64> {
    let about = rustix::fs::statvfs(dir)?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

fn name_for(store: &ImageStore, request: &PullRequest<'_>, client: &Client<'_>) -> Result<ImageName, ImageError> {
    if let Some(name) = request.name {
        return Ok(name.clone());
    }
    let name = request.reference.name().ok_or_else(|| client.strange("its name is too long for an image here"))?;
    match store.get(&name) {
        // A tenant's own image would hide it from that tenant.
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
    found: &'a Found<'a>,
    dir: &'a Path,
}

impl LayerSource for Downloaded<'_> {
    fn damaged(&self, reason: String) -> ImageError {
        if self.found.request.cancel.load(Ordering::Relaxed) {
            return ImageError::Cancelled;
        }
        self.found.client.strange(reason)
    }

    fn open(&self, index: usize) -> Result<Box<dyn Read + '_>, ImageError> {
        let Found { request, client, manifest, store, .. } = self.found;
        let path = download::file_of(self.dir, request.owner, manifest.layers[index].hex().unwrap_or_default());
        let least = request.options.keep_free_bytes;
        match File::open(&path) {
            Ok(file) => Ok(Box::new(Watched { inner: file, cancel: request.cancel, least, dir: store.dir() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(client.error(
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

/// A layer that is read while the pull goes on and the disk has space.
struct Watched<'a, R> {
    inner: R,
    cancel: &'a AtomicBool,
    /// Bytes of the disk that stay free.
    least: u64,
    dir: &'a Path,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("the pull was cancelled"));
        }
        // A few compressed bytes may unpack to any number.
        if self.least > 0 && free_bytes(self.dir).is_ok_and(|free| free < self.least) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inner.read(buffer)
    }
}
