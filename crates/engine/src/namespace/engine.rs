//! The engine: creates, reaches and ends sandboxes that consist of namespaces.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_image::{Image, ImageStore};
use arenite_isolation::mounts::{self, Attributes};
use arenite_isolation::{Begin, Bind};
use arenite_model::protocol::{self, Assignment, GuestConfig, hosts_file};
use arenite_model::{
    Death, DeathReason, NetworkMode, NetworkPolicy, SandboxId, SandboxName, SandboxSpec, StateId, TenantId, Tier,
};
use async_trait::async_trait;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{Notify, broadcast};

use super::automatic::Disks;
use super::buckets::Buckets;
use super::copies::Copies;
use super::data_dir::write_shared_file;
use super::host::failed_storage;
use super::network::{EffectivePolicy, Network, SandboxProcesses};
use super::record::{Record, boot_id};
use super::recovery::Occupied;
use super::reset::failed_network;
use super::slot::{Slot, cgroup, kill, start_time, wait_end};
use super::states::States;
use super::storage::Storage;
use super::{
    Host, NamespaceConfig, Role, ServerLock, at, ca, command, death, descriptors, gvisor, kept, kvm, lock, network, recovery,
    restart, volumes,
};
use crate::descriptors::DescriptorCount;
use crate::{
    AutoSealed, BoundSecret, Comparison, Connection, Created, DiskState, EgressEvent, Ended, Engine, EngineError, Found,
    HeldState, History, HostCapacity, ImportedState, LayeredTree, NetworkLog, Recovery, Remains, Return, Returned, Row, Seal,
    SealTime, Sealed, SealedState, StagedState, Stages, Usage,
};

/// Interval between checks for free descriptors, while sandboxes are prepared in advance.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(5);
/// Time without a create after which slots are prepared.
const CALM: Duration = Duration::from_millis(20);
/// Interval between pings of an idle launcher.
const LAUNCHER_CHECK: Duration = Duration::from_secs(2);
/// Time for a killed sandbox to end. Only a process stuck in the kernel takes longer.
pub(super) const END_LIMIT: Duration = Duration::from_secs(30);

/// The embedded engine. Cheap to clone.
#[derive(Clone)]
pub struct NamespaceEngine {
    pub(super) shared: Arc<EngineShared>,
}

pub(super) struct EngineShared {
    pub(super) host: Arc<Host>,
    pub(super) states: States,
    pub(super) disks: Disks,
    pub(super) copies: Copies,
    state: Mutex<EngineState>,
    ended: broadcast::Sender<Ended>,
    /// Notified when a slot was taken: prepare another.
    taken: Notify,
}

#[derive(Default)]
pub(super) struct EngineState {
    ready: VecDeque<Slot>,
    reserved: HashMap<SandboxId, Slot>,
    pub(super) live: HashMap<SandboxId, Live>,
    /// Sandboxes without processes, which a restart runs again.
    pub(super) stopped: HashSet<SandboxId>,
    /// What a recovery could not explain, with the ids and addresses that it occupies.
    pub(super) quarantined: HashMap<SandboxId, Occupied>,
    closed: bool,
    /// No slots are prepared.
    is_idle: bool,
}

/// A sandbox with a running program.
pub(super) struct Live {
    pub(super) record: Record,
    pub(super) pidfd: Arc<OwnedFd>,
    /// To the guest of a pooled sandbox, kept for its assignment and after that for the first call: the guest has accepted it, so
    /// a request on it takes less time than on a new one.
    pub(super) connection: Option<UnixStream>,
    /// The image of a pooled sandbox.
    pub(super) image: Option<Image>,
}

impl Live {
    pub(super) fn new(record: Record, pidfd: Arc<OwnedFd>) -> Self {
        Self { record, pidfd, connection: None, image: None }
    }

    pub(super) fn tier(&self) -> Tier {
        self.record.tier.unwrap_or_default()
    }

    /// The kept connection, unless the guest has closed it or sent something without a request.
    pub(super) fn connection(&mut self) -> Option<UnixStream> {
        let connection = self.connection.take()?;
        let is_idle = matches!(connection.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        is_idle.then_some(connection)
    }
}

impl NamespaceEngine {
    /// Opens the host's resources: storage, network, launcher. Call [`Engine::recover`] before anything else. The lock is that
    /// of the same data directory.
    pub async fn start(config: NamespaceConfig, lock: ServerLock) -> Result<Self, EngineError> {
        let sandboxes = recovery::count(&config.data_dir);
        descriptors::check(descriptors::OWN + sandboxes as u64, sandboxes)?;
        let host = Arc::new(Host::open(config, Role::Server(lock)).await?);
        let states = States::open(&host.config.data_dir).map_err(|e| at("states", e))?;
        let (ended, _) = broadcast::channel(256);
        let shared = Arc::new(EngineShared {
            host,
            states,
            disks: Disks::default(),
            copies: Copies::default(),
            state: Mutex::default(),
            ended,
            taken: Notify::new(),
        });
        if let Ok(network) = shared.host.network() {
            let known = Arc::downgrade(&shared);
            network.locate_processes_by(Box::new(move |sandbox| known.upgrade()?.locate_processes(sandbox)));
        }
        Ok(Self { shared })
    }

