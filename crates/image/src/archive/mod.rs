//! Images as one file: an OCI image layout in a tar, which other tools read too.
//!
//! ```text
//! blobs/sha256/<digest>     the layers as compressed tars, configs, and manifests
//! index.json                the images: name and manifest
//! oci-layout                the format's version
//! ```
//!
//! Every part is named by the SHA-256 of its bytes, which a load compares before a layer is sealed. A loaded layer's own digest
//! covers its content and the layers below. It never is the digest of a build's step: an archive could otherwise replace what a
//! later build of that step gives.

mod oci;
mod pack;
mod unpack;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use arenite_model::ImageName;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use crate::digest::{FieldDigest, is_digest};
use crate::error::ImageError;
use crate::image::{Image, Layer};
use crate::store::{ImageStore, MAX_LAYERS, StoreLock};

use oci::{Descriptor, Index};

/// Maximum size of an index, a manifest, or a config, in bytes.
const MAX_JSON_BYTES: u64 = 4 << 20;
/// Maximum number of parts of an archive.
const MAX_PARTS: usize = 100_000;
/// Size of a tar's blocks, and of the empty ones at its end.
const BLOCK: u64 = 512;
const BLOBS: &str = "blobs/sha256/";

/// Writes images into a new archive, with the layers that they share only once. Replaces the file when the archive is complete.
///
/// # Errors
/// [`ImageError::Busy`] during a build or a removal.
pub fn save(store: &ImageStore, names: &[ImageName], file: &Path) -> Result<Vec<Image>, ImageError> {
    let _lock = store.try_lock()?.ok_or(ImageError::Busy)?;
    let images = names.iter().map(|name| store.get(name)).collect::<Result<Vec<_>, _>>()?;
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written =
        ArchiveWriter::create(&partial).and_then(|writer| writer.images(&images)).and_then(|()| fs::rename(&partial, file));
    if let Err(error) = written {
        // It may not exist; the error that counts is the first one.
        let _ = fs::remove_file(&partial);
        return Err(ImageError::io("could not write", file)(error));
    }
    Ok(images)
}

/// Adds an archive's images to the store, each in place of an older one with its name. Layers that exist stay as they are.
///
/// # Errors
/// [`ImageError::Busy`] during a build or a removal. [`ImageError::Archive`] for a malformed or damaged file: images before the
/// damaged one are loaded then.
pub fn load(store: &ImageStore, file: &Path) -> Result<Vec<Image>, ImageError> {
    let lock = store.try_lock()?.ok_or(ImageError::Busy)?;
    store.sweep(&lock);
    let archive = ArchiveReader::open(file)?;
    let index: Index = archive.parse("index.json", &archive.bytes("index.json")?)?;
    let mut images = Vec::new();
    for manifest in &index.manifests {
        images.push(archive.image(store, &lock, manifest)?);
    }
    if images.is_empty() {
        return Err(archive.damaged("it has no images"));
    }
    Ok(images)
}

/// An archive that is being written. A part's header has its digest, so it is written after the part, into the space before it.
struct ArchiveWriter {
    file: File,
    /// The digests of the parts that are written.
    parts: BTreeSet<String>,
}

