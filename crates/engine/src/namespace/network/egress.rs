//! The egress proxy of an installation: a separate process, which this file starts, feeds with policies, and replaces.
//!
//! ```text
//!  policies of sandboxes ──► kept here ──stdin──► arenite egress ──stdout──► events, kept per sandbox
//!                                 └── again, to its successor, when it ended
//! ```
//!
//! It starts with the first policy. It runs without the host's root, since it reads what sandboxes send. While it is away, the
//! rules lead to a closed port, so its sandboxes reach nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use arenite_egress::{
    AuthorityKeys, BoundSecret, CertificateDer, ClosedRanges, CompiledPolicy, Conntrack, EgressConfig, EgressError, EgressEvent,
    EventKind, FromServer, Observed, Protocol, SetPolicy, ToServer, UdpConfig, certificates_in,
};
use arenite_isolation::no_new_privileges;
use arenite_model::{NetworkPolicy, NetworkRule, SandboxSpec};
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, broadcast};

use super::NetworkConfig;
use super::flow_sockets::{LocalSockets, RemoteSockets};
use super::owners::Owners;

/// Ports of the gateway, to which the rules redirect.
pub(super) const TCP_PORT: u16 = 15_001;
pub(super) const UDP_PORT: u16 = 15_002;
pub(super) const DNS_PORT: u16 = 15_053;
/// The user that it runs as: nobody.
const USER: u32 = 65_534;
/// Time for a policy to take effect.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// Pause before an ended process is replaced.
const PAUSE: Duration = Duration::from_millis(200);
/// Events that are kept of a sandbox, the newest.
const MAX_EVENTS: usize = 1_000;
/// Events that wait for a follower.
const MAX_WAITING: usize = 4_096;

/// The argument of the process. Networks are text, such as `10.0.0.0/8`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Arguments {
    gateway: Ipv4Addr,
    denied: Vec<String>,
    allowed: Vec<String>,
    subnet: String,
    resolvers: Option<Vec<SocketAddr>>,
    extra_ca: Option<PathBuf>,
}

impl Arguments {
    fn closed(&self) -> Result<ClosedRanges, String> {
        let parse = |text: &String| text.parse::<IpNet>().map_err(|error| format!("{text:?} is not a network: {error}"));
        Ok(ClosedRanges {
            denied: self.denied.iter().map(parse).collect::<Result<_, _>>()?,
            allowed: self.allowed.iter().map(parse).collect::<Result<_, _>>()?,
            always: vec![parse(&self.subnet)?],
            allow_own: false,
        })
    }
}

/// What the egress proxy decided for a sandbox.
#[derive(Debug, Clone, Default)]
pub struct NetworkLog {
    /// The newest last.
    pub events: Vec<EgressEvent>,
    pub allowed: u64,
    pub refused: u64,
}

/// A policy, and the floor under it. Without a policy, the floor is one.
#[derive(Debug, Clone, Copy)]
pub struct EffectivePolicy<'a> {
    policy: &'a NetworkPolicy,
    floor: Option<&'a NetworkPolicy>,
}

impl<'a> EffectivePolicy<'a> {
    pub fn new(policy: Option<&'a NetworkPolicy>, floor: Option<&'a NetworkPolicy>) -> Option<Self> {
        policy.or(floor).map(|policy| Self { policy, floor })
    }

    pub fn of_spec(spec: &'a SandboxSpec) -> Option<Self> {
        Self::new(spec.network_policy.as_ref(), spec.network_floor.as_ref())
    }

    /// Whether queries to other resolvers than the sandbox's own may pass.
    pub(super) fn allows_other_dns(self) -> bool {
        CompiledPolicy::compile(self.policy).is_ok_and(|policy| policy.allows_other_dns())
    }

    pub(super) fn set(self, address: Ipv4Addr, sandbox: &str, close_open: bool) -> SetPolicy {
        let (policy, floor) = (self.policy.clone(), self.floor.cloned());
        let (secrets, authority) = (Vec::new(), None);
        SetPolicy { address: address.into(), sandbox: sandbox.to_owned(), policy, floor, close_open, secrets, authority }
    }
}

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<EgressEvent>,
    allowed: u64,
    refused: u64,
}

/// The proxy of a network.
#[derive(Debug)]
pub(super) struct Egress {
    arguments: Arguments,
    redirects_udp: bool,
    state: Mutex<State>,
    /// Notified when the first policy is there.
    wanted: Notify,
    number: AtomicU64,
    /// To those that follow all decisions.
    events: broadcast::Sender<EgressEvent>,
    pub(super) owners: Owners,
}

