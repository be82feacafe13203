//! MCP's tools for states of sandboxes' disks, at the server's own address.

use arenite_control::SnapshotRequest;
use arenite_control::tenants::Role;
use arenite_engine::DiskState;
use arenite_mcp::failed;
use arenite_mcp::rmcp::model::{CallToolResult, JsonObject, Tool, ToolAnnotations};
use arenite_model::{SandboxName, SnapshotName};
use serde::Deserialize;
use serde_json::{Value, json};

use super::mcp::{DIALECT, said, text, tool};
use crate::api::types::{ForkSandbox, NewCheckpoint};
use crate::gateway::{Context, Gateway};
use crate::refusal::Refusal;
use crate::states::StateCall;
use crate::target::{self, SandboxRef};

/// The paths of a comparison.
const MAX_PATHS: usize = 200;

/// The tools, with whether each changes something.
const TOOLS: [(&str, bool); 9] = [
    ("checkpointSandbox", true),
    ("listCheckpoints", false),
    ("rollbackSandbox", true),
    ("resetSandbox", true),
    ("diffSandbox", false),
    ("forkSandbox", true),
    ("createSnapshot", true),
    ("listSnapshots", false),
    ("deleteSnapshot", true),
];

/// The role that a tool needs, if it is one of these.
pub(super) fn role_for(tool: &str) -> Option<Role> {
    let (_, changes) = TOOLS.into_iter().find(|(name, _)| *name == tool)?;
    Some(if changes { Role::Manage } else { Role::Use })
}

#[derive(Deserialize)]
struct Named {
    name: SandboxName,
    note: Option<String>,
    #[serde(default)]
    keep_processes: bool,
}

#[derive(Deserialize)]
struct Back {
    name: SandboxName,
    to: Value,
}

#[derive(Deserialize)]
struct Sides {
    name: SandboxName,
    before: Option<Value>,
    after: Option<Value>,
}

#[derive(Deserialize)]
struct Fork {
    name: SandboxName,
    count: Option<usize>,
    #[serde(default)]
    keep_processes: bool,
}

#[derive(Deserialize)]
struct Snapshot {
    name: SnapshotName,
    sandbox: Option<SandboxName>,
    note: Option<String>,
    #[serde(default)]
    keep_processes: bool,
}

fn read<T: for<'a> Deserialize<'a>>(arguments: &JsonObject) -> Result<T, Refusal> {
    T::deserialize(Value::Object(arguments.clone())).map_err(|error| Refusal::bad_request(format!("invalid arguments: {error}")))
}

