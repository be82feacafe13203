//! Images of sandboxes' processes, beside the sealed states of their disks.
//!
//! ```text
//!  root/processes/<state>/      the files of the image; the sandbox's root owns them while it is written, and then the host's
//! ```

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::PathBuf;

use arenite_model::StateId;
use rustix::fs::OFlags;

use super::{Result, Storage, StorageError, make_directory, tree};

const DIRECTORY: &str = "processes";

impl Storage {
    /// The directory with the image of a state.
    pub fn processes_path(&self, state: &StateId) -> PathBuf {
        self.root.join(DIRECTORY).join(state.as_str())
    }

    /// Makes the empty directory of an image, which this user of the host writes.
    pub fn create_processes(&self, state: &StateId, owner: u32) -> Result<PathBuf> {
        let path = self.processes_path(state);
        make_directory(&self.root.join(DIRECTORY), 0o700)?;
        make_directory(&path, 0o700)?;
        chown(&path, Some(owner), Some(owner)).map_err(StorageError::io(format!("make the image of {state}")))?;
        Ok(path)
    }

    /// Takes a written image over from the sandbox's root. Returns the sizes of its files, of which it may have `most`.
    pub fn close_processes(&self, state: &StateId, most: usize) -> Result<BTreeMap<String, u64>> {
        self.close_image(state, most).map_err(StorageError::io(format!("close the image of {state}")))
    }

    fn close_image(&self, state: &StateId, most: usize) -> io::Result<BTreeMap<String, u64>> {
        let path = self.processes_path(state);
        chown(&path, Some(0), Some(0))?;
        let mut sizes = BTreeMap::new();
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            // runsc wrote them, inside of the sandbox's isolation: nothing else than plain files is taken.
            let file = OpenOptions::new()
                .read(true)
                .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
                .open(entry.path())?;
            let about = file.metadata()?;
            let name = entry.file_name().into_string().ok().filter(|_| about.is_file() && sizes.len() < most);
            let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has files that no image has"))?;
            fchown(&file, Some(0), Some(0))?;
            file.set_permissions(Permissions::from_mode(0o600))?;
            sizes.insert(name, about.len());
        }
        match sizes.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "nothing was written")),
            false => Ok(sizes),
        }
    }

    /// Removes the image of a state, if it has one.
    pub fn delete_processes(&self, state: &StateId) -> Result<()> {
        tree::remove(&self.processes_path(state)).map_err(StorageError::io(format!("delete the image of {state}")))
    }

    /// The states with an image.
    pub fn list_processes(&self) -> Result<Vec<StateId>> {
        let listed = match fs::read_dir(self.root.join(DIRECTORY)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(StorageError::io("list images of processes"))?,
        };
        Ok(listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }
}
