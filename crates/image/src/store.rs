//! The image store: one directory on the file system of the sandboxes' writable layers.
//!
//! ```text
//! lock                            held by a build, a removal or a sweep
//! layers/<digest>/files/          a sealed layer's files
//! layers/<digest>/layer.json      what made it, and its size
//! images/<name>.json              manifests; a `/` of the name is a `%`; modified when the image was last used
//! images/<tenant>=<name>.json     manifests of images that belong to one tenant
//! building/<n>/{files,work}/      layers that are being made: an overlay's upper and work directory
//! downloads/<digest>              parts of a registry's images, while they are pulled
//! caches/<hash>/                  directories of RUN --mount=type=cache
//! trash/<n>/                      layers that are being removed
//! ```
//!
//! Only root can enter the directory: layers contain set-id programs under the image's own ids, which no user of the host may
//! reach.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arenite_model::{ImageName, TenantId};
use jiff::Timestamp;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::digest::is_digest;
use crate::error::ImageError;
use crate::image::{Image, ImageConfig, Layer};
use crate::registry::is_registry;
use crate::removal::remove_tree;
use crate::tree::disk_usage;

/// Maximum number of layers of an image, below the kernel's 500 of an overlay with room for snapshots.
pub(crate) const MAX_LAYERS: usize = 120;
/// Maximum size of a manifest or a layer's description, in bytes.
const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// How a layer's directory is created and removed on this storage.
pub trait LayerStorage: Send + Sync + fmt::Debug {
    /// Creates an empty directory, which will be renamed within its file system when the layer is sealed.
    fn create(&self, dir: &Path) -> io::Result<()>;
    /// Removes a directory and its content, if it exists.
    fn remove(&self, dir: &Path) -> io::Result<()>;
}

/// Plain directories, on any file system.
#[derive(Debug)]
pub struct PlainDirectories;

impl LayerStorage for PlainDirectories {
    fn create(&self, dir: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o755).create(dir)
    }

    fn remove(&self, dir: &Path) -> io::Result<()> {
        remove_tree(dir)
    }
}

/// Images and their layers on disk. Cheap to clone. Every call blocks on the disk.
#[derive(Debug, Clone)]
pub struct ImageStore {
    dir: Arc<Path>,
    storage: Arc<dyn LayerStorage>,
}

/// The result of a removal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Digests of the removed layers.
    pub layers: Vec<String>,
    /// Digests of layers that stay because a sandbox uses them; [`ImageStore::prune`] removes them later.
    pub kept: Vec<String>,
    pub freed_bytes: u64,
}

/// Content of `images/<name>.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    pub(crate) name: ImageName,
    digest: String,
    /// Lowest first.
    pub(crate) layers: Vec<String>,
    config: ImageConfig,
    /// The reference that it was pulled from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    /// None: it belongs to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<TenantId>,
    created_at: Timestamp,
}

/// An image without its layers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamedImage {
    pub name: ImageName,
    /// None: it belongs to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<TenantId>,
    pub digest: String,
}

/// A manifest's file and its content, or why it is unreadable.
pub(crate) type FoundManifest = (PathBuf, Result<Manifest, ImageError>);

const MANIFEST_VERSION: u32 = 1;
/// The version of a manifest with an owner. An older program, which would take the image for one of all, does not read it.
const OWNED_VERSION: u32 = 2;

/// Content of `layer.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub(crate) bytes: u64,
    pub(crate) created_by: String,
    pub(crate) created_at: Timestamp,
    /// A step of a tenant's build made it: without an image, it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<TenantId>,
}

/// Held while layers are created or removed; released when dropped, and by the kernel when the process dies.
#[derive(Debug)]
pub(crate) struct StoreLock {
    _file: File,
}

/// A layer that is being built.
#[derive(Debug)]
pub(crate) struct OpenLayer {
    pub(crate) dir: PathBuf,
    /// The directory, locked: a sweep leaves it alone.
    _held: File,
}

