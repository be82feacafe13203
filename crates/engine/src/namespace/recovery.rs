//! Recovery: what a start does with the sandboxes that it finds on the host.
//!
//! ```text
//!  inspect everything   ──► judge each ──► found          its record is sound, or its row is known and it has no processes
//!  (nothing changes, and               ├─► removed        prepared and never used, or nothing of it but empty directories
//!   a failed inspection                └─► quarantined    all else: processes, disk, ids and address stay unchanged
//!   ends the start)
//! ```
//!
//! The engine's side of a sandbox is created after its row and removed before it. So a sound record without a row means that
//! the store lost rows, and is not a leftover.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arenite_model::{Death, DeathReason, SandboxId, Tier};
use rustix::io::Errno;

use super::at;
use super::death;
use super::descriptors;
use super::engine::{EngineShared, Live, NamespaceEngine, blocking};
use super::kvm::has_vm;
use super::network::{EffectivePolicy, Network};
use super::record::{Reading, Record, Records, boot_id};
use super::reset::failed_network;
use super::slot::{IdRanges, start_time, wait_end};
use super::storage::{LayerUse, StorageError};
use crate::{EngineError, Found, FoundState, Quarantined, Recovery, Remains, Row};

/// The decision about an id that was found on the host or in a row.
enum Verdict {
    Found {
        record: Option<Box<Record>>,
        process: Process,
        /// What was missing or damaged in its record.
        to_restore: Option<String>,
    },
    Remove(String),
    Quarantine {
        reason: String,
        occupied: Occupied,
    },
}

/// What a recovery found of a sandbox's first process.
enum Process {
    Running(Arc<OwnedFd>),
    Frozen(Arc<OwnedFd>),
    /// It was ended to pause the sandbox, or is about to be.
    Stopped,
    Gone(Death),
}

impl Process {
    fn is_there(&self) -> bool {
        matches!(self, Self::Running(_) | Self::Frozen(_))
    }
}

/// The ids and address that a quarantined sandbox occupies.
#[derive(Debug, Clone, Default)]
pub(super) struct Occupied {
    pub(super) uid_index: Option<u32>,
    pub(super) net_index: Option<u32>,
    /// It has processes with an unknown address.
    unknown_net: bool,
}

/// The number of sandboxes on disk, as far as it is known.
pub(super) fn count(data_dir: &std::path::Path) -> usize {
    Records::new(data_dir).list().map_or(0, |ids| ids.len())
}

fn record_lost(message: impl Into<String>) -> Death {
    Death::with_message(DeathReason::RecordLost, message)
}

fn look(what: impl Into<String>) -> impl FnOnce(io::Error) -> EngineError {
    let what = what.into();
    move |source| EngineError::Look { what, source }
}

fn look_at_storage(error: StorageError) -> EngineError {
    match error {
        StorageError::Io { what, source } => EngineError::Look { what, source },
        other => EngineError::Look { what: "the storage".to_owned(), source: io::Error::other(other) },
    }
}

