//! Reads archives of images: `docker save`'s, with a `manifest.json`, and OCI image layouts, in a tar or as a directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use arenite_model::ImageName;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use tar::EntryType;

use super::BLOBS;
use super::install::{LayerSource, diffs, sha256, unpack_layers};
use super::oci::{self, Descriptor, DockerArchived, Index};
use crate::digest::is_digest;
use crate::error::ImageError;
use crate::image::Image;
use crate::store::{ImageStore, Origin, StoreLock};

/// Maximum size of an index, a manifest, or a config, in bytes.
pub(crate) const MAX_JSON_BYTES: u64 = 4 << 20;
/// Maximum number of parts of an archive.
const MAX_PARTS: usize = 100_000;
/// Maximum number of images of an archive.
const MAX_IMAGES: usize = 1000;
/// Maximum number of indexes in one another, and of links from one part to another.
const MAX_STEPS: usize = 8;

/// Adds an archive's images to the store, each in place of an older one with its name. Layers that exist stay as they are.
/// `name`: for an archive with one image, in place of the names that it has.
///
/// # Errors
/// [`ImageError::Busy`] during a build or a removal. [`ImageError::Archive`] for a malformed or damaged file: images before the
/// damaged one are loaded then.
pub fn load(store: &ImageStore, path: &Path, name: Option<&ImageName>) -> Result<Vec<Image>, ImageError> {
    let lock = store.try_lock()?.ok_or(ImageError::Busy)?;
    store.sweep(&lock);
    let archive = ArchiveReader::open(path)?;
    let archived = archive.images()?;
    if archived.is_empty() || archived.len() > MAX_IMAGES {
        return Err(archive.damaged(format!("it has {} images", archived.len())));
    }
    if name.is_some() && archived.len() > 1 {
        return Err(archive.damaged(format!("it has {} images, so one name is not enough", archived.len())));
    }
    let mut images = Vec::new();
    for archived in archived {
        images.extend(archive.install(store, &lock, archived, name)?);
    }
    Ok(images)
}

/// An image of an archive, as the archive describes it.
struct Archived {
    names: Vec<String>,
    config: Part,
    /// Lowest first.
    layers: Vec<Part>,
}

/// A part of an archive.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    /// In hexadecimal digits, if it is known.
    pub(super) digest: Option<String>,
}

/// An archive that is being read.
#[derive(Debug)]
pub(super) struct ArchiveReader {
    path: PathBuf,
    parts: Parts,
}

#[derive(Debug)]
enum Parts {
    Tar { file: File, known: BTreeMap<String, TarPart> },
    Directory(OwnedFd),
}

#[derive(Debug)]
enum TarPart {
    /// Position and size.
    File(u64, u64),
    /// Another part: older versions of Docker store a layer once and link to it.
    Link(String),
}

impl ArchiveReader {
    fn open(path: &Path) -> Result<Self, ImageError> {
        let file = File::open(path).map_err(ImageError::io("could not open", path))?;
        let about = file.metadata().map_err(ImageError::io("could not open", path))?;
        if about.is_dir() {
            return Ok(Self { path: path.to_owned(), parts: Parts::Directory(file.into()) });
        }
        Self::of_tar(path, file)
    }

    /// `path` is for messages.
    pub(super) fn of_tar(path: &Path, file: File) -> Result<Self, ImageError> {
        let found = find_parts(&file);
        let mut reader = Self { path: path.to_owned(), parts: Parts::Tar { file, known: BTreeMap::new() } };
        let found = found.map_err(|error| reader.damaged(format!("it is not an image archive: {error}")))?;
        if let Parts::Tar { known, .. } = &mut reader.parts {
            *known = found;
        }
        Ok(reader)
    }

    pub(super) fn damaged(&self, reason: impl Into<String>) -> ImageError {
        ImageError::Archive { path: self.path.clone(), reason: reason.into() }
    }

