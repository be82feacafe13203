//! `agentflow-rollout`: `{task_id, trajectory: {…}, success, error}` as AgentFlow's rollout writes it, a line for each branch.
//!
//! `success` means that every call was answered, even with a tool's error; it says nothing about the task. `messages`, `question`,
//! and `final_answer` are those of the longest conversation with a model. If no call of one was recorded, the last two are null
//! and the messages are the calls of tools. `execution_time_ms` of a call is the server's.

use arenite_model::Annotation;
use serde::Serialize;
use serde_json::{Map, Value};

use super::call::{ExportedCall, Names, iso, tool};
use super::conversation::{Conversations, Role, Transcript, openai};
use super::shown::AGENTFLOW_TEXT;
use super::source::Source;
use super::tree::{Fate, Tree};
use super::writer::Writer;
use crate::{FailureClass, TrajectoryError};

#[derive(Serialize)]
struct ToolCall<'a> {
    tool_name: &'a str,
    parameters: &'a Map<String, Value>,
    result: Value,
    success: Option<bool>,
    error: Option<String>,
    /// Arenite's: the side at fault for a failure; AgentFlow's readers ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<FailureClass>,
    execution_time_ms: Option<f64>,
    /// Arenite's, likewise.
    #[serde(skip_serializing_if = "<[Annotation]>::is_empty")]
    annotations: &'a [Annotation],
}

#[derive(Serialize)]
struct End<'a> {
    final_answer: Option<&'a str>,
    total_turns: usize,
    success: Option<bool>,
    error: &'a Option<String>,
    start_time: Option<String>,
    end_time: Option<String>,
    execution_time_ms: Option<f64>,
}

pub(super) fn write(source: &mut Source<'_>, tree: &Tree, out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    let conversation = if tree.has_models() { longest(source, tree)? } else { None };
    let leaves = tree.leaves(source.trajectory())?;
    if leaves.is_empty() && conversation.is_some() {
        return branch(source, tree, (&[], conversation.as_ref()), out);
    }
    for leaf in leaves {
        branch(source, tree, (&tree.path(leaf), conversation.as_ref()), out)?;
    }
    Ok(())
}

/// The conversation with the most answers of the model, and of these the last one.
fn longest(source: &mut Source<'_>, tree: &Tree) -> Result<Option<Transcript>, TrajectoryError> {
    let all = Conversations::read(source, tree)?;
    let leaf = all.leaves().into_iter().max_by_key(|turn| all.turns_to(turn));
    leaf.map(|leaf| all.transcript(source, leaf)).transpose()
}

fn branch(
    source: &mut Source<'_>,
    tree: &Tree,
    (path, conversation): (&[u64], Option<&Transcript>),
    out: &mut Writer<'_>,
) -> Result<(), TrajectoryError> {
    let annotations = source.annotations();
    let task = tree.about.task(source.trajectory());
    let said = |role: Role| conversation.iter().flat_map(|all| &all.messages).filter(move |message| message.role == role);
    let question = said(Role::User).next().and_then(|message| message.text.as_deref());
    let last = conversation.and_then(|all| all.messages.last()).filter(|last| last.role == Role::Assistant);
    let final_answer = last.filter(|last| last.calls.is_empty()).and_then(|last| last.text.as_deref());
    out.raw("{\"task_id\":")?;
    out.json(&task)?;
    out.raw(",\"trajectory\":{\"task_id\":")?;
    out.json(&task)?;
    out.raw(",\"question\":")?;
    out.json(&question)?;
    out.raw(",\"messages\":[")?;
    let (mut first, mut names, mut fate) = (true, Names::default(), Fate::default());
    for step in path {
        let Some(call) = source.call(*step)? else { continue };
        fate.add(call.step);
        if conversation.is_some() {
            continue;
        }
        for message in super::messages::pair(&call, &mut names, AGENTFLOW_TEXT, true) {
            out.item(&mut first, &message)?;
        }
    }
    for message in conversation.iter().flat_map(|all| &all.messages) {
        out.item(&mut first, &openai(message))?;
    }
    out.raw("],\"tool_calls\":[")?;
    first = true;
    for step in path {
        let Some(call) = source.call(*step)? else { continue };
        let annotations = annotations.of_step(*step);
        out.item(&mut first, &told(&call, &tool(&call.step.action), annotations))?;
    }
    out.raw("],")?;
    let success = fate.success();
    let end = End {
        final_answer,
        total_turns: conversation.map_or(path.len(), |all| all.turns),
        success,
        error: &fate.error,
        start_time: fate.first_at.map(iso),
        end_time: fate.last_at.map(iso),
        execution_time_ms: fate.milliseconds(),
    };
    out.fields(&end)?;
    out.raw("},\"success\":")?;
    out.json(&success)?;
    out.raw(",\"error\":")?;
    out.json(&fate.error)?;
    if !annotations.of_all().is_empty() {
        out.raw(",\"annotations\":")?;
        out.json(&annotations.of_all())?;
    }
    out.raw("}\n")
}

fn told<'a>(call: &'a ExportedCall<'_>, tool_name: &'a str, annotations: &'a [Annotation]) -> ToolCall<'a> {
    ToolCall {
        tool_name,
        parameters: &call.arguments,
        result: call.result(),
        success: call.success(),
        error: call.error(),
        class: call.step.class,
        execution_time_ms: call.step.duration_ms,
        annotations,
    }
}
