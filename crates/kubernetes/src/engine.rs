//! The engine: creates, reaches and ends sandboxes that are pods.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_channel::{Connector, Identity, PublicKey};
use arenite_engine::descriptors::DescriptorCount;
use arenite_engine::namespace::ServerLock;
use arenite_engine::{
    ClusterVolumes, Connection, Created, Ended, Engine, EngineError, Found, HostCapacity, KubernetesConfig, Recovery, Remains,
    Row, Stages, Usage,
};
use arenite_model::protocol::{Assignment, Become, GuestConfig, PodFacts};
use arenite_model::{Resources, SandboxId, SandboxName, SandboxSpec, Tier};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep, timeout};

use crate::api::{Api, at, failed};
use crate::guest::{self, GuestAddress};
use crate::pod::{GRACE_SECONDS, Wanted};
use crate::record::{GuestIdentity, Record};
use crate::state::{Obstacle, ObstacleKind, Phase, PodEnd, PodView, Pods};
use crate::volumes::Volumes;
use crate::{object_name, pod};

/// Time for a pod to start once it is scheduled, which includes the pull of its image.
const START_LIMIT: Duration = Duration::from_secs(600);
/// Minimum time for a pod with volumes to be scheduled. Kubernetes says that it can't be while the cluster provisions a claim.
const CLAIM_WAIT: Duration = Duration::from_secs(120);
/// Time for the guest of a running container to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);
const LISTEN_CHECK: Duration = Duration::from_millis(20);
/// Time for a deleted pod to be gone. After that, its node can't be reached, and Kubernetes is asked to forget the pod.
const END_LIMIT: Duration = Duration::from_secs(20 + GRACE_SECONDS as u64);

/// The engine. Cheap to clone.
#[derive(Clone)]
pub struct KubernetesEngine {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) config: KubernetesConfig,
    pub(crate) api: Api,
    pub(crate) pods: Arc<Pods>,
    pub(crate) connector: Connector,
    server_key: PublicKey,
    template: Value,
    live: Mutex<HashMap<SandboxId, Live>>,
    ended: broadcast::Sender<Ended>,
    /// Of the data directory.
    _lock: ServerLock,
}

/// A sandbox with a running pod that has proven its identity.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) record: Record,
    pub(crate) pod_uid: String,
    pub(crate) key: PublicKey,
    /// What its pod said of itself; of one that is not assigned yet.
    facts: Option<PodFacts>,
}

impl Live {
    pub(crate) fn new(record: Record, identity: &GuestIdentity) -> io::Result<Self> {
        let key = identity.key.parse().map_err(io::Error::other)?;
        Ok(Self { record, pod_uid: identity.pod_uid.clone(), key, facts: None })
    }
}

impl KubernetesEngine {
    /// Connects to the cluster and follows its pods. Call [`Engine::recover`] before anything else.
    /// The lock is that of the server's data directory.
    pub async fn start(config: KubernetesConfig, lock: ServerLock) -> Result<Self, EngineError> {
        let identity = Identity::open(&config.identity).map_err(|error| at("the server's identity", io::Error::other(error)))?;
        let template = pod::read_template(config.template.as_deref())?;
        let api = Api::connect(config.kubeconfig.as_deref(), config.namespace.as_deref(), &config.name).await?;
        api.check().await?;
        tracing::info!(namespace = api.namespace, "sandboxes are pods of Kubernetes");
        let (ended, _) = broadcast::channel(256);
        let shared = Arc::new(Shared {
            api,
            pods: Arc::default(),
            server_key: identity.public().clone(),
            connector: Connector::new(&identity).map_err(|error| at("the server's identity", error))?,
            template,
            live: Mutex::default(),
            ended,
            config,
            _lock: lock,
        });
        let following = Arc::downgrade(&shared);
        let report = move |end: PodEnd| {
            if let Some(shared) = following.upgrade() {
                shared.report(end);
            }
        };
        tokio::spawn(Arc::clone(&shared.pods).follow(shared.api.clone(), report));
        tokio::spawn(Arc::clone(&shared.pods).follow_failures(shared.api.clone()));
        Ok(Self { shared })
    }

    /// What is not enforced, or only in part, as text.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = vec![
            "the kubelet enforces disk limits by ending the pod, some seconds after they are exceeded".to_owned(),
            "Kubernetes does not limit the processes of one pod: the kubelet's podPidsLimit protects the nodes".to_owned(),
        ];
        if !self.shared.config.has_network_policies {
            warnings.push(
                "pods may reach all that the cluster's network lets them: install network policies for the label arenite.network, and set kubernetes_network_policies"
                    .to_owned(),
            );
        }
        warnings
    }
}

