//! The folder in the sandbox in which a session's MCP servers work, and its content at their start.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::definitions::Folders;
use crate::backends::quoted;
use crate::error::{SynthesisError, invalid};
use crate::plugin::sandboxed;
use crate::sandboxes::SandboxHandle;

/// AgentFlow's default.
const ROOT: &str = "/tmp/agentflow_mcp";
/// Timeout in seconds of the script that prepares a task.
const PREPARE: u64 = 600;

pub(super) struct Workspace {
    /// None if the configuration has none of AgentFlow's keys.
    pub(super) folder: Option<String>,
    pub(super) servers: String,
    /// The task's folder, or empty.
    pub(super) task: String,
}

impl Workspace {
    /// Creates it, copies the servers' programs and the task, and prepares the task.
    pub(super) async fn make(
        handle: &SandboxHandle,
        folders: &Folders,
        config: &Map<String, Value>,
        worker: &str,
    ) -> Result<Self, SynthesisError> {
        let servers = folders.servers.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let mut workspace = Self { folder: None, servers, task: String::new() };
        let text = |key: &str| config.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        if text("workspace_root").is_none() && config.get("enabled_mcp_servers").is_none() {
            return Ok(workspace);
        }
        let folder = format!("{}/{}", text("workspace_root").unwrap_or(ROOT).trim_end_matches('/'), below(worker));
        make_folder(handle, &folder).await?;
        if let Some(servers) = folders.servers.as_deref().filter(|path| path.is_dir()) {
            bring(handle, servers, "mcp_servers_path").await?;
        }
        if let Some(given) = text("task_dir") {
            let task = find_task(given, folders)?;
            workspace.task = task.display().to_string();
            bring(handle, &task, "task_dir").await?;
            let is = |key: &str| config.get(key).is_some_and(|value| value == true);
            if is("copy_initial_workspace") && task.join("initial_workspace").is_dir() {
                let from = quoted(&format!("{}/initial_workspace/.", workspace.task));
                run(handle, &format!("cp -r -- {from} {}", quoted(&folder)), 60).await?;
            }
            if is("run_preprocess") && task.join("preprocess/main.py").is_file() {
                let script = quoted(&format!("{}/preprocess/main.py", workspace.task));
                let mut command = format!("python3 {script} --agent_workspace {}", quoted(&folder));
                if let Some(time) = text("launch_time") {
                    let first: Vec<&str> = time.split_whitespace().take(2).collect();
                    command = format!("{command} --launch_time {}", quoted(&first.join(" ")));
                }
                run(handle, &command, PREPARE).await.map_err(|error| error.within("preprocess failed"))?;
            }
        }
        workspace.folder = Some(folder);
        Ok(workspace)
    }

    /// Replaces AgentFlow's placeholders with the folders. Others stay unchanged.
    pub(super) fn fill(&self, value: &mut Value) {
        match value {
            Value::String(text) if text.contains("${") => {
                *text = text
                    .replace("${local_servers_paths}", &self.servers)
                    .replace("${agent_workspace}", self.folder.as_deref().unwrap_or_default())
                    .replace("${task_dir}", &self.task);
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.fill(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.fill(field)),
            _ => {}
        }
    }
}

/// A worker's name as a path that can't leave the root.
fn below(worker: &str) -> String {
    let parts = worker.split('/').filter(|part| !matches!(*part, "" | "." | ".."));
    parts.map(|part| part.replace(|c: char| c.is_control(), "_")).collect::<Vec<_>>().join("/")
}

/// A task's folder on the host, named by a client: below the working directory or the configuration's folder.
fn find_task(given: &str, folders: &Folders) -> Result<PathBuf, SynthesisError> {
    for root in folders.roots() {
        // A server that was started in `/` would disclose the whole host.
        let (Ok(root), Ok(path)) = (root.canonicalize(), root.join(given).canonicalize()) else { continue };
        let is_task = path.join("initial_workspace").is_dir() || path.join("preprocess").is_dir();
        if root != Path::new("/") && path.starts_with(&root) && is_task {
            return Ok(path);
        }
    }
    Err(invalid(format!("task_dir {given:?} is no task below the server's working directory or its configuration file")))
}

async fn make_folder(handle: &SandboxHandle, folder: &str) -> Result<(), SynthesisError> {
    let folder = quoted(folder);
    // Where the user may not write, the sandbox's root creates it, if sudo works.
    let command = format!("mkdir -p -- {folder} 2>/dev/null || sudo -n install -d -o \"$(id -u)\" -- {folder}");
    run(handle, &command, 30).await.map(drop)
}

/// Copies a folder to the same path in the sandbox, unless its image has it.
async fn bring(handle: &SandboxHandle, folder: &Path, key: &str) -> Result<(), SynthesisError> {
    let path = folder.display().to_string();
    if run(handle, &format!("test -d {}", quoted(&path)), 30).await.is_ok() {
        return Ok(());
    }
    make_folder(handle, &path).await?;
    let copied = sandboxed::put_all(handle, folder, &path).await;
    copied.map_err(|error| {
        let error = error.within(format!("{key} could not be copied into the sandbox"));
        error.hinted(format!("build an image that has it at {path}"))
    })
}

/// Runs a command that must succeed. The error is its output.
async fn run(handle: &SandboxHandle, command: &str, seconds: u64) -> Result<(), SynthesisError> {
    let done = handle.post("/v1/bash/exec", &json!({ "command": command, "hard_timeout": seconds })).await?;
    if done["exit_code"] == 0 {
        return Ok(());
    }
    let said = |stream: &str| done[stream].as_str().unwrap_or_default().trim().to_owned();
    let message = [said("stderr"), said("stdout"), format!("exit status {}", done["exit_code"])]
        .into_iter()
        .find(|said| !said.is_empty())
        .unwrap_or_default();
    Err(SynthesisError::Program { message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_stay_below_the_root() {
        for (worker, wanted) in [("m1", "m1"), ("m/3 x", "m/3 x"), ("../../etc", "etc"), ("/a//b/./", "a/b"), ("", "")] {
            assert_eq!(below(worker), wanted, "{worker:?}");
        }
    }

    #[test]
    fn tasks_are_found_below_the_configuration_alone() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("configs");
        std::fs::create_dir_all(config.join("task/preprocess")).unwrap();
        std::fs::create_dir_all(config.join("empty")).unwrap();
        std::fs::create_dir_all(dir.path().join("outside/preprocess")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside"), config.join("link")).unwrap();
        let folders = Folders { dir: config.clone(), servers: None };
        let task = config.join("task").canonicalize().unwrap();
        assert_eq!(find_task("task", &folders).unwrap(), task);
        assert_eq!(find_task(&task.display().to_string(), &folders).unwrap(), task);
        let outside = dir.path().join("outside").display().to_string();
        for given in ["empty", "nothing", "link", "../outside", &outside, "/"] {
            assert!(find_task(given, &folders).is_err(), "{given}");
        }
    }
}
