//! The steps of a trajectory with calls of models: messages of the system and the user, each once, and turns of the agent with
//! what the model said and what its tool calls returned.
//!
//! A recorded step that carried out a tool call of a model is part of the turn, and not a step itself.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{CalledStep, Metrics, Observation, ObservationResult, Step, ToolCall, Totals, metrics, step};
use crate::export::call::{ExportedCall, iso, tool};
use crate::export::conversation::{ChatAnswer, ChatCall, ChatMessage, Conversations, ModelTurn, Role, answer_of, request};
use crate::export::source::Source;
use crate::export::tree::Tree;
use crate::export::writer::Writer;
use crate::{ModelStep, TrajectoryError};

/// A message that was in a request and is no turn of the agent.
#[derive(Serialize)]
struct GivenMessage<'a> {
    step_id: u64,
    timestamp: &'a str,
    source: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_copied_context: Option<bool>,
    extra: Value,
}

pub(super) fn write(
    source: &mut Source<'_>,
    tree: &Tree,
    totals: &mut Totals,
    out: &mut Writer<'_>,
) -> Result<(), TrajectoryError> {
    let all = Conversations::read(source, tree)?;
    let annotations = source.annotations();
    let (mut first, mut place) = (true, 0);
    for number in tree.all_numbers() {
        if all.is_claimed(number) {
            continue;
        }
        let turn = all.turn(number);
        let called = match turn {
            Some(turn) => results(&all, source, turn)?,
            None => Vec::new(),
        };
        let Some(call) = source.call(number)? else { continue };
        let Some(turn) = turn else {
            if !call.is_model() {
                place += 1;
                let metrics = metrics(&call);
                totals.add(metrics.as_ref());
                out.item(&mut first, &step(&call, (place, place - 1), (metrics, annotations.of_step(number))))?;
            }
            continue;
        };
        let started = iso(call.step.started_at);
        let messages = request(&call.arguments).messages;
        for message in turn.fresh.iter().filter_map(|at| messages.get(*at)) {
            place += 1;
            totals.add(None);
            out.item(&mut first, &given(message, (place, &started), number))?;
        }
        place += 1;
        let answer = answer_of(&call);
        let metrics = answer.as_ref().map(|answer| metrics_of(call.step.model.as_ref(), answer));
        totals.add(metrics.as_ref());
        let about = step(&call, (place, place - 1), (metrics, annotations.of_step(number)));
        out.item(&mut first, &spoken(&call, answer.as_ref(), called, about))?;
    }
    Ok(())
}

fn given<'a>(message: &'a ChatMessage, (step_id, timestamp): (u64, &'a str), number: u64) -> GivenMessage<'a> {
    let (source, is_copied) = match message.role {
        Role::System => ("system", false),
        Role::User => ("user", false),
        // From before the record, or made by the client.
        Role::Assistant => ("agent", true),
        Role::Tool => ("user", true),
    };
    GivenMessage {
        step_id,
        timestamp,
        source,
        message: message.text.as_deref().unwrap_or_default(),
        tool_calls: tool_calls(message),
        is_copied_context: is_copied.then_some(true),
        extra: json!({ "in_request": number }),
    }
}

fn tool_calls(message: &ChatMessage) -> Vec<ToolCall<'_>> {
    let called = |call: &ChatCall| ToolCall {
        tool_call_id: call.id.clone(),
        function_name: call.name.clone(),
        arguments: Cow::Owned(call.object()),
    };
    message.calls.iter().map(called).collect()
}

/// The results of a turn's tool calls, with the steps that carried them out.
fn results<'a>(
    all: &Conversations,
    source: &mut Source<'a>,
    turn: &ModelTurn,
) -> Result<Vec<ObservationResult<'a>>, TrajectoryError> {
    let annotations = source.annotations();
    let mut steps = HashMap::new();
    for (id, number) in turn.steps_of_calls() {
        if let Some(call) = source.call(number)? {
            let step = call.step;
            let called = CalledStep {
                recorded_as: number,
                tool: Cow::Owned(tool(&step.action)),
                outcome: step.outcome,
                result: step.result.clone(),
                class: step.class,
                state: step.state.clone(),
                duration_ms: step.duration_ms,
                annotations: annotations.of_step(number),
            };
            steps.insert(id.to_owned(), called);
        }
    }
    let results = all.results(source, turn, false)?.into_iter();
    Ok(results.map(|(id, content)| ObservationResult { extra: steps.remove(&id), source_call_id: id, content }).collect())
}

fn spoken<'a>(
    call: &'a ExportedCall<'_>,
    answer: Option<&'a ChatAnswer>,
    results: Vec<ObservationResult<'a>>,
    about: Step<'a>,
) -> Step<'a> {
    let message = answer.map(|answer| &answer.message);
    Step {
        model_name: call.step.model.as_ref().map(|model| model.model.as_str()),
        message: message.and_then(|message| message.text.as_deref()).unwrap_or_default(),
        reasoning_content: message.and_then(|message| message.reasoning.as_deref()),
        tool_calls: message.map(tool_calls).unwrap_or_default(),
        observation: (!results.is_empty()).then_some(Observation { results }),
        ..about
    }
}

fn metrics_of(model: Option<&ModelStep>, answer: &ChatAnswer) -> Metrics {
    let count = |of: fn(&ModelStep) -> Option<u64>| model.and_then(of).and_then(|count| i64::try_from(count).ok());
    let mut extra = Map::new();
    if let Some(model) = model {
        let fields = [
            ("reasoning_tokens", json!(model.reasoning_tokens)),
            ("estimated", json!(model.estimated.then_some(true))),
            ("first_token_ms", json!(model.first_token_ms)),
            ("finish_reason", json!(model.finish_reason)),
            ("route", json!(model.route)),
        ];
        extra.extend(fields.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value)));
    }
    Metrics {
        prompt_tokens: count(|model| model.prompt_tokens),
        completion_tokens: count(|model| model.completion_tokens),
        cached_tokens: count(|model| model.cached_tokens),
        cost_usd: model.and_then(|model| model.cost_usd),
        prompt_token_ids: answer.prompt_token_ids.clone(),
        completion_token_ids: answer.token_ids.clone(),
        logprobs: answer.logprobs.clone(),
        extra,
    }
}
