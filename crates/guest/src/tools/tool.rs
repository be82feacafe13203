//! One tool: how it is described, and how it is called.

use std::pin::Pin;
use std::sync::Arc;

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::Transform;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::SharedGuest;
use crate::http::{Address, ApiError, Lax};

/// What a tool answers. An error is a result too, with `isError`.
pub(crate) type ToolResult = Result<CallToolResult, ApiError>;

type Answer = Pin<Box<dyn Future<Output = CallToolResult> + Send>>;

/// Who calls a tool, and wants to know meanwhile how it goes.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) guest: SharedGuest,
    /// Where the caller reaches the sandbox.
    pub(crate) address: Address,
    pub(crate) progress: Progress,
}

/// Where news of a call goes; nowhere for callers that don't want any.
#[derive(Clone, Default)]
pub(crate) struct Progress(Option<mpsc::Sender<String>>);

impl Progress {
    pub(crate) fn to(sender: mpsc::Sender<String>) -> Self {
        Self(Some(sender))
    }

    /// Tells a line, or several at once; waits while the caller does not listen.
    pub(crate) async fn tell(&self, text: impl Into<String>) {
        if let Some(sender) = &self.0 {
            // If the receiver was dropped, the call is about to be dropped too.
            drop(sender.send(text.into()).await);
        }
    }

    /// Where to send lines oneself.
    pub(crate) fn sender(&self) -> Option<&mpsc::Sender<String>> {
        self.0.as_ref()
    }
}

/// What a tool does to the world, for clients that ask a person first.
#[derive(Debug, Clone, Copy)]
pub(super) enum Effect {
    /// It looks.
    Reads,
    /// It looks at what is outside the sandbox.
    Fetches,
    /// It adds or moves on; nothing is lost.
    Changes,
    /// It may overwrite or delete, and reach out.
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
    /// As it is listed.
    pub(crate) description: rmcp::model::Tool,
    call: Box<dyn Fn(Caller, JsonObject) -> Answer + Send + Sync>,
}

impl Tool {
    /// Its description and its arguments' schema are those of `A`.
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

    /// One that `forward` does, with its own description and schema.
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

    /// Calls it. Wrong arguments and failures are results with `isError`.
    pub(crate) async fn call(&self, caller: Caller, arguments: JsonObject) -> CallToolResult {
        (self.call)(caller, arguments).await
    }
}

/// A tool's failure: what went wrong, then what to do.
fn failed(error: ApiError) -> CallToolResult {
    let text = match error.hint {
        Some(hint) => format!("{}\nHint: {hint}", error.message),
        None => error.message,
    };
    CallToolResult::error(vec![ContentBlock::text(text)])
}

fn json(answer: &impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(answer)
        .map_err(|error| ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, format!("the answer is no JSON: {error}")))
}

/// An answer for programs and for agents: the same JSON as structured content and as text.
pub(super) fn structured(answer: &impl Serialize) -> ToolResult {
    Ok(CallToolResult::structured(json(answer)?))
}

/// An answer in words for agents, and as structured content for programs.
pub(super) fn worded(text: impl Into<String>, answer: &impl Serialize) -> ToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text.into())]);
    result.structured_content = Some(json(answer)?);
    Ok(result)
}

/// An answer in words.
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

/// Takes away what only Rust means by a type: `null` beside it, and the width of numbers.
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

/// Lines that were only broken to fit in the source are one.
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
