//! Backends and tools as separate processes, in any language: docs/PLUGINS.md describes the protocol.
//!
//! ```text
//!  started ──► described ──► calls ──► ended by itself or the server
//!                              └──► died: open calls fail ──► restarted by the next call, which reports `session_lost` once
//! ```

pub(crate) mod aside;
mod process;
pub(crate) mod sandboxed;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::answer::{Failure, Returned, code as codes};
use crate::backend::{Backend, ToolCall, ToolSpec};
use crate::error::{SynthesisError, plugin, timeout};
use crate::execute::legacy;
use crate::sandboxes::{SandboxHandle, SandboxRequest, Sandboxes};
use crate::session::Session;

use process::{Process, Running};
use sandboxed::PluginSandboxes;

/// The version of the protocol.
const PROTOCOL: u64 = 1;
/// Time for a plugin to describe itself.
const DESCRIBE: Duration = Duration::from_secs(60);
/// Time for its end.
const FAREWELL: Duration = Duration::from_secs(3);
/// The most tools of one plugin.
const MAX_TOOLS: usize = 2000;

/// The Python package: names under which its files are imported, and their text.
const PACKAGE: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/package.rs"));

/// Starts the host without the working directory on Python's path. `-m` would put it before `PYTHONPATH`, and the `sandbox`
/// package of an AgentFlow checkout would replace Arenite's.
const HOST: &str =
    "import sys; sys.path[:] = [p for p in sys.path if p]; from sandbox.host.__main__ import main; sys.exit(main())";
/// Folders with modules of plugins, for the host and for the server that starts it.
pub(crate) const PLUGIN_PATH: &str = "ARENITE_PLUGIN_PATH";
/// Python's own variable. Its value is appended after Arenite's package.
const PYTHON_PATH: &str = "PYTHONPATH";

/// How a plugin is started.
#[derive(Debug, Clone)]
pub struct Launch {
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Variables with folders of the host.
    pub paths: Vec<(String, Vec<PathBuf>)>,
    pub dir: Option<PathBuf>,
    /// Set for a plugin in a separate sandbox: its settings.
    pub sandbox: Option<SandboxRequest>,
}

impl Launch {
    /// Python's plugin host, which runs code for AgentFlow. `kind`: `backend` with a dotted class, or `tools` with modules.
    pub fn python(python: &str, kind: &str, what: &[String], package: &Path, path: &[PathBuf]) -> Self {
        let mut command = vec![python.to_owned(), "-c".to_owned(), HOST.to_owned(), kind.to_owned()];
        command.extend(what.iter().cloned());
        Self {
            command,
            env: vec![("PYTHONUNBUFFERED".to_owned(), "1".to_owned())],
            paths: vec![(PYTHON_PATH.to_owned(), vec![package.to_owned()]), (PLUGIN_PATH.to_owned(), path.to_vec())],
            dir: None,
            sandbox: None,
        }
    }
}

/// Removes the plugins' sandboxes of a killed server.
pub async fn remove_plugins(sandboxes: &Arc<dyn Sandboxes>) {
    let tenant = arenite_model::TenantId::default_tenant();
    let caller = crate::sandboxes::Caller { tenant: tenant.clone(), request_id: String::new(), origin: None };
    for name in sandboxes.labelled(&tenant, sandboxed::LABEL).await {
        sandboxes.remove(&caller, &name).await;
    }
}

