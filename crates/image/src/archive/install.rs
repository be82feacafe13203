//! Adds an image that comes from elsewhere to the store: an archive's or a registry's.
//!
//! A layer's digest here covers its content alone, so that images share it whatever is below it. A layer with directories that
//! are not in its tar looks like those below it: its digest covers them too. Neither is ever the digest of a build's step: an
//! archive could otherwise replace what a later build of that step gives.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use arenite_model::ImageName;
use sha2::{Digest, Sha256};

use super::compression::plain;
use super::oci::{Config, hex_of};
use super::unpack::unpack;
use super::{HashReader, MAX_LAYER_BYTES};
use crate::digest::FieldDigest;
use crate::error::ImageError;
use crate::image::{Image, ImageConfig};
use crate::store::{ImageStore, MAX_LAYERS, OpenLayer, Origin, SharedLayers, StoreLock};

/// Where an image's layers come from.
pub(crate) trait LayerSource {
    /// The error of an image that is not as it should be.
    fn damaged(&self, reason: String) -> ImageError;

    /// Opens a layer: a tar, perhaps compressed. Called for layers that can't be taken from the store.
    fn open(&self, index: usize) -> Result<Box<dyn Read + '_>, ImageError>;

    /// The SHA-256 of what is opened, if it was not compared yet, in hexadecimal digits.
    fn digest(&self, index: usize) -> Option<&str>;
}

/// The layers of an image from the lowest up, as far as they are known.
#[derive(Default)]
pub(crate) struct Stack {
    digests: Vec<String>,
}

impl Stack {
    /// The layer with this tar, if the store has it.
    pub(crate) fn find(&self, store: &ImageStore, diff: &str) -> Option<String> {
        let [content, on_these] = self.digests_of(diff);
        // The kernel refuses a directory that is twice in one stack.
        let content = Some(content).filter(|digest| !self.digests.contains(digest));
        content.into_iter().chain([on_these]).find(|digest| store.layer_record(digest).is_some())
    }

    pub(crate) fn push(&mut self, digest: String) {
        self.digests.push(digest);
    }

    /// The digests that a layer may have: for its content alone, and on top of these layers.
    fn digests_of(&self, diff: &str) -> [String; 2] {
        let content = FieldDigest::new("archive layer").field("rules", "1").field("tar", diff).hex();
        let below = self.digests.last().map(String::as_str);
        [content, FieldDigest::step(below, "archive").field("tar", diff).hex()]
    }
}

/// The digests of an image's layers without compression, lowest first, in hexadecimal digits.
pub(crate) fn diffs(config: &Config, layers: usize) -> Result<Vec<String>, String> {
    let diffs = &config.rootfs.diff_ids;
    if layers == 0 || layers > MAX_LAYERS || layers != diffs.len() {
        return Err(format!("it has {layers} layers and {} digests of layers; at most {MAX_LAYERS} are possible", diffs.len()));
    }
    let hex = |diff: &String| hex_of(diff).map(str::to_owned).ok_or_else(|| format!("{diff:?} is not a SHA-256"));
    diffs.iter().map(hex).collect()
}

/// An image with layers that are unpacked, and not yet in the store.
pub(crate) struct UnpackedImage {
    layers: Vec<UnpackedLayer>,
    config: ImageConfig,
}

struct UnpackedLayer {
    digest: String,
    created_by: String,
    /// None: the store has it.
    open: Option<OpenLayer>,
}

/// Unpacks the layers that the store lacks. Needs no lock. Layers that `shared` lacks are compared with the source's bytes, even
/// if the store has them. Calls `progress` after each layer.
pub(crate) fn unpack_layers(
    store: &ImageStore,
    config: Config,
    layers: &dyn LayerSource,
    shared: Option<&SharedLayers>,
    progress: &mut dyn FnMut(),
) -> Result<UnpackedImage, ImageError> {
    let diffs = diffs(&config, config.rootfs.diff_ids.len()).map_err(|reason| layers.damaged(reason))?;
    let mut created_by = config.created_by().into_iter();
    let config = config.into_image().map_err(|reason| layers.damaged(reason))?;
    let mut image = UnpackedImage { layers: Vec::new(), config };
    let mut stack = Stack::default();
    for (index, diff) in diffs.iter().enumerate() {
        let created_by = created_by.next().unwrap_or_else(|| "an archive".to_owned());
        let unpacked = match stack.find(store, diff) {
            Some(digest) => {
                let is_shared = shared.is_none_or(|shared| shared.contains(&digest));
                let compared = if is_shared { Ok(()) } else { compare_layer(layers, index, diff) };
                compared.map(|()| UnpackedLayer { digest, created_by, open: None })
            }
            None => image.unpack(store, layers, (index, diff), &stack).map(|(digest, open)| UnpackedLayer {
                digest,
                created_by,
                open: Some(open),
            }),
        };
        match unpacked {
            Ok(layer) => {
                stack.push(layer.digest.clone());
                image.layers.push(layer);
            }
            Err(error) => {
                image.abandon(store);
                return Err(error);
            }
        }
        progress();
    }
    Ok(image)
}

