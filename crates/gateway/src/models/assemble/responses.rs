//! Events of the responses API. The last one has the whole answer.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The most items that are put together.
const MOST: u64 = 1024;

#[derive(Default)]
pub(super) struct Responses {
    response: Option<Value>,
    items: BTreeMap<u64, Value>,
    /// Text and arguments of items that are not done.
    partial: BTreeMap<u64, String>,
    pub(super) is_done: bool,
}

impl Responses {
    /// Whether the event has content.
    pub(super) fn feed(&mut self, mut event: Value) -> bool {
        let index = event.get("output_index").and_then(Value::as_u64).unwrap_or(0);
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        match kind.as_str() {
            "response.output_item.added" | "response.output_item.done" if index < MOST => {
                self.items.insert(index, event["item"].take());
                if kind.ends_with("done") {
                    self.partial.remove(&index);
                }
            }
            "response.output_text.delta" | "response.function_call_arguments.delta" if index < MOST => {
                self.partial.entry(index).or_default().push_str(event["delta"].as_str().unwrap_or_default());
                return true;
            }
            _ => {
                self.see_end(&event);
                if event["response"].is_object() {
                    self.response = Some(event["response"].take());
                }
            }
        }
        kind.ends_with(".delta")
    }

    pub(super) fn see_end(&mut self, event: &Value) {
        let ends = ["response.completed", "response.incomplete", "response.failed"];
        self.is_done |= event.get("type").and_then(Value::as_str).is_some_and(|kind| ends.contains(&kind));
    }

    pub(super) fn finish_reason(&self) -> Option<String> {
        Some(self.response.as_ref()?.get("status")?.as_str()?.to_owned())
    }

    pub(super) fn answer(&self) -> Option<Value> {
        let has_output = |response: &&Value| response["output"].as_array().is_some_and(|output| !output.is_empty());
        if let Some(whole) = self.response.as_ref().filter(has_output) {
            return Some(whole.clone());
        }
        let mut answer = self.response.clone().or_else(|| (!self.items.is_empty()).then(|| json!({})))?;
        let whole = |(index, item): (&u64, &Value)| {
            let mut item = item.clone();
            if let Some(partial) = self.partial.get(index).filter(|_| item.is_object()) {
                match item["type"].as_str() {
                    Some("function_call") => item["arguments"] = json!(partial),
                    _ => item["content"] = json!([{ "type": "output_text", "text": partial }]),
                }
            }
            item
        };
        answer["output"] = self.items.iter().map(whole).collect();
        Some(answer)
    }
}
