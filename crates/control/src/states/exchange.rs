//! Snapshots as files: exports, and imports of what another server, or this one, exported.
//!
//! ```text
//!  snapshot ──► its layers are read, so that all sizes are known ──► sent
//!  archive ──► a file without a name ──► the image below it, in the store ──► its own layer ──► sealed ──► named
//! ```
//!
//! An import that fails or is cut off leaves nothing: an upload has no name on the disk, and an image that came with it is removed.
//! If the server is killed, an image may stay, which the tenant sees and can remove.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arenite_engine::{EngineError, HeldState, ImportedState, StagedState};
use arenite_image::{Image, ImageError, SNAPSHOT_IMAGE, SnapshotArchive, SnapshotReader};
use arenite_model::{ErrorCode, ImageName, SandboxName, SnapshotName, SpecError, TenantId, Tier};
use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{LocalSnapshot, Named, Snapshot, check_note};
use crate::admission::refuse;
use crate::images::owner_of;
use crate::{Control, ControlError, check_labels};

/// Exports and imports of clients at once, and states that are sent to other nodes at once, and received from them.
const AT_ONCE: usize = 2;
/// How long a state on its way between nodes waits for a place.
const WAIT: Duration = Duration::from_secs(60);
/// When a client may try again for one of these places.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The largest archive, and the largest layer of a snapshot, in bytes.
pub(super) const MAX_ARCHIVE_BYTES: u64 = 64 << 30;

/// Annotations of an archive.
const NAME: &str = "dev.arenite.snapshot.name";
const SANDBOX: &str = "dev.arenite.snapshot.sandbox";
const IMAGE: &str = "dev.arenite.snapshot.image";
const TIER: &str = "dev.arenite.snapshot.tier";
const NOTE: &str = "dev.arenite.snapshot.note";
const LABELS: &str = "dev.arenite.snapshot.labels";
const CREATED: &str = "dev.arenite.snapshot.created";

/// The places for exports and imports of clients, and those for states on their way from and to other nodes.
pub(crate) struct Exchanges {
    of_clients: Arc<Semaphore>,
    to_nodes: Arc<Semaphore>,
    /// Apart from those to nodes, so that nodes which send to each other never wait for each other.
    from_nodes: Arc<Semaphore>,
}

impl Default for Exchanges {
    fn default() -> Self {
        let places = || Arc::new(Semaphore::new(AT_ONCE));
        Self { of_clients: places(), to_nodes: places(), from_nodes: places() }
    }
}

impl Exchanges {
    fn begin(&self) -> Result<OwnedSemaphorePermit, ControlError> {
        match Arc::clone(&self.of_clients).try_acquire_owned() {
            Ok(place) => Ok(place),
            Err(_) => refuse(format!("{AT_ONCE} snapshots are exported or imported already, which is the most"), RETRY_AFTER),
        }
    }

    async fn wait(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ControlError> {
        match tokio::time::timeout(WAIT, Arc::clone(places).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            _ => {
                let waited = WAIT.as_secs();
                refuse(format!("{AT_ONCE} states are on their way between nodes, and none ended within {waited} s"), RETRY_AFTER)
            }
        }
    }

    pub(super) async fn wait_to_send(&self) -> Result<OwnedSemaphorePermit, ControlError> {
        Self::wait(&self.to_nodes).await
    }

    pub(super) async fn wait_to_receive(&self) -> Result<OwnedSemaphorePermit, ControlError> {
        Self::wait(&self.from_nodes).await
    }
}

/// A snapshot that can be sent as an archive. It stays on the disk until this value is dropped.
#[derive(Debug)]
pub struct SnapshotExport {
    pub snapshot: Snapshot,
    pub archive: SnapshotArchive,
    _held: HeldState,
    _place: OwnedSemaphorePermit,
}

/// The right to import a snapshot, with the file for its archive, which has no name.
#[derive(Debug)]
pub struct SnapshotImport {
    tenant: TenantId,
    name: Option<SnapshotName>,
    file: File,
    _place: OwnedSemaphorePermit,
}

impl SnapshotImport {
    /// The file to fill, from its start.
    pub fn file(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }
}

/// Tells a thread to end when nobody waits for it any more.
pub(super) struct CancelOnDrop(pub(super) Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ControlError> + Send + 'static,
) -> Result<T, ControlError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(ControlError::Stopping))
}

