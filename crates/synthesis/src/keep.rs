//! Creates sandboxes for backends that keep some ready before they have sessions for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_model::TenantId;

use crate::answer::random_hex;
use crate::error::SynthesisError;
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest, Sandboxes};
use crate::worker::LABEL;

/// Label of sandboxes that are kept ready, in place of a worker's id.
const NOBODY: &str = "(kept ready)";

/// Creates and removes sandboxes that belong to no worker yet. The next server removes those that a server leaves behind.
#[derive(Clone)]
pub struct Keep {
    sandboxes: Arc<dyn Sandboxes>,
    caller: Caller,
    under: SandboxRequest,
    /// Only sandboxes of this server process have it.
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

    /// The request, completed with the server's defaults.
    pub fn whole(&self, sandbox_request: &SandboxRequest) -> SandboxRequest {
        sandbox_request.clone().over(&self.under)
    }

    /// Creates a sandbox.
    ///
    /// # Errors
    /// Why it could not be created.
    pub async fn make(&self, sandbox_request: &SandboxRequest) -> Result<SandboxHandle, SynthesisError> {
        let labels = BTreeMap::from([(LABEL.to_owned(), NOBODY.to_owned()), (self.label.clone(), "true".to_owned())]);
        let name = self.sandboxes.make(&self.caller, &self.whole(sandbox_request), labels).await?;
        Ok(SandboxHandle { sandboxes: Arc::clone(&self.sandboxes), caller: self.caller.clone(), name })
    }

    pub async fn remove(&self, name: &str) {
        self.sandboxes.remove(&self.caller, name).await;
    }

    /// Whether it still exists: others may have removed it.
    pub async fn is_there(&self, name: &str) -> bool {
        self.sandboxes.is_there(&self.caller, name).await
    }
}