impl EngineShared {
    /// Opens the process of a record, if it is the same one.
    fn find(&self, record: &Record) -> io::Result<Result<Arc<OwnedFd>, Death>> {
        if record.boot != boot_id()? {
            return Ok(Err(Death::new(DeathReason::HostLost)));
        }
        let ended = Ok(Err(death::unseen(&self.host, record.slot_id(), record.tier.unwrap_or_default())));
        let Some(pid) = rustix::process::Pid::from_raw(record.pid) else { return ended };
        let pidfd = match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH | Errno::INVAL) => return ended,
            Err(error) => return Err(error.into()),
        };
        // Opened first, compared after: the pid can't be reused between the two.
        if start_time(record.pid)? != Some(record.start_time) || wait_end(&pidfd, Duration::ZERO) {
            return ended;
        }
        // A copy of a data directory has the records of the original's sandboxes.
        let ours = self.host.cgroups.try_processes(record.slot_id()).map_err(|error| error.source)?;
        if !ours.contains(&record.pid) {
            return Ok(Err(record_lost("its processes belong to another data directory")));
        }
        Ok(Ok(Arc::new(pidfd)))
    }

    fn process(&self, record: &Record) -> Result<Process, EngineError> {
        if record.stopped {
            return Ok(Process::Stopped);
        }
        let id = &record.id;
        Ok(match self.find(record).map_err(look(format!("the processes of sandbox {id}")))? {
            // The server ended while it sealed the disk.
            Ok(pidfd) if self.host.records.is_sealing(id) => {
                self.host.cgroups.set_frozen(record.slot_id(), false).map_err(super::slot::cgroup)?;
                self.host.records.end_sealing(id);
                Process::Running(pidfd)
            }
            Ok(pidfd) if self.is_frozen(record.slot_id())? => Process::Frozen(pidfd),
            Ok(pidfd) => Process::Running(pidfd),
            Err(death) => Process::Gone(death),
        })
    }

    fn is_frozen(&self, id: &SandboxId) -> Result<bool, EngineError> {
        match self.host.cgroups.is_frozen(id) {
            Ok(frozen) => Ok(frozen),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(look(format!("the cgroup of sandbox {id}"))(error.source)),
        }
    }

    fn processes(&self, id: &SandboxId) -> Result<Vec<i32>, EngineError> {
        let cgroups = &self.host.cgroups;
        cgroups.try_processes(id).map_err(|error| look(format!("the processes of sandbox {id}"))(error.source))
    }

    fn read_record(&self, id: &SandboxId) -> Result<Reading, EngineError> {
        self.host.records.read(id).map_err(look(format!("the record of sandbox {id}")))
    }

    /// Everything that carries a sandbox's id.
    fn ids_on_host(&self) -> Result<BTreeSet<SandboxId>, EngineError> {
        let host = &self.host;
        let mut ids = host.records.list().map_err(look("the records"))?;
        ids.extend(host.cgroups.list().map_err(|error| look("the cgroups")(error.source))?);
        // Builds keep their layers elsewhere.
        ids.extend(host.storage.list_layers().map_err(look_at_storage)?);
        // A rollback runs a sandbox in a slot, which has another id.
        for id in host.records.list().map_err(look("the records"))? {
            if let Some(slot) = self.read_record(&id)?.record.and_then(|record| record.slot) {
                ids.remove(&slot);
            }
        }
        Ok(ids)
    }

    fn judge(&self, id: &SandboxId, is_known: bool) -> Result<Verdict, EngineError> {
        if !is_known && self.host.records.step_dir(id).is_dir() {
            return Ok(Verdict::Remove(format!("{id}, a step of an image build")));
        }
        let layer = self.host.storage.layer_use(id).map_err(look_at_storage)?;
        // An interrupted preparation without the mark has no directory of a record: a guest's is created before it starts.
        let is_unused = match layer {
            LayerUse::Unused => true,
            LayerUse::Unmounted => !self.host.records.has_any(id).map_err(look(format!("the record of sandbox {id}")))?,
            LayerUse::Absent | LayerUse::Used => false,
        };
        if is_unused && !is_known {
            return Ok(Verdict::Remove(format!("sandbox {id}, prepared and never used")));
        }
        let reading = self.read_record(id)?;
        let faults = || reading.faults.join("; ");
        if let Some(record) = &reading.record {
            // A claim changes the record before it is answered. After a power cut, that change may be lost and the answer not.
            if record.pooled && (!is_known || record.boot == boot_id().map_err(look("this boot's id"))?) {
                return Ok(Verdict::Remove(format!("sandbox {id}, made ahead, prepared and never used")));
            }
            let process = self.process(record)?;
            if !is_known && !process.is_there() && layer == LayerUse::Absent {
                return Ok(Verdict::Remove(format!("the record of sandbox {id}, which was deleted")));
            }
            if !is_known && record.memo.is_none() {
                let reason = "no row names it, and its record, of an older version, does not say whose it is".to_owned();
                return Ok(Verdict::Quarantine { reason, occupied: self.occupied(Some(record), &[]) });
            }
            let is_whole =
                reading.complete && record.memo.is_some() && (!process.is_there() || self.host.records.has_both_sockets(id));
            let to_restore =
                (!is_whole).then(|| if reading.faults.is_empty() { "a part was missing".to_owned() } else { faults() });
            return Ok(Verdict::Found { record: Some(Box::new(record.clone())), process, to_restore });
        }
        let processes = self.processes(id)?;
        let wrong = if reading.faults.is_empty() {
            "it has no record".to_owned()
        } else {
            format!("its record can't be read: {}", faults())
        };
        if is_known && processes.is_empty() {
            let process = Process::Gone(record_lost(format!("{wrong}, and no process of it is left")));
            return Ok(Verdict::Found { record: None, process, to_restore: None });
        }
        if !is_known && processes.is_empty() && layer == LayerUse::Absent && reading.faults.is_empty() {
            return Ok(Verdict::Remove(format!("empty directories of sandbox {id}")));
        }
        Ok(Verdict::Quarantine { reason: wrong, occupied: self.occupied(None, &processes) })
    }

    /// The ids and the address of a sandbox, from its record or else its processes.
    fn occupied(&self, record: Option<&Record>, processes: &[i32]) -> Occupied {
        if let Some(record) = record {
            return Occupied {
                uid_index: Some(record.uid_index),
                net_index: record.net_index.filter(|_| !record.stopped),
                unknown_net: false,
            };
        }
        let read = |pid: &i32, name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        let uid_index = processes.iter().find_map(|pid| uid_index(&read(pid, "uid_map")?));
        let net_index = self.host.network().ok().and_then(|network| {
            let trie = processes.iter().find_map(|pid| read(pid, "net/fib_trie"))?;
            own_addresses(&trie).find_map(|address| network.index_of(address))
        });
        Occupied { uid_index, net_index, unknown_net: net_index.is_none() && !processes.is_empty() }
    }

    /// Inspects everything and changes nothing.
    fn judge_all(&self, known: &HashMap<SandboxId, Row>) -> Result<Vec<(SandboxId, Verdict)>, EngineError> {
        let mut ids = self.ids_on_host()?;
        ids.extend(known.keys().cloned());
        let number = ids.len();
        let mut verdicts = Vec::with_capacity(number);
        for id in ids {
            let verdict = self.judge(&id, known.contains_key(&id)).map_err(|error| descriptors::explain(error, number))?;
            verdicts.push((id, verdict));
        }
        descriptors::check(0, number)?;
        Ok(verdicts)
    }

    fn settle(&self, known: &HashMap<SandboxId, Row>) -> Result<Settled, EngineError> {
        let mut settled = Settled::default();
        for (id, verdict) in self.judge_all(known)? {
            match verdict {
                Verdict::Found { record, process, to_restore } => {
                    let record = record.map(|record| *record);
                    let found = self.settle_found(&id, known.get(&id), record, process, to_restore, &mut settled);
                    settled.recovery.found.push(found);
                }
                Verdict::Remove(what) => {
                    if known.contains_key(&id) {
                        settled.recovery.unclaimed.push(id.clone());
                    }
                    self.host.end_processes(&id);
                    let removed = self.host.remove_objects(&id).and_then(|()| self.host.records.remove(&id));
                    match removed {
                        Ok(()) => settled.recovery.removed.push(what),
                        Err(error) => tracing::warn!(%id, %error, "what is left of a sandbox could not be removed"),
                    }
                }
                Verdict::Quarantine { reason, occupied } => {
                    occupied.uid_index.inspect(|index| self.host.ids.adopt(*index));
                    settled.nets.extend(occupied.net_index);
                    settled.unknown_net |= occupied.unknown_net;
                    let since = self.note_quarantine(&id, &reason);
                    self.state().quarantined.insert(id.clone(), occupied);
                    settled.recovery.quarantined.push(Quarantined { id, reason, since });
                }
            }
        }
        Ok(settled)
    }

    fn settle_found(
        &self,
        id: &SandboxId,
        row: Option<&Row>,
        record: Option<Record>,
        process: Process,
        to_restore: Option<String>,
        settled: &mut Settled,
    ) -> Found {
        self.host.records.end_quarantine(id);
        let record = record.map(|mut record| {
            self.host.ids.adopt(record.uid_index);
            // The server ended between the changes of the row and of the record.
            let is_old = row.is_some_and(|row| record.memo.as_ref() != Some(&row.memo));
            if let Some(what) = to_restore.or_else(|| is_old.then(|| "its row has changed".to_owned())) {
                if let Some(row) = row {
                    (record.pooled, record.name, record.memo) = (false, Some(row.name.clone()), Some(row.memo.clone()));
                }
                match self.host.records.restore(&record) {
                    Ok(()) => tracing::info!(%id, %what, "restored the record of a sandbox"),
                    Err(error) => tracing::warn!(%id, %what, %error, "the record of a sandbox could not be restored; the next start tries again"),
                }
            }
            record
        });
        let memo = record.as_ref().and_then(|record| record.memo.clone());
        let tier = record.as_ref().and_then(|record| self.tier_of_record(record));
        let slot = record.as_ref().map_or(id, Record::slot_id).clone();
        let mut run = |record: Option<Record>, pidfd: Arc<OwnedFd>, state| match record {
            Some(record) => {
                settled.nets.extend(record.net_index);
                settled.live.push((id.clone(), pidfd.clone()));
                self.state().live.insert(id.clone(), Live::new(record, pidfd));
                state
            }
            None => FoundState::Lost(record_lost("it has no record")),
        };
        let state = match process {
            Process::Running(pidfd) => run(record, pidfd, FoundState::Running),
            Process::Frozen(pidfd) => run(record, pidfd, FoundState::Paused),
            Process::Stopped => self.settle_stopped(id, &slot),
            Process::Gone(death) => {
                self.end_left(id, &slot);
                FoundState::Lost(death)
            }
        };
        Found { id: id.clone(), state, memo, tier, isolation: self.isolation(tier.unwrap_or_default()) }
    }

    fn settle_stopped(&self, id: &SandboxId, slot: &SandboxId) -> FoundState {
        self.end_left(id, slot);
        self.state().stopped.insert(id.clone());
        FoundState::Stopped
    }

    /// Ends what is left of its processes, under its id and that of its slot. The disk stays until it is destroyed.
    fn end_left(&self, id: &SandboxId, slot: &SandboxId) {
        for id in [id, slot] {
            self.host.end_processes(id);
            let _ = self.host.cgroups.remove(id);
        }
    }

    /// The tier of a sandbox. Versions without tiers had VMs, too.
    fn tier_of_record(&self, record: &Record) -> Option<Tier> {
        let of_image = || {
            let image = self.host.images.get(&record.image.parse().ok()?).ok()?;
            Some(if has_vm(&image) { Tier::Machine } else { Tier::Namespace })
        };
        record.tier.or_else(of_image)
    }

    fn note_quarantine(&self, id: &SandboxId, reason: &str) -> jiff::Timestamp {
        self.host.records.note_quarantine(id, reason).unwrap_or_else(|error| {
            tracing::warn!(%id, %error, "it could not be noted since when a sandbox is in quarantine");
            jiff::Timestamp::now()
        })
    }

    /// Ends the processes of what can't be explained, and keeps its disk.
    fn give_up(&self, row: &Row, death: Death) -> Result<FoundState, EngineError> {
        let id = &row.id;
        self.host.end_processes(id);
        self.host.cgroups.remove(id).map_err(super::slot::cgroup)?;
        self.host.records.set_aside(id).map_err(|e| at("record", e))?;
        self.forget_quarantine(&row.id);
        Ok(FoundState::Lost(death))
    }

    /// Releases the ids and address that a quarantined sandbox occupied.
    pub(super) fn forget_quarantine(&self, id: &SandboxId) {
        self.host.records.end_quarantine(id);
        let Some(occupied) = self.state().quarantined.remove(id) else { return };
        occupied.uid_index.inspect(|index| self.host.ids.give_back(*index));
        if let (Some(index), Ok(network)) = (occupied.net_index, self.host.network()) {
            network.release(index);
        }
    }

    /// The state of a quarantined sandbox after its adoption.
    fn take_back(&self, row: &Row) -> Result<(FoundState, Option<Arc<OwnedFd>>), EngineError> {
        let id = &row.id;
        let reading = self.read_record(id)?;
        let Some(mut record) = reading.record else {
            let death = record_lost("its record could not be read when it was adopted; its disk is kept");
            return Ok((self.give_up(row, death)?, None));
        };
        (record.name, record.memo) = (Some(row.name.clone()), Some(row.memo.clone()));
        record.revision += 1;
        self.host.records.restore(&record).map_err(|e| at("record", e))?;
        self.host.records.end_quarantine(id);
        let slot = record.slot_id().clone();
        if record.stopped {
            self.state().quarantined.remove(id);
            return Ok((self.settle_stopped(id, &slot), None));
        }
        let state = if self.is_frozen(record.slot_id())? { FoundState::Paused } else { FoundState::Running };
        {
            let mut held = self.state();
            // Its ids and its address are still reserved for it.
            held.quarantined.remove(id);
            if let Some(live) = held.live.get_mut(id) {
                live.record = record;
                return Ok((state, None));
            }
        }
        match self.find(&record).map_err(look(format!("the processes of sandbox {id}")))? {
            Ok(pidfd) => {
                self.state().live.insert(id.clone(), Live::new(record, pidfd.clone()));
                Ok((state, Some(pidfd)))
            }
            Err(death) => {
                self.end_left(id, &slot);
                Ok((FoundState::Lost(death), None))
            }
        }
    }
}