impl Shared {
    /// The sandboxes with a pod that runs.
    pub(crate) fn running(&self) -> MutexGuard<'_, HashMap<SandboxId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the end of a pod, once, unless the engine ended it.
    fn report(&self, end: PodEnd) {
        let by_itself = {
            let mut running = self.running();
            let owns_pod = running.get(&end.id).is_some_and(|live| live.pod_uid == end.uid);
            owns_pod.then(|| running.remove(&end.id)).flatten()
        };
        if by_itself.is_some_and(|live| live.record.name.is_some()) {
            // An error only means that no control runs.
            let _ = self.ended.send(Ended { id: end.id, death: end.death });
        }
    }

    pub(crate) fn isolation(&self, tier: Tier) -> Vec<String> {
        let class = self.config.runtime_classes.get(&tier);
        let mut isolation = vec!["a pod of Kubernetes".to_owned(), "memory and cpu limits".to_owned()];
        isolation.extend(class.map(|class| format!("runtime class {class}")));
        isolation.extend(self.config.has_network_policies.then(|| "network policies of the cluster".to_owned()));
        isolation
    }

    fn tier_of(&self, spec: &SandboxSpec) -> Result<Tier, EngineError> {
        let tier = spec.tier.unwrap_or(self.config.default_tier);
        let is_there = tier == Tier::Namespace || self.config.runtime_classes.contains_key(&tier);
        if is_there {
            return Ok(tier);
        }
        Err(EngineError::NoTier {
            tier,
            reason: "the server knows no runtime class of the cluster for it".to_owned(),
            hint: "an operator names it: kubernetes_runtime_class = [\"TIER=CLASS\"]",
        })
    }

    /// Creates record and pod, and waits until the guest has proven which pod it is.
    async fn begin(
        &self,
        id: &SandboxId,
        row: Option<&Row>,
        spec: &SandboxSpec,
        stages: &mut Stages,
    ) -> Result<Live, EngineError> {
        let tier = self.tier_of(spec)?;
        pod::check(spec, self.config.has_network_policies)?;
        let pool = self.warm_pool(row, spec);
        let mut record = Record {
            id: id.clone(),
            name: row.map(|row| row.name.clone()),
            memo: row.map_or_else(String::new, |row| row.memo.clone()),
            tier,
            guest: None,
        };
        let owner = self.api.create_record(&record).await?;
        stages.done("record");
        let created = match pool {
            Some(pool) => {
                let labels = pod::labels(&self.config, id, spec);
                self.api.claims.claim(&self.api.pods, id, pool, &owner, &labels).await?
            }
            None => self.create_pod(id, row, spec, tier, &owner).await?,
        };
        let uid = created.metadata.uid.clone().ok_or_else(|| at("the sandbox's pod", io::ErrorKind::NotFound.into()))?;
        self.pods.learn(id, &created);
        stages.done("pod");
        let ip = self.started(id, &uid, self.schedule_wait(spec)).await?;
        stages.done("start");
        let (key, facts) = self.prove(id, &uid, ip).await?;
        stages.done("identity");
        record.guest = Some(GuestIdentity { pod_uid: uid.clone(), key: key.to_string() });
        self.api.update_record(&record).await?;
        stages.done("record of its key");
        Ok(Live { record, pod_uid: uid, key, facts: Some(facts) })
    }

    async fn create_pod(
        &self,
        id: &SandboxId,
        row: Option<&Row>,
        spec: &SandboxSpec,
        tier: Tier,
        owner: &str,
    ) -> Result<Pod, EngineError> {
        let hostname = row.map_or(id.as_str(), |row| spec.hostname.as_deref().unwrap_or(row.name.as_str()));
        let object = pod::object(&Wanted {
            config: &self.config,
            template: &self.template,
            id,
            spec,
            tier,
            hostname: &hostname.to_ascii_lowercase(),
            owner,
            server_key: &self.server_key.to_string(),
        })?;
        self.api.create_pod(id, &object).await
    }

    /// Time for the pod of this spec to be scheduled.
    fn schedule_wait(&self, spec: &SandboxSpec) -> Duration {
        let least = if spec.volumes.is_empty() { Duration::ZERO } else { CLAIM_WAIT };
        self.config.schedule_wait.max(least)
    }