impl UnpackedImage {
    fn unpack(
        &self,
        store: &ImageStore,
        layers: &dyn LayerSource,
        (index, diff): (usize, &str),
        stack: &Stack,
    ) -> Result<(String, OpenLayer), ImageError> {
        let open = store.new_layer()?;
        let below = |layer: &UnpackedLayer| match &layer.open {
            Some(open) => open.files(),
            None => store.layer_files(&layer.digest),
        };
        let lower: Vec<PathBuf> = self.layers.iter().map(below).collect();
        match unpack_layer(layers, index, diff, &lower, &open.files()) {
            Ok(depends_on_lower) => {
                let [content, on_these] = stack.digests_of(diff);
                let is_taken = stack.digests.contains(&content);
                Ok((if depends_on_lower || is_taken { on_these } else { content }, open))
            }
            Err(error) => {
                store.abandon(&open);
                Err(error)
            }
        }
    }

    pub(crate) fn abandon(&self, store: &ImageStore) {
        self.layers.iter().filter_map(|layer| layer.open.as_ref()).for_each(|open| store.abandon(open));
    }

    /// Seals the layers, and gives the image its names. None: a layer that the store had was removed meanwhile.
    pub(crate) fn commit(
        mut self,
        store: &ImageStore,
        lock: &StoreLock,
        names: &[ImageName],
        origin: Origin<'_>,
    ) -> Result<Option<Vec<Image>>, ImageError> {
        let is_there = |layer: &UnpackedLayer| layer.open.is_some() || store.layer_record(&layer.digest).is_some();
        if !self.layers.iter().all(is_there) {
            self.abandon(store);
            return Ok(None);
        }
        for at in 0..self.layers.len() {
            let layer = &mut self.layers[at];
            let Some(open) = layer.open.take() else { continue };
            if let Err(error) = store.seal(lock, &open, &layer.digest, &layer.created_by) {
                store.abandon(&open);
                self.abandon(store);
                return Err(error);
            }
        }
        let digests: Vec<String> = self.layers.into_iter().map(|layer| layer.digest).collect();
        let digest = self.config.image_digest(digests.last().map_or("", String::as_str));
        let publish = |name| store.publish_from(lock, name, digest.clone(), digests.clone(), self.config.clone(), origin);
        names.iter().map(publish).collect::<Result<_, _>>().map(Some)
    }
}

/// Compares a layer that the store has with the source's bytes, which prove that the source may give it.
fn compare_layer(layers: &dyn LayerSource, index: usize, diff: &str) -> Result<(), ImageError> {
    let failed = |error: io::Error| layers.damaged(format!("could not read layer {}: {error}", index + 1));
    let mut compressed = layers.open(index)?;
    let tar = plain(&mut compressed).map_err(failed)?;
    let mut tar = HashReader::new(Bounded::new(tar, MAX_LAYER_BYTES));
    io::copy(&mut tar, &mut io::sink()).map_err(failed)?;
    match tar.finish() == diff {
        true => Ok(()),
        false => Err(layers.damaged(format!("layer {} does not have its SHA-256", index + 1))),
    }
}

/// Unpacks a layer into an empty directory, and compares its digests. Returns whether it depends on the layers below.
pub(super) fn unpack_layer(
    layers: &dyn LayerSource,
    index: usize,
    diff: &str,
    lower: &[PathBuf],
    files: &Path,
) -> Result<bool, ImageError> {
    let number = index + 1;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ImageError::io("could not unpack into", files)(error),
        _ => layers.damaged(format!("could not unpack layer {number}: {error}")),
    };
    let mut compressed = HashReader::new(layers.open(index)?);
    let (depends_on_lower, tar) = plain(&mut compressed).and_then(|tar| unpack_hashed(tar, lower, files)).map_err(failed)?;
    io::copy(&mut compressed, &mut io::sink()).map_err(failed)?;
    let compressed = compressed.finish();
    if tar != diff || layers.digest(index).is_some_and(|digest| digest != compressed) {
        return Err(layers.damaged(format!("layer {number} does not have its SHA-256: it was changed, or copied in part")));
    }
    Ok(depends_on_lower)
}

/// Unpacks a tar; returns whether it depends on the layers below, and the digest of all its bytes.
fn unpack_hashed(tar: impl Read, lower: &[PathBuf], files: &Path) -> io::Result<(bool, String)> {
    let mut tar = HashReader::new(Bounded::new(tar, MAX_LAYER_BYTES));
    let depends_on_lower = unpack(&mut tar, lower, files)?;
    // The end of a tar is padded.
    io::copy(&mut tar, &mut io::sink())?;
    Ok((depends_on_lower, tar.finish()))
}

/// A tar that fails when it is too long: a few compressed bytes may stand for any number.
pub(super) struct Bounded<R> {
    inner: R,
    most: u64,
    left: u64,
}

impl<R> Bounded<R> {
    pub(super) fn new(inner: R, most: u64) -> Self {
        Self { inner, most, left: most }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(n as u64).ok_or_else(|| {
            let reason = format!("it has more than {} bytes without compression", self.most);
            io::Error::new(io::ErrorKind::FileTooLarge, reason)
        })?;
        Ok(n)
    }
}

/// The SHA-256 of bytes, in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
