//! Tabs, and closing the browser.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{LIST_TABS, failed};
use crate::tools::answer::worded;
use crate::tools::tool::{Caller, ToolResult, text};
use arenite_guest_browser::{self as browser, TabTold};
use arenite_guest_runtime::http::ApiError;

/// Lists the tabs: index, title, address, and which of them is the current one, in which the other tools work.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TabList {}

pub(super) async fn list(caller: Caller, TabList {}: TabList) -> ToolResult {
    let tabs = all(&caller).await?;
    worded(in_words(&tabs), &json!({"tabs": tabs}))
}

/// Opens an address in a new tab, which becomes the current one.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct NewTab {
    /// The address, as browser_navigate takes it.
    #[schemars(example = "https://example.com/")]
    url: String,
}

pub(super) async fn open(caller: Caller, NewTab { url }: NewTab) -> ToolResult {
    let hint = "check the address; no tab was left open";
    let tab = browser::opened(&caller.guest.browser, Some(url.as_str()).filter(|url| !url.trim().is_empty())).await;
    let tab = tab.map_err(|error| failed(error, hint))?;
    worded(format!("Opened a tab\n{}", line(&tab)), &tab)
}

/// Goes to another tab, which becomes the current one.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct SwitchTab {
    /// The tab, from browser_tab_list. The first is 0.
    index: i64,
}

pub(super) async fn switch(caller: Caller, SwitchTab { index }: SwitchTab) -> ToolResult {
    let tab = browser::shown(&caller.guest.browser, index).await.map_err(|error| failed(error, LIST_TABS))?;
    worded(format!("Went to a tab\n{}", line(&tab)), &tab)
}

/// Closes the current tab; the one used before it becomes the current one. The last tab is replaced by an empty one.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CloseTab {}

pub(super) async fn close_tab(caller: Caller, CloseTab {}: CloseTab) -> ToolResult {
    browser::closed(&caller.guest.browser, None).await.map_err(|error| failed(error, LIST_TABS))?;
    let tabs = all(&caller).await?;
    worded(format!("Closed the tab. There are now:\n{}", in_words(&tabs)), &json!({"tabs": tabs}))
}

/// Closes the browser with all its tabs. Cookies and logins stay. The next call of a browser tool starts it again.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Close {}

pub(super) async fn close(Caller { guest, .. }: Caller, Close {}: Close) -> ToolResult {
    guest.browser.stop().await;
    text("The browser is closed; the next call of a browser tool starts it again")
}

async fn all(caller: &Caller) -> Result<Vec<TabTold>, ApiError> {
    browser::known(&caller.guest.browser).await.map_err(|error| failed(error, ""))
}

fn in_words(tabs: &[TabTold]) -> String {
    tabs.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn line(tab: &TabTold) -> String {
    let current = if tab.active { " (current)" } else { "" };
    format!("[{}] {} ({}){current}", tab.index, tab.title, tab.url)
}
