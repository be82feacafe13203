//! `agentflow-synthesis`: one tree of nodes as AgentFlow's sampler writes it.
//!
//! The root is the state before the first step, without an action, at depth 0. `observation` is the text that a model sees.
//! `intent` and `seed_data` are empty, because the server never sees them.

use arenite_model::Annotation;
use serde::Serialize;
use serde_json::{Map, Value};

use super::call::tool;
use super::shown::{AGENTFLOW_TEXT, shown};
use super::source::Source;
use super::tree::Tree;
use super::writer::Writer;
use crate::{FailureClass, TrajectoryError};

#[derive(Serialize)]
struct Head<'a> {
    trajectory_id: &'a str,
    source_id: &'a str,
    seed_data: &'a str,
    total_depth: u32,
}

#[derive(Serialize)]
struct Node<'a> {
    node_id: String,
    observation: String,
    intent: &'a str,
    action: Option<Action<'a>>,
    parent_id: Option<String>,
    children_ids: Vec<String>,
    depth: u32,
    /// Arenite's: `unknown` for a step without an answer; AgentFlow's readers ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a str>,
    /// Arenite's: the exit code or the error of a failed call.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    /// Arenite's: the side at fault for a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<FailureClass>,
    /// Arenite's, too; the root has those of the whole trajectory.
    #[serde(skip_serializing_if = "<[Annotation]>::is_empty")]
    annotations: &'a [Annotation],
}

#[derive(Serialize)]
struct Action<'a> {
    tool_name: String,
    parameters: &'a Map<String, Value>,
}

pub(super) fn write(source: &mut Source<'_>, tree: &Tree, out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    let (trajectory_id, annotations) = (source.trajectory(), source.annotations());
    let total_depth = (1..=tree.steps()).map(|step| tree.depth(step)).max().unwrap_or(0);
    out.raw("{")?;
    out.fields(&Head { trajectory_id, source_id: tree.about.task(trajectory_id), seed_data: "", total_depth })?;
    out.raw(",\"nodes\":[")?;
    let mut first = true;
    let root = Node {
        node_id: id(0),
        observation: String::new(),
        intent: "",
        action: None,
        parent_id: None,
        children_ids: tree.children(0).map(|child| id(tree.number(child))).collect(),
        depth: 0,
        outcome: None,
        failed: None,
        class: None,
        annotations: annotations.of_all(),
    };
    out.item(&mut first, &root)?;
    for (place, number) in tree.numbers() {
        let Some(call) = source.call(number)? else { continue };
        let node = Node {
            node_id: id(number),
            observation: shown(&call, AGENTFLOW_TEXT),
            intent: "",
            action: Some(Action { tool_name: tool(&call.step.action), parameters: &call.arguments }),
            parent_id: Some(id(tree.number(tree.parent(place)))),
            children_ids: tree.children(place).map(|child| id(tree.number(child))).collect(),
            depth: tree.depth(place),
            outcome: call.unknown().map(|_| "unknown"),
            failed: call.error().filter(|_| call.success() == Some(false)),
            class: call.step.class,
            annotations: annotations.of_step(number),
        };
        out.item(&mut first, &node)?;
    }
    out.raw("]}\n")
}

fn id(step: u64) -> String {
    match step {
        0 => "root".to_owned(),
        step => format!("step-{step}"),
    }
}
