//! The engine: creates, reaches and ends sandboxes that are containers of Docker.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_image::{Image, ImageStore};
use arenite_isolation::container;
use arenite_model::protocol;
use arenite_model::{Death, DeathReason, NetworkMode, SandboxId, SandboxSpec, Tier};
use async_trait::async_trait;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::UnixStream;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep, timeout};

use super::api::Docker;
use super::calls::{GuestCalls, new_proof};
use super::container::{Wanted, name, other_host, with_hint};
use super::death::death_of;
use super::gvisor::Sentry;
use super::images::DockerImages;
use super::record::{Record, Records};
use super::{DockerConfig, forward};
use crate::namespace::ServerLock;
use crate::namespace::engine::{blocking, config_file, guest_config, has_ended, image_named, memory_file};
use crate::namespace::host::{at, tag};
use crate::namespace::network::{Network, NetworkError};
use crate::namespace::program::Program;
use crate::namespace::storage::Storage;
use crate::namespace::{ahead, data_dir, descriptors, gvisor, volumes};
use crate::{Connection, Created, Ended, Engine, EngineError, Found, HostCapacity, Recovery, Remains, Row, Stages, Usage};

/// Time for a started container to run its first process.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Interval between checks whether it has ended instead.
const START_CHECK: Duration = Duration::from_millis(500);
/// Time for Docker to notice the end of a process.
const DEATH_LIMIT: Duration = Duration::from_secs(5);
const DEATH_CHECK: Duration = Duration::from_millis(50);

/// The engine. Cheap to clone.
#[derive(Clone)]
pub struct DockerEngine {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) config: DockerConfig,
    pub(super) docker: Docker,
    pub(super) tag: String,
    pub(super) records: Records,
    pub(super) images: ImageStore,
    pub(super) in_docker: DockerImages,
    pub(super) network: Network,
    storage: Storage,
    program: Program,
    limits_disk: bool,
    state: Mutex<EngineState>,
    ended: broadcast::Sender<Ended>,
    _lock: ServerLock,
}

#[derive(Default)]
pub(super) struct EngineState {
    pub(super) live: HashMap<SandboxId, Live>,
    pub(super) quarantined: HashSet<SandboxId>,
}

/// A sandbox with a running first process.
pub(super) struct Live {
    pub(super) record: Record,
    pub(super) pidfd: Arc<OwnedFd>,
    /// How to reach the guest under gVisor.
    pub(super) calls: Option<Arc<GuestCalls>>,
}

pub(super) fn failed_network(error: NetworkError) -> EngineError {
    EngineError::Stage { stage: "network".to_owned(), hint: error.hint(), source: io::Error::other(error) }
}

