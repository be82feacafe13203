//! MCP: at a sandbox's address, the tools of that sandbox; at the server's own, those of the caller's `default` and five more,
//! with which an agent creates and removes sandboxes and works in them. Names, arguments and texts of these are Agent-Sandbox's.
//! `mcp_states` has those for states of disks, and `mcp_files` those for files of snapshots and volumes.
//!
//! Each tool call is one request to the sandbox's guest, and so one step of its trajectory. Each create and delete is a step too.
//! `arenite_mcp` has the transports.

use std::sync::Arc;

use arenite_control::tenants::Role;
use arenite_mcp::rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use arenite_mcp::{Endpoint, Error, ToolResult, Tools, failed, hub_request, read_answer, read_list};
use arenite_model::{ErrorCode, SandboxName, SandboxState};
use axum::body::Body;
use http::{Method, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{agent_sandbox, mcp_files, mcp_states};
use crate::audit;
use crate::exchange::{Answered, Exchange};
use crate::gateway::{Context, Gateway};
use crate::lifecycle::LifecycleCall;
use crate::path::Path;
use crate::proxy;
use crate::refusal::Refusal;
use crate::target::{self, SandboxRef, Target};

pub(crate) const DIALECT: &str = "mcp";
const PREFIX: &str = "/sandbox/";

/// Which of MCP's endpoints a path is; the path as the sandbox sees it.
pub(crate) fn endpoint(path: &str) -> Option<Endpoint> {
    Some(match path {
        "/mcp" | "/mcp/" | "/v1/mcp" | "/v1/mcp/" => Endpoint::Streamable,
        "/mcp/sse" => Endpoint::Stream("messages"),
        "/sse" => Endpoint::Stream("mcp/messages"),
        "/mcp/messages" => Endpoint::Messages,
        _ => return None,
    })
}

/// The caller and its target.
#[derive(Clone)]
pub(crate) struct Caller(Arc<Call>);

struct Call {
    gateway: Arc<Gateway>,
    context: Context,
    target: Target,
}

impl Call {
    /// At the server's own address, without a sandbox in the path.
    fn is_root(&self) -> bool {
        !self.target.own_host && self.target.prefix.is_empty()
    }
}

/// The tools behind the gateway's transports.
pub(crate) struct Hub;

/// Answers a request at one of MCP's paths.
pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let target = exchange.target()?;
    let endpoint = endpoint(&target.path.decoded).ok_or_else(|| Refusal::not_found("there is nothing at this path"))?;
    let gateway = Arc::clone(&exchange.gateway);
    let is_default = matches!(&target.sandbox_ref, SandboxRef::Name(name) if name.is_default());
    if !is_default {
        target::look_up(&gateway.control, &exchange.context, &target.sandbox_ref).await?;
    }
    // The permit ends here: the request to the guest takes its own.
    let (bytes, _) = match exchange.parts.method {
        Method::POST => {
            let body = exchange.take_body();
            proxy::read_whole(&gateway, &exchange.parts, body).await?
        }
        _ => Default::default(),
    };
    let context = Context { dialect: DIALECT, ..exchange.context.clone() };
    let principal = &context.principal;
    let owner = format!("{}/{}", principal.tenant, principal.actor().unwrap_or_else(|| "-".to_owned()));
    let caller = Caller(Arc::new(Call { gateway: Arc::clone(&gateway), context, target }));
    Ok(gateway.mcp.serve(endpoint, exchange.take_parts(), bytes, caller, &owner).await)
}

impl Tools for Hub {
    type Caller = Caller;

    fn introduction(&self) -> (&'static str, &'static str) {
        let instructions = "Tools that work in sandboxes: computers of their own, with shell, files, code, browser and desktop. \
             What a tool does in a sandbox stays there. At the server's own address, createSandbox makes one more sandbox and \
             sandboxExecutor calls a tool in it; tools that are called directly work in the sandbox `default`.";
        ("arenite", instructions)
    }

