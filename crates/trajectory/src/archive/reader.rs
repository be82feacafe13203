//! A trajectory in an archive, read as one on disk.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_model::TenantId;
use tokio::runtime::Handle;

use super::names::Names;
use super::{Objects, unreachable};
use crate::blob::is_digest;
use crate::log::{refers, sessions, steps, verify};
use crate::network::network;
use crate::{
    BlobRef, BlobStore, BlobWriter, IntentRecord, NetworkEvent, NetworkEvents, OutcomeRecord, SessionEvent, Step, StepLog,
    Summary, TrajectoryError, TrajectoryKey, Verification,
};

/// The log of one trajectory, which was fetched.
pub(super) struct ArchivedLog {
    key: TrajectoryKey,
    /// It may have no name any more. Reads move its position, so there is one at a time.
    file: Mutex<File>,
    bytes: u64,
    summary: Summary,
}

impl ArchivedLog {
    pub(super) fn new(key: TrajectoryKey, file: File, bytes: u64, summary: Summary) -> Self {
        Self { key, file: Mutex::new(file), bytes, summary }
    }

    fn read<T>(&self, key: &TrajectoryKey, read: impl FnOnce(File, u64) -> io::Result<T>) -> Result<T, TrajectoryError> {
        if *key != self.key {
            return Err(TrajectoryError::NoTrajectory { trajectory: key.trajectory().to_owned() });
        }
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let read = file.try_clone().and_then(|file| read(file, self.bytes));
        read.map_err(|error| TrajectoryError::io("read the archived log of", key.trajectory(), error))
    }

    fn refused<T>(&self) -> Result<T, TrajectoryError> {
        Err(TrajectoryError::Archived { trajectory: self.key.trajectory().to_owned() })
    }
}

impl StepLog for ArchivedLog {
    fn begin(&self, _: &TrajectoryKey, _: IntentRecord) -> Result<u64, TrajectoryError> {
        self.refused()
    }

    fn finish(&self, _: &TrajectoryKey, _: OutcomeRecord) -> Result<(), TrajectoryError> {
        self.refused()
    }

    fn end(&self, _: &TrajectoryKey) -> Result<(), TrajectoryError> {
        self.refused()
    }

    fn remove(&self, _: &TrajectoryKey, _: Option<u64>) -> Result<(), TrajectoryError> {
        self.refused()
    }

    fn list(&self, tenant: &TenantId) -> Result<Vec<Summary>, TrajectoryError> {
        Ok(if tenant == self.key.tenant() { vec![self.summary.clone()] } else { Vec::new() })
    }

    fn steps(&self, key: &TrajectoryKey, after: u64, limit: usize) -> Result<Vec<Step>, TrajectoryError> {
        self.read(key, |file, bytes| steps(file, bytes, &std::collections::BTreeSet::new(), after, limit))
    }

    fn session(&self, _: &TrajectoryKey, _: SessionEvent) -> Result<(), TrajectoryError> {
        self.refused()
    }

    fn sessions(&self, key: &TrajectoryKey) -> Result<Vec<SessionEvent>, TrajectoryError> {
        self.read(key, sessions)
    }

    fn note_network(&self, _: &TrajectoryKey, _: NetworkEvent, _: bool) -> Result<(), TrajectoryError> {
        self.refused()
    }

    fn network(&self, key: &TrajectoryKey) -> Result<NetworkEvents, TrajectoryError> {
        self.read(key, network)
    }

    fn verify(
        &self,
        key: &TrajectoryKey,
        found: &mut Verification,
        see: &mut dyn FnMut(u64, BlobRef),
    ) -> Result<(), TrajectoryError> {
        self.read(key, |file, bytes| verify(file, bytes, found, see))
    }

    fn refers(&self, key: &TrajectoryKey, digest: &str) -> Result<bool, TrajectoryError> {
        self.read(key, |file, bytes| refers(file, bytes, digest))
    }

    fn has(&self, key: &TrajectoryKey) -> bool {
        *key == self.key
    }

    fn stand(&self, key: &TrajectoryKey) -> Result<(u64, bool), TrajectoryError> {
        // Nothing follows what is archived.
        Ok(if *key == self.key { (self.summary.steps, true) } else { (0, false) })
    }

    fn digests(&self, _: &mut dyn FnMut(&str)) -> Result<(), TrajectoryError> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn bytes_of(&self, _: &TenantId) -> u64 {
        0
    }

    fn sync_errors(&self) -> u64 {
        0
    }
}

/// The bodies of one trajectory, each fetched when it is read. Reads wait, so they are for threads that may.
pub(super) struct ArchivedBlobs {
    objects: Arc<dyn Objects>,
    runtime: Handle,
    names: Names,
    /// Where fetched bodies are, while they are read.
    dir: PathBuf,
}

impl ArchivedBlobs {
    pub(super) fn new(objects: Arc<dyn Objects>, names: Names, dir: PathBuf) -> Self {
        Self { objects, runtime: Handle::current(), names, dir }
    }
}

impl BlobStore for ArchivedBlobs {
    fn create(&self) -> Result<Option<Box<dyn BlobWriter>>, TrajectoryError> {
        Ok(None)
    }

    fn open(&self, digest: &str) -> Result<File, TrajectoryError> {
        if !is_digest(digest) {
            return Err(TrajectoryError::BadDigest { given: digest.chars().take(80).collect() });
        }
        let name = self.names.body(digest);
        let (mut file, path) = super::new_file(&self.dir)?;
        // It needs no name.
        let removed = std::fs::remove_file(&path).map_err(|error| TrajectoryError::io("remove", &path, error));
        removed?;
        let fetched = self.runtime.block_on(super::fetch(&*self.objects, &name, &mut file));
        if !fetched.map_err(|error| unreachable(&*self.objects, &error))? {
            return Err(TrajectoryError::NoBlob { digest: digest.to_owned() });
        }
        file.flush().and_then(|()| file.rewind()).map_err(|error| TrajectoryError::io("read", path, error))?;
        Ok(file)
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn sweep(&self, _: &HashSet<String>, _: Duration) -> Result<u64, TrajectoryError> {
        Ok(0)
    }
}
