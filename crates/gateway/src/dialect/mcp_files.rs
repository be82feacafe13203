//! MCP's tools for the files of snapshots and volumes, and for snapshots as archives in volumes, at the server's own address.
//!
//! Each is one or two requests of the API for the caller, with the same rights, bounds and records. A request goes to the node
//! that has the files.

use std::sync::Arc;

use arenite_control::tenants::Role;
use arenite_mcp::failed;
use arenite_mcp::rmcp::model::{CallToolResult, JsonObject, Tool, ToolAnnotations};
use arenite_model::{ErrorCode, NodeName, SnapshotName, VolumeName};
use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::mcp::{said, text, tool};
use crate::exchange::{self, Peer};
use crate::gateway::{Context, Gateway};
use crate::nodes::{self, Passed};
use crate::refusal::Refusal;
use crate::snapshots;

/// Entries of a directory in one answer.
const MAX_ENTRIES: usize = 200;
/// Bytes of a file in one answer.
const MAX_CONTENT: u64 = 32 << 10;
/// The most bytes of an answer of the API.
const MAX_ANSWER: usize = 1 << 20;

/// The tools, with whether each changes something.
const TOOLS: [(&str, bool); 6] = [
    ("listSnapshotFiles", false),
    ("readSnapshotFile", false),
    ("listVolumeFiles", false),
    ("readVolumeFile", false),
    ("exportSnapshot", true),
    ("importSnapshot", true),
];

/// The role that a tool needs, if it is one of these.
pub(super) fn role_for(tool: &str) -> Option<Role> {
    let (_, changes) = TOOLS.into_iter().find(|(name, _)| *name == tool)?;
    Some(if changes { Role::Manage } else { Role::Use })
}

#[derive(Deserialize)]
struct List {
    name: String,
    #[serde(default)]
    path: String,
    cursor: Option<String>,
}

#[derive(Deserialize)]
struct Read {
    name: String,
    path: String,
    #[serde(default)]
    offset: u64,
}

#[derive(Deserialize)]
struct Export {
    name: SnapshotName,
    volume: VolumeName,
    path: String,
}

#[derive(Deserialize)]
struct Import {
    name: Option<SnapshotName>,
    volume: VolumeName,
    path: String,
}

/// What has files.
#[derive(Debug, Clone)]
enum Tree {
    Snapshot(SnapshotName),
    Volume(VolumeName),
}

impl Tree {
    fn named(tool: &str, name: &str) -> Result<Self, Refusal> {
        Ok(if tool.ends_with("SnapshotFiles") || tool.ends_with("SnapshotFile") {
            Self::Snapshot(name.parse()?)
        } else {
            Self::Volume(name.parse()?)
        })
    }

    fn path(&self) -> String {
        match self {
            Self::Snapshot(name) => format!("/api/v2/snapshots/{name}"),
            Self::Volume(name) => format!("/api/v2/volumes/{name}"),
        }
    }

    /// The other node that has the files.
    async fn node(&self, gateway: &Gateway, context: &Context) -> Result<Option<NodeName>, Refusal> {
        match self {
            Self::Snapshot(name) => snapshots::holder(&gateway.control, context.tenant(), name).await,
            Self::Volume(name) => Ok(gateway.control.node_of_volume(context.tenant(), name).await?),
        }
    }
}

