//! UDP of sandboxes: flows that a rule allows are passed on, and all others are refused.
//!
//! ```text
//!  sandbox                          this process                                   network
//!  a:40000 ─► b:123 ──nft tproxy──► Relay: is it allowed? ─ first datagram ─┐
//!                └─ later ones ───► socket b:123 ◄─► a:40000 ── Flow ── own socket ──► b:123
//! ```
//!
//! A flow has two connected sockets. One has the server's address, so that the sandbox gets answers from where it sent to, and its
//! kernel accepts no others. [`UdpSockets`] opens it, because this process may not.
//!
//! No name is seen in UDP. A rule with a name is one for the addresses that the sandbox's resolver gave for it. When their time has
//! passed, the name is resolved again for the next flow.

mod flow;
mod sockets;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket as StdUdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::flow::{Activity, Flow, IN_USE};
pub use self::sockets::{Datagram, UdpSockets, Undelivered};
use crate::accept::PAUSE;
use crate::connection::Shared;
use crate::dns::{Bound, Load, Slot};
use crate::events::{Draft, Protocol};
use crate::metered::Meter;
use crate::owner::{Owner, SocketTransport};
use crate::policy::{CompiledPolicy, Decision, Reason, Seen, Target};
use crate::sandbox::{Admission, OpenConnection, Sandbox, Spoken};

/// The largest datagram.
const LARGEST: usize = 65_535;
/// Flows, of a sandbox and of all. Further ones are refused.
const FLOWS: Bound = Bound { of_one: 256, of_all: 4_096 };
/// From this number of flows on, each further one of the sandbox ends the one that was unused for longest: programs that send one
/// query from each socket leave many behind.
const CROWDED: usize = 224;
/// Sandboxes with flows, until those without are forgotten.
const MOST_SANDBOXES: usize = 4_096;
/// Flows that are being opened, which may resolve a name. Further datagrams are lost.
const OPENING: Bound = Bound { of_one: 32, of_all: 128 };
/// Datagrams that wait until their flow is open. Further ones are lost.
const EARLY: usize = 4;
/// Names of one address that are compared with the policy, and that are resolved again.
const MAX_PINS: usize = 256;
const MAX_LOOKUPS: usize = 3;
/// Messages a second that tell a sandbox about datagrams that don't arrive.
const REPORTS: u32 = 100;
const SECOND: Duration = Duration::from_secs(1);
/// Refused destinations of a second that are remembered with their process.
const REMEMBERED: usize = 1_024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FlowKey {
    client: SocketAddrV4,
    server: SocketAddrV4,
}

/// What flows use.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    sockets: Arc<dyn UdpSockets>,
    flows: Arc<Load<Arc<str>>>,
    opening: Arc<Load<Arc<str>>>,
    /// Flows with sockets that may not be open yet.
    early: Mutex<HashMap<FlowKey, mpsc::Sender<Vec<u8>>>>,
    active: Mutex<HashMap<Arc<str>, Vec<Weak<Activity>>>>,
    second: Mutex<Window>,
}

/// What happened in this second.
#[derive(Debug)]
struct Window {
    start: Instant,
    refused: HashMap<FlowKey, Arc<Owner>>,
    reports: HashMap<Ipv4Addr, u32>,
}

impl Relay {
    pub(crate) fn new(shared: Arc<Shared>, sockets: Arc<dyn UdpSockets>) -> Arc<Self> {
        let window = Window { start: Instant::now(), refused: HashMap::new(), reports: HashMap::new() };
        Arc::new(Self {
            shared,
            sockets,
            flows: Load::new(FLOWS),
            opening: Load::new(OPENING),
            early: Mutex::default(),
            active: Mutex::default(),
            second: Mutex::new(window),
        })
    }

