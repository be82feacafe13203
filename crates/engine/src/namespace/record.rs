//! Each sandbox's record on disk, from which a new server re-adopts it.
//!
//! ```text
//!  data_dir/run/<id>/sandbox.json       the record, and
//!  data_dir/run/<id>/guest.sock         where its guest listens
//!  data_dir/run/<id>/keeper.sock        where its first process listens, under gVisor
//!  data_dir/records/<id>/sandbox.json   a second copy
//!  data_dir/records/<id>/guest.sock     a hard link of the same socket, which serves connections too
//!  data_dir/records/<id>/quarantine.json    since when it is in quarantine
//!  data_dir/records/<id>/sealing            it is frozen for a state of its disk, and runs on afterwards
//! ```
//!
//! A record is a line with its version and checksum, then its JSON. A start restores a missing, truncated or changed copy from
//! the other.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use arenite_egress::AuthorityKeys;
use arenite_model::{NetworkPolicy, SandboxId, SandboxName, StateId, Tier, VolumeMount};
use jiff::Timestamp;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::descriptors::ran_out;

/// The newest version that this program writes and understands. Version 0 had neither header nor memo.
const VERSION: u32 = 1;
/// Starts the names of directories of steps. No id has a dash there.
const STEP: &str = "step-";
const FILE: &str = "sandbox.json";
const SOCKET: &str = "guest.sock";
const KEEPER: &str = "keeper.sock";
const NOTE: &str = "quarantine.json";
const SEALING: &str = "sealing";

/// One sandbox's record, written before its program starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: SandboxId,
    #[serde(default)]
    pub(super) name: Option<SandboxName>,
    pub(super) pid: i32,
    /// When that process started: see [`super::slot::start_time`].
    pub(super) start_time: u64,
    /// The host's boot in which it runs.
    pub(super) boot: String,
    pub(super) uid_index: u32,
    pub(super) net_index: Option<u32>,
    /// What it may reach through the egress proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) network_policy: Option<NetworkPolicy>,
    /// Of a sandbox with secrets: signs the certificates that the egress proxy shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) authority: Option<AuthorityKeys>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) network_floor: Option<NetworkPolicy>,
    pub(super) image: String,
    /// The directories below its writable layer, which must not be removed while it lives.
    pub(super) layers: Vec<PathBuf>,
    /// Created in advance, and not assigned yet.
    #[serde(default)]
    pub(super) pooled: bool,
    /// Its processes were ended to pause it, or are about to be. A restart takes this back when the guest has started, so what runs
    /// before that is ended by a recovery.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) stopped: bool,
    /// None: written by a version without tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tier: Option<Tier>,
    /// The id of its cgroups, if it is another one: a rollback runs a sandbox in a prepared slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) slot: Option<SandboxId>,
    /// The state that its disk was created as; none: empty, over the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<StateId>,
    /// The checkpoint that its disk comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) head: Option<StateId>,
    /// The highest number that a checkpoint of it has had. That of a removed one is not used again.
    #[serde(default)]
    pub(super) last_checkpoint: u32,
    /// The volumes in buckets that it mounts. Their mounts may have to be replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) buckets: Vec<VolumeMount>,
    /// Content from which control recreates its row. The engine doesn't read it.
    #[serde(default)]
    pub(super) memo: Option<String>,
    /// Counts the writes: of two sound copies, the higher one is valid.
    #[serde(default)]
    pub(super) revision: u32,
}

/// The first line of a record's file.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    /// BLAKE3 of the version and what follows the line.
    #[serde(default)]
    checksum: String,
}

/// Why a copy of a record is unusable.
#[derive(Debug, Error)]
enum Damage {
    #[error("it is cut short or was changed")]
    Changed,
    #[error("it has version {0}, made by a newer arenite; this one knows up to {VERSION}")]
    Newer(u32),
    #[error("it is the record of sandbox {0}")]
    Foreign(SandboxId),
    #[error("{0}")]
    Unreadable(io::Error),
}

impl Record {
    /// The id of its cgroups.
    pub(super) fn slot_id(&self) -> &SandboxId {
        self.slot.as_ref().unwrap_or(&self.id)
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let body = serde_json::to_vec(self)?;
        let checksum = checksum(VERSION, &body);
        let mut text = serde_json::to_vec(&Header { version: VERSION, checksum })?;
        text.push(b'\n');
        text.extend(body);
        Ok(text)
    }

