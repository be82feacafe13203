//! Pushes an image: the layers that the registry lacks, the config, and the manifest.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use arenite_model::ImageName;
use ureq::http::{Method, StatusCode, header};

use super::client::{Access, Client, Payload};
use super::{PushEvent, Reference, RegistryOptions};
use crate::archive::oci::{self, Descriptor, Manifest};
use crate::archive::{GuestLayer, HashWriter, pack_compressed, sha256};
use crate::error::ImageError;
use crate::image::Layer;
use crate::store::ImageStore;

/// Pushes an image; returns the digest of its manifest, `sha256:…`. Blocks on network and disk. The same image always gives the
/// same digest. With `guest`, the file of the guest's program, the pushed image has it as its entry point.
///
/// # Errors
/// [`ImageError::Registry`] for what the registry refuses or does wrong. [`ImageError::Cancelled`] after `cancel` is set, once
/// the current layer is sent.
pub fn push(
    store: &ImageStore,
    name: &ImageName,
    guest: Option<&Path>,
    reference: &Reference,
    options: &RegistryOptions,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(PushEvent),
) -> Result<String, ImageError> {
    let mut image = store.get(name)?;
    let client = Client::new(reference, Access::Push, options)?;
    if reference.digest.is_some() {
        return Err(client.strange("an image is pushed under a tag: its digest follows from its content"));
    }
    let guest = guest.map(|program| GuestLayer::new(store, program)).transpose()?;
    if let Some(guest) = &guest {
        guest.add_to(&mut image);
    }
    let of = image.layers.len();
    let mut layers = Vec::new();
    let mut diffs = Vec::new();
    for (index, layer) in image.layers.iter().enumerate() {
        if cancel.load(Ordering::Relaxed) {
            return Err(ImageError::Cancelled);
        }
        let packed = Packed::new(store, layer)?;
        let was_there = has_blob(&client, &packed.descriptor.digest)?;
        if !was_there {
            upload(&client, &packed.descriptor.digest, Payload::File(&packed.file))?;
        }
        progress(PushEvent::Layer { number: index + 1, of, bytes: packed.descriptor.size, was_there });
        diffs.push(packed.diff.clone());
        layers.push(packed.descriptor.clone());
    }
    let config = serde_json::to_vec(&oci::Config::new(&image, diffs.into_iter())).expect("a config is plain data");
    let described = Descriptor::new(oci::CONFIG, &sha256(&config), config.len() as u64);
    if !has_blob(&client, &described.digest)? {
        upload(&client, &described.digest, Payload::Bytes(&config))?;
    }
    let manifest = serde_json::to_vec(&Manifest::new(described, layers)).expect("a manifest is plain data");
    let url = client.url(&format!("manifests/{}", reference.version()));
    let content = [(header::CONTENT_TYPE, oci::MANIFEST.to_owned())];
    let answer = client.call(&Method::PUT, &url, &content, Payload::Bytes(&manifest))?;
    if !answer.status().is_success() {
        return Err(client.refusal(answer));
    }
    Ok(format!("sha256:{}", sha256(&manifest)))
}

/// A layer as a compressed tar, in a file without a name.
struct Packed {
    file: File,
    descriptor: Descriptor,
    /// The digest of the tar, `sha256:…`.
    diff: String,
}

impl Packed {
    fn new(store: &ImageStore, layer: &Layer) -> Result<Self, ImageError> {
        let path = store.downloads().join(format!("push-{}-{}", std::process::id(), layer.digest));
        let at = |error| ImageError::io("could not pack into", &path)(error);
        let opened = OpenOptions::new().create_new(true).read(true).write(true).mode(0o600).open(&path);
        let file = opened.map_err(at)?;
        // It is gone with its descriptor, whatever happens.
        std::fs::remove_file(&path).map_err(at)?;
        let mut out = HashWriter::new(std::io::BufWriter::with_capacity(1 << 20, &file));
        let diff = pack_compressed(&layer.dir, &mut out).map_err(at)?;
        let (mut buffered, digest, size) = out.finish();
        buffered.flush().map_err(at)?;
        drop(buffered);
        Ok(Self { descriptor: Descriptor::new(oci::LAYER_GZIP, &digest, size), diff: format!("sha256:{diff}"), file })
    }
}

fn has_blob(client: &Client<'_>, digest: &str) -> Result<bool, ImageError> {
    let answer = client.call(&Method::HEAD, &client.url(&format!("blobs/{digest}")), &[], Payload::Nothing)?;
    match answer.status() {
        status if status.is_success() => Ok(true),
        StatusCode::NOT_FOUND => Ok(false),
        _ => Err(client.refusal(answer)),
    }
}

fn upload(client: &Client<'_>, digest: &str, payload: Payload<'_>) -> Result<(), ImageError> {
    let begun = client.call(&Method::POST, &client.url("blobs/uploads/"), &[], Payload::Bytes(b""))?;
    if begun.status() != StatusCode::ACCEPTED {
        return Err(client.refusal(begun));
    }
    let location = begun.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or_else(|| client.strange("it names no address for the upload"))?;
    let url = client.own_url(location)?;
    let separator = if url.contains('?') { '&' } else { '?' };
    let content = [(header::CONTENT_TYPE, "application/octet-stream".to_owned())];
    let url = format!("{url}{separator}digest={}", digest.replace(':', "%3A"));
    let answer = client.call(&Method::PUT, &url, &content, payload)?;
    if answer.status() == StatusCode::CREATED { Ok(()) } else { Err(client.refusal(answer)) }
}