    /// The warm pool with pods for this spec. Its pods have resources, runtime class, host name, and mounts already, so only a
    /// spec that leaves them open gets one.
    fn warm_pool(&self, row: Option<&Row>, spec: &SandboxSpec) -> Option<&str> {
        let pool = self.config.warm_pools.get(spec.image.as_str())?;
        let is_open = spec.resources == Resources::default() && spec.hostname.is_none() && spec.volumes.is_empty();
        let is_open = is_open && spec.tier.is_none_or(|tier| tier == self.config.default_tier);
        (row.is_some() && is_open).then_some(pool)
    }

    /// Waits until the pod's main container runs.
    async fn started(&self, id: &SandboxId, uid: &str, schedule_wait: Duration) -> Result<std::net::IpAddr, EngineError> {
        let fail = |reason: String, hint| failed("the start of its pod", reason, hint);
        let begun = Instant::now();
        let answer = |view: Option<&PodView>| {
            let view = view.filter(|view| view.uid == uid)?;
            match &view.phase {
                Phase::Running(ip) => Some(Ok(*ip)),
                Phase::Ended(death) => Some(Err(fail(format!("it ended: {}", death.message), None))),
                Phase::Waiting(Some(Obstacle { text, kind: ObstacleKind::Container })) => {
                    let hint = "see what Kubernetes says with: kubectl describe pod, and check the image's name and the template's imagePullSecrets";
                    Some(Err(fail(text.clone(), Some(hint))))
                }
                Phase::Waiting(Some(Obstacle { text, kind: ObstacleKind::Unschedulable })) => {
                    let is_over = begun.elapsed() >= schedule_wait;
                    let hint = "give the cluster more nodes, ask for less, or let creates wait: kubernetes_schedule_wait_seconds";
                    is_over.then(|| Err(fail(text.clone(), Some(hint))))
                }
                Phase::Waiting(Some(Obstacle { kind: ObstacleKind::Mount, .. }) | None) => None,
            }
        };
        // Time passes without a change of the pod, so it is looked at again when the wait for a node is over.
        if let Ok(answer) = timeout(schedule_wait.max(Duration::from_millis(1)), self.pods.wait(id, answer)).await {
            return answer;
        }
        if let Ok(answer) = timeout(START_LIMIT, self.pods.wait(id, answer)).await {
            return answer;
        }
        match self.pods.get(id).map(|view| view.phase) {
            Some(Phase::Waiting(Some(Obstacle { text, kind: ObstacleKind::Mount }))) => {
                let hint = "a volume with the access mode ReadWriteOnce is on one node; kubectl describe pvc and pv say more";
                Err(fail(format!("it did not start within {START_LIMIT:?}: {text}"), Some(hint)))
            }
            _ => Err(EngineError::Timeout { what: "the start of its pod", limit: START_LIMIT }),
        }
    }

    /// The guest's key, once the cluster has said that its token is this pod's.
    async fn prove(&self, id: &SandboxId, uid: &str, ip: std::net::IpAddr) -> Result<(PublicKey, PodFacts), EngineError> {
        let stage = "the identity of its pod";
        let end = Instant::now() + LISTEN_LIMIT;
        let address = GuestAddress { ip, key: None };
        let (connection, key) = loop {
            match guest::connect(&self.connector, &address).await {
                Ok(connected) => break connected,
                Err(source) if Instant::now() >= end => return Err(EngineError::Dial { id: id.clone(), source }),
                Err(_) => sleep(LISTEN_CHECK).await,
            }
            if let Some(view) = self.pods.get(id).filter(|view| !matches!(view.phase, Phase::Running(_))) {
                let reason = match view.phase {
                    Phase::Ended(death) => death.message,
                    _ => "it stopped".to_owned(),
                };
                return Err(at("the start of its guest", io::Error::other(reason)));
            }
        };
        let facts = guest::facts(connection).await.map_err(|error| at(stage, error))?;
        let proven = self.api.pod_of_token(&facts.token).await?;
        if proven.as_deref() != Some(uid) {
            let reason = match proven {
                None => "the token at its address is not valid",
                Some(_) => "the token at its address is another pod's",
            };
            return Err(at(stage, io::Error::new(io::ErrorKind::PermissionDenied, reason)));
        }
        Ok((key, facts))
    }

