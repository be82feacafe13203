//! All tools and backends of a server.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::backend::{Backend, ToolSpec};
use crate::names::{Found, Names, prefix, shown, simple};

/// What is listed hidden stands behind this in its description, as AgentFlow's own tools have it.
const HIDDEN: &str = "[HIDDEN]";

/// A backend, and whether it is warm.
pub(crate) struct Loaded {
    pub(crate) backend: Arc<dyn Backend>,
    warm: Mutex<bool>,
}

impl Loaded {
    /// Warms it up unless it is warm. Those who come meanwhile wait for it; other backends' callers don't.
    pub(crate) async fn warm_up(&self) -> Result<(), String> {
        let mut warm = self.warm.lock().await;
        if !*warm {
            self.backend.warmup().await?;
            *warm = true;
        }
        Ok(())
    }

    /// None while it is being warmed up.
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

    fn listed(&self) -> Listed<'_> {
        Listed { spec: &self.spec }
    }
}

/// A tool as lists have it.
pub struct Listed<'a> {
    pub spec: &'a ToolSpec,
}

impl Listed<'_> {
    /// AgentFlow's fields, and `parameters`.
    pub fn json(&self) -> Value {
        let name = &self.spec.name;
        let resource = prefix(name);
        json!({
            "name": simple(name),
            "full_name": name,
            "resource_type": resource,
            "stateless": resource.is_none(),
            "description": self.spec.description,
            "parameters": self.spec.parameters,
        })
    }

    /// In another's words. None for a format that nobody has.
    pub fn formatted(&self, format: &str) -> Option<Value> {
        let spec = self.spec;
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

/// A schema's properties as AgentFlow's catalogue lists parameters.
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

#[derive(Default)]
pub(crate) struct Catalog {
    names: Names,
    tools: HashMap<String, Tool>,
    order: Vec<String>,
    /// In the order of their registration; APIs too.
    backends: Vec<Arc<Loaded>>,
}

impl Catalog {
    /// Adds a backend with its tools. A tool whose name is taken is left out, and said so in the log.
    pub(crate) fn add(&mut self, backend: Arc<dyn Backend>) {
        let loaded = Arc::new(Loaded { backend, warm: Mutex::new(false) });
        for spec in loaded.backend.tools() {
            if !self.names.add(&spec.name) {
                tracing::warn!(tool = spec.name, backend = loaded.backend.name(), "a tool of this name is there already");
                continue;
            }
            self.order.push(spec.name.clone());
            self.tools.insert(spec.name.clone(), Tool { spec, loaded: Arc::clone(&loaded) });
        }
        self.backends.push(loaded);
    }

    pub(crate) fn find(&self, given: &str) -> Result<&Tool, Option<Vec<String>>> {
        match self.names.find(given) {
            Found::Tool(full) => self.tools.get(full).ok_or(None),
            Found::Ambiguous(candidates) => Err(Some(candidates)),
            Found::Nothing => Err(None),
        }
    }

    pub(crate) fn get(&self, full: &str) -> Option<Listed<'_>> {
        self.find(full).ok().map(Tool::listed)
    }

    pub(crate) fn list(&self, include_hidden: bool) -> impl Iterator<Item = Listed<'_>> {
        let shown = move |tool: &&Tool| include_hidden || !(tool.spec.hidden || tool.spec.description.starts_with(HIDDEN));
        self.order.iter().filter_map(|name| self.tools.get(name)).filter(shown).map(Tool::listed)
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The backend behind a type of resource; none for a type that needs no session.
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