    /// Opens a part; returns it and its size.
    pub(super) fn part(&self, name: &str) -> Result<(Box<dyn Read + '_>, u64), ImageError> {
        let missing = || self.damaged(format!("it has no {name}"));
        let failed = |error: io::Error| ImageError::io("could not read", &self.path)(error);
        let (mut file, position, size) = match &self.parts {
            Parts::Directory(dir) => {
                // Its links can't lead out of it. NONBLOCK: a FIFO has no writer.
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let opened = rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve);
                let file = opened.map(File::from).map_err(|_| missing())?;
                let about = file.metadata().map_err(failed)?;
                if !about.is_file() {
                    return Err(missing());
                }
                (file, 0, about.len())
            }
            Parts::Tar { file, known } => {
                let mut name = normal(name);
                let mut steps = 0;
                let (position, size) = loop {
                    match known.get(&name).ok_or_else(missing)? {
                        TarPart::File(position, size) => break (*position, *size),
                        TarPart::Link(target) => name.clone_from(target),
                    }
                    steps += 1;
                    if steps > MAX_STEPS {
                        return Err(missing());
                    }
                };
                (file.try_clone().map_err(failed)?, position, size)
            }
        };
        file.seek(SeekFrom::Start(position)).map_err(failed)?;
        Ok((Box::new(BufReader::with_capacity(1 << 20, file.take(size))), size))
    }

    fn has(&self, name: &str) -> bool {
        self.part(name).is_ok()
    }

    /// A part in JSON, with its digest if it is known.
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, part: &Part) -> Result<T, ImageError> {
        let name = &part.name;
        let (mut content, size) = self.part(name)?;
        if size > MAX_JSON_BYTES {
            return Err(self.damaged(format!("{name} has more than {MAX_JSON_BYTES} bytes")));
        }
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).map_err(ImageError::io("could not read", &self.path))?;
        if part.digest.as_ref().is_some_and(|digest| *digest != sha256(&bytes)) {
            return Err(self.damaged(format!("{name} does not have this SHA-256")));
        }
        serde_json::from_slice(&bytes).map_err(|error| self.damaged(format!("{name} is malformed: {error}")))
    }

    /// The part that a descriptor names.
    pub(super) fn blob(&self, descriptor: &Descriptor) -> Result<Part, ImageError> {
        let hex = descriptor.hex().ok_or_else(|| self.damaged(format!("{:?} is not a SHA-256", descriptor.digest)))?;
        Ok(Part { name: format!("{BLOBS}{hex}"), digest: Some(hex.to_owned()) })
    }

    fn images(&self) -> Result<Vec<Archived>, ImageError> {
        let unnamed = |name: &str| Part { name: name.to_owned(), digest: None };
        if self.has("manifest.json") {
            let archived: Vec<DockerArchived> = self.json(&unnamed("manifest.json"))?;
            return Ok(archived.into_iter().map(Archived::of_docker).collect());
        }
        if !self.has("index.json") {
            return Err(self.damaged("it has no manifest.json and no index.json, which image archives have"));
        }
        let index: Index = self.json(&unnamed("index.json"))?;
        index.manifests.iter().map(|manifest| self.described(manifest)).collect()
    }

    /// An image of an OCI layout.
    fn described(&self, entry: &Descriptor) -> Result<Archived, ImageError> {
        let mut entry = entry.clone();
        let mut name = entry.name().map(str::to_owned);
        let mut steps = 0;
        while entry.is_index() {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(self.damaged("its indexes contain each other"));
            }
            let index: Index = self.json(&self.blob(&entry)?)?;
            entry = index.for_this_host().map_err(|reason| self.damaged(reason))?.clone();
            name = name.or_else(|| entry.name().map(str::to_owned));
        }
        let manifest: oci::Manifest = self.json(&self.blob(&entry)?)?;
        Ok(Archived {
            names: Vec::from_iter(name),
            config: self.blob(&manifest.config)?,
            layers: manifest.layers.iter().map(|layer| self.blob(layer)).collect::<Result<_, _>>()?,
        })
    }

    fn install(
        &self,
        store: &ImageStore,
        lock: &StoreLock,
        archived: Archived,
        name: Option<&ImageName>,
    ) -> Result<Vec<Image>, ImageError> {
        let parse = |name: &String| name.parse().map_err(|error| self.damaged(format!("image {name:?}: {error}")));
        let names = match name {
            Some(name) => vec![name.clone()],
            None => archived.names.iter().map(parse).collect::<Result<Vec<ImageName>, _>>()?,
        };
        let Some(first) = names.first() else {
            return Err(self.damaged("an image in it has no name; give it one: arenite image load FILE NAME"));
        };
        let about = |reason| self.damaged(format!("image {first}: {reason}"));
        let config: oci::Config = self.json(&archived.config)?;
        config.check_platform().map_err(about)?;
        diffs(&config, archived.layers.len()).map_err(about)?;
        let layers = OfArchive { reader: self, layers: &archived.layers, name: first };
        let unpacked = unpack_layers(store, config, &layers, None, &mut || {})?;
        // Nothing is removed while the lock is held.
        let loaded = unpacked.commit(store, lock, &names, Origin::default())?;
        loaded.ok_or_else(|| self.damaged("a layer in the store was removed"))
    }
}

