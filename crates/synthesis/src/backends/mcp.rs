//! `mcp:*`: tools of any MCP server that speaks on its standard input and output, run inside the worker's sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::{Answered, failed, place};
use crate::answer::{Failure, Returned, code as codes};
use crate::backend::{Backend, Call, ToolSpec};
use crate::place::{Place, Wish};
use crate::session::Session;

const NAME: &str = "mcp";
/// Where the sandbox's hub reads which servers there are.
const FILE: &str = "/tmp/mcp-servers.json";

/// Servers of the Model Context Protocol.
pub struct Mcp {
    config: Map<String, Value>,
    tools: Vec<ToolSpec>,
}

impl Mcp {
    /// `config`: `servers`, as MCP's clients have `mcpServers`; of each also `tools`, a list with `name`, `description` and
    /// `inputSchema`, since tools are listed before any server runs.
    pub fn new(config: Map<String, Value>) -> Self {
        let mut tools = Vec::new();
        for (server, about) in config.get("servers").and_then(Value::as_object).into_iter().flatten() {
            for tool in about["tools"].as_array().into_iter().flatten() {
                // A name alone will do.
                let Some(name) = tool["name"].as_str().or_else(|| tool.as_str()) else { continue };
                let parameters = tool.get("inputSchema").cloned();
                tools.push(ToolSpec {
                    name: format!("{NAME}:{server}.{name}"),
                    resource: Some(NAME.to_owned()),
                    description: tool["description"].as_str().unwrap_or_default().to_owned(),
                    parameters: parameters.unwrap_or_else(|| json!({"type": "object", "additionalProperties": true})),
                    hidden: false,
                });
            }
        }
        Self { config, tools }
    }
}

#[async_trait]
impl Backend for Mcp {
    fn name(&self) -> &str {
        NAME
    }

    fn tools(&self) -> Vec<ToolSpec> {
        self.tools.clone()
    }

    fn default_config(&self) -> Map<String, Value> {
        self.config.clone()
    }

    fn wish(&self, _config: &Map<String, Value>) -> Option<Wish> {
        Some(Wish { env: BTreeMap::from([("MCP_SERVERS_FILE".to_owned(), FILE.to_owned())]), ..Wish::default() })
    }

    async fn initialize(&self, session: &Arc<Session>, place: Option<&Place>) -> Result<(), String> {
        let Some(place) = place else { return Ok(()) };
        let mut servers = session.facts.config.get("servers").cloned().unwrap_or_else(|| json!({}));
        for about in servers.as_object_mut().into_iter().flat_map(|servers| servers.values_mut()) {
            if let Some(about) = about.as_object_mut() {
                about.remove("tools");
            }
        }
        let written = json!({ "mcpServers": servers }).to_string();
        place.post("/v1/file/write", &json!({ "file": FILE, "content": written })).await.map(drop)
    }

    async fn call(&self, call: Call<'_>) -> Answered {
        let place = place(call.place)?;
        let (server, tool) = crate::names::simple(call.tool).split_once('.').unwrap_or_default();
        let path = format!("/v1/mcp/{server}/tools/{tool}");
        let answer = place.sandboxes.call(&place.caller, &place.name, &path, Some(&Value::Object(call.params.clone()))).await;
        let answer = answer.map_err(failed)?;
        match answer.data() {
            // What the server says of its own failure is its result, as AgentFlow has it.
            Ok(result) => Ok(Returned::Data(result)),
            Err(error) => Err(Failure::new(codes::DEPENDENCY_FAILURE, error)),
        }
    }
}
