//! `serve`: reads the configuration, starts the server's parts, and stops them.

mod handover;
mod listeners;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arenite_channel::Identity;
use arenite_control::images::{BuildEnv, BuildRunner, ClusterImages, ImagesConfig, PullPolicy, Registries, StepSandboxes};
use arenite_control::nodes::NodeClaim;
use arenite_control::store::Store;
use arenite_control::{Control, ControlConfig, store};
use arenite_engine::docker::{self, DockerConfig, DockerEngine};
use arenite_engine::namespace::network::NetworkConfig;
use arenite_engine::namespace::storage::StorageConfig;
use arenite_engine::namespace::{self, NamespaceConfig, NamespaceEngine, ServerLock};
use arenite_engine::{Engine, EngineError, KubernetesConfig};
use arenite_gateway::{GatewayConfig, NodeConfig};
use arenite_image::{ImageStore, RegistryOptions};
use arenite_model::{ImageName, Resources, SandboxSpec, Tier};
use arenite_retrieval::library::Library;
use arenite_synthesis::config::Workers;
use arenite_trajectory::{Archive, ArchiveSettings, Recorder, TrajectoryError};
use ipnet::{IpNet, Ipv4Net};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::ServeArgs;
use crate::config::values::{AddressRange, EngineKind, LimitOf, LogFormat};
use crate::config::{self, Config, Settings, TrajectoryStore};
use crate::failure::{Attempt, Failure, Outcome};
use crate::guest_description::guest_description;
use crate::output;
use handover::Handover;

/// The private key of a node, in the data directory.
const NODE_IDENTITY: &str = "node-identity.pem";
/// The most bytes of logs from object storage in the data directory.
const FETCHED_BYTES: u64 = 4 << 30;
/// Maximum number of open files of a process in a sandbox.
const OPEN_FILES: u64 = 65_536;

