//! Tools for pages in the sandbox's browser, which work in the current tab.
//!
//! | file | subject |
//! | --- | --- |
//! | `going.rs` | navigation |
//! | `reading.rs` | text, Markdown, links, downloaded files |
//! | `elements.rs` | usable elements, each with the index that other tools take |
//! | `hands.rs`, `keys.rs` | mouse, forms, keyboard |
//! | `pictures.rs` | screenshots of the page, and clicks in them |
//! | `script.rs` | JavaScript in the page |
//! | `typing.rs` | the keyboard under another name |
//! | `tabs.rs` | tabs, and closing the browser |

mod elements;
mod going;
mod hands;
mod keys;
mod pictures;
mod reading;
mod script;
mod tabs;
mod typing;

use std::sync::Arc;

use serde_json::Value;

use super::answer::worded;
use super::tool::{Caller, Effect, Tool, ToolResult};
use arenite_guest_browser::{self as browser, PageError, Target, Work};
use arenite_guest_runtime::http::ApiError;

/// The hint if an element does not exist, or is not usable.
const LIST_ELEMENTS: &str = "browser_get_clickable_elements lists the page's elements and their indexes as they are now; \
     browser_vision_screen_capture shows the page";
/// The hint if a tab does not exist.
const LIST_TABS: &str = "browser_tab_list tells which tabs there are";

/// The tools, in the order in which they are listed.
pub(super) fn tools() -> Vec<Tool> {
    use Effect::{Anything, Changes, Fetches, Reads};
    vec![
        Tool::new("browser_navigate", "Open a page", Changes, going::navigate),
        Tool::new("browser_go_back", "Go back", Changes, going::back),
        Tool::new("browser_go_forward", "Go forward", Changes, going::forward),
        Tool::new("browser_get_markdown", "Read the page as Markdown", Fetches, reading::markdown),
        Tool::new("browser_get_text", "Read the page's text", Fetches, reading::text),
        Tool::new("browser_read_links", "List the page's links", Fetches, reading::links),
        Tool::new("browser_tab_list", "List the tabs", Reads, tabs::list),
        Tool::new("browser_close_tab", "Close the tab", Anything, tabs::close_tab),
        Tool::new("browser_get_download_list", "List the downloads", Reads, reading::downloads),
        Tool::new("browser_get_clickable_elements", "List the page's elements", Fetches, elements::list),
        Tool::new("browser_close", "Close the browser", Anything, tabs::close),
        Tool::new("browser_vision_screen_capture", "Look at the page", Fetches, pictures::look),
        Tool::new("browser_form_input_fill", "Fill in a field", Anything, hands::fill),
        Tool::new("browser_new_tab", "Open a tab", Changes, tabs::open),
        Tool::new("browser_switch_tab", "Go to a tab", Changes, tabs::switch),
        Tool::new("browser_evaluate", "Run JavaScript in the page", Anything, script::evaluate),
        Tool::new("browser_vision_screen_click", "Click at a place", Anything, pictures::click),
        Tool::new("browser_screenshot", "Take a picture of the page", Fetches, pictures::screenshot),
        Tool::new("browser_click", "Click an element", Anything, hands::click),
        Tool::new("browser_select", "Choose an option", Anything, hands::select),
        Tool::new("browser_hover", "Move the mouse over an element", Changes, hands::hover),
        Tool::new("browser_scroll", "Scroll the page", Changes, hands::scroll),
        Tool::new("browser_press_key", "Press a key", Anything, hands::press_key),
    ]
}

/// Tools that are callable but not listed.
pub(super) fn hidden_tools() -> Vec<Tool> {
    vec![Tool::new("browser_type", "Type a text", Effect::Anything, typing::type_text)]
}

/// Parses a target from a selector or an index. Agents may leave the other empty.
fn target(selector: Option<String>, index: Option<i64>) -> Result<Target, ApiError> {
    let selector = selector.filter(|selector| !selector.trim().is_empty());
    Target::new(selector, index).map_err(|error| failed(error, LIST_ELEMENTS))
}

/// Converts an error for agents. The hint is `hint`, unless the error has its own.
fn failed(error: PageError, hint: &str) -> ApiError {
    let own = match error {
        PageError::Crashed | PageError::Cdp(_) | PageError::Browser(_) => return error.into(),
        PageError::Closed => LIST_TABS,
        _ => hint,
    };
    let error = ApiError::from(error);
    if own.is_empty() { error } else { error.hint(own) }
}

/// Runs an operation that reads the page.
async fn look<T, F>(caller: &Caller, hint: &str, operation: impl FnOnce(Arc<Work>) -> F) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, PageError>>,
{
    browser::work(&caller.guest.browser, operation).await.map_err(|error| failed(error, hint))
}

/// Runs an operation that changes something. The result says what was done, where the page is then, and whether another tab
/// became the current one.
async fn act<F>(caller: &Caller, done: String, hint: &str, operation: impl FnOnce(Arc<Work>) -> F) -> ToolResult
where
    F: Future<Output = Result<Value, PageError>>,
{
    let (mut place, effects) = browser::act(&caller.guest.browser, operation).await.map_err(|error| failed(error, hint))?;
    let word = |key: &str| place[key].as_str().unwrap_or_default().to_owned();
    let mut said = vec![done, format!("Page: {} ({})", word("title"), word("url"))];
    if let Some(more) = place.get("said").and_then(Value::as_str) {
        said.insert(1, more.to_owned());
    }
    if let Some(place) = place.as_object_mut() {
        place.remove("said");
        said.extend(effects.declined);
        if let Some(moved) = effects.moved {
            let hint = format!("{moved}; browser_switch_tab chooses another");
            said.push(format!("Hint: {hint}"));
            place.insert("hint".to_owned(), hint.into());
        }
    }
    worded(said.join("\n"), &place)
}
