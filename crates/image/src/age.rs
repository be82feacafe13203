//! Removal of images that nothing has used for a time.
//!
//! A manifest's time of modification is when its image was last used: when it was written, or when a create or a build has named
//! it. So a use costs no more than a look at the file, and a change of its time now and then.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use arenite_model::{ImageName, TenantId};
use jiff::Timestamp;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use serde::Serialize;

use crate::error::ImageError;
use crate::store::{ImageStore, Manifest, Removed, StoreLock, canonical};

/// An image that was used within this time is not marked again.
const MARK_EVERY: Duration = Duration::from_secs(600);

/// Which images are removed.
#[derive(Debug, Clone, Copy)]
pub struct AgeLimit<'a> {
    /// How long nothing has used them.
    pub unused_for: Duration,
    /// Also images that were built or loaded here. Otherwise only those that were pulled, which can be pulled again.
    pub all: bool,
    /// Names of images that stay, whatever their owner is.
    pub keep: &'a BTreeSet<ImageName>,
    /// Removes nothing, and says what it would remove.
    pub dry_run: bool,
}

/// The result of a removal by age.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RemovedImages {
    /// In the order of their last use.
    pub images: Vec<UnusedImage>,
    #[serde(flatten)]
    pub removed: Removed,
}

/// An image that nothing has used for long.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UnusedImage {
    pub last_used: Timestamp,
    pub name: ImageName,
    /// The tenant that it belongs to; none: to all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<TenantId>,
    /// The reference that it was pulled from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl ImageStore {
    /// Notes that an image is used. Does nothing if there is no such image, or if that was noted in the last minutes.
    pub fn mark_used(&self, owner: Option<&TenantId>, name: &ImageName) {
        let path = self.manifest_path(owner, name);
        let Ok(about) = fs::metadata(&path) else { return };
        let is_recent = about.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|since| since < MARK_EVERY);
        if !is_recent {
            mark(&path);
        }
    }

    /// Removes images that were not used for a time, and those of their layers that nothing else uses. A layer for which `in_use` is
    /// true stays, because a sandbox runs on it. Images that stay by their name count as used now.
    ///
    /// # Errors
    /// [`ImageError::Busy`] during a build or another removal.
    pub fn remove_unused_images(&self, limit: AgeLimit<'_>, in_use: &dyn Fn(&str) -> bool) -> Result<RemovedImages, ImageError> {
        let lock = self.try_lock()?.ok_or(ImageError::Busy)?;
        let keep: BTreeSet<ImageName> = limit.keep.iter().map(canonical).collect();
        let (mut images, mut candidates, mut others) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for (path, manifest) in self.manifests()? {
            // A damaged one names no layers and no source: it is for an operator to look at.
            let Ok(manifest) = manifest else { continue };
            if !limit.dry_run && keep.contains(&manifest.name) {
                mark(&path);
            }
            match unused(&path, &manifest, &limit, &keep) {
                Some(last_used) => {
                    candidates.extend(manifest.layers);
                    let Manifest { name, owner, source, .. } = manifest;
                    images.push((path, UnusedImage { last_used, name, owner, source }));
                }
                None => others.extend(manifest.layers),
            }
        }
        images.sort_by(|(_, a), (_, b)| a.cmp(b));
        if limit.dry_run {
            let (kept, layers): (Vec<_>, Vec<_>) = candidates.difference(&others).cloned().partition(|digest| in_use(digest));
            let bytes = layers.iter().filter_map(|digest| self.layer_record(digest)).map(|record| record.bytes);
            let removed = Removed { freed_bytes: bytes.sum(), layers, kept };
            return Ok(RemovedImages { images: images.into_iter().map(|(_, image)| image).collect(), removed });
        }
        self.remove_listed(&lock, images, candidates, in_use)
    }

    fn remove_listed(
        &self,
        lock: &StoreLock,
        images: Vec<(std::path::PathBuf, UnusedImage)>,
        layers: BTreeSet<String>,
        in_use: &dyn Fn(&str) -> bool,
    ) -> Result<RemovedImages, ImageError> {
        let mut done = Vec::new();
        for (path, image) in images {
            // A create may have named it since.
            if last_used(&path) != Some(image.last_used) {
                continue;
            }
            fs::remove_file(&path).map_err(ImageError::io("could not remove", &path))?;
            done.push(image);
        }
        if !done.is_empty() {
            self.sync_dir("images")?;
        }
        let removed = self.drop_unreferenced(lock, layers.into_iter().collect(), in_use)?;
        Ok(RemovedImages { images: done, removed })
    }
}

/// When an image was last used, if that is long enough ago and nothing keeps it.
fn unused(path: &Path, manifest: &Manifest, limit: &AgeLimit<'_>, keep: &BTreeSet<ImageName>) -> Option<Timestamp> {
    let is_meant = (limit.all || manifest.source.is_some()) && !keep.contains(&manifest.name);
    let at = last_used(path).filter(|_| is_meant)?;
    let since = SystemTime::now().duration_since(SystemTime::from(at)).ok()?;
    (since >= limit.unused_for).then_some(at)
}

fn last_used(path: &Path) -> Option<Timestamp> {
    Timestamp::try_from(fs::metadata(path).ok()?.modified().ok()?).ok()
}

fn mark(path: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    if let Err(error) = utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW) {
        // It may have been removed meanwhile.
        tracing::debug!(?path, %error, "the use of an image could not be noted");
    }
}

#[cfg(test)]
mod tests;