/// The results of a recovery.
#[derive(Default)]
struct Settled {
    recovery: Recovery,
    live: Vec<(SandboxId, Arc<OwnedFd>)>,
    nets: Vec<u32>,
    unknown_net: bool,
}

impl NamespaceEngine {
    pub(super) async fn find_again(&self, known: &[Row]) -> Result<Recovery, EngineError> {
        let shared = self.shared.clone();
        let known: HashMap<SandboxId, Row> = known.iter().map(|row| (row.id.clone(), row.clone())).collect();
        let settled = blocking(move || {
            let settled = shared.settle(&known)?;
            // Their processes have ended.
            shared.host.records.remove_steps().map_err(|e| at("build files", e))?;
            if shared.host.storage.has_states() {
                shared.settle_states()?;
            }
            shared.host.buckets.recover();
            Ok(settled)
        })
        .await?;
        let network = self.shared.host.network()?;
        if settled.unknown_net {
            tracing::warn!(
                "the addresses of all sandboxes stay reserved until the next start: one in quarantine does not say which is its own"
            );
            network.adopt_all().await;
        } else {
            network.adopt(&settled.nets).await;
        }
        let records: Vec<Record> = self.shared.state().live.values().map(|live| live.record.clone()).collect();
        for record in records.iter().filter(|record| record.authority.is_some()) {
            // It has one, so none is made.
            let _ = network.authority(record.id.as_str(), record.authority.as_ref());
        }
        let of_record = |record| {
            let Record { net_index, id, network_policy, network_floor, .. }: &Record = record;
            Some(((*net_index)?, id.to_string(), EffectivePolicy::new(network_policy.as_ref(), network_floor.as_ref())?))
        };
        let policies: Vec<_> = records.iter().filter_map(of_record).collect();
        let live: BTreeSet<u32> = records.iter().filter_map(|record| record.net_index).collect();
        // What is in quarantine may have a policy that can't be read.
        let is_held = |index| !live.contains(&index) && (settled.unknown_net || settled.nets.contains(&index));
        network.restore_policies(&policies, is_held).map_err(failed_network)?;
        self.reconnect(network).await;
        for (id, pidfd) in settled.live {
            self.shared.watch(id, pidfd);
        }
        tokio::spawn(self.shared.clone().keep_prepared());
        tokio::spawn(self.shared.clone().watch_launcher());
        tokio::spawn(self.shared.clone().keep_buckets());
        Ok(settled.recovery)
    }

