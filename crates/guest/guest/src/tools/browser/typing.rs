//! Typing, under the name in AIO's README.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::hands::{FormInputFill, fill};
use super::{LIST_ELEMENTS, act};
use crate::tools::tool::{Caller, ToolResult};

/// Types a text: appends it to an element, or types it by keys into the focused one.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Type {
    /// The text.
    #[serde(alias = "value")]
    text: String,
    /// CSS, `text=…`, `role=textbox[name="…"]` or an XPath. Absent: the focused element.
    selector: Option<String>,
    /// Or: the element's index of browser_get_clickable_elements.
    index: Option<i64>,
    /// Replace the existing text instead of appending to it.
    #[serde(default)]
    clear: bool,
}

pub(super) async fn type_text(caller: Caller, Type { text, selector, index, clear }: Type) -> ToolResult {
    if selector.as_ref().is_some_and(|selector| !selector.trim().is_empty()) || index.is_some() {
        return fill(caller, FormInputFill { selector, index, value: text, clear }).await;
    }
    act(&caller, "Typed".to_owned(), LIST_ELEMENTS, |work| async move { Ok(json!(work.type_text(&text, 0.0).await?)) }).await
}