    /// What the host does not enforce, or only in part, as text.
    pub async fn warnings(&self) -> Vec<String> {
        let host = &self.shared.host;
        let mut warnings = host.storage.notes().to_vec();
        if let Ok(network) = host.network() {
            warnings.extend(network.warnings().await);
        }
        warnings
    }

    /// Why no sandbox can be created now, if the launcher is the cause.
    pub fn launcher_problem(&self) -> Option<String> {
        self.shared.host.launcher_problem()
    }

    /// The images of sandboxes.
    pub fn images(&self) -> &arenite_image::ImageStore {
        &self.shared.host.images
    }
}

impl EngineShared {
    pub(super) fn state(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Maintains the number of prepared slots, one at a time: preparations must not slow a burst of creates. While half of them
    /// are left, it also waits until creates pause, since a preparation takes as much of the host as a create.
    pub(super) async fn keep_prepared(self: Arc<Self>) {
        let mut pause = Duration::from_millis(100);
        loop {
            let (ready, wanted, released) = {
                let mut state = self.state();
                if state.closed {
                    return;
                }
                match state.is_idle {
                    true => (0, 0, std::mem::take(&mut state.ready)),
                    false => (state.ready.len(), self.host.config.prepared_slots, VecDeque::new()),
                }
            };
            for slot in released {
                self.discard(slot).await;
            }
            if ready >= wanted {
                self.taken.notified().await;
                continue;
            }
            if ready * 2 >= wanted && tokio::time::timeout(CALM, self.taken.notified()).await.is_ok() {
                continue;
            }
            if DescriptorCount::now().is_some_and(|count| count.available() < count.needed_for(1)) {
                tokio::time::sleep(SHORTAGE_PAUSE).await;
                continue;
            }
            match self.host.prepare(SandboxId::random(), NetworkMode::Open, false).await {
                Ok(slot) => {
                    pause = Duration::from_millis(100);
                    if let Err(slot) = self.keep(slot) {
                        self.discard(*slot).await;
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a sandbox could not be prepared; the next try is in {pause:?}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(30));
                }
            }
        }
    }

    /// Replaces a hanging launcher before a create needs it.
    pub(super) async fn watch_launcher(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(LAUNCHER_CHECK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.state().closed {
                return;
            }
            let host = self.host.clone();
            // A check that panicked must not end the server; the next one follows.
            let _ = tokio::task::spawn_blocking(move || host.check_launcher()).await;
        }
    }

    /// Adds a slot to the ready ones; returns it if the engine was closed in the meantime.
    fn keep(&self, slot: Slot) -> Result<(), Box<Slot>> {
        let mut state = self.state();
        if state.closed {
            return Err(Box::new(slot));
        }
        state.ready.push_back(slot);
        Ok(())
    }

    /// Ends an unused slot.
    async fn discard(&self, slot: Slot) {
        let host = self.host.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || host.discard(&slot)).await {
            tracing::warn!(%error, "giving a prepared sandbox back was cut off");
        }
    }

    /// Reports when a sandbox ends by itself.
    pub(super) fn watch(self: &Arc<Self>, id: SandboxId, pidfd: Arc<OwnedFd>) {
        let shared = self.clone();
        tokio::spawn(async move {
            if !has_ended(&pidfd).await {
                return;
            }
            // A sandbox that is being destroyed is no longer in `live`.
            let by_itself = {
                let state = shared.state();
                let live = state.live.get(&id).filter(|live| Arc::ptr_eq(&live.pidfd, &pidfd));
                live.map(|live| (live.tier(), live.record.slot_id().clone()))
            };
            shared.host.buckets.changed.notify_one();
            if let Some((tier, of)) = by_itself {
                let host = Arc::clone(&shared.host);
                let death = tokio::task::spawn_blocking(move || death::of_guest(&host, &of, tier, &pidfd));
                let death = death.await.unwrap_or_else(|_| Death::new(DeathReason::Unknown));
                let _ = shared.ended.send(Ended { id, death });
            }
        });
    }

