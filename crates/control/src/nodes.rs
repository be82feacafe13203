//! The nodes of a cluster: servers over one Postgres database, each of which owns its sandboxes alone.
//!
//! ```text
//!  every 2 s: renew the own lease ──► read all leases ──► one has not changed for 10 s ──► give its node up:
//!                                                                          its epoch is raised, its sandboxes are lost
//! ```
//!
//! A lease has no time: a node is given up by one that has watched its lease for 10 s, by the watching node's clock, without a
//! change, and that reached the database all the while. So clocks may differ, and a database that was away gives nobody up.
//!
//! Each write of a node is refused once its epoch is another one, by the database itself. A node that was given up ends its
//! server when it sees that. The next start of the server gets a new epoch, and takes over the sandboxes that still live:
//! nothing else could have started them, since a sandbox is on its node's disk.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use arenite_model::{NodeName, SandboxId, SandboxName, TenantId};
use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use utoipa::ToSchema;

use crate::store::StoreError;
use crate::{Control, ControlError, Sandbox};

/// Interval between renewals of a lease.
const RENEW: Duration = Duration::from_secs(2);
/// A node is given up when its lease has not changed for this time.
const LEASE: Duration = Duration::from_secs(10);
/// Shortest interval between readings of the nodes besides renewals.
const READ_AGAIN: Duration = Duration::from_millis(200);
/// How long the owner of a sandbox is remembered, and of how many sandboxes.
const KNOWN: Duration = Duration::from_secs(10);
const MAX_OWNERS: usize = 20_000;
/// After a longer pause between two readings, all leases count as new.
const GAP: Duration = Duration::from_secs(5);

/// The node that a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeClaim {
    pub name: NodeName,
    /// The public key of its connections. A later start with it is the same node.
    pub key: String,
    /// Where other nodes reach it: `HOST:PORT`.
    pub address: Option<String>,
}

impl NodeClaim {
    /// What it says of itself when it joins.
    pub(crate) fn facts(&self) -> NodeFacts {
        NodeFacts { version: env!("CARGO_PKG_VERSION").to_owned(), address: self.address.clone(), ..NodeFacts::default() }
    }
}

/// Whether a node runs sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It renews its lease.
    Up,
    /// Its server was stopped. Its sandboxes may run.
    Down,
    /// The others have given it up.
    Lost,
}

impl NodeState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Lost => "lost",
        }
    }
}

/// What a node says of itself with each renewal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeFacts {
    /// The version of its server.
    pub version: String,
    /// Where other nodes reach it: `HOST:PORT`.
    pub address: Option<String>,
    /// Its sandboxes, in any state.
    pub sandboxes: u64,
    pub memory_total_bytes: u64,
    pub memory_available_bytes: u64,
    pub disk_total_bytes: u64,
    pub disk_available_bytes: u64,
}

/// A node as the database has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Node {
    pub name: NodeName,
    /// The public key of its connections.
    #[serde(skip)]
    pub key: String,
    pub state: NodeState,
    /// Raised by each start of its server, and when the others give it up.
    pub epoch: u64,
    /// Counts the renewals of its lease.
    #[serde(skip)]
    pub renewals: u64,
    pub started_at: Timestamp,
    /// By the database's clock.
    pub renewed_at: Timestamp,
    #[serde(flatten)]
    pub facts: NodeFacts,
}

/// The database as a renewal found it.
#[derive(Debug, Clone)]
pub struct Renewed {
    pub nodes: Vec<Node>,
    /// Counts changes of tenants, keys and webhooks, which each node keeps in memory.
    pub shared: u64,
}

/// The nodes' part of a store.
#[async_trait]
pub trait NodeStore: Send + Sync + 'static {
    /// This node.
    fn claim(&self) -> &NodeClaim;
    /// Renews the lease of this node, and reads those of all.
    ///
    /// # Errors
    /// [`StoreError::GivenUp`] if the others have given it up.
    async fn renew(&self, facts: &NodeFacts) -> Result<Renewed, StoreError>;
    /// All nodes, by name.
    async fn nodes(&self) -> Result<Vec<Node>, StoreError>;
    /// Gives a node up, unless it has renewed its lease since it was read. All its sandboxes are lost. Returns their number, or
    /// none if the node is not given up.
    async fn give_up(&self, node: &Node) -> Result<Option<u64>, StoreError>;
    /// The other node that owns a tenant's sandbox, by name or by id.
    async fn owner(&self, tenant: &TenantId, sandbox: SandboxKey) -> Result<Option<NodeName>, StoreError>;
    /// A tenant's sandboxes of other nodes, the oldest first.
    async fn sandboxes_of_others(&self, tenant: &TenantId) -> Result<Vec<Sandbox>, StoreError>;
    /// Notes that the server of this node stops.
    async fn leave(&self) -> Result<(), StoreError>;
}