pub(crate) fn run(mut args: ServeArgs, matches: &clap::ArgMatches) -> Outcome {
    let passed = listeners::of_service_manager()?;
    if !passed.is_empty() {
        args.settings.listen_on(passed.iter().filter_map(|listener| listener.local_addr().ok()).collect());
    }
    let (file, path) = Settings::of_file(args.config.as_deref())?;
    let aio = Settings::from_other_variables(|name| std::env::var(name).ok())?;
    let agentflow = args.settings.agentflow(&file)?;
    let file = match &agentflow {
        Some(agentflow) => file.over(Settings::of_agentflow(agentflow)?),
        None => file,
    };
    if args.show_config {
        output::line(config::show(matches, &args.settings, &aio, &file, path.as_deref()).trim_end());
        if let Some(agentflow) = &agentflow {
            output::line(serde_json::to_string_pretty(&agentflow.shown()).unwrap_or_default());
        }
        // An invalid configuration is shown first, and then refused.
        args.settings.over(aio).over(file).resolve()?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = args.settings.over(aio).over(file).resolve()?;
    if args.validate {
        output::line("the configuration is valid");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(image) = &args.show_warm_pool {
        output::line(warm_pool(&config, image)?);
        return Ok(ExitCode::SUCCESS);
    }
    // The cluster isolates the pods.
    if config.kubernetes.is_none() && !rustix::process::geteuid().is_root() {
        return Err(Failure::new("the server needs the host's root: ids are mapped and networks made for sandboxes")
            .hint("start it with: sudo arenite serve; arenite doctor says what else is needed"));
    }
    start_log(&config)?;
    // The files that the server writes hold its users' secrets. Processes in sandboxes get a separate umask.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    if let Err(error) = arenite_engine::descriptors::raise_limit() {
        tracing::warn!(%error, "the limit of descriptors stays as it is");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().attempt(|| "could not start".into())?;
    let outcome = runtime.block_on(serve(config, agentflow, passed, args.take_over));
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

fn start_log(config: &Config) -> Result<(), Failure> {
    // The protocol's library logs each session's start and end.
    let filter = EnvFilter::try_new(format!("rmcp=warn,{}", config.log)).map_err(|error| {
        Failure::new(format!("log is {:?}, and that is no filter: {error}", config.log))
            .hint("write a level, or one for each part: info,arenite_engine=debug")
            .exit_code(2)
    })?;
    // If a line can't be written, tracing-subscriber reports it with a macro that panics when stderr is a file on a full disk.
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match config.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

async fn serve(
    config: Config,
    agentflow: Option<arenite_synthesis::config::Config>,
    passed: Vec<TcpListener>,
    take_over: bool,
) -> Outcome {
    let mut stop = Stop::watch()?;
    // Before anything is mounted or created: a server that can't start leaves the host unchanged.
    let Claim { listeners, lock, handover } = claim(&config, passed, take_over).await?;
    // The same for a database that has another server.
    let node = config.node.is_some().then(|| open_node(&config)).transpose()?;
    let store = open_store(&config, node.as_ref()).await?;
    let Started { engine, images, steps, warnings } = start_engine(&config, lock).await?;
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    let policy = pull_policy(&config);
    let cluster_images = config
        .kubernetes
        .as_ref()
        .map(|kubernetes| ClusterImages { names: kubernetes.images.keys().cloned().collect(), policy: policy.clone() });
    let images = images.map(|store| ImagesConfig {
        store,
        policy,
        puller: Arc::new(Registries),
        steps,
        keep_unused: (config.image_keep_days > 0).then(|| DAY * config.image_keep_days),
    });
    let trajectories = config.data_dir.join("trajectories");
    let unopened = |error: TrajectoryError| failed("the trajectories could not be opened", &error, error.hint());
    let cache_dir = trajectories.join("fetched");
    let recorder = Recorder::open(trajectories, arenite_trajectory::Limits::default()).map_err(unopened)?;
    let archive = config.trajectory_store.clone().map(|TrajectoryStore(objects)| {
        let keep_local = config.trajectory_local_days.map(|days| DAY * days);
        Archive::new(objects, recorder.clone(), ArchiveSettings { keep_local, cache_dir, cache_bytes: FETCHED_BYTES })
    });
    let archive = archive.transpose().map_err(unopened)?.map(Arc::new);
    let control = Control::start_with(ControlConfig { images, cluster_images, ..control_config(&config) }, engine, store)
        .await
        .map_err(|error| failed("the sandboxes could not be taken over", &error, error.hint()))?;
    if let Some(tenants) = control.tenants().filter(|_| !config.auth.is_required()) {
        let made = tenants.first_operator_key().await.map_err(|error| failed("no key could be created", &error, error.hint()))?;
        if let Some((key, text)) = made {
            tracing::info!(id = %key.id, "created an operator's key, which is printed to stdout only now");
            output::line(format_args!("operator key: {}", text.as_str()));
        }
    }
    let workers = match agentflow {
        Some(agentflow) => agentflow.workers(&config.data_dir).map_err(Failure::new)?,
        None => Workers::default_set(&config.data_dir),
    };
    let listen: Vec<SocketAddr> = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    if config.has_weak_key {
        tracing::warn!("the API key is short enough to be guessed; openssl rand -hex 32 makes a better one");
    }
    if config.tls.is_none() && listen.iter().any(|address| !address.ip().to_canonical().is_loopback()) {
        tracing::warn!(
            "keys travel unencrypted to addresses beyond loopback: set tls_cert, or put a proxy with TLS before the server"
        );
    }
    let database = config.database.as_ref().map(tracing::field::display);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), data_dir = %config.data_dir.display(), database, "serving on {}", urls(&config, &listen).join(" and "));
    let outgoing_tls = arenite_rollout::tls_connector(None)
        .inspect_err(|error| tracing::warn!(%error, "webhooks and traces can't use https"))
        .ok();
    let gateway = GatewayConfig {
        listen,
        tls: config.tls.clone(),
        plain_listen: config.plain_listen(),
        allowed_hosts: config.allowed_host.iter().map(|name| name.to_ascii_lowercase()).collect(),
        allowed_origins: config.allowed_origin.clone(),
        auth: config.auth.clone(),
        domain: config.domain.clone(),
        trusted_proxies: config.trusted_proxy.clone(),
        agent_sandbox_always_200: config.agent_sandbox_always_200,
        agent_sandbox_version: config.agent_sandbox_version.into(),
        workers: Some(workers),
        corpora: Some(Arc::new(Library::of_data(&config.data_dir))),
        webhook_ranges: config.webhook_allow.iter().filter_map(net).collect(),
        model_ranges: config.model_allow.iter().filter_map(net).collect(),
        outgoing_tls,
        node,
        archive,
        traces: config.traces.clone(),
        warnings,
        commit: option_env!("ARENITE_COMMIT").unwrap_or("unknown"),
        guest: guest_description(),
        ..GatewayConfig::default()
    };
    let replaced = Arc::new(AtomicBool::new(false));
    let given_up = Arc::new(AtomicBool::new(false));
    let stopped = {
        let (replaced, given_up, control) = (Arc::clone(&replaced), Arc::clone(&given_up), Arc::clone(&control));
        async move {
            tokio::select! {
                name = stop.any() => tracing::info!("{name}: stopping; a second signal stops at once"),
                () = handover.wanted() => {
                    replaced.store(true, Ordering::Relaxed);
                    tracing::info!("another server takes over: stopping; a signal stops at once");
                }
                () = control.given_up() => given_up.store(true, Ordering::Relaxed),
            }
            stop.end_at_the_next();
        }
    };
    let served = arenite_gateway::serve(gateway, listeners, control.clone(), recorder, stopped).await;
    control.stop(config.remove_sandboxes && !replaced.load(Ordering::Relaxed)).await;
    served.map_err(|error| Failure::new(error.to_string()))?;
    if given_up.load(Ordering::Relaxed) {
        return Err(Failure::new("the cluster has given this node up, since it did not renew its lease")
            .hint("start it again: it joins, and takes over the sandboxes that still run"));
    }
    tracing::info!("stopped; {}", if config.remove_sandboxes { "all sandboxes are removed" } else { "sandboxes live on" });
    Ok(ExitCode::SUCCESS)
}

/// The key of this node, and the address at which other nodes reach it.
fn open_node(config: &Config) -> Result<NodeConfig, Failure> {
    let file = config.data_dir.join(NODE_IDENTITY);
    let keys = Identity::open(&file).map_err(|error| Failure::new(format!("the node's key: {error}")))?;
    let address = config.node_listen;
    let listener = arenite_gateway::listen_on(address)
        .map_err(|error| Failure::new(format!("could not listen on {address} for other nodes: {error}")))
        .map_err(|failure| failure.hint("node_listen names another address"))?;
    Ok(NodeConfig { keys, listener: Arc::new(listener) })
}

/// Opens the store, alone or as a node of a cluster.
async fn open_store(config: &Config, node: Option<&NodeConfig>) -> Result<Arc<dyn Store>, Failure> {
    let opened = match (&config.node, &config.database, node) {
        (Some(name), Some(database), Some(node)) => {
            let own = node.listener.local_addr().ok().map(|address| address.to_string());
            let address = config.node_address.clone().or(own);
            let claim = NodeClaim { name: name.clone(), key: node.keys.public().to_string(), address };
            store::open_node(&config.data_dir, database, claim).await
        }
        _ => store::open(&config.data_dir, config.database.as_ref()).await,
    };
    opened.map_err(|error| Failure::new(error.to_string()).maybe_hint(error.hint()))
}

fn failed(what: &str, error: &impl std::fmt::Display, hint: Option<String>) -> Failure {
    Failure::new(format!("{what}: {error}")).maybe_hint(hint)
}

/// An engine's default configuration for a data directory; image builds use it too.
pub(crate) fn namespace_config(data_dir: &Path) -> Result<NamespaceConfig, Failure> {
    Ok(NamespaceConfig {
        data_dir: data_dir.to_owned(),
        // Not its path, which may be another version by now.
        program: "/proc/self/exe".into(),
        storage: StorageConfig::default(),
        // The engine sets its own tag there.
        network: NetworkConfig::default(),
        prepared_slots: 0,
        default_resources: Resources::default(),
        open_files: OPEN_FILES,
        extra_ca: None,
        volumes: BTreeMap::new(),
        default_tier: Tier::Namespace,
        runsc: None,
        buckets: BTreeMap::new(),
        rclone: None,
    })
}

/// The exclusive resources of a server.
struct Claim {
    listeners: Vec<TcpListener>,
    lock: ServerLock,
    handover: Handover,
}

/// Claims addresses and data directory, from another server if `take_over`.
async fn claim(config: &Config, mut passed: Vec<TcpListener>, take_over: bool) -> Result<Claim, Failure> {
    let data_dir = &config.data_dir;
    let predecessor = if take_over { handover::ask(data_dir)? } else { None };
    let predecessor = predecessor.map(|(predecessor, listeners)| {
        passed.extend(listeners);
        predecessor
    });
    let listeners = listeners::open(config, passed)?;
    let mut lock = match predecessor {
        Some(predecessor) => predecessor.replace(data_dir).await?,
        None => ServerLock::take(data_dir).map_err(|error| Failure::new(error.to_string()).maybe_hint(error.hint()))?,
    };
    let addresses: Vec<SocketAddr> = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    lock.announce(urls(config, &addresses)).attempt(|| format!("could not write into {}", data_dir.display()))?;
    let handover =
        Handover::offer(data_dir, &listeners).attempt(|| format!("could not make a socket in {}", data_dir.display()))?;
    Ok(Claim { listeners, lock, handover })
}

/// Runs steps of builds by API as sandboxes of the engine.
#[derive(Clone)]
struct Steps(NamespaceEngine);

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Steps")
    }
}

