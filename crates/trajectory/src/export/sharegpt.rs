//! `sharegpt`: `{conversations, tools}`, a line for each branch. Turns are `function_call` and `observation`, as trainers of
//! function calls read them. Turns of `system`, `human`, and `gpt` are there if calls of a model were recorded.
//!
//! `value` of a call is `{"name", "arguments"}` in a string, and `tools` is a list in a string.

use serde::Serialize;
use serde_json::{Map, Value};

use super::call::{Names, tool};
use super::conversation::{ChatMessage, Conversations, Role, Transcript};
use super::messages::{Described, bounded, end};
use super::shown::{TEXT, shown};
use super::source::Source;
use super::tree::Tree;
use super::writer::Writer;
use crate::TrajectoryError;

#[derive(Serialize)]
struct Message<'a> {
    from: &'a str,
    value: String,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a Map<String, Value>,
}

pub(super) fn write(source: &mut Source<'_>, tree: &Tree, out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    if tree.has_models() {
        return conversations(source, tree, out);
    }
    for leaf in tree.leaves(source.trajectory())? {
        out.raw("{\"id\":")?;
        out.json(&format!("{}-{}", source.trajectory(), tree.number(leaf)))?;
        out.raw(",\"conversations\":[")?;
        let (mut first, mut names) = (true, Names::default());
        for step in tree.path(leaf) {
            let Some(call) = source.call(step)? else { continue };
            let name = names.name_for(&tool(&call.step.action));
            let function = out.text(&Function { name: &name, arguments: &call.arguments })?;
            out.item(&mut first, &Message { from: "function_call", value: function })?;
            out.item(&mut first, &Message { from: "observation", value: shown(&call, TEXT) })?;
        }
        let tools: Vec<Described<'_>> = names.all().map(Described::new).collect();
        out.raw("],\"tools\":")?;
        let tools = out.text(&tools)?;
        out.json(&tools)?;
        end(source, tree.path(leaf), out)?;
    }
    Ok(())
}

/// A line for each conversation with a model. Each function call is followed by its observation.
fn conversations(source: &mut Source<'_>, tree: &Tree, out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    let all = Conversations::read(source, tree)?;
    for leaf in bounded(all.leaves(), source.trajectory())? {
        let Transcript { messages, tools, .. } = all.transcript(source, leaf)?;
        out.raw("{\"id\":")?;
        out.json(&format!("{}-{}", source.trajectory(), leaf.step))?;
        out.raw(",\"conversations\":[")?;
        let mut first = true;
        for (at, message) in messages.iter().enumerate() {
            let from = match message.role {
                Role::System => "system",
                Role::User => "human",
                Role::Assistant => "gpt",
                Role::Tool if is_answered(&messages[..at], message) => continue,
                Role::Tool => "observation",
            };
            let text = message.text.clone().unwrap_or_default();
            if message.calls.is_empty() || !text.is_empty() {
                out.item(&mut first, &Message { from, value: text })?;
            }
            for call in &message.calls {
                let function = out.text(&Function { name: &call.name, arguments: &call.object() })?;
                out.item(&mut first, &Message { from: "function_call", value: function })?;
                let result = results(&messages[at + 1..]).find(|result| result.call_id.as_ref() == Some(&call.id));
                let value = result.and_then(|result| result.text.clone()).unwrap_or_default();
                out.item(&mut first, &Message { from: "observation", value })?;
            }
        }
        let functions: Vec<_> = tools.iter().filter_map(|tool| tool.get("function")).collect();
        out.raw("],\"tools\":")?;
        let functions = out.text(&functions)?;
        out.json(&functions)?;
        end(source, all.steps_to(leaf), out)?;
    }
    Ok(())
}

/// Results right after a message with calls.
fn results(messages: &[ChatMessage]) -> impl Iterator<Item = &ChatMessage> {
    messages.iter().take_while(|message| message.role == Role::Tool)
}

/// Whether a result was written with its call.
fn is_answered(before: &[ChatMessage], result: &ChatMessage) -> bool {
    let caller = before.iter().rev().find(|message| message.role != Role::Tool);
    caller.is_some_and(|caller| caller.calls.iter().any(|call| Some(&call.id) == result.call_id.as_ref()))
}