    /// One without processes gets the policy when it is started.
    fn change_network_policy(&self, id: &SandboxId, spec: &SandboxSpec, close_open: bool) -> Result<(), EngineError> {
        let Some(mut record) = self.state().live.get(id).map(|live| live.record.clone()) else { return Ok(()) };
        let Some(index) = record.net_index else { return Ok(()) };
        let network = self.host.network()?;
        record.network_policy.clone_from(&spec.network_policy);
        record.network_floor.clone_from(&spec.network_floor);
        record.revision += 1;
        // The record comes first: a start goes by it.
        self.host.records.write(&record).map_err(|e| at("record", e))?;
        if let Some(live) = self.state().live.get_mut(id) {
            live.record = record;
        }
        network.police(index, id.as_str(), EffectivePolicy::of_spec(spec), close_open).map_err(failed_network)
    }

    /// Where the processes of a running sandbox are. In gVisor, one process has all sockets.
    fn locate_processes(&self, sandbox: &str) -> Option<SandboxProcesses> {
        let id: SandboxId = sandbox.parse().ok()?;
        let state = self.state();
        let live = state.live.get(&id).filter(|live| live.tier() != Tier::Gvisor)?;
        let (cgroups, slot) = (self.host.cgroups.clone(), live.record.slot_id().clone());
        let list = Box::new(move || cgroups.processes(&slot));
        Some(SandboxProcesses { first: live.record.pid, pidfd: live.pidfd.clone(), list })
    }