/// A state as models write it: a number or a text.
fn state_text(value: Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Calls one of the tools; none for any other tool.
pub(super) async fn call(
    gateway: &std::sync::Arc<Gateway>,
    context: &Context,
    tool: &str,
    arguments: &JsonObject,
) -> Option<CallToolResult> {
    role_for(tool)?;
    let step = Value::Object(arguments.clone());
    let call = StateCall { gateway, context, dialect: DIALECT, action: tool.to_owned(), arguments: Some(step) };
    Some(match answer(&call, tool, arguments).await {
        Ok(answer) => {
            let shown = serde_json::to_string_pretty(&answer).unwrap_or_default();
            let mut result = text(shown);
            result.structured_content = Some(answer);
            result
        }
        Err(refusal) => failed(said(&refusal)),
    })
}

async fn answer(call: &StateCall<'_>, tool: &str, arguments: &JsonObject) -> Result<Value, Refusal> {
    let find = async |name: SandboxName| -> Result<SandboxName, Refusal> {
        target::look_up(&call.gateway.control, call.context, &SandboxRef::Name(name)).await.map(|sandbox| sandbox.name)
    };
    Ok(match tool {
        "checkpointSandbox" => {
            let Named { name, note, keep_processes } = read(arguments)?;
            call.checkpoint(find(name).await?, NewCheckpoint { note, keep_processes }).await?.1
        }
        "listCheckpoints" => {
            let Named { name, .. } = read(arguments)?;
            call.history(&find(name).await?).await?
        }
        "rollbackSandbox" => {
            let Back { name, to } = read(arguments)?;
            let name = find(name).await?;
            let to = call.read_state(&name, &state_text(to)).await?;
            call.return_to(name, to, None, None).await?.1
        }
        "resetSandbox" => {
            let Named { name, .. } = read(arguments)?;
            call.return_to(find(name).await?, DiskState::Beginning, None, None).await?.1
        }
        "diffSandbox" => {
            let Sides { name, before, after } = read(arguments)?;
            let before = before.map_or_else(|| "beginning".to_owned(), state_text);
            let after = after.map_or_else(|| "current".to_owned(), state_text);
            call.diff(&find(name).await?, before, after, MAX_PATHS).await?
        }
        "forkSandbox" => {
            let Fork { name, count, keep_processes } = read(arguments)?;
            call.fork(find(name).await?, ForkSandbox { count, keep_processes, ..ForkSandbox::default() }).await?.1
        }
        "createSnapshot" => {
            let Snapshot { name, sandbox, note, keep_processes } = read(arguments)?;
            let sandbox = sandbox.ok_or_else(|| Refusal::bad_request("invalid arguments: sandbox is missing"))?;
            let request = SnapshotRequest { name, labels: Default::default(), note, keep_processes };
            call.snapshot(find(sandbox).await?, request).await?.1
        }
        "listSnapshots" => call.snapshots().await?,
        _ => {
            let Snapshot { name, .. } = read(arguments)?;
            call.remove_snapshot(name).await?.1
        }
    })
}

/// Descriptions of the tools.
pub(super) fn tools() -> Vec<Tool> {
    let name = json!({"type": "string", "description": "The sandbox's name.", "examples": ["my-sandbox"]});
    let snapshot = json!({"type": "string", "description": "The snapshot's name: lower-case letters, digits and hyphens."});
    let note = json!({"type": "string", "description": "A comment."});
    let keep = "Keep the processes, too. Only with the tiers gvisor and machine.";
    let keep = json!({"type": "boolean", "default": false, "description": keep});
    let state = |role: &str| json!({"type": ["integer", "string"], "description": format!("{role}: a checkpoint's number or id, beginning, or current.")});
    let described = |name: &'static str, title: &str, description: &'static str, properties: Value, required: Value| {
        let changes = TOOLS.iter().any(|(tool, changes)| *tool == name && *changes);
        let destroys = matches!(name, "rollbackSandbox" | "resetSandbox" | "deleteSnapshot");
        let annotations = ToolAnnotations::with_title(title).read_only(!changes).destructive(destroys).open_world(false);
        tool(name, description, properties, required, annotations)
    };
    vec![
        described(
            "checkpointSandbox",
            "Seal a checkpoint",
            "Seals the disk of a sandbox as a checkpoint, in milliseconds, and returns its number. Do it before something risky.",
            json!({"name": name, "note": note, "keep_processes": keep}),
            json!(["name"]),
        ),
        described(
            "listCheckpoints",
            "List the checkpoints",
            "Returns the checkpoints of a sandbox, the oldest first.",
            json!({"name": name}),
            json!(["name"]),
        ),
        described(
            "rollbackSandbox",
            "Roll a sandbox back",
            "Returns the disk of a sandbox to a checkpoint. All its processes and sessions end; those that the checkpoint keeps go on.",
            json!({"name": name, "to": state("The state to return to")}),
            json!(["name", "to"]),
        ),
        described(
            "resetSandbox",
            "Reset a sandbox",
            "Returns the disk of a sandbox to what it was created with. All its processes and sessions end.",
            json!({"name": name}),
            json!(["name"]),
        ),
        described(
            "diffSandbox",
            "Compare two states",
            "Returns the paths that differ between two states of a sandbox's disk; without states, what changed since its creation.",
            json!({"name": name, "before": state("The state before"), "after": state("The state after")}),
            json!(["name"]),
        ),
        described(
            "forkSandbox",
            "Fork a sandbox",
            "Creates sandboxes with the disk of another, which goes on. Delete them when the work is done.",
            json!({"name": name, "count": {"type": "integer", "minimum": 1, "maximum": 100, "default": 1}, "keep_processes": keep}),
            json!(["name"]),
        ),
        described(
            "createSnapshot",
            "Create a snapshot",
            "Seals the disk of a sandbox under a name. It outlives the sandbox.",
            json!({"name": snapshot, "sandbox": name, "note": note, "keep_processes": keep}),
            json!(["name", "sandbox"]),
        ),
        described("listSnapshots", "List the snapshots", "Returns all snapshots.", json!({}), json!([])),
        described("deleteSnapshot", "Delete a snapshot", "Removes a snapshot.", json!({"name": snapshot}), json!(["name"])),
    ]
}
