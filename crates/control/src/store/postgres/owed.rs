//! Changes that could not be written: removals, and the last state of each changed sandbox.
//!
//! They are written before any other row. Removals are also in a file, so that they outlive the server: their sandboxes are
//! already gone, and no engine would report them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use arenite_model::SandboxId;
use tokio::fs;
use tokio::io::AsyncWriteExt;

use crate::Sandbox;

const FILE: &str = "control.removals";

/// Bounded by the number of sandboxes.
pub(super) struct Owed {
    path: PathBuf,
    removals: BTreeSet<SandboxId>,
    updates: BTreeMap<SandboxId, Sandbox>,
}

impl Owed {
    /// Reads the file of an earlier server.
    pub(super) async fn read(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join(FILE);
        let text = match fs::read(&path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        // Lines may be incomplete or damaged, if the server or its host crashed.
        let text = String::from_utf8_lossy(&text);
        let removals = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect();
        Ok(Self { path, removals, updates: BTreeMap::new() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.removals.is_empty() && self.updates.is_empty()
    }

    pub(super) fn removals(&self) -> &BTreeSet<SandboxId> {
        &self.removals
    }

    pub(super) fn updates(&self) -> impl Iterator<Item = &Sandbox> {
        self.updates.values()
    }

    pub(super) async fn remove(&mut self, id: SandboxId) {
        self.updates.remove(&id);
        let line = format!("{id}\n");
        if self.removals.insert(id)
            && let Err(error) = append(&self.path, &line).await
        {
            tracing::error!(path = %self.path.display(), %error, "a removal that is not in the store yet could not be written to a file");
        }
    }

    pub(super) fn update(&mut self, row: Sandbox) {
        if !self.removals.contains(&row.id) {
            self.updates.insert(row.id.clone(), row);
        }
    }

    /// Forgets all of it, once it is in the store.
    pub(super) async fn settle(&mut self) {
        self.updates.clear();
        if self.removals.is_empty() {
            return;
        }
        self.removals.clear();
        if let Err(error) = fs::remove_file(&self.path).await
            && error.kind() != io::ErrorKind::NotFound
        {
            // The next start removes these rows once more, which does nothing.
            tracing::warn!(path = %self.path.display(), %error, "a file of removals could not be deleted");
        }
    }
}

async fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(path).await?;
    file.write_all(line.as_bytes()).await?;
    file.flush().await
}
