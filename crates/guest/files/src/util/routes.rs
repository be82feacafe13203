//! The util service in AIO's wire format.

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use utoipa::{OpenApi, ToSchema};

use super::service;
use crate::util::Converter;
use arenite_guest_runtime::http::{Body, Envelope};

/// The service's routes, under `/v1`.
pub fn router(state: Arc<Converter>) -> Router {
    Router::new().route("/v1/util/convert_to_markdown", post(convert_to_markdown)).with_state(state)
}

/// The service's part of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(paths(convert_to_markdown))]
#[derive(Debug)]
pub struct UtilApi;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct UtilConvertToMarkdownRequest {
    /// http, https, file or data.
    uri: String,
}

/// A document or a page as Markdown, by its address.
///
/// What can't be converted answers 200 with `success: false`, as other tools do that fail at what they were asked.
#[utoipa::path(post, path = "/v1/util/convert_to_markdown", tag = "util",
    operation_id = "convert_to_markdown_v1_util_convert_to_markdown_post", request_body = UtilConvertToMarkdownRequest,
    responses((status = 200, body = Envelope<Value>)))]
async fn convert_to_markdown(
    State(converter): State<Arc<Converter>>,
    Body(request): Body<UtilConvertToMarkdownRequest>,
) -> Envelope<String> {
    match service::convert(&converter, &request.uri).await {
        Ok(content) => Envelope {
            success: true,
            message: Some("Operation successful".to_owned()),
            hint: content.truncated.then(|| "there is more than fits into one answer: its end is missing".to_owned()),
            data: Some(content.text),
        },
        Err(error) => {
            let message = error.to_string();
            Envelope { success: false, hint: error.hint(), message: Some(message), data: None }
        }
    }
}
