//! Reads requests and answers by their shape: chat completions, completions, responses, and messages.

use serde_json::{Map, Value, json};

use super::chat::{ChatCall, ChatMessage, Role};

/// What a request to a model contains.
#[derive(Debug, Default, PartialEq)]
pub(in crate::export) struct ChatRequest {
    pub(in crate::export) messages: Vec<ChatMessage>,
    /// As functions of the chat API.
    pub(in crate::export) tools: Vec<Value>,
    /// The answer that it continues without repeating the messages before.
    pub(in crate::export) previous: Option<String>,
}

/// A model's answer.
#[derive(Debug, PartialEq)]
pub(in crate::export) struct ChatAnswer {
    pub(in crate::export) message: ChatMessage,
    pub(in crate::export) id: Option<String>,
    pub(in crate::export) prompt_token_ids: Option<Vec<i64>>,
    pub(in crate::export) token_ids: Option<Vec<i64>>,
    pub(in crate::export) logprobs: Option<Vec<f64>>,
}

pub(in crate::export) fn request(fields: &Map<String, Value>) -> ChatRequest {
    let mut messages = Vec::new();
    let text = |key: &str| fields.get(key).and_then(text_of);
    if let Some(system) = text("system").or_else(|| text("instructions")) {
        messages.push(ChatMessage::new(Role::System, Some(system)));
    }
    for message in array(fields.get("messages")) {
        read_message(message, &mut messages);
    }
    match fields.get("input") {
        Some(Value::String(input)) => messages.push(ChatMessage::new(Role::User, Some(input.clone()))),
        Some(Value::Array(items)) => items.iter().for_each(|item| read_item(item, &mut messages)),
        _ => {}
    }
    if let Some(prompt) = text("prompt") {
        messages.push(ChatMessage::new(Role::User, Some(prompt)));
    }
    let tools = array(fields.get("tools")).iter().filter_map(function).collect();
    let previous = fields.get("previous_response_id").and_then(Value::as_str).map(str::to_owned);
    ChatRequest { messages, tools, previous }
}

/// None: it contains no message, as an error or an embedding.
pub(in crate::export) fn answer(value: &Value) -> Option<ChatAnswer> {
    let mut messages = Vec::new();
    let choice = value.get("choices").and_then(|choices| choices.get(0));
    if let Some(choice) = choice {
        match choice.get("message") {
            Some(message) => read_message(message, &mut messages),
            None => messages.push(ChatMessage::new(Role::Assistant, string(choice.get("text")))),
        }
    } else if let Some(items) = value.get("output") {
        array(Some(items)).iter().for_each(|item| read_item(item, &mut messages));
    } else if value.get("content").is_some_and(Value::is_array) {
        read_message(&json!({ "role": "assistant", "content": value["content"] }), &mut messages);
    }
    let message = messages.into_iter().find(|message| message.role == Role::Assistant && !message.is_empty())?;
    let choice = choice.unwrap_or(&Value::Null);
    let at = |pointer: &str| choice.pointer(pointer).or_else(|| value.pointer(pointer));
    let logprob = |token: &Value| token.get("logprob").unwrap_or(token).as_f64();
    let logprobs = at("/logprobs/content").or_else(|| at("/logprobs/token_logprobs"));
    Some(ChatAnswer {
        message,
        id: string(value.get("id")),
        prompt_token_ids: all(at("/prompt_token_ids"), Value::as_i64),
        token_ids: all(at("/token_ids"), Value::as_i64),
        logprobs: all(logprobs, logprob),
    })
}

/// A list, if each of its items is of the type.
fn all<T>(value: Option<&Value>, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value?.as_array().filter(|items| !items.is_empty())?.iter().map(read).collect()
}

fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn string(value: Option<&Value>) -> Option<String> {
    value?.as_str().map(str::to_owned)
}

