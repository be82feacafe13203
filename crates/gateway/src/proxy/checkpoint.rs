//! Automatic checkpoints around steps, of sandboxes that ask for them.

use std::pin::Pin;
use std::sync::Arc;

use arenite_control::{Lease, Sandbox};
use arenite_engine::SealTime;
use arenite_trajectory::StepState;
use http::Method;

use crate::gateway::Gateway;
use crate::refusal::Refusal;
use crate::steps;

/// A step that can change the disk of a sandbox with automatic checkpoints.
pub(super) struct Checkpointed {
    gateway: Arc<Gateway>,
    sandbox: Arc<Sandbox>,
    /// The number of the checkpoint before it.
    before: u32,
}

/// The disk after a step; none if it could not be sealed.
pub(super) type AfterStep = Pin<Box<dyn Future<Output = Option<StepState>> + Send>>;

impl Checkpointed {
    /// Seals the disk before a call, if the call can change it and the sandbox has automatic checkpoints.
    ///
    /// # Errors
    /// If the disk can't be sealed: then the call is not made, because it could not be taken back.
    pub(super) async fn begin(
        gateway: &Arc<Gateway>,
        lease: &Lease,
        method: &Method,
        path: &str,
        upgrade: bool,
    ) -> Result<Option<Self>, Refusal> {
        let sandbox = &lease.sandbox;
        if !sandbox.spec.checkpoint.is_auto() || !steps::can_change_disk(method, path, upgrade) {
            return Ok(None);
        }
        let sealed = gateway.control.seal_around_step(sandbox, SealTime::BeforeStep).await?;
        Ok(Some(Self { gateway: Arc::clone(gateway), sandbox: Arc::clone(sandbox), before: sealed.state.number }))
    }

    /// Seals the disk after the call.
    pub(super) fn end(self) -> AfterStep {
        Box::pin(async move {
            match self.gateway.control.seal_around_step(&self.sandbox, SealTime::AfterStep).await {
                Ok(sealed) => Some(StepState {
                    before: self.before,
                    after: sealed.state.number,
                    hash: sealed.state.hash,
                    changed: sealed.changed,
                }),
                Err(error) => {
                    tracing::warn!(id = %self.sandbox.id, %error, "the disk could not be sealed after a step");
                    None
                }
            }
        })
    }
}