    fn decode(text: &[u8], id: &SandboxId) -> Result<Self, Damage> {
        let (first, body) = match text.iter().position(|b| *b == b'\n') {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (text, &text[text.len()..]),
        };
        let record: Self = match serde_json::from_slice::<Header>(first) {
            Ok(header) if header.version > VERSION => return Err(Damage::Newer(header.version)),
            Ok(header) if header.checksum == checksum(header.version, body) => serde_json::from_slice(body),
            Ok(_) => return Err(Damage::Changed),
            Err(_) => serde_json::from_slice(text),
        }
        .map_err(|_| Damage::Changed)?;
        if record.id == *id { Ok(record) } else { Err(Damage::Foreign(record.id)) }
    }
}

fn checksum(version: u32, body: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&version.to_le_bytes()).update(body).finalize().to_hex().to_string()
}

/// The content of the two copies of a record.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) record: Option<Record>,
    /// Faults of existing copies.
    pub(super) faults: Vec<String>,
    /// Both copies exist, are sound and equal.
    pub(super) complete: bool,
}

/// Whether the host lacked resources for the check. It says nothing about the checked object.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let codes = [Errno::NOMEM, Errno::NOBUFS].map(|errno| Some(errno.raw_os_error()));
    ran_out(error) || codes.contains(&error.raw_os_error())
}

/// The two directories of the records.
#[derive(Debug, Clone)]
pub(super) struct Records {
    run: PathBuf,
    copies: PathBuf,
}

/// Since when a sandbox is in quarantine, and why.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    since: Timestamp,
    reason: String,
}

impl Records {
    pub(super) fn open(data_dir: &Path) -> io::Result<Self> {
        let records = Self::new(data_dir);
        for dir in [&records.run, &records.copies] {
            fs::create_dir_all(dir)?;
            fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        }
        Ok(records)
    }

    pub(super) fn new(data_dir: &Path) -> Self {
        Self { run: data_dir.join("run"), copies: data_dir.join("records") }
    }

    /// Where a step of a build keeps its files.
    pub(super) fn build_dir(&self, id: &SandboxId) -> PathBuf {
        self.run.join(format!("build-{id}"))
    }

    /// The same for a step that a server runs.
    pub(super) fn step_dir(&self, id: &SandboxId) -> PathBuf {
        self.run.join(format!("{STEP}{id}"))
    }

