//! One cluster on this host: its processes, and what they leave on the host.
//!
//! ```text
//!  first process (PID and mount namespace) ─┬─ etcd, API server, controllers, scheduler   network of node 1
//!                                           └─ node N (mount namespace, network of node N)
//!                                                 └─ containerd, kubelet, kube-proxy, containers
//! ```
//!
//! The end of the first process is the end of all others and of all mounts. It holds a lock while it runs, so that there is
//! one cluster on a host, and so that another clone's `down` leaves it alone.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::build::{self, AGENT_SANDBOX, ETCD, KUBERNETES, KWOK};
use super::credentials::{ADMIN, Credentials};
use super::images::Images;
use super::node::{self, Node};
use super::process::{Component, PAUSE, Process, direct};
use super::{cgroups, manifests, network};
use crate::command::{self, succeeds, target_dir};
use crate::failure::{Attempt, Failure, Outcome};
use crate::server;

/// Locked while a cluster runs; contains the cluster's directory.
const LOCK: &str = "/run/arenite-kubernetes.lock";
/// Maximum time until a part of the cluster is ready. Most take a second or two.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// Reaps what others leave, and ends when it is killed.
const FIRST_PROCESS: &str = r#": >"$0"; sleep infinity & wait"#;
/// Names the directory in which kubectl keeps what it knows of a server. Without it, that is in the user's home.
pub(super) const KUBECTL_CACHE: &str = "KUBECACHEDIR";
/// Where the controller of agent-sandbox says whether it is ready.
const AGENT_SANDBOX_HEALTH: u16 = 8081;

/// Addresses that kwok gives its pods. All of them are this host's, so a test can play their guests.
const FAKE_PODS: &str = "127.64.0.0/16";

/// How many nodes a cluster has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) nodes: usize,
    /// Pretended by kwok: their pods report to run, and don't.
    pub(super) fake_nodes: usize,
}

/// What `cluster.json` keeps between tasks.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    init: Process,
    /// The first process of each node.
    holders: Vec<Process>,
    fake_nodes: usize,
    components: BTreeMap<String, Component>,
}

pub(super) struct Cluster {
    dir: PathBuf,
    record: Record,
    begun: Instant,
}

/// The directory of this clone's cluster.
fn state_dir() -> PathBuf {
    target_dir().join("kubernetes")
}

