//! All tools and backends of a server.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use utoipa::ToSchema;

use crate::backend::{Backend, ToolSpec};
use crate::error::SynthesisError;
use crate::names::{Found, Names, prefix, shown, simple};

/// Prefix of the description of hidden tools, as in AgentFlow.
const HIDDEN: &str = "[HIDDEN]";

/// A backend, and whether it is warm.
pub(crate) struct Loaded {
    pub(crate) backend: Arc<dyn Backend>,
    warm: Mutex<bool>,
}

impl Loaded {
    /// Warms it up unless it is warm. Concurrent callers wait for it; other backends' callers don't.
    pub(crate) async fn warm_up(&self) -> Result<(), SynthesisError> {
        let mut warm = self.warm.lock().await;
        if !*warm {
            self.backend.warmup().await?;
            *warm = true;
        }
        Ok(())
    }

    /// None while it is warming up.
    pub(crate) fn is_warm(&self) -> bool {
        self.warm.try_lock().is_ok_and(|warm| *warm)
    }
}

pub(crate) struct Tool {
    pub(crate) spec: ToolSpec,
    pub(crate) loaded: Arc<Loaded>,
}

impl Tool {
    /// The type of the session that it works in.
    pub(crate) fn session_type(&self) -> Option<&str> {
        prefix(&self.spec.name)
    }
}

/// A tool: AgentFlow's fields, and `parameters`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ToolInfo {
    /// Without the type of its session.
    pub name: String,
    pub full_name: String,
    /// The type of its session.
    pub resource_type: Option<String>,
    /// It needs no session.
    pub stateless: bool,
    pub description: String,
    /// A JSON Schema.
    #[schema(value_type = Object)]
    pub parameters: Value,
}

/// A tool in a list.
pub struct Listed(Arc<Tool>);

impl Listed {
    pub fn info(&self) -> ToolInfo {
        let ToolSpec { name, description, parameters, .. } = self.0.spec.clone();
        let resource_type = prefix(&name).map(str::to_owned);
        let stateless = resource_type.is_none();
        ToolInfo { name: simple(&name).to_owned(), full_name: name, resource_type, stateless, description, parameters }
    }

    /// In the format of another API. None for an unknown format.
    pub fn formatted(&self, format: &str) -> Option<Value> {
        let spec = &self.0.spec;
        let (name, description, parameters) = (shown(&spec.name), &spec.description, &spec.parameters);
        Some(match format {
            "openai" => {
                json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
            }
            "openai_responses" => {
                json!({"type": "function", "name": name, "description": description, "parameters": parameters})
            }
            "anthropic" => json!({"name": name, "description": description, "input_schema": parameters}),
            "mcp" => json!({"name": name, "description": description, "inputSchema": parameters}),
            "agentflow" => json!({
                "name": spec.name.replacen(':', "-", 1),
                "description": description,
                "parameters": flat(parameters),
            }),
            _ => return None,
        })
    }
}

/// A schema's properties in the parameter format of AgentFlow's catalogue.
fn flat(schema: &Value) -> Vec<Value> {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    let flatten = |(name, property): (&String, &Value)| {
        let mut one = json!({
            "name": name,
            "type": property["type"].as_str().unwrap_or("string"),
            "description": property["description"].as_str().unwrap_or_default(),
            "required": required.contains(&name.as_str()),
        });
        if let Some(items) = property["items"]["type"].as_str() {
            one["array_type"] = items.into();
        }
        one
    };
    properties.iter().map(flatten).collect()
}

/// All backends, and their current tools.
pub(crate) struct Catalog {
    /// In the order of their registration, including APIs.
    backends: Vec<Arc<Loaded>>,
    tools: RwLock<Arc<Tools>>,
}

#[derive(Default)]
struct Tools {
    names: Names,
    tools: HashMap<String, Arc<Tool>>,
    order: Vec<String>,
}

impl Tools {
    /// Leaves out tools with names that are taken, and logs them.
    fn new(backends: &[Arc<Loaded>]) -> Arc<Self> {
        let mut all = Self::default();
        for loaded in backends {
            for spec in loaded.backend.tools() {
                if !all.names.add(&spec.name) {
                    tracing::warn!(tool = spec.name, backend = loaded.backend.name(), "a tool of this name is there already");
                    continue;
                }
                all.order.push(spec.name.clone());
                all.tools.insert(spec.name.clone(), Arc::new(Tool { spec, loaded: Arc::clone(loaded) }));
            }
        }
        Arc::new(all)
    }
}

impl Catalog {
    pub(crate) fn new(backends: Vec<Arc<dyn Backend>>) -> Self {
        let load = |backend| Arc::new(Loaded { backend, warm: Mutex::new(false) });
        let backends: Vec<Arc<Loaded>> = backends.into_iter().map(load).collect();
        let tools = RwLock::new(Tools::new(&backends));
        Self { backends, tools }
    }

    fn tools(&self) -> Arc<Tools> {
        Arc::clone(&self.tools.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds the tools that backends have discovered.
    pub(crate) fn refresh(&self) {
        *self.tools.write().unwrap_or_else(PoisonError::into_inner) = Tools::new(&self.backends);
    }

    pub(crate) fn find(&self, given: &str) -> Result<Arc<Tool>, Option<Vec<String>>> {
        let all = self.tools();
        match all.names.find(given) {
            Found::Tool(full) => all.tools.get(full).cloned().ok_or(None),
            Found::Ambiguous(candidates) => Err(Some(candidates)),
            Found::Nothing => Err(None),
        }
    }

    pub(crate) fn get(&self, full: &str) -> Option<Listed> {
        self.find(full).ok().map(Listed)
    }

    pub(crate) fn list(&self, include_hidden: bool) -> Vec<Listed> {
        let all = self.tools();
        let shown = |tool: &&Arc<Tool>| include_hidden || !(tool.spec.hidden || tool.spec.description.starts_with(HIDDEN));
        all.order.iter().filter_map(|name| all.tools.get(name)).filter(shown).cloned().map(Listed).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.tools().order.len()
    }

    /// The backend of a resource type; none for a type that needs no session.
    pub(crate) fn resource(&self, name: &str) -> Option<&Arc<Loaded>> {
        self.resources().find(|loaded| loaded.backend.name() == name)
    }

    pub(crate) fn resources(&self) -> impl Iterator<Item = &Arc<Loaded>> {
        self.backends.iter().filter(|loaded| loaded.backend.is_resource())
    }

    pub(crate) fn all(&self) -> &[Arc<Loaded>] {
        &self.backends
    }
}
