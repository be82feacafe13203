//! Archives of snapshots: an image layout in a tar, as those of images. Its only image has the snapshot's own layer as the last
//! one, above those of the image that its sandbox had. Annotations of its manifest describe the snapshot.
//!
//! Layers are not compressed. So the sizes of all parts are known before the first byte, and an archive is sent without a copy on
//! disk. And an archive can't unpack to more than it has, apart from holes in files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use arenite_model::{ImageName, TenantId};
use jiff::Timestamp;

use super::install::{LayerSource, diffs, sha256, unpack_layer, unpack_layers};
use super::oci::{self, Descriptor, Index};
use super::pack::{pack_exact, padding, plain_header};
use super::read::{ArchiveReader, Part};
use super::{BLOBS, BLOCK, HashWriter, MAX_LAYER_BYTES};
use crate::error::ImageError;
use crate::image::{Image, ImageConfig, Layer};
use crate::store::{ImageStore, Origin};

/// The start of the name of each image that came with a snapshot. No registry has such a name, so nothing is ever pulled in its
/// place.
pub const SNAPSHOT_IMAGE: &str = "localhost/snapshot-";

/// The annotation that an archive of a snapshot has: the version of its other annotations.
const VERSION_KEY: &str = "dev.arenite.snapshot.version";
const VERSION: &str = "1";
/// First bytes of what gzip and zstd compressed.
const COMPRESSED: [&[u8]; 2] = [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd]];

/// An archive that can be written: its layers were read once.
#[derive(Debug)]
pub struct SnapshotArchive {
    parts: Vec<WrittenPart>,
}

#[derive(Debug)]
enum WrittenPart {
    Bytes { name: String, content: Vec<u8> },
    Layer { digest: String, dir: PathBuf, size: u64 },
}

impl SnapshotArchive {
    /// Reads all layers, the lowest first, which must not change until the archive is written. Ends early when `cancel` is set.
    ///
    /// # Errors
    /// [`ImageError::Unpackable`] if a layer has what an archive can't have: a device, or a name that means a removal; or is too
    /// large.
    pub fn plan(
        name: &ImageName,
        config: &ImageConfig,
        layers: &[PathBuf],
        annotations: BTreeMap<String, String>,
        cancel: &AtomicBool,
    ) -> Result<Self, ImageError> {
        Self::read(name, config, layers, annotations, cancel).map_err(|error| match error.raw_os_error() {
            Some(_) => ImageError::io("could not read the layers of", name.as_str())(error),
            None => ImageError::Unpackable { reason: error.to_string() },
        })
    }

