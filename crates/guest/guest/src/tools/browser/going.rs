//! Navigation.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::elements::{self, Elements};
use super::{act, look};
use crate::tools::answer::worded;
use crate::tools::tool::{Caller, ToolResult};
use arenite_guest_browser::WaitUntil;

/// Timeout for a page, in seconds.
const PATIENCE: f64 = 30.0;
/// Time to wait for its resources after that.
const COMPLETE: Duration = Duration::from_secs(10);
/// Elements of an opened page that the answer lists.
const FIRST: usize = 50;

/// Opens an address in the current tab, waits for the page, and answers with its address, its title and the first elements
/// that can be used, each with the index that browser_click and others take.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Navigate {
    /// The address. Without a scheme https is meant; http for this machine. `file://` opens files of the sandbox.
    #[schemars(example = "https://example.com/")]
    url: String,
}

pub(super) async fn navigate(caller: Caller, Navigate { url }: Navigate) -> ToolResult {
    let hint = "check the address; what listens in the sandbox itself is at http://127.0.0.1:PORT/";
    caller.progress.tell(format!("opening {url}")).await;
    let (place, status, complete, found) = look(&caller, hint, |work| async move {
        let (_, status) = work.navigate(&url, WaitUntil::DomContentLoaded, PATIENCE).await?;
        let complete = work.complete(COMPLETE).await?;
        let found = work.elements().await?;
        Ok((work.location(), status, complete, found))
    })
    .await?;
    let mut said = vec![format!("Opened {}", place.url), format!("Title: {}", place.title)];
    if let Some(status) = status {
        said.push(format!("Status: {status}"));
    }
    if !complete {
        said.push(format!("Some of the page was not loaded after {} s", COMPLETE.as_secs()));
    }
    let Elements { shown, left } = elements::first(found, FIRST);
    said.push(String::new());
    said.push(elements::in_words(&shown, left));
    let answer = json!({
        "url": place.url, "title": place.title, "status": status, "complete": complete, "elements": shown, "elements_left": left,
    });
    worded(said.join("\n"), &answer)
}

/// Goes back to the page before, in the current tab.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct GoBack {}

pub(super) async fn back(caller: Caller, GoBack {}: GoBack) -> ToolResult {
    let hint = "browser_navigate opens any page";
    act(&caller, "Went back".to_owned(), hint, |work| async move { Ok(json!(work.history(-1).await?)) }).await
}

/// Goes forward to the page that browser_go_back came from, in the current tab.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct GoForward {}

pub(super) async fn forward(caller: Caller, GoForward {}: GoForward) -> ToolResult {
    let hint = "browser_navigate opens any page";
    act(&caller, "Went forward".to_owned(), hint, |work| async move { Ok(json!(work.history(1).await?)) }).await
}