impl DockerEngine {
    /// Opens the host's resources: Docker, storage of images, network. Call [`Engine::recover`] before anything else. The lock
    /// is that of the same data directory.
    pub async fn start(mut config: DockerConfig, lock: ServerLock) -> Result<Self, EngineError> {
        config.data_dir = data_dir::open(&config.data_dir)?;
        volumes::check(&mut config.volumes, &config.data_dir)?;
        // A socket's path has at most 107 bytes.
        if config.data_dir.as_os_str().len() > 60 {
            return Err(EngineError::Unsupported {
                what: format!("the data directory {}", config.data_dir.display()),
                reason: "its path is longer than 60 bytes, too long for the sockets in it".to_owned(),
            });
        }
        let docker = Docker::connect(&config.socket).await?;
        let refuse =
            |what: &str, reason: &str| Err(EngineError::Unsupported { what: what.to_owned(), reason: reason.to_owned() });
        if docker.about.is_rootless() {
            return refuse(
                "Docker without root",
                "networks of its containers are not this host's; use the daemon of the host's root",
            );
        }
        let missing = docker.about.missing();
        if !missing.is_empty() {
            return refuse(&missing.join(", "), "this Docker daemon lacks them: docker info says why");
        }
        let records = Records::open(&config.data_dir).map_err(|e| at("records", e))?;
        let sandboxes = records.list().map_err(|e| at("records", e))?.len();
        descriptors::check(descriptors::OWN + sandboxes as u64, sandboxes)?;
        let storage = Storage::open(&config.data_dir, &config.storage).map_err(|e| EngineError::Stage {
            stage: "storage".to_owned(),
            hint: e.hint(),
            source: io::Error::other(e),
        })?;
        let images = ImageStore::open(storage.root().to_owned()).map_err(|e| at("images", io::Error::other(e)))?;
        let tag = tag(&config.data_dir);
        config.network.tag = tag.clone();
        let network = Network::open(config.network.clone()).await.map_err(failed_network)?;
        let program = Program::open(&config.program, config.data_dir.join("program")).map_err(|e| at("program", e))?;
        program.keep().map_err(|e| at("program", e))?;
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| at("mounts", e))?;
        let limits_disk = docker.about.limits_disk(&mounts);
        let in_docker = DockerImages::new(&tag, storage.root().join("for-docker"));
        let (ended, _) = broadcast::channel(256);
        tracing::info!(
            version = docker.about.version,
            driver = docker.about.driver,
            limits_disk,
            "sandboxes are Docker's containers"
        );
        let shared = Shared {
            docker,
            tag,
            records,
            images,
            in_docker,
            network,
            storage,
            program,
            limits_disk,
            state: Mutex::default(),
            ended,
            config,
            _lock: lock,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What is not enforced, or only in part, as text.
    pub async fn warnings(&self) -> Vec<String> {
        let shared = &self.shared;
        let mut warnings = shared.network.warnings().await;
        if !shared.docker.about.remaps_users() {
            warnings.push("root in a sandbox is the host's root with few rights: Docker maps no ids (set userns-remap in /etc/docker/daemon.json)".to_owned());
        }
        if !shared.limits_disk {
            warnings.push(format!(
                "sandboxes' disks are not limited: Docker's storage driver {} can't do it on this file system",
                shared.docker.about.driver
            ));
        }
        warnings
    }

    /// The images of sandboxes.
    pub fn images(&self) -> &ImageStore {
        &self.shared.images
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self, id: &SandboxId) -> String {
        name(&self.tag, id)
    }

    /// The isolation of its sandboxes of a tier.
    pub(super) fn isolation(&self, tier: Tier) -> Vec<String> {
        let mut isolation: Vec<String> = [
            "a Docker container: pid, mount, network, ipc, uts and cgroup namespaces",
            "seccomp",
            "capabilities",
            "memory, pids and cpu limits",
        ]
        .map(str::to_owned)
        .into();
        let more = [
            (self.docker.about.remaps_users(), "user namespace"),
            (self.config.no_new_privileges, "no new privileges"),
            (self.limits_disk, "disk limit"),
        ];
        isolation.extend(more.into_iter().filter(|(has, _)| *has).map(|(_, what)| what.to_owned()));
        isolation.extend(gvisor::isolation(tier).map(str::to_owned));
        isolation
    }

    fn image(&self, spec: &SandboxSpec) -> Result<Image, EngineError> {
        image_named(spec, &self.images, &self.config.data_dir)
    }

    /// Reports when a sandbox ends by itself.
    pub(super) fn watch(self: &Arc<Self>, id: SandboxId, pidfd: Arc<OwnedFd>) {
        let shared = self.clone();
        tokio::spawn(async move {
            if !has_ended(&pidfd).await {
                return;
            }
            // A sandbox that is being destroyed is no longer in `live`.
            let by_itself = shared.state().live.get(&id).is_some_and(|live| Arc::ptr_eq(&live.pidfd, &pidfd));
            if by_itself {
                let death = shared.death(&id).await;
                // An error only means that no control runs.
                let _ = shared.ended.send(Ended { id, death });
            }
        });
    }

    /// How a container ended, after its first process. Docker notices it a little later.
    async fn death(&self, id: &SandboxId) -> Death {
        let end = Instant::now() + DEATH_LIMIT;
        loop {
            match self.docker.state(&self.name(id)).await {
                Ok(Some(state)) if !state.running => return death_of(&state),
                Ok(None) => return Death::with_message(DeathReason::Killed, "its container was removed"),
                _ if Instant::now() >= end => return Death::new(DeathReason::Unknown),
                _ => sleep(DEATH_CHECK).await,
            }
        }
    }

    /// Starts a sandbox's container and its guest.
    async fn begin(
        self: &Arc<Self>,
        row: &Row,
        (spec, tier): (&SandboxSpec, Tier),
        image: &Image,
        stages: &mut Stages,
    ) -> Result<Arc<OwnedFd>, EngineError> {
        let (id, container) = (&row.id, self.name(&row.id));
        let listener = self.records.bind_start(id).map_err(|e| at("start socket", e))?;
        self.docker.start(&container).await.map_err(with_hint)?;
        stages.done("container");
        let first = self.first_process(&container, &listener).await?;
        drop(listener);
        self.records.remove_start(id).map_err(|e| at("start socket", e))?;
        let (pidfd, netns) = match tier {
            Tier::Gvisor => {
                let Sentry { pidfd, netns } = self.sentry(&container).await?;
                (Arc::new(pidfd), netns)
            }
            Tier::Namespace | Tier::Machine => {
                let about = first.peer_cred().map_err(|e| at("first process", e))?;
                let pid = about.pid().and_then(Pid::from_raw).ok_or_else(other_host)?;
                let pidfd = Arc::new(pidfd_open(pid, PidfdFlags::empty()).map_err(|e| at("first process", e.into()))?);
                // Its pid can't be reused while the connection is open and it waits for an answer.
                let netns = File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero()));
                (pidfd, netns.map_err(|e| at("network namespace", e))?.into())
            }
        };
        let net_index = match spec.network {
            NetworkMode::Open => {
                let tag = self.tag.clone();
                blocking(move || forward::allow(&tag)).await?;
                Some(self.network.connect(netns).await.map_err(failed_network)?.index)
            }
            NetworkMode::None | NetworkMode::Host => {
                blocking(move || Network::keep_closed(netns.as_fd()).map_err(failed_network)).await?;
                None
            }
        };
        stages.done("network");
        let proof = match tier {
            Tier::Gvisor => Some(new_proof().map_err(|e| at("guest socket", e))?),
            Tier::Namespace | Tier::Machine => None,
        };
        let record = Record { net_index, proof, ..Record::new(row, image.name.to_string(), tier) };
        let calls = match self.hand_over(&record, spec, image, first).await {
            Ok(calls) => calls,
            Err(error) => {
                self.release(net_index);
                return Err(error);
            }
        };
        stages.done("start");
        self.state().live.insert(id.clone(), Live { record, pidfd: pidfd.clone(), calls });
        Ok(pidfd)
    }

    /// Waits until the container's first process connects.
    async fn first_process(&self, container: &str, listener: &tokio::net::UnixListener) -> Result<UnixStream, EngineError> {
        let end = Instant::now() + START_LIMIT;
        loop {
            if let Ok(accepted) = timeout(START_CHECK, listener.accept()).await {
                return Ok(accepted.map_err(|e| at("first process", e))?.0);
            }
            let state = self.docker.state(container).await?;
            match state {
                Some(state) if state.running && Instant::now() < end => {}
                Some(state) if state.running => {
                    return Err(EngineError::Timeout { what: "the start of the container's first process", limit: START_LIMIT });
                }
                ended => {
                    let reason = ended.map_or_else(|| "it ended".to_owned(), |state| death_of(&state).message);
                    return Err(at("first process", io::Error::other(reason)));
                }
            }
        }
    }

    /// Gives the guest its configuration, and its listener or the proof with which it connects.
    async fn hand_over(
        &self,
        record: &Record,
        spec: &SandboxSpec,
        image: &Image,
        first: UnixStream,
    ) -> Result<Option<Arc<GuestCalls>>, EngineError> {
        let id = &record.id;
        let config = guest_config(id, &record.name, spec, image, record.tier.unwrap_or_default(), false);
        let config = config_file(&config).map_err(|e| at("guest configuration", e))?;
        self.records.write(record).map_err(|e| at("record", e))?;
        let first: StdUnixStream = first.into_std().map_err(|e| at("first process", e))?;
        let start = |name, descriptor: BorrowedFd<'_>| {
            let given = [(name, descriptor), (protocol::CONFIG, config.as_fd())];
            // Small enough for the socket's buffer.
            container::start(first.as_fd(), self.config.open_files, &given).map_err(|e| at("first process", e))
        };
        let Some(proof) = &record.proof else {
            let listener = self.records.bind_guest(id).map_err(|e| at("guest socket", e))?;
            start(protocol::LISTENER, listener.as_fd())?;
            return Ok(None);
        };
        let calls = self.records.await_calls(id, proof.clone()).map_err(|e| at("guest socket", e))?;
        let proof = memory_file(proof.as_bytes()).map_err(|e| at("guest socket", e))?;
        start(protocol::PROOF, proof.as_fd())?;
        if calls.is_connected(START_LIMIT).await {
            return Ok(Some(Arc::new(calls)));
        }
        Err(EngineError::Timeout { what: "the guest's connection from gVisor", limit: START_LIMIT })
    }

    /// A connection to a guest.
    async fn connect(&self, id: &SandboxId) -> Result<io::Result<UnixStream>, EngineError> {
        let calls = match self.state().live.get(id) {
            Some(live) => live.calls.clone(),
            None => return Err(EngineError::NotFound { id: id.clone() }),
        };
        Ok(match calls {
            Some(calls) => calls.connect().await,
            None => UnixStream::connect(self.records.socket(id)).await,
        })
    }

    pub(super) fn release(&self, net_index: Option<u32>) {
        if let Some(index) = net_index {
            self.network.release(index);
        }
    }

    /// Removes all of a sandbox. The address stays taken if its container does.
    async fn sweep(&self, id: &SandboxId, net_index: Option<u32>) -> Result<(), EngineError> {
        self.docker.remove(&self.name(id)).await?;
        self.release(net_index);
        self.records.remove(id).map_err(|e| at("record", e))
    }

    /// The program for containers.
    pub(super) fn program(&self) -> io::Result<std::path::PathBuf> {
        self.program.named()
    }

    fn alive(&self, id: &SandboxId) -> Result<String, EngineError> {
        if self.state().live.contains_key(id) { Ok(self.name(id)) } else { Err(EngineError::NotFound { id: id.clone() }) }
    }

    async fn make_container(
        &self,
        row: &Row,
        (spec, tier): (&SandboxSpec, Tier),
        image: &Image,
        reference: &str,
    ) -> Result<(), EngineError> {
        let id = &row.id;
        let program = self.program().map_err(|e| at("program", e))?;
        self.records.make(id, &program).map_err(|e| at("records", e))?;
        let record = Record::new(row, image.name.to_string(), tier);
        // Before the container: what has no record was never used.
        self.records.write(&record).map_err(|e| at("record", e))?;
        let hostname = spec.hostname.clone().unwrap_or_else(|| row.name.to_string());
        let body = super::container::body(&Wanted {
            config: &self.config,
            tag: &self.tag,
            id,
            spec,
            image,
            reference,
            inside: &self.records.inside(id),
            hostname: &hostname,
            gateway: (spec.network == NetworkMode::Open).then(|| self.network.gateway().to_string()),
            limits_disk: self.limits_disk,
            tier,
        })?;
        self.docker.create(&self.name(id), &body).await.map_err(with_hint)
    }
}