    fn read(
        name: &ImageName,
        config: &ImageConfig,
        layers: &[PathBuf],
        mut annotations: BTreeMap<String, String>,
        cancel: &AtomicBool,
    ) -> io::Result<Self> {
        annotations.insert(VERSION_KEY.to_owned(), VERSION.to_owned());
        let (mut parts, mut described, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
        for dir in layers {
            let mut out = HashWriter::new(Checked { left: MAX_LAYER_BYTES, cancel });
            pack_exact(dir, &mut out)?;
            let (_, digest, size) = out.finish();
            described.push(Descriptor::new(oci::LAYER, &digest, size));
            // Two layers may have the same content.
            if names.insert(digest.clone()) {
                parts.push(WrittenPart::Layer { digest, dir: dir.clone(), size });
            }
        }
        let image = bare_image(name, config, layers);
        let diff_ids = described.iter().map(|layer| layer.digest.clone());
        let mut json = |media_type: &str, content: Vec<u8>| {
            let digest = sha256(&content);
            let descriptor = Descriptor::new(media_type, &digest, content.len() as u64);
            parts.push(WrittenPart::Bytes { name: format!("{BLOBS}{digest}"), content });
            descriptor
        };
        let config = json(oci::CONFIG, serde_json::to_vec(&oci::Config::new(&image, diff_ids))?);
        let mut manifest = oci::Manifest::new(config, described);
        manifest.annotations = annotations;
        let manifest = json(oci::MANIFEST, serde_json::to_vec(&manifest)?).named(name);
        let index = serde_json::to_vec(&Index::new(vec![manifest]))?;
        parts.push(WrittenPart::Bytes { name: "index.json".to_owned(), content: index });
        parts.push(WrittenPart::Bytes { name: "oci-layout".to_owned(), content: oci::LAYOUT.into() });
        Ok(Self { parts })
    }

    /// The number of bytes that [`Self::write`] writes.
    pub fn bytes(&self) -> u64 {
        let part = |size: u64| BLOCK + size + padding(size) as u64;
        let sizes = self.parts.iter().map(|written| match written {
            WrittenPart::Bytes { content, .. } => part(content.len() as u64),
            WrittenPart::Layer { size, .. } => part(*size),
        });
        sizes.sum::<u64>() + 2 * BLOCK
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for part in &self.parts {
            let size = match part {
                WrittenPart::Bytes { name, content } => {
                    out.write_all(plain_header(name, content.len() as u64).as_bytes())?;
                    out.write_all(content)?;
                    content.len() as u64
                }
                WrittenPart::Layer { digest, dir, size } => {
                    out.write_all(plain_header(&format!("{BLOBS}{digest}"), *size).as_bytes())?;
                    let mut hashed = HashWriter::new(&mut *out);
                    pack_exact(dir, &mut hashed)?;
                    let (_, now, written) = hashed.finish();
                    if (&now, written) != (digest, *size) {
                        return Err(io::Error::other("a layer changed while it was read"));
                    }
                    *size
                }
            };
            out.write_all(&vec![0; padding(size)])?;
        }
        out.write_all(&[0; 2 * BLOCK as usize])
    }
}

/// What the config of an archive describes. It says nothing of this host and of when its layers were made, so that archives of
/// one image have the same.
fn bare_image(name: &ImageName, config: &ImageConfig, layers: &[PathBuf]) -> Image {
    let created_at = Timestamp::UNIX_EPOCH;
    let layer = |dir: &PathBuf| {
        let created_by = "an image".to_owned();
        Layer { digest: String::new(), dir: dir.clone(), bytes: 0, created_by, created_at }
    };
    Image {
        name: name.clone(),
        digest: String::new(),
        layers: layers.iter().map(layer).collect(),
        config: config.clone(),
        source: None,
        owner: None,
        created_at,
        size_bytes: 0,
    }
}

/// Counts what is written, up to a limit, and stops when it is cancelled.
struct Checked<'a> {
    left: u64,
    cancel: &'a AtomicBool,
}

