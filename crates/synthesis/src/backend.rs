//! The interface of backends, which offer tools.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::answer::{Failure, Returned};
use crate::error::SynthesisError;
use crate::keep::Keep;
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest};
use crate::session::Session;

/// Description of a tool.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// `bash:run`.
    pub name: String,
    /// The resource that answers and lists name. For a tool of a backend, its session's type; for an API's, the key of its
    /// configuration, which may differ.
    pub resource: Option<String>,
    pub description: String,
    /// A JSON Schema of its parameters.
    pub parameters: Value,
    pub hidden: bool,
}

/// One call of a tool.
pub struct ToolCall<'a> {
    /// Its full name.
    pub tool: &'a str,
    pub params: Map<String, Value>,
    pub worker: &'a str,
    pub trace_id: &'a str,
    /// None for a tool without one: `ds_*`.
    pub session: Option<&'a Arc<Session>>,
    /// The sandbox in which it works, if it needs one.
    pub handle: Option<&'a SandboxHandle>,
    /// When its client stops waiting.
    pub deadline: Option<Instant>,
}

/// Offers tools of one resource type. Its calls may run concurrently. Dropping a future cancels its work.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The type of its sessions, and the key of its configuration.
    fn name(&self) -> &str;
    /// Its tools, in the order of lists.
    fn tools(&self) -> Vec<ToolSpec>;
    /// Whether `warmup` discovers its tools. It is then warmed up in the background when the server starts.
    fn discovers(&self) -> bool {
        false
    }
    /// Parts of it that don't work, with the reasons that `warmup` found. Lists of tools name them.
    fn problems(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    /// Defaults, which a session's own configuration overrides.
    fn default_config(&self) -> Map<String, Value> {
        Map::new()
    }
    /// The sandbox that a session with this configuration needs, if it needs one.
    fn sandbox_request(&self, _config: &Map<String, Value>) -> Option<SandboxRequest> {
        None
    }
    /// Whether calls without a session need a sandbox, such as those of `ds_*`.
    fn needs_sandbox(&self) -> bool {
        false
    }
    /// Whether `warmup` lists it: it lists backends, but not APIs.
    fn is_resource(&self) -> bool {
        true
    }
    /// Refuses a call with detectable errors before anything is created for it.
    fn check(&self, _tool: &str, _params: &Map<String, Value>, _worker: &str) -> Result<(), Failure> {
        Ok(())
    }
    /// Provides it with the means to keep sandboxes ready, once, before anything else.
    fn bind(&self, _keep: Keep) {}
    /// A sandbox that it has kept ready for such a session. From here on it belongs to the session. None: a new one is created.
    async fn spare(&self, _caller: &Caller, _config: &Map<String, Value>, _sandbox_request: &SandboxRequest) -> Option<String> {
        None
    }
    /// Prepares what its sessions share.
    async fn warmup(&self) -> Result<(), SynthesisError> {
        Ok(())
    }
    /// Prepares a session.
    async fn initialize(&self, _session: &Arc<Session>, _handle: Option<&SandboxHandle>) -> Result<(), SynthesisError> {
        Ok(())
    }
    async fn call(&self, call: ToolCall<'_>) -> Result<Returned, Failure>;
    async fn cleanup(&self, _session: &Arc<Session>, _handle: Option<&SandboxHandle>) {}
    async fn shutdown(&self) {}
}
