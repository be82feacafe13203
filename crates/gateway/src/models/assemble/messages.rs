//! Events of Anthropic's messages.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::append;

/// The most blocks that are put together.
const MOST: u64 = 1024;

#[derive(Default)]
pub(super) struct Messages {
    message: Option<Value>,
    blocks: BTreeMap<u64, Value>,
    /// The input of tools as JSON in pieces.
    inputs: BTreeMap<u64, String>,
    pub(super) is_done: bool,
}

impl Messages {
    /// Whether the event has content.
    pub(super) fn feed(&mut self, event: &Value) -> bool {
        let index = event.get("index").and_then(Value::as_u64).unwrap_or(0);
        match event.get("type").and_then(Value::as_str) {
            Some("message_start") => self.message = event.get("message").filter(|message| message.is_object()).cloned(),
            Some("content_block_start") if index < MOST => {
                if let Some(block) = event.get("content_block").filter(|block| block.is_object()) {
                    self.blocks.insert(index, block.clone());
                }
            }
            Some("content_block_delta") => return self.add_delta(index, &event["delta"]),
            _ => self.see_end(event),
        }
        false
    }

    fn add_delta(&mut self, index: u64, delta: &Value) -> bool {
        let Some(block) = self.blocks.get_mut(&index) else { return false };
        if let Some(json) = delta.get("partial_json").and_then(Value::as_str) {
            self.inputs.entry(index).or_default().push_str(json);
            return true;
        }
        for (name, value) in delta.as_object().into_iter().flatten().filter(|(name, _)| *name != "type") {
            match value {
                Value::String(text) => append(block, name, text),
                other => block[name] = other.clone(),
            }
        }
        true
    }

    pub(super) fn see_end(&mut self, event: &Value) {
        match event.get("type").and_then(Value::as_str) {
            Some("message_delta") => {
                let message = self.message.get_or_insert_with(|| json!({ "role": "assistant" }));
                for (name, value) in event["delta"].as_object().into_iter().flatten() {
                    message[name] = value.clone();
                }
                if let Some(usage) = event["usage"].as_object() {
                    if !message["usage"].is_object() {
                        message["usage"] = json!({});
                    }
                    for (name, value) in usage {
                        message["usage"][name] = value.clone();
                    }
                }
            }
            Some("message_stop") => self.is_done = true,
            _ => {}
        }
    }

    pub(super) fn finish_reason(&self) -> Option<String> {
        Some(self.message.as_ref()?.get("stop_reason")?.as_str()?.to_owned())
    }

    pub(super) fn answer(&self) -> Option<Value> {
        let mut answer = self.message.clone()?;
        let whole = |(index, block): (&u64, &Value)| {
            let mut block = block.clone();
            if let Some(input) = self.inputs.get(index) {
                // Of an answer that broke off, it may be a part.
                block["input"] = serde_json::from_str(input).unwrap_or_else(|_| json!(input));
            }
            block
        };
        answer["content"] = self.blocks.iter().map(whole).collect();
        Some(answer)
    }
}
