//! Scores of tasks: OSWorld's evaluators. Getters read from the VM, and metrics in a separate process judge what was read. The
//! evaluator is a client's and the files are a VM's, and neither may name a file of the server.
//!
//! ```text
//!  postconfig ──► for each function: getter of the result ──► getter of the expected ──► metric ──► and | or ──► score
//! ```

mod getters;
mod scorer;

use std::path::Path;

use serde_json::{Map, Value, json};

use super::driver::VirtualMachine;
use super::setup::{self, Setting};
use crate::answer::{Failure, code as codes};
use crate::error::{SynthesisError, invalid};
use getters::{Found, Getting};
pub(super) use scorer::Scorer;

/// The most metrics of one evaluator.
const MAX_METRICS: usize = 50;
/// Longest value that details repeat, in characters.
const MAX_SHOWN: usize = 1000;
/// The metric for tasks that should be given up.
const INFEASIBLE: &str = "infeasible";

/// One metric and its inputs.
struct Part<'a> {
    func: &'a str,
    result: Option<&'a Value>,
    expected: Option<&'a Value>,
    options: Value,
}

/// Judges a task, and returns `{score, results, details, evaluator}`.
///
/// # Errors
/// 4000 for an invalid evaluator, 5005 for a failure of the VM or of a metric.
pub(super) async fn evaluate(
    vm: &dyn VirtualMachine,
    evaluator: &Value,
    last_action_failed: bool,
    setting: &Setting,
    scorer: &Scorer,
) -> Result<Value, Failure> {
    let refused = |why: SynthesisError| Failure::new(codes::INVALID_INPUT, why);
    let broken = |why: String| Failure::new(codes::UNEXPECTED_ERROR, format!("[VM] Error: {why}"));
    let parts = parts(evaluator).map_err(refused)?;
    let is_or = match evaluator["conj"].as_str() {
        None | Some("and") => false,
        Some("or") => true,
        Some(other) => return Err(refused(invalid(format!("conj is {other:?}, and has to be and or or")))),
    };
    let wants_failure = parts.len() == 1 && parts[0].func == INFEASIBLE;
    let steps = match &evaluator["postconfig"] {
        Value::Null => &[],
        Value::Array(steps) => steps.as_slice(),
        _ => return Err(refused(invalid("postconfig has to be a list of steps"))),
    };
    setup::run(vm, steps, setting).await.map_err(|why| broken(format!("postconfig: {why}")))?;
    if wants_failure || last_action_failed {
        let score = f64::from(u8::from(wants_failure && last_action_failed));
        let reason = if last_action_failed { "the agent gave up" } else { "the agent did not give up" };
        let details = json!([{ "func": parts[0].func, "score": score, "reason": reason }]);
        return Ok(told(score, json!([score]), details, evaluator, last_action_failed));
    }
    let dir = tempfile::tempdir().map_err(|error| broken(format!("no room for what is looked at: {error}")))?;
    let mut getting = Getting::new(vm, setting, dir.path());
    let (mut scores, mut details) = (Vec::new(), Vec::new());
    for (at, part) in parts.iter().enumerate() {
        let (score, detail) = score(&mut getting, scorer, at, part, dir.path()).await.map_err(|wrong| match wrong {
            Wrong::Evaluator(why) => refused(why),
            Wrong::Other(why) => broken(format!("{}: {why}", part.func)),
        })?;
        scores.push(score);
        details.push(detail);
        // The remaining metrics can't change it any more.
        if if is_or { score >= 1.0 } else { score == 0.0 } {
            break;
        }
    }
    let score = match (is_or, scores.last()) {
        (false, Some(last)) if *last == 0.0 => 0.0,
        (false, _) => scores.iter().sum::<f64>() / scores.len() as f64,
        (true, _) => scores.iter().copied().fold(0.0, f64::max),
    };
    Ok(told(score, json!(scores), details.into(), evaluator, false))
}