    /// Sends the guest what its sandbox is.
    async fn assign(&self, live: &Live, name: &SandboxName, spec: &SandboxSpec) -> Result<(), EngineError> {
        let facts = live.facts.clone().unwrap_or_default();
        let config = GuestConfig {
            sandbox_id: live.record.id.to_string(),
            sandbox_name: name.to_string(),
            image: spec.image.to_string(),
            env: guest::environment(&facts, &spec.env),
            workdir: spec.workdir.clone().or(facts.workdir),
            user: None,
            args: spec.args.clone(),
            ports: spec.ports.clone(),
            assignment: Assignment::Assigned,
            tier: live.record.tier,
            certificate: None,
            sessions: None,
        };
        let connection = self.connect(live).await?;
        // The kubelet has set the host name.
        let assignment = Become { config, hostname: String::new() };
        guest::assign(connection, &assignment).await.map_err(|error| at("the assignment of its guest", error))
    }

    pub(crate) async fn connect(&self, live: &Live) -> Result<Box<dyn Connection>, EngineError> {
        let id = &live.record.id;
        let ip = match self.pods.get(id) {
            Some(view) if view.uid == live.pod_uid => match view.phase {
                Phase::Running(ip) => ip,
                _ => return Err(EngineError::NotFound { id: id.clone() }),
            },
            _ => return Err(EngineError::NotFound { id: id.clone() }),
        };
        let address = GuestAddress { ip, key: Some(live.key.clone()) };
        let connected = guest::connect(&self.connector, &address).await;
        connected.map(|(connection, _)| connection).map_err(|source| EngineError::Dial { id: id.clone(), source })
    }

    fn live(&self, id: &SandboxId) -> Result<Live, EngineError> {
        self.running().get(id).cloned().ok_or_else(|| EngineError::NotFound { id: id.clone() })
    }

    /// Removes all of a sandbox, and waits until its pod is gone.
    pub(crate) async fn sweep(&self, id: &SandboxId) -> Result<(), EngineError> {
        let known = self.pods.get(id);
        // A pod with another name is from a warm pool, and ends with its claim.
        let is_claimed = known.as_ref().map(|view| view.name != object_name(id));
        if is_claimed.unwrap_or(!self.config.warm_pools.is_empty()) {
            self.api.claims.delete(id).await?;
        }
        // One that never ran has nothing to end, and its node may be busy with its image.
        let never_ran = known.as_ref().is_some_and(|view| matches!(view.phase, Phase::Waiting(_)));
        if is_claimed != Some(true) {
            self.api.delete_pod(&object_name(id), None, (!never_ran).then_some(GRACE_SECONDS)).await?;
        }
        if let Some(PodView { uid, name, .. }) = known {
            let gone = |view: Option<&PodView>| view.is_none_or(|view| view.uid != uid).then_some(());
            if timeout(END_LIMIT, self.pods.wait(id, gone)).await.is_err() {
                tracing::warn!(%id, "the node of a pod does not confirm its end; Kubernetes forgets the pod");
                self.api.delete_pod(&name, Some(&uid), None).await?;
            }
        }
        self.api.delete_record(id).await
    }

    async fn sweep_after_failure(&self, id: &SandboxId) {
        if let Err(error) = self.sweep(id).await {
            tracing::warn!(%id, %error, "something of a sandbox could not be removed; the next start tries again");
        }
    }
}

#[async_trait]
impl Engine for KubernetesEngine {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    async fn tier(&self, spec: &SandboxSpec) -> Result<Tier, EngineError> {
        self.shared.tier_of(spec)
    }

    async fn reserve(&self) -> Result<SandboxId, EngineError> {
        Ok(SandboxId::random())
    }

    async fn create(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let shared = &self.shared;
        let mut stages = Stages::begin();
        let created = async {
            let live = shared.begin(&row.id, Some(row), spec, &mut stages).await?;
            shared.assign(&live, &row.name, spec).await?;
            stages.done("assignment");
            Ok(live)
        };
        match created.await {
            Ok(live) => {
                let tier = live.record.tier;
                shared.running().insert(row.id.clone(), live);
                Ok(Created { tier, isolation: shared.isolation(tier), stages: stages.done })
            }
            Err(error) => {
                shared.sweep_after_failure(&row.id).await;
                Err(error)
            }
        }
    }

