//! The server's records of a worker, and the trajectories built from them.

use std::sync::Arc;

use async_trait::async_trait;
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::server::{Server, ServerReply, encoded};

/// Maximum number of records per worker; a worker has one for each sandbox it used.
const MOST_RECORDS: usize = 64;

/// Why a record is not available.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("the server has no records of workers")]
    Unknown,
    #[error("the server's record of {worker} could not be read: {why}")]
    Failed { worker: String, why: String },
}

/// A source of workers' steps.
#[async_trait]
pub trait Record: Send + Sync {
    /// The `trajectory` of a worker, in the format of AgentFlow's rollouts; none if the worker made no step.
    async fn trajectory_of(&self, worker: &str) -> Result<Option<Value>, RecordError>;
}

/// The server's records.
#[derive(Debug)]
pub struct ServerRecord {
    server: Arc<Server>,
}

impl ServerRecord {
    pub fn new(server: Arc<Server>) -> Self {
        Self { server }
    }

    async fn get(&self, worker: &str, path: &str) -> Result<bytes::Bytes, RecordError> {
        let failed = |why: String| RecordError::Failed { worker: worker.to_owned(), why };
        match self.server.get(path).await {
            ServerReply::Response(status, body) if status.is_success() => Ok(body),
            ServerReply::Response(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED, _) => {
                Err(RecordError::Unknown)
            }
            ServerReply::Response(status, _) => Err(failed(format!("the server answered {status}"))),
            ServerReply::Unreachable => Err(failed("no server answers".into())),
            ServerReply::Broken => Err(failed("the server's answer broke off, is too long, or did not come in time".into())),
        }
    }
}

#[async_trait]
impl Record for ServerRecord {
    async fn trajectory_of(&self, worker: &str) -> Result<Option<Value>, RecordError> {
        let not_understood = |error: serde_json::Error| RecordError::Failed { worker: worker.to_owned(), why: error.to_string() };
        let list = self.get(worker, &format!("/api/v1/trajectories?worker={}", encoded(worker))).await?;
        let list: Value = serde_json::from_slice(&list).map_err(not_understood)?;
        let list = list.get("trajectories").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        // A server that ignores the filter answers with all workers' records.
        let is_another = |known: &Value| known.get("worker_id").or(known.get("worker")).is_some_and(|w| w != worker);
        let mut whole: Option<Value> = None;
        let (mut listed, mut exported) = (0, 0);
        for known in list.iter().filter(|known| !is_another(known)).take(MOST_RECORDS) {
            listed += 1;
            let Some(id) = known.get("trajectory").and_then(Value::as_str) else { continue };
            let path = format!("/api/v1/trajectories/{}/export?format=agentflow-rollout", encoded(id));
            let body = match self.get(worker, &path).await {
                // It was removed in the meantime, or there are no such exports.
                Err(RecordError::Unknown) => continue,
                body => body?,
            };
            exported += 1;
            // One line per branch; the last one leads to the agent's last step.
            if let Some(found) = documents(&body).map_err(not_understood)?.pop() {
                whole = Some(match whole {
                    Some(earlier) => joined(earlier, found),
                    None => found,
                });
            }
        }
        if listed > 0 && exported == 0 { Err(RecordError::Unknown) } else { Ok(whole) }
    }
}

/// The trajectories of an export: one JSON document, or one per line, with or without the line's envelope.
fn documents(body: &[u8]) -> Result<Vec<Value>, serde_json::Error> {
    let values = serde_json::Deserializer::from_slice(body).into_iter::<Value>().collect::<Result<Vec<_>, _>>()?;
    let one = |value: Value| match value {
        Value::Object(mut fields) => Some(fields.remove("trajectory").filter(Value::is_object).unwrap_or(Value::Object(fields))),
        _ => None,
    };
    let flat = values.into_iter().flat_map(|value| match value {
        Value::Array(items) => items,
        value => vec![value],
    });
    Ok(flat.filter_map(one).collect())
}

/// Joins two records of one worker, the later after the earlier.
fn joined(mut earlier: Value, later: Value) -> Value {
    for name in ["tool_calls", "messages"] {
        let more = later.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        match earlier.get_mut(name).and_then(Value::as_array_mut) {
            Some(list) => list.extend(more),
            None => earlier[name] = Value::Array(more),
        }
    }
    earlier
}

/// A task's outcome, as the runner knows it.
#[derive(Debug)]
pub(crate) struct Outcome<'a> {
    pub(crate) task_id: &'a str,
    pub(crate) question: String,
    pub(crate) success: bool,
    pub(crate) error: Option<&'a str>,
    pub(crate) result: Option<&'a Value>,
    pub(crate) start_time: String,
    pub(crate) end_time: String,
    pub(crate) execution_time_ms: u64,
}