#[derive(Debug, Default)]
struct State {
    policies: HashMap<Ipv4Addr, SetPolicy>,
    /// Addresses with a policy that is unknown. They are closed.
    held: HashSet<Ipv4Addr>,
    /// To the process; none: it is not there.
    process: Option<UnboundedSender<FromServer>>,
    waiting: HashMap<u64, mpsc::Sender<()>>,
    logs: HashMap<String, Log>,
    /// Of all sandboxes with secrets, also those without processes.
    secrets: HashMap<String, Secrets>,
}

#[derive(Debug, Clone, Default)]
struct Secrets {
    bound: Vec<BoundSecret>,
    authority: Option<AuthorityKeys>,
}

/// A policy that was set.
#[must_use = "without it, nobody knows when the policy is in effect"]
pub(super) struct InEffect<'a> {
    egress: &'a Egress,
    number: u64,
    ready: mpsc::Receiver<()>,
}

impl InEffect<'_> {
    /// Waits until each new decision is by the policy. Blocks. If the process does not answer, it is replaced, and until then the
    /// sandbox reaches nothing.
    pub(super) fn wait(self) {
        if self.ready.recv_timeout(READY_LIMIT).is_err() {
            tracing::warn!("the egress proxy does not answer; it is replaced");
            let mut state = self.egress.state();
            state.waiting.remove(&self.number);
            state.process = None;
        }
    }
}

impl Egress {
    /// Must be called in a runtime, in which the process is watched until the proxy is dropped.
    pub(super) fn start(gateway: Ipv4Addr, subnet: Ipv4Net, config: &NetworkConfig, redirects_udp: bool) -> Arc<Self> {
        let texts = |nets: &[IpNet]| nets.iter().map(IpNet::to_string).collect();
        let arguments = Arguments {
            gateway,
            denied: texts(&config.denied),
            allowed: texts(&config.allowed),
            subnet: subnet.to_string(),
            resolvers: config.resolvers.clone(),
            extra_ca: config.extra_ca.clone(),
        };
        let egress = Arc::new(Self {
            arguments,
            redirects_udp,
            state: Mutex::default(),
            wanted: Notify::new(),
            number: AtomicU64::new(0),
            events: broadcast::Sender::new(MAX_WAITING),
            owners: Owners::new(gateway),
        });
        tokio::spawn(watch(Arc::downgrade(&egress)));
        egress
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the policy of the sandbox at an address. Until it is in effect, the sandbox reaches nothing, or what its policy of
    /// before allowed. With the answer, one waits for that.
    pub(super) fn set(&self, policy: SetPolicy, address: Ipv4Addr) -> InEffect<'_> {
        let mut state = self.state();
        state.logs.entry(policy.sandbox.clone()).or_default();
        let Secrets { bound: secrets, authority } = state.secrets.get(&policy.sandbox).cloned().unwrap_or_default();
        self.send(state, address, SetPolicy { secrets, authority, ..policy })
    }

