//! Images as one file: an OCI image layout in a tar, which other tools read too.
//!
//! ```text
//! blobs/sha256/<digest>     the layers as compressed tars, configs, and manifests
//! index.json                the images: name and manifest
//! oci-layout                the format's version
//! manifest.json             the same images for `docker load`
//! ```
//!
//! Every blob is named by the SHA-256 of its bytes, which a load compares before a layer is sealed.

mod compression;
mod context;
pub(crate) mod entries;
mod guest;
mod install;
pub(crate) mod oci;
mod pack;
mod read;
mod snapshot;
mod unpack;

pub(crate) use compression::plain;
pub use context::{BuildContext, ContextLimits};
pub(crate) use guest::GuestLayer;
pub(crate) use install::{LayerSource, Stack, diffs, sha256, unpack_layers};
pub(crate) use pack::pack;
pub(crate) use read::MAX_JSON_BYTES;
pub use read::load;
pub use snapshot::{SNAPSHOT_IMAGE, SnapshotArchive, SnapshotReader};

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use arenite_model::ImageName;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use crate::error::ImageError;
use crate::image::{Image, ImageConfig, Layer};
use crate::store::ImageStore;

use oci::{Descriptor, Index};

/// Maximum size of a layer's tar without compression, in bytes.
pub(crate) const MAX_LAYER_BYTES: u64 = 64 << 30;
/// Size of a tar's blocks, and of the empty ones at its end.
const BLOCK: u64 = 512;
const BLOBS: &str = "blobs/sha256/";

/// Writes images into a new archive, with the layers that they share only once. Replaces the file when the archive is complete.
/// With `guest`, the file of the guest's program, each image gets it as its entry point.
///
/// # Errors
/// [`ImageError::Busy`] during a build or a removal.
pub fn save(store: &ImageStore, names: &[ImageName], guest: Option<&Path>, file: &Path) -> Result<Vec<Image>, ImageError> {
    let _lock = store.try_lock()?.ok_or(ImageError::Busy)?;
    let mut images = names.iter().map(|name| store.get(name)).collect::<Result<Vec<_>, _>>()?;
    let guest = guest.map(|program| GuestLayer::new(store, program)).transpose()?;
    if let Some(guest) = &guest {
        images.iter_mut().for_each(|image| guest.add_to(image));
    }
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written =
        ArchiveWriter::create(&partial).and_then(|writer| writer.images(&images, None)).and_then(|()| fs::rename(&partial, file));
    if let Err(error) = written {
        // It may not exist; the error that counts is the first one.
        let _ = fs::remove_file(&partial);
        return Err(ImageError::io("could not write", file)(error));
    }
    Ok(images)
}

/// Writes the layers of an image as an archive for `docker load`, which gets the image by this reference. Its configuration is
/// left out, and nothing is compressed: the archive is for a container engine of this host.
///
/// # Errors
/// [`ImageError::Io`], also if the image was removed meanwhile.
pub fn export_layers(image: &Image, reference: &str, file: &Path) -> Result<(), ImageError> {
    let bare = Image { config: ImageConfig::default(), ..image.clone() };
    let written = ArchiveWriter::create(file).and_then(|mut writer| {
        writer.is_compressed = false;
        writer.images(&[bare], Some(reference))
    });
    written.map_err(ImageError::io("could not write", file))
}

/// An archive that is being written. A part's header has its digest, so it is written after the part, into the space before it.
struct ArchiveWriter {
    file: File,
    /// The digests of the parts that are written.
    parts: BTreeSet<String>,
    /// Layers are compressed.
    is_compressed: bool,
}