/// The lock, or none if a cluster holds it.
fn lock() -> Result<Option<File>, Failure> {
    let file = File::options().create(true).truncate(false).read(true).write(true).open(LOCK);
    let file = file.attempt(|| format!("could not open {LOCK}"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(Failure::new(format!("could not lock {LOCK}: {error}"))),
    }
}

/// Fails if the cluster that runs is another clone's.
fn must_be_ours() -> Outcome {
    let owner = fs::read_to_string(LOCK).unwrap_or_default();
    if Path::new(&owner) == state_dir() {
        return Ok(());
    }
    Err(Failure::new(format!("the cluster in {owner} runs on this host; stop it there with: cargo xtask kubernetes down")))
}

impl Cluster {
    /// Starts a cluster. If a part doesn't become ready, everything but the logs is removed.
    pub(super) fn up(size: Size) -> Result<Self, Failure> {
        let Some(lock) = lock()? else {
            must_be_ours()?;
            return Err(Failure::new("a cluster runs already; stop it with: cargo xtask kubernetes down"));
        };
        let dir = state_dir();
        // What a cluster left that was not taken down, for example at the host's last start.
        sweep(&dir)?;
        remove_dir(&dir.join("logs"))?;
        network::check()?;
        let begun = Instant::now();
        Self::start(lock, dir.clone(), size, begun).inspect_err(|_| {
            eprintln!("the cluster did not start; its logs are in {}", dir.join("logs").display());
            let ended = Self::load(&dir).map_or(Ok(()), |cluster| cluster.record.init.kill());
            if let Err(failure) = ended.and_then(|()| sweep(&dir)) {
                eprintln!("could not remove everything: {failure}");
            }
        })
    }

    /// The cluster of this clone, if it runs.
    pub(super) fn find() -> Result<Option<Self>, Failure> {
        match lock()? {
            Some(_) => Ok(None),
            None => must_be_ours().and_then(|()| Self::load(&state_dir())).map(Some),
        }
    }

    pub(super) fn must_run() -> Result<Self, Failure> {
        Self::find()?.ok_or_else(|| Failure::new("no cluster runs; start one with: cargo xtask kubernetes up"))
    }

    /// Ends the cluster and removes everything but the logs, also what is left of one that ended by itself. Returns whether
    /// one ran.
    pub(super) fn down() -> Result<bool, Failure> {
        let running = Self::find()?;
        if let Some(cluster) = &running {
            cluster.record.init.kill()?;
        }
        sweep(&state_dir())?;
        Ok(running.is_some())
    }

    fn load(dir: &Path) -> Result<Self, Failure> {
        let file = dir.join("cluster.json");
        let text = fs::read(&file).attempt(|| format!("could not read {}; does the cluster start just now?", file.display()))?;
        let record = serde_json::from_slice(&text).attempt(|| format!("could not read {}", file.display()))?;
        Ok(Self { dir: dir.to_owned(), record, begun: Instant::now() })
    }

    fn save(&self) -> Outcome {
        let (file, unfinished) = (self.dir.join("cluster.json"), self.dir.join("cluster.json.unfinished"));
        let text = serde_json::to_vec_pretty(&self.record).attempt(|| "could not describe the cluster".into())?;
        fs::write(&unfinished, text).attempt(|| format!("could not write {}", unfinished.display()))?;
        fs::rename(&unfinished, &file).attempt(|| format!("could not write {}", file.display()))
    }

    fn start(mut lock: File, dir: PathBuf, size: Size, begun: Instant) -> Result<Self, Failure> {
        for name in ["logs", "bin", "images", "manifests"] {
            let made = dir.join(name);
            fs::create_dir_all(&made).attempt(|| format!("could not make {}", made.display()))?;
        }
        lock.set_len(0).and_then(|()| lock.rewind()).attempt(|| format!("could not empty {LOCK}"))?;
        write!(lock, "{}", dir.display()).attempt(|| format!("could not write {LOCK}"))?;
        let credentials = Credentials::create(&dir.join("credentials"), size.nodes)?;
        link(Path::new(&credentials.kubeconfig(ADMIN)), &dir.join("kubeconfig"))?;
        link(&build::path(KUBERNETES, "kubectl"), &dir.join("bin/kubectl"))?;
        let images = Images::new(dir.join("images"));
        let archives = [images.pause()?, images.busybox()?];
        network::create(size.nodes)?;
        cgroups::create(size.nodes)?;

        let init = Self::start_first_process(lock, &dir)?;
        let record = Record { init, holders: Vec::new(), fake_nodes: size.fake_nodes, components: BTreeMap::new() };
        let mut cluster = Self { dir, record, begun };
        cluster.save()?;
        cluster.start_api_server(&credentials)?;
        let nodes: Vec<Node<'_>> = (1..=size.nodes).map(|number| Node::new(number, &cluster.dir, &credentials)).collect();
        for node in &nodes {
            let holder = node.hold(&mut cluster)?;
            cluster.record.holders.push(holder);
            node.start_containerd(&mut cluster, holder)?;
        }
        for (number, holder) in (1..).zip(cluster.record.holders.clone()) {
            cluster.wait_for(&format!("containerd of node {number}"), || Ok(succeeds(node::ctr(holder).arg("version"))))?;
        }
        archives.iter().try_for_each(|archive| cluster.import(archive))?;
        cluster.wait_for("the API server", || Ok(succeeds(cluster.kubectl().args(["get", "--raw", "/readyz"]))))?;
        cluster.start_controllers(&credentials)?;
        for (node, holder) in nodes.iter().zip(cluster.record.holders.clone()) {
            node.start_kubelet(&mut cluster, holder)?;
        }
        cluster.start_agent_sandbox(&credentials)?;
        cluster.start_fake_nodes()?;
        cluster.wait_until_usable(size)?;
        Ok(cluster)
    }

    fn start_first_process(lock: File, dir: &Path) -> Result<Process, Failure> {
        let started = dir.join("started");
        let mut command = direct("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", FIRST_PROCESS]).arg(&started);
        // It keeps the lock for as long as it has the file open.
        let init = Process::start(command.stdin(lock), &dir.join("logs/init.log"))?;
        let begun = Instant::now();
        while !started.exists() {
            if !init.is_alive() || begun.elapsed() > READY_LIMIT {
                return Err(Failure::new(format!("the first process ended:\n{}", server::tail(&dir.join("logs/init.log")))));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(init)
    }

    fn start_api_server(&mut self, credentials: &Credentials) -> Outcome {
        let data = self.dir.join("etcd").display().to_string();
        let (client, peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        let etcd = [
            ("data-dir", data.as_str()),
            ("listen-client-urls", client),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer),
            ("log-level", "warn"),
            // Its data ends with the cluster.
            ("unsafe-no-fsync", "true"),
        ];
        self.start_control("etcd", &build::path(ETCD, "etcd"), &etcd)?;
        let path = |file| credentials.path(file);
        let keys = path("service-accounts.key");
        let (address, tokens, authority) = (network::node_address(1), path("tokens.csv"), path("ca.crt"));
        let (certificate, key) = (path("apiserver.crt"), path("apiserver.key"));
        let audit_log = self.log("audit").display().to_string();
        let audit_policy = self.dir.join("manifests/audit.json");
        fs::write(&audit_policy, manifests::audit_policy().to_string())
            .attempt(|| format!("could not write {}", audit_policy.display()))?;
        let audit_policy = audit_policy.display().to_string();
        let (kubelet_certificate, kubelet_key) = (path("kubelet-client.crt"), path("kubelet-client.key"));
        let apiserver = [
            ("etcd-servers", client),
            ("advertise-address", address.as_str()),
            ("secure-port", "6443"),
            ("tls-cert-file", &certificate),
            ("tls-private-key-file", &key),
            ("token-auth-file", &tokens),
            ("client-ca-file", &authority),
            ("authorization-mode", "Node,RBAC"),
            ("enable-admission-plugins", "NodeRestriction"),
            ("allow-privileged", "true"),
            ("service-cluster-ip-range", network::SERVICES),
            ("service-account-issuer", "https://kubernetes.default.svc"),
            ("service-account-key-file", &keys),
            ("service-account-signing-key-file", &keys),
            ("kubelet-client-certificate", &kubelet_certificate),
            ("kubelet-client-key", &kubelet_key),
            ("kubelet-preferred-address-types", "InternalIP"),
            // Tests count writes in it.
            ("audit-policy-file", &audit_policy),
            ("audit-log-path", &audit_log),
        ];
        self.start_control("apiserver", &build::path(KUBERNETES, "kube-apiserver"), &apiserver)
    }

    fn start_controllers(&mut self, credentials: &Credentials) -> Outcome {
        let (kubeconfig, keys) = (credentials.kubeconfig("controller-manager"), credentials.path("service-accounts.key"));
        let authority = credentials.path("ca.crt");
        let controllers = [
            ("kubeconfig", kubeconfig.as_str()),
            ("service-account-private-key-file", &keys),
            ("root-ca-file", &authority),
            ("use-service-account-credentials", "true"),
            ("leader-elect", "false"),
            ("bind-address", "127.0.0.1"),
        ];
        self.start_control("controller-manager", &build::path(KUBERNETES, "kube-controller-manager"), &controllers)?;
        let kubeconfig = credentials.kubeconfig("scheduler");
        let scheduler = [("kubeconfig", kubeconfig.as_str()), ("leader-elect", "false"), ("bind-address", "127.0.0.1")];
        self.start_control("scheduler", &build::path(KUBERNETES, "kube-scheduler"), &scheduler)
    }

    /// The controller of kubernetes-sigs/agent-sandbox with the definitions and rights of its module, but not in a pod.
    fn start_agent_sandbox(&mut self, credentials: &Credentials) -> Outcome {
        self.apply("agent-sandbox", &manifests::agent_sandbox(&build::path(AGENT_SANDBOX, build::AGENT_SANDBOX_MANIFESTS))?)?;
        command::output(self.kubectl().args(["wait", "--for=condition=Established", "customresourcedefinitions", "--all"]))?;
        let health = format!("{}:{AGENT_SANDBOX_HEALTH}", network::node_address(1));
        let options = [
            ("extensions", "true"),
            ("leader-elect", "false"),
            ("metrics-bind-address", "127.0.0.1:8080"),
            ("health-probe-bind-address", &health),
        ];
        let environment = BTreeMap::from([("KUBECONFIG".to_owned(), credentials.kubeconfig("agent-sandbox"))]);
        let program = build::path(AGENT_SANDBOX, "agent-sandbox-controller");
        self.start_in_control_plane("agent-sandbox", &program, &options, environment)
    }

    fn start_fake_nodes(&mut self) -> Outcome {
        if self.record.fake_nodes == 0 {
            return Ok(());
        }
        let kubeconfig = self.kubeconfig().display().to_string();
        let stages = build::path(KWOK, build::KWOK_STAGES).display().to_string();
        let options = [
            ("kubeconfig", kubeconfig.as_str()),
            ("config", &stages),
            ("cidr", FAKE_PODS),
            ("server-address", "127.0.0.1:0"),
            ("manage-all-nodes", "false"),
            ("manage-nodes-with-annotation-selector", manifests::FAKE_ANNOTATION),
        ];
        self.start_control("kwok", &build::path(KWOK, "kwok"), &options)?;
        self.apply("fake-nodes", &manifests::fake_nodes(self.record.fake_nodes).to_string())
    }

    fn wait_until_usable(&mut self, size: Size) -> Outcome {
        self.apply("storage", &manifests::storage(&self.dir, size.nodes).to_string())?;
        let ready = ["wait", "--for=condition=Ready", "--timeout=2s", "node"];
        self.wait_for("each node", || {
            let names = (1..=size.nodes).map(|number| format!("node{number}"));
            Ok(succeeds(self.kubectl().args(ready).args(names)))
        })?;
        if size.fake_nodes > 0 {
            let fake = ["--selector", manifests::FAKE_LABEL];
            self.wait_for("each fake node", || Ok(succeeds(self.kubectl().args(ready).args(fake))))?;
        }
        // Pods are refused before.
        let account = ["get", "serviceaccount", "default"];
        self.wait_for("the first service account", || Ok(succeeds(self.kubectl().args(account))))?;
        let health = format!("http://{}:{AGENT_SANDBOX_HEALTH}/readyz", network::node_address(1));
        self.wait_for("the controller of agent-sandbox", || Ok(succeeds(direct("busybox").args(["wget", "-qO-", &health]))))
    }

    fn start_control(&mut self, name: &str, program: &Path, options: &[(&str, &str)]) -> Outcome {
        self.start_in_control_plane(name, program, options, BTreeMap::new())
    }

    fn start_in_control_plane(
        &mut self,
        name: &str,
        program: &Path,
        options: &[(&str, &str)],
        environment: BTreeMap<String, String>,
    ) -> Outcome {
        let args: Vec<String> = options.iter().map(|(option, value)| format!("--{option}={value}")).collect();
        let words = self.record.init.entering(&network::path(1), &[], &program.display().to_string(), &args);
        self.start_component(name, words, environment)
    }

    pub(super) fn start_component(
        &mut self,
        name: &str,
        words: Vec<String>,
        mut environment: BTreeMap<String, String>,
    ) -> Outcome {
        // Nothing is written to the user's home.
        environment.insert("HOME".to_owned(), self.dir.display().to_string());
        let component = Component::start(words, environment, &self.log(name))?;
        self.record.components.insert(name.to_owned(), component);
        self.save()
    }

    /// Kills a component; what it started goes on.
    pub(super) fn stop_component(&self, name: &str) -> Outcome {
        self.component(name)?.process().kill()
    }

    /// Starts a component that was stopped.
    pub(super) fn restart_component(&mut self, name: &str) -> Outcome {
        let mut component = self.component(name)?.clone();
        if component.process().is_alive() {
            return Err(Failure::new(format!("{name} runs ({})", component.process())));
        }
        component.start_again(&self.log(name))?;
        self.record.components.insert(name.to_owned(), component);
        self.save()
    }

    fn component(&self, name: &str) -> Result<&Component, Failure> {
        let names = || self.record.components.keys().cloned().collect::<Vec<_>>().join(", ");
        self.record.components.get(name).ok_or_else(|| Failure::new(format!("no component {name:?}; there are {}", names())))
    }

    /// Waits until something is ready. Fails if a component ends, or after a while.
    pub(super) fn wait_for(&self, what: &str, mut is_ready: impl FnMut() -> Result<bool, Failure>) -> Outcome {
        let begun = Instant::now();
        while !is_ready()? {
            if let Some((name, _)) = self.components().find(|(_, process)| !process.is_alive()) {
                return Err(Failure::new(format!("{name} ended:\n{}", server::tail(&self.log(name)))));
            }
            if begun.elapsed() > READY_LIMIT {
                return Err(Failure::new(format!("{what} was not ready within {} s", READY_LIMIT.as_secs())));
            }
            std::thread::sleep(PAUSE);
        }
        eprintln!("[{:5.1} s] {what}: ready", self.begun.elapsed().as_secs_f64());
        Ok(())
    }

    /// Creates or changes objects; the text is YAML or JSON.
    fn apply(&self, name: &str, text: &str) -> Outcome {
        let file = self.dir.join("manifests").join(format!("{name}.yaml"));
        fs::write(&file, text).attempt(|| format!("could not write {}", file.display()))?;
        command::output(self.kubectl().args(["apply", "--server-side", "--filename"]).arg(&file)).map(drop)
    }

    /// Gives each node an image archive.
    pub(super) fn import(&self, archive: &Path) -> Outcome {
        let archive = fs::canonicalize(archive).attempt(|| format!("could not find {}", archive.display()))?;
        self.record.holders.iter().try_for_each(|holder| node::import(*holder, &archive, &self.dir))
    }

    pub(super) fn kubectl(&self) -> Command {
        let mut kubectl = direct(self.dir.join("bin/kubectl"));
        kubectl.arg("--kubeconfig").arg(self.kubeconfig()).env(KUBECTL_CACHE, self.kubectl_cache());
        kubectl
    }

    pub(super) fn kubectl_cache(&self) -> PathBuf {
        self.dir.join("kubectl-cache")
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn init(&self) -> Process {
        self.record.init
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{name}.log"))
    }

    pub(super) fn components(&self) -> impl Iterator<Item = (&str, Process)> {
        self.record.components.iter().map(|(name, component)| (name.as_str(), component.process()))
    }
}

fn link(target: &Path, link: &Path) -> Outcome {
    std::os::unix::fs::symlink(target, link).attempt(|| format!("could not link {}", link.display()))
}

/// Removes what the processes of a cluster left on the host, except the logs.
fn sweep(dir: &Path) -> Outcome {
    network::remove()?;
    cgroups::remove()?;
    for made in node::MADE_DIRS {
        // Only if it is empty: then it was made for a mount.
        let _ = fs::remove_dir(made);
    }
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let path = entry.attempt(|| format!("could not list {}", dir.display()))?.path();
        match path.is_dir() && !path.is_symlink() {
            true if path.ends_with("logs") => {}
            true => remove_dir(&path)?,
            false => fs::remove_file(&path).attempt(|| format!("could not remove {}", path.display()))?,
        }
    }
    Ok(())
}

fn remove_dir(dir: &Path) -> Outcome {
    if !dir.exists() {
        return Ok(());
    }
    fs::remove_dir_all(dir).attempt(|| format!("could not remove {}", dir.display()))
}

/// What a cluster that was taken down should not have left on the host. Its processes ended with the first one.
pub(super) fn leftovers() -> Result<Vec<String>, Failure> {
    let dir = state_dir().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").attempt(|| "could not list mounts".into())?;
    let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|at| at.starts_with(&dir));
    let mut found: Vec<String> = mounts.map(|at| format!("the mount {at}")).collect();
    found.extend(network::leftovers());
    found.extend(cgroups::leftovers()?);
    Ok(found)
}