    /// Keeps the secrets of a sandbox for its next policy, and sends them if it has one.
    pub(super) fn set_secrets(&self, sandbox: &str, secrets: Vec<BoundSecret>) -> Option<InEffect<'_>> {
        let mut state = self.state();
        state.secrets.entry(sandbox.to_owned()).or_default().bound.clone_from(&secrets);
        let (address, known) = state.policies.iter().find(|(_, policy)| policy.sandbox == sandbox)?;
        let (address, policy) = (*address, SetPolicy { secrets, close_open: false, ..known.clone() });
        Some(self.send(state, address, policy))
    }

    /// The certificate authority of a sandbox with secrets: the one that it had, or a new one. It is for its next policy.
    pub(super) fn authority(&self, sandbox: &str, known: Option<&AuthorityKeys>) -> Result<AuthorityKeys, EgressError> {
        let kept = self.state().secrets.get(sandbox).and_then(|secrets| secrets.authority.clone());
        let authority = match kept.or_else(|| known.cloned()) {
            Some(authority) => authority,
            None => AuthorityKeys::generate(sandbox)?,
        };
        self.state().secrets.entry(sandbox.to_owned()).or_default().authority = Some(authority.clone());
        Ok(authority)
    }

    pub(super) fn forget_secrets(&self, sandbox: &str) {
        self.state().secrets.remove(sandbox);
    }

    fn send<'a>(&'a self, mut state: MutexGuard<'a, State>, address: Ipv4Addr, policy: SetPolicy) -> InEffect<'a> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (told, ready) = mpsc::channel();
        state.held.remove(&address);
        state.policies.insert(address, policy.clone());
        state.waiting.insert(number, told);
        if let Some(process) = &state.process {
            // If it ended, its successor gets all policies, and is asked the same.
            let _ = process.send(FromServer::Set(Box::new(policy)));
            let _ = process.send(FromServer::Ready(number));
        }
        drop(state);
        self.wanted.notify_one();
        InEffect { egress: self, number, ready }
    }

    pub(super) fn remove(&self, address: Ipv4Addr, ended: bool) {
        let mut state = self.state();
        state.held.remove(&address);
        let Some(policy) = state.policies.remove(&address) else { return };
        if ended && !state.policies.values().any(|other| other.sandbox == policy.sandbox) {
            state.logs.remove(&policy.sandbox);
            self.owners.forget(&policy.sandbox);
        }
        if let Some(process) = &state.process {
            // Otherwise it is gone, with all that it knew.
            let _ = process.send(FromServer::Remove { address: IpAddr::V4(address) });
        }
    }

    /// Remembers that these addresses are closed.
    pub(super) fn hold(&self, addresses: &[Ipv4Addr]) {
        self.state().held.extend(addresses);
    }

    /// Whether the address is closed but for a policy.
    pub(super) fn has(&self, address: Ipv4Addr) -> bool {
        let state = self.state();
        state.policies.contains_key(&address) || state.held.contains(&address)
    }

    pub(super) fn log(&self, sandbox: &str) -> NetworkLog {
        let state = self.state();
        state.logs.get(sandbox).map_or_else(NetworkLog::default, |log| NetworkLog {
            events: log.events.iter().cloned().collect(),
            allowed: log.allowed,
            refused: log.refused,
        })
    }

    pub(super) fn events(&self) -> broadcast::Receiver<EgressEvent> {
        self.events.subscribe()
    }

    /// Adds an event to the log of its sandbox.
    pub(super) fn note_event(&self, event: EgressEvent) {
        let mut state = self.state();
        let Some(log) = state.logs.get_mut(&event.sandbox) else { return };
        if event.kind == EventKind::Decision {
            let count = if event.allowed { &mut log.allowed } else { &mut log.refused };
            *count += event.count;
        }
        if log.events.len() >= MAX_EVENTS {
            log.events.pop_front();
        }
        log.events.push_back(event.clone());
        // Perhaps nobody follows.
        let _ = self.events.send(event);
    }

    fn note(self: &Arc<Self>, message: ToServer) {
        let mut state = self.state();
        match message {
            ToServer::Ready(number) => {
                if let Some(told) = state.waiting.remove(&number) {
                    // Nobody waits any more.
                    let _ = told.send(());
                }
            }
            ToServer::Event(event) => {
                drop(state);
                self.note_event(event);
            }
            ToServer::Owner(question) => {
                let Some(process) = state.process.clone() else { return };
                let egress = Arc::clone(self);
                tokio::spawn(async move {
                    let number = question.number;
                    let owner = egress.owners.find(question).await;
                    // If it ended, nothing waits for the answer.
                    let _ = process.send(FromServer::Owned { number, process: owner });
                });
            }
            ToServer::Lost(events) => tracing::warn!(events, "the egress proxy had more events than were read"),
            ToServer::Refused { address, message, .. } => {
                tracing::error!(%address, message, "the egress proxy can't use a policy; the sandbox reaches nothing");
            }
        }
    }

    /// The messages for a new process: all policies, and the questions that its predecessor did not answer.
    fn connect(&self) -> UnboundedReceiver<FromServer> {
        let (sender, receiver) = unbounded_channel();
        let mut state = self.state();
        for policy in state.policies.values() {
            // The receiver is there.
            let _ = sender.send(FromServer::Set(Box::new(policy.clone())));
        }
        for number in state.waiting.keys() {
            let _ = sender.send(FromServer::Ready(*number));
        }
        state.process = Some(sender);
        receiver
    }

    /// The sockets for UDP of the process that a command will start. Without them, it passes no UDP.
    fn flow_sockets(&self, command: &mut std::process::Command) -> Option<OwnedFd> {
        let address = SocketAddrV4::new(self.arguments.gateway, UDP_PORT);
        let mut start = || {
            let closed = self.arguments.closed().map_err(std::io::Error::other)?;
            let subnet = self.arguments.subnet.parse().map_err(std::io::Error::other)?;
            LocalSockets::start(command, address, subnet, closed)
        };
        start().inspect_err(|error| tracing::error!(%error, "the egress proxy passes no UDP")).ok()
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let arguments = serde_json::to_string(&self.arguments)?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["egress", &arguments]).env_clear();
        // Where the host's certificates are, if it says so.
        command.envs(std::env::var_os("SSL_CERT_FILE").map(|file| ("SSL_CERT_FILE", file)));
        command.uid(USER).gid(USER).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        no_new_privileges::restrict(command.as_std_mut());
        let sockets = if self.redirects_udp { self.flow_sockets(command.as_std_mut()) } else { None };
        let child = command.spawn();
        drop(sockets);
        child
    }
}

