//! `atif`: one document of the Agent Trajectory Interchange Format, version 1.7.
//!
//! Each recorded step is one step of the agent with one tool call, numbered from 1 among those of the export. The message is
//! empty, unless calls of a model were recorded ([`turns`]). Of the agent only its worker's name is known. A call without an answer has no observation; its `extra` says so.
//! Branches stand in the order of their creation, with `extra.parent`, and `notes` say so.

mod turns;

use std::borrow::Cow;

use arenite_model::Annotation;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::call::{ExportedCall, iso, tool};
use super::shown::{TEXT, shown};
use super::source::Source;
use super::tree::Tree;
use super::writer::Writer;
use crate::{FailureClass, Origin, OutcomeKind, StepResult, StepState, TrajectoryError};

const UNKNOWN: &str = "unknown";

#[derive(Serialize)]
struct Head<'a> {
    schema_version: &'static str,
    session_id: &'a str,
    trajectory_id: &'a str,
    agent: Agent<'a>,
}

#[derive(Serialize)]
struct Agent<'a> {
    name: &'a str,
    version: &'static str,
}

#[derive(Serialize)]
struct Step<'a> {
    step_id: u64,
    timestamp: String,
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_name: Option<&'a str>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observation: Option<Observation<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<Metrics>,
    extra: Extra<'a>,
}

#[derive(Serialize)]
struct ToolCall<'a> {
    tool_call_id: String,
    function_name: String,
    arguments: Cow<'a, Map<String, Value>>,
}

#[derive(Serialize)]
struct Observation<'a> {
    results: Vec<ObservationResult<'a>>,
}

#[derive(Serialize)]
struct ObservationResult<'a> {
    source_call_id: String,
    content: String,
    /// Of a model's tool call that a recorded step carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<CalledStep<'a>>,
}

/// The step that carried out a tool call of a model.
#[derive(Serialize)]
struct CalledStep<'a> {
    recorded_as: u64,
    tool: Cow<'a, str>,
    outcome: Option<OutcomeKind>,
    result: Option<StepResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<FailureClass>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StepState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<f64>,
    #[serde(skip_serializing_if = "<[Annotation]>::is_empty")]
    annotations: &'a [Annotation],
}

#[derive(Serialize)]
struct Extra<'a> {
    dialect: &'a str,
    outcome: Option<OutcomeKind>,
    result: Option<&'a StepResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<FailureClass>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a StepState>,
    origin: Origin,
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u64>,
    /// The step's own number, where steps are left out before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_as: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Annotation]>::is_empty")]
    annotations: &'a [Annotation],
}

/// Token counts of a client's model. Fields that ATIF does not define are in `extra`.
#[derive(Default, Serialize)]
struct Metrics {
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_token_ids: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    extra: Map<String, Value>,
}

/// Sums over the steps with token counts.
#[derive(Default, Serialize)]
struct Totals {
    #[serde(skip_serializing_if = "Option::is_none")]
    total_prompt_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_completion_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_cached_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_cost_usd: Option<f64>,
    total_steps: u64,
}

pub(super) fn write(source: &mut Source<'_>, tree: &Tree, out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    let (trajectory_id, annotations) = (source.trajectory(), source.annotations());
    let about = &tree.about;
    let head = Head {
        schema_version: "ATIF-v1.7",
        session_id: about.task.as_deref().unwrap_or(trajectory_id),
        trajectory_id,
        agent: Agent { name: about.worker.as_deref().unwrap_or(UNKNOWN), version: UNKNOWN },
    };
    out.raw("{")?;
    out.fields(&head)?;
    out.raw(",\"steps\":[")?;
    let mut totals = Totals::default();
    let mut first = true;
    if tree.has_models() {
        turns::write(source, tree, &mut totals, out)?;
    } else {
        for (place, number) in tree.numbers() {
            let Some(call) = source.call(number)? else { continue };
            let metrics = metrics(&call);
            totals.add(metrics.as_ref());
            let of_step = annotations.of_step(number);
            out.item(&mut first, &step(&call, (place, tree.parent(place)), (metrics, of_step)))?;
        }
    }
    out.raw("],")?;
    let mut notes =
        "Recorded by the sandbox's server: calls of tools and their answers. What the user and the model said is unknown.";
    if tree.has_models() {
        notes = "Recorded by the sandbox's server: calls of models and of tools, and their answers.";
    } else if tree.branches() {
        notes = "Recorded by the sandbox's server: calls of tools and their answers. What the user and the model said is unknown. \
                 The steps are a tree: extra.parent is the step that one goes on from where that is not the one before it, 0 for none.";
    }
    let mut extra = json!({ "sandbox": about.sandbox, "recorder": concat!("arenite ", env!("CARGO_PKG_VERSION")) });
    if !annotations.of_all().is_empty() {
        extra["annotations"] = json!(annotations.of_all());
    }
    out.fields(&json!({ "notes": notes, "final_metrics": totals, "extra": extra }))?;
    out.raw("}\n")
}

