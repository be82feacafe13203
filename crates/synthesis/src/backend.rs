//! What offers tools, and what it is given to work with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::answer::{Failure, Returned};
use crate::keep::Keep;
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest};
use crate::session::Session;

/// A tool as it is listed and called.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// `bash:run`.
    pub name: String,
    /// What answers and lists name as its resource. A tool of a backend: its session's type; of an API: the key of its
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
    /// Where it works, if it needs a sandbox.
    pub handle: Option<&'a SandboxHandle>,
    /// When its client stops waiting.
    pub deadline: Option<Instant>,
}

/// Offers tools of one type of resource. Its calls may run at the same time; whatever is dropped is cancelled.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The type of its sessions, and the key of its configuration.
    fn name(&self) -> &str;
    /// In the order in which they are listed.
    fn tools(&self) -> Vec<ToolSpec>;
    /// Whether `warmup` finds out what its tools are. It is then warmed up when the server starts, in the background.
    fn discovers(&self) -> bool {
        false
    }
    /// Parts of it that don't work, and why, as far as `warmup` found out. Lists of tools name them.
    fn problems(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    /// What a session's own configuration is laid over.
    fn default_config(&self) -> Map<String, Value> {
        Map::new()
    }
    /// The sandbox that a session with this configuration needs, if it needs one.
    fn sandbox_request(&self, _config: &Map<String, Value>) -> Option<SandboxRequest> {
        None
    }
    /// Whether a sandbox is needed by calls that have no session, such as those of `ds_*`.
    fn needs_sandbox(&self) -> bool {
        false
    }
    /// Whether `warmup` lists it: backends are there, APIs are not.
    fn is_resource(&self) -> bool {
        true
    }
    /// Refuses a call that can be known to be wrong before anything is made for it.
    fn check(&self, _tool: &str, _params: &Map<String, Value>, _worker: &str) -> Result<(), Failure> {
        Ok(())
    }
    /// Gives it what to keep sandboxes ready with, once, before anything else.
    fn bind(&self, _keep: Keep) {}
    /// A sandbox that it has kept ready for such a session, which is the session's from here on. None: one is made.
    async fn spare(&self, _caller: &Caller, _config: &Map<String, Value>, _sandbox_request: &SandboxRequest) -> Option<String> {
        None
    }
    /// Makes ready what its sessions share.
    async fn warmup(&self) -> Result<(), String> {
        Ok(())
    }
    /// Makes a session ready.
    async fn initialize(&self, _session: &Arc<Session>, _handle: Option<&SandboxHandle>) -> Result<(), String> {
        Ok(())
    }
    async fn call(&self, call: ToolCall<'_>) -> Result<Returned, Failure>;
    async fn cleanup(&self, _session: &Arc<Session>, _handle: Option<&SandboxHandle>) {}
    async fn shutdown(&self) {}
}