impl StepSandboxes for Steps {
    fn runner(&self, spec: &SandboxSpec) -> Box<dyn BuildRunner> {
        Box::new(self.0.steps(spec.clone()))
    }

    fn env(&self) -> BuildEnv {
        BuildEnv::of_sandboxes(self.0.extra_ca())
    }
}

/// A started engine.
struct Started {
    engine: Arc<dyn Engine>,
    /// None: the engine's images are not here.
    images: Option<ImageStore>,
    steps: Option<Arc<dyn StepSandboxes>>,
    /// What it does not enforce on this host.
    warnings: Vec<String>,
}

async fn start_engine(config: &Config, lock: ServerLock) -> Result<Started, Failure> {
    let others = [
        (EngineKind::Namespace, namespace::has_sandboxes(&config.data_dir).then_some("namespace")),
        (EngineKind::Docker, docker::has_sandboxes(&config.data_dir).then_some("docker")),
    ];
    let other = others.into_iter().filter(|(kind, _)| *kind != config.engine).find_map(|(_, name)| name);
    if let Some(other) = other {
        return Err(Failure::new(format!("{} has sandboxes of the engine {other}", config.data_dir.display()))
            .hint("start with that engine and delete them first, or use another data directory"));
    }
    let refused = |error: EngineError| failed("the engine could not start", &error, error.hint());
    if let Some(kubernetes) = &config.kubernetes {
        return start_kubernetes(kubernetes, lock).await?.map_err(refused);
    }
    let mut namespace = namespace_config(&config.data_dir)?;
    namespace.storage.size_bytes = config.storage_size.map(|s| s.0);
    namespace.storage.floor_bytes = Some(config.disk_reserve.0 / 2);
    namespace.prepared_slots = config.prepared_slots as usize;
    namespace.extra_ca = config.extra_ca.clone();
    namespace.default_tier = config.tier;
    namespace.runsc = config.runsc.clone();
    namespace.volumes = config.volume.iter().map(|v| (v.name.clone(), v.volume())).collect();
    namespace.buckets = config.bucket.iter().map(|bucket| (bucket.name.clone(), bucket.file.clone())).collect();
    namespace.rclone = config.rclone.clone();
    let network = &mut namespace.network;
    network.subnet = config.subnet.and_then(|range| match range.address {
        IpAddr::V4(address) => Ipv4Net::new(address, range.prefix).ok(),
        IpAddr::V6(_) => None,
    });
    network.denied.extend(config.deny.iter().filter_map(net));
    network.allowed = config.allow.iter().filter_map(net).collect();
    network.host_ports = config.host_port.clone();
    network.resolvers = (!config.resolver.is_empty()).then(|| config.resolver.iter().map(|r| r.0).collect());
    match config.engine {
        EngineKind::Namespace | EngineKind::Kubernetes => {
            let engine = NamespaceEngine::start(namespace, lock).await.map_err(refused)?;
            let (images, warnings) = (engine.images().clone(), engine.warnings().await);
            let steps = Arc::new(Steps(engine.clone()));
            Ok(Started { images: Some(images), warnings, steps: Some(steps), engine: Arc::new(engine) })
        }
        EngineKind::Docker => {
            let docker = DockerConfig {
                data_dir: namespace.data_dir,
                socket: config.docker_socket.clone(),
                program: namespace.program,
                storage: namespace.storage,
                network: namespace.network,
                open_files: namespace.open_files,
                no_new_privileges: config.docker_no_new_privileges,
                default_tier: namespace.default_tier,
                gvisor_runtime: config.docker_gvisor_runtime.clone(),
                volumes: namespace.volumes,
            };
            let engine = DockerEngine::start(docker, lock).await.map_err(refused)?;
            let (images, warnings) = (engine.images().clone(), engine.warnings().await);
            Ok(Started { images: Some(images), warnings, steps: None, engine: Arc::new(engine) })
        }
    }
}