#[async_trait]
impl Engine for DockerEngine {
    fn name(&self) -> &'static str {
        "docker"
    }

    async fn tier(&self, spec: &SandboxSpec) -> Result<Tier, EngineError> {
        self.shared.tier_of(spec, self.shared.image(spec).ok().as_ref()).await
    }

    async fn reserve(&self) -> Result<SandboxId, EngineError> {
        Ok(SandboxId::random())
    }

    async fn create(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let shared = &self.shared;
        let mut stages = Stages::begin();
        super::container::check(spec, shared.limits_disk)?;
        let image = shared.image(spec)?;
        let tier = shared.tier_of(spec, Some(&image)).await?;
        volumes::find_all(&shared.config.volumes, None, spec)?;
        let reference = shared.in_docker.ensure(&shared.docker, &image).await.map_err(with_hint)?;
        stages.done("image");
        let created = async {
            shared.make_container(row, (spec, tier), &image, &reference).await?;
            stages.done("create");
            shared.begin(row, (spec, tier), &image, &mut stages).await
        };
        match created.await {
            Ok(pidfd) => {
                shared.watch(row.id.clone(), pidfd);
                Ok(Created { tier, isolation: shared.isolation(tier), stages: stages.done })
            }
            Err(error) => {
                if let Err(error) = shared.sweep(&row.id, None).await {
                    tracing::warn!(id = %row.id, %error, "something of a sandbox could not be removed; the next start tries again");
                }
                Err(error)
            }
        }
    }

    async fn restart(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let shared = &self.shared;
        let (id, container) = (&row.id, shared.name(&row.id));
        let mut stages = Stages::begin();
        let image = shared.image(spec)?;
        // The container has the tier that it was created with.
        let created = shared.records.read(id).ok().flatten().and_then(|record| record.tier);
        let spec = &SandboxSpec { tier: Some(created.or(spec.tier).unwrap_or_default()), ..spec.clone() };
        let tier = shared.tier_of(spec, Some(&image)).await?;
        let live = shared.state().live.remove(id);
        shared.docker.kill(&container).await?;
        shared.release(live.and_then(|live| live.record.net_index));
        if shared.docker.id(&container).await?.is_none() {
            return Err(EngineError::Stage {
                stage: "container".to_owned(),
                source: io::Error::new(io::ErrorKind::NotFound, "Docker no longer has it"),
                hint: Some(
                    "it was removed with Docker's own commands, and its disk with it; create the sandbox again".to_owned(),
                ),
            });
        }
        let program = shared.program().map_err(|e| at("program", e))?;
        shared.records.make(id, &program).map_err(|e| at("records", e))?;
        match shared.begin(row, (spec, tier), &image, &mut stages).await {
            Ok(pidfd) => {
                shared.watch(id.clone(), pidfd);
                Ok(Created { tier, isolation: shared.isolation(tier), stages: stages.done })
            }
            Err(error) => {
                // Its disk stays.
                if let Err(error) = shared.docker.kill(&container).await {
                    tracing::warn!(%id, %error, "a container could not be ended");
                }
                Err(error)
            }
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), EngineError> {
        let live = self.shared.state().live.remove(id);
        let net_index = live.as_ref().and_then(|live| live.record.net_index);
        if let Err(error) = self.shared.sweep(id, net_index).await {
            if let Some(live) = live {
                self.shared.state().live.insert(id.clone(), live);
            }
            return Err(error);
        }
        self.shared.state().quarantined.remove(id);
        Ok(())
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), EngineError> {
        let container = self.shared.alive(id)?;
        match self.shared.docker.pause(&container).await {
            Err(error) => match self.shared.docker.state(&container).await? {
                Some(state) if state.paused => Ok(()),
                _ => Err(error),
            },
            done => done,
        }
    }

    async fn resume(&self, id: &SandboxId) -> Result<(), EngineError> {
        let container = self.shared.alive(id)?;
        match self.shared.docker.unpause(&container).await {
            Err(error) => match self.shared.docker.state(&container).await? {
                Some(state) if state.running && !state.paused => Ok(()),
                _ => Err(error),
            },
            done => done,
        }
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Connection>, EngineError> {
        match self.shared.connect(id).await? {
            Ok(stream) => Ok(Box::new(stream)),
            Err(source) => Err(EngineError::Dial { id: id.clone(), source }),
        }
    }

    async fn activity(&self, id: &SandboxId) -> Result<Option<String>, EngineError> {
        ahead::activity_of(self.shared.connect(id).await?).await
    }

    async fn update_row(&self, row: &Row) -> Result<(), EngineError> {
        let (shared, row) = (self.shared.clone(), row.clone());
        blocking(move || {
            let record = shared.records.read(&row.id).map_err(|e| at("record", e))?;
            let mut record = record.ok_or_else(|| EngineError::NotFound { id: row.id.clone() })?;
            (record.name, record.memo) = (row.name, row.memo);
            shared.records.write(&record).map_err(|e| at("record", e))?;
            if let Some(live) = shared.state().live.get_mut(&row.id) {
                live.record = record;
            }
            Ok(())
        })
        .await
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, EngineError> {
        let container = self.shared.alive(id)?;
        let stats = self.shared.docker.stats(&container).await?;
        let index = self.shared.state().live.get(id).and_then(|live| live.record.net_index);
        let traffic = index.and_then(|index| self.shared.network.traffic(index));
        Ok(Usage {
            memory_bytes: stats.memory_bytes(),
            cpu_nanoseconds: stats.cpu_nanoseconds(),
            pids: stats.pids(),
            // Docker would have to walk it.
            disk_bytes: None,
            oom_kills: None,
            network_received_bytes: traffic.map(|(received, _)| received),
            network_sent_bytes: traffic.map(|(_, sent)| sent),
        })
    }

    async fn recover(&self, known: &[Row]) -> Result<Recovery, EngineError> {
        self.shared.find_again(known).await
    }

    async fn quarantine(&self, id: &SandboxId, reason: &str) -> Result<jiff::Timestamp, EngineError> {
        self.shared.state().quarantined.insert(id.clone());
        self.shared.records.note_quarantine(id, reason).map_err(|e| at("quarantine", e))
    }

    async fn take_back(&self, row: &Row) -> Result<Found, EngineError> {
        self.shared.adopt_quarantined(row).await
    }

    async fn remains(&self, id: &SandboxId) -> Result<Remains, EngineError> {
        self.shared.look_at_remains(id).await
    }

    fn ended(&self) -> broadcast::Receiver<Ended> {
        self.shared.ended.subscribe()
    }

    async fn capacity(&self) -> Result<HostCapacity, EngineError> {
        let root = &self.shared.docker.about.docker_root_dir;
        let place = if root.is_dir() { root } else { &self.shared.config.data_dir };
        let disk = rustix::fs::statvfs(place).map_err(|e| at("disk", e.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        HostCapacity::with_disk(bytes(disk.f_bavail), bytes(disk.f_blocks)).map_err(|e| at("memory", e))
    }

    async fn health(&self) -> Vec<String> {
        self.shared.docker.problem().await.into_iter().collect()
    }

    async fn close(&self) {
        let shared = self.shared.clone();
        let last = {
            let state = shared.state();
            state.live.is_empty() && state.quarantined.is_empty()
        };
        shared.network.close(last).await;
        let released = tokio::task::spawn_blocking(move || {
            if last {
                forward::remove(&shared.tag);
            }
            shared.storage.release();
        });
        if let Err(error) = released.await {
            tracing::warn!(%error, "unmounting the storage pool was cut off");
        }
    }
}