/// Refuses an archive that is too large.
pub(super) fn check_size(bytes: u64) -> Result<(), ControlError> {
    if bytes > MAX_ARCHIVE_BYTES {
        let reason = format!("an archive has at most {MAX_ARCHIVE_BYTES} bytes");
        return Err(SpecError::Invalid { field: "archive", reason }.into());
    }
    Ok(())
}

/// What an archive says about its snapshot.
struct About {
    name: SnapshotName,
    sandbox: SandboxName,
    tier: Tier,
    note: Option<String>,
    labels: BTreeMap<String, String>,
}

impl About {
    fn annotations(snapshot: &Snapshot) -> Result<BTreeMap<String, String>, ControlError> {
        let labels = crate::store::to_json(&snapshot.labels).map_err(ControlError::store("describe a snapshot"))?;
        let all = [
            (NAME, snapshot.name.to_string()),
            (SANDBOX, snapshot.sandbox.to_string()),
            (IMAGE, snapshot.image.to_string()),
            (TIER, snapshot.tier.to_string()),
            (LABELS, labels),
            (CREATED, snapshot.created_at.to_string()),
        ];
        let note = snapshot.note.clone().map(|note| (NOTE, note));
        Ok(all.into_iter().chain(note).map(|(key, value)| (key.to_owned(), value)).collect())
    }

    fn read(annotations: &BTreeMap<String, String>, name: Option<SnapshotName>) -> Result<Self, ControlError> {
        let get = |key: &str| annotations.get(key).map(String::as_str);
        let invalid = |field: &'static str, reason: String| ControlError::from(SpecError::Invalid { field, reason });
        let name = match name {
            Some(name) => name,
            None => get(NAME)
                .ok_or_else(|| invalid("name", "the archive has none; give one".to_owned()))?
                .parse()
                .map_err(|error| invalid("name", format!("the archive's can't be used: {error}")))?,
        };
        let labels: BTreeMap<String, String> =
            serde_json::from_str(get(LABELS).unwrap_or("{}")).map_err(|error| invalid("labels", error.to_string()))?;
        check_labels(&labels)?;
        let note = get(NOTE).map(str::to_owned);
        check_note(note.as_ref())?;
        // Only shown, so another one serves as well.
        let sandbox = get(SANDBOX).unwrap_or_default().parse().or_else(|_| "imported".parse());
        let sandbox = sandbox.map_err(|error| invalid("sandbox", format!("{error}")))?;
        let tier = get(TIER).map_or(Ok(Tier::default()), str::parse).map_err(|reason| invalid("tier", reason))?;
        Ok(Self { name, sandbox, tier, note, labels })
    }
}

impl Control {
    /// Reads a snapshot for an export. Its processes are left out.
    ///
    /// # Errors
    /// [`ControlError::Exhausted`] if others are exported; [`ImageError::Unpackable`].
    pub async fn export_snapshot(&self, tenant: &TenantId, name: &SnapshotName) -> Result<SnapshotExport, ControlError> {
        let LocalSnapshot { snapshot, state, image } = self.snapshot_here(tenant, name).await?;
        let store = self.images()?.store().clone();
        let place = self.exchanges.begin()?;
        let held = self.engine.hold_state(&state).await?;
        let owner = self.engine.state(&state).and_then(|state| state.image_owner);
        let cancel = Arc::new(AtomicBool::new(false));
        let _cancel = CancelOnDrop(Arc::clone(&cancel));
        blocking(move || {
            let config = store.get_of(owner.as_ref(), &image)?.config;
            let title: ImageName = match format!("snapshot:{}", snapshot.name).parse() {
                Ok(title) => title,
                Err(_) => image,
            };
            let annotations = About::annotations(&snapshot)?;
            let archive = SnapshotArchive::plan(&title, &config, &held.layers, annotations, &cancel)?;
            Ok(SnapshotExport { snapshot, archive, _held: held, _place: place })
        })
        .await
    }

    /// Takes a place for an import of this number of bytes, before anything of it is read.
    ///
    /// # Errors
    /// A quota of the tenant, a name that is taken, or too little disk.
    pub async fn begin_import(
        &self,
        tenant: &TenantId,
        name: Option<SnapshotName>,
        bytes: u64,
    ) -> Result<SnapshotImport, ControlError> {
        self.engine.check_states()?;
        self.images()?;
        check_size(bytes)?;
        let place = self.exchanges.begin()?;
        self.check_new_snapshot(tenant, name.as_ref()).await?;
        let file = self.file_for_archive(bytes).await?;
        Ok(SnapshotImport { tenant: tenant.clone(), name, file, _place: place })
    }

