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

mod drain;
mod lease;
mod placement;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use arenite_model::{IdempotencyKey, NodeName, SandboxId, SandboxName, TenantId, Tier};
use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};
use utoipa::ToSchema;

use self::drain::Draining;
pub use self::drain::{MAX_DEADLINE, NodeDrain};
pub use self::lease::LeaseTimes;
use self::lease::Leave;
use self::placement::{Fill, KnownImages};
pub use self::placement::{ImageListing, PlacementWish};
use crate::gone::Removal;

use crate::store::StoreError;
use crate::{Control, ControlError, Sandbox};

/// Shortest interval between readings of the nodes besides renewals.
const READ_AGAIN: Duration = Duration::from_millis(200);
/// How long the owner of a sandbox is remembered, and of how many sandboxes.
const KNOWN: Duration = Duration::from_secs(10);
const MAX_OWNERS: usize = 20_000;
/// How long requests wait for a node that stops or does not answer: a restart takes less.
pub const RESTART: Duration = Duration::from_secs(15);

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
    /// The number of sandboxes that its own limits still admit; null: unknown.
    pub room: Option<u64>,
    /// The tiers that it has; null: unknown.
    pub tiers: Option<Vec<Tier>>,
    /// For `node_selector` of creates.
    pub labels: BTreeMap<String, String>,
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
    /// Set while it gets no new sandboxes.
    pub drain: Option<NodeDrain>,
    /// Identifies the list of its images; empty: unknown.
    #[serde(skip)]
    pub images: String,
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
    /// A tenant's sandbox of another node.
    async fn sandbox_of_other(&self, tenant: &TenantId, sandbox: SandboxKey) -> Result<Option<Sandbox>, StoreError>;
    /// Removes the row of another node's sandbox, and notes that for the node, which must not run.
    async fn remove_of_other(&self, id: &SandboxId) -> Result<Removal, StoreError>;
    /// What other nodes have removed of this one while it did not run.
    async fn removals(&self) -> Result<Vec<SandboxId>, StoreError>;
    /// Forgets removals that this node has made.
    async fn settle_removals(&self, ids: Vec<SandboxId>) -> Result<(), StoreError>;
    /// The node of a tenant's worker of AgentFlow: `node`, if it has none that runs.
    async fn place_worker(&self, tenant: &TenantId, worker: &str, node: &NodeName) -> Result<NodeName, StoreError>;
    /// Sets or ends the drain of a node, with the time until its deadline. False: there is no such node.
    async fn set_drain(&self, node: &NodeName, drain: Option<Option<Duration>>) -> Result<bool, StoreError>;
    /// Replaces the list of this node's images.
    async fn put_images(&self, images: &ImageListing) -> Result<(), StoreError>;
    /// Lists of nodes' images by their ids.
    async fn image_listings(&self, ids: Vec<String>) -> Result<Vec<ImageListing>, StoreError>;
    /// The other node that has the record of a tenant's idempotency key.
    async fn owner_of_key(&self, tenant: &TenantId, key: &IdempotencyKey) -> Result<Option<NodeName>, StoreError>;
    /// Notes that the server of this node stops.
    async fn leave(&self) -> Result<(), StoreError>;
}

/// What identifies a sandbox of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SandboxKey {
    Name(SandboxName),
    Id(SandboxId),
}

/// The nodes of tenants' workers, and since when they are known.
type Workers = HashMap<(TenantId, String), (NodeName, Instant)>;

/// The nodes of tenants' sandboxes, and since when they are known.
type Owners = HashMap<TenantId, HashMap<SandboxKey, (NodeName, Instant)>>;

/// What a node knows of the others.
#[derive(Default)]
pub(crate) struct Cluster {
    /// As the last renewal found them.
    nodes: RwLock<Arc<Vec<Node>>>,
    fill: Mutex<HashMap<NodeName, Fill>>,
    images: RwLock<Arc<KnownImages>>,
    pub(crate) draining: Draining,
    pub(crate) leave: Leave,
    owners: Mutex<Owners>,
    workers: Mutex<Workers>,
    /// When the nodes were last read between two renewals.
    read_at: tokio::sync::Mutex<Option<Instant>>,
    /// Since when nodes are known to be down.
    down: Mutex<HashMap<NodeName, Instant>>,
}