fn read<T: for<'a> Deserialize<'a>>(arguments: &JsonObject) -> Result<T, Refusal> {
    T::deserialize(Value::Object(arguments.clone())).map_err(|error| Refusal::bad_request(format!("invalid arguments: {error}")))
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Calls one of the tools; none for any other tool.
pub(super) async fn call(
    gateway: &Arc<Gateway>,
    context: &Context,
    tool: &str,
    arguments: &JsonObject,
) -> Option<CallToolResult> {
    role_for(tool)?;
    Some(match answer(gateway, context, tool, arguments).await {
        Ok(answer) => {
            let shown = match answer["text"].as_str() {
                Some(content) => content.to_owned(),
                None => serde_json::to_string_pretty(&answer).unwrap_or_default(),
            };
            let mut result = text(shown);
            result.structured_content = Some(answer);
            result
        }
        Err(refusal) => failed(said(&refusal)),
    })
}

async fn answer(gateway: &Arc<Gateway>, context: &Context, tool: &str, arguments: &JsonObject) -> Result<Value, Refusal> {
    match tool {
        "listSnapshotFiles" | "listVolumeFiles" => {
            let List { name, path, cursor } = read(arguments)?;
            let tree = Tree::named(tool, &name)?;
            let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={}", encoded(&cursor)));
            let uri = format!("{}/files?path={}&limit={MAX_ENTRIES}{cursor}", tree.path(), encoded(&path));
            let node = tree.node(gateway, context).await?;
            json_of(request(gateway, context, node, Method::GET, &uri, HeaderMap::new(), Body::empty()).await?).await
        }
        "readSnapshotFile" | "readVolumeFile" => {
            let Read { name, path, offset } = read(arguments)?;
            let tree = Tree::named(tool, &name)?;
            let node = tree.node(gateway, context).await?;
            part_of_file(gateway, context, (&tree, node), &path, offset).await
        }
        "exportSnapshot" => {
            let Export { name, volume, path } = read(arguments)?;
            let (from, to) = (Tree::Snapshot(name), Tree::Volume(volume));
            let (source, target) = (from.node(gateway, context).await?, to.node(gateway, context).await?);
            let uri = format!("{}/archive", from.path());
            let archive = request(gateway, context, source, Method::GET, &uri, HeaderMap::new(), Body::empty()).await?;
            let headers = length_of(&archive);
            let uri = format!("{}/content?path={}&create_parents=true", to.path(), encoded(&path));
            json_of(request(gateway, context, target, Method::PUT, &uri, headers, archive.into_body()).await?).await
        }
        _ => {
            let Import { name, volume, path } = read(arguments)?;
            let from = Tree::Volume(volume);
            let node = from.node(gateway, context).await?;
            let uri = format!("{}/content?path={}", from.path(), encoded(&path));
            let archive = request(gateway, context, node, Method::GET, &uri, HeaderMap::new(), Body::empty()).await?;
            let headers = length_of(&archive);
            let name = name.map_or_else(String::new, |name| format!("?name={name}"));
            let uri = format!("/api/v2/snapshots/import{name}");
            json_of(request(gateway, context, None, Method::POST, &uri, headers, archive.into_body()).await?).await
        }
    }
}

/// The bytes of a file from an offset on, as text if they are UTF-8.
async fn part_of_file(
    gateway: &Arc<Gateway>,
    context: &Context,
    (tree, node): (&Tree, Option<NodeName>),
    path: &str,
    offset: u64,
) -> Result<Value, Refusal> {
    let uri = format!("{}/content?path={}", tree.path(), encoded(path));
    let mut headers = HeaderMap::new();
    let range = format!("bytes={offset}-{}", offset.saturating_add(MAX_CONTENT - 1));
    headers.insert(RANGE, HeaderValue::try_from(range).map_err(|_| Refusal::bad_request("offset can't be used"))?);
    let found = request(gateway, context, node.clone(), Method::GET, &uri, headers, Body::empty()).await;
    let found = match found {
        // No byte of an empty file is in the range.
        Err(refusal) if offset == 0 && refusal.status == http::StatusCode::RANGE_NOT_SATISFIABLE => {
            request(gateway, context, node, Method::GET, &uri, HeaderMap::new(), Body::empty()).await?
        }
        found => found?,
    };
    let whole = found.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok()?.rsplit('/').next()?.parse::<u64>().ok());
    let bytes = bytes_of(found.into_body()).await?;
    let size = whole.unwrap_or(bytes.len() as u64);
    // A character may go on after the end.
    let (shown, encoding) = match std::str::from_utf8(&bytes) {
        Ok(text) => (text, "utf-8"),
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => {
            (std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(), "utf-8")
        }
        Err(_) => ("", "base64"),
    };
    let next = match encoding {
        "utf-8" => offset + shown.len() as u64,
        _ => offset + bytes.len() as u64,
    };
    let mut answer = json!({ "path": path, "size_bytes": size, "offset": offset, "encoding": encoding });
    answer["next_offset"] = if next < size { json!(next) } else { Value::Null };
    match encoding {
        "utf-8" => answer["text"] = json!(shown),
        _ => answer["base64"] = json!(STANDARD.encode(&bytes)),
    }
    Ok(answer)
}

fn length_of(answer: &Response<Body>) -> HeaderMap {
    answer.headers().get(CONTENT_LENGTH).map(|length| (CONTENT_LENGTH, length.clone())).into_iter().collect()
}

/// The success of a request of the API, on this node or another. Boxed, because the API also answers this tool's request.
fn request<'a>(
    gateway: &'a Arc<Gateway>,
    context: &'a Context,
    node: Option<NodeName>,
    method: Method,
    uri: &str,
    headers: HeaderMap,
    body: Body,
) -> BoxFuture<'a, Result<Response<Body>, Refusal>> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.headers_mut() = headers;
    let uri = uri.parse();
    Box::pin(async move {
        *request.uri_mut() = uri.map_err(|_| Refusal::bad_request("the path can't be read"))?;
        let passed = Passed::from_context(context);
        let answer = match node {
            Some(node) => nodes::call(gateway, &node, &passed, request).await?,
            None => {
                let peer = Peer { address: passed.client, scheme: passed.scheme() };
                request.extensions_mut().insert(passed);
                exchange::answer(Arc::clone(gateway), peer, request).await
            }
        };
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let problem: Value = serde_json::from_slice(&bytes_of(body).await?).unwrap_or_default();
        let message = problem["message"].as_str().map_or_else(|| format!("the status is {}", head.status), str::to_owned);
        let code = ErrorCode::ALL.into_iter().find(|code| Some(code.as_str()) == problem["code"].as_str());
        let refusal = Refusal { status: head.status, ..Refusal::new(code.unwrap_or(ErrorCode::Internal), message) };
        Err(match problem["hint"].as_str() {
            Some(hint) => refusal.hint(hint),
            None => refusal,
        })
    })
}