impl ArchiveWriter {
    fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).truncate(true).read(true).write(true).open(path)?;
        Ok(Self { file, parts: BTreeSet::new(), is_compressed: true })
    }

    /// `reference` replaces the images' names for Docker.
    fn images(mut self, images: &[Image], reference: Option<&str>) -> io::Result<()> {
        // By the digests of layers, with the digests of their tars.
        let mut layers = BTreeMap::new();
        let mut manifests = Vec::new();
        let mut for_docker = Vec::new();
        for image in images {
            for layer in &image.layers {
                if !layers.contains_key(&layer.digest) {
                    layers.insert(layer.digest.clone(), self.layer(layer)?);
                }
            }
            let of_image: Vec<_> = image.layers.iter().filter_map(|layer| layers.get(&layer.digest)).collect();
            let config = self.json(oci::CONFIG, &oci::Config::new(image, of_image.iter().map(|(_, diff)| diff.clone())))?;
            let layers: Vec<_> = of_image.into_iter().map(|(descriptor, _)| descriptor.clone()).collect();
            for_docker.push(oci::DockerArchived::new(reference.unwrap_or(image.name.as_str()), &config, &layers));
            let manifest = self.json(oci::MANIFEST, &oci::Manifest::new(config, layers))?;
            manifests.push(manifest.named(&image.name));
        }
        let index = serde_json::to_vec(&Index::new(manifests))?;
        self.part(&mut |out| out.write_all(&index), |_| "index.json".to_owned())?;
        self.part(&mut |out| out.write_all(oci::LAYOUT.as_bytes()), |_| "oci-layout".to_owned())?;
        let for_docker = serde_json::to_vec(&for_docker)?;
        self.part(&mut |out| out.write_all(&for_docker), |_| "manifest.json".to_owned())?;
        self.file.write_all(&[0; 2 * BLOCK as usize])?;
        self.file.sync_all()
    }

    /// Writes a layer; returns its description and the digest of its tar.
    fn layer(&mut self, layer: &Layer) -> io::Result<(Descriptor, String)> {
        let mut diff = String::new();
        let is_compressed = self.is_compressed;
        let (digest, size) = self.blob(&mut |out| {
            if is_compressed {
                diff = pack_compressed(&layer.dir, out)?;
                return Ok(());
            }
            pack(&layer.dir, out)
        })?;
        let (media_type, diff) = if is_compressed { (oci::LAYER_GZIP, &diff) } else { (oci::LAYER, &digest) };
        Ok((Descriptor::new(media_type, &digest, size), format!("sha256:{diff}")))
    }

    fn json(&mut self, media_type: &str, value: &impl serde::Serialize) -> io::Result<Descriptor> {
        let json = serde_json::to_vec(value)?;
        let (digest, size) = self.blob(&mut |out| out.write_all(&json))?;
        Ok(Descriptor::new(media_type, &digest, size))
    }

    fn blob(&mut self, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<(String, u64)> {
        let at = self.file.stream_position()?;
        let (digest, size) = self.part(write, |digest| format!("{BLOBS}{digest}"))?;
        if !self.parts.insert(digest.clone()) {
            // Two layers with the same content.
            self.file.seek(SeekFrom::Start(at))?;
            self.file.set_len(at)?;
        }
        Ok((digest, size))
    }

    fn part(
        &mut self,
        write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
        name: impl FnOnce(&str) -> String,
    ) -> io::Result<(String, u64)> {
        let at = self.file.stream_position()?;
        self.file.seek(SeekFrom::Start(at + BLOCK))?;
        let mut out = HashWriter::new(io::BufWriter::with_capacity(1 << 20, &self.file));
        write(&mut out)?;
        let (mut buffered, digest, size) = out.finish();
        buffered.write_all(&vec![0; pack::padding(size)])?;
        buffered.flush()?;
        drop(buffered);
        let end = self.file.stream_position()?;
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(pack::plain_header(&name(&digest), size).as_bytes())?;
        self.file.seek(SeekFrom::Start(end))?;
        Ok((digest, size))
    }
}

/// Writes a layer as a tar with gzip; returns the digest of the tar.
pub(crate) fn pack_compressed(files: &Path, out: &mut dyn Write) -> io::Result<String> {
    let mut tar = HashWriter::new(GzEncoder::new(out, Compression::default()));
    pack::pack(files, &mut tar)?;
    let (compressed, hash, _) = tar.finish();
    compressed.finish()?.flush()?;
    Ok(hash)
}

pub(crate) struct HashWriter<W> {
    inner: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> HashWriter<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), bytes: 0 }
    }

    /// The inner writer, the digest in hexadecimal digits, and the number of bytes.
    pub(crate) fn finish(self) -> (W, String, u64) {
        (self.inner, hex::encode(self.hash.finalize()), self.bytes)
    }
}

impl<W: Write> Write for HashWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

struct HashReader<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> HashReader<R> {
    fn new(inner: R) -> Self {
        Self { inner, hash: Sha256::new() }
    }

    fn finish(self) -> String {
        hex::encode(self.hash.finalize())
    }
}

impl<R: Read> Read for HashReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.hash.update(&buffer[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests;