    async fn list(&self, Caller(call): Caller) -> Result<Vec<Tool>, Error> {
        if !call.is_root() {
            return tools_of(&call, call.target.sandbox_ref.clone(), &call.target.prefix).await;
        }
        let mut tools = lifecycle_tools(&call.gateway);
        if call.gateway.control.engine().check_states().is_ok() {
            tools.append(&mut mcp_states::tools());
        }
        tools.append(&mut mcp_files::tools(&call.gateway));
        tools.retain(|tool| call.context.principal.may(role_for(&tool.name)));
        // Listing tools creates and resumes no sandbox.
        let there = target::look_up(&call.gateway.control, &call.context, &call.target.sandbox_ref).await;
        let mut theirs = match there {
            Ok(sandbox) if sandbox.state == SandboxState::Running => tools_of(&call, call.target.sandbox_ref.clone(), "").await?,
            _ => (call.gateway.config.guest.tools)(),
        };
        // A sandbox's tools may have any name.
        theirs.retain(|tool| tools.iter().all(|own| own.name != tool.name));
        tools.append(&mut theirs);
        Ok(tools)
    }

    async fn call(
        &self,
        Caller(call): Caller,
        name: String,
        arguments: JsonObject,
        news: Option<mpsc::Sender<String>>,
    ) -> ToolResult {
        if call.is_root()
            && let Some(told) = lifecycle(&call, &name, &arguments, news.as_ref()).await
        {
            return told;
        }
        in_sandbox(&call, call.target.sandbox_ref.clone(), &call.target.prefix, &name, &arguments, news.as_ref()).await
    }
}

/// Passes a request on to a sandbox's guest.
async fn forward(
    call: &Call,
    sandbox_ref: SandboxRef,
    prefix: &str,
    request: http::Request<bytes::Bytes>,
) -> Result<Response<Body>, Refusal> {
    let path = Path::parse(request.uri().path())?;
    let target = Target { sandbox_ref, path, prefix: prefix.to_owned(), own_host: call.target.own_host };
    proxy::call_guest(&call.gateway, &call.context, &target, request).await
}

async fn tools_of(call: &Call, sandbox_ref: SandboxRef, prefix: &str) -> Result<Vec<Tool>, Error> {
    let answer = forward(call, sandbox_ref, prefix, hub_request(None, false)).await;
    read_list(answer.map_err(|refusal| Error::internal_error(said(&refusal), None))?).await
}

async fn in_sandbox(
    call: &Call,
    sandbox_ref: SandboxRef,
    prefix: &str,
    tool: &str,
    arguments: &JsonObject,
    news: Option<&mpsc::Sender<String>>,
) -> ToolResult {
    match forward(call, sandbox_ref, prefix, hub_request(Some((tool, arguments)), news.is_some())).await {
        Ok(answer) => read_answer(answer, news).await,
        Err(refusal) => Ok(failed(said(&refusal))),
    }
}

/// A refusal as text for an agent.
pub(super) fn said(refusal: &Refusal) -> String {
    match &refusal.hint {
        Some(hint) => format!("{}\nHint: {hint}", refusal.message),
        None => refusal.message.clone(),
    }
}

