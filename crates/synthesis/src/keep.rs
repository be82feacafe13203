//! What a backend that keeps sandboxes ready, before there are sessions for them, makes them with.

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_model::TenantId;

use crate::answer::random_hex;
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest, Sandboxes};
use crate::worker::LABEL;

/// What sandboxes that are kept ready are labelled with where a worker's id would be.
const NOBODY: &str = "(kept ready)";

/// Makes and removes sandboxes that are no worker's yet. Those that a server leaves behind are removed by the next one.
#[derive(Clone)]
pub struct Keep {
    sandboxes: Arc<dyn Sandboxes>,
    caller: Caller,
    under: SandboxRequest,
    /// Only sandboxes of this server's life carry it.
    label: String,
}

impl Keep {
    pub(crate) fn new(sandboxes: Arc<dyn Sandboxes>, under: SandboxRequest) -> Self {
        let caller = Caller { tenant: TenantId::default_tenant(), request_id: String::new(), origin: None };
        Self { sandboxes, caller, under, label: format!("agentflow.kept.{}", random_hex(8)) }
    }

    /// A label that distinguishes its sandboxes from those of earlier lives of the server.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The tenant of its sandboxes.
    pub fn tenant(&self) -> &TenantId {
        &self.caller.tenant
    }

    /// The request with what the server sets.
    pub fn whole(&self, sandbox_request: &SandboxRequest) -> SandboxRequest {
        sandbox_request.clone().over(&self.under)
    }

    /// Makes one.
    ///
    /// # Errors
    /// Why not.
    pub async fn make(&self, sandbox_request: &SandboxRequest) -> Result<SandboxHandle, String> {
        let labels = BTreeMap::from([(LABEL.to_owned(), NOBODY.to_owned()), (self.label.clone(), "true".to_owned())]);
        let name = self.sandboxes.make(&self.caller, &self.whole(sandbox_request), labels).await?;
        Ok(SandboxHandle { sandboxes: Arc::clone(&self.sandboxes), caller: self.caller.clone(), name })
    }

    pub async fn remove(&self, name: &str) {
        self.sandboxes.remove(&self.caller, name).await;
    }

    /// Whether it is still there: others may have removed it.
    pub async fn is_there(&self, name: &str) -> bool {
        self.sandboxes.is_there(&self.caller, name).await
    }
}