async fn watch(egress: std::sync::Weak<Egress>) {
    loop {
        let Some(proxy) = egress.upgrade() else { return };
        if proxy.state().policies.is_empty() {
            let wanted = proxy.wanted.notified();
            tokio::select! {
                () = wanted => {}
                // Checks whether the proxy is still there.
                () = tokio::time::sleep(Duration::from_secs(5)) => continue,
            }
        }
        match proxy.spawn() {
            Ok(child) => {
                let id = child.id();
                if let Err(error) = converse(&proxy, child).await {
                    tracing::warn!(?id, %error, "the egress proxy ended; another one takes its place");
                }
            }
            Err(error) => tracing::error!(%error, "the egress proxy could not be started; sandboxes with a policy reach nothing"),
        }
        proxy.state().process = None;
        drop(proxy);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn converse(egress: &Arc<Egress>, mut child: Child) -> std::io::Result<()> {
    let missing = || std::io::Error::other("it has no pipes");
    let (mut input, output) = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
    let mut output = BufReader::new(output).lines();
    let mut messages = egress.connect();
    let write = async {
        while let Some(message) = messages.recv().await {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            input.write_all(&line).await?;
        }
        // The server gave it up.
        Ok(())
    };
    let read = async {
        while let Some(line) = output.next_line().await? {
            match serde_json::from_str(&line) {
                Ok(message) => egress.note(message),
                Err(error) => tracing::warn!(%error, "a message of the egress proxy can't be read"),
            }
        }
        Err(std::io::ErrorKind::UnexpectedEof.into())
    };
    tokio::select! {
        done = write => done,
        done = read => done,
    }
}

/// Refuses a policy that the proxy could not use.
pub fn check_policy(policy: &NetworkPolicy) -> Result<(), EgressError> {
    let most = NetworkPolicy::MAX_RULES;
    if policy.rule_count() > most {
        return Err(EgressError::TooManyRules { count: policy.rule_count(), most });
    }
    CompiledPolicy::compile(policy)?.check()
}

/// The smallest allowlist of what was observed.
pub fn suggest_rules(events: &[EgressEvent]) -> Vec<NetworkRule> {
    // A question for a name alone reaches nothing.
    let is_reached = |event: &&EgressEvent| event.kind == EventKind::Decision && event.allowed && event.protocol != Protocol::Dns;
    let observed = |event: &EgressEvent| Observed {
        name: event.name.clone(),
        address: event.address,
        port: event.port,
        protocol: event.protocol,
    };
    arenite_egress::suggest(&events.iter().filter(is_reached).map(observed).collect::<Vec<_>>())
}

/// The certificates of a file, or none if this process can't read it.
fn trusted(path: &Path) -> Vec<CertificateDer<'static>> {
    certificates_in(path).unwrap_or_else(|error| {
        eprintln!("warning: {} could not be read; only the host's certificates are trusted: {error}", path.display());
        Vec::new()
    })
}

/// The process. Its argument and its standard input and output are those of [`Egress`].
pub fn egress_main() -> ExitCode {
    let run = || -> Result<(), String> {
        let arguments = std::env::args().nth(2).ok_or("it is started by the server")?;
        let arguments: Arguments = serde_json::from_str(&arguments).map_err(|error| error.to_string())?;
        let failed = |error: std::io::Error| error.to_string();
        let closed = arguments.closed()?;
        let Arguments { gateway, resolvers, extra_ca, .. } = arguments;
        let udp = RemoteSockets::inherited().map_err(failed)?;
        let udp = udp.map(|(sockets, redirected)| UdpConfig { redirected, sockets: Arc::new(sockets) });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed)?;
        let dns = SocketAddr::from((gateway, DNS_PORT));
        let config = EgressConfig {
            tcp: TcpListener::bind((gateway, TCP_PORT)).map_err(failed)?,
            dns_udp: UdpSocket::bind(dns).map_err(failed)?,
            dns_tcp: TcpListener::bind(dns).map_err(failed)?,
            udp,
            closed,
            resolvers,
            destinations: Arc::new(Conntrack),
            roots: extra_ca.map_or_else(Vec::new, |path| trusted(&path)),
        };
        let served = runtime.block_on(arenite_egress::serve(config, tokio::io::stdin(), tokio::io::stdout()));
        runtime.shutdown_background();
        served.map_err(|error| error.to_string())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: the egress proxy could not run: {error}");
            ExitCode::FAILURE
        }
    }
}