    /// Removes the files of steps that a killed server left.
    pub(super) fn remove_steps(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.run)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(STEP)) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// The second copy first: after an interrupted write, the one in `run` is sound as well, and older.
    fn places(&self, id: &SandboxId) -> [PathBuf; 2] {
        [&self.copies, &self.run].map(|dir| dir.join(id.as_str()))
    }

    /// The socket on which the guest of a sandbox listens.
    pub(super) fn socket(&self, id: &SandboxId) -> PathBuf {
        let [copy, first] = self.places(id).map(|dir| dir.join(SOCKET));
        if !first.exists() && copy.exists() { copy } else { first }
    }

    /// Binds the socket of a new guest, under both names.
    pub(super) fn bind(&self, id: &SandboxId) -> io::Result<std::os::unix::net::UnixListener> {
        let [copy, first] = self.places(id);
        fs::create_dir_all(&first)?;
        fs::create_dir_all(&copy)?;
        let listener = std::os::unix::net::UnixListener::bind(first.join(SOCKET))?;
        link(&first.join(SOCKET), &copy.join(SOCKET))?;
        Ok(listener)
    }

    /// The socket on which the first process of a sandbox under gVisor listens.
    pub(super) fn keeper(&self, id: &SandboxId) -> PathBuf {
        self.run.join(id.as_str()).join(KEEPER)
    }

    /// Binds that socket.
    pub(super) fn bind_keeper(&self, id: &SandboxId) -> io::Result<std::os::unix::net::UnixListener> {
        fs::create_dir_all(self.run.join(id.as_str()))?;
        std::os::unix::net::UnixListener::bind(self.keeper(id))
    }

    /// Removes the sockets of an ended sandbox: both names of its guest's, and its first process's.
    pub(super) fn remove_sockets(&self, id: &SandboxId) -> io::Result<()> {
        let names = self.places(id).map(|dir| dir.join(SOCKET));
        for path in names.into_iter().chain([self.keeper(id)]) {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes both copies, in place if they exist.
    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        match self.overwrite(record) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.replace(record),
            other => other,
        }
    }

    /// Puts new files in the place of both copies.
    fn replace(&self, record: &Record) -> io::Result<()> {
        let text = record.encode()?;
        for dir in self.places(&record.id) {
            fs::create_dir_all(&dir)?;
            let temporary = dir.join("sandbox.json.new");
            fs::File::create(&temporary)?.write_all(&text)?;
            fs::rename(temporary, dir.join(FILE))?;
        }
        Ok(())
    }

    /// Writes new content into both copies, one after the other, so that the other one is sound if this ends in between. Takes a
    /// tenth of the time of [`Self::replace`]: file systems flush a file that is renamed over another one.
    ///
    /// # Errors
    /// If a copy is missing, too.
    pub(super) fn overwrite(&self, record: &Record) -> io::Result<()> {
        let text = record.encode()?;
        for dir in self.places(&record.id) {
            let mut file = fs::OpenOptions::new().write(true).open(dir.join(FILE))?;
            file.write_all(&text)?;
            if file.metadata()?.len() > text.len() as u64 {
                file.set_len(text.len() as u64)?;
            }
        }
        Ok(())
    }

    /// Writes both copies, and restores the socket's missing name.
    pub(super) fn restore(&self, record: &Record) -> io::Result<()> {
        self.replace(record)?;
        let [copy, first] = self.places(&record.id).map(|dir| dir.join(SOCKET));
        match (copy.exists(), first.exists()) {
            (true, false) => link(&copy, &first),
            (false, true) => link(&first, &copy),
            _ => Ok(()),
        }
    }

    /// Whether both names of the socket exist.
    pub(super) fn has_both_sockets(&self, id: &SandboxId) -> bool {
        self.places(id).iter().all(|dir| dir.join(SOCKET).exists())
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the host lacks resources for it: see [`is_shortage`].
    pub(super) fn read(&self, id: &SandboxId) -> io::Result<Reading> {
        let mut reading = Reading::default();
        let mut sound = Vec::new();
        for dir in self.places(id) {
            let path = dir.join(FILE);
            let decoded = match fs::read(&path) {
                Ok(text) => Record::decode(&text, id),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if is_shortage(&error) => return Err(error),
                Err(error) => Err(Damage::Unreadable(error)),
            };
            match decoded {
                Ok(record) => sound.push(record),
                Err(damage) => reading.faults.push(format!("{}: {damage}", path.display())),
            }
        }
        reading.complete = sound.len() == 2 && sound[0] == sound[1];
        reading.record = sound.into_iter().max_by_key(|record| record.revision);
        Ok(reading)
    }

    /// Whether it has a directory in either location.
    pub(super) fn has_any(&self, id: &SandboxId) -> io::Result<bool> {
        let [copy, first] = self.places(id);
        Ok(copy.try_exists()? || first.try_exists()?)
    }

    pub(super) fn remove(&self, id: &SandboxId) -> io::Result<()> {
        for dir in self.places(id) {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Renames unreadable copies, so that a new record can be written.
    pub(super) fn set_aside(&self, id: &SandboxId) -> io::Result<()> {
        for dir in self.places(id) {
            match fs::rename(dir.join(FILE), dir.join("sandbox.json.unreadable")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The ids that have a directory in either location.
    pub(super) fn list(&self) -> io::Result<BTreeSet<SandboxId>> {
        let mut ids = BTreeSet::new();
        for dir in [&self.run, &self.copies] {
            let entries = match fs::read_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            for entry in entries {
                ids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()));
            }
        }
        Ok(ids)
    }

    /// Records that a sandbox is in quarantine. Returns the time from an earlier note, else now.
    pub(super) fn note_quarantine(&self, id: &SandboxId, reason: &str) -> io::Result<Timestamp> {
        let path = self.copies.join(id.as_str()).join(NOTE);
        let before = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Note>(&text).ok());
        let since = before.map_or_else(Timestamp::now, |note| note.since);
        fs::create_dir_all(self.copies.join(id.as_str()))?;
        fs::write(path, serde_json::to_vec(&Note { since, reason: reason.to_owned() })?)?;
        Ok(since)
    }

    /// Notes that a sandbox is about to be frozen for a moment, so that a start thaws it if the server ends meanwhile.
    pub(super) fn begin_sealing(&self, id: &SandboxId) -> io::Result<()> {
        fs::write(self.copies.join(id.as_str()).join(SEALING), b"")
    }

    pub(super) fn end_sealing(&self, id: &SandboxId) {
        // An error is ignored: then a start finds it running.
        let _ = fs::remove_file(self.copies.join(id.as_str()).join(SEALING));
    }

    pub(super) fn is_sealing(&self, id: &SandboxId) -> bool {
        self.copies.join(id.as_str()).join(SEALING).exists()
    }

    pub(super) fn end_quarantine(&self, id: &SandboxId) {
        // An error is ignored: without a quarantine there is no note, and a remaining one is overwritten by the next.
        let _ = fs::remove_file(self.copies.join(id.as_str()).join(NOTE));
    }
}

/// Whether any sandbox of a data directory has a record, or is in quarantine.
pub fn has_sandboxes(data_dir: &Path) -> bool {
    let records = Records::new(data_dir);
    let has = |id: &SandboxId| records.places(id).iter().any(|dir| dir.join(FILE).exists() || dir.join(NOTE).exists());
    // A directory that can't be read may hold some.
    records.list().map_or(true, |ids| ids.iter().any(has))
}

/// Creates a hard link. File systems without hard links go without.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::remove_file(to).and_then(|()| fs::hard_link(from, to)),
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) => {
            tracing::warn!(%error, "{} has no second name for a guest's socket", to.display());
            Ok(())
        }
        other => other,
    }
}