fn make_data_dir(dir: &Path) -> Result<(), Failure> {
    let mut builder = std::fs::DirBuilder::new();
    // A server would refuse one that others may enter.
    builder.recursive(true).mode(0o700).create(dir).attempt(|| format!("could not make {}", dir.display()))
}

/// The objects of a warm pool, as JSON for `kubectl apply`.
fn warm_pool(config: &Config, image: &ImageName) -> Result<String, Failure> {
    let Some(kubernetes) = &config.kubernetes else {
        return Err(Failure::new("warm pools are of the engine kubernetes").hint("set engine = \"kubernetes\""));
    };
    make_data_dir(&config.data_dir)?;
    objects_of_warm_pool(kubernetes, image)
}

#[cfg(feature = "kubernetes")]
fn objects_of_warm_pool(config: &KubernetesConfig, image: &ImageName) -> Result<String, Failure> {
    let objects = arenite_kubernetes::warm_pool(config, image)
        .map_err(|error| failed("the warm pool can't be described", &error, error.hint()))?;
    Ok(format!("{objects:#}"))
}

#[cfg(not(feature = "kubernetes"))]
fn objects_of_warm_pool(_: &KubernetesConfig, _: &ImageName) -> Result<String, Failure> {
    Err(without_kubernetes())
}

