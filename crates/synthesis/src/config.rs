//! AgentFlow's configuration from its JSON file, with Arenite's additions.
//!
//! ```text
//! server     url, host, port, session_ttl …       resources  {key: {enabled, backend_class | command, config, isolation …}}
//! apis       {key: {…}}: any of them enables all   warmup     {enabled, resources}
//! security   allowed_origins, auth                 plugins    [{modules, path}]: tools in Python; Arenite's
//! arenite    Arenite's switches
//! ```
//!
//! `${VAR}` and `${VAR:-default}` are expanded in every string. A variable that is not set and has no default stays unchanged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::backend::Backend;
use crate::backends::{Bash, Browser, Code, Doc, Ds, Mcp, Rag, SearchDirs, Text2Sql, Vm, Web};
use crate::error::SynthesisError;
use crate::plugin::{Launch, PLUGIN_PATH, Plugin, unpack};
use crate::sandboxes::{SandboxRequest, Sandboxes};

/// Default in seconds.
const SESSION_TTL: f64 = 300.0;
/// Largest file, in bytes.
const MAX_BYTES: u64 = 4 << 20;
/// Arenite's backends, by the last part of the class in AgentFlow's files.
const OURS: [(&str, &str); 9] = [
    ("BashBackend", "bash"),
    ("CodeBackend", "code"),
    ("BrowserBackend", "browser"),
    ("VMBackend", "vm"),
    ("VmBackend", "vm"),
    ("MCPBackend", "mcp"),
    ("McpBackend", "mcp"),
    ("ToolathlonGymBackend", "mcp"),
    ("RAGBackend", "rag"),
];
/// The module of AgentFlow's own backends; classes in other modules are users' own.
const THEIRS: &str = "sandbox.server.backends.resources.";

/// Why a file is rejected.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("could not read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is no configuration: {reason}", path.display())]
    Syntax { path: PathBuf, reason: String },
}

/// The whole file. Unknown fields are ignored, as in AgentFlow.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    pub server: Server,
    pub resources: Map<String, Value>,
    pub apis: Map<String, Value>,
    pub warmup: Warmup,
    pub security: Security,
    pub plugins: Vec<Module>,
    pub arenite: Switches,
    /// The folder of the file, in which its relative paths are searched.
    #[serde(skip)]
    pub dir: PathBuf,
    /// Keys in the order of the file, in which tools and databases are listed.
    #[serde(skip)]
    order: Order,
}

