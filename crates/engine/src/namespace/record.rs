//! What is kept on disk of each sandbox, so that a new server finds it again.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use arenite_model::SandboxId;
use serde::{Deserialize, Serialize};

/// One sandbox's record: `run/<id>/sandbox.json`, written before its program starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: SandboxId,
    pub(super) pid: i32,
    /// When that process started: see [`super::slot::start_time`].
    pub(super) start_time: u64,
    /// The host's boot that it belongs to.
    pub(super) boot: String,
    pub(super) uid_index: u32,
    pub(super) net_index: Option<u32>,
    pub(super) image: String,
    /// The directories below its writable layer, which must not be removed while it lives.
    pub(super) layers: Vec<PathBuf>,
}

/// The directory of the records.
#[derive(Debug, Clone)]
pub(super) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        Ok(Self { dir })
    }

    pub(super) fn dir(&self, id: &str) -> PathBuf {
        self.dir.join(id)
    }

    /// Where the guest of a sandbox is dialled.
    pub(super) fn socket(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(id.as_str()).join("guest.sock")
    }

    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        let dir = self.dir(record.id.as_str());
        let temporary = dir.join("sandbox.json.new");
        fs::File::create(&temporary)?.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(temporary, dir.join("sandbox.json"))
    }

    pub(super) fn read(&self, id: &str) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.dir(id).join("sandbox.json")).ok()?).ok()
    }

    pub(super) fn remove(&self, id: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.dir(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn list(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).collect()
    }
}

/// The id of this boot of the host.
pub(super) fn boot_id() -> String {
    fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default().trim().to_owned()
}