#[cfg(not(feature = "kubernetes"))]
fn without_kubernetes() -> Failure {
    Failure::new("this program was built without the engine kubernetes")
        .hint("the packages have it; cargo xtask dist builds them, and cargo xtask up leaves it out, since it takes a minute to compile")
}

#[cfg(feature = "kubernetes")]
async fn start_kubernetes(config: &KubernetesConfig, lock: ServerLock) -> Result<Result<Started, EngineError>, Failure> {
    let started = arenite_kubernetes::KubernetesEngine::start(config.clone(), lock).await;
    Ok(started.map(|engine| Started { images: None, warnings: engine.warnings(), steps: None, engine: Arc::new(engine) }))
}

#[cfg(not(feature = "kubernetes"))]
#[expect(clippy::unused_async, reason = "it is one with the engine")]
async fn start_kubernetes(_: &KubernetesConfig, _: ServerLock) -> Result<Result<Started, EngineError>, Failure> {
    Err(without_kubernetes())
}

fn net(range: &AddressRange) -> Option<IpNet> {
    IpNet::new(range.address, range.prefix).ok()
}

fn control_config(config: &Config) -> ControlConfig {
    let mut control = ControlConfig::new(config.data_dir.clone(), config.default_image.clone());
    control.tenants = config.tenants;
    if config.kubernetes.is_some() {
        // A node may have to be added, and to pull the image.
        control.engine_timeout = Duration::from_secs(15 * 60);
    }
    control.webhook_retry = Duration::from_secs(config.webhook_retry_seconds.into());
    control.secret_keys = config.secret_keys.clone();
    for LimitOf { quota, limit } in &config.tenant_limit {
        // Checked when it was read.
        let _ = control.tenant_limits.set(*quota, *limit);
    }
    control.tenant_limits.min_tier = Some(config.tenant_min_tier).filter(|tier| *tier != Tier::Namespace);
    control.node_labels = config.node_label.iter().map(|label| (label.key.clone(), label.value.clone())).collect();
    control.templates_dir = config.templates_dir.clone();
    control.environments_file = config.environments_file.clone();
    control.pools = config.pool.iter().map(|pool| (pool.name.clone(), pool.number as usize)).collect();
    let limits = &mut control.limits;
    limits.max_concurrent_creates = config.max_concurrent_creates as usize;
    limits.create_queue = config.create_queue as usize;
    limits.memory_reserve_bytes = config.memory_reserve.0;
    limits.disk_reserve_bytes = config.disk_reserve.0;
    limits.max_sandboxes = config.max_sandboxes as usize;
    control
}

