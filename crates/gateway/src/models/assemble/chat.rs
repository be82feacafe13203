//! Chunks of chat completions and of completions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::append;

/// The most choices and tool calls that are put together.
const MOST: u64 = 128;

#[derive(Default)]
pub(super) struct Chat {
    /// Fields of the answer itself.
    head: Map<String, Value>,
    choices: BTreeMap<u64, Choice>,
    pub(super) is_done: bool,
}

struct Choice {
    /// None: it has a text instead.
    message: Option<Value>,
    calls: BTreeMap<u64, Value>,
    rest: Value,
}

impl Chat {
    /// Whether the chunk has content.
    pub(super) fn feed(&mut self, chunk: &Value) -> bool {
        let Some(fields) = chunk.as_object() else { return false };
        for (name, value) in fields.iter().filter(|(name, value)| *name != "choices" && !value.is_null()) {
            self.head.insert(name.clone(), value.clone());
        }
        let mut has_content = false;
        for part in chunk.get("choices").and_then(Value::as_array).into_iter().flatten() {
            let index = part.get("index").and_then(Value::as_u64).unwrap_or(0);
            if index < MOST && part.is_object() {
                let new = || Choice { message: None, calls: BTreeMap::new(), rest: json!({ "index": index }) };
                has_content |= self.choices.entry(index).or_insert_with(new).feed(part);
            }
        }
        has_content
    }

    pub(super) fn see_end(&mut self, chunk: &Value) {
        let reason = chunk.pointer("/choices/0/finish_reason").filter(|reason| reason.is_string());
        if let Some((reason, choice)) = reason.zip(self.choices.values_mut().next()) {
            choice.rest["finish_reason"] = reason.clone();
        }
    }

    pub(super) fn finish_reason(&self) -> Option<String> {
        Some(self.choices.values().next()?.rest.get("finish_reason")?.as_str()?.to_owned())
    }

    pub(super) fn answer(&self) -> Option<Value> {
        if self.choices.is_empty() {
            return None;
        }
        let mut answer = Value::Object(self.head.clone());
        if answer["object"] == "chat.completion.chunk" {
            answer["object"] = json!("chat.completion");
        }
        answer["choices"] = self.choices.values().map(Choice::whole).collect();
        Some(answer)
    }
}

impl Choice {
    fn feed(&mut self, part: &Value) -> bool {
        let mut has_content = false;
        for (name, value) in part.as_object().into_iter().flatten() {
            match name.as_str() {
                "index" => {}
                "delta" => has_content |= self.add_delta(value),
                "text" => {
                    let text = value.as_str().unwrap_or_default();
                    append(&mut self.rest, "text", text);
                    has_content |= !text.is_empty();
                }
                "token_ids" => extend(&mut self.rest, name, value),
                "logprobs" => {
                    for (kind, values) in value.as_object().into_iter().flatten() {
                        if !self.rest["logprobs"].is_object() {
                            self.rest["logprobs"] = json!({});
                        }
                        extend(&mut self.rest["logprobs"], kind, values);
                    }
                }
                _ if value.is_null() => {}
                _ => self.rest[name] = value.clone(),
            }
        }
        has_content
    }

    fn add_delta(&mut self, delta: &Value) -> bool {
        let message = self.message.get_or_insert_with(|| json!({ "role": "assistant", "content": null }));
        let mut has_content = false;
        for (name, value) in delta.as_object().into_iter().flatten() {
            match (name.as_str(), value) {
                ("role", Value::String(_)) => message["role"] = value.clone(),
                ("tool_calls", Value::Array(parts)) => {
                    has_content = true;
                    for part in parts {
                        add_call(&mut self.calls, part);
                    }
                }
                // `content`, `refusal`, and the reasoning under the names of several upstreams.
                (_, Value::String(text)) => {
                    append(message, name, text);
                    has_content |= !text.is_empty();
                }
                (_, Value::Null) => {}
                (_, other) => message[name] = other.clone(),
            }
        }
        has_content
    }

    fn whole(&self) -> Value {
        let mut whole = self.rest.clone();
        if let Some(message) = &self.message {
            whole["message"] = message.clone();
            if !self.calls.is_empty() {
                whole["message"]["tool_calls"] = self.calls.values().cloned().collect();
            }
        }
        whole
    }
}

fn add_call(calls: &mut BTreeMap<u64, Value>, part: &Value) {
    // Some upstreams send whole calls without an index.
    let next = calls.len() as u64;
    let index = part.get("index").and_then(Value::as_u64).unwrap_or(next);
    if index >= MOST {
        return;
    }
    let call = calls.entry(index).or_insert_with(|| json!({ "id": "", "type": "function", "function": {} }));
    for name in ["id", "type"] {
        if let Some(text) = part.get(name).filter(|text| text.is_string()) {
            call[name] = text.clone();
        }
    }
    if let Some(name) = part.pointer("/function/name").filter(|name| name.is_string()) {
        call["function"]["name"] = name.clone();
    }
    if let Some(arguments) = part.pointer("/function/arguments").and_then(Value::as_str) {
        append(&mut call["function"], "arguments", arguments);
    }
}

/// Appends the items of a list to a field.
fn extend(object: &mut Value, field: &str, more: &Value) {
    let Value::Array(more) = more else { return };
    match object.get_mut(field) {
        Some(Value::Array(before)) => before.extend_from_slice(more),
        _ => object[field] = json!(more),
    }
}