impl Cluster {
    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nodes(&self) -> Arc<Vec<Node>> {
        Arc::clone(&self.nodes.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn learn(&self, nodes: Vec<Node>) {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        down.retain(|name, _| nodes.iter().any(|node| node.name == *name && node.state == NodeState::Down));
        for node in nodes.iter().filter(|node| node.state == NodeState::Down) {
            down.entry(node.name.clone()).or_insert_with(Instant::now);
        }
        drop(down);
        let mut fill = self.fill.lock().unwrap_or_else(PoisonError::into_inner);
        fill.retain(|name, fill| fill.renew(nodes.iter().find(|node| node.name == *name).map(|node| node.facts.sandboxes)));
        drop(fill);
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(nodes);
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random number below `most`.
fn random(most: usize) -> usize {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the kernel's random source answers");
    (u64::from_ne_bytes(bytes) % most as u64) as usize
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

    /// Whether a node runs, or stopped so recently that it may only restart.
    pub fn may_answer(&self, name: &NodeName) -> bool {
        let state = self.cluster.nodes().iter().find(|node| node.name == *name).map(|node| node.state);
        match state {
            Some(NodeState::Up) => true,
            Some(NodeState::Down) => {
                let down = self.cluster.down.lock().unwrap_or_else(PoisonError::into_inner);
                down.get(name).is_some_and(|since| since.elapsed() < RESTART)
            }
            Some(NodeState::Lost) | None => false,
        }
    }

    /// Completes when a node is given up.
    pub async fn until_lost(&self, name: &NodeName) {
        let is_lost = || self.cluster.nodes().iter().any(|node| node.name == *name && node.state == NodeState::Lost);
        while !is_lost() {
            tokio::time::sleep(READ_AGAIN).await;
        }
    }

    /// The other nodes, as the last renewal found them.
    pub fn peers(&self) -> Vec<Node> {
        let Some(store) = self.nodes_store() else { return Vec::new() };
        let own = &store.claim().name;
        self.cluster.nodes().iter().filter(|node| node.name != *own).cloned().collect()
    }

    /// The name of the node with this public key, if it is not given up: one that stops still passes requests on.
    pub fn peer_with_key(&self, key: &str) -> Option<NodeName> {
        let nodes = self.cluster.nodes();
        nodes.iter().find(|node| node.key == key && node.state != NodeState::Lost).map(|node| node.name.clone())
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
            Ok(nodes) => self.learn(&*store, nodes).await,
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

    /// The other node that has a worker of AgentFlow with its sessions. None: this one, or there is no cluster.
    pub async fn node_of_worker(&self, tenant: &TenantId, worker: &str) -> Result<Option<NodeName>, ControlError> {
        let Some(store) = self.nodes_store() else { return Ok(None) };
        let own = &store.claim().name;
        let key = (tenant.clone(), worker.to_owned());
        let known = self.cluster.workers().get(&key).cloned();
        if let Some((node, _)) = known.filter(|(node, at)| at.elapsed() < KNOWN && (node == own || self.may_answer(node))) {
            return Ok((node != *own).then_some(node));
        }
        // Without a node that takes it, this one refuses.
        let placed = self.place(&PlacementWish::default(), &[]).ok().flatten().unwrap_or_else(|| own.clone());
        let placed = store.place_worker(tenant, worker, &placed).await;
        let node = placed.map_err(ControlError::store("find the node of a worker"))?;
        let mut workers = self.cluster.workers();
        if workers.len() >= MAX_OWNERS {
            workers.clear();
        }
        workers.insert(key, (node.clone(), Instant::now()));
        Ok((node != *own).then_some(node))
    }

    /// Looks the owner of a sandbox up again: it may have another one by now.
    pub fn forget_owner(&self, tenant: &TenantId, sandbox: &SandboxKey) {
        if let Some(theirs) = self.cluster.owners().get_mut(tenant) {
            theirs.remove(sandbox);
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn node(name: &str, state: NodeState, epoch: u64, renewals: u64) -> Node {
        Node {
            name: name.parse().unwrap(),
            key: String::new(),
            state,
            epoch,
            renewals,
            started_at: Timestamp::UNIX_EPOCH,
            renewed_at: Timestamp::UNIX_EPOCH,
            drain: None,
            images: String::new(),
            facts: NodeFacts::default(),
        }
    }
}