fn step<'a>(
    call: &'a ExportedCall<'_>,
    (place, parent): (u64, u64),
    (metrics, annotations): (Option<Metrics>, &'a [Annotation]),
) -> Step<'a> {
    let step = call.step;
    let work = step.work.as_ref();
    let unknown = call.unknown();
    let result = || ObservationResult { source_call_id: call.id(), content: shown(call, TEXT), extra: None };
    let answered = || Observation { results: vec![result()] };
    let arguments = Cow::Borrowed(&call.arguments);
    let called = ToolCall { tool_call_id: call.id(), function_name: tool(&step.action), arguments };
    let waited = |from: jiff::Timestamp| step.started_at.duration_since(from).as_millis_f64().max(0.0);
    Step {
        step_id: place,
        timestamp: iso(step.started_at),
        source: "agent",
        model_name: None,
        message: "",
        reasoning_content: None,
        tool_calls: vec![called],
        observation: unknown.is_none().then(answered),
        metrics,
        extra: Extra {
            dialect: &step.dialect,
            outcome: step.outcome,
            result: step.result.as_ref(),
            class: step.class,
            state: step.state.as_ref(),
            origin: step.origin,
            unknown,
            error: call.error().filter(|_| unknown.is_none()),
            status: step.status,
            duration_ms: step.duration_ms,
            queued_ms: work.map(|work| waited(work.queued_at)),
            parent: (parent + 1 != place).then_some(parent),
            recorded_as: (step.step != place).then_some(step.step),
            trace_id: work.map(|work| work.trace_id.as_str()),
            sandbox: work.and_then(|work| work.sandbox.as_deref()),
            annotations,
        },
    }
}

fn metrics(call: &ExportedCall<'_>) -> Option<Metrics> {
    let raw = call.step.work.as_ref()?.tokens.as_ref()?;
    let mut told = match serde_json::from_str(raw.get()) {
        Ok(Value::Object(fields)) => fields,
        Ok(Value::Null) | Err(_) => return None,
        Ok(other) => Map::from_iter([("tokens".to_owned(), other)]),
    };
    let mut whole = |key: &str| {
        let number = told.get(key)?.as_i64()?;
        told.remove(key);
        Some(number)
    };
    let [prompt_tokens, completion_tokens, cached_tokens] =
        ["prompt_tokens", "completion_tokens", "cached_tokens"].map(&mut whole);
    let cost_usd = told.get("cost_usd").and_then(Value::as_f64);
    if cost_usd.is_some() {
        told.remove("cost_usd");
    }
    Some(Metrics { prompt_tokens, completion_tokens, cached_tokens, cost_usd, extra: told, ..Metrics::default() })
}

impl Totals {
    fn add(&mut self, metrics: Option<&Metrics>) {
        self.total_steps += 1;
        let Some(metrics) = metrics else { return };
        let sum = |total: &mut Option<i64>, more: Option<i64>| {
            if let Some(more) = more {
                *total = Some(total.unwrap_or(0).saturating_add(more));
            }
        };
        sum(&mut self.total_prompt_tokens, metrics.prompt_tokens);
        sum(&mut self.total_completion_tokens, metrics.completion_tokens);
        sum(&mut self.total_cached_tokens, metrics.cached_tokens);
        if let Some(cost) = metrics.cost_usd {
            self.total_cost_usd = Some(self.total_cost_usd.unwrap_or(0.0) + cost);
        }
    }
}