impl Write for Checked<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("it was cancelled"));
        }
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| {
            let reason = format!("a layer has more than {MAX_LAYER_BYTES} bytes");
            io::Error::new(io::ErrorKind::FileTooLarge, reason)
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An archive of a snapshot that is being read. It is hostile.
#[derive(Debug)]
pub struct SnapshotReader {
    reader: ArchiveReader,
    annotations: BTreeMap<String, String>,
    config: oci::Config,
    /// Lowest first; the last one is the snapshot's own.
    layers: Vec<Part>,
    /// Of the layers, in hexadecimal digits.
    diffs: Vec<String>,
}

impl SnapshotReader {
    /// # Errors
    /// [`ImageError::Archive`] for anything but an archive of a snapshot for this host's architecture.
    pub fn open(file: File) -> Result<Self, ImageError> {
        let reader = ArchiveReader::of_tar(Path::new("snapshot"), file)?;
        let damaged = |reason: &str| reader.damaged(reason);
        let index: Index = reader.json(&Part { name: "index.json".to_owned(), digest: None })?;
        let [entry] = &index.manifests[..] else { return Err(damaged("it has not exactly one image")) };
        let manifest: oci::Manifest = reader.json(&reader.blob(entry)?)?;
        match manifest.annotations.get(VERSION_KEY).map(String::as_str) {
            Some(VERSION) => {}
            None => return Err(damaged("it is not the archive of a snapshot; an operator loads images: arenite image load")),
            Some(other) => return Err(reader.damaged(format!("it has the version {other:?}, which this server can't read"))),
        }
        let config: oci::Config = reader.json(&reader.blob(&manifest.config)?)?;
        config.check_platform().map_err(|reason| reader.damaged(reason))?;
        let diffs = diffs(&config, manifest.layers.len()).map_err(|reason| reader.damaged(reason))?;
        if diffs.len() < 2 {
            return Err(damaged("it has no layer below the snapshot's own"));
        }
        let mut layers = Vec::new();
        for (layer, diff) in manifest.layers.iter().zip(&diffs) {
            let part = reader.blob(layer)?;
            let mut start = Vec::new();
            let content = reader.part(&part.name)?.0;
            content.take(4).read_to_end(&mut start).map_err(ImageError::io("could not read", "snapshot"))?;
            // Few compressed bytes may stand for any number.
            if part.digest.as_ref() != Some(diff) || COMPRESSED.iter().any(|magic| start.starts_with(magic)) {
                return Err(damaged("its layers are compressed; import it as it was exported"));
            }
            layers.push(part);
        }
        Ok(Self { reader, annotations: manifest.annotations, config, layers, diffs })
    }

    pub fn annotations(&self) -> &BTreeMap<String, String> {
        &self.annotations
    }

    /// Adds the image below the snapshot to the store, for this owner. Its name follows from its content.
    ///
    /// # Errors
    /// [`ImageError::Archive`] for a damaged layer, or [`ImageError::Io`]. Nothing stays then.
    pub fn install_image(&self, store: &ImageStore, owner: Option<&TenantId>) -> Result<Image, ImageError> {
        let mut config = self.config.clone();
        config.rootfs.diff_ids.pop();
        let text = serde_json::to_vec(&config).map_err(|error| self.reader.damaged(error.to_string()))?;
        let name: ImageName = format!("{SNAPSHOT_IMAGE}{}", &sha256(&text)[..16])
            .parse()
            .map_err(|error| self.reader.damaged(format!("no name for its image: {error}")))?;
        let shared = store.shared_layers(owner)?;
        let unpacked = unpack_layers(store, config, self, Some(&shared), &mut || {})?;
        let lock = store.lock()?;
        let installed = unpacked.commit(store, &lock, &[name], Origin { source: None, owner })?;
        let image = installed.and_then(|images| images.into_iter().next());
        image.ok_or_else(|| self.reader.damaged("a layer in the store was removed meanwhile; try again"))
    }

    /// Unpacks the snapshot's own layer into an empty directory, above these layers, the lowest first.
    pub fn unpack_own(&self, lower: &[PathBuf], files: &Path) -> Result<(), ImageError> {
        let last = self.layers.len() - 1;
        unpack_layer(self, last, &self.diffs[last], lower, files).map(drop)
    }
}

impl LayerSource for SnapshotReader {
    fn damaged(&self, reason: String) -> ImageError {
        self.reader.damaged(reason)
    }

    fn open(&self, index: usize) -> Result<Box<dyn Read + '_>, ImageError> {
        Ok(self.reader.part(&self.layers[index].name)?.0)
    }

    fn digest(&self, index: usize) -> Option<&str> {
        self.layers[index].digest.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

    use super::*;

    fn plan(layers: &[PathBuf], cancel: bool) -> Result<SnapshotArchive, ImageError> {
        let config = ImageConfig { workdir: Some("/w".to_owned()), ..ImageConfig::default() };
        let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        SnapshotArchive::plan(&"snapshot:x".parse().unwrap(), &config, layers, annotations, &AtomicBool::new(cancel))
    }

    fn touch(path: &Path, tv_sec: i64, tv_nsec: i64) {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    /// An image's layer, and a snapshot's with all that one may have.
    fn layers(top: &Path) -> [PathBuf; 2] {
        let [low, own] = ["low", "own"].map(|name| top.join(name));
        fs::create_dir_all(low.join("d/gone")).unwrap();
        fs::create_dir_all(own.join("d/opaque")).unwrap();
        fs::write(own.join("d/file"), "text").unwrap();
        fs::hard_link(own.join("d/file"), own.join("second")).unwrap();
        let sparse = File::create(own.join("sparse")).unwrap();
        sparse.set_len(8 << 20).unwrap();
        std::os::unix::fs::FileExt::write_at(&sparse, b"middle", 4 << 20).unwrap();
        rustix::fs::setxattr(own.join("d/opaque"), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(own.join("d/file"), "user.note", b"a\nb", XattrFlags::empty()).unwrap();
        rustix::fs::mknodat(CWD, own.join("d/gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        touch(&own.join("d/file"), 5, 123_456_789);
        touch(&own.join("sparse"), -7, 1);
        touch(&own.join("d"), 1_000_000_000, 999_999_999);
        [low, own]
    }

    fn written(archive: &SnapshotArchive, top: &Path) -> File {
        let mut file = File::options().create(true).truncate(true).read(true).write(true).open(top.join("tar")).unwrap();
        archive.write(&mut file).unwrap();
        assert_eq!(file.metadata().unwrap().len(), archive.bytes());
        file
    }

    #[test]
    fn a_snapshot_survives_the_way_into_an_archive_and_out_of_it() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        let file = written(&plan(&layers(top), false).unwrap(), top);
        assert!(file.metadata().unwrap().len() < 1 << 20, "holes are left out");
        let reader = SnapshotReader::open(file).unwrap();
        assert_eq!(reader.annotations()["a"], "b");
        let store = ImageStore::open(top.join("store")).unwrap();
        let tenant: TenantId = "acme".parse().unwrap();
        let image = reader.install_image(&store, Some(&tenant)).unwrap();
        assert!(image.name.as_str().starts_with(SNAPSHOT_IMAGE) && store.has(Some(&tenant), &image.name));
        assert_eq!((image.layers.len(), image.config.workdir.as_deref()), (1, Some("/w")));
        assert_eq!(reader.install_image(&store, Some(&tenant)).unwrap().name, image.name);
        let own = top.join("unpacked");
        fs::create_dir(&own).unwrap();
        reader.unpack_own(&[image.layers[0].dir.clone()], &own).unwrap();
        let about = |name: &str| fs::symlink_metadata(own.join(name)).unwrap();
        assert_eq!((about("d/file").mtime(), about("d/file").mtime_nsec(), about("d/file").nlink()), (5, 123_456_789, 2));
        assert_eq!((about("sparse").mtime(), about("sparse").mtime_nsec(), about("sparse").len()), (-7, 1, 8 << 20));
        assert_eq!((about("d").mtime(), about("d").mtime_nsec()), (1_000_000_000, 999_999_999));
        assert!(about("sparse").blocks() < 1024);
        assert_eq!(&fs::read(own.join("sparse")).unwrap()[(4 << 20) - 1..][..8], b"\0middle\0");
        assert_eq!((about("d/gone").rdev(), fs::read_to_string(own.join("second")).unwrap()), (0, "text".to_owned()));
        let mut value = [0; 8];
        for (name, attribute, length) in [("d/opaque", "user.overlay.opaque", 1), ("second", "user.note", 3)] {
            assert_eq!(rustix::fs::getxattr(own.join(name), attribute, &mut value), Ok(length));
        }
    }

    #[test]
    fn what_an_archive_can_not_have_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let layers = layers(scratch.path());
        assert!(plan(&layers, true).is_err(), "it was cancelled");
        let archive = plan(&layers, false).unwrap();
        fs::write(layers[1].join("late"), "x").unwrap();
        assert!(archive.write(&mut io::sink()).is_err(), "it changed meanwhile");
        fs::write(layers[1].join(".wh.d"), "x").unwrap();
        let refused = plan(&layers, false).unwrap_err();
        assert!(matches!(&refused, ImageError::Unpackable { reason } if reason.contains(".wh.d")), "{refused}");
        // What another tool writes is no snapshot.
        let mut bare = plan(&layers[..1], false).unwrap();
        assert!(SnapshotReader::open(written(&bare, scratch.path())).is_err(), "it has one layer");
        bare.parts.clear();
        assert!(SnapshotReader::open(written(&bare, scratch.path())).is_err(), "it is empty");
    }
}
