//! MCP's results for the OpenAPI document. The answers themselves use the protocol library's types.

#![allow(dead_code, reason = "these describe, and are never made")]

use serde::Serialize;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A result that always has `isError`, as AIO's does.
#[derive(Debug, Serialize)]
pub(super) struct Answered(rmcp::model::CallToolResult);

impl From<rmcp::model::CallToolResult> for Answered {
    fn from(mut result: rmcp::model::CallToolResult) -> Self {
        result.is_error.get_or_insert(false);
        // A field of the newest protocol only; the hub adds it for clients of that version.
        result.result_type = None;
        Self(result)
    }
}

/// The arguments of a tool: the one schema that is a map with a default, which can't be derived.
pub(super) struct ToolArguments;

impl PartialSchema for ToolArguments {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new().description(Some("What the tool's `inputSchema` wants"));
        schema.default(Some(serde_json::json!({}))).into()
    }
}

impl ToSchema for ToolArguments {}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListToolsResult {
    tools: Vec<Tool>,
    next_cursor: Option<String>,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
}

/// A tool that a server offers.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tool {
    name: String,
    title: Option<String>,
    description: Option<String>,
    /// JSON Schema of its arguments.
    #[schema(value_type = Object)]
    input_schema: serde_json::Value,
    /// JSON Schema of its structured result.
    #[schema(value_type = Option<Object>)]
    output_schema: Option<serde_json::Value>,
    icons: Option<Vec<Icon>>,
    annotations: Option<ToolAnnotations>,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
    /// Protocol versions of 2025 only.
    execution: Option<ToolExecution>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Icon {
    src: String,
    mime_type: Option<String>,
    sizes: Option<Vec<String>>,
}

/// What a tool says of itself; hints, not promises.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolAnnotations {
    title: Option<String>,
    read_only_hint: Option<bool>,
    destructive_hint: Option<bool>,
    idempotent_hint: Option<bool>,
    open_world_hint: Option<bool>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolExecution {
    task_support: Option<TaskSupport>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum TaskSupport {
    Forbidden,
    Optional,
    Required,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallToolResult {
    content: Vec<Content>,
    #[schema(value_type = Option<Object>)]
    structured_content: Option<serde_json::Value>,
    #[schema(default = false)]
    is_error: bool,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Content {
    Text(TextContent),
    Image(ImageContent),
    Audio(AudioContent),
    Link(ResourceLink),
    Embedded(EmbeddedResource),
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TextContent {
    #[serde(rename = "type")]
    kind: TextType,
    text: String,
    annotations: Option<Annotations>,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImageContent {
    #[serde(rename = "type")]
    kind: ImageType,
    /// Base64.
    data: String,
    mime_type: String,
    annotations: Option<Annotations>,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AudioContent {
    #[serde(rename = "type")]
    kind: AudioType,
    /// Base64.
    data: String,
    mime_type: String,
    annotations: Option<Annotations>,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
}

/// A resource that the server can be asked for.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceLink {
    #[serde(rename = "type")]
    kind: ResourceLinkType,
    name: String,
    title: Option<String>,
    #[schema(min_length = 1)]
    uri: String,
    description: Option<String>,
    mime_type: Option<String>,
    size: Option<i64>,
    icons: Option<Vec<Icon>>,
    annotations: Option<Annotations>,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EmbeddedResource {
    #[serde(rename = "type")]
    kind: ResourceType,
    resource: ResourceContents,
    annotations: Option<Annotations>,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum TextType {
    Text,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ImageType {
    Image,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum AudioType {
    Audio,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResourceLinkType {
    ResourceLink,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResourceType {
    Resource,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum ResourceContents {
    Text(TextResourceContents),
    Blob(BlobResourceContents),
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TextResourceContents {
    #[schema(min_length = 1)]
    uri: String,
    mime_type: Option<String>,
    text: String,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct BlobResourceContents {
    #[schema(min_length = 1)]
    uri: String,
    mime_type: Option<String>,
    /// Base64.
    blob: String,
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<serde_json::Value>,
}

/// The audience of a piece of content, and its priority.
#[derive(Serialize, ToSchema)]
pub(super) struct Annotations {
    audience: Option<Vec<Audience>>,
    #[schema(minimum = 0, maximum = 1)]
    priority: Option<f64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum Audience {
    User,
    Assistant,
}
