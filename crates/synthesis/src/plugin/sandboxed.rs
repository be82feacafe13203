//! Plugins in a sandbox: a command there runs the plugin, and its streams transport the protocol.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arenite_model::TenantId;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::Launch;
use super::process::{Body, Streams};
use crate::backends::quoted;
use crate::error::{SynthesisError, plugin};
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest, Sandboxes};

/// The label of plugins' sandboxes: the plugin's name.
pub(crate) const LABEL: &str = "agentflow.plugin";
/// Location of its files in the sandbox.
const HOME: &str = "/tmp/plugin";
/// Buffer between the server and the process, in bytes.
const PIPE: usize = 256 << 10;
/// Longest wait of one request for output, in seconds.
const WAIT: u64 = 300;
/// The most files of a plugin, and their total bytes.
const MAX_FILES: usize = 2000;
const MAX_BYTES: u64 = 32 << 20;

/// Creates sandboxes for plugins.
pub(crate) struct PluginSandboxes {
    pub(crate) sandboxes: Arc<dyn Sandboxes>,
    pub(crate) sandbox_request: SandboxRequest,
}

/// A plugin's sandbox.
pub(super) struct PluginSandbox(SandboxHandle);

impl PluginSandbox {
    pub(super) async fn remove(&self) {
        self.0.sandboxes.remove(&self.0.caller, &self.0.name).await;
    }
}

impl PluginSandboxes {
    pub(super) async fn start(&self, name: &str, launch: &Launch) -> Result<Streams, SynthesisError> {
        let caller = Caller { tenant: TenantId::default_tenant(), request_id: String::new(), origin: None };
        let labels = BTreeMap::from([(LABEL.to_owned(), name.chars().filter(|c| !c.is_control()).take(128).collect())]);
        let sandbox = self.sandboxes.make(&caller, &self.sandbox_request, labels).await?;
        let handle = SandboxHandle { sandboxes: Arc::clone(&self.sandboxes), caller, name: sandbox };
        match begin(&handle, launch).await {
            Ok(command) => Ok(streams(handle, command)),
            Err(error) => {
                PluginSandbox(handle).remove().await;
                Err(error)
            }
        }
    }
}

/// A running command in a sandbox.
#[derive(Clone)]
struct Command {
    session: String,
    id: String,
}

/// Copies the plugin's files and starts it.
async fn begin(handle: &SandboxHandle, launch: &Launch) -> Result<Command, SynthesisError> {
    let mut env = BTreeMap::new();
    for (at, (name, folders)) in launch.paths.iter().enumerate() {
        let mut there = Vec::new();
        for (nth, folder) in folders.iter().enumerate() {
            let target = format!("{HOME}/{at}-{nth}");
            put(handle, folder, &target, true).await?;
            there.push(target);
        }
        env.insert(name.clone(), there.join(":"));
    }
    env.extend(launch.env.iter().cloned());
    let words: Vec<String> = launch.command.iter().map(|word| quoted(word)).collect();
    let command = format!("mkdir -p {HOME}; cd {HOME}; exec {}", words.join(" "));
    let asked = json!({ "command": command, "env": env, "async_mode": true });
    let begun = handle.post("/v1/bash/exec", &asked).await?;
    match (begun["session_id"].as_str(), begun["command_id"].as_str()) {
        (Some(session), Some(id)) => Ok(Command { session: session.to_owned(), id: id.to_owned() }),
        _ => Err(plugin("its command has no id")),
    }
}

/// Copies all files of a folder of the host into a sandbox, up to a limit.
pub(crate) async fn put_all(handle: &SandboxHandle, folder: &Path, target: &str) -> Result<(), SynthesisError> {
    put(handle, folder, target, false).await
}

async fn put(handle: &SandboxHandle, folder: &Path, target: &str, sources: bool) -> Result<(), SynthesisError> {
    let from = folder.to_owned();
    let files = tokio::task::spawn_blocking(move || gather(&from, sources)).await??;
    let mut folders: Vec<&str> = files.iter().filter_map(|file| Some(file.name.rsplit_once('/')?.0)).collect();
    folders.sort_unstable();
    folders.dedup();
    let made: Vec<String> = folders.iter().map(|folder| quoted(&format!("{target}/{folder}"))).collect();
    let command = format!("mkdir -p {} {}", quoted(target), made.join(" "));
    handle.post("/v1/bash/exec", &json!({ "command": command, "hard_timeout": 30 })).await?;
    let mut programs = Vec::new();
    for File { name, bytes, is_program } in files {
        let path = format!("{target}/{name}");
        let kept = json!({ "file": path, "content": STANDARD.encode(bytes), "encoding": "base64" });
        handle.post("/v1/file/write", &kept).await?;
        if is_program {
            programs.push(quoted(&path));
        }
    }
    if !programs.is_empty() {
        let command = format!("chmod +x -- {}", programs.join(" "));
        handle.post("/v1/bash/exec", &json!({ "command": command, "hard_timeout": 30 })).await?;
    }
    Ok(())
}