/// A sealed layer that is in use by a build: it is not removed while this value lives.
#[derive(Debug)]
pub(crate) struct HeldLayer {
    _dir: File,
}

/// The result of removing a layer.
enum Discarded {
    Removed,
    Missing,
    /// A build uses it.
    Held,
}

/// What a new manifest says about an image besides its layers and its config.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Origin<'a> {
    /// The reference that it was pulled from.
    pub(crate) source: Option<&'a str>,
    /// None: it belongs to all.
    pub(crate) owner: Option<&'a TenantId>,
}

/// The layers that pulls of one owner may take from the store without the registry's bytes: that a manifest names a layer proves
/// nothing, since anyone may write such a manifest.
#[derive(Debug)]
pub(crate) struct SharedLayers {
    /// Layers of images that belong to all, or to the owner.
    allowed: BTreeSet<String>,
    /// Layers of other tenants' images. What no image has is nobody's secret only for the operator.
    others: Option<BTreeSet<String>>,
}

impl SharedLayers {
    pub(crate) fn contains(&self, digest: &str) -> bool {
        self.allowed.contains(digest) || self.others.as_ref().is_some_and(|others| !others.contains(digest))
    }
}

impl OpenLayer {
    pub(crate) fn files(&self) -> PathBuf {
        self.dir.join("files")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.dir.join("work")
    }
}

impl ImageStore {
    /// Opens or creates a store that keeps layers as plain directories.
    pub fn open(dir: PathBuf) -> Result<Self, ImageError> {
        Self::open_on(dir, Arc::new(PlainDirectories))
    }

    /// Opens or creates a store on a storage with a special kind of directory, such as btrfs subvolumes with a limit. Removes
    /// what a crash left, unless a build is running.
    pub fn open_on(dir: PathBuf, storage: Arc<dyn LayerStorage>) -> Result<Self, ImageError> {
        let places = ["layers", "images", "building", "downloads", "trash"].map(|place| dir.join(place));
        for path in [dir.clone()].into_iter().chain(places) {
            DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(ImageError::io("could not make", &path))?;
        }
        let store = Self { dir: dir.into(), storage };
        if let Some(lock) = store.try_lock()? {
            store.sweep(&lock);
        }
        Ok(store)
    }