    /// Never ends. The flows end with it.
    pub(crate) async fn serve(self: Arc<Self>, redirected: UdpSocket) {
        let mut running = JoinSet::new();
        let mut buffer = vec![0; LARGEST];
        let Ok(socket) = std_socket(&redirected) else { return std::future::pending().await };
        loop {
            let received = tokio::select! {
                received = redirected.async_io(Interest::READABLE, || self.sockets.receive(&socket, &mut buffer)) => received,
                Some(_) = running.join_next() => continue,
            };
            match received {
                Ok(Datagram { length, from, to }) => {
                    self.handle(FlowKey { client: from, server: to }, &buffer[..length], &mut running);
                }
                Err(error) => {
                    tracing::debug!(%error, "no datagram could be received");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn handle(self: &Arc<Self>, key: FlowKey, datagram: &[u8], running: &mut JoinSet<()>) {
        let Some(sandbox) = self.shared.sandboxes.find(IpAddr::V4(*key.client.ip())) else { return };
        if let Some(queue) = self.early().get(&key) {
            // It is lost if too many wait.
            let _ = queue.try_send(datagram.to_vec());
            return;
        }
        let policy = sandbox.policy();
        let decision = decide(&sandbox, &policy, key.server);
        let is_stale = decision.1.lacks_rule() && policy.has_named_udp(key.server.port());
        let may_pass = decision.1.allowed || (is_stale && has_stale_name(&sandbox, &policy, key.server));
        if !may_pass {
            return self.refuse(&sandbox, key, &decision.1, running);
        }
        let Some(opening) = self.opening.enter(sandbox.shared_id()) else { return };
        let Some(slot) = self.flows.enter(sandbox.shared_id()) else {
            // For the next try.
            self.make_space(&sandbox);
            return self.refuse(&sandbox, key, &Decision::refused(Reason::TooMany), running);
        };
        let Some(open) = sandbox.open() else {
            return self.refuse(&sandbox, key, &Decision::refused(Reason::TooMany), running);
        };
        let (sender, early) = mpsc::channel(EARLY);
        // There is space in a new queue.
        let _ = sender.try_send(datagram.to_vec());
        self.early().insert(key, sender);
        let owner = self.ask(&sandbox, key);
        let activity = self.activity(&sandbox);
        let relay = self.clone();
        running.spawn(async move {
            let begun = Begun { relay: &relay, key, open: Arc::new(open), owner, activity, _slot: slot };
            begun.run(opening, early).await;
        });
    }

    fn make_space(&self, sandbox: &Sandbox) {
        if let Some(flows) = self.active.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&sandbox.shared_id()) {
            end_unused(flows);
        }
    }

    /// That of a new flow. Where there are many, an unused one ends.
    fn activity(&self, sandbox: &Sandbox) -> Arc<Activity> {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        if active.len() >= MOST_SANDBOXES {
            active.retain(|_, flows| flows.iter().any(|flow| flow.strong_count() > 0));
        }
        let flows = active.entry(sandbox.shared_id()).or_default();
        end_unused(flows);
        let new = Activity::new();
        flows.push(Arc::downgrade(&new));
        new
    }

    fn ask(&self, sandbox: &Arc<Sandbox>, key: FlowKey) -> Arc<Owner> {
        self.shared.owners.ask(sandbox, SocketTransport::Udp, key.client.into(), Some(key.server.into()))
    }

    /// Notes a refused datagram. The first of a second waits a moment for the name of its process, before the program knows of it.
    fn refuse(self: &Arc<Self>, sandbox: &Arc<Sandbox>, key: FlowKey, decision: &Decision, running: &mut JoinSet<()>) {
        let (owner, is_first) = {
            let mut window = self.window();
            match window.refused.get(&key) {
                Some(owner) => (owner.clone(), false),
                None => {
                    let owner = self.ask(sandbox, key);
                    if window.refused.len() < REMEMBERED {
                        window.refused.insert(key, owner.clone());
                    }
                    (owner, true)
                }
            }
        };
        self.note(sandbox, key, None, &owner, decision);
        if is_first && self.may_report(*key.client.ip()) {
            let relay = self.clone();
            running.spawn(async move {
                owner.settle().await;
                relay.sockets.report(key.client, key.server, Undelivered::Refused);
            });
        } else {
            self.report(key, Undelivered::Refused);
        }
    }

    fn note(&self, sandbox: &Sandbox, key: FlowKey, name: Option<&str>, owner: &Owner, decision: &Decision) {
        let address = Some(IpAddr::V4(*key.server.ip()));
        let draft = Draft::new(sandbox.id(), Protocol::Udp, key.server.port());
        self.shared.events.decided(&Draft { name, address, owner: Some(owner), ..draft }, decision);
    }

    fn report(&self, key: FlowKey, why: Undelivered) {
        if self.may_report(*key.client.ip()) {
            self.sockets.report(key.client, key.server, why);
        }
    }

    fn may_report(&self, client: Ipv4Addr) -> bool {
        let mut window = self.window();
        let reports = window.reports.entry(client).or_default();
        *reports += 1;
        *reports <= REPORTS
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        let mut window = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        if window.start.elapsed() >= SECOND {
            *window = Window { start: Instant::now(), refused: HashMap::new(), reports: HashMap::new() };
        }
        window
    }

    fn early(&self) -> MutexGuard<'_, HashMap<FlowKey, mpsc::Sender<Vec<u8>>>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the flow that was unused for longest, if there are many and it was for a while.
fn end_unused(flows: &mut Vec<Weak<Activity>>) {
    flows.retain(|flow| flow.strong_count() > 0);
    if flows.len() < CROWDED {
        return;
    }
    let used = flows.iter().enumerate().filter_map(|(at, flow)| Some((at, flow.upgrade()?)));
    if let Some((at, oldest)) = used.min_by_key(|(_, flow)| flow.last())
        && oldest.last().elapsed() >= IN_USE
    {
        oldest.evicted.notify_one();
        flows.remove(at);
    }
}

/// A flow from its first datagram to its end.
struct Begun<'a> {
    relay: &'a Arc<Relay>,
    key: FlowKey,
    open: Arc<OpenConnection>,
    owner: Arc<Owner>,
    activity: Arc<Activity>,
    _slot: Slot<Arc<str>>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.relay.early().remove(&self.key);
    }
}

impl Begun<'_> {
    async fn run(&self, opening: Slot<Arc<str>>, early: mpsc::Receiver<Vec<u8>>) {
        let (name, decision, flow) = tokio::select! {
            opened = self.open() => opened,
            () = self.open.closed() => return,
        };
        drop(opening);
        let sandbox = &self.open.sandbox;
        let Some(flow) = flow else {
            self.relay.note(sandbox, self.key, name.as_deref(), &self.owner, &decision);
            self.owner.settle().await;
            return self.relay.report(self.key, Undelivered::Refused);
        };
        let address = IpAddr::V4(*self.key.server.ip());
        let draft = Draft {
            connection: Some(self.open.number),
            name: name.as_deref(),
            address: Some(address),
            owner: Some(&self.owner),
            ..Draft::new(sandbox.id(), Protocol::Udp, self.key.server.port())
        };
        self.relay.shared.events.decided(&draft, &decision);
        tokio::select! {
            () = flow.run(early, || self.relay.report(self.key, Undelivered::NoListener)) => {}
            () = self.open.closed() => {}
        }
        self.relay.shared.events.ended(&draft, &decision, flow.meter.traffic());
    }

    /// The decision that counts, the name that allowed it, and the flow if it is allowed.
    async fn open(&self) -> (Option<Arc<str>>, Decision, Option<Flow>) {
        let sandbox = &self.open.sandbox;
        let (address, server) = (IpAddr::V4(*self.key.server.ip()), SocketAddr::V4(self.key.server));
        let (mut name, mut decision) = decide(sandbox, &sandbox.policy(), self.key.server);
        if decision.lacks_rule() {
            self.refresh().await;
            (name, decision) = decide(sandbox, &sandbox.policy(), self.key.server);
        }
        let refused = |decision: &Decision, reason| (name.clone(), Decision { allowed: false, reason, ..decision.clone() }, None);
        if !decision.allowed {
            return (name, decision, None);
        }
        if self.relay.shared.dialer.is_closed(address) {
            return refused(&decision, Reason::ClosedAddress);
        }
        let flow = match self.sockets(server) {
            Ok(flow) => flow,
            Err(error) => {
                tracing::debug!(%error, key = ?self.key, "a flow could not be opened");
                return refused(&decision, Reason::NotConnected);
            }
        };
        // The policy may be another one meanwhile.
        let admission = Admission { name: name.clone(), address, port: self.key.server.port(), spoken: Spoken::Udp };
        let decision = self.open.admit(admission);
        let flow = decision.allowed.then_some(flow);
        (name, decision, flow)
    }

    fn sockets(&self, server: SocketAddr) -> io::Result<Flow> {
        let own = StdUdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        own.connect(server)?;
        let client = self.relay.sockets.open(self.key.client, self.key.server)?;
        let ready = |socket: StdUdpSocket| {
            socket.set_nonblocking(true)?;
            UdpSocket::from_std(socket)
        };
        let (key, meter, activity) = (self.key, Meter::new(), self.activity.clone());
        Ok(Flow { key, client: ready(client)?, server: ready(own)?, meter, activity })
    }

    /// Resolves names again that had this address when the sandbox resolved them.
    async fn refresh(&self) {
        let sandbox = &self.open.sandbox;
        let names = stale_names(sandbox, &sandbox.policy(), self.key.server);
        for name in names.into_iter().take(MAX_LOOKUPS) {
            self.relay.shared.dialer.refresh(sandbox, &name).await;
        }
    }
}

/// What the policy says about a server: by its address, or by a name that the resolver gave the address for.
fn decide(sandbox: &Sandbox, policy: &CompiledPolicy, server: SocketAddrV4) -> (Option<Arc<str>>, Decision) {
    let (address, port) = (IpAddr::V4(*server.ip()), server.port());
    let by_address = policy.decide(Target::Address(address), port, Seen::Udp);
    if !by_address.lacks_rule() || !policy.has_named_udp(port) {
        return (None, by_address);
    }
    for name in sandbox.names_of(address).into_iter().take(MAX_PINS) {
        let admission = Admission { name: Some(name.clone()), address, port, spoken: Spoken::Udp };
        let decision = admission.decide(policy);
        if decision.allowed {
            return (Some(name), decision);
        }
    }
    (None, by_address)
}

fn has_stale_name(sandbox: &Sandbox, policy: &CompiledPolicy, server: SocketAddrV4) -> bool {
    !stale_names(sandbox, policy, server).is_empty()
}

/// Allowed names that had the address once.
fn stale_names(sandbox: &Sandbox, policy: &CompiledPolicy, server: SocketAddrV4) -> Vec<Arc<str>> {
    let names = sandbox.earlier_names_of(IpAddr::V4(*server.ip())).into_iter().take(MAX_PINS);
    names.filter(|name| policy.decide(Target::Name(name), server.port(), Seen::Udp).allowed).collect()
}

/// The same socket, for calls that tokio does not know.
fn std_socket(socket: &UdpSocket) -> io::Result<StdUdpSocket> {
    use std::os::fd::AsFd;
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}