/// A message of the chat API, or one with blocks.
fn read_message(message: &Value, messages: &mut Vec<ChatMessage>) {
    let content = message.get("content").unwrap_or(&Value::Null);
    match message.get("role").and_then(Value::as_str).unwrap_or("assistant") {
        "system" | "developer" => messages.push(ChatMessage::new(Role::System, text_of(content))),
        "tool" => {
            let id = string(message.get("tool_call_id")).unwrap_or_default();
            messages.push(ChatMessage::of_tool(id, text_of(content)));
        }
        "function" => {
            let id = string(message.get("name")).unwrap_or_default();
            messages.push(ChatMessage::of_tool(id, text_of(content)));
        }
        "assistant" => messages.push(assistant(message, content)),
        _ => {
            let is_result = |block: &&Value| kind(block) == "tool_result";
            for block in array(Some(content)).iter().filter(is_result) {
                let id = string(block.get("tool_use_id")).unwrap_or_default();
                messages.push(ChatMessage::of_tool(id, block.get("content").and_then(text_of)));
            }
            let rest = match content {
                Value::Array(blocks) => Value::Array(blocks.iter().filter(|block| !is_result(block)).cloned().collect()),
                other => other.clone(),
            };
            let is_only_results = content.is_array() && array(Some(&rest)).is_empty();
            if !is_only_results {
                messages.push(ChatMessage::new(Role::User, text_of(&rest)));
            }
        }
    }
}

fn assistant(message: &Value, content: &Value) -> ChatMessage {
    let mut read = ChatMessage::new(Role::Assistant, None);
    read.reasoning = string(message.get("reasoning_content")).or_else(|| string(message.get("reasoning")));
    match content {
        Value::Array(blocks) => {
            let mut said = Vec::new();
            for block in blocks {
                match kind(block) {
                    "thinking" => add(&mut read.reasoning, string(block.get("thinking"))),
                    "redacted_thinking" => {}
                    "tool_use" => read.calls.push(ChatCall {
                        id: string(block.get("id")).unwrap_or_default(),
                        name: string(block.get("name")).unwrap_or_default(),
                        arguments: block.get("input").unwrap_or(&Value::Null).to_string(),
                    }),
                    _ => said.push(block.clone()),
                }
            }
            read.text = text_of(&Value::Array(said));
        }
        other => read.text = text_of(other).filter(|text| !text.is_empty()),
    }
    let of_function = |id: Option<&Value>, function: &Value| ChatCall {
        id: string(id).unwrap_or_default(),
        name: string(function.get("name")).unwrap_or_default(),
        arguments: string(function.get("arguments")).unwrap_or_default(),
    };
    for call in array(message.get("tool_calls")) {
        read.calls.push(of_function(call.get("id"), call.get("function").or_else(|| call.get("custom")).unwrap_or(&Value::Null)));
    }
    if let Some(function) = message.get("function_call").filter(|function| function.is_object()) {
        read.calls.push(of_function(function.get("name"), function));
    }
    if read.text.is_none() {
        read.text = string(message.get("refusal"));
    }
    read
}

/// An item of a response. Those of one answer are one message.
fn read_item(item: &Value, messages: &mut Vec<ChatMessage>) {
    let id = || string(item.get("call_id")).unwrap_or_default();
    let mut part = ChatMessage::new(Role::Assistant, None);
    match kind(item) {
        "function_call" | "custom_tool_call" => part.calls.push(ChatCall {
            id: id(),
            name: string(item.get("name")).unwrap_or_default(),
            arguments: string(item.get("arguments")).or_else(|| string(item.get("input"))).unwrap_or_default(),
        }),
        "function_call_output" | "custom_tool_call_output" => {
            messages.push(ChatMessage::of_tool(id(), item.get("output").and_then(text_of)));
            return;
        }
        "reasoning" => {
            let blocks = array(item.get("summary")).iter().chain(array(item.get("content")));
            for block in blocks {
                add(&mut part.reasoning, string(block.get("text")));
            }
        }
        "message" | "" if item.get("role").and_then(Value::as_str) == Some("assistant") => {
            part.text = item.get("content").and_then(text_of);
        }
        "message" | "" => return read_message(item, messages),
        _ => return,
    }
    match messages.last_mut().filter(|last| last.role == Role::Assistant) {
        Some(last) => {
            add(&mut last.text, part.text);
            add(&mut last.reasoning, part.reasoning);
            last.calls.append(&mut part.calls);
        }
        None if part.is_empty() => {}
        None => messages.push(part),
    }
}