    /// The store's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn storage(&self) -> &dyn LayerStorage {
        &*self.storage
    }

    /// A local image that belongs to all, with all its layers.
    pub fn get(&self, name: &ImageName) -> Result<Image, ImageError> {
        self.get_of(None, name)
    }

    /// An image that belongs to a tenant, or with None to all.
    pub fn get_of(&self, owner: Option<&TenantId>, name: &ImageName) -> Result<Image, ImageError> {
        let path = self.manifest_path(owner, name);
        match self.read_manifest(&path)? {
            Some(manifest) => self.image(manifest),
            None => Err(ImageError::NotFound { name: name.clone() }),
        }
    }

    /// Whether there is an image of this owner and name. Reads no file, so a damaged one counts.
    pub fn has(&self, owner: Option<&TenantId>, name: &ImageName) -> bool {
        self.manifest_path(owner, name).exists()
    }

    /// What pulls of an owner may take from the store as it is.
    pub(crate) fn shared_layers(&self, owner: Option<&TenantId>) -> Result<SharedLayers, ImageError> {
        let (mut allowed, mut others) = (BTreeSet::new(), BTreeSet::new());
        for (_, manifest) in self.manifests()? {
            // A damaged one allows nothing.
            let Ok(manifest) = manifest else { continue };
            let is_allowed = manifest.owner.is_none() || manifest.owner.as_ref() == owner;
            if is_allowed { &mut allowed } else { &mut others }.extend(manifest.layers);
        }
        Ok(SharedLayers { allowed, others: owner.is_none().then_some(others) })
    }

    /// Whether an image is still the local one of its name. Reads one file, and [`Self::get`] one for each layer.
    pub fn is_current(&self, image: &Image) -> Result<bool, ImageError> {
        let manifest = self.read_manifest(&self.manifest_path(image.owner.as_ref(), &image.name))?;
        Ok(manifest.is_some_and(|manifest| manifest.digest == image.digest))
    }

    /// All images of all owners, sorted by name. A damaged one is skipped and logged.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let mut images = Vec::new();
        for (path, manifest) in self.manifests()? {
            match manifest.and_then(|m| self.image(m)) {
                Ok(image) => images.push(image),
                Err(error) => tracing::warn!(?path, %error, "an image is left out of the list"),
            }
        }
        images.sort_by(|a, b| (&a.name, &a.owner).cmp(&(&b.name, &b.owner)));
        Ok(images)
    }

    /// The names of all images of all owners, in any order. Damaged ones are left out.
    pub fn names(&self) -> Result<Vec<NamedImage>, ImageError> {
        let readable = self.manifests()?.into_iter().filter_map(|(_, manifest)| manifest.ok());
        Ok(readable.map(|Manifest { name, owner, digest, .. }| NamedImage { name, owner, digest }).collect())
    }

    /// Removes an image of all and those of its layers that no other image uses. A layer for which `in_use` is true, because a
    /// sandbox runs on it, stays for [`ImageStore::prune`].
    pub fn remove(&self, name: &ImageName, in_use: &dyn Fn(&str) -> bool) -> Result<Removed, ImageError> {
        self.remove_of(None, name, in_use)
    }

    /// The same for an image that belongs to a tenant.
    pub fn remove_of(
        &self,
        owner: Option<&TenantId>,
        name: &ImageName,
        in_use: &dyn Fn(&str) -> bool,
    ) -> Result<Removed, ImageError> {
        let lock = self.try_lock()?.ok_or(ImageError::Busy)?;
        let path = self.manifest_path(owner, name);
        let own = match self.read_manifest(&path) {
            Ok(Some(manifest)) => manifest.layers,
            Ok(None) => return Err(ImageError::NotFound { name: name.clone() }),
            // An unreadable one names no layers; prune finds them.
            Err(ImageError::Damaged { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        fs::remove_file(&path).map_err(ImageError::io("could not remove", &path))?;
        self.sync_dir("images")?;
        self.drop_unreferenced(&lock, own, in_use)
    }

    /// Removes all layers that no image or sandbox uses: those of images that were rebuilt or removed while in use, and those
    /// of failed builds, which were kept for reuse.
    pub fn prune(&self, in_use: &dyn Fn(&str) -> bool) -> Result<Removed, ImageError> {
        let lock = self.try_lock()?.ok_or(ImageError::Busy)?;
        self.sweep(&lock);
        let downloaded = self.remove_downloads(None);
        let all = self.layer_digests()?;
        let mut removed = self.drop_unreferenced(&lock, all, in_use)?;
        removed.freed_bytes += downloaded;
        Ok(removed)
    }

    /// Removes what interrupted pulls left, if it was not written for at least `age`. Returns the number of bytes. Leaves what
    /// a pull is reading or writing.
    pub(crate) fn remove_downloads(&self, age: Option<Duration>) -> u64 {
        let mut freed = 0;
        for entry in fs::read_dir(self.downloads()).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(file) = File::open(&path) else { continue };
            let Ok(about) = file.metadata() else { continue };
            let is_recent =
                age.is_some_and(|age| about.modified().ok().and_then(|at| at.elapsed().ok()).is_none_or(|old| old < age));
            if is_recent || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            match fs::remove_file(&path) {
                Ok(()) => freed += about.len(),
                Err(error) => tracing::warn!(?path, %error, "could not remove what a pull left"),
            }
        }
        freed
    }

    /// Where pulls keep what they download.
    pub(crate) fn downloads(&self) -> PathBuf {
        self.dir.join("downloads")
    }

    pub(crate) fn drop_unreferenced(
        &self,
        lock: &StoreLock,
        digests: Vec<String>,
        in_use: &dyn Fn(&str) -> bool,
    ) -> Result<Removed, ImageError> {
        let mut referenced = BTreeSet::new();
        for (path, manifest) in self.manifests()? {
            match manifest {
                Ok(manifest) => referenced.extend(manifest.layers),
                // Its layers are unknown, so none may be removed.
                Err(error) => {
                    tracing::warn!(?path, %error, "layers are kept because of a damaged image");
                    return Ok(Removed { kept: digests, ..Removed::default() });
                }
            }
        }
        let mut removed = Removed::default();
        for digest in digests {
            if referenced.contains(&digest) {
                continue;
            }
            if in_use(&digest) {
                removed.kept.push(digest);
                continue;
            }
            let bytes = self.layer_record(&digest).map_or(0, |record| record.bytes);
            match self.discard(lock, &digest)? {
                Discarded::Removed => {
                    removed.freed_bytes += bytes;
                    removed.layers.push(digest);
                }
                Discarded::Held => removed.kept.push(digest),
                Discarded::Missing => {}
            }
        }
        Ok(removed)
    }

    /// Removes a sealed layer. It is renamed at once, so that a crash never leaves half of it under its digest.
    fn discard(&self, _lock: &StoreLock, digest: &str) -> Result<Discarded, ImageError> {
        let dir = self.layer_dir(digest);
        let trash = self.scratch("trash");
        // Locked until it has its new name, so that no build takes it meanwhile.
        let opened = match File::open(&dir) {
            Ok(opened) => opened,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Discarded::Missing),
            Err(e) => return Err(ImageError::io("could not remove", dir)(e)),
        };
        if rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(Discarded::Held);
        }
        match fs::rename(&dir, &trash) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Discarded::Missing),
            Err(e) => return Err(ImageError::io("could not remove", dir)(e)),
        }
        self.storage.remove(&trash).map_err(ImageError::io("could not remove", trash))?;
        Ok(Discarded::Removed)
    }

    /// Keeps a sealed layer from being removed. None: it is gone.
    pub(crate) fn hold(&self, digest: &str) -> Option<HeldLayer> {
        let dir = self.layer_dir(digest);
        let opened = File::open(&dir).ok()?;
        rustix::fs::flock(&opened, FlockOperation::NonBlockingLockShared).ok()?;
        // It may have been removed between the two, and another may have its name.
        let is_same = |now: fs::Metadata| opened.metadata().is_ok_and(|held| (held.dev(), held.ino()) == (now.dev(), now.ino()));
        fs::metadata(&dir).is_ok_and(is_same).then_some(HeldLayer { _dir: opened })
    }

    /// Removes those of these layers that no image, build or sandbox uses. Blocks while a build of the command line runs.
    pub fn remove_unused(&self, digests: Vec<String>, in_use: &dyn Fn(&str) -> bool) -> Result<Removed, ImageError> {
        let lock = self.lock()?;
        self.drop_unreferenced(&lock, digests, in_use)
    }

    /// Removes what builds of tenants left when their server was killed: unfinished layers, and those that no image has. Leaves
    /// them if a build of the command line runs.
    pub fn remove_interrupted(&self, in_use: &dyn Fn(&str) -> bool) -> Result<Removed, ImageError> {
        let Some(lock) = self.try_lock()? else { return Ok(Removed::default()) };
        self.sweep(&lock);
        let mut of_tenants = self.layer_digests()?;
        of_tenants.retain(|digest| self.layer_record(digest).is_some_and(|record| record.tenant.is_some()));
        self.drop_unreferenced(&lock, of_tenants, in_use)
    }

    /// Waits for the lock. Blocks while a build runs elsewhere.
    pub(crate) fn lock(&self) -> Result<StoreLock, ImageError> {
        let (file, path) = self.lock_file()?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(StoreLock { _file: file }),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(ImageError::io("could not lock", path)(e.into())),
            }
        }
    }

    /// Takes the lock, unless another process holds it.
    pub(crate) fn try_lock(&self) -> Result<Option<StoreLock>, ImageError> {
        let (file, path) = self.lock_file()?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(StoreLock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(ImageError::io("could not lock", path)(e.into())),
        }
    }

    fn lock_file(&self) -> Result<(File, PathBuf), ImageError> {
        let path = self.dir.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(ImageError::io("could not open", &path))?;
        Ok((file, path))
    }

    /// Removes what a crash left. What can't be removed now, because it is still mounted or written, is left to the next sweep.
    pub(crate) fn sweep(&self, _lock: &StoreLock) {
        for place in ["building", "trash"] {
            let Ok(entries) = fs::read_dir(self.dir.join(place)) else {
                continue;
            };
            for entry in entries.flatten() {
                let path = entry.path();
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                // Held by a pull, which unpacks without the store's lock.
                let held = File::open(&path);
                if is_dir && held.is_ok_and(|dir| rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err()) {
                    continue;
                }
                let removed = if is_dir { self.storage.remove(&path) } else { fs::remove_file(&path) };
                match removed {
                    Ok(()) => tracing::info!(?path, "removed an unfinished layer"),
                    Err(error) => {
                        tracing::warn!(?path, %error, "could not remove an unfinished layer");
                    }
                }
            }
        }
    }

    /// Creates a layer with its two directories. It stays until it is sealed or abandoned, or its process ends.
    pub(crate) fn new_layer(&self) -> Result<OpenLayer, ImageError> {
        let layer = loop {
            let dir = self.scratch("building");
            self.storage.create(&dir).map_err(ImageError::io("could not make", &dir))?;
            let held = File::open(&dir).map_err(ImageError::io("could not open", &dir));
            // A sweep may have found it before it was locked.
            match held {
                Ok(held) if rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).is_ok() && dir.exists() => {
                    break OpenLayer { dir, _held: held };
                }
                Err(error) if dir.exists() => return Err(error),
                _ => {}
            }
        };
        for part in [layer.files(), layer.work()] {
            // Set explicitly, because the process has its umask.
            DirBuilder::new()
                .mode(0o755)
                .create(&part)
                .and_then(|()| fs::set_permissions(&part, fs::Permissions::from_mode(0o755)))
                .map_err(ImageError::io("could not make", part))?;
        }
        Ok(layer)
    }

    /// Discards a layer that was not sealed.
    pub(crate) fn abandon(&self, layer: &OpenLayer) {
        if let Err(error) = self.storage.remove(&layer.dir) {
            tracing::warn!(dir = ?layer.dir, %error, "could not remove an unfinished layer");
        }
    }

    /// Makes a layer's content final under its digest. Its data is on disk before its name is.
    pub(crate) fn seal(
        &self,
        lock: &StoreLock,
        layer: &OpenLayer,
        digest: &str,
        created_by: &str,
    ) -> Result<LayerRecord, ImageError> {
        self.seal_of(lock, layer, digest, created_by, None)
    }

    /// The same for a step of a tenant's build.
    pub(crate) fn seal_of(
        &self,
        _lock: &StoreLock,
        layer: &OpenLayer,
        digest: &str,
        created_by: &str,
        tenant: Option<&TenantId>,
    ) -> Result<LayerRecord, ImageError> {
        let at = |what| ImageError::io(what, &layer.dir);
        remove_tree(&layer.work()).map_err(at("could not clean up"))?;
        let record = LayerRecord {
            bytes: disk_usage(&layer.files()).map_err(at("could not measure"))?,
            created_by: created_by.to_owned(),
            created_at: Timestamp::now(),
            tenant: tenant.cloned(),
        };
        let json = serde_json::to_vec(&record).expect("a layer's record is plain data");
        fs::write(layer.dir.join("layer.json"), json).map_err(at("could not write to"))?;
        File::open(&layer.dir).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?)).map_err(at("could not sync"))?;
        if let Some(there) = self.layer_record(digest) {
            // Two pulls unpacked the same layer at once.
            self.abandon(layer);
            return Ok(there);
        }
        fs::rename(&layer.dir, self.layer_dir(digest)).map_err(at("could not seal"))?;
        self.sync_dir("layers")?;
        Ok(record)
    }

    /// A sealed layer's record; none if the layer doesn't exist.
    pub(crate) fn layer_record(&self, digest: &str) -> Option<LayerRecord> {
        let bytes = read_bounded(&self.layer_dir(digest).join("layer.json")).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// The directory of a sealed layer's files.
    pub(crate) fn layer_files(&self, digest: &str) -> PathBuf {
        self.layer_dir(digest).join("files")
    }

    /// Writes the manifest of an image that was built here.
    #[cfg(test)]
    pub(crate) fn publish(
        &self,
        lock: &StoreLock,
        name: &ImageName,
        digest: String,
        layers: Vec<String>,
        config: ImageConfig,
    ) -> Result<Image, ImageError> {
        self.publish_from(lock, name, digest, layers, config, Origin::default())
    }

    /// Writes an image's manifest atomically, replacing an older one.
    pub(crate) fn publish_from(
        &self,
        _lock: &StoreLock,
        name: &ImageName,
        digest: String,
        layers: Vec<String>,
        config: ImageConfig,
        origin: Origin<'_>,
    ) -> Result<Image, ImageError> {
        let manifest = Manifest {
            version: if origin.owner.is_some() { OWNED_VERSION } else { MANIFEST_VERSION },
            name: canonical(name),
            digest,
            layers,
            config,
            source: origin.source.map(str::to_owned),
            owner: origin.owner.cloned(),
            created_at: Timestamp::now(),
        };
        let path = self.manifest_path(origin.owner, name);
        // Removed there by a sweep if the rename is not reached.
        let next = self.scratch("trash");
        let write = || -> io::Result<()> {
            let json = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other)?;
            let mut file = File::create_new(&next)?;
            file.write_all(&json)?;
            file.sync_all()?;
            fs::rename(&next, &path)
        };
        write().map_err(ImageError::io("could not write", &path))?;
        self.sync_dir("images")?;
        self.image(manifest)
    }

    fn image(&self, manifest: Manifest) -> Result<Image, ImageError> {
        let damaged = |reason: String| ImageError::Damaged { name: manifest.name.to_string(), reason };
        if manifest.layers.is_empty() {
            return Err(damaged("it has no layers".to_owned()));
        }
        let mut layers = Vec::with_capacity(manifest.layers.len());
        for digest in &manifest.layers {
            let record = self.layer_record(digest).ok_or_else(|| damaged(format!("its layer {digest} is gone")))?;
            layers.push(Layer {
                digest: digest.clone(),
                dir: self.layer_files(digest),
                bytes: record.bytes,
                created_by: record.created_by,
                created_at: record.created_at,
            });
        }
        Ok(Image {
            size_bytes: layers.iter().map(|l| l.bytes).sum(),
            name: manifest.name,
            digest: manifest.digest,
            layers,
            config: manifest.config,
            source: manifest.source,
            owner: manifest.owner,
            created_at: manifest.created_at,
        })
    }

    pub(crate) fn manifests(&self) -> Result<Vec<FoundManifest>, ImageError> {
        let dir = self.dir.join("images");
        let at = || ImageError::io("could not read", &dir);
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir).map_err(at())? {
            let path = entry.map_err(at())?.path();
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            match self.read_manifest(&path) {
                Ok(Some(manifest)) => found.push((path, Ok(manifest))),
                Ok(None) => {}
                Err(error) => found.push((path, Err(error))),
            }
        }
        Ok(found)
    }

    fn read_manifest(&self, path: &Path) -> Result<Option<Manifest>, ImageError> {
        let bytes = match read_bounded(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(ImageError::io("could not read", path)(e)),
        };
        let damaged = |reason: String| ImageError::Damaged {
            name: path.file_stem().map(|s| s.to_string_lossy().replace('%', "/")).unwrap_or_default(),
            reason,
        };
        let owner = path.file_name().and_then(|name| name.to_str()?.split_once('=')).map(|(owner, _)| owner);
        let manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|e| damaged(format!("its manifest can't be read: {e}")))?;
        let version = if owner.is_some() { OWNED_VERSION } else { MANIFEST_VERSION };
        if manifest.version != version {
            return Err(damaged(format!("its manifest has version {}, this is for {version}", manifest.version)));
        }
        if manifest.owner.as_ref().map(TenantId::as_str) != owner {
            return Err(damaged("its manifest names another owner than its file".to_owned()));
        }
        // A digest is a directory's name here: nothing else may be accepted as one.
        if !manifest.layers.iter().all(|l| is_digest(l)) {
            return Err(damaged("its manifest names a layer that is no digest".to_owned()));
        }
        Ok(Some(manifest))
    }

    fn layer_digests(&self) -> Result<Vec<String>, ImageError> {
        let dir = self.dir.join("layers");
        let at = || ImageError::io("could not read", &dir);
        let mut digests = Vec::new();
        for entry in fs::read_dir(&dir).map_err(at())? {
            let name = entry.map_err(at())?.file_name();
            if let Some(digest) = name.to_str().filter(|n| is_digest(n)) {
                digests.push(digest.to_owned());
            }
        }
        digests.sort();
        Ok(digests)
    }

    fn layer_dir(&self, digest: &str) -> PathBuf {
        self.dir.join("layers").join(digest)
    }

    pub(crate) fn manifest_path(&self, owner: Option<&TenantId>, name: &ImageName) -> PathBuf {
        let file = canonical(name).as_str().replace('/', "%") + ".json";
        // No name has a `=`.
        let file = owner.map_or_else(|| file.clone(), |owner| format!("{owner}={file}"));
        self.dir.join("images").join(file)
    }

    /// An unused path in `place`; the process id distinguishes two servers of one store.
    fn scratch(&self, place: &str) -> PathBuf {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let time = Timestamp::now().as_nanosecond();
        self.dir.join(place).join(format!("{}-{n}-{time:x}", std::process::id()))
    }

    pub(crate) fn sync_dir(&self, place: &str) -> Result<(), ImageError> {
        let path = self.dir.join(place);
        File::open(&path).and_then(|dir| dir.sync_all()).map_err(ImageError::io("could not sync", path))
    }
}