/// The record's information about a sandbox's image, for commands that remove images.
#[derive(Debug, Clone)]
pub struct RecordedSandbox {
    pub id: SandboxId,
    pub name: Option<SandboxName>,
    pub image: String,
    /// The directories of its layers: `.../layers/<digest>/files`.
    pub layers: Vec<PathBuf>,
    /// It is not the sandbox that uses them, but this sealed state of its disk.
    pub state: Option<StateId>,
}

/// Why it is unknown which sandboxes use which layers.
#[derive(Debug, Error)]
pub enum RecordsError {
    #[error("could not read the records of sandboxes in {}: {source}", data_dir.display())]
    Read { data_dir: PathBuf, source: io::Error },
    #[error("the record of sandbox {id} can't be read, so it is not known which layers are in use: {faults}")]
    Unknown { id: SandboxId, faults: String },
    #[error("the manifest of a sealed state can't be read, so it is not known which layers are in use: {source}")]
    State { source: io::Error },
}

/// The records of all sandboxes of a data directory. A server may be running on it.
///
/// # Errors
/// If it is unknown which layers one of them uses.
pub fn recorded_sandboxes(data_dir: &Path) -> Result<Vec<RecordedSandbox>, RecordsError> {
    let read = |source| RecordsError::Read { data_dir: data_dir.to_owned(), source };
    let records = Records::new(data_dir);
    let mut all = Vec::new();
    for id in records.list().map_err(read)? {
        let reading = records.read(&id).map_err(read)?;
        match reading.record {
            Some(Record { id, name, image, layers, .. }) => all.push(RecordedSandbox { id, name, image, layers, state: None }),
            None if !reading.faults.is_empty() => {
                return Err(RecordsError::Unknown { id, faults: reading.faults.join("; ") });
            }
            None if records.copies.join(id.as_str()).join(NOTE).exists() => {
                return Err(RecordsError::Unknown { id, faults: "it is missing".to_owned() });
            }
            // Being created, or prepared.
            None => {}
        }
    }
    let states = super::states::used_layers(data_dir).map_err(|source| RecordsError::State { source })?;
    all.extend(states.into_iter().map(|(state, layers)| RecordedSandbox {
        name: None,
        image: state.image.to_string(),
        id: state.sandbox,
        state: Some(state.id),
        layers,
    }));
    Ok(all)
}

