//! `agentflow-rollout`: `{task_id, trajectory: {…}, success, error}` as AgentFlow's rollout writes it, a line for each branch.
//!
//! `success` means that every call was answered, even with a tool's error; it says nothing about the task. `question` and
//! `final_answer` are null. `execution_time_ms` of a call is the server's.

use serde::Serialize;
use serde_json::{Map, Value};

use super::call::{ExportedCall, Names, iso, tool};
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
    for leaf in tree.leaves(source.trajectory())? {
        branch(source, tree, &tree.path(leaf), out)?;
    }
    Ok(())
}

fn branch(source: &mut Source<'_>, tree: &Tree, path: &[u64], out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    let task = tree.about.task(source.trajectory());
    out.raw("{\"task_id\":")?;
    out.json(&task)?;
    out.raw(",\"trajectory\":{\"task_id\":")?;
    out.json(&task)?;
    out.raw(",\"question\":null,\"messages\":[")?;
    let (mut first, mut names, mut fate) = (true, Names::default(), Fate::default());
    for step in path {
        let Some(call) = source.call(*step)? else { continue };
        fate.add(call.step);
        for message in super::messages::pair(&call, &mut names, AGENTFLOW_TEXT, true) {
            out.item(&mut first, &message)?;
        }
    }
    out.raw("],\"tool_calls\":[")?;
    first = true;
    for step in path {
        let Some(call) = source.call(*step)? else { continue };
        out.item(&mut first, &told(&call, &tool(&call.step.action)))?;
    }
    out.raw("],")?;
    let success = fate.success();
    let end = End {
        final_answer: None,
        total_turns: path.len(),
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
    out.raw("}\n")
}

fn told<'a>(call: &'a ExportedCall<'_>, tool_name: &'a str) -> ToolCall<'a> {
    ToolCall {
        tool_name,
        parameters: &call.arguments,
        result: call.result(),
        success: call.success(),
        error: call.error(),
        class: call.step.class,
        execution_time_ms: call.step.duration_ms,
    }
}