/// What identifies a sandbox of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SandboxKey {
    Name(SandboxName),
    Id(SandboxId),
}

/// The nodes of tenants' sandboxes, and since when they are known.
type Owners = HashMap<TenantId, HashMap<SandboxKey, (NodeName, Instant)>>;

/// What a node knows of the others.
#[derive(Default)]
pub(crate) struct Cluster {
    /// As the last renewal found them.
    nodes: RwLock<Arc<Vec<Node>>>,
    /// Creates that were placed since then.
    placed: Mutex<HashMap<NodeName, u64>>,
    owners: Mutex<Owners>,
    /// When the nodes were last read between two renewals.
    read_at: tokio::sync::Mutex<Option<Instant>>,
}

impl Cluster {
    fn nodes(&self) -> Arc<Vec<Node>> {
        Arc::clone(&self.nodes.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn learn(&self, nodes: Vec<Node>) {
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(nodes);
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node of two random ones that has fewer sandboxes, or the node of a key: the same one each time, while the same nodes
    /// are up. `own` sandboxes are on this node.
    fn place(&self, name: &NodeName, own: u64, key: Option<&str>) -> Option<NodeName> {
        let nodes = self.nodes();
        let up: Vec<&Node> = nodes.iter().filter(|node| node.state == NodeState::Up).collect();
        if up.len() < 2 {
            return None;
        }
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |node: &Node, placed: &HashMap<NodeName, u64>| match node.name == *name {
            true => own,
            false => node.facts.sandboxes + placed.get(&node.name).copied().unwrap_or(0),
        };
        let chosen = match key {
            Some(key) => {
                let mut hasher = DefaultHasher::new();
                key.hash(&mut hasher);
                up[(hasher.finish() % up.len() as u64) as usize]
            }
            None => {
                let (first, step) = (random(up.len()), 1 + random(up.len() - 1));
                let (a, b) = (up[first], up[(first + step) % up.len()]);
                if count(a, &placed) <= count(b, &placed) { a } else { b }
            }
        };
        *placed.entry(chosen.name.clone()).or_default() += 1;
        (chosen.name != *name).then(|| chosen.name.clone())
    }
}

/// A random number below `most`.
fn random(most: usize) -> usize {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the kernel's random source answers");
    (u64::from_ne_bytes(bytes) % most as u64) as usize
}

/// Leases of other nodes, as this node has watched them.
#[derive(Debug, Default)]
struct Watched {
    leases: HashMap<NodeName, (u64, u64, Instant)>,
    read_at: Option<Instant>,
}

impl Watched {
    /// The nodes that have not renewed their leases for too long.
    fn overdue(&mut self, nodes: &[Node], own: &NodeName, now: Instant) -> Vec<Node> {
        let is_continuous = self.read_at.is_some_and(|at| now.duration_since(at) <= GAP);
        self.read_at = Some(now);
        if !is_continuous {
            self.leases.clear();
        }
        let running = nodes.iter().filter(|node| node.state == NodeState::Up && node.name != *own);
        let mut overdue = Vec::new();
        for node in running {
            let (epoch, renewals, since) = *self.leases.entry(node.name.clone()).or_insert((node.epoch, node.renewals, now));
            if (epoch, renewals) != (node.epoch, node.renewals) {
                self.leases.insert(node.name.clone(), (node.epoch, node.renewals, now));
            } else if now.duration_since(since) >= LEASE {
                overdue.push(node.clone());
            }
        }
        overdue
    }
}

impl Control {
    /// All nodes of the cluster by name. Empty for a server without a cluster.
    pub async fn nodes(&self) -> Result<Vec<Node>, ControlError> {
        let Some(store) = self.nodes_store() else { return Ok(Vec::new()) };
        store.nodes().await.map_err(ControlError::store("read the nodes"))
    }

    /// Another node that is up.
    pub fn peer(&self, name: &NodeName) -> Option<Node> {
        self.cluster.nodes().iter().find(|node| node.name == *name && node.state == NodeState::Up).cloned()
    }

    /// The other nodes, as the last renewal found them.
    pub fn peers(&self) -> Vec<Node> {
        let Some(store) = self.nodes_store() else { return Vec::new() };
        let own = &store.claim().name;
        self.cluster.nodes().iter().filter(|node| node.name != *own).cloned().collect()
    }

    /// The name of the node with this public key, if it is up.
    pub fn peer_with_key(&self, key: &str) -> Option<NodeName> {
        let nodes = self.cluster.nodes();
        nodes.iter().find(|node| node.key == key && node.state == NodeState::Up).map(|node| node.name.clone())
    }

    /// Reads the nodes before the next renewal, since one of them seems to have changed.
    pub async fn read_peers(&self) {
        let Some(store) = self.nodes_store() else { return };
        let asked_at = Instant::now();
        let mut read_at = self.cluster.read_at.lock().await;
        if let Some(at) = *read_at {
            if at > asked_at {
                return;
            }
            // Strangers can cause it.
            sleep_until(at + READ_AGAIN).await;
        }
        *read_at = Some(Instant::now());
        match store.nodes().await {
            Ok(nodes) => self.cluster.learn(nodes),
            Err(error) => tracing::debug!(%error, "the nodes could not be read"),
        }
    }

    /// The other node that owns a sandbox. None: it is here, nowhere, or there is no cluster.
    pub async fn owner(&self, tenant: &TenantId, sandbox: SandboxKey) -> Result<Option<NodeName>, ControlError> {
        let Some(store) = self.nodes_store() else { return Ok(None) };
        let is_here = match &sandbox {
            SandboxKey::Name(name) => {
                let registry = self.registry();
                registry.by_name(tenant, name).is_some() || registry.claim(tenant, name).is_some()
            }
            SandboxKey::Id(id) => self.registry().owned(tenant, id).is_some(),
        };
        if is_here {
            return Ok(None);
        }
        let known = self.cluster.owners().get(tenant).and_then(|theirs| theirs.get(&sandbox)).cloned();
        if let Some((owner, _)) = known.filter(|(_, at)| at.elapsed() < KNOWN) {
            return Ok(Some(owner));
        }
        let owner = store.owner(tenant, sandbox.clone()).await.map_err(ControlError::store("find the node of a sandbox"))?;
        if let Some(owner) = &owner {
            let mut owners = self.cluster.owners();
            if owners.values().map(HashMap::len).sum::<usize>() >= MAX_OWNERS {
                owners.clear();
            }
            owners.entry(tenant.clone()).or_default().insert(sandbox, (owner.clone(), Instant::now()));
        }
        Ok(owner)
    }

    /// Looks the owner of a sandbox up again: it may have another one by now.
    pub fn forget_owner(&self, tenant: &TenantId, sandbox: &SandboxKey) {
        if let Some(theirs) = self.cluster.owners().get_mut(tenant) {
            theirs.remove(sandbox);
        }
    }

    /// The other node that shall create a sandbox. None: this one. Creates with the same `key` go to the same node.
    pub fn place(&self, key: Option<&str>) -> Option<NodeName> {
        let store = self.nodes_store()?;
        let own = self.registry().len() as u64;
        self.cluster.place(&store.claim().name, own, key)
    }

    /// A tenant's sandboxes of other nodes, the oldest first.
    pub async fn sandboxes_of_others(&self, tenant: &TenantId) -> Result<Vec<Sandbox>, ControlError> {
        let Some(store) = self.nodes_store() else { return Ok(Vec::new()) };
        store.sandboxes_of_others(tenant).await.map_err(ControlError::store("read the sandboxes of other nodes"))
    }

    /// Completes when the cluster has given this node up: the server must end.
    pub async fn given_up(&self) {
        let mut given_up = self.given_up.subscribe();
        // The sender is `self`.
        let _ = given_up.wait_for(|given_up| *given_up).await;
    }

    /// Reads what other nodes may have changed.
    async fn read_shared(&self) -> Result<(), ControlError> {
        if let Some(tenants) = self.tenants() {
            tenants.read_again().await?;
        }
        if let Some(webhooks) = self.webhooks() {
            webhooks.read_again().await?;
        }
        Ok(())
    }

    async fn node_facts(&self, claim: &NodeClaim) -> NodeFacts {
        let capacity = self.engine.capacity().await.unwrap_or_default();
        NodeFacts {
            sandboxes: self.registry().len() as u64,
            memory_total_bytes: capacity.memory_total_bytes,
            memory_available_bytes: capacity.memory_available_bytes,
            disk_total_bytes: capacity.disk_total_bytes,
            disk_available_bytes: capacity.disk_available_bytes,
            ..claim.facts()
        }
    }

    /// Renews this node's lease, and gives up nodes that don't renew theirs.
    pub(crate) async fn keep_lease(self: Arc<Self>, store: Arc<dyn NodeStore>) {
        let mut watched = Watched::default();
        let mut shared = None;
        let mut ticks = interval(RENEW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let renewed = match store.renew(&self.node_facts(store.claim()).await).await {
                Ok(renewed) => renewed,
                Err(StoreError::GivenUp) => {
                    tracing::error!(node = %store.claim().name, "the cluster has given this node up; the server ends, and its next start joins again");
                    self.given_up.send_replace(true);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "the lease of this node could not be renewed");
                    continue;
                }
            };
            if shared.is_some_and(|shared| shared != renewed.shared)
                && let Err(error) = self.read_shared().await
            {
                tracing::warn!(%error, "tenants, keys and webhooks could not be read; the next renewal tries again");
            } else {
                shared = Some(renewed.shared);
            }
            self.cluster.learn(renewed.nodes.clone());
            for node in watched.overdue(&renewed.nodes, &store.claim().name, Instant::now()) {
                match store.give_up(&node).await {
                    Ok(Some(sandboxes)) => {
                        tracing::warn!(node = %node.name, sandboxes, "gave up a node that does not renew its lease; its sandboxes are lost")
                    }
                    // It has renewed it, or another node was faster.
                    Ok(None) => {}
                    Err(error) => tracing::warn!(node = %node.name, %error, "a node could not be given up"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: NodeState, epoch: u64, renewals: u64) -> Node {
        Node {
            name: name.parse().unwrap(),
            key: String::new(),
            state,
            epoch,
            renewals,
            started_at: Timestamp::UNIX_EPOCH,
            renewed_at: Timestamp::UNIX_EPOCH,
            facts: NodeFacts::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_overdue_when_its_lease_was_watched_without_a_change() {
        let own: NodeName = "a".parse().unwrap();
        let mut watched = Watched::default();
        let mut renewals = 0;
        for second in (0..60).step_by(2) {
            renewals += 1;
            let nodes = [
                node("a", NodeState::Up, 1, 0),
                node("alive", NodeState::Up, 1, renewals),
                node("silent", NodeState::Up, 1, 7),
                node("stopped", NodeState::Down, 1, 7),
            ];
            let overdue = watched.overdue(&nodes, &own, Instant::now());
            let names: Vec<&str> = overdue.iter().map(|node| node.name.as_str()).collect();
            // After the seventh second, nobody could read or renew for a while.
            let wanted: &[&str] = if second >= 18 { &["silent"] } else { &[] };
            assert_eq!(names, wanted, "{second}");
            tokio::time::advance(RENEW).await;
            if second == 6 {
                tokio::time::advance(GAP + RENEW).await;
            }
        }
    }

    #[test]
    fn creates_are_spread_evenly_and_those_with_a_key_go_to_one_node() {
        let cluster = Cluster::default();
        let own: NodeName = "a".parse().unwrap();
        assert_eq!(cluster.place(&own, 0, None), None, "it is alone");
        cluster.learn(["a", "b", "c"].map(|name| node(name, NodeState::Up, 1, 0)).into());
        let mut counts: HashMap<Option<NodeName>, u64> = HashMap::new();
        for _ in 0..600 {
            let here = counts.get(&None).copied().unwrap_or(0);
            *counts.entry(cluster.place(&own, here, None)).or_default() += 1;
        }
        assert!(counts.len() == 3 && counts.values().all(|count| (180..=220).contains(count)), "{counts:?}");
        let places: Vec<_> = (0..20).map(|_| cluster.place(&own, 0, Some("key"))).collect();
        assert!(places.windows(2).all(|two| two[0] == two[1]));
        cluster.learn(vec![node("a", NodeState::Up, 1, 0), node("b", NodeState::Lost, 1, 0)]);
        assert_eq!(cluster.place(&own, 0, None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_epoch_is_a_new_lease() {
        let own: NodeName = "a".parse().unwrap();
        let mut watched = Watched::default();
        for (epoch, wanted) in [(1, 0), (1, 0), (1, 0), (2, 0), (2, 0), (2, 0), (2, 1)] {
            let overdue = watched.overdue(&[node("b", NodeState::Up, epoch, 3)], &own, Instant::now());
            assert_eq!(overdue.len(), wanted, "{epoch}");
            tokio::time::advance(Duration::from_secs(4)).await;
        }
    }
}
