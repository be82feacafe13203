//! Which images stay on the host, and the removal of those that nothing used for a time.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arenite_engine::namespace::recorded_sandboxes;
use arenite_image::{AgeLimit, ImageError, RemovedImages};
use arenite_model::ImageName;

use super::builds::used_layers;
use crate::{Control, ControlError};

/// The file of the data directory with the names of the images that the configuration needs, for the command line.
const FILE: &str = "kept-images.json";
/// Maximum size of that file, in bytes. There are at most a thousand templates.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Interval between removals.
const EVERY: Duration = Duration::from_secs(3600);

/// The names of the images that the last server's configuration needs: the default image, and those of templates and pools.
/// Empty if no server ever ran on this data directory.
///
/// # Errors
/// The file can't be read.
pub fn configured_images(data_dir: &Path) -> io::Result<BTreeSet<ImageName>> {
    let file = match File::open(data_dir.join(FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    Ok(serde_json::from_reader(file.take(MAX_FILE_BYTES))?)
}

fn write(data_dir: &Path, names: &BTreeSet<ImageName>) -> io::Result<()> {
    let next = data_dir.join(format!("{FILE}.next"));
    fs::write(&next, serde_json::to_vec(names)?)?;
    fs::rename(&next, data_dir.join(FILE))
}

impl Control {
    /// The names of the images that the configuration needs.
    fn configured_images(&self) -> BTreeSet<ImageName> {
        let templates = self.templates.list().into_iter().map(|template| template.spec.image);
        // A pool is of a template, or of an image.
        let pools = self.config.pools.iter().filter_map(|(name, _)| name.parse().ok());
        templates.chain(pools).chain([self.config.default_image.clone()]).collect()
    }

    /// Notes which images the configuration needs, and removes those that were unused for too long, every hour.
    pub(crate) async fn keep_images(self: Arc<Self>) {
        if self.images.is_none() {
            return;
        }
        let mut noted = BTreeSet::new();
        loop {
            let names = self.configured_images();
            if names != noted {
                match write(&self.config.data_dir, &names) {
                    Ok(()) => noted.clone_from(&names),
                    Err(error) => tracing::warn!(%error, "the names of configured images could not be noted"),
                }
            }
            if let Err(error) = self.drop_stale_copies().await {
                tracing::warn!(%error, "copies of removed snapshots could not be removed");
            }
            match self.remove_unused_images(names).await {
                Ok(done) => {
                    for image in done.images {
                        tracing::info!(image = %image.name, last_used = %image.last_used, "removed an unused image");
                    }
                }
                // A build will be over next time.
                Err(ControlError::Image(error)) if matches!(*error, ImageError::Busy) => {}
                Err(error) => tracing::warn!(%error, "unused images could not be removed"),
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn remove_unused_images(&self, mut keep: BTreeSet<ImageName>) -> Result<RemovedImages, ControlError> {
        let config = &self.images()?.config;
        let Some(unused_for) = config.keep_unused else { return Ok(RemovedImages::default()) };
        // Also those of creates in progress.
        keep.extend(self.list_all().into_iter().map(|sandbox| sandbox.spec.image));
        // An image that came with a snapshot can't be pulled again.
        keep.extend(self.images_of_snapshots());
        let (store, data_dir) = (config.store.clone(), self.config.data_dir.clone());
        let remove = move || {
            let used = used_layers(&data_dir)?;
            keep.extend(recorded_sandboxes(&data_dir).into_iter().flatten().filter_map(|record| record.image.parse().ok()));
            let limit = AgeLimit { unused_for, all: false, keep: &keep, dry_run: false };
            Ok(store.remove_unused_images(limit, &|digest| used.contains(digest))?)
        };
        tokio::task::spawn_blocking(remove).await.unwrap_or(Err(ControlError::Stopping))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_read_as_they_were_written() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(configured_images(scratch.path()).unwrap(), BTreeSet::new());
        let names: BTreeSet<ImageName> = ["base", "docker.io/library/python:3.12"].map(|name| name.parse().unwrap()).into();
        write(scratch.path(), &names).unwrap();
        assert_eq!(configured_images(scratch.path()).unwrap(), names);
        fs::write(scratch.path().join(FILE), "{").unwrap();
        assert!(configured_images(scratch.path()).is_err());
    }
}