/// A line of AgentFlow's rollouts. The steps are the server's; outcome and times are the runner's. The messages are those of
/// the agent's result, else those of the model if the server recorded its calls, else question, calls and answer.
pub(crate) fn line(outcome: &Outcome<'_>, recorded: Option<&Value>) -> Value {
    let in_result = |name: &str| outcome.result.and_then(|result| result.get(name));
    let list = |value: Option<&Value>| value.and_then(Value::as_array).filter(|list| !list.is_empty()).cloned();
    let calls: Vec<Value> =
        list(recorded.and_then(|r| r.get("tool_calls"))).unwrap_or_default().into_iter().map(whole_call).collect();
    let answer = final_answer(outcome.result);
    // Only then, the server knows the question.
    let conversation = recorded.filter(|recorded| recorded.get("question").is_some_and(Value::is_string));
    let said = || list(conversation.and_then(|recorded| recorded.get("messages")));
    let messages = list(in_result("messages")).or_else(said).unwrap_or_else(|| {
        let mut messages = vec![json!({"role": "user", "content": outcome.question})];
        // The server recorded the calls between question and answer.
        messages.extend(list(recorded.and_then(|r| r.get("messages"))).unwrap_or_default());
        if !answer.is_empty() {
            messages.push(json!({"role": "assistant", "content": answer}));
        }
        messages
    });
    let turns = in_result("total_turns").and_then(Value::as_u64);
    let turns = turns
        .unwrap_or_else(|| messages.iter().filter(|m| m.get("role").and_then(Value::as_str) == Some("assistant")).count() as u64);
    let trajectory = json!({
        "task_id": outcome.task_id,
        "question": outcome.question,
        "messages": messages,
        "tool_calls": calls,
        "final_answer": answer,
        "total_turns": turns,
        "success": outcome.success,
        "error": outcome.error,
        "start_time": outcome.start_time,
        "end_time": outcome.end_time,
        "execution_time_ms": outcome.execution_time_ms as f64,
    });
    let mut line = json!({"task_id": outcome.task_id, "success": outcome.success, "trajectory": trajectory});
    if let Some(error) = outcome.error {
        line["error"] = json!(error);
    }
    line
}

/// A call with all of its fields: table readers need them in every row.
fn whole_call(call: Value) -> Value {
    let mut whole = Map::new();
    let mut fields = match call {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let defaults = [
        ("tool_name", json!("")),
        ("parameters", json!({})),
        ("result", Value::Null),
        ("success", json!(true)),
        ("error", Value::Null),
        ("execution_time_ms", json!(0.0)),
    ];
    for (name, default) in defaults {
        whole.insert(name.to_owned(), fields.remove(name).unwrap_or(default));
    }
    whole.extend(fields);
    Value::Object(whole)
}

fn final_answer(result: Option<&Value>) -> String {
    let named = result.and_then(|r| ["final_answer", "answer", "output"].iter().find_map(|name| r.get(*name)));
    match named.or(result) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_understood_framed_and_plain_and_several_become_one() {
        let framed = br#"{"task_id": "x", "success": true, "trajectory": {"tool_calls": [{"tool_name": "a"}]}}
            {"tool_calls": [{"tool_name": "b"}], "messages": [{"role": "user"}]}"#;
        let found = documents(framed).unwrap();
        let whole = found.into_iter().reduce(joined).unwrap();
        assert_eq!(whole["tool_calls"], json!([{"tool_name": "a"}, {"tool_name": "b"}]));
        assert_eq!(whole["messages"], json!([{"role": "user"}]));
        assert!(documents(b"").unwrap().is_empty());
        assert!(documents(b"<html>").is_err());
    }

    #[test]
    fn a_line_has_every_field_with_and_without_a_record() {
        let result = json!({"answer": 42, "total_turns": 3});
        let outcome = Outcome {
            task_id: "t",
            question: "q".into(),
            success: true,
            error: None,
            result: Some(&result),
            start_time: "s".into(),
            end_time: "e".into(),
            execution_time_ms: 5,
        };
        let line = super::line(&outcome, Some(&json!({"tool_calls": [{"tool_name": "bash:run", "success": false}]})));
        assert_eq!(line["trajectory"]["tool_calls"][0]["execution_time_ms"], json!(0.0));
        assert_eq!(line["trajectory"]["tool_calls"][0]["success"], json!(false));
        assert_eq!((&line["trajectory"]["final_answer"], &line["trajectory"]["total_turns"]), (&json!("42"), &json!(3)));
        assert!(line.get("error").is_none());
        let line = super::line(&Outcome { error: Some("no"), result: None, ..outcome }, None);
        assert_eq!(line["trajectory"]["messages"], json!([{"role": "user", "content": "q"}]));
        assert_eq!(line["error"], json!("no"));
    }
}
