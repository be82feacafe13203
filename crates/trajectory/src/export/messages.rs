//! `openai-messages`: `{messages, tools, …}`, a line for each branch. Every call is a message of the assistant with one tool
//! call and a message of the tool that answers it.
//!
//! Names of functions are derived from the tools' names; `tools` maps them. The messages of the person and the model are there if
//! its calls were recorded.

use serde::Serialize;
use serde_json::Value;

use super::MAX_BRANCHES;
use super::call::{ExportedCall, Names, tool};
use super::conversation::{Conversations, ModelTurn, Transcript, openai};
use super::shown::{TEXT, shown};
use super::source::Source;
use super::tree::Tree;
use super::writer::Writer;
use crate::TrajectoryError;

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Message {
    Assistant {
        role: &'static str,
        content: Option<&'static str>,
        tool_calls: [ToolCall; 1],
    },
    Tool {
        role: &'static str,
        tool_call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        content: String,
    },
}

#[derive(Serialize)]
pub(super) struct ToolCall {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function,
}

#[derive(Serialize)]
struct Function {
    name: String,
    /// JSON in a string, as in the API.
    arguments: String,
}

/// Describes a function to a model.
#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: Described<'a>,
}

#[derive(Serialize)]
pub(super) struct Described<'a> {
    name: &'a str,
    /// The tool's own name.
    description: &'a str,
    parameters: Value,
}

impl<'a> Described<'a> {
    pub(super) fn new((tool, name): (&'a str, &'a str)) -> Self {
        // Its argument schema was not recorded.
        Self { name, description: tool, parameters: serde_json::json!({ "type": "object" }) }
    }
}

pub(super) fn write(source: &mut Source<'_>, tree: &Tree, out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    if tree.has_models() {
        return conversations(source, tree, out);
    }
    for leaf in tree.leaves(source.trajectory())? {
        out.raw("{\"messages\":[")?;
        let (mut first, mut names) = (true, Names::default());
        for step in tree.path(leaf) {
            let Some(call) = source.call(step)? else { continue };
            for message in pair(&call, &mut names, TEXT, false) {
                out.item(&mut first, &message)?;
            }
        }
        out.raw("],\"tools\":[")?;
        first = true;
        for described in names.all().map(Described::new) {
            out.item(&mut first, &Tool { kind: "function", function: described })?;
        }
        out.raw("],\"parallel_tool_calls\":false")?;
        end(source, tree.path(leaf), out)?;
    }
    Ok(())
}

/// A line for each conversation with a model: what the model saw and answered, with the tools as it got them.
fn conversations(source: &mut Source<'_>, tree: &Tree, out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    let all = Conversations::read(source, tree)?;
    for leaf in bounded(all.leaves(), source.trajectory())? {
        let Transcript { messages, tools, .. } = all.transcript(source, leaf)?;
        let parallel = messages.iter().any(|message| message.calls.len() > 1);
        out.raw("{\"messages\":[")?;
        let mut first = true;
        for message in &messages {
            out.item(&mut first, &openai(message))?;
        }
        out.raw("],")?;
        out.fields(&serde_json::json!({ "tools": tools, "parallel_tool_calls": parallel }))?;
        end(source, all.steps_to(leaf), out)?;
    }
    Ok(())
}

/// Ends a line, with the annotations of its steps.
pub(super) fn end(
    source: &Source<'_>,
    steps: impl IntoIterator<Item = u64>,
    out: &mut Writer<'_>,
) -> Result<(), TrajectoryError> {
    if let Some(metadata) = source.annotations().of_line(steps) {
        out.raw(",\"metadata\":")?;
        out.json(&metadata)?;
    }
    out.raw("}\n")
}

/// Conversations that are written one by one, each with the messages before.
pub(super) fn bounded<'a>(leaves: Vec<&'a ModelTurn>, trajectory: &str) -> Result<Vec<&'a ModelTurn>, TrajectoryError> {
    if leaves.len() > MAX_BRANCHES {
        return Err(TrajectoryError::TooManyBranches { trajectory: trajectory.to_owned(), branches: leaves.len() });
    }
    Ok(leaves)
}

/// A call and its answer. AgentFlow's answer has the function's name, the API's has not.
pub(super) fn pair(call: &ExportedCall<'_>, names: &mut Names, most: usize, named: bool) -> [Message; 2] {
    let name = names.name_for(&tool(&call.step.action));
    let arguments = Value::Object(call.arguments.clone()).to_string();
    let function = Function { name: name.clone(), arguments };
    [
        Message::Assistant {
            role: "assistant",
            content: None,
            tool_calls: [ToolCall { id: call.id(), kind: "function", function }],
        },
        Message::Tool { role: "tool", tool_call_id: call.id(), name: named.then_some(name), content: shown(call, most) },
    ]
}