impl ArchiveWriter {
    fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().create(true).truncate(true).read(true).write(true).open(path)?, parts: BTreeSet::new() })
    }

    fn images(mut self, images: &[Image]) -> io::Result<()> {
        // By the digests of layers, with the digests of their tars.
        let mut layers = BTreeMap::new();
        let mut manifests = Vec::new();
        for image in images {
            for layer in &image.layers {
                if !layers.contains_key(&layer.digest) {
                    layers.insert(layer.digest.clone(), self.layer(layer)?);
                }
            }
            let of_image: Vec<_> = image.layers.iter().filter_map(|layer| layers.get(&layer.digest)).collect();
            let config = self.json(oci::CONFIG, &oci::Config::new(image, of_image.iter().map(|(_, diff)| diff.clone())))?;
            let layers = of_image.into_iter().map(|(descriptor, _)| descriptor.clone()).collect();
            let manifest = self.json(oci::MANIFEST, &oci::Manifest::new(config, layers))?;
            manifests.push(manifest.named(&image.name));
        }
        let index = serde_json::to_vec(&Index::new(manifests))?;
        self.part(&mut |out| out.write_all(&index), |_| "index.json".to_owned())?;
        self.part(&mut |out| out.write_all(oci::LAYOUT.as_bytes()), |_| "oci-layout".to_owned())?;
        self.file.write_all(&[0; 2 * BLOCK as usize])?;
        self.file.sync_all()
    }

    /// Writes a layer; returns its description and the digest of its tar.
    fn layer(&mut self, layer: &Layer) -> io::Result<(Descriptor, String)> {
        let mut diff = String::new();
        let (digest, size) = self.blob(&mut |out| {
            let mut tar = HashWriter::new(GzEncoder::new(out, Compression::default()));
            pack::pack(&layer.dir, &mut tar)?;
            let (compressed, hash, _) = tar.finish();
            compressed.finish()?.flush()?;
            diff = hash;
            Ok(())
        })?;
        Ok((Descriptor::new(oci::LAYER_GZIP, &digest, size), format!("sha256:{diff}")))
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

/// An archive that is being read.
struct ArchiveReader {
    path: PathBuf,
    file: File,
    /// Parts by name: position and size.
    parts: BTreeMap<String, (u64, u64)>,
}

impl ArchiveReader {
    fn open(path: &Path) -> Result<Self, ImageError> {
        let file = File::open(path).map_err(ImageError::io("could not open", path))?;
        let mut reader = Self { path: path.to_owned(), file, parts: BTreeMap::new() };
        let found = reader.find_parts();
        reader.parts = found.map_err(|error| reader.damaged(format!("it is not an image archive: {error}")))?;
        Ok(reader)
    }

    fn find_parts(&self) -> io::Result<BTreeMap<String, (u64, u64)>> {
        let mut parts = BTreeMap::new();
        let mut archive = tar::Archive::new(&self.file);
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            if entry.header().entry_type().is_file() {
                let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
                parts.insert(name, (entry.raw_file_position(), entry.size()));
            }
            if parts.len() > MAX_PARTS {
                return Err(io::Error::other(format!("it has more than {MAX_PARTS} parts")));
            }
        }
        Ok(parts)
    }

    fn damaged(&self, reason: impl Into<String>) -> ImageError {
        ImageError::Archive { path: self.path.clone(), reason: reason.into() }
    }

    fn part(&self, name: &str) -> Result<(impl Read + use<'_>, u64), ImageError> {
        let (position, size) = *self.parts.get(name).ok_or_else(|| self.damaged(format!("it has no {name}")))?;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(position)).map_err(ImageError::io("could not read", &self.path))?;
        Ok((BufReader::with_capacity(1 << 20, file.take(size)), size))
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let (mut part, size) = self.part(name)?;
        if size > MAX_JSON_BYTES {
            return Err(self.damaged(format!("{name} has more than {MAX_JSON_BYTES} bytes")));
        }
        let mut bytes = Vec::new();
        part.read_to_end(&mut bytes).map_err(ImageError::io("could not read", &self.path))?;
        Ok(bytes)
    }

    fn parse<T: serde::de::DeserializeOwned>(&self, name: &str, bytes: &[u8]) -> Result<T, ImageError> {
        serde_json::from_slice(bytes).map_err(|error| self.damaged(format!("{name} is malformed: {error}")))
    }

    /// The hexadecimal digits of a description's digest.
    fn digest<'a>(&self, digest: &'a str) -> Result<&'a str, ImageError> {
        let hex = digest.strip_prefix("sha256:").filter(|hex| is_digest(hex));
        hex.ok_or_else(|| self.damaged(format!("{digest:?} is not a SHA-256")))
    }

    /// A part in JSON with a known digest.
    fn described<T: serde::de::DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, ImageError> {
        let digest = self.digest(&descriptor.digest)?;
        let name = format!("{BLOBS}{digest}");
        let bytes = self.bytes(&name)?;
        if hex::encode(Sha256::digest(&bytes)) != digest {
            return Err(self.damaged(format!("{name} does not have this SHA-256")));
        }
        self.parse(&name, &bytes)
    }

    fn image(&self, store: &ImageStore, lock: &StoreLock, entry: &Descriptor) -> Result<Image, ImageError> {
        let name = entry.name().ok_or_else(|| self.damaged("an image in it has no name"))?;
        let name: ImageName = name.parse().map_err(|error| self.damaged(format!("image {name:?}: {error}")))?;
        let manifest: oci::Manifest = self.described(entry)?;
        let config: oci::Config = self.described(&manifest.config)?;
        if config.architecture != oci::ARCHITECTURE {
            let theirs = config.architecture;
            return Err(self.damaged(format!("image {name} is for {theirs}, and this host is {}", oci::ARCHITECTURE)));
        }
        let diffs = &config.rootfs.diff_ids;
        if manifest.layers.is_empty() || manifest.layers.len() > MAX_LAYERS || manifest.layers.len() != diffs.len() {
            let (layers, digests) = (manifest.layers.len(), diffs.len());
            return Err(self.damaged(format!("image {name} has {layers} layers and {digests} digests of layers")));
        }
        let created_by = config.created_by();
        let mut layers: Vec<String> = Vec::new();
        for (index, (layer, diff)) in manifest.layers.iter().zip(diffs).enumerate() {
            let diff = self.digest(diff)?;
            let digest = FieldDigest::step(layers.last().map(String::as_str), "archive").field("tar", diff).hex();
            if store.layer_record(&digest).is_none() {
                let lower: Vec<PathBuf> = layers.iter().map(|digest| store.layer_files(digest)).collect();
                let open = store.new_layer(lock)?;
                let text = created_by.get(index).map_or("an archive", String::as_str);
                let unpacked = self.unpack(layer, diff, &lower, &open.files());
                let sealed = unpacked.and_then(|()| store.seal(lock, &open, &digest, text));
                if sealed.is_err() {
                    store.abandon(&open);
                }
                sealed?;
            }
            layers.push(digest);
        }
        let config = config.into_image();
        let digest = config.image_digest(layers.last().map_or("", String::as_str));
        store.publish(lock, &name, digest, layers, config)
    }

    /// Unpacks a layer, and compares its two digests.
    fn unpack(&self, descriptor: &Descriptor, diff: &str, lower: &[PathBuf], files: &Path) -> Result<(), ImageError> {
        let digest = self.digest(&descriptor.digest)?;
        let name = format!("{BLOBS}{digest}");
        let mut part = HashReader::new(self.part(&name)?.0);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ImageError::io("could not unpack into", files)(error),
            _ => self.damaged(format!("could not unpack {name}: {error}")),
        };
        let tar = match descriptor.media_type.as_str() {
            oci::LAYER_GZIP => unpack_hashed(MultiGzDecoder::new(&mut part), lower, files),
            oci::LAYER => unpack_hashed(&mut part, lower, files),
            other => return Err(self.damaged(format!("layers of type {other} are not supported"))),
        };
        let tar = tar.map_err(failed)?;
        io::copy(&mut part, &mut io::sink()).map_err(failed)?;
        if part.finish() != digest || tar != diff {
            return Err(self.damaged(format!("{name} does not have its SHA-256: the file was changed or copied in part")));
        }
        Ok(())
    }
}

/// Unpacks a tar; returns the digest of all its bytes.
fn unpack_hashed(tar: impl Read, lower: &[PathBuf], files: &Path) -> io::Result<String> {
    let mut tar = HashReader::new(tar);
    unpack::unpack(&mut tar, lower, files)?;
    // The end of a tar is padded.
    io::copy(&mut tar, &mut io::sink())?;
    Ok(tar.finish())
}

struct HashWriter<W> {
    inner: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> HashWriter<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), bytes: 0 }
    }

    /// The inner writer, the digest in hexadecimal digits, and the number of bytes.
    fn finish(self) -> (W, String, u64) {
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