async fn bytes_of(body: Body) -> Result<bytes::Bytes, Refusal> {
    let read = Limited::new(body, MAX_ANSWER).collect().await;
    read.map(http_body_util::Collected::to_bytes)
        .map_err(|error| Refusal::new(ErrorCode::Internal, format!("the answer broke off: {error}")))
}

async fn json_of(answer: Response<Body>) -> Result<Value, Refusal> {
    let bytes = bytes_of(answer.into_body()).await?;
    serde_json::from_slice(&bytes).map_err(|error| Refusal::new(ErrorCode::Internal, format!("the answer is no JSON: {error}")))
}

/// Descriptions of the tools that this server's engine has.
pub(super) fn tools(gateway: &Gateway) -> Vec<Tool> {
    let engine = gateway.control.engine();
    let (has_states, has_volumes) = (engine.check_states().is_ok(), engine.volumes().is_some());
    let mut tools = all_tools();
    tools.retain(|tool| {
        let (of_snapshot, of_volume) = (tool.name.contains("Snapshot"), tool.name.contains("Volume"));
        let of_both = matches!(&*tool.name, "exportSnapshot" | "importSnapshot");
        (has_states || !of_snapshot) && (has_volumes || !of_volume && !of_both)
    });
    tools
}

fn all_tools() -> Vec<Tool> {
    let snapshot = json!({"type": "string", "description": "The snapshot's name."});
    let volume = json!({"type": "string", "description": "The volume's name."});
    let path = |what: &str| json!({"type": "string", "description": what});
    let offset = json!({"type": "integer", "minimum": 0, "default": 0, "description": "The first byte: next_offset of the answer before."});
    let cursor = json!({"type": "string", "description": "next_cursor of the answer before."});
    let folder = json!({"type": "string", "default": "", "description": "A directory, such as home/gem. Absent: the top."});
    let described = |name: &'static str, title: &str, description: &'static str, properties: Value, required: Value| {
        let changes = TOOLS.iter().any(|(tool, changes)| *tool == name && *changes);
        // An export replaces a file that has its path.
        let destroys = name == "exportSnapshot";
        let annotations = ToolAnnotations::with_title(title).read_only(!changes).destructive(destroys).open_world(false);
        tool(name, description, properties, required, annotations)
    };
    let file = path("The file's path, such as home/gem/notes.txt.");
    let archive = path("The archive's path in the volume, such as snapshots/ready.tar.");
    vec![
        described(
            "listSnapshotFiles",
            "List files of a snapshot",
            "Lists a directory of a snapshot, without a sandbox: at most 200 entries.",
            json!({"name": snapshot, "path": folder, "cursor": cursor}),
            json!(["name"]),
        ),
        described(
            "readSnapshotFile",
            "Read a file of a snapshot",
            "Returns at most 32 KiB of a file of a snapshot, without a sandbox: text, or Base64 if it is not UTF-8.",
            json!({"name": snapshot, "path": file, "offset": offset}),
            json!(["name", "path"]),
        ),
        described(
            "listVolumeFiles",
            "List files of a volume",
            "Lists a directory of a volume, without a sandbox: at most 200 entries.",
            json!({"name": volume, "path": folder, "cursor": cursor}),
            json!(["name"]),
        ),
        described(
            "readVolumeFile",
            "Read a file of a volume",
            "Returns at most 32 KiB of a file of a volume, without a sandbox: text, or Base64 if it is not UTF-8.",
            json!({"name": volume, "path": file, "offset": offset}),
            json!(["name", "path"]),
        ),
        described(
            "exportSnapshot",
            "Export a snapshot",
            "Writes a snapshot with its image as an archive into a volume, and replaces the file at that path. Processes are left out.",
            json!({"name": snapshot, "volume": volume, "path": archive}),
            json!(["name", "volume", "path"]),
        ),
        described(
            "importSnapshot",
            "Import a snapshot",
            "Adds the snapshot of an archive that is in a volume. Without a name, it has the one that it was exported with.",
            json!({"name": snapshot, "volume": volume, "path": archive}),
            json!(["volume", "path"]),
        ),
    ]
}