fn add(text: &mut Option<String>, more: Option<String>) {
    let Some(more) = more.filter(|more| !more.is_empty()) else { return };
    match text {
        Some(text) => {
            text.push('\n');
            text.push_str(&more);
        }
        None => *text = Some(more),
    }
}

fn kind(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The text of a message, of all its parts.
fn text_of(content: &Value) -> Option<String> {
    let parts = match content {
        Value::Null => return None,
        Value::String(text) => return Some(text.clone()),
        Value::Array(parts) => parts,
        other => return Some(other.to_string()),
    };
    let text = |part: &Value| match part {
        Value::String(text) => text.clone(),
        part => {
            let text = ["text", "refusal"].iter().find_map(|key| part.get(*key)?.as_str());
            let picture = ["/image_url/url", "/image_url", "/source/data", "/source/url"];
            let picture =
                || picture.iter().find_map(|pointer| part.pointer(pointer)?.as_str()).map(|url| format!("[image: {url}]"));
            text.map(str::to_owned).or_else(picture).unwrap_or_else(|| part.to_string())
        }
    };
    (!parts.is_empty()).then(|| parts.iter().map(text).collect::<Vec<_>>().join("\n"))
}

/// A tool as a function of the chat API. None: it is one that the upstream carries out.
fn function(tool: &Value) -> Option<Value> {
    if let Some(function) = tool.get("function") {
        return Some(json!({ "type": "function", "function": function }));
    }
    let parameters = tool.get("parameters").or_else(|| tool.get("input_schema"))?;
    let mut function = json!({ "name": tool.get("name")?, "parameters": parameters });
    if let Some(description) = tool.get("description") {
        function["description"] = description.clone();
    }
    Some(json!({ "type": "function", "function": function }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Vec<(Role, String, usize)> {
        let messages = request(body.as_object().unwrap()).messages;
        messages.into_iter().map(|message| (message.role, message.text.unwrap_or_default(), message.calls.len())).collect()
    }

    #[test]
    fn the_same_conversation_reads_the_same_in_every_api() {
        let wanted = vec![
            (Role::System, "be brief".to_owned(), 0),
            (Role::User, "list".to_owned(), 0),
            (Role::Assistant, "well".to_owned(), 1),
            (Role::Tool, "a b".to_owned(), 0),
            (Role::User, "thanks".to_owned(), 0),
        ];
        let function = json!({ "name": "ls", "arguments": "{}" });
        let chat = json!({"messages": [
            {"role": "developer", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "list"}]},
            {"role": "assistant", "content": "well", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": "a b"}, {"role": "user", "content": "thanks"},
        ]});
        assert_eq!(read(chat), wanted);
        let anthropic = json!({"system": [{"type": "text", "text": "be brief"}], "messages": [
            {"role": "user", "content": "list"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "well"},
                {"type": "tool_use", "id": "c", "name": "ls", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "a b"}]},
                {"type": "text", "text": "thanks"}]},
        ]});
        assert_eq!(read(anthropic), wanted);
        let responses = json!({"instructions": "be brief", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "list"}]}, {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "well"}]},
            {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "a b"}, {"role": "user", "content": "thanks"},
        ]});
        assert_eq!(read(responses), wanted);
    }

    #[test]
    fn answers_have_their_token_ids_and_log_probabilities() {
        let body = json!({"id": "x", "prompt_token_ids": [1, 2], "choices": [{
            "message": {"role": "assistant", "content": "hi"}, "token_ids": [3],
            "logprobs": {"content": [{"token": "hi", "logprob": -0.5}]}}]});
        let read = answer(&body).unwrap();
        assert_eq!((read.prompt_token_ids, read.token_ids, read.logprobs), (Some(vec![1, 2]), Some(vec![3]), Some(vec![-0.5])));
        assert_eq!(read.message.text.as_deref(), Some("hi"));
        for none in
            [json!({"error": {"message": "no"}}), json!({"data": [{"embedding": [0.1]}]}), json!(1), json!({"choices": []})]
        {
            assert!(answer(&none).is_none(), "{none}");
        }
    }
}