/// Registries have less time than those of the command line: a create waits, and each pull holds a thread.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(86_400);

fn pull_policy(config: &Config) -> PullPolicy {
    let options = RegistryOptions {
        insecure: config.image_insecure_registry.clone(),
        mirrors: config.image_mirror.iter().map(|mirror| mirror.0.clone()).collect(),
        keep_free_bytes: config.disk_reserve.0,
        connect_timeout: CONNECT_TIMEOUT,
        answer_timeout: ANSWER_TIMEOUT,
        stall_timeout: ANSWER_TIMEOUT,
        ..RegistryOptions::default()
    };
    PullPolicy {
        mode: config.image_pull.0,
        rules: config.image_registry.iter().map(|rule| rule.0.clone()).collect(),
        options,
        wait: Duration::from_secs(config.image_pull_wait_seconds.into()),
    }
}

fn urls(config: &Config, listen: &[SocketAddr]) -> Vec<String> {
    listen.iter().map(|&address| format!("{}://{address}", config.scheme(address))).collect()
}

/// The signals that stop the server: gracefully at the first, at once at the second.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn watch() -> Result<Self, Failure> {
        let watch = |kind| signal(kind).attempt(|| "could not watch for signals".to_owned());
        Ok(Self { terminate: watch(SignalKind::terminate())?, interrupt: watch(SignalKind::interrupt())? })
    }

    async fn any(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Spawns a task that ends the process at the next signal.
    fn end_at_the_next(mut self) {
        tokio::spawn(async move {
            let name = self.any().await;
            tracing::warn!("{name}: stopping at once");
            // Everything that matters is on disk by then: a crash is always safe.
            std::process::exit(130);
        });
    }
}