#[derive(Deserialize)]
struct Create {
    name: Option<String>,
    /// The name in newer clients.
    #[serde(alias = "template")]
    environment: Option<String>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Execute {
    sandbox_name: String,
    tool_name: String,
    arguments: Option<Value>,
}

/// The role that a tool needs.
fn role_for(tool: &str) -> Role {
    if matches!(tool, "createSandbox" | "deleteSandbox") {
        return Role::Manage;
    }
    mcp_states::role_for(tool).or_else(|| mcp_files::role_for(tool)).unwrap_or(Role::Use)
}

/// Calls one of the server's own tools; none for any other tool.
async fn lifecycle(call: &Call, name: &str, arguments: &JsonObject, news: Option<&mpsc::Sender<String>>) -> Option<ToolResult> {
    let (gateway, context) = (&call.gateway, &call.context);
    let role = role_for(name);
    if !context.principal.may(role) {
        let refusal = Refusal::new(ErrorCode::Forbidden, format!("{name} needs a key with the role {role}"));
        let refused = audit::record_result::<()>(gateway, context, &format!("mcp.{name}"), "-", Err(refusal)).await;
        return Some(Ok(failed(refused.map_or_else(|refusal| said(&refusal), |()| String::new()))));
    }
    let done = match name {
        "createSandbox" => match read(name, arguments) {
            Ok(create) => create_sandbox(call, create).await,
            Err(wrong) => Err(wrong),
        },
        "getSandbox" => match read::<Named>(name, arguments) {
            Ok(Named { name }) => details(call, &name).await,
            Err(wrong) => Err(wrong),
        },
        "deleteSandbox" => match read::<Named>(name, arguments) {
            Ok(Named { name }) => {
                let deleted = agent_sandbox::delete(gateway, context, call_of("deleteSandbox"), &name).await;
                deleted
                    .map(|(_, answer)| text(answer["data"].as_str().unwrap_or_default()))
                    .map_err(|refusal| failed(said(&refusal)))
            }
            Err(wrong) => Err(wrong),
        },
        "listSandbox" => match agent_sandbox::list(gateway, context).await {
            Ok((_, answer)) => {
                let shown = serde_json::to_string_pretty(&answer["data"]).unwrap_or_default();
                let mut result = text(shown);
                result.structured_content = Some(json!({ "sandboxes": answer["data"] }));
                Ok(result)
            }
            Err(refusal) => Err(failed(said(&refusal))),
        },
        "sandboxExecutor" => match read::<Execute>(name, arguments) {
            Ok(execute) => return Some(executor(call, execute, news).await),
            Err(wrong) => Err(wrong),
        },
        _ => {
            return match mcp_states::call(gateway, context, name, arguments).await {
                None => mcp_files::call(gateway, context, name, arguments).await.map(Ok),
                told => told.map(Ok),
            };
        }
    };
    Some(Ok(done.unwrap_or_else(|failed| failed)))
}

type Done = Result<CallToolResult, CallToolResult>;

/// The step of a tool's call.
fn call_of(tool: &str) -> LifecycleCall {
    LifecycleCall { dialect: DIALECT, action: tool.to_owned(), arguments: None }
}

fn read<T: for<'a> Deserialize<'a>>(tool: &str, arguments: &JsonObject) -> Result<T, CallToolResult> {
    T::deserialize(Value::Object(arguments.clone())).map_err(|error| failed(format!("invalid arguments of {tool}: {error}")))
}

async fn create_sandbox(call: &Call, create: Create) -> Done {
    let mut wanted = JsonObject::new();
    wanted.extend(create.name.map(|name| ("name".to_owned(), name.into())));
    wanted.extend(create.environment.map(|environment| ("environment".to_owned(), environment.into())));
    let made = LifecycleCall { arguments: Some(Value::Object(wanted)), ..call_of("createSandbox") };
    let made = agent_sandbox::create_placed(&call.gateway, &call.context, made).await;
    let name = made.map_err(|refusal| failed(said(&refusal)))?;
    let tools = tools_text(call, &name).await;
    Ok(text(format!(
        "Sandbox created, Sandbox name:{name}, call its tools with sandboxExecutor (sandbox_name, tool_name, arguments); they are:\n{tools}"
    )))
}

async fn details(call: &Call, name: &str) -> Done {
    let found = agent_sandbox::get(&call.gateway, &call.context, name).await;
    let (_, answer) = found.map_err(|refusal| failed(said(&refusal)))?;
    let stored = &answer["data"];
    let shown = serde_json::to_string_pretty(stored).unwrap_or_default();
    let tools = match stored["name"].as_str().map(str::parse) {
        Some(Ok(name)) => tools_text(call, &name).await,
        _ => String::new(),
    };
    let mut result = text(format!("Sandbox details:{shown}\nIts tools are:\n{tools}"));
    result.structured_content = Some(json!({ "sandbox": stored }));
    Ok(result)
}

/// A sandbox's tools as indented JSON.
async fn tools_text(call: &Call, name: &SandboxName) -> String {
    match tools_of(call, SandboxRef::Name(name.clone()), &format!("{PREFIX}{name}")).await {
        Ok(tools) => serde_json::to_string_pretty(&tools).unwrap_or_default(),
        Err(error) => format!("failed to get tools, retry with getSandbox: {}", error.message),
    }
}

async fn executor(call: &Call, execute: Execute, news: Option<&mpsc::Sender<String>>) -> ToolResult {
    let arguments = match execute.arguments {
        None | Some(Value::Null) => JsonObject::new(),
        Some(Value::Object(arguments)) => arguments,
        // Models sometimes send objects as text.
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(arguments) => arguments,
            Err(error) => {
                return Ok(failed(format!("invalid arguments of sandboxExecutor: arguments is no JSON object: {error}")));
            }
        },
        Some(_) => return Ok(failed("invalid arguments of sandboxExecutor: arguments is no JSON object")),
    };
    let name: SandboxName = match execute.sandbox_name.parse() {
        Ok(name) => name,
        Err(_) => return Ok(failed(format!("sandbox {} not found\nHint: listSandbox tells all", shown(&execute.sandbox_name)))),
    };
    let prefix = format!("{PREFIX}{name}");
    let told = in_sandbox(call, SandboxRef::Name(name), &prefix, &execute.tool_name, &arguments, news).await;
    // The MCP tool exists; the one in its arguments does not.
    told.or_else(|error| Ok(failed(format!("{}\nHint: getSandbox tells the sandbox's tools", error.message))))
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

pub(super) fn text(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text.into())])
}

