//! Shared code for tools of APIs: they return their result together with their inputs.

use serde_json::{Map, Value, json};

use super::Params;
use crate::answer::{Failure, Returned, code as codes, truncated};

/// Longest string, in characters, and longest list or mapping, in items, that is repeated to the client.
const MAX_CHARACTERS: usize = 500;
const MAX_ITEMS: usize = 10;

/// A tool's failure: its code and its message.
pub(super) struct Fault {
    code: i64,
    message: String,
    /// Without the server's prefix.
    details: String,
}

impl Fault {
    /// A failure that the tool itself reports.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self::with(codes::EXECUTION_ERROR, message)
    }

    pub(super) fn with(code: i64, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, details: message.clone(), message }
    }

    /// Invalid arguments or an internal error: AgentFlow's server adds details to these.
    pub(super) fn internal(details: impl Into<String>) -> Self {
        let details = details.into();
        Self { code: codes::EXECUTION_ERROR, message: format!("Internal system error: {details}"), details }
    }
}

/// A task that panicked or was dropped.
impl From<tokio::task::JoinError> for Fault {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::internal(error.to_string())
    }
}

/// The answer of an API's tool.
pub(super) fn answer(params: &Params, worker: &str, result: Result<Value, Fault>) -> Result<Returned, Failure> {
    let inputs = inputs(params, worker);
    match result {
        Ok(Value::Object(mut data)) if data.contains_key("result") => {
            data.insert("inputs".to_owned(), inputs.into());
            Ok(Returned::Data(data.into()))
        }
        Ok(result) => Ok(Returned::Data(json!({ "result": result, "inputs": inputs }))),
        Err(fault) => {
            let data = json!({ "inputs": inputs, "details": fault.details });
            Err(Failure::new(fault.code, fault.message).with(data))
        }
    }
}

/// The tool's inputs, shortened for repetition, and without secrets.
fn inputs(params: &Params, worker: &str) -> Map<String, Value> {
    let secret = |name: &str| name.contains("api_key") || name == "config" || name.starts_with("session_") || name == "trace_id";
    let mut inputs: Map<String, Value> =
        params.iter().filter(|(name, _)| !secret(name)).map(|(name, value)| (name.clone(), short(value, true))).collect();
    inputs.insert("worker_id".to_owned(), worker.into());
    inputs
}

fn short(value: &Value, outer: bool) -> Value {
    match value {
        Value::String(text) => truncated(text, MAX_CHARACTERS).into(),
        Value::Array(items) if items.len() > MAX_ITEMS => format!("List(len={})", items.len()).into(),
        Value::Object(items) if items.len() > MAX_ITEMS => format!("Dict(len={})", items.len()).into(),
        Value::Array(items) if outer => items.iter().map(|item| short(item, false)).collect(),
        Value::Object(items) if outer => {
            items.iter().map(|(name, item)| (name.clone(), short(item, false))).collect::<Map<_, _>>().into()
        }
        Value::Array(_) | Value::Object(_) => value.to_string().into(),
        other => other.clone(),
    }
}

/// A text, or several. Numbers, such as those of sections, become text.
pub(super) fn texts(params: &Params, name: &str) -> Result<Vec<String>, Fault> {
    let wrong = || Fault::new(format!("{name} has to be a string or a list of strings"));
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match params.get(name) {
        Some(Value::Array(items)) => {
            let texts: Option<Vec<String>> = items.iter().map(text).collect();
            texts.ok_or_else(wrong)
        }
        given => given.and_then(text).map(|text| vec![text]).ok_or_else(wrong),
    }
}

/// A whole number, also as text; none if it is missing or null.
pub(super) fn integer(params: &Map<String, Value>, name: &str) -> Result<Option<i64>, Fault> {
    let wrong = || Fault::internal(format!("{name} has to be a whole number"));
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => text.trim().parse().map(Some).map_err(|_| wrong()),
        Some(Value::Number(number)) => {
            let whole = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15);
            number.as_i64().or(whole.map(|number| number as i64)).map(Some).ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_is_short_and_holds_no_secret() {
        let params = json!({
            "query": "x".repeat(600), "serper_api_key": "s", "trace_id": "t", "session_id": "s", "many": vec![0; 11],
            "nested": {"a": [1], "b": 2},
        });
        let told = inputs(params.as_object().unwrap(), "w");
        assert_eq!(told["query"], format!("{}...[Truncated]", "x".repeat(500)));
        assert_eq!(Value::Object(told.clone())["many"], "List(len=11)");
        assert_eq!(told["nested"], json!({"a": "[1]", "b": 2}));
        assert_eq!(told.keys().collect::<Vec<_>>(), ["many", "nested", "query", "worker_id"]);
    }
}
