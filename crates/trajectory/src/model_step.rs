//! Calls of models as steps.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::MAX_TEXT;
use crate::recorder::cut;

/// The dialect of steps that are calls of models.
pub const MODEL_DIALECT: &str = "model";

/// A call of a model. Its request is the step's `arguments`. Its answer is the `observation`, put together if it was streamed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelStep {
    /// The model route of the tenant.
    pub route: String,
    /// The model that the request names.
    pub model: String,
    /// The answer was streamed.
    pub stream: bool,
    /// Tokens of the request, also those that the upstream had in its cache.
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    /// The part of the completion that is reasoning.
    pub reasoning_tokens: Option<u64>,
    /// The upstream gave no counts: tokens are a quarter of the bytes.
    pub estimated: bool,
    /// In dollars, by the prices of the route; null: it has none for the model.
    pub cost_usd: Option<f64>,
    /// From the request to the first byte of the answer's content.
    pub first_token_ms: Option<f64>,
    /// As the upstream says it, such as `stop` or `tool_use`.
    pub finish_reason: Option<String>,
}

impl ModelStep {
    /// Bounds what a client and an upstream chose.
    pub(crate) fn shortened(self) -> Self {
        let finish_reason = self.finish_reason.map(|reason| cut(reason, MAX_TEXT));
        Self { model: cut(self.model, MAX_TEXT), finish_reason, ..self }
    }
}
