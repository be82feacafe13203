//! Builds of tenants' clients: they run next to each other in one store, and are hostile to it.
//!
//! | | a build of the operator | a build of a tenant |
//! | --- | --- | --- |
//! | the store's lock | for the whole build | while a layer or the image gets its name |
//! | layers that it uses | nothing is removed meanwhile | each is held |
//! | layers of earlier builds | those of all operator's builds | those of the same tenant |
//! | `RUN --mount=type=cache` | stays for later builds | an empty directory for each step |
//! | Debian's packages as a base | bootstrapped on the host | refused |

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use arenite_model::{ImageName, TenantId};
use tokio::sync::watch;

use super::{Building, blocking, refused};
use crate::digest::FieldDigest;
use crate::error::ImageError;
use crate::image::Image;
use crate::imagefile::{Source, Suite};
use crate::tree::growing_usage;

/// The shortest pause between two measurements of what a step wrote. They take a hundredth of the time, or less.
const LEAST_PAUSE: Duration = Duration::from_millis(500);
const PAUSE_FACTOR: u32 = 20;

/// A build for a client of a tenant.
#[derive(Debug, Clone)]
pub struct TenantBuild<'a> {
    /// Layers are reused from builds of this tenant alone: what a step gives depends on its network and on arguments that no
    /// digest covers.
    pub tenant: &'a TenantId,
    /// To which the image belongs; none: to all.
    pub owner: Option<&'a TenantId>,
    /// Maximum size of the layers that the build makes, in bytes.
    pub max_bytes: u64,
    /// All steps have only their own loopback.
    pub is_offline: bool,
    /// Turns true when the build has to end. So does the loss of its sender.
    pub cancel: watch::Receiver<bool>,
    /// Gets the digests of the layers that the build made or reused. Those without an image may be removed after it.
    pub layers: &'a Mutex<BTreeSet<String>>,
}

/// What a layer may still take.
pub(super) struct DiskAllowance {
    line: usize,
    /// None: unlimited.
    left: Option<u64>,
    limit: u64,
}

impl DiskAllowance {
    pub(super) fn check(&self, files: &Path) -> Result<(), ImageError> {
        let Some(left) = self.left else { return Ok(()) };
        let used = growing_usage(files, left).map_err(ImageError::io("could not measure", files))?;
        if used > left { Err(ImageError::TooLarge { line: self.line, limit: self.limit }) } else { Ok(()) }
    }

    /// Returns when a step has written more.
    pub(super) async fn exceeded(self, files: PathBuf) -> ImageError {
        let Some(left) = self.left else { return std::future::pending().await };
        loop {
            let (dir, started) = (files.clone(), Instant::now());
            // What can't be measured now is measured when the step has ended.
            let used = blocking(move || Ok(growing_usage(&dir, left).unwrap_or(0))).await;
            if used.is_ok_and(|used| used > left) {
                return ImageError::TooLarge { line: self.line, limit: self.limit };
            }
            tokio::time::sleep((started.elapsed() * PAUSE_FACTOR).max(LEAST_PAUSE)).await;
        }
    }
}

impl Building<'_> {
    /// A digest that only builds of the same tenant have.
    pub(super) fn own_digest(&self, digest: String) -> String {
        match &self.request.tenant {
            Some(build) => FieldDigest::new("tenant").field("step", digest).field("tenant", build.tenant.as_str()).hex(),
            None => digest,
        }
    }

    pub(super) fn touched(&self, digest: &str) {
        if let Some(build) = &self.request.tenant {
            build.layers.lock().unwrap_or_else(PoisonError::into_inner).insert(digest.to_owned());
        }
    }

    pub(super) fn allowance(&self, source: &Source) -> DiskAllowance {
        let limit = self.request.tenant.as_ref().map(|build| build.max_bytes);
        let left = limit.map(|limit| limit.saturating_sub(self.bytes));
        DiskAllowance { line: source.line, left, limit: limit.unwrap_or_default() }
    }

    pub(super) fn is_offline(&self) -> bool {
        self.request.tenant.as_ref().is_some_and(|build| build.is_offline)
    }

    /// Bytes that an archive may unpack to.
    pub(super) fn bytes_left(&self) -> Option<u64> {
        self.request.tenant.as_ref().map(|build| build.max_bytes.saturating_sub(self.bytes))
    }

    pub(super) fn check_cancelled(&self) -> Result<(), ImageError> {
        match &self.request.tenant {
            Some(build) if *build.cancel.borrow() || build.cancel.has_changed().is_err() => Err(ImageError::Cancelled),
            _ => Ok(()),
        }
    }

    /// Returns when the build has to end.
    pub(super) fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        let cancel = self.request.tenant.as_ref().map(|build| build.cancel.clone());
        async move {
            match cancel {
                // Its sender is gone: nobody waits any more.
                Some(mut cancel) => drop(cancel.wait_for(|cancelled| *cancelled).await),
                None => std::future::pending().await,
            }
        }
    }

    /// An image by its name: the tenant's own goes before the one of all. Its layers stay while the build runs.
    pub(super) async fn image(&mut self, name: &ImageName) -> Result<Image, ImageError> {
        let (store, name, hold) = (self.store.clone(), name.clone(), self.lock.is_none());
        let owner = self.request.tenant.as_ref().and_then(|build| build.owner.cloned());
        let (image, held) = blocking(move || {
            let owner = owner.filter(|owner| store.has(Some(owner), &name));
            store.mark_used(owner.as_ref(), &name);
            let image = store.get_of(owner.as_ref(), &name)?;
            if !hold {
                return Ok((image, Vec::new()));
            }
            let held: Option<Vec<_>> = image.layers.iter().map(|layer| store.hold(&layer.digest)).collect();
            match held {
                Some(held) => Ok((image, held)),
                // It was removed at this moment.
                None => Err(ImageError::NotFound { name }),
            }
        })
        .await?;
        self.held.extend(held);
        Ok(image)
    }

    /// Debian's packages are fetched and installed by the host, on its network.
    pub(super) fn check_bootstrap(&self, suite: Suite, source: &Source) -> Result<(), ImageError> {
        if self.request.tenant.is_none() {
            return Ok(());
        }
        let reason = format!("not supported in a build by API: a new Debian {} from packages", suite.as_str());
        Err(refused(source, reason, Some("start from an image: FROM base, or one of a registry".to_owned())))
    }
}