    /// Everything between a prepared slot and a running guest. Without a memo, it is created in advance. Blocks for a few
    /// milliseconds.
    pub(super) fn begin(
        &self,
        slot: &Slot,
        name: &SandboxName,
        memo: Option<String>,
        spec: &SandboxSpec,
        image: &Image,
        stages: &mut Stages,
    ) -> Result<Live, EngineError> {
        let host = &self.host;
        let assignment = if memo.is_some() { Assignment::Assigned } else { Assignment::Pooled };
        let id = slot.sandbox_id();
        let tier =
            gvisor::tier_of(spec.tier, host.config.default_tier, Some(image), || gvisor::check(host.config.runsc.as_deref()))?;
        let hostname = spec.hostname.clone().unwrap_or_else(|| name.to_string());

        if spec.resources != slot.limits {
            host.cgroups.set_limits(&slot.id, &spec.resources).map_err(cgroup)?;
            if spec.resources.disk_bytes != slot.limits.disk_bytes {
                host.storage.set_limit(id, spec.resources.disk_bytes).map_err(|e| at("disk limit", io::Error::other(e)))?;
            }
        }
        stages.done("limits");

        let upper = slot.layer.join("upper");
        let names = [("hostname", format!("{hostname}\n")), ("hosts", hosts_file(&hostname))];
        // A restored guest writes them itself.
        for (name, content) in names.into_iter().filter(|_| !slot.is_restored()) {
            match slot.kept {
                Some(_) => restart::write_etc(&upper, name, content.as_bytes()),
                None => write_shared_file(&upper.join("etc").join(name), content.as_bytes()),
            }
            .map_err(|e| at("etc", e))?;
        }
        let lower = match &slot.kept {
            Some(kept) => kept.layers.clone(),
            None => {
                let mut lower: Vec<PathBuf> = image.layers.iter().map(|l| l.dir.clone()).collect();
                if let Some(file) = &host.config.extra_ca {
                    lower.push(ca::layer(host, image, file)?);
                }
                lower
            }
        };
        let mapped = |dir: &PathBuf, read_only| {
            mounts::detached(dir, Attributes { read_only, idmap: Some(slot.userns.as_fd()), ..Attributes::default() })
        };
        let layers =
            lower.iter().map(|dir| mapped(dir, true)).collect::<Result<Vec<_>, _>>().map_err(|e| at("id-mapped layer", e))?;
        let command = match slot.kept {
            Some(_) => restart::command_place(&upper),
            None => command::place(&upper, image).map_err(|e| at("command", e))?,
        };
        let writable = mapped(&slot.layer, false).map_err(|e| at("id-mapped writable layer", e))?;
        let binds = volumes::mounts(host, spec, slot.userns.as_fd())?;
        stages.done("layers");

        let listener = host.records.bind(id).map_err(|e| at("guest socket", e))?;
        let keeper = match tier {
            Tier::Gvisor => Some(host.records.bind_keeper(id).map_err(|e| at("keeper's socket", e))?),
            _ => None,
        };
        let authority = match spec.has_proxied_secrets() {
            false => None,
            true => Some(host.network()?.authority(id.as_str(), None)?),
        };
        let certificate = authority.as_ref().map(|authority| authority.certificate.clone());
        let guest_config =
            GuestConfig { assignment, certificate, ..guest_config(id, name, spec, image, tier, host.config.extra_ca.is_some()) };
        let config = config_file(&guest_config).map_err(|e| at("guest configuration", e))?;
        let processes = slot.image().map(|dir| Self::image_mount(dir, slot)).transpose()?;
        let started = start_time(slot.first.pid).map_err(|e| at("first process", e))?;
        let mut record = Record {
            id: id.clone(),
            name: (assignment == Assignment::Assigned).then(|| name.clone()),
            pid: slot.first.pid,
            start_time: started.ok_or_else(|| at("first process", io::ErrorKind::NotFound.into()))?,
            boot: boot_id().map_err(|e| at("record", e))?,
            uid_index: slot.uid_index,
            net_index: slot.net_index,
            network_policy: spec.network_policy.clone(),
            authority,
            network_floor: spec.network_floor.clone(),
            image: image.name.to_string(),
            layers: lower,
            pooled: assignment == Assignment::Pooled,
            stopped: slot.kept.as_ref().is_some_and(|kept| kept.stopped),
            tier: Some(tier),
            slot: slot.sandbox.as_ref().map(|_| slot.id.clone()),
            source: slot.kept.as_ref().and_then(|kept| kept.source.clone()),
            head: slot.kept.as_ref().and_then(|kept| kept.head.clone()),
            last_checkpoint: slot.kept.as_ref().map_or(0, |kept| kept.last_checkpoint),
            buckets: volumes::in_buckets(host, spec),
            memo,
            revision: slot.kept.as_ref().map_or(0, |kept| kept.revision + 1),
        };
        host.records.write(&record).map_err(|e| at("record", e))?;
        if let (Some(index), Some(policy)) = (slot.net_index, EffectivePolicy::of_spec(spec)) {
            host.network()?.police(index, id.as_str(), Some(policy), false).map_err(failed_network)?;
        }
        // From here on the layer may have content, and the record names its owner.
        host.storage.mark_used(id).map_err(|e| at("writable layer", io::Error::other(e)))?;
        stages.done("record");

        let (runsc, container) = match record.tier {
            Some(Tier::Gvisor) => {
                let volumes: Vec<(Bind, bool)> =
                    binds.iter().zip(&spec.volumes).map(|((bind, _), volume)| (bind.clone(), volume.read_only)).collect();
                let files = host.config.open_files;
                let container = gvisor::container(&hostname, spec, command.as_deref(), &volumes, files, slot.is_restored());
                (Some(host.runsc()?), Some(container))
            }
            _ if slot.is_restored() => {
                return Err(EngineError::NoProcesses { reason: "the sandbox has another tier than gvisor".to_owned() });
            }
            _ => (None, None),
        };
        let counters = host.cgroups.counters(&slot.id);
        let given: Vec<BorrowedFd<'_>> = layers
            .iter()
            .map(|l| l.as_fd())
            .chain([writable.as_fd(), listener.as_fd(), config.as_fd()])
            .chain(keeper.iter().map(AsFd::as_fd))
            .chain(counters.iter().map(|(_, file)| file.as_fd()))
            .chain(binds.iter().map(|(_, tree)| tree.as_fd()))
            .chain(runsc.iter().map(AsFd::as_fd))
            .chain(processes.iter().map(AsFd::as_fd))
            .collect();
        let names = [protocol::LISTENER, protocol::CONFIG].into_iter().chain(keeper.iter().map(|_| protocol::KEEPER));
        let names = names.chain(counters.iter().map(|(counter, _)| counter.name())).map(str::to_owned).collect();
        let begin = Begin {
            layers: layers.len(),
            upper: "upper".to_owned(),
            work: "work".to_owned(),
            hostname: hostname.clone(),
            shm_bytes: spec.resources.shm_bytes,
            open_files: host.config.open_files,
            given: names,
            scratch: Vec::new(),
            command,
            binds: binds.iter().map(|(bind, _)| bind.clone()).collect(),
            tmpfs: Vec::new(),
            container,
        };
        slot.begin(&begin, &given)?;
        if slot.is_restored() {
            self.tell_restored(slot, kept::restored(guest_config, &hostname, slot))?;
        }
        if slot.continues_vm() {
            self.continue_vm(id)?;
        }
        if record.stopped {
            // Only now: a kill of the server before leaves it paused, and not lost.
            (record.stopped, record.revision) = (false, record.revision + 1);
            host.records.write(&record).map_err(|e| at("record", e))?;
        }
        stages.done("start");
        let pidfd = slot.first.pidfd.try_clone().map_err(|e| at("pidfd", e))?;
        let image = record.pooled.then(|| image.clone());
        Ok(Live { image, ..Live::new(record, Arc::new(pidfd)) })
    }

    /// The current image that a spec names.
    pub(super) fn image(&self, spec: &SandboxSpec) -> Result<Image, EngineError> {
        image_named(spec, &self.host.images, &self.host.config.data_dir)
    }

