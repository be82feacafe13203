//! Images of the store as images of Docker: each is loaded once, under its digest.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use arenite_image::{Image, ImageStore};
use tokio::sync::Mutex;

use super::api::Docker;
use crate::EngineError;
use crate::namespace::engine::blocking;
use crate::namespace::host::at;

/// The images of one installation in Docker.
#[derive(Debug)]
pub(super) struct DockerImages {
    /// Such as `arenite/ab12c`: their tags are digests.
    repository: String,
    archives: PathBuf,
    /// Held during a load.
    loading: Mutex<()>,
}

impl DockerImages {
    /// `archives` is a directory for archives while they are loaded.
    pub(super) fn new(tag: &str, archives: PathBuf) -> Self {
        Self { repository: format!("arenite/{tag}"), archives, loading: Mutex::default() }
    }

    fn reference(&self, digest: &str) -> String {
        format!("{}:{digest}", self.repository)
    }

    /// Docker's name of an image, which is loaded if it isn't there. Loads wait for each other: they use the same disk.
    pub(super) async fn ensure(&self, docker: &Docker, image: &Image) -> Result<String, EngineError> {
        let reference = self.reference(&image.digest);
        let _guard = self.loading.lock().await;
        // Someone may have removed it since.
        if docker.has_image(&reference).await? {
            return Ok(reference);
        }
        tracing::info!(image = %image.name, "loading an image into Docker");
        let archive = self.archives.join(format!("{}.tar", image.digest));
        let (of_image, path, name) = (image.clone(), archive.clone(), reference.clone());
        let written = blocking(move || {
            fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(|e| at("archive", e))?;
            arenite_image::export_layers(&of_image, &name, &path).map_err(|e| at("archive", io::Error::other(e)))
        })
        .await;
        let loaded = match written {
            Ok(()) => docker.load(&archive).await,
            Err(error) => Err(error),
        };
        let _ = fs::remove_file(&archive);
        loaded?;
        if !docker.has_image(&reference).await? {
            return Err(at("Docker: load the image", io::Error::other("it is not there afterwards")));
        }
        Ok(reference)
    }

    /// Removes those that the store no longer has, except those of containers.
    pub(super) async fn sweep(&self, docker: &Docker, store: &ImageStore) -> Result<(), EngineError> {
        let _guard = self.loading.lock().await;
        let store = store.clone();
        let wanted = blocking(move || store.list().map_err(|e| at("images", io::Error::other(e)))).await?;
        let wanted: HashSet<String> = wanted.into_iter().map(|image| image.digest).collect();
        for digest in docker.image_tags(&self.repository).await? {
            if !wanted.contains(&digest) {
                docker.remove_image(&self.reference(&digest)).await?;
            }
        }
        // Left by a server that was killed.
        match fs::remove_dir_all(&self.archives) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("archives", error)),
            _ => Ok(()),
        }
    }
}
