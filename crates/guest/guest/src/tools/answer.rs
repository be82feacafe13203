//! Answers of several parts: text for agents, the same as JSON for programs, and images.

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

use super::bounded::Bounded;
use super::tool::ToolResult;
use arenite_guest_runtime::http::ApiError;

/// Maximum bytes of an image: models accept no larger ones.
pub(super) const MAX_PICTURE: usize = 3_700_000;

/// Builds a result with text for agents and JSON for programs.
pub(super) fn worded(text: impl Into<String>, answer: &impl Serialize) -> ToolResult {
    tool_result(vec![ContentBlock::text(text.into())], answer)
}

/// Builds a result with a text, and a hint how to read the rest if it was cut.
pub(super) fn cut(bounded: Bounded) -> ToolResult {
    let hint = bounded.hint.map(|hint| ContentBlock::text(format!("Hint: {hint}")));
    Ok(CallToolResult::success([ContentBlock::text(bounded.text)].into_iter().chain(hint).collect()))
}

/// Builds a result with an image, its description, and JSON for programs.
pub(super) fn picture(file: &[u8], media_type: &str, text: impl Into<String>, answer: &impl Serialize) -> ToolResult {
    tool_result(vec![ContentBlock::image(STANDARD.encode(file), media_type), ContentBlock::text(text.into())], answer)
}

fn tool_result(content: Vec<ContentBlock>, answer: &impl Serialize) -> ToolResult {
    let value = serde_json::to_value(answer)
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the answer is no JSON: {error}")))?;
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(value);
    Ok(result)
}
