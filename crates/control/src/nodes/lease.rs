//! Leases: a node renews its own, and gives up nodes that don't renew theirs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arenite_model::NodeName;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{ImageListing, Node, NodeClaim, NodeFacts, NodeState, NodeStore, READ_AGAIN};
use crate::store::StoreError;
use crate::{Control, ControlError};

/// The times of leases. All nodes must have the same.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTimes {
    /// Interval between renewals.
    pub renew: Duration,
    /// A node is given up when its lease has not changed for this time.
    pub give_up: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { renew: Duration::from_secs(2), give_up: Duration::from_secs(10) }
    }
}

/// That this node leaves the cluster, since its server stops.
#[derive(Default)]
pub(crate) struct Leave {
    has_begun: AtomicBool,
    /// Whether its row says so. Held during a renewal.
    is_noted: tokio::sync::Mutex<bool>,
}

impl Leave {
    pub(super) fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }
}

/// Leases of other nodes, as this node has watched them.
#[derive(Debug, Default)]
struct Watched {
    times: LeaseTimes,
    leases: HashMap<NodeName, (u64, u64, Instant)>,
    read_at: Option<Instant>,
}

impl Watched {
    /// The nodes that have not renewed their leases for too long.
    fn overdue(&mut self, nodes: &[Node], own: &NodeName, now: Instant) -> Vec<Node> {
        // After a longer pause between two readings, all leases count as new.
        let is_continuous = self.read_at.is_some_and(|at| now.duration_since(at) <= self.times.give_up / 2);
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
            } else if now.duration_since(since) >= self.times.give_up {
                overdue.push(node.clone());
            }
        }
        overdue
    }
}

impl Control {
    /// Notes in the cluster that this server stops: it gets no more sandboxes, and is not given up. Its lease is not renewed any
    /// more. Does nothing without a cluster, and when it is noted.
    pub async fn leave_cluster(&self) {
        let Some(store) = self.nodes_store() else { return };
        self.cluster.leave.begin();
        let mut is_noted = self.cluster.leave.is_noted.lock().await;
        if *is_noted {
            return;
        }
        match store.leave().await {
            Ok(()) => *is_noted = true,
            Err(error) => tracing::warn!(%error, "the stop could not be noted in the cluster"),
        }
    }

    /// The same, and waits until the other nodes know: they send nothing more. This node still answers.
    pub async fn announce_stop(&self) {
        self.leave_cluster().await;
        let Some(store) = self.nodes_store() else { return };
        let runs = |node: &Node| node.state == NodeState::Up && node.name != store.claim().name;
        if self.cluster.nodes().iter().any(runs) {
            tokio::time::sleep(self.config.lease.renew + READ_AGAIN).await;
        }
    }

    /// Reads what other nodes may have changed.
    async fn read_shared(&self) -> Result<(), ControlError> {
        if let Some(tenants) = self.tenants() {
            tenants.read_again().await?;
        }
        if let Some(webhooks) = self.webhooks() {
            webhooks.read_again().await?;
        }
        self.pass_all_secrets().await
    }

    async fn node_facts(&self, claim: &NodeClaim) -> NodeFacts {
        let capacity = self.engine.capacity().await.unwrap_or_default();
        let sandboxes = self.own_sandboxes();
        NodeFacts {
            sandboxes,
            memory_total_bytes: capacity.memory_total_bytes,
            memory_available_bytes: capacity.memory_available_bytes,
            disk_total_bytes: capacity.disk_total_bytes,
            disk_available_bytes: capacity.disk_available_bytes,
            room: Some(self.config.limits.remaining_sandboxes(&capacity, sandboxes)),
            tiers: Some(self.tiers().await),
            labels: self.config.node_labels.clone(),
            ..claim.facts()
        }
    }

    /// Renews this node's lease, and gives up nodes that don't renew theirs.
    pub(crate) async fn keep_lease(self: Arc<Self>, store: Arc<dyn NodeStore>) {
        let mut watched = Watched { times: self.config.lease, ..Watched::default() };
        let mut shared = None;
        let mut told = ImageListing::default();
        let mut ticks = interval(self.config.lease.renew);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let facts = self.node_facts(store.claim()).await;
            let images = self.image_listing().await;
            let is_left = self.cluster.leave.is_noted.lock().await;
            if *is_left {
                return;
            }
            if told != images {
                match store.put_images(&images).await {
                    Ok(()) => told = images,
                    Err(error) => tracing::debug!(%error, "the list of images could not be stored"),
                }
            }
            let renewed = store.renew(&facts).await;
            drop(is_left);
            let renewed = match renewed {
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
                tracing::warn!(%error, "what other nodes have changed could not be read; the next renewal tries again");
            } else {
                shared = Some(renewed.shared);
            }
            self.learn(&*store, renewed.nodes.clone()).await;
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
    use super::super::tests::node;
    use super::*;

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
            tokio::time::advance(watched.times.renew).await;
            if second == 6 {
                tokio::time::advance(Duration::from_secs(7)).await;
            }
        }
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
