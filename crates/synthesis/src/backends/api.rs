//! What tools of APIs have in common: they answer with their result beside what they were called with.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::Params;
use crate::answer::{Failure, Returned, code as codes};

/// Characters of a string, and items of a list or a mapping, that are repeated to the client.
const MAX_CHARACTERS: usize = 500;
const MAX_ITEMS: usize = 10;

/// A tool's failure: its code, and its words.
pub(super) struct Fault {
    code: i64,
    message: String,
    /// Without what the server puts before it.
    details: String,
}

impl Fault {
    /// The tool can't, and says so.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self::with(codes::EXECUTION_ERROR, message)
    }

    pub(super) fn with(code: i64, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, details: message.clone(), message }
    }

    /// It was not called as it has to be, or broke: AgentFlow's server says more of that.
    pub(super) fn internal(details: String) -> Self {
        Self { code: codes::EXECUTION_ERROR, message: format!("Internal system error: {details}"), details }
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

/// What the tool was called with, short enough to be repeated, and without secrets.
fn inputs(params: &Params, worker: &str) -> Map<String, Value> {
    let secret = |name: &str| name.contains("api_key") || name == "config" || name.starts_with("session_") || name == "trace_id";
    let mut inputs: Map<String, Value> =
        params.iter().filter(|(name, _)| !secret(name)).map(|(name, value)| (name.clone(), short(value, true))).collect();
    inputs.insert("worker_id".to_owned(), worker.into());
    inputs
}

fn short(value: &Value, outer: bool) -> Value {
    match value {
        Value::String(text) if text.chars().nth(MAX_CHARACTERS).is_some() => {
            let kept: String = text.chars().take(MAX_CHARACTERS).collect();
            format!("{kept}...[Truncated]").into()
        }
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

/// A text, or several.
pub(super) fn texts(params: &Params, name: &str) -> Result<Vec<String>, Fault> {
    match params.get(name) {
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(items)) if items.iter().all(Value::is_string) => {
            Ok(items.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        _ => Err(Fault::new(format!("{name} has to be a string or a list of strings"))),
    }
}

/// A path of the server's that a client names, kept within the folder that the configuration allows. Links that lead out of
/// it are outside.
pub(super) fn within(root: &Path, given: &str) -> Result<PathBuf, Fault> {
    let outside = || Fault::new(format!("{given:?} is not in the folder of data that the server's configuration names"));
    let root =
        root.canonicalize().map_err(|error| Fault::new(format!("the configured folder of data can't be used: {error}")))?;
    let path = root.join(given).canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Fault::new(format!("there is no {given:?} in the folder of data")),
        _ => outside(),
    })?;
    if path.starts_with(&root) { Ok(path) } else { Err(outside()) }
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

    #[test]
    fn a_path_stays_in_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("data");
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("out")).unwrap();
        assert!(within(&root, "a").is_ok());
        for given in ["..", "/etc", "out", "a/../..", "nothing"] {
            assert!(within(&root, given).is_err(), "{given}");
        }
    }
}
