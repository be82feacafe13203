//! Puts streamed answers together: the result is what the upstream would have answered without streaming.

mod chat;
mod messages;
mod responses;

use serde_json::{Value, json};

use super::request::Endpoint;
use super::usage::UsageFields;
use chat::Chat;
use messages::Messages;
use responses::Responses;

/// The most bytes of events that are put together. What comes after is not recorded.
const MAX_ANSWER: usize = 8 << 20;

/// What an event means for the answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// It has a part of the content.
    pub(super) is_content: bool,
    /// It only has the counts of tokens, which the client may not have asked for.
    pub(super) is_usage: bool,
}

/// An answer that is being put together.
pub(super) struct Assembly {
    answer: Kind,
    bytes: usize,
    is_cut: bool,
    usage: Option<UsageFields>,
    /// The upstream says that it failed.
    error: Option<String>,
}

enum Kind {
    Chat(Chat),
    Responses(Responses),
    Messages(Messages),
}

impl Assembly {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let answer = match endpoint {
            Endpoint::Responses => Kind::Responses(Responses::default()),
            Endpoint::Messages => Kind::Messages(Messages::default()),
            _ => Kind::Chat(Chat::default()),
        };
        Self { answer, bytes: 0, is_cut: false, usage: None, error: None }
    }

    /// Adds the data of an event.
    pub(super) fn feed(&mut self, data: &[u8]) -> Seen {
        if data == b"[DONE]" {
            if let Kind::Chat(chat) = &mut self.answer {
                chat.is_done = true;
            }
            return Seen::default();
        }
        let Ok(event) = serde_json::from_slice::<Value>(data) else { return Seen::default() };
        if let Some(usage) = usage_in(&event) {
            self.usage.get_or_insert_default().update(usage);
        }
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            self.error = Some(message_of(error));
        }
        self.bytes += data.len();
        if self.bytes > MAX_ANSWER {
            self.is_cut = true;
            self.answer.see_end(&event);
            return Seen { is_content: true, is_usage: is_usage(&event) };
        }
        let is_content = match &mut self.answer {
            Kind::Chat(chat) => chat.feed(&event),
            Kind::Responses(responses) => responses.feed(event.clone()),
            Kind::Messages(messages) => messages.feed(&event),
        };
        Seen { is_content, is_usage: is_usage(&event) }
    }

    /// An event was too large to be read.
    pub(super) fn skip(&mut self) {
        self.is_cut = true;
    }

    pub(super) fn usage(&self) -> Option<UsageFields> {
        self.usage
    }

    /// The upstream's own error.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Whether the upstream has ended the answer, and did not only close the connection.
    pub(super) fn is_complete(&self) -> bool {
        match &self.answer {
            Kind::Chat(chat) => chat.is_done || chat.finish_reason().is_some(),
            Kind::Responses(responses) => responses.is_done,
            Kind::Messages(messages) => messages.is_done,
        }
    }

    pub(super) fn finish_reason(&self) -> Option<String> {
        match &self.answer {
            Kind::Chat(chat) => chat.finish_reason(),
            Kind::Responses(responses) => responses.finish_reason(),
            Kind::Messages(messages) => messages.finish_reason(),
        }
    }

    /// The answer as far as it came. None: nothing came.
    pub(super) fn answer(&self) -> Option<Value> {
        let mut answer = match &self.answer {
            Kind::Chat(chat) => chat.answer(),
            Kind::Responses(responses) => responses.answer(),
            Kind::Messages(messages) => messages.answer(),
        }?;
        if self.is_cut {
            answer["arenite_incomplete"] = json!(true);
        }
        Some(answer)
    }
}

impl Kind {
    /// Notes the end of an answer that is too large to be put together.
    fn see_end(&mut self, event: &Value) {
        match self {
            Self::Chat(chat) => chat.see_end(event),
            Self::Responses(responses) => responses.see_end(event),
            Self::Messages(messages) => messages.see_end(event),
        }
    }
}

fn usage_in(event: &Value) -> Option<UsageFields> {
    let places = ["/usage", "/message/usage", "/response/usage"];
    let usage = places.iter().find_map(|place| event.pointer(place).filter(|usage| usage.is_object()))?;
    serde_json::from_value(usage.clone()).ok()
}

/// The last chunk of the chat API, which comes only if the request asks for it.
fn is_usage(event: &Value) -> bool {
    let has_choices = event.get("choices").and_then(Value::as_array).is_none_or(|choices| !choices.is_empty());
    !has_choices && event.get("usage").is_some_and(Value::is_object)
}

pub(super) fn message_of(error: &Value) -> String {
    let message = error.get("message").and_then(Value::as_str).or_else(|| error.as_str());
    message.map_or_else(|| error.to_string(), str::to_owned)
}