/// The description of a tool.
pub(super) fn tool(
    name: &'static str,
    description: &'static str,
    properties: Value,
    required: Value,
    annotations: ToolAnnotations,
) -> Tool {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    let Value::Object(schema) = schema else { unreachable!("it is an object") };
    let title = annotations.title.clone().unwrap_or_default();
    Tool::new(name, description, schema).with_title(title).with_annotations(annotations)
}

/// Descriptions of the five.
fn lifecycle_tools(gateway: &Gateway) -> Vec<Tool> {
    let environments = gateway.control.templates().into_iter().map(|t| match t.description.as_str() {
        "" => format!("- {}", t.name),
        description => format!("- {}: {description}", t.name),
    });
    let environments = format!("What the sandbox is made of; one of:\n{}", environments.collect::<Vec<_>>().join("\n"));
    let name = json!({"type": "string", "description": "The sandbox's name.", "examples": ["my-sandbox"]});
    let reads = |title: &str| ToolAnnotations::with_title(title).read_only(true).destructive(false).open_world(false);
    let acts =
        |title: &str, destroys: bool| ToolAnnotations::with_title(title).read_only(false).destructive(destroys).open_world(true);
    vec![
        tool(
            "createSandbox",
            "Creates a sandbox and returns its name and its tools. Call them with sandboxExecutor; delete the sandbox when the work is done.",
            json!({
                "name": {"type": "string", "description": "Its name: lower-case letters, digits and dashes. Absent: one is made up.", "examples": ["my-sandbox"]},
                "environment": {"type": "string", "description": environments, "default": "aio"},
            }),
            json!([]),
            acts("Create a sandbox", false),
        ),
        tool(
            "getSandbox",
            "Returns a sandbox's details and its tools.",
            json!({"name": name}),
            json!(["name"]),
            reads("Look at a sandbox"),
        ),
        tool(
            "deleteSandbox",
            "Deletes a sandbox with everything in it.",
            json!({"name": name}),
            json!(["name"]),
            acts("Delete a sandbox", true),
        ),
        tool("listSandbox", "Returns all sandboxes with their details.", json!({}), json!([]), reads("List the sandboxes")),
        tool(
            "sandboxExecutor",
            "Calls a tool of a sandbox, and returns what it returns: text, structured content and images.",
            json!({
                "sandbox_name": name,
                "tool_name": {"type": "string", "description": "The tool, as createSandbox and getSandbox name it.", "examples": ["sandbox_execute_bash"]},
                "arguments": {"type": "object", "description": "What the tool's own schema wants.", "default": {}, "additionalProperties": true, "examples": [{"cmd": "ls"}]},
            }),
            json!(["sandbox_name", "tool_name"]),
            acts("Call a tool in a sandbox", true),
        ),
    ]
}