struct File {
    /// Its path in the folder.
    name: String,
    bytes: Vec<u8>,
    is_program: bool,
}

/// Collects files, without links. `sources`: only the files that a plugin needs, which are Python, JSON and text, and nothing
/// hidden.
fn gather(folder: &Path, sources: bool) -> Result<Vec<File>, SynthesisError> {
    const ENDINGS: [&str; 7] = ["py", "json", "txt", "md", "toml", "yaml", "csv"];
    let failed = |path: &Path, error| SynthesisError::io(format!("{} can't be read", path.display()), error);
    let (mut files, mut open, mut bytes) = (Vec::new(), vec![PathBuf::from(folder)], 0);
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).map_err(|error| failed(&next, error))?.flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            let hidden = entry.file_name().as_encoded_bytes().first().is_some_and(|first| b"._".contains(first));
            let known = path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| ENDINGS.contains(&ending));
            if kind.is_dir() && !(sources && hidden) {
                open.push(path);
            } else if kind.is_file() && (known || !sources) {
                let is_program = entry.metadata().is_ok_and(|about| about.permissions().mode() & 0o100 != 0);
                let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
                let content = std::fs::read(&path).map_err(|error| failed(&path, error))?;
                bytes += content.len() as u64;
                if files.len() >= MAX_FILES || bytes > MAX_BYTES {
                    let most = format!("{MAX_FILES} files or {} MiB", MAX_BYTES >> 20);
                    return Err(plugin(format!("{} holds more than {most}, which a sandbox would be given", folder.display())));
                }
                files.push(File { name, bytes: content, is_program });
            }
        }
    }
    Ok(files)
}

/// Transports data to and from the command.
fn streams(handle: SandboxHandle, command: Command) -> Streams {
    let (input, ours) = tokio::io::duplex(PIPE);
    tokio::spawn(send(handle.clone(), command.clone(), ours));
    let (output, out) = tokio::io::duplex(PIPE);
    let (log, err) = tokio::io::duplex(PIPE);
    tokio::spawn(receive(handle.clone(), command, out, err));
    Streams { body: Body::Sandbox(PluginSandbox(handle)), input: Box::new(input), output: Box::new(output), log: Box::new(log) }
}

async fn send(handle: SandboxHandle, command: Command, mut input: DuplexStream) {
    let mut held: Vec<u8> = Vec::new();
    let mut buffer = vec![0; PIPE];
    loop {
        let read = input.read(&mut buffer).await.unwrap_or(0);
        held.extend_from_slice(&buffer[..read]);
        // Whole lines contain only whole characters.
        let whole = if read == 0 { held.len() } else { held.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        let text = String::from_utf8_lossy(&held[..whole]).into_owned();
        held.drain(..whole);
        let asked = json!({ "session_id": command.session, "command_id": command.id, "input": text, "close": read == 0 });
        let is_over = read == 0;
        let sent = if whole > 0 || is_over { handle.post("/v1/bash/write", &asked).await.is_ok() } else { true };
        if is_over || !sent {
            return;
        }
    }
}

async fn receive(handle: SandboxHandle, command: Command, mut out: DuplexStream, mut err: DuplexStream) {
    let (mut offset, mut stderr_offset) = (0, 0);
    loop {
        let asked = json!({
            "session_id": command.session, "command_id": command.id, "offset": offset, "stderr_offset": stderr_offset,
            "wait": true, "wait_timeout": WAIT,
        });
        let Ok(said) = handle.post("/v1/bash/output", &asked).await else { return };
        let text = |field: &str| said[field].as_str().unwrap_or_default().as_bytes();
        // A gap in the sandbox's output buffer breaks the protocol, so the process is ended.
        if said["stdout_gap"].as_u64().is_some_and(|gap| gap > 0) || out.write_all(text("stdout")).await.is_err() {
            return;
        }
        // A log that is not read is no reason to stop.
        let _ = err.write_all(text("stderr")).await;
        offset = said["offset"].as_u64().unwrap_or(offset);
        stderr_offset = said["stderr_offset"].as_u64().unwrap_or(stderr_offset);
        if said["command"]["status"] != "running" {
            return;
        }
    }
}