/// The name under which an image is kept. `base` and `base:latest` are the same image, and so are `python` and
/// `docker.io/library/python`. A digest says more than a tag beside it.
pub(crate) fn canonical(name: &ImageName) -> ImageName {
    let text = name.as_str();
    let hub = text.strip_prefix("docker.io/").or_else(|| text.strip_prefix("index.docker.io/"));
    let text = hub.map_or(Cow::Borrowed(text), short_hub_path);
    let short = match text.split_once('@') {
        Some((tagged, digest)) => format!("{}@{digest}", without_tag(tagged)),
        None => text.strip_suffix(":latest").unwrap_or(&text).to_owned(),
    };
    short.parse().unwrap_or_else(|_| name.clone())
}

/// The shortest name of an image of Docker Hub that does not name another one.
fn short_hub_path(path: &str) -> Cow<'_, str> {
    match (path.strip_prefix("library/"), path.split_once('/')) {
        (Some(official), _) if !official.contains('/') => official.into(),
        // Alone, the first part would be read as a registry.
        (_, Some((first, _))) if is_registry(first) => format!("docker.io/{path}").into(),
        _ => path.into(),
    }
}

/// A `:` before a `/` is that of a port.
fn without_tag(tagged: &str) -> &str {
    match tagged.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => tagged,
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // Enough for one read: creates wait for these files.
    let mut bytes = Vec::with_capacity(file.metadata()?.len().min(MAX_MANIFEST_BYTES) as usize + 1);
    file.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_MANIFEST_BYTES {
        return Err(io::Error::other(format!("it is longer than {MAX_MANIFEST_BYTES} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
