//! `mcp:*`: tools of MCP servers with stdio transport, which run inside the worker's sandbox.
//!
//! Warm-up asks the servers for their tools, in a separate sandbox that is removed afterwards.

mod definitions;
mod workspace;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use super::{Answered, handle};
use crate::answer::{Failure, Returned, code as codes};
use crate::backend::{Backend, ToolCall, ToolSpec};
use crate::error::SynthesisError;
use crate::keep::Keep;
use crate::sandboxes::{SandboxHandle, SandboxRequest};
use crate::session::Session;

use definitions::{Definitions, Folders};
use workspace::Workspace;

const NAME: &str = "mcp";
/// The sandbox's hub reads its servers from here.
const FILE: &str = "/tmp/mcp-servers.json";
/// The worker under which servers are asked for their tools.
const DISCOVERY: &str = "discovery";

/// Servers of the Model Context Protocol.
pub struct Mcp {
    config: Map<String, Value>,
    folders: Folders,
    keep: OnceLock<Keep>,
    found: Mutex<Found>,
}

/// The tools of a server, or why it has none.
type Listed = Result<Vec<Value>, SynthesisError>;

/// Tools discovered from servers.
#[derive(Default)]
struct Found {
    servers: BTreeMap<String, Listed>,
}

impl Mcp {
    /// `config`: AgentFlow's keys, and `servers` in the format of MCP clients' `mcpServers`. `dir`: the configuration file's
    /// folder.
    pub fn new(config: Map<String, Value>, dir: PathBuf) -> Self {
        let folders = Folders::new(&config, dir);
        Self { config, folders, keep: OnceLock::new(), found: Mutex::default() }
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the hub's configuration into a sandbox, starts all servers, and returns their tools.
    async fn start(
        &self,
        config: &Map<String, Value>,
        worker: &str,
        handle: &SandboxHandle,
    ) -> Result<BTreeMap<String, Listed>, SynthesisError> {
        let workspace = Workspace::make(handle, &self.folders, config, worker).await?;
        let definitions = Definitions::from_config(config, &self.folders);
        let file = json!({ "mcpServers": definitions.entries(&workspace) }).to_string();
        handle.post("/v1/file/write", &json!({ "file": FILE, "content": file })).await?;
        let asking = definitions.names().map(|name| async move {
            let listed = handle.get(&format!("/v1/mcp/{name}/tools")).await;
            let tools = listed.map(|mut listed| match listed["tools"].take() {
                Value::Array(tools) => tools,
                _ => Vec::new(),
            });
            (name.to_owned(), tools)
        });
        let mut told: BTreeMap<_, _> = join_all(asking).await.into_iter().collect();
        told.extend(definitions.unknown().map(|(name, why)| (name.to_owned(), Err(why.clone()))));
        Ok(told)
    }

    async fn discover(&self, keep: &Keep) -> Result<BTreeMap<String, Listed>, SynthesisError> {
        let sandbox_request =
            SandboxRequest::from_config(&self.config)?.over(&self.sandbox_request(&self.config).unwrap_or_default());
        let handle = keep.make(&sandbox_request).await.map_err(|error| error.within("no sandbox could be made for it"))?;
        let told = self.start(&self.config, DISCOVERY, &handle).await;
        keep.remove(&handle.name).await;
        told
    }
}

/// The problems of servers, from the results of all.
fn problems(told: &BTreeMap<String, Listed>) -> BTreeMap<String, String> {
    told.iter().filter_map(|(name, told)| Some((name.clone(), told.as_ref().err()?.to_string()))).collect()
}

fn joined(problems: &BTreeMap<String, String>) -> String {
    problems.iter().map(|(name, why)| format!("{name}: {why}")).collect::<Vec<_>>().join("; ")
}

#[async_trait]
impl Backend for Mcp {
    fn name(&self) -> &str {
        NAME
    }