    async fn restart(&self, _row: &Row, _spec: &SandboxSpec) -> Result<Created, EngineError> {
        Err(EngineError::Unsupported {
            what: "another start of a sandbox on its disk".to_owned(),
            reason: "the disk of a pod ends with it; delete the sandbox and create it again".to_owned(),
        })
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        let id = SandboxId::random();
        match self.shared.begin(&id, None, spec, &mut Stages::begin()).await {
            Ok(live) => {
                self.shared.running().insert(id.clone(), live);
                Ok(id)
            }
            Err(error) => {
                self.shared.sweep_after_failure(&id).await;
                Err(error)
            }
        }
    }

    async fn adopt(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let shared = &self.shared;
        let mut stages = Stages::begin();
        let mut live = shared.live(&row.id)?;
        shared.assign(&live, &row.name, spec).await?;
        stages.done("assignment");
        live.record = Record { name: Some(row.name.clone()), memo: row.memo.clone(), ..live.record };
        shared.api.update_record(&live.record).await?;
        stages.done("record");
        let tier = live.record.tier;
        live.facts = None;
        shared.running().insert(row.id.clone(), live);
        Ok(Created { tier, isolation: shared.isolation(tier), stages: stages.done })
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), EngineError> {
        let live = self.shared.running().remove(id);
        if let Err(error) = self.shared.sweep(id).await {
            if let Some(live) = live {
                self.shared.running().insert(id.clone(), live);
            }
            return Err(error);
        }
        Ok(())
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), EngineError> {
        let connection = self.dial(id).await?;
        guest::freeze(connection).await.map_err(|error| at("stopping its processes", error))
    }

    async fn resume(&self, id: &SandboxId) -> Result<(), EngineError> {
        let connection = self.dial(id).await?;
        guest::thaw(connection).await.map_err(|error| at("continuing its processes", error))
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Connection>, EngineError> {
        let live = self.shared.live(id)?;
        self.shared.connect(&live).await
    }

    async fn activity(&self, id: &SandboxId) -> Result<Option<String>, EngineError> {
        let connection = self.dial(id).await?;
        guest::activity(connection).await.map_err(|source| EngineError::Dial { id: id.clone(), source })
    }

    async fn update_row(&self, row: &Row) -> Result<(), EngineError> {
        let known = self.shared.running().get(&row.id).map(|live| live.record.clone());
        let record = match known {
            Some(record) => record,
            None => self.shared.api.record(&row.id).await?.ok_or_else(|| EngineError::NotFound { id: row.id.clone() })?,
        };
        let record = Record { name: Some(row.name.clone()), memo: row.memo.clone(), ..record };
        self.shared.api.update_record(&record).await?;
        if let Some(live) = self.shared.running().get_mut(&row.id) {
            live.record = record;
        }
        Ok(())
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, EngineError> {
        let connection = self.dial(id).await?;
        guest::usage(connection).await.map_err(|source| EngineError::Dial { id: id.clone(), source })
    }

    async fn recover(&self, known: &[Row]) -> Result<Recovery, EngineError> {
        self.shared.find_again(known).await
    }

    async fn take_back(&self, row: &Row) -> Result<Found, EngineError> {
        self.shared.adopt_quarantined(row).await
    }

    async fn remains(&self, id: &SandboxId) -> Result<Remains, EngineError> {
        let pod = self.shared.pods.get(id);
        Ok(Remains {
            processes: usize::from(pod.as_ref().is_some_and(|pod| matches!(pod.phase, Phase::Running(_)))),
            has_disk: pod.is_some(),
            disk_bytes: None,
            has_record: self.shared.api.record(id).await?.is_some(),
        })
    }

    fn ended(&self) -> broadcast::Receiver<Ended> {
        self.shared.ended.subscribe()
    }

    async fn capacity(&self) -> Result<HostCapacity, EngineError> {
        // The cluster's memory and disk are Kubernetes' to give.
        let count = DescriptorCount::now();
        Ok(HostCapacity {
            descriptors_available: count.map_or(0, DescriptorCount::available),
            descriptors_total: count.map_or(0, |count| count.limit),
            ..HostCapacity::default()
        })
    }

    fn cluster_volumes(&self) -> Option<Arc<dyn ClusterVolumes>> {
        Some(Arc::new(Volumes(Arc::clone(&self.shared))))
    }

    async fn health(&self) -> Vec<String> {
        let problem = self.shared.pods.problem();
        problem.map(|why| format!("the cluster's API server does not answer: {why}")).into_iter().collect()
    }

    async fn close(&self) {}
}