    /// A file without a name for an archive of this size, if the disk has room for it.
    pub(super) async fn file_for_archive(&self, bytes: u64) -> Result<File, ControlError> {
        // The archive itself, and what is unpacked from it.
        let wanted = bytes.saturating_mul(2).saturating_add(self.config.limits.disk_reserve_bytes);
        let capacity = self.engine.capacity().await?;
        if capacity.disk_total_bytes > 0 && capacity.disk_available_bytes < wanted {
            let (available, wanted) = (capacity.disk_available_bytes >> 20, wanted >> 20);
            return refuse(format!("{available} MiB of disk are available on the host and {wanted} MiB are needed"), RETRY_AFTER);
        }
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let opened = openat(CWD, &self.config.data_dir, flags, Mode::RUSR | Mode::WUSR);
        let failed =
            |source: rustix::io::Errno| EngineError::Host { what: "a file for an import".to_owned(), source: source.into() };
        let file: OwnedFd = opened.map_err(failed)?;
        Ok(file.into())
    }

    /// Adds the snapshot of a complete archive.
    ///
    /// # Errors
    /// [`ImageError::Archive`] for what is no such archive, or a damaged one.
    pub async fn import_snapshot(&self, import: SnapshotImport) -> Result<Snapshot, ControlError> {
        self.detached(self.operation()?, |control| async move {
            let SnapshotImport { tenant, name, file, _place } = import;
            let (store, owner) = (control.images()?.store().clone(), owner_of(&tenant));
            let (reader, about, image) = blocking(move || {
                let reader = SnapshotReader::open(file)?;
                let about = About::read(reader.annotations(), name)?;
                let image = reader.install_image(&store, owner.as_ref())?;
                Ok((reader, about, image))
            })
            .await?;
            let name = image.name.clone();
            let added = control.add_import(&tenant, reader, about, image).await;
            if added.is_err() {
                let _change = control.snapshots.change.lock().await;
                control.forget_snapshot_image(&tenant, &name).await;
            }
            added
        })
        .await
    }

    async fn add_import(
        &self,
        tenant: &TenantId,
        reader: SnapshotReader,
        about: About,
        image: Image,
    ) -> Result<Snapshot, ControlError> {
        let About { name, sandbox, tier, note, labels } = about;
        let (staged, layers) = self.unpack_own_layer(reader, &image).await?;
        let _change = self.snapshots.change.lock().await;
        self.check_new_snapshot(tenant, Some(&name)).await?;
        let image_owner = owner_of(tenant);
        if !self.images()?.store().has(image_owner.as_ref(), &image.name) {
            return Err(ImageError::NotFound { name: image.name }.into());
        }
        let named = Named { tenant: tenant.clone(), name, sandbox, labels, node: self.own_node() };
        let memo = Some(crate::store::to_json(&named).map_err(ControlError::store("describe a snapshot"))?);
        let imported = ImportedState { image: image.name, image_owner, layers, tier, note, memo };
        let state = self.engine.import_state(staged, imported).await?;
        self.remember_snapshot(named, state).await
    }

    /// Unpacks the snapshot's own layer. Returns it with the directories below it.
    pub(super) async fn unpack_own_layer(
        &self,
        reader: SnapshotReader,
        image: &Image,
    ) -> Result<(StagedState, Vec<PathBuf>), ControlError> {
        let layers: Vec<PathBuf> = image.layers.iter().map(|layer| layer.dir.clone()).collect();
        let staged = self.engine.stage_state(MAX_ARCHIVE_BYTES).await?;
        blocking(move || {
            reader.unpack_own(&layers, &staged.files)?;
            Ok((staged, layers))
        })
        .await
    }

    /// Removes an image that came with a snapshot, unless something uses it. The caller holds the lock of snapshots.
    pub(super) async fn forget_snapshot_image(&self, tenant: &TenantId, image: &ImageName) {
        let is_used = || {
            let of_snapshots =
                self.snapshots.map().values().any(|other| other.snapshot.tenant == *tenant && other.image == *image);
            of_snapshots || self.list_all().iter().any(|sandbox| sandbox.tenant == *tenant && sandbox.spec.image == *image)
        };
        if !image.as_str().starts_with(SNAPSHOT_IMAGE) || is_used() {
            return;
        }
        match self.remove_image(tenant, image).await {
            Ok(_) => {}
            Err(error) if error.code() == ErrorCode::NotFound => {}
            Err(error) => tracing::warn!(%image, %error, "the image of a removed snapshot stays"),
        }
    }
}
