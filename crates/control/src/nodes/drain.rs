//! Drains: a node that gets no new sandboxes, until an operator ends that.
//!
//! The wish is in the node's row, so it can be made while the node is down, and outlives restarts. The node follows it when it
//! reads its row: it hands back its pools and prepared slots, and deletes its sandboxes after the deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arenite_model::{DeathReason, NodeName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Node;
use crate::{Control, ControlError};

/// The longest time from a drain to its deadline.
pub const MAX_DEADLINE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// That a node gets no new sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeDrain {
    /// By the database's clock.
    pub since: Timestamp,
    /// When its sandboxes are deleted, by the database's clock; null: they stay until their own ends.
    pub deadline: Option<Timestamp>,
    /// Whether that time is over, which the database compares.
    #[serde(skip)]
    pub is_over: bool,
}

/// How this node follows its drain.
#[derive(Default)]
pub(crate) struct Draining {
    is_on: AtomicBool,
    /// Its sandboxes are being deleted.
    is_ending: AtomicBool,
}

impl Control {
    /// Whether this node gets no new sandboxes.
    pub fn is_draining(&self) -> bool {
        self.cluster.draining.is_on.load(Ordering::Acquire)
    }

    /// Drains a node of the cluster, which may be down. A later drain replaces the deadline.
    ///
    /// # Errors
    /// [`ControlError::NoNode`] without a node of this name.
    pub async fn drain_node(&self, name: &NodeName, deadline: Option<Duration>) -> Result<Node, ControlError> {
        self.set_drain(name, Some(deadline)).await
    }

    /// Ends a drain.
    ///
    /// # Errors
    /// [`ControlError::NoNode`] without a node of this name.
    pub async fn uncordon_node(&self, name: &NodeName) -> Result<Node, ControlError> {
        self.set_drain(name, None).await
    }

    async fn set_drain(&self, name: &NodeName, drain: Option<Option<Duration>>) -> Result<Node, ControlError> {
        let unknown = || ControlError::NoNode { name: name.clone() };
        let store = self.nodes_store().ok_or_else(unknown)?;
        let failed = ControlError::store("change the drain of a node");
        if !store.set_drain(name, drain).await.map_err(&failed)? {
            return Err(unknown());
        }
        let nodes = store.nodes().await.map_err(failed)?;
        let node = nodes.iter().find(|node| node.name == *name).cloned().ok_or_else(unknown)?;
        self.learn(&*store, nodes).await;
        Ok(node)
    }

    /// Follows the drain in the row of this node.
    pub(super) fn follow_drain(&self, own: &Node) {
        let is_on = own.drain.is_some();
        if self.cluster.draining.is_on.swap(is_on, Ordering::AcqRel) != is_on {
            match &own.drain {
                Some(NodeDrain { deadline: Some(deadline), .. }) => {
                    tracing::info!(%deadline, "this node drains: it gets no new sandboxes, and deletes its own at the deadline");
                }
                Some(_) => tracing::info!("this node drains: it gets no new sandboxes"),
                None => tracing::info!("this node gets new sandboxes again"),
            }
            self.engine.keep_prepared(!is_on);
            self.pool.look_again();
        }
        if own.drain.as_ref().is_some_and(|drain| drain.is_over) && self.registry().len() > 0 {
            self.end_drained();
        }
    }

    /// Deletes all sandboxes of this node, unless that is under way.
    fn end_drained(&self) {
        if self.cluster.draining.is_ending.swap(true, Ordering::AcqRel) {
            return;
        }
        let control = self.shared();
        self.tasks().spawn(async move {
            let entries: Vec<_> = control.registry().all().cloned().collect();
            tracing::warn!(sandboxes = entries.len(), "the deadline of this node's drain is over; its sandboxes are deleted");
            for (entry, destroyed) in control.destroy_each(entries, DeathReason::NodeDrained).await {
                match destroyed {
                    // It ended by itself.
                    Ok(()) | Err(ControlError::NotFound { .. }) => {}
                    Err(error) => tracing::error!(id = %entry.id, %error, "a sandbox of a drained node could not be deleted"),
                }
            }
            control.cluster.draining.is_ending.store(false, Ordering::Release);
        });
    }

    /// Refuses a create that can only be made here while this node drains.
    pub(crate) fn check_drain(&self) -> Result<(), ControlError> {
        if !self.is_draining() {
            return Ok(());
        }
        Err(ControlError::NoNodeFits { reason: "the node on which it would be created drains".to_owned() })
    }
}
