//! One tool: its description and its function.

use std::pin::Pin;
use std::sync::Arc;

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::Transform;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::SharedGuest;
use arenite_guest_runtime::http::{Address, ApiError, Lax};

/// The result of a tool. Errors become results too, with `isError`.
pub(crate) type ToolResult = Result<CallToolResult, ApiError>;

type Answer = Pin<Box<dyn Future<Output = CallToolResult> + Send>>;

/// The context of a call: the sandbox, and the caller's address and progress channel.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) guest: SharedGuest,
    /// The address at which the caller reaches the sandbox.
    pub(crate) address: Address,
    pub(crate) progress: Progress,
}

/// Sends progress of a call; discards it for callers that don't want any.
#[derive(Clone, Default)]
pub(crate) struct Progress(Option<mpsc::Sender<String>>);

impl Progress {
    pub(crate) fn to(sender: mpsc::Sender<String>) -> Self {
        Self(Some(sender))
    }

    /// Sends a line, or several at once. Waits while the channel is full.
    pub(crate) async fn tell(&self, text: impl Into<String>) {
        if let Some(sender) = &self.0 {
            // If the receiver was dropped, the call is about to be dropped too.
            drop(sender.send(text.into()).await);
        }
    }

    /// The channel, to send lines directly.
    pub(crate) fn sender(&self) -> Option<&mpsc::Sender<String>> {
        self.0.as_ref()
    }
}

/// The effect of a tool, for clients that ask a person first.
#[derive(Debug, Clone, Copy)]
pub(super) enum Effect {
    /// Reads only.
    Reads,
    /// Reads, also outside the sandbox.
    Fetches,
    /// Adds or moves on; nothing is lost.
    Changes,
    /// May overwrite or delete, and connect to the outside.
    Anything,
}

impl Effect {
    fn annotations(self, title: &str) -> ToolAnnotations {
        let (reads, destroys, reaches) = match self {
            Self::Reads => (true, false, false),
            Self::Fetches => (true, false, true),
            Self::Changes => (false, false, true),
            Self::Anything => (false, true, true),
        };
        ToolAnnotations::with_title(title).read_only(reads).destructive(destroys).open_world(reaches)
    }
}

/// A tool of the sandbox.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// The description as it is listed.
    pub(crate) description: rmcp::model::Tool,
    call: Box<dyn Fn(Caller, JsonObject) -> Answer + Send + Sync>,
}

impl Tool {
    /// Takes the description and the schema of the arguments from `A`.
    pub(super) fn new<A, F>(name: &'static str, title: &str, effect: Effect, work: fn(Caller, A) -> F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        F: Future<Output = ToolResult> + Send + 'static,
    {
        let (description, schema) = schema::<A>();
        let description =
            rmcp::model::Tool::new(name, description, schema).with_title(title).with_annotations(effect.annotations(title));
        let call = move |caller, arguments: JsonObject| -> Answer {
            match serde_path_to_error::deserialize(Lax(Value::Object(arguments))) {
                Ok(arguments) => {
                    let work = work(caller, arguments);
                    Box::pin(async move { work.await.unwrap_or_else(failed) })
                }
                Err(error) => {
                    let at = error.path().to_string();
                    let at = if at == "." { String::new() } else { format!(" {at}") };
                    let why = format!("invalid arguments of {name}:{at} {}", error.into_inner());
                    Box::pin(std::future::ready(failed(ApiError::bad_request(why))))
                }
            }
        };
        Self { name, description, call: Box::new(call) }
    }

    /// A tool that calls `forward`, with a separate description and schema.
    pub(super) fn forwarding<F>(
        name: &'static str,
        title: &str,
        effect: Effect,
        description: &'static str,
        schema: Arc<JsonObject>,
        forward: impl Fn(Caller, JsonObject) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = CallToolResult> + Send + 'static,
    {
        let description =
            rmcp::model::Tool::new(name, description, schema).with_title(title).with_annotations(effect.annotations(title));
        Self { name, description, call: Box::new(move |caller, arguments| Box::pin(forward(caller, arguments))) }
    }

    /// Calls the tool. Invalid arguments and failures are results with `isError`.
    pub(crate) async fn call(&self, caller: Caller, arguments: JsonObject) -> CallToolResult {
        (self.call)(caller, arguments).await
    }
}

/// Converts a failure: the message, then the hint.
fn failed(error: ApiError) -> CallToolResult {
    let text = match &error.hint {
        Some(hint) => format!("{}\nHint: {hint}", error.message),
        None => error.message,
    };
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.structured_content = error.code.map(|code| json!({ "code": code }));
    result
}

fn json(answer: &impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(answer)
        .map_err(|error| ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, format!("the answer is no JSON: {error}")))
}

/// Builds a result with the same JSON as structured content and as text.
pub(super) fn structured(answer: &impl Serialize) -> ToolResult {
    Ok(CallToolResult::structured(json(answer)?))
}

/// Builds a result with text for agents, and structured content for programs.
pub(super) fn worded(text: impl Into<String>, answer: &impl Serialize) -> ToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text.into())]);
    result.structured_content = Some(json(answer)?);
    Ok(result)
}

/// Builds a result with text only.
pub(super) fn text(text: impl Into<String>) -> ToolResult {
    Ok(CallToolResult::success(vec![ContentBlock::text(text.into())]))
}

/// Returns a tool's description, and a JSON Schema of its arguments: no references, and optional arguments may be left out.
fn schema<A: JsonSchema>() -> (String, Arc<JsonObject>) {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<A>();
    schemars::transform::RecursiveTransform(plain).transform(&mut schema);
    let mut object = match schema.to_value() {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    };
    object.remove("title");
    object.remove("$schema");
    object.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
    let description = object.remove("description");
    (description.and_then(|text| text.as_str().map(unwrapped)).unwrap_or_default(), Arc::new(object))
}

/// Removes what only Rust means by a type: `null` as an alternative, and the width of numbers.
fn plain(schema: &mut schemars::Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if object.get("default").is_some_and(Value::is_null) {
        object.remove("default");
    }
    if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
        choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
        if let [Value::Object(only)] = choices.as_mut_slice() {
            let only = std::mem::take(only);
            object.remove("anyOf");
            for (key, value) in only {
                object.entry(key).or_insert(value);
            }
        }
    }
    object.remove("format");
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = unwrapped(text);
    }
}

/// Joins lines that are broken only to fit the source.
fn unwrapped(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| match paragraph.contains("\n- ") || paragraph.starts_with("- ") {
        true => paragraph.to_owned(),
        false => paragraph.replace('\n', " "),
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    /// Does
    /// something.
    #[derive(Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Sample {
        /// What
        /// to do.
        what: What,
        /// How often.
        #[serde(default = "three")]
        times: u32,
        other: Option<What>,
        seconds: Option<f64>,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    #[allow(dead_code)]
    enum What {
        This,
        That,
    }

    fn three() -> u32 {
        3
    }

    #[test]
    fn schemas_are_plain() {
        let (description, schema) = schema::<Sample>();
        assert_eq!(description, "Does something.");
        let wanted = json!({
            "type": "object",
            "properties": {
                "what": {"type": "string", "enum": ["this", "that"], "description": "What to do."},
                "times": {"type": "integer", "minimum": 0, "default": 3, "description": "How often."},
                "other": {"type": "string", "enum": ["this", "that"]},
                "seconds": {"type": "number"},
            },
            "required": ["what"],
        });
        assert_eq!(Value::Object(schema.as_ref().clone()), wanted);
    }
}