    /// The servers' tools, unless the configuration's `tools` selects some of them.
    fn tools(&self) -> Vec<ToolSpec> {
        let found = self.found();
        let mut all = Vec::new();
        for server in definitions::enabled(&self.config) {
            let said: &[Value] = found.servers.get(&server).and_then(|told| told.as_deref().ok()).unwrap_or_default();
            let declared = self.config.get("servers").and_then(|servers| servers[&server]["tools"].as_array());
            let listed: Vec<(&Value, Option<&Value>)> = match declared {
                None => said.iter().map(|tool| (tool, None)).collect(),
                Some(tools) => tools.iter().map(|tool| (tool, named(said, tool))).collect(),
            };
            for (tool, said) in listed {
                // A name alone is sufficient.
                let Some(name) = tool["name"].as_str().or_else(|| tool.as_str()) else { continue };
                let field = |field: &str| tool.get(field).or_else(|| said.and_then(|said| said.get(field)));
                let parameters = field("inputSchema").cloned();
                all.push(ToolSpec {
                    name: format!("{NAME}:{server}.{name}"),
                    resource: Some(NAME.to_owned()),
                    description: field("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
                    parameters: parameters.unwrap_or_else(|| json!({"type": "object", "additionalProperties": true})),
                    hidden: false,
                });
            }
        }
        all
    }

    fn discovers(&self) -> bool {
        true
    }

    fn problems(&self) -> BTreeMap<String, String> {
        problems(&self.found().servers)
    }

    fn default_config(&self) -> Map<String, Value> {
        self.config.clone()
    }

    fn sandbox_request(&self, _config: &Map<String, Value>) -> Option<SandboxRequest> {
        Some(SandboxRequest {
            env: BTreeMap::from([("MCP_SERVERS_FILE".to_owned(), FILE.to_owned())]),
            ..SandboxRequest::default()
        })
    }

    fn bind(&self, keep: Keep) {
        let _ = self.keep.set(keep);
    }

    async fn warmup(&self) -> Result<(), SynthesisError> {
        let Some(keep) = self.keep.get() else { return Ok(()) };
        let enabled = definitions::enabled(&self.config);
        if enabled.is_empty() {
            return Ok(());
        }
        let told = match self.discover(keep).await {
            Ok(told) => told,
            Err(error) => enabled.into_iter().map(|server| (server, Err(error.clone()))).collect(),
        };
        let problems = problems(&told);
        self.found().servers = told;
        if problems.is_empty() { Ok(()) } else { Err(SynthesisError::Servers { problems: joined(&problems) }) }
    }

    async fn initialize(&self, session: &Arc<Session>, handle: Option<&SandboxHandle>) -> Result<(), SynthesisError> {
        let Some(handle) = handle else { return Ok(()) };
        let told = self.start(&session.facts.config, &session.facts.worker, handle).await?;
        let problems = problems(&told);
        if problems.is_empty() { Ok(()) } else { Err(SynthesisError::Servers { problems: joined(&problems) }) }
    }

    async fn call(&self, call: ToolCall<'_>) -> Answered {
        let handle = handle(call.handle)?;
        let failed = |error: SynthesisError| Failure::new(codes::DEPENDENCY_FAILURE, error).with(Value::Null);
        let (server, tool) = crate::names::simple(call.tool).split_once('.').unwrap_or_default();
        let path = format!("/v1/mcp/{server}/tools/{tool}");
        let answer = handle.sandboxes.call(&handle.caller, &handle.name, &path, Some(&Value::Object(call.params.clone()))).await;
        // A failure that the server itself reports is its result, as in AgentFlow.
        answer.and_then(|answer| answer.data()).map(Returned::Data).map_err(failed)
    }
}

/// The tool with this name.
fn named<'a>(said: &'a [Value], tool: &Value) -> Option<&'a Value> {
    let name = tool["name"].as_str().or_else(|| tool.as_str())?;
    said.iter().find(|said| said["name"] == name)
}