/// Writes the Python package for plugin hosts.
///
/// # Errors
/// What could not be written.
pub fn unpack(into: &Path) -> std::io::Result<()> {
    for (name, text) in PACKAGE {
        let path = into.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|there| there == *text) {
            continue;
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&path, text)?;
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
struct Description {
    protocol: u64,
    name: String,
    #[serde(default)]
    default_config: Map<String, Value>,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    tools: Vec<Described>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Backend,
    Tools,
}

#[derive(Debug, Deserialize)]
struct Described {
    name: String,
    resource_type: Option<String>,
    config_key: Option<String>,
    #[serde(default)]
    description: String,
    schema: Option<Value>,
    #[serde(default)]
    hidden: bool,
}

/// A backend in a separate process.
pub struct Plugin {
    name: String,
    kind: Kind,
    tools: Vec<ToolSpec>,
    default_config: Map<String, Value>,
    process: Process,
    /// The life of the process in which each session was prepared.
    lives: Mutex<HashMap<String, u64>>,
    /// Sessions that were restarted because the process or the server had died, and of which the worker does not know yet.
    lost: Mutex<HashSet<String>>,
    stopped: AtomicBool,
}

impl Plugin {
    /// Starts the plugin, and asks for its description. `key`: its name in the configuration.
    ///
    /// # Errors
    /// Why it can't be used.
    pub async fn start(
        key: &str,
        launch: Launch,
        config: Map<String, Value>,
        sandboxes: &Arc<dyn Sandboxes>,
    ) -> Result<Arc<dyn Backend>, SynthesisError> {
        let plugin_sandboxes =
            launch.sandbox.clone().map(|sandbox_request| PluginSandboxes { sandboxes: Arc::clone(sandboxes), sandbox_request });
        let process = Process::new(key.to_owned(), launch, plugin_sandboxes);
        let running = process.running().await?;
        let asked = running.ask("describe", json!({ "protocol": PROTOCOL, "config": config }));
        let told = tokio::time::timeout(DESCRIBE, asked).await;
        let told = told.map_err(|_| timeout(format!("it did not say within {} s what it is", DESCRIBE.as_secs())))??;
        let told: Description =
            serde_json::from_value(told).map_err(|error| plugin(format!("its description can't be read: {error}")))?;
        if told.protocol != PROTOCOL {
            return Err(plugin(format!("it speaks version {} of the protocol, and not {PROTOCOL}", told.protocol)));
        }
        if told.tools.len() > MAX_TOOLS {
            return Err(plugin(format!("it has {} tools, and {MAX_TOOLS} is the most", told.tools.len())));
        }
        let name = if told.kind == Kind::Backend { told.name.clone() } else { key.to_owned() };
        let tools = told.tools.into_iter().map(|tool| ToolSpec {
            resource: tool.config_key.or(tool.resource_type),
            description: tool.description,
            parameters: tool.schema.unwrap_or_else(|| json!({"type": "object", "additionalProperties": true})),
            hidden: tool.hidden,
            name: tool.name,
        });
        let mut default_config = told.default_config;
        default_config.extend(config.clone());
        process.remember(json!({ "protocol": PROTOCOL, "config": config }));
        Ok(Arc::new(Self {
            name,
            kind: told.kind,
            tools: tools.collect(),
            default_config,
            process,
            lives: Mutex::default(),
            lost: Mutex::default(),
            stopped: AtomicBool::new(false),
        }))
    }

    fn lost(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that a session is prepared in the current process.
    async fn ready(&self, session: &Arc<Session>) -> Result<Running, SynthesisError> {
        let running = self.process.running().await?;
        let life = self.lives.lock().unwrap_or_else(PoisonError::into_inner).get(&session.facts.id).copied();
        if life != Some(running.life) && !session.compatible {
            let told = json!({ "worker_id": session.facts.worker, "config": session.facts.config, "session": session.info() });
            running.ask("initialize", told).await?;
            // It was prepared before: in an earlier life of the process, or of the server.
            if life.is_some() || session.restored {
                self.lost().insert(session.facts.id.clone());
            }
            self.lives.lock().unwrap_or_else(PoisonError::into_inner).insert(session.facts.id.clone(), running.life);
        }
        Ok(running)
    }
}

#[async_trait]
impl Backend for Plugin {
    fn name(&self) -> &str {
        &self.name
    }

    fn tools(&self) -> Vec<ToolSpec> {
        self.tools.clone()
    }

    fn default_config(&self) -> Map<String, Value> {
        if self.kind == Kind::Backend { self.default_config.clone() } else { Map::new() }
    }

    fn is_resource(&self) -> bool {
        self.kind == Kind::Backend
    }

    async fn warmup(&self) -> Result<(), SynthesisError> {
        let running = self.process.running().await?;
        running.ask("warmup", json!({})).await.map(drop)
    }

    async fn initialize(&self, session: &Arc<Session>, _handle: Option<&SandboxHandle>) -> Result<(), SynthesisError> {
        self.ready(session).await.map(drop)
    }

    async fn call(&self, call: ToolCall<'_>) -> Result<Returned, Failure> {
        let failed = |error: SynthesisError| {
            let kind = if let SynthesisError::Exception { kind, .. } = &error { kind } else { "PluginError" };
            let data = json!({ "error_type": kind });
            Failure::new(codes::UNEXPECTED_ERROR, error).with(data)
        };
        let running = match call.session.filter(|_| self.kind == Kind::Backend) {
            Some(session) => self.ready(session).await,
            None => self.process.running().await,
        };
        let running = running.map_err(failed)?;
        if let Some(session) = call.session
            && self.lost().remove(&session.facts.id)
        {
            let kind = &session.facts.resource_type;
            let message =
                format!("the state of the {kind} session is lost, since its plugin was restarted; the session began again");
            let data = json!({ "resource_type": kind, "error_type": "session_lost", "details": message });
            return Err(Failure::new(codes::RESOURCE_NOT_INITIALIZED, message).with(data).of_infrastructure());
        }
        let left = call.deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()).as_millis() as u64);
        let told = json!({
            "tool": call.tool,
            "params": call.params,
            "timeout_ms": left,
            "worker_id": call.worker,
            "trace_id": call.trace_id,
            "session_id": call.session.map(|session| session.facts.id.as_str()),
            "session": call.session.map(|session| session.info()),
        });
        let mut answer = running.ask("call", told).await.map_err(failed)?;
        match answer.get_mut("result").map(Value::take).unwrap_or_default() {
            Value::Object(envelope) => Ok(Returned::Envelope(envelope)),
            other => Err(legacy(match other {
                Value::Null => "NoneType",
                Value::Bool(_) => "bool",
                Value::Number(number) if number.is_f64() => "float",
                Value::Number(_) => "int",
                Value::String(_) => "str",
                Value::Array(_) => "list",
                Value::Object(_) => "dict",
            })),
        }
    }

    async fn cleanup(&self, session: &Arc<Session>, _handle: Option<&SandboxHandle>) {
        let life = self.lives.lock().unwrap_or_else(PoisonError::into_inner).remove(&session.facts.id);
        self.lost().remove(&session.facts.id);
        let Some(running) = self.process.alive().filter(|running| Some(running.life) == life) else { return };
        let told = json!({
            "worker_id": session.facts.worker, "session_id": session.facts.id, "session": session.info(),
        });
        if let Err(error) = running.ask("cleanup", told).await {
            tracing::warn!(plugin = self.name, session = session.facts.id, %error, "a session could not be cleaned up");
        }
    }

    async fn shutdown(&self) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(running) = self.process.alive() {
            let _ = tokio::time::timeout(FAREWELL, running.ask("shutdown", json!({}))).await;
        }
        self.process.end(FAREWELL).await;
    }
}