impl Archived {
    fn of_docker(archived: DockerArchived) -> Self {
        // Newer versions name parts by their digest.
        let part = |name: String| {
            let hex = name.strip_prefix(BLOBS).or_else(|| name.strip_suffix(".json"));
            let digest = hex.filter(|hex| is_digest(hex)).map(str::to_owned);
            Part { name, digest }
        };
        Self { names: archived.repo_tags, config: part(archived.config), layers: archived.layers.into_iter().map(part).collect() }
    }
}

struct OfArchive<'a> {
    reader: &'a ArchiveReader,
    layers: &'a [Part],
    name: &'a ImageName,
}

impl LayerSource for OfArchive<'_> {
    fn damaged(&self, reason: String) -> ImageError {
        self.reader.damaged(format!("image {}: {reason}", self.name))
    }

    fn open(&self, index: usize) -> Result<Box<dyn Read + '_>, ImageError> {
        Ok(self.reader.part(&self.layers[index].name)?.0)
    }

    fn digest(&self, index: usize) -> Option<&str> {
        self.layers[index].digest.as_deref()
    }
}

fn find_parts(file: &File) -> io::Result<BTreeMap<String, TarPart>> {
    let mut start = [0; 2];
    if file.try_clone()?.read_exact(&mut start).is_ok() && start == [0x1f, 0x8b] {
        return Err(io::Error::other("it is compressed; decompress it with gunzip"));
    }
    file.try_clone()?.rewind()?;
    let mut parts = BTreeMap::new();
    let mut archive = tar::Archive::new(file);
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let name = normal(&String::from_utf8_lossy(&entry.path_bytes()));
        let link = || entry.link_name_bytes().map(|link| String::from_utf8_lossy(&link).into_owned()).unwrap_or_default();
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                parts.insert(name, TarPart::File(entry.raw_file_position(), entry.size()));
            }
            EntryType::Link => {
                parts.insert(name, TarPart::Link(normal(&link())));
            }
            EntryType::Symlink => {
                let beside = name.rsplit_once('/').map_or("", |(dir, _)| dir);
                let target = normal(&format!("{beside}/{}", link()));
                parts.insert(name, TarPart::Link(target));
            }
            _ => {}
        }
        if parts.len() > MAX_PARTS {
            return Err(io::Error::other(format!("it has more than {MAX_PARTS} parts")));
        }
    }
    Ok(parts)
}

/// A part's name without `.` and `..`. Names are compared with each other and open nothing.
fn normal(name: &str) -> String {
    let mut parts = Vec::new();
    for part in name.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}