/// Appends a text to a field.
fn append(object: &mut Value, field: &str, text: &str) {
    match object.get_mut(field) {
        Some(Value::String(before)) => before.push_str(text),
        _ => object[field] = json!(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembled(endpoint: Endpoint, events: &[Value]) -> Assembly {
        let mut assembly = Assembly::new(endpoint);
        for event in events {
            assembly.feed(event.to_string().as_bytes());
        }
        assembly
    }

    #[test]
    fn chunks_of_chat_completions_become_one_message() {
        let chunk = |delta: Value, finish: Value| {
            json!({"id": "c", "object": "chat.completion.chunk", "model": "m", "created": 1,
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish,
                    "logprobs": {"content": [{"token": "t", "logprob": -0.5}]}, "token_ids": [7]}]})
        };
        let call = |index: u64, id: Value, name: Value, arguments: &str| json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]});
        let mut assembly = assembled(
            Endpoint::ChatCompletions,
            &[
                chunk(json!({"role": "assistant", "content": ""}), Value::Null),
                chunk(json!({"reasoning_content": "hm"}), Value::Null),
                chunk(json!({"content": "He"}), Value::Null),
                chunk(json!({"content": "llo"}), Value::Null),
                chunk(call(0, json!("call_a"), json!("ls"), "{\"pa"), Value::Null),
                chunk(call(0, Value::Null, Value::Null, "th\":1}"), Value::Null),
                chunk(call(1, json!("call_b"), json!("cat"), "{}"), Value::Null),
            ],
        );
        assert!(!assembly.is_complete());
        assembly.feed(chunk(json!({}), json!("tool_calls")).to_string().as_bytes());
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).to_string();
        assert_eq!(assembly.feed(usage.as_bytes()), Seen { is_content: false, is_usage: true });
        assembly.feed(b"[DONE]");
        let answer = assembly.answer().unwrap();
        let message = &answer["choices"][0]["message"];
        assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("Hello"), &json!("hm")));
        assert_eq!(message["tool_calls"][0]["function"], json!({"name": "ls", "arguments": "{\"path\":1}"}));
        assert_eq!((&message["tool_calls"][0]["id"], &message["tool_calls"][1]["id"]), (&json!("call_a"), &json!("call_b")));
        assert_eq!(answer["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 8);
        assert_eq!(answer["choices"][0]["token_ids"].as_array().unwrap().len(), 8);
        assert_eq!((&answer["object"], &answer["usage"]["prompt_tokens"]), (&json!("chat.completion"), &json!(3)));
        assert!(assembly.is_complete() && assembly.finish_reason().as_deref() == Some("tool_calls"));
        assert_eq!(assembly.usage().unwrap().completion(), Some(4));
    }

    #[test]
    fn events_of_messages_become_one_message() {
        let assembly = assembled(
            Endpoint::Messages,
            &[
                json!({"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 5, "output_tokens": 1}}}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
                json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "ping"}),
                json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}}),
                json!({"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "ls", "input": {}}}),
                json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"a\""}}),
                json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ":1}"}}),
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}),
                json!({"type": "message_stop"}),
            ],
        );
        let answer = assembly.answer().unwrap();
        assert_eq!(answer["content"][0]["thinking"], "hm");
        assert_eq!(answer["content"][1]["text"], "Hi");
        assert_eq!(answer["content"][2]["input"], json!({"a": 1}));
        assert_eq!((&answer["id"], &answer["stop_reason"]), (&json!("m"), &json!("tool_use")));
        let usage = assembly.usage().unwrap();
        assert_eq!((usage.prompt(), usage.completion()), (Some(5), Some(9)));
        assert!(assembly.is_complete());
    }

    #[test]
    fn a_response_is_that_of_its_end_or_what_came_before_it() {
        let events = [
            json!({"type": "response.created", "response": {"id": "r", "output": []}}),
            json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "role": "assistant", "content": []}}),
            json!({"type": "response.output_text.delta", "output_index": 0, "delta": "He"}),
            json!({"type": "response.output_text.delta", "output_index": 0, "delta": "y"}),
        ];
        let cut = assembled(Endpoint::Responses, &events);
        assert!(!cut.is_complete());
        assert_eq!(cut.answer().unwrap()["output"][0]["content"][0]["text"], "Hey");
        let whole = json!({"id": "r", "status": "completed", "output": [{"type": "message"}], "usage": {"input_tokens": 1, "output_tokens": 2}});
        let end = json!({"type": "response.completed", "response": whole});
        let done = assembled(Endpoint::Responses, &[&events[..], &[end]].concat());
        assert_eq!(done.answer().unwrap(), whole);
        assert!(done.is_complete() && done.usage().unwrap().prompt() == Some(1));
    }

    #[test]
    fn strange_events_are_no_end() {
        let mut assembly = Assembly::new(Endpoint::ChatCompletions);
        for event in
            ["", "{", "[]", "1", "{\"choices\":3}", "{\"choices\":[{\"index\":-1}]}", "{\"choices\":[{\"index\":9999999}]}"]
        {
            assembly.feed(event.as_bytes());
        }
        assert!(!assembly.is_complete());
        assembly.feed(br#"{"error":{"message":"overloaded"}}"#);
        assert_eq!(assembly.error(), Some("overloaded"));
        let big = json!({"choices": [{"index": 0, "delta": {"content": "x".repeat(1 << 20)}}]}).to_string();
        for _ in 0..20 {
            assembly.feed(big.as_bytes());
        }
        assert_eq!(assembly.answer().unwrap()["arenite_incomplete"], true);
        assert!(assembly.answer().unwrap().to_string().len() < 9 << 20);
        assembly.feed(br#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#);
        assert!(assembly.is_complete());
    }
}
