//! JavaScript in the page.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::look;
use crate::tools::answer::{cut, worded};
use crate::tools::bounded::bounded;
use crate::tools::tool::{Caller, ToolResult};

/// Runs JavaScript in the current tab's page and answers with its value as JSON.
///
/// It may be an arrow function, an expression, or statements, of which the last expression or a `return` is the value;
/// `await` works in all of them. What has no value as JSON, such as an element, is described. It is stopped after 30 seconds.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Evaluate {
    /// The script.
    #[schemars(example = "() => document.title")]
    #[schemars(example = "const rows = document.querySelectorAll('tr'); rows.length")]
    #[serde(alias = "expression")]
    script: String,
}

pub(super) async fn evaluate(caller: Caller, Evaluate { script }: Evaluate) -> ToolResult {
    let value = look(&caller, "", |work| async move { work.evaluate(&script).await }).await?;
    let bounded = bounded(&caller.guest.runtime, value.to_string()).await;
    match bounded.hint {
        None => worded(bounded.text, &json!({"result": value})),
        Some(_) => cut(bounded),
    }
}