/// The keys of an object, in order.
#[derive(Debug, Clone, Default)]
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> serde::de::Visitor<'de> for InOrder {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Keys in the order of the file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Order {
    resources: Keys,
    apis: ApisOrder,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ApisOrder {
    text2sql: DatabasesOrder,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct DatabasesOrder {
    databases: Keys,
    db_paths: Keys,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Server {
    pub url: Option<String>,
    pub host: Option<String>,
    pub port: Option<u16>,
    /// In seconds.
    pub session_ttl: Option<f64>,
    pub log_level: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Warmup {
    pub enabled: bool,
    pub resources: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Security {
    /// `*` is not accepted: origins must be named.
    pub allowed_origins: Vec<String>,
    pub auth: Auth,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Auth {
    pub enabled: bool,
    pub api_key: Option<String>,
}

/// Python modules that register tools with `@register_api_tool`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Module {
    pub modules: Vec<String>,
    pub path: Vec<PathBuf>,
    pub python: Option<String>,
    pub isolation: Isolation,
}

/// Arenite's settings, which AgentFlow's file does not have.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Switches {
    /// Answer every request with `Connection: close`, which the original client's sync calls need. Requests of that client are
    /// recognised and always answered this way.
    pub connection_close: bool,
    /// Answer tools' failures with HTTP 200 and their code in the body, so that rollouts show them to the model.
    pub failures_as_200: bool,
    /// The folder in which `init/from-config` may read files; none: no files.
    pub config_root: Option<PathBuf>,
    /// Defaults of workers' sandboxes.
    pub sandbox: SandboxRequest,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Resource {
    enabled: Option<bool>,
    backend_class: Option<String>,
    command: Vec<String>,
    path: Vec<PathBuf>,
    python: Option<String>,
    isolation: Isolation,
    config: Map<String, Value>,
}

/// Isolation of a plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A child process of the server.
    #[default]
    Process,
    /// In a separate sandbox.
    Sandbox,
}

/// A configured backend.
#[derive(Clone)]
pub enum Part {
    Ours(Arc<dyn Backend>),
    Plugin { key: String, launch: Box<Launch>, config: Map<String, Value> },
}

impl Part {
    /// Returns the backend; starts it if it is a plugin.
    ///
    /// # Errors
    /// Why it can't be used.
    pub async fn start(self, sandboxes: &Arc<dyn Sandboxes>) -> Result<Arc<dyn Backend>, SynthesisError> {
        match self {
            Self::Ours(backend) => Ok(backend),
            Self::Plugin { key, launch, config } => {
                Plugin::start(&key, *launch, config, sandboxes).await.map_err(|error| error.within(format!("{key} is left out")))
            }
        }
    }
}

/// Configuration of a server's workers.
#[derive(Clone)]
pub struct Workers {
    /// Folder in which their sessions are stored.
    pub dir: PathBuf,
    pub parts: Vec<Part>,
    pub session_ttl: Duration,
    pub sandbox_request: SandboxRequest,
    /// Names of backends that are warmed up before the server serves.
    pub warmup: Vec<String>,
    pub switches: Switches,
}

impl Config {
    /// # Errors
    /// Why it can't be read.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let syntax = |reason: String| ConfigError::Syntax { path: path.to_owned(), reason };
        if std::fs::metadata(path).map_err(failed)?.len() > MAX_BYTES {
            return Err(syntax(format!("it is larger than {} MiB", MAX_BYTES >> 20)));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let mut parsed: Value = serde_json::from_str(&text).map_err(|error| syntax(error.to_string()))?;
        expand(&mut parsed, &|name| std::env::var(name).ok());
        let mut config = Self::deserialize(&parsed).map_err(|error| syntax(error.to_string()))?;
        config.order = serde_json::from_str(&text).unwrap_or_default();
        // A bare name has an empty parent, in which nothing can be started.
        let absolute = std::path::absolute(path).map_err(failed)?;
        config.dir = absolute.parent().map(Path::to_owned).unwrap_or_default();
        let problems = config.problems();
        if problems.is_empty() { Ok(config) } else { Err(syntax(problems.join("; "))) }
    }

    /// Errors that can be detected before anything is started.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, value) in named(&self.resources) {
            match Resource::deserialize(value) {
                Err(error) => problems.push(format!("resources.{key}: {error}")),
                Ok(resource) if resource.backend_class.is_none() && resource.command.is_empty() => {
                    problems.push(format!("resources.{key} has neither backend_class nor command"));
                }
                Ok(_) => {}
            }
        }
        if self.server.session_ttl.is_some_and(|ttl| ttl <= 0.0) {
            problems.push("server.session_ttl has to be more than 0".to_owned());
        }
        problems
    }

    /// The listening address in the file: `url` takes precedence over host and port.
    pub fn listen(&self) -> Option<(String, u16)> {
        let url = self.server.url.as_deref().and_then(|url| url.split_once("://")).map(|(_, rest)| rest);
        let authority = url.map(|rest| rest.split('/').next().unwrap_or_default());
        let (host, port) = match authority.and_then(|authority| authority.rsplit_once(':')) {
            Some((host, port)) => (Some(host.to_owned()), port.parse().ok()),
            None => (authority.map(str::to_owned), None),
        };
        let port = port.or(self.server.port)?;
        Some((host.or_else(|| self.server.host.clone()).unwrap_or_else(|| "127.0.0.1".to_owned()), port))
    }

    /// The expanded configuration without its secrets.
    pub fn shown(&self) -> Value {
        let mut shown = json!({
            "server": { "listen": self.listen(), "session_ttl": self.server.session_ttl.unwrap_or(SESSION_TTL) },
            "resources": self.resources,
            "apis": self.apis,
            "warmup": { "enabled": self.warmup.enabled, "resources": self.warmup.resources },
        });
        hide(&mut shown);
        shown
    }

    /// The configured backends, to be started.
    ///
    /// # Errors
    /// If a file of the server's own can't be written.
    pub fn workers(&self, data_dir: &Path) -> Result<Workers, SynthesisError> {
        let dir = data_dir.join("synthesis");
        let package = dir.join("python");
        unpack(&package)
            .map_err(|error| SynthesisError::io(format!("could not write the plugin host to {}", package.display()), error))?;
        let mut ordered: Vec<(&str, &Value)> = named(&self.resources).collect();
        ordered.sort_by_key(|(key, _)| self.order.resources.0.iter().position(|one| one == key));
        let mut parts = Vec::new();
        for (key, value) in ordered {
            let Ok(resource) = Resource::deserialize(value) else { continue };
            if resource.enabled == Some(false) {
                continue;
            }
            match self.part(key, resource, &package, data_dir) {
                Ok(part) => parts.push(part),
                Err(error) => tracing::warn!(resource = key, "a backend is left out: {error}"),
            }
        }
        if self.apis.keys().any(|key| !key.starts_with('_')) {
            parts.extend(apis(&self.apis, &self.order.apis, &SearchDirs::new(&self.dir, data_dir)));
        }
        for module in &self.plugins {
            let python = module.python.as_deref().unwrap_or("python3");
            let path = self.path(&module.path, module.isolation);
            let mut launch = Launch::python(python, "tools", &module.modules, &package, &path);
            launch.dir = Some(self.home(&module.path));
            launch.sandbox = (module.isolation == Isolation::Sandbox).then(SandboxRequest::default);
            parts.push(Part::Plugin {
                key: module.modules.join(","),
                launch: Box::new(launch),
                config: without_comments(&self.apis),
            });
        }
        let mut workers = Workers::new(dir, parts);
        workers.session_ttl = Duration::from_secs_f64(self.server.session_ttl.unwrap_or(SESSION_TTL).clamp(0.001, 3.2e9));
        // The first session of a worker creates the sandbox for all later ones.
        workers.sandbox_request = workers.parts.iter().fold(self.arenite.sandbox.clone(), |sandbox_request, part| match part {
            // Its sessions have separate sandboxes.
            Part::Ours(backend) if backend.default_config().get("sandbox") == Some(&"own".into()) => sandbox_request,
            Part::Ours(backend) => {
                backend.sandbox_request(&Map::new()).map_or(sandbox_request.clone(), |needed| sandbox_request.over(&needed))
            }
            Part::Plugin { .. } => sandbox_request,
        });
        workers.switches = self.arenite.clone();
        if self.warmup.enabled {
            let enabled =
                |name: &&String| self.resources.get(*name).is_none_or(|resource| resource["enabled"] != Value::Bool(false));
            workers.warmup = self.warmup.resources.iter().filter(enabled).cloned().collect();
        }
        Ok(workers)
    }

    /// Directories in which modules are searched: the folders of the configuration, those of `ARENITE_PLUGIN_PATH`, then the
    /// configuration's own folder and the working directory. A plugin in a sandbox gets a copy of these folders, so the last two
    /// are left out if others are named.
    fn path(&self, more: &[PathBuf], isolation: Isolation) -> Vec<PathBuf> {
        let mut path: Vec<PathBuf> = more.iter().map(|one| self.dir.join(one)).collect();
        let named = std::env::var_os(PLUGIN_PATH).unwrap_or_default();
        path.extend(
            std::env::split_paths(&named).filter(|one| one != Path::new("")).filter_map(|one| std::path::absolute(one).ok()),
        );
        if isolation == Isolation::Process || path.is_empty() {
            path.push(self.dir.clone());
        }
        if isolation == Isolation::Process {
            path.extend(std::env::current_dir());
        }
        path
    }

    /// The working directory of a plugin.
    fn home(&self, path: &[PathBuf]) -> PathBuf {
        path.first().map_or_else(|| self.dir.clone(), |first| self.dir.join(first))
    }

    fn part(&self, key: &str, resource: Resource, package: &Path, data_dir: &Path) -> Result<Part, SynthesisError> {
        let config = resource.config;
        let class = resource.backend_class.as_deref().unwrap_or_default();
        let last = class.rsplit('.').next().unwrap_or_default();
        let ours = OURS.iter().find(|(name, _)| *name == last && class.starts_with(THEIRS)).map(|(_, ours)| *ours);
        let program = |command: Vec<String>| Launch {
            command,
            env: Vec::new(),
            paths: Vec::new(),
            dir: Some(self.dir.clone()),
            sandbox: None,
        };
        let mut launch = match (ours, class.strip_prefix("process:")) {
            _ if !resource.command.is_empty() => program(resource.command),
            (Some(ours), _) => {
                return Ok(Part::Ours(match ours {
                    "bash" => Arc::new(Bash::new(config)),
                    "code" => Arc::new(Code::new(config)),
                    "browser" => Arc::new(Browser::new(config)),
                    "rag" => Arc::new(Rag::new(config, data_dir)),
                    "vm" => Arc::new(Vm::new(config, data_dir)),
                    _ => Arc::new(Mcp::new(config, self.dir.clone())),
                }));
            }
            (None, Some(command)) => program(command.split_whitespace().map(str::to_owned).collect()),
            // Also a class of AgentFlow that has no backend here: it is searched in a checkout.
            (None, None) => {
                let python = resource.python.as_deref().unwrap_or("python3");
                let path = self.path(&resource.path, resource.isolation);
                let launch = Launch::python(python, "backend", &[class.to_owned()], package, &path);
                Launch { dir: Some(self.home(&resource.path)), ..launch }
            }
        };
        if resource.isolation == Isolation::Sandbox {
            launch.sandbox = Some(SandboxRequest::from_config(&config)?);
        }
        Ok(Part::Plugin { key: key.to_owned(), launch: Box::new(launch), config })
    }
}

impl Workers {
    /// The configuration of a server without a file: bash, code, browser, rag and vm, and all APIs that have keys in the
    /// environment.
    pub fn default_set(data_dir: &Path) -> Self {
        // For metrics of `vm:evaluate`.
        if let Err(error) = unpack(&data_dir.join("synthesis/python")) {
            tracing::warn!("the Python package could not be written: vm:evaluate won't work: {error}");
        }
        let mut parts = vec![
            Part::Ours(Arc::new(Bash::new(Map::new()))),
            Part::Ours(Arc::new(Code::new(Map::new()))),
            Part::Ours(Arc::new(Browser::new(Map::new()))),
            Part::Ours(Arc::new(Rag::new(Map::new(), data_dir))),
            Part::Ours(Arc::new(Vm::new(Map::new(), data_dir))),
        ];
        // Without a configuration, clients may not read folders of the server.
        parts.extend(apis(&Map::new(), &ApisOrder::default(), &SearchDirs::default()));
        Self::new(data_dir.join("synthesis"), parts)
    }

    fn new(dir: PathBuf, parts: Vec<Part>) -> Self {
        Self {
            dir,
            parts,
            session_ttl: Duration::from_secs_f64(SESSION_TTL),
            sandbox_request: SandboxRequest::default(),
            warmup: Vec::new(),
            switches: Switches::default(),
        }
    }
}

/// All of AgentFlow's APIs, in its order.
fn apis(config: &Map<String, Value>, order: &ApisOrder, search_dirs: &SearchDirs) -> Vec<Part> {
    let databases = [order.text2sql.databases.0.as_slice(), &order.text2sql.db_paths.0].concat();
    let of = |key: &str| without_comments(config.get(key).and_then(Value::as_object).unwrap_or(&Map::new()));
    vec![
        Part::Ours(Arc::new(Web::new(of("websearch")))),
        Part::Ours(Arc::new(Ds::new(of("ds"), search_dirs))),
        Part::Ours(Arc::new(Doc::new(of("doc"), search_dirs))),
        Part::Ours(Arc::new(Text2Sql::new(&of("text2sql"), &databases, search_dirs.clone()))),
    ]
}

/// Skips keys that start with an underscore: they are comments.
fn named(map: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    map.iter().map(|(key, value)| (key.as_str(), value)).filter(|(key, _)| !key.starts_with('_') && !key.starts_with('$'))
}

fn without_comments(map: &Map<String, Value>) -> Map<String, Value> {
    named(map).map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

/// Replaces `${VAR}` and `${VAR:-default}` with values from the environment.
pub fn expand(value: &mut Value, variable: &dyn Fn(&str) -> Option<String>) {
    match value {
        Value::String(text) if text.contains("${") => *text = expanded(text, variable),
        Value::Array(items) => items.iter_mut().for_each(|item| expand(item, variable)),
        Value::Object(fields) => fields.values_mut().for_each(|field| expand(field, variable)),
        _ => {}
    }
}

fn expanded(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = from.find('}') else {
            rest = from;
            break;
        };
        let (whole, inner) = (&from[..=end], &from[2..end]);
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        match variable(name).filter(|value| default.is_none() || !value.is_empty()) {
            Some(value) => out.push_str(&value),
            None => match default {
                Some(default) => out.push_str(default),
                None => {
                    tracing::warn!(variable = name, "a variable of the configuration is not set");
                    out.push_str(whole);
                }
            },
        }
        rest = &from[end + 1..];
    }
    out.push_str(rest);
    out
}

/// Hides values that look like secrets.
fn hide(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let secret = ["key", "password", "token", "secret"].iter().any(|word| name.to_ascii_lowercase().contains(word));
                match field {
                    Value::String(text) if secret && !text.is_empty() => *field = "(hidden)".into(),
                    other => hide(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_everywhere() {
        let known = |name: &str| match name {
            "A" => Some("a".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        for (text, wanted) in [
            ("${A}", "a"),
            ("x${A}y${A}", "xaya"),
            ("${B:-b}", "b"),
            ("${EMPTY:-c}", "c"),
            ("${EMPTY}", ""),
            ("${B}", "${B}"),
            ("${A", "${A"),
            ("${B:-}", ""),
            ("$A {A}", "$A {A}"),
        ] {
            assert_eq!(expanded(text, &known), wanted, "{text}");
        }
        let mut nested = json!({"a": ["${A}", {"b": "${A}"}], "n": 1});
        expand(&mut nested, &known);
        assert_eq!(nested, json!({"a": ["a", {"b": "a"}], "n": 1}));
    }

    #[test]
    fn the_address_goes_before_host_and_port() {
        let listen = |server: Value| Config { server: Server::deserialize(server).unwrap(), ..Config::default() }.listen();
        let at = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(listen(json!({"url": "http://127.0.0.1:9/x", "host": "h", "port": 1})), at("127.0.0.1", 9));
        assert_eq!(listen(json!({"url": "http://h", "port": 1})), at("h", 1));
        assert_eq!(listen(json!({"port": 1})), at("127.0.0.1", 1));
        assert_eq!(listen(json!({"host": "h"})), None);
    }

    #[test]
    fn a_file_is_refused_with_its_reasons_and_shown_without_its_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        std::fs::write(&path, r#"{"resources": {"a": {"enabled": true}, "_c": {"x": 1}}, "server": {"session_ttl": 0}}"#)
            .unwrap();
        let said = Config::read(&path).unwrap_err().to_string();
        assert!(
            said.contains("resources.a has neither") && said.contains("session_ttl") && !said.contains("resources._c"),
            "{said}"
        );
        std::fs::write(&path, r#"{"apis": {"websearch": {"serper_api_key": "sekrit"}}, "unknown": 1}"#).unwrap();
        let shown = Config::read(&path).unwrap().shown().to_string();
        assert!(shown.contains("(hidden)") && !shown.contains("sekrit"), "{shown}");
    }
}