    /// The isolation of a sandbox of a tier on this host.
    pub(super) fn isolation(&self, tier: Tier) -> Vec<String> {
        let mut isolation: Vec<String> = [
            "user, pid, mount, network, ipc, uts and cgroup namespaces",
            "seccomp",
            "capabilities",
            "memory, pids and cpu limits",
        ]
        .map(str::to_owned)
        .into();
        if self.host.storage.kind().disk_limit_enforced() {
            isolation.push("disk limit".to_owned());
        }
        isolation.extend(gvisor::isolation(tier).map(str::to_owned));
        isolation
    }
}

/// The configuration of a sandbox's guest.
pub(crate) fn guest_config(
    id: &SandboxId,
    name: &SandboxName,
    spec: &SandboxSpec,
    image: &Image,
    tier: Tier,
    extra_ca: bool,
) -> GuestConfig {
    GuestConfig {
        sandbox_id: id.to_string(),
        sandbox_name: name.to_string(),
        image: image.name.to_string(),
        env: environment(spec, image, extra_ca || spec.has_proxied_secrets()),
        workdir: spec.workdir.clone().or_else(|| image.config.workdir.clone()),
        user: image.config.user.clone(),
        args: main_command(spec, image),
        ports: spec.ports.clone(),
        assignment: Assignment::Assigned,
        tier,
        certificate: None,
        sessions: spec.sessions.as_deref().cloned(),
    }
}

/// The main command; empty: none. An image without its own has that of the spec alone.
fn main_command(spec: &SandboxSpec, image: &Image) -> Vec<String> {
    if !spec.image_command {
        return spec.args.clone();
    }
    let rest = if spec.args.is_empty() { &image.config.cmd } else { &spec.args };
    image.config.entrypoint.iter().chain(rest).cloned().collect()
}

/// The image's environment, overridden by the spec's.
fn environment(spec: &SandboxSpec, image: &Image, extra_ca: bool) -> std::collections::BTreeMap<String, String> {
    let mut env = std::collections::BTreeMap::new();
    if extra_ca {
        // Programs with built-in certificates are pointed at the sandbox's.
        for name in ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"]
        {
            env.insert(name.to_owned(), format!("/{}", ca::BUNDLE));
        }
    }
    env.extend(image.config.env.clone());
    env.extend(spec.env.clone());
    env
}

/// The guest's configuration in an in-memory file.
pub(crate) fn config_file(config: &GuestConfig) -> io::Result<File> {
    memory_file(&serde_json::to_vec(config)?)
}

/// A file in memory for a guest to read.
pub(crate) fn memory_file(content: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("arenite-guest", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

/// The current image that a spec names.
pub(crate) fn image_named(spec: &SandboxSpec, images: &ImageStore, data_dir: &Path) -> Result<Image, EngineError> {
    images.get_of(spec.image_owner.as_ref(), &spec.image).map_err(|error| match error.code() {
        arenite_model::ErrorCode::NotFound => {
            EngineError::NoImage { image: spec.image.to_string(), is_building: lock::is_building(data_dir) }
        }
        _ => at("image", io::Error::other(error)),
    })
}

/// Waits for the end of a process. Returns false if that can't be watched.
pub(crate) async fn has_ended(pidfd: &Arc<OwnedFd>) -> bool {
    #[expect(deprecated, reason = "an OwnedFd keeps its descriptor open, which is what the successor makes callers promise")]
    let Ok(readable) = AsyncFd::new(Arc::clone(pidfd)) else { return false };
    readable.readable().await.is_ok()
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| at("task", io::Error::other(error)))?
}

impl NamespaceEngine {
    /// Creates a sandbox and starts its guest. Without a memo, it is created in advance.
    pub(super) async fn start_sandbox(
        &self,
        id: &SandboxId,
        name: &SandboxName,
        memo: Option<String>,
        spec: &SandboxSpec,
    ) -> Result<Created, EngineError> {
        let shared = self.shared.clone();
        let mut stages = Stages::begin();
        let image = shared.image(spec)?;
        volumes::find_all(&shared.host.config.volumes, Some(&shared.host.storage), spec)?;
        let kvm = kvm::is_for(&image, &shared.host.config.data_dir);
        let reserved = shared.state().reserved.remove(id);
        let mut slot = match reserved {
            Some(slot) if (slot.mode, slot.kvm) == (spec.network, kvm) => slot,
            other => {
                // Prepared for another kind of network, or without KVM: only the id is kept.
                if let Some(slot) = other {
                    shared.discard(slot).await;
                }
                shared.host.prepare(id.clone(), spec.network, kvm).await?
            }
        };
        stages.done("slot");
        let (name, spec, owner) = (name.clone(), spec.clone(), shared.clone());
        let done = blocking(move || {
            let begun = owner
                .fill_from_state(&mut slot, &spec)
                .and_then(|()| owner.begin(&slot, &name, memo, &spec, &image, &mut stages));
            match begun {
                Ok(live) => {
                    let (id, pidfd, tier) = (slot.id.clone(), live.pidfd.clone(), live.tier());
                    owner.state().live.insert(id.clone(), live);
                    Ok((id, pidfd, tier, stages.done))
                }
                Err(error) => {
                    owner.host.discard(&slot);
                    if let Err(error) = owner.host.records.remove(&slot.id) {
                        tracing::warn!(id = %slot.id, %error, "a record could not be removed; the next start tries again");
                    }
                    slot.kept.and_then(|kept| kept.source).inspect(|source| owner.end_use(source));
                    Err(error)
                }
            }
        })
        .await?;
        let (id, pidfd, tier, stages) = done;
        shared.watch(id, pidfd);
        Ok(Created { tier, isolation: shared.isolation(tier), stages })
    }
}

#[async_trait]
impl Engine for NamespaceEngine {
    fn name(&self) -> &'static str {
        "namespace"
    }

    async fn tier(&self, spec: &SandboxSpec) -> Result<Tier, EngineError> {
        let config = &self.shared.host.config;
        let image = self.shared.host.images.get_of(spec.image_owner.as_ref(), &spec.image).ok();
        gvisor::tier_of(spec.tier, config.default_tier, image.as_ref(), || gvisor::check(config.runsc.as_deref()))
    }

    async fn reserve(&self) -> Result<SandboxId, EngineError> {
        let host = self.shared.host.clone();
        blocking(move || host.storage.check_writable().map_err(failed_storage)).await?;
        let slot = self.take_slot(NetworkMode::Open, false).await?;
        let id = slot.id.clone();
        self.shared.state().reserved.insert(id.clone(), slot);
        Ok(id)
    }

    async fn create(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        self.start_sandbox(&row.id, &row.name, Some(row.memo.clone()), spec).await
    }

    async fn restart(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        self.start_again(row, spec).await
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        self.make_ahead(spec).await
    }

    async fn adopt(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        self.give_away(row, spec).await
    }

    fn check_network_policy(&self, policy: &NetworkPolicy) -> Result<(), EngineError> {
        Ok(network::check_policy(policy)?)
    }

    async fn set_network_policy(&self, id: &SandboxId, spec: &SandboxSpec, close_open: bool) -> Result<(), EngineError> {
        let (shared, id, spec) = (self.shared.clone(), id.clone(), spec.clone());
        blocking(move || shared.change_network_policy(&id, &spec, close_open)).await
    }

    async fn set_secrets(&self, id: &SandboxId, secrets: Vec<BoundSecret>) -> Result<(), EngineError> {
        let (shared, id) = (self.shared.clone(), id.clone());
        blocking(move || {
            shared.host.network()?.set_secrets(id.as_str(), secrets);
            Ok(())
        })
        .await
    }

    fn network_log(&self, id: &SandboxId) -> NetworkLog {
        self.shared.host.network().map(|network| network.log(id.as_str())).unwrap_or_default()
    }

    fn note_network_event(&self, event: EgressEvent) {
        if let Ok(network) = self.shared.host.network() {
            network.note(event);
        }
    }

    fn network_events(&self) -> Option<broadcast::Receiver<EgressEvent>> {
        self.shared.host.network().ok().map(Network::events)
    }

    fn check_states(&self) -> Result<(), EngineError> {
        self.shared.check_states()
    }

    async fn seal(&self, id: &SandboxId, seal: Seal) -> Result<Sealed, EngineError> {
        self.seal_disk(id, seal).await
    }

    async fn seal_around(
        &self,
        id: &SandboxId,
        when: SealTime,
        image_owner: Option<TenantId>,
    ) -> Result<AutoSealed, EngineError> {
        self.seal_around_step(id, when, image_owner).await
    }

    async fn history(&self, id: &SandboxId) -> Result<History, EngineError> {
        self.read_history(id).await
    }

    fn state(&self, state: &StateId) -> Option<SealedState> {
        self.shared.states.get(state).map(|manifest| manifest.state)
    }

    async fn remove_state(&self, state: &StateId) -> Result<(), EngineError> {
        self.drop_state(state).await
    }

    fn snapshots(&self) -> Vec<SealedState> {
        self.shared.states.snapshots()
    }

    async fn return_to(&self, row: &Row, spec: &SandboxSpec, back: Return) -> Result<(Created, Returned), EngineError> {
        self.roll_back(row, spec, back).await
    }

    async fn compare(
        &self,
        id: &SandboxId,
        before: DiskState,
        after: DiskState,
        limit: usize,
    ) -> Result<Comparison, EngineError> {
        self.compare_disks(id, before, after, limit).await
    }

    async fn state_files(&self, state: &StateId) -> Result<LayeredTree, EngineError> {
        self.open_state(state).await
    }

    async fn hold_state(&self, state: &StateId) -> Result<HeldState, EngineError> {
        self.shared.hold_state(state)
    }

    async fn stage_state(&self, limit_bytes: u64) -> Result<StagedState, EngineError> {
        self.stage_import(limit_bytes).await
    }

    async fn import_state(&self, staged: StagedState, about: ImportedState) -> Result<SealedState, EngineError> {
        self.keep_import(staged, about).await
    }

    async fn activity(&self, id: &SandboxId) -> Result<Option<String>, EngineError> {
        self.client_work(id).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), EngineError> {
        let reserved = self.shared.state().reserved.remove(id);
        if let Some(slot) = reserved {
            self.shared.discard(slot).await;
            return Ok(());
        }
        let (shared, id) = (self.shared.clone(), id.clone());
        blocking(move || {
            let live = shared.state().live.remove(&id);
            let record = match &live {
                Some(live) => Some(live.record.clone()),
                None => shared.host.records.read(&id).ok().and_then(|reading| reading.record),
            };
            let slot = record.as_ref().map_or(&id, Record::slot_id).clone();
            let source = record.as_ref().and_then(|record| record.source.clone());
            // A lost sandbox has its ids, but its address may belong to another by now.
            let uid_index = match &live {
                Some(live) => Some(live.record.uid_index),
                None => record.map(|record| record.uid_index).filter(|_| !shared.state().quarantined.contains_key(&id)),
            };
            let net_index = live.as_ref().and_then(|live| live.record.net_index);
            if let Some(live) = &live {
                kill(&live.pidfd);
                // Frozen processes die when they are thawed.
                let _ = shared.host.cgroups.set_frozen(&slot, false);
                if !wait_end(&live.pidfd, END_LIMIT) {
                    shared.state().live.insert(id.clone(), Live::new(live.record.clone(), live.pidfd.clone()));
                    return Err(EngineError::Timeout { what: "ending the sandbox's processes", limit: END_LIMIT });
                }
            }
            if slot != id {
                shared.host.end_again(&slot, None);
            }
            match uid_index {
                Some(uid_index) => shared.host.sweep(&id, uid_index, net_index),
                None => {
                    shared.host.end_processes(&id);
                    shared.host.remove_objects(&id).map_err(|e| at("removal", e))?;
                }
            }
            if let Ok(network) = shared.host.network() {
                network.forget_secrets(id.as_str());
            }
            shared.host.records.remove(&id).map_err(|e| at("record", e))?;
            shared.state().stopped.remove(&id);
            shared.host.buckets.changed.notify_one();
            shared.forget_quarantine(&id);
            shared.forget_states(&id, source.as_ref());
            Ok(())
        })
        .await
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), EngineError> {
        let (slot, host) = (self.slot_of(id)?, self.shared.host.clone());
        blocking(move || host.freeze(&slot)).await
    }

    async fn resume(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.shared.host.cgroups.set_frozen(&self.slot_of(id)?, false).map_err(cgroup)
    }

    fn can_stop(&self) -> bool {
        true
    }

    async fn stop(&self, id: &SandboxId) -> Result<(), EngineError> {
        let (shared, id) = (self.shared.clone(), id.clone());
        blocking(move || shared.stop(&id)).await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Connection>, EngineError> {
        let kept = match self.shared.state().live.get_mut(id) {
            Some(live) => live.connection(),
            None => return Err(EngineError::NotFound { id: id.clone() }),
        };
        if let Some(connection) = kept {
            return Ok(Box::new(connection));
        }
        let socket = self.shared.host.records.socket(id);
        match UnixStream::connect(socket).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(source) => Err(EngineError::Dial { id: id.clone(), source }),
        }
    }

    async fn update_row(&self, row: &Row) -> Result<(), EngineError> {
        let (shared, row) = (self.shared.clone(), row.clone());
        blocking(move || {
            let records = &shared.host.records;
            let reading = records.read(&row.id).map_err(|e| at("record", e))?;
            let mut record = reading.record.ok_or_else(|| EngineError::NotFound { id: row.id.clone() })?;
            (record.name, record.memo) = (Some(row.name), Some(row.memo));
            record.revision += 1;
            records.write(&record).map_err(|e| at("record", e))?;
            if let Some(live) = shared.state().live.get_mut(&row.id) {
                live.record = record;
            }
            Ok(())
        })
        .await
    }

    async fn has_ended(&self, id: &SandboxId) -> bool {
        let pidfd = self.shared.state().live.get(id).map(|live| live.pidfd.clone());
        pidfd.is_none_or(|pidfd| wait_end(&pidfd, Duration::ZERO))
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, EngineError> {
        if self.shared.state().stopped.contains(id) {
            return Ok(Usage { disk_bytes: self.shared.host.storage.usage(id), ..Usage::default() });
        }
        let counts = self.shared.host.cgroups.counts(&self.slot_of(id)?).map_err(cgroup)?;
        let index = self.shared.state().live.get(id).and_then(|live| live.record.net_index);
        let traffic = index.and_then(|index| self.shared.host.network().ok()?.traffic(index));
        Ok(Usage {
            network_received_bytes: traffic.map(|(received, _)| received),
            network_sent_bytes: traffic.map(|(_, sent)| sent),
            memory_bytes: counts.memory_bytes,
            cpu_nanoseconds: counts.cpu_nanoseconds,
            pids: counts.pids,
            disk_bytes: self.shared.host.storage.usage(id),
            oom_kills: counts.oom_kills,
        })
    }

    async fn recover(&self, known: &[Row]) -> Result<Recovery, EngineError> {
        self.find_again(known).await
    }

    async fn quarantine(&self, id: &SandboxId, reason: &str) -> Result<jiff::Timestamp, EngineError> {
        self.set_apart(id, reason).await
    }

    async fn take_back(&self, row: &Row) -> Result<Found, EngineError> {
        self.adopt_quarantined(row).await
    }

    async fn remains(&self, id: &SandboxId) -> Result<Remains, EngineError> {
        self.look_at_remains(id).await
    }

    fn ended(&self) -> broadcast::Receiver<Ended> {
        self.shared.ended.subscribe()
    }

    async fn capacity(&self) -> Result<HostCapacity, EngineError> {
        let (disk_available_bytes, disk_total_bytes) =
            self.shared.host.storage.free().map_err(|e| at("storage", io::Error::other(e)))?;
        HostCapacity::with_disk(disk_available_bytes, disk_total_bytes).map_err(|e| at("memory", e))
    }

    async fn health(&self) -> Vec<String> {
        let host = self.shared.host.clone();
        // A hanging disk must not block a serving thread.
        let problems = tokio::task::spawn_blocking(move || {
            let mut problems = host.storage.problems();
            problems.extend(host.launcher_problem());
            problems
        });
        problems.await.unwrap_or_else(|error| vec![format!("the engine could not be asked: {error}")])
    }

    fn volumes(&self) -> Option<Arc<Storage>> {
        Some(Arc::clone(&self.shared.host.storage))
    }

    fn buckets(&self) -> Option<Arc<Buckets>> {
        Some(Arc::clone(&self.shared.host.buckets))
    }

    fn keep_prepared(&self, keep: bool) {
        self.shared.state().is_idle = !keep;
        self.shared.taken.notify_one();
    }

    async fn close(&self) {
        let slots: Vec<Slot> = {
            let mut state = self.shared.state();
            state.closed = true;
            let reserved: Vec<Slot> = state.reserved.drain().map(|(_, slot)| slot).collect();
            state.ready.drain(..).chain(reserved).collect()
        };
        self.shared.taken.notify_waiters();
        self.shared.host.buckets.changed.notify_one();
        for slot in slots {
            self.shared.discard(slot).await;
        }
        let last = {
            let state = self.shared.state();
            state.live.is_empty() && state.quarantined.is_empty()
        };
        if let Ok(network) = self.shared.host.network() {
            network.close(last).await;
        }
        if last {
            self.shared.host.cgroups.close();
        }
        let (host, used) = (self.shared.host.clone(), self.shared.used_buckets());
        let released = tokio::task::spawn_blocking(move || {
            host.buckets.close(&used);
            host.end_launcher();
            host.storage.release();
        });
        if let Err(error) = released.await {
            tracing::warn!(%error, "unmounting the storage pool was cut off");
        }
    }
}

impl NamespaceEngine {
    /// The id of a running sandbox's cgroups.
    fn slot_of(&self, id: &SandboxId) -> Result<SandboxId, EngineError> {
        let state = self.shared.state();
        let live = state.live.get(id).ok_or_else(|| EngineError::NotFound { id: id.clone() })?;
        Ok(live.record.slot_id().clone())
    }

    /// A prepared slot that fits, else a new one.
    pub(super) async fn take_slot(&self, mode: NetworkMode, kvm: bool) -> Result<Slot, EngineError> {
        let ready = {
            let mut state = self.shared.state();
            let fits = state.ready.front().is_some_and(|slot| (slot.mode, slot.kvm) == (mode, kvm));
            if fits { state.ready.pop_front() } else { None }
        };
        self.shared.taken.notify_one();
        match ready {
            Some(slot) => Ok(slot),
            None => self.shared.host.prepare(SandboxId::random(), mode, kvm).await,
        }
    }
}
