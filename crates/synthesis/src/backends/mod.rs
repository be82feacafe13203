//! The built-in backends.

mod api;
mod ask;
mod bash;
mod browser;
mod code;
mod doc;
mod ds;
mod folders;
mod mcp;
mod rag;
mod text2sql;
pub mod vm;
mod web;

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::answer::{Failure, Reason, Returned, code as codes};
use crate::backend::ToolSpec;
use crate::error::{SynthesisError, invalid};
use crate::sandboxes::SandboxHandle;

pub use bash::Bash;
pub use browser::Browser;
pub use code::Code;
pub use doc::Doc;
pub use ds::Ds;
pub use folders::SearchDirs;
pub use mcp::Mcp;
pub use rag::Rag;
pub use text2sql::Text2Sql;
pub use vm::Vm;
pub use web::Web;

type Params = Map<String, Value>;
type Answered = Result<Returned, Failure>;

/// Longest output in an answer, in characters.
const MAX_OUTPUT: i64 = 100_000;

/// A tool of a backend. `properties` is the `properties` of its schema.
fn spec(name: &str, resource: &str, description: &str, properties: Value, required: &[&str]) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        resource: Some(resource.to_owned()),
        description: description.to_owned(),
        parameters: json!({"type": "object", "properties": properties, "required": required}),
        hidden: false,
    }
}

/// The same tool under another name, which is kept for compatibility.
fn alias(of: &ToolSpec, name: &str) -> ToolSpec {
    ToolSpec { name: name.to_owned(), hidden: true, ..of.clone() }
}

/// Refuses a call without one of its parameters, with Python's message, as AgentFlow's server does.
fn needs(function: &str, params: &Params, required: &[&str]) -> Result<(), SynthesisError> {
    let missing: Vec<String> =
        required.iter().filter(|name| !params.contains_key(**name)).map(|name| format!("'{name}'")).collect();
    let (last, before) = match missing.split_last() {
        None => return Ok(()),
        Some(split) => split,
    };
    let names = match before {
        [] => last.clone(),
        [one] => format!("{one} and {last}"),
        more => format!("{}, and {last}", more.join(", ")),
    };
    let plural = if missing.len() == 1 { "" } else { "s" };
    Err(invalid(format!("{function}() missing {} required positional argument{plural}: {names}", missing.len())))
}

/// The same for a tool of a backend.
fn require(tool: &str, params: &Params, required: &[&str]) -> Result<(), Failure> {
    let function = crate::names::simple(tool);
    needs(function, params, required).map_err(|missing| Failure::new(codes::UNEXPECTED_ERROR, missing))
}

fn wrong(name: &str, wanted: &str) -> Failure {
    Failure::new(codes::INVALID_INPUT, format!("{name} has to be {wanted}"))
}

fn text<'a>(params: &'a Params, name: &str) -> Result<&'a str, Failure> {
    params.get(name).and_then(Value::as_str).ok_or_else(|| wrong(name, "a string"))
}

fn text_if<'a>(params: &'a Params, name: &str) -> Result<Option<&'a str>, Failure> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(_) => text(params, name).map(Some),
    }
}

fn number_if(params: &Params, name: &str) -> Result<Option<f64>, Failure> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64()),
        Some(_) => Err(wrong(name, "a number")),
    }
}

fn count_if(params: &Params, name: &str) -> Result<Option<u64>, Failure> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(number) => number.as_u64().map(Some).ok_or_else(|| wrong(name, "a whole number that is not negative")),
    }
}

/// A sandbox's error, as the tool's own failure.
fn failed(error: impl Reason) -> Failure {
    Failure::new(codes::EXECUTION_ERROR, error)
}

/// The sandbox of a tool that needs one. Without one, its session has another configuration.
fn handle(handle: Option<&SandboxHandle>) -> Result<&SandboxHandle, Failure> {
    handle.ok_or_else(|| Failure::new(codes::RESOURCE_NOT_INITIALIZED, "the session has no sandbox"))
}

/// The timeout of a command in seconds: the requested one, but not longer than the client waits.
fn seconds(wanted: f64, deadline: Option<Instant>) -> f64 {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let most = left.map_or(f64::INFINITY, |left| left.as_secs_f64());
    let longest = Duration::from_secs(86_400).as_secs_f64();
    wanted.min(most).clamp(0.001, longest)
}

/// A word quoted for a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
