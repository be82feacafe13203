//! Each sandbox's files on the host: its record, its guest's socket, and the directory that its container mounts.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use arenite_isolation::container::{CALLS, PROGRAM, START};
use arenite_model::{SandboxId, SandboxName, Tier};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::calls::GuestCalls;
use crate::Row;

const FILE: &str = "sandbox.json";
const SOCKET: &str = "guest.sock";
const NOTE: &str = "quarantine.json";
const INSIDE: &str = "in";

/// What a start needs to find a sandbox again. Written before its container starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: SandboxId,
    pub(super) name: SandboxName,
    pub(super) image: String,
    /// Its address in the network, while it runs.
    pub(super) net_index: Option<u32>,
    /// Content from which control recreates its row. The engine doesn't read it.
    pub(super) memo: String,
    /// None: of an older version, or unknown since its record could not be read.
    #[serde(default)]
    pub(super) tier: Option<Tier>,
    /// With which its guest connects, under gVisor.
    #[serde(default)]
    pub(super) proof: Option<String>,
}

impl Record {
    /// Of a sandbox that does not run.
    pub(super) fn new(row: &Row, image: String, tier: Tier) -> Self {
        let (id, name, memo) = (row.id.clone(), row.name.clone(), row.memo.clone());
        Self { id, name, image, net_index: None, memo, tier: Some(tier), proof: None }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    since: Timestamp,
    reason: String,
}

/// The directory of all records.
#[derive(Debug, Clone)]
pub(super) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self { dir: data_dir.join("docker") }
    }

    pub(super) fn open(data_dir: &Path) -> io::Result<Self> {
        let records = Self::new(data_dir);
        make_dir(&records.dir, 0o700)?;
        Ok(records)
    }

    fn dir_of(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(id.as_str())
    }

    /// The socket on which the guest of a sandbox listens.
    pub(super) fn socket(&self, id: &SandboxId) -> PathBuf {
        self.dir_of(id).join(SOCKET)
    }

    /// The directory that its container mounts.
    pub(super) fn inside(&self, id: &SandboxId) -> PathBuf {
        self.dir_of(id).join(INSIDE)
    }

    /// Creates a sandbox's directories, with another name of the program.
    pub(super) fn make(&self, id: &SandboxId, program: &Path) -> io::Result<()> {
        let inside = self.inside(id);
        make_dir(&self.dir_of(id), 0o700)?;
        // Where Docker maps ids, the container's root is another user.
        make_dir(&inside, 0o755)?;
        let name = inside.join(PROGRAM);
        // Of an earlier life of the sandbox, which may be an older version.
        remove_file(&name)?;
        fs::hard_link(program, &name)
    }

    /// Binds the socket to which the first process connects.
    pub(super) fn bind_start(&self, id: &SandboxId) -> io::Result<tokio::net::UnixListener> {
        let path = self.inside(id).join(START);
        remove_file(&path)?;
        let listener = tokio::net::UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o666))?;
        Ok(listener)
    }

    pub(super) fn remove_start(&self, id: &SandboxId) -> io::Result<()> {
        remove_file(&self.inside(id).join(START))
    }

    /// Waits for the guest of a sandbox under gVisor. Call it in a runtime.
    pub(super) fn await_calls(&self, id: &SandboxId, proof: String) -> io::Result<GuestCalls> {
        let path = self.inside(id).join(CALLS);
        remove_file(&path)?;
        GuestCalls::listen(&path, proof)
    }

    /// Binds the socket of the guest, which listens on it.
    pub(super) fn bind_guest(&self, id: &SandboxId) -> io::Result<UnixListener> {
        let path = self.socket(id);
        remove_file(&path)?;
        UnixListener::bind(path)
    }

    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        self.put(&record.id, FILE, &serde_json::to_vec(record)?)
    }

    /// None if there is none. A record that can't be read is an error of the kind `InvalidData`.
    pub(super) fn read(&self, id: &SandboxId) -> io::Result<Option<Record>> {
        let text = match fs::read(self.dir_of(id).join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        match serde_json::from_slice::<Record>(&text) {
            Ok(record) if record.id == *id => Ok(Some(record)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Removes all files of a sandbox. Fine if there are none.
    pub(super) fn remove(&self, id: &SandboxId) -> io::Result<()> {
        match fs::remove_dir_all(self.dir_of(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    pub(super) fn list(&self) -> io::Result<BTreeSet<SandboxId>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            other => other?,
        };
        let mut ids = BTreeSet::new();
        for entry in entries {
            ids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()));
        }
        Ok(ids)
    }

    /// Records that a sandbox is in quarantine. Returns the time from an earlier note, else now.
    pub(super) fn note_quarantine(&self, id: &SandboxId, reason: &str) -> io::Result<Timestamp> {
        let before = fs::read(self.dir_of(id).join(NOTE)).ok().and_then(|text| serde_json::from_slice::<Note>(&text).ok());
        let since = before.map_or_else(Timestamp::now, |note| note.since);
        make_dir(&self.dir_of(id), 0o700)?;
        self.put(id, NOTE, &serde_json::to_vec(&Note { since, reason: reason.to_owned() })?)?;
        Ok(since)
    }

    pub(super) fn end_quarantine(&self, id: &SandboxId) {
        // Without a quarantine there is no note, and a remaining one is overwritten by the next.
        let _ = fs::remove_file(self.dir_of(id).join(NOTE));
    }

    fn put(&self, id: &SandboxId, name: &str, content: &[u8]) -> io::Result<()> {
        let dir = self.dir_of(id);
        let temporary = dir.join(format!("{name}.new"));
        fs::File::create(&temporary)?.write_all(content)?;
        fs::rename(temporary, dir.join(name))
    }
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // With any umask of the server.
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_again_and_removed_whole() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, "x").unwrap();
        let records = Records::open(dir.path()).unwrap();
        let id = SandboxId::random();
        assert!(!super::super::has_sandboxes(dir.path()));
        records.make(&id, &program).unwrap();
        records.make(&id, &program).unwrap();
        assert_eq!(records.read(&id).unwrap(), None);
        let record = Record {
            id: id.clone(),
            name: id.as_str().parse().unwrap(),
            image: "base".to_owned(),
            net_index: Some(2),
            memo: "m".to_owned(),
            tier: Some(Tier::Gvisor),
            proof: Some("p".to_owned()),
        };
        records.write(&record).unwrap();
        assert_eq!(records.read(&id).unwrap(), Some(record));
        assert!(super::super::has_sandboxes(dir.path()));
        let since = records.note_quarantine(&id, "why").unwrap();
        assert_eq!(records.note_quarantine(&id, "why").unwrap(), since);
        fs::write(records.dir_of(&id).join(FILE), "{").unwrap();
        assert_eq!(records.read(&id).unwrap_err().kind(), io::ErrorKind::InvalidData);
        records.remove(&id).unwrap();
        records.remove(&id).unwrap();
        assert!(records.list().unwrap().is_empty());
    }
}