fn told(score: f64, results: Value, details: Value, evaluator: &Value, last_action_failed: bool) -> Value {
    let mut told = json!({ "score": score, "results": results, "details": details, "evaluator": evaluator });
    if last_action_failed {
        told["last_action_failed"] = true.into();
    }
    told
}

/// Errors of an evaluation.
enum Wrong {
    Evaluator(SynthesisError),
    Other(SynthesisError),
}

async fn score(
    getting: &mut Getting<'_>,
    scorer: &Scorer,
    at: usize,
    part: &Part<'_>,
    dir: &Path,
) -> Result<(f64, Value), Wrong> {
    let result = match part.result {
        Some(config) => getting.get(config, &format!("result-{at}")).await?,
        None => Found::Nothing,
    };
    let expected = match part.expected {
        Some(config) => Some(getting.get(config, &format!("expected-{at}")).await?),
        None => None,
    };
    let judged = scorer.score(part.func, &result, expected.as_ref(), &part.options, dir).await?;
    let mut detail = json!({ "func": part.func, "score": judged.score, "result": shown(&result) });
    if let Some(expected) = &expected {
        detail["expected"] = shown(expected);
    }
    if let Some(reason) = judged.reason {
        detail["reason"] = reason.into();
    }
    Ok((judged.score, detail))
}

/// A getter's result, shortened for repetition.
fn shown(found: &Found) -> Value {
    let value = match found {
        Found::Nothing => Value::Null,
        Found::Value(value) => value.clone(),
        Found::File(name) => json!({ "file": base(name) }),
        Found::Files(names) => names.iter().map(|name| name.as_deref().map(base)).collect::<Vec<_>>().into(),
    };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if text.chars().nth(MAX_SHOWN).is_none() {
        return value;
    }
    text.chars().take(MAX_SHOWN).chain("...".chars()).collect::<String>().into()
}

fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// The metrics of an evaluator, each with its inputs.
fn parts(evaluator: &Value) -> Result<Vec<Part<'_>>, SynthesisError> {
    let given = |name: &str| Some(&evaluator[name]).filter(|value| !is_empty(value));
    let options = |value: Option<&Value>| match value {
        None => Ok(Value::Object(Map::new())),
        Some(Value::Object(options)) => Ok(Value::Object(options.clone())),
        Some(_) => Err(invalid("options have to be objects")),
    };
    let funcs = match &evaluator["func"] {
        Value::String(func) => {
            let only = |name: &str| given(name).filter(|value| value.is_object());
            if ["result", "expected"].into_iter().any(|name| given(name).is_some() && only(name).is_none()) {
                return Err(invalid("result and expected have to be objects, as func is a text"));
            }
            let (result, expected) = (only("result"), only("expected"));
            return Ok(vec![Part { func, result, expected, options: options(given("options"))? }]);
        }
        Value::Array(funcs) if !funcs.is_empty() && funcs.len() <= MAX_METRICS => funcs,
        _ => return Err(invalid(format!("evaluator.func has to be a metric's name, or a list of 1 to {MAX_METRICS}"))),
    };
    let list = |name: &str| match given(name) {
        None => Ok(None),
        Some(Value::Array(list)) if list.len() == funcs.len() => Ok(Some(list)),
        Some(_) => Err(invalid(format!("{name} has to be a list as long as func"))),
    };
    let (results, expecteds, all_options) = (list("result")?, list("expected")?, list("options")?);
    let mut parts = Vec::with_capacity(funcs.len());
    for (at, func) in funcs.iter().enumerate() {
        let func = func.as_str().ok_or_else(|| invalid("func has to be a list of metrics' names"))?;
        let (result, expected) = (one(results, at), one(expecteds, at));
        parts.push(Part { func, result, expected, options: options(one(all_options, at))? });
    }
    Ok(parts)
}

fn one(list: Option<&Vec<Value>>, at: usize) -> Option<&Value> {
    list.and_then(|list| list.get(at)).filter(|value| !is_empty(value))
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests;