/// The id of this boot of the host.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "s00000000001";

    fn id() -> SandboxId {
        ID.parse().unwrap()
    }

    fn record(revision: u32) -> Record {
        Record {
            id: id(),
            name: Some("demo".parse().unwrap()),
            pid: 7,
            start_time: 11,
            boot: "b".to_owned(),
            uid_index: 3,
            net_index: Some(5),
            network_policy: None,
            authority: None,
            network_floor: None,
            image: "base".to_owned(),
            layers: vec!["/pool/layers/x/files".into()],
            tier: None,
            pooled: false,
            slot: None,
            source: None,
            head: None,
            last_checkpoint: 0,
            buckets: Vec::new(),
            stopped: false,
            memo: Some("{\"name\":\"demo\"}".to_owned()),
            revision,
        }
    }

    #[test]
    fn no_part_of_a_record_passes_for_a_whole_one() {
        let whole = record(0).encode().unwrap();
        assert_eq!(Record::decode(&whole, &id()).unwrap(), record(0));
        for length in 0..whole.len() {
            assert!(Record::decode(&whole[..length], &id()).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(Record::decode(&changed, &id()).is_err(), "{at}");
        }
        assert!(matches!(Record::decode(&whole, &"s00000000002".parse().unwrap()), Err(Damage::Foreign(_))));
        let newer = b"{\"version\":2,\"checksum\":\"other\"}\n{}".as_slice();
        assert!(matches!(Record::decode(newer, &id()), Err(Damage::Newer(2))));
        let old = format!(
            r#"{{"id":"{ID}","pid":7,"start_time":1,"boot":"b","uid_index":1,"net_index":null,"image":"base","layers":[]}}"#
        );
        let old = Record::decode(old.as_bytes(), &id()).unwrap();
        assert!(old.memo.is_none() && !old.pooled);
    }

    #[test]
    fn one_sound_copy_is_enough_and_the_later_one_is_valid() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let reading = records.read(&id()).unwrap();
        assert!(reading.record.is_none() && reading.faults.is_empty() && !has_sandboxes(dir.path()));
        records.write(&record(0)).unwrap();
        assert!(records.read(&id()).unwrap().complete);

        let paths = ["run", "records"].map(|place| dir.path().join(place).join(ID).join(FILE));
        for cut in &paths {
            fs::write(cut, "{").unwrap();
            let reading = records.read(&id()).unwrap();
            assert_eq!(reading.record, Some(record(0)));
            assert!(!reading.complete && reading.faults[0].contains("cut short"), "{:?}", reading.faults);
            records.restore(&record(0)).unwrap();
        }
        fs::write(&paths[1], record(1).encode().unwrap()).unwrap();
        assert_eq!(records.read(&id()).unwrap().record, Some(record(1)));
        fs::remove_dir_all(dir.path().join("run")).unwrap();
        assert_eq!(records.read(&id()).unwrap().record, Some(record(1)));
        assert!(has_sandboxes(dir.path()));
        fs::write(&paths[1], "").unwrap();
        let reading = records.read(&id()).unwrap();
        assert!(reading.record.is_none() && reading.faults.len() == 1);
        records.remove(&id()).unwrap();
        assert!(!has_sandboxes(dir.path()));
    }

    #[test]
    fn an_interrupted_overwrite_leaves_the_other_copy() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        assert!(records.overwrite(&record(0)).is_err(), "there is nothing to overwrite");
        records.write(&record(0)).unwrap();
        let path = |place: &str| dir.path().join(place).join(ID).join(FILE);
        let before = fs::read(path("run")).unwrap();
        let longer = Record { memo: Some("x".repeat(1000)), ..record(1) };
        for after in [longer, record(2)] {
            records.overwrite(&after).unwrap();
            assert!(records.read(&id()).unwrap().complete);
            let whole = fs::read(path("records")).unwrap();
            // The first copy is cut at any byte, over the content from before, and the second one is not written yet.
            fs::write(path("run"), &before).unwrap();
            for length in 0..whole.len() {
                let rest = before.get(length..).unwrap_or_default();
                fs::write(path("records"), [&whole[..length], rest].concat()).unwrap();
                let read = records.read(&id()).unwrap().record.unwrap();
                assert!(read == record(0) || read == after, "{length}");
            }
            fs::write(path("records"), &whole).unwrap();
            assert_eq!(records.read(&id()).unwrap().record, Some(after));
        }
    }

    #[test]
    fn a_socket_is_dialled_by_whichever_name_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let id = id();
        let _listener = records.bind(&id).unwrap();
        for place in ["run", "records"] {
            fs::remove_dir_all(dir.path().join(place)).unwrap();
            std::os::unix::net::UnixStream::connect(records.socket(&id)).unwrap();
            records.restore(&record(0)).unwrap();
            assert!(records.has_both_sockets(&id));
        }
    }

    #[test]
    fn layers_in_use_are_known_by_either_copy_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        assert!(recorded_sandboxes(dir.path()).unwrap().is_empty());
        let records = Records::open(dir.path()).unwrap();
        records.write(&record(0)).unwrap();
        fs::write(dir.path().join("run").join(ID).join(FILE), "{").unwrap();
        let all = recorded_sandboxes(dir.path()).unwrap();
        assert_eq!((all.len(), &all[0].layers), (1, &record(0).layers));
        fs::write(dir.path().join("records").join(ID).join(FILE), "{").unwrap();
        assert!(matches!(recorded_sandboxes(dir.path()), Err(RecordsError::Unknown { .. })));
        records.set_aside(&id()).unwrap();
        assert!(recorded_sandboxes(dir.path()).unwrap().is_empty(), "a lost one without a record stands on nothing");
        let since = records.note_quarantine(&id(), "why").unwrap();
        assert_eq!(records.note_quarantine(&id(), "why").unwrap(), since);
        assert!(matches!(recorded_sandboxes(dir.path()), Err(RecordsError::Unknown { .. })));
        records.end_quarantine(&id());
        assert!(recorded_sandboxes(dir.path()).unwrap().is_empty());
    }
}