    /// Connects running sandboxes that have lost their link: the network namespace of a server in a container ends with it.
    async fn reconnect(&self, network: &Network) {
        let running: HashMap<u32, (i32, Arc<OwnedFd>)> = {
            let state = self.shared.state();
            let of_live = |live: &Live| Some((live.record.net_index?, (live.record.pid, live.pidfd.clone())));
            state.live.values().filter_map(of_live).collect()
        };
        let lost = network.unconnected(running.keys().copied().collect()).await;
        let lost = lost.inspect_err(|error| tracing::warn!(%error, "links of running sandboxes could not be checked"));
        let mut connected = 0;
        for index in lost.unwrap_or_default() {
            let (pid, pidfd) = &running[&index];
            let netns = std::fs::File::open(format!("/proc/{pid}/ns/net"));
            // Opened first, checked after: the pid can't be reused between the two.
            if wait_end(pidfd, Duration::ZERO) {
                continue;
            }
            let done = match netns {
                Ok(netns) => network.reconnect(index, netns.into()).await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match done {
                Ok(()) => connected += 1,
                Err(error) => tracing::warn!(index, %error, "a running sandbox could not be connected again; it has no network"),
            }
        }
        if connected > 0 {
            tracing::info!(connected, "connected running sandboxes that had lost their network link");
        }
    }

    pub(super) async fn set_apart(&self, id: &SandboxId, reason: &str) -> Result<jiff::Timestamp, EngineError> {
        let (shared, id, reason) = (self.shared.clone(), id.clone(), reason.to_owned());
        blocking(move || Ok(shared.note_quarantine(&id, &reason))).await
    }

    pub(super) async fn adopt_quarantined(&self, row: &Row) -> Result<Found, EngineError> {
        let (shared, row) = (self.shared.clone(), row.clone());
        let (found, pidfd) = blocking(move || {
            let (state, pidfd) = shared.take_back(&row)?;
            let tier = shared.state().live.get(&row.id).and_then(|live| shared.tier_of_record(&live.record));
            let isolation = shared.isolation(tier.unwrap_or_default());
            Ok((Found { id: row.id, state, memo: Some(row.memo), tier, isolation }, pidfd))
        })
        .await?;
        if let Some(pidfd) = pidfd {
            self.shared.watch(found.id.clone(), pidfd);
        }
        Ok(found)
    }

    pub(super) async fn look_at_remains(&self, id: &SandboxId) -> Result<Remains, EngineError> {
        let (shared, id) = (self.shared.clone(), id.clone());
        blocking(move || {
            let storage = &shared.host.storage;
            Ok(Remains {
                processes: shared.processes(&id)?.len(),
                has_disk: storage.layer_use(&id).map_err(look_at_storage)? != LayerUse::Absent,
                disk_bytes: storage.usage(&id),
                has_record: shared.read_record(&id)?.record.is_some(),
            })
        })
        .await
    }
}

/// The range of ids in `/proc/PID/uid_map`.
fn uid_index(map: &str) -> Option<u32> {
    let mut fields = map.split_ascii_whitespace();
    (fields.next()? == "0").then_some(())?;
    IdRanges::index(fields.next()?.parse().ok()?)
}

/// The network namespace's own addresses in `/proc/PID/net/fib_trie`.
fn own_addresses(trie: &str) -> impl Iterator<Item = Ipv4Addr> {
    let lines = trie.lines().map(str::trim);
    lines
        .clone()
        .zip(lines.skip(1))
        .filter(|(_, next)| *next == "/32 host LOCAL")
        .filter_map(|(line, _)| line.strip_prefix("|-- ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_addresses_are_read_off_processes() {
        let base = IdRanges::base(7);
        assert_eq!(uid_index(&format!("         0 {base}      65536\n")), Some(7));
        assert_eq!(uid_index("         0          0 4294967295\n"), None);
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.209.0.1\n        /32 link UNICAST\n     |-- 10.209.0.2\n        /32 host LOCAL\n";
        assert_eq!(own_addresses(trie).collect::<Vec<_>>(), [Ipv4Addr::from([10, 209, 0, 2])]);
    }
}
