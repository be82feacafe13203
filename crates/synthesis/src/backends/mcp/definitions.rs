//! How MCP servers are started: the configuration's own `servers`, and those in AgentFlow's `enabled_mcp_servers`, each with a
//! YAML file in a checkout of AgentFlow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::workspace::Workspace;

use crate::error::{SynthesisError, invalid};

/// Folder of a checkout with its definitions, in subfolders.
const CHECKOUT: &str = "sandbox/server/backends/resources/mcp";
/// Largest definition in bytes, and the most folders that are searched.
const MAX_BYTES: u64 = 64 << 10;
const MAX_FOLDERS: usize = 64;
/// Environment variables of databases: PostgreSQL's names, and those of the servers.
const BRIDGED: [(&str, &str); 5] = [
    ("PGHOST", "PG_HOST"),
    ("PGPORT", "PG_PORT"),
    ("PGUSER", "PG_USER"),
    ("PGPASSWORD", "PG_PASSWORD"),
    ("PGDATABASE", "PG_DATABASE"),
];

/// Folders of the host that only the configuration file sets, and no session.
pub(super) struct Folders {
    /// The configuration file's.
    pub(super) dir: PathBuf,
    /// The programs of `enabled_mcp_servers`.
    pub(super) servers: Option<PathBuf>,
}

impl Folders {
    pub(super) fn new(config: &Map<String, Value>, dir: PathBuf) -> Self {
        let text = |key: &str| config.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let servers = text("mcp_servers_path").map(PathBuf::from);
        let servers = servers.or_else(|| text("toolathlon_root").map(|root| Path::new(root).join("local_servers")));
        let servers = servers.map(|path| absolute(&path, &dir));
        Self { dir, servers }
    }

    /// Directories in which relative paths are searched: the working directory, as in AgentFlow, then the configuration's folder.
    pub(super) fn roots(&self) -> Vec<PathBuf> {
        std::env::current_dir().into_iter().chain([self.dir.clone()]).collect()
    }
}

fn absolute(path: &Path, dir: &Path) -> PathBuf {
    let here = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if here.exists() { here } else { dir.join(path) }
}

/// The enabled servers, in order.
pub(super) fn enabled(config: &Map<String, Value>) -> Vec<String> {
    let own = config.get("servers").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned();
    let named = config.get("enabled_mcp_servers").and_then(Value::as_array).into_iter().flatten();
    let mut all: Vec<String> = Vec::new();
    for name in own.chain(named.filter_map(Value::as_str).map(str::to_owned)) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// All servers of a configuration.
pub(super) struct Definitions {
    /// Entries in the format of MCP clients, with AgentFlow's placeholders.
    known: BTreeMap<String, Value>,
    unknown: BTreeMap<String, SynthesisError>,
    overrides: BTreeMap<String, String>,
}

impl Definitions {
    pub(super) fn from_config(config: &Map<String, Value>, folders: &Folders) -> Self {
        let own = config.get("servers").and_then(Value::as_object);
        let overrides = config.get("env_overrides").and_then(Value::as_object);
        let overrides = overrides.into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect();
        let (mut known, mut unknown) = (BTreeMap::new(), BTreeMap::new());
        for name in enabled(config) {
            let entry = match own.and_then(|own| own.get(&name)) {
                Some(entry) => Ok(own_entry(entry)),
                None => agentflows(&name, folders),
            };
            match entry {
                Ok(entry) => drop(known.insert(name, entry)),
                Err(why) => drop(unknown.insert(name, why)),
            }
        }
        Self { known, unknown, overrides }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }

    /// Unknown servers, and why they are unknown.
    pub(super) fn unknown(&self) -> impl Iterator<Item = (&str, &SynthesisError)> {
        self.unknown.iter().map(|(name, why)| (name.as_str(), why))
    }

    /// The hub's configuration.
    pub(super) fn entries(&self, workspace: &Workspace) -> Value {
        let mut entries = json!(self.known);
        for entry in entries.as_object_mut().into_iter().flat_map(|entries| entries.values_mut()) {
            workspace.fill(entry);
            let mut env: BTreeMap<String, String> =
                entry["env"].as_object().into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect();
            env.extend(self.overrides.clone());
            for (from, to) in BRIDGED {
                if let Some(value) = env.get(from).cloned() {
                    env.insert(to.to_owned(), value);
                }
            }
            entry["env"] = json!(env);
            if let (None, Some(folder)) = (entry["cwd"].as_str(), &workspace.folder) {
                entry["cwd"] = folder.as_str().into();
            }
        }
        entries
    }
}

fn own_entry(entry: &Value) -> Value {
    let mut entry = entry.clone();
    if let Some(entry) = entry.as_object_mut() {
        entry.remove("tools");
    }
    entry
}

/// One of AgentFlow's servers: from its checkout, otherwise one of the three that its own configuration enables.
fn agentflows(name: &str, folders: &Folders) -> Result<Value, SynthesisError> {
    for root in folders.roots() {
        if let Some(found) = in_checkout(&root.join(CHECKOUT), name) {
            return found;
        }
    }
    let program =
        |command: &str, args: &[&str], env: Value| json!({ "command": command, "args": args, "env": env, "timeout": 60 });
    match name {
        "filesystem" => {
            Ok(program("node", &["${local_servers_paths}/filesystem/environment/dist/index.js", "${agent_workspace}"], json!({})))
        }
        "terminal" => Ok(program(
            "uv",
            &["--directory", "${local_servers_paths}/cli-mcp-server/environment", "run", "cli-mcp-server"],
            json!({ "ALLOWED_DIR": "${agent_workspace}", "COMMAND_TIMEOUT": "60" }),
        )),
        "snowflake" => {
            let mut args =
                vec!["--directory", "${local_servers_paths}/mcp-snowflake-server/environment", "run", "mcp_snowflake_server"];
            args.extend(["--account", "local_pg", "--warehouse", "local", "--user", "eigent", "--private_key_path", ""]);
            args.extend(["--database", "HR_ANALYTICS", "--schema", "sf"]);
            args.extend([
                "--allowed_databases",
                "HR_ANALYTICS,SUPPORT_CENTER,SALES_DW",
                "--allow_write",
                "--exclude-json-results",
            ]);
            Ok(program("uv", &args, json!({})))
        }
        _ => Err(invalid(format!(
            "MCP config not found for server: {name}; define it in resources.mcp.config.servers, or start the server in a checkout \
             of AgentFlow that has it"
        ))),
    }
}

/// AgentFlow's file of a server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    name: String,
    params: Params,
    client_session_timeout_seconds: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Params {
    command: String,
    args: Vec<Value>,
    env: BTreeMap<String, Value>,
    cwd: Option<String>,
}

/// Finds it by the file's name, otherwise by the name inside. None if it does not exist.
fn in_checkout(folder: &Path, name: &str) -> Option<Result<Value, SynthesisError>> {
    let (mut folders, mut files, mut seen) = (vec![folder.to_owned()], Vec::new(), 0);
    while let Some(next) = folders.pop().filter(|_| seen < MAX_FOLDERS) {
        seen += 1;
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && is_yaml {
                files.push(path);
            }
        }
    }
    files.sort();
    if let Some(file) = files.iter().find(|file| file.file_stem().is_some_and(|stem| stem == name)) {
        return Some(
            read(file).map(entry).map_err(|why| why.within(format!("{} is no definition of an MCP server", file.display()))),
        );
    }
    files.iter().filter_map(|file| read(file).ok()).find(|file| file.name == name).map(|file| Ok(entry(file)))
}

