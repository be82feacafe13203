//! A message of a conversation, in the terms that all APIs of models share.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::export) enum Role {
    System,
    User,
    Assistant,
    Tool,
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::export) struct ChatMessage {
    pub(in crate::export) role: Role,
    pub(in crate::export) text: Option<String>,
    pub(in crate::export) reasoning: Option<String>,
    pub(in crate::export) calls: Vec<ChatCall>,
    /// Of a tool's message: the call that it answers.
    pub(in crate::export) call_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::export) struct ChatCall {
    pub(in crate::export) id: String,
    pub(in crate::export) name: String,
    /// JSON in a string, as the model wrote it.
    pub(in crate::export) arguments: String,
}

impl ChatCall {
    /// The arguments as an object; what is none is in `input`.
    pub(in crate::export) fn object(&self) -> serde_json::Map<String, Value> {
        match serde_json::from_str(&self.arguments) {
            Ok(Value::Object(fields)) => fields,
            Ok(Value::Null) => serde_json::Map::new(),
            Ok(other) => serde_json::Map::from_iter([("input".to_owned(), other)]),
            Err(_) if self.arguments.trim().is_empty() => serde_json::Map::new(),
            Err(_) => serde_json::Map::from_iter([("input".to_owned(), Value::String(self.arguments.clone()))]),
        }
    }
}

impl ChatMessage {
    pub(super) fn new(role: Role, text: Option<String>) -> Self {
        Self { role, text, reasoning: None, calls: Vec::new(), call_id: None }
    }

    pub(super) fn of_tool(call_id: String, text: Option<String>) -> Self {
        Self { call_id: Some(call_id), ..Self::new(Role::Tool, text) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_none() && self.reasoning.is_none() && self.calls.is_empty()
    }

    /// Equal for messages that clients send back in another form: without reasoning, or with other spaces in arguments.
    pub(super) fn fingerprint(&self, before: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        before.hash(&mut hasher);
        self.role.hash(&mut hasher);
        self.text.as_deref().map(str::trim).unwrap_or_default().hash(&mut hasher);
        self.call_id.hash(&mut hasher);
        for call in &self.calls {
            call.name.hash(&mut hasher);
            match serde_json::from_str::<Value>(&call.arguments) {
                Ok(value) => value.to_string().hash(&mut hasher),
                Err(_) => call.arguments.hash(&mut hasher),
            }
        }
        hasher.finish()
    }
}

/// A message as the chat API has it.
#[derive(Serialize)]
pub(in crate::export) struct OpenaiMessage<'a> {
    role: &'static str,
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<OpenaiCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

#[derive(Serialize)]
struct OpenaiCall<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: OpenaiFunction<'a>,
}

#[derive(Serialize)]
struct OpenaiFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

pub(in crate::export) fn openai(message: &ChatMessage) -> OpenaiMessage<'_> {
    fn call(call: &ChatCall) -> OpenaiCall<'_> {
        let function = OpenaiFunction { name: &call.name, arguments: &call.arguments };
        OpenaiCall { id: &call.id, kind: "function", function }
    }
    let text = message.text.as_deref();
    let (role, content) = match message.role {
        Role::System => ("system", text.or(Some(""))),
        Role::User => ("user", text.or(Some(""))),
        Role::Assistant => ("assistant", text),
        Role::Tool => ("tool", text.or(Some(""))),
    };
    OpenaiMessage {
        role,
        content,
        reasoning_content: message.reasoning.as_deref(),
        tool_calls: message.calls.iter().map(call).collect(),
        tool_call_id: message.call_id.as_deref(),
    }
}