fn read(file: &Path) -> Result<File, SynthesisError> {
    if std::fs::metadata(file).map_err(invalid)?.len() > MAX_BYTES {
        return Err(invalid(format!("it is larger than {} KiB", MAX_BYTES >> 10)));
    }
    let text = std::fs::read_to_string(file).map_err(invalid)?;
    serde_saphyr::from_str(&text).map_err(invalid)
}

fn entry(file: File) -> Value {
    let Params { command, args, env, cwd } = file.params;
    let mut entry = json!({
        "command": command,
        "args": args.iter().map(text).collect::<Vec<_>>(),
        "env": env.iter().map(|(name, value)| (name.clone(), text(value))).collect::<BTreeMap<_, _>>(),
        "timeout": file.client_session_timeout_seconds.unwrap_or(60.0),
    });
    if let Some(cwd) = cwd {
        entry["cwd"] = cwd.into();
    }
    entry
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkouts_definition_is_found_by_its_files_name_and_by_the_name_inside() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(CHECKOUT).join("servers");
        std::fs::create_dir_all(&folder).unwrap();
        let yaml = "type: stdio\nname: rail_12306\nparams:\n  command: node\n  args:\n    - \"${local_servers_paths}/x.js\"\n    - 5\n  \
                    env:\n    PORT: 1\n    ON: true\n  cwd: ${agent_workspace}\nclient_session_timeout_seconds: 90\n";
        std::fs::write(folder.join("12306.yaml"), yaml).unwrap();
        std::fs::write(folder.join("broken.yml"), "params: [").unwrap();
        let folders = Folders { dir: dir.path().to_owned(), servers: None };
        let wanted = json!({
            "command": "node", "args": ["${local_servers_paths}/x.js", "5"], "env": {"PORT": "1", "ON": "true"},
            "timeout": 90.0, "cwd": "${agent_workspace}",
        });
        assert_eq!(agentflows("rail_12306", &folders).unwrap(), wanted);
        assert_eq!(agentflows("12306", &folders).unwrap(), wanted);
        assert!(agentflows("broken", &folders).unwrap_err().to_string().contains("broken.yml"));
        assert!(agentflows("nosuch", &folders).unwrap_err().to_string().starts_with("MCP config not found for server: nosuch"));
    }

    #[test]
    fn overrides_come_after_the_definition_and_databases_are_named_both_ways() {
        let config = json!({
            "servers": {"a": {"command": "a", "env": {"PGHOST": "no", "X": "1"}, "tools": ["t"]}},
            "enabled_mcp_servers": ["terminal", "a", "nosuch"],
            "env_overrides": {"PGHOST": "db", "PGPORT": 5432},
        });
        let config = config.as_object().unwrap();
        assert_eq!(enabled(config), ["a", "terminal", "nosuch"]);
        let folders = Folders::new(config, PathBuf::from("/nowhere"));
        let definitions = Definitions::from_config(config, &folders);
        assert_eq!(definitions.unknown().count(), 1);
        let workspace = Workspace { folder: Some("/w/1".to_owned()), servers: "/s".to_owned(), task: String::new() };
        let entries = definitions.entries(&workspace);
        let env = json!({"PGHOST": "db", "PG_HOST": "db", "PGPORT": "5432", "PG_PORT": "5432", "X": "1"});
        assert_eq!(entries["a"], json!({"command": "a", "env": env, "cwd": "/w/1"}));
        assert_eq!(entries["terminal"]["args"][1], "/s/cli-mcp-server/environment");
        assert_eq!(entries["terminal"]["env"]["ALLOWED_DIR"], "/w/1");
    }
}
