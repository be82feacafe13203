//! The content of a page, and files that were downloaded.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::look;
use crate::tools::answer::{cut, worded};
use crate::tools::bounded::bounded;
use crate::tools::tool::{Caller, ToolResult};
use arenite_guest_browser::{Download, DownloadProgress};

/// Maximum links of one answer.
const MOST_LINKS: usize = 500;

/// Reads the main content of the current tab's page as Markdown, with its links. What is longer than 30,000 characters is cut
/// in the middle, and all of it kept in a file.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct GetMarkdown {}

pub(super) async fn markdown(caller: Caller, GetMarkdown {}: GetMarkdown) -> ToolResult {
    let read = |work: std::sync::Arc<arenite_guest_browser::Work>| async move { work.markdown().await };
    let content = look(&caller, "browser_get_text reads the page's text as it is", read).await?;
    let mut content_cut = bounded(&caller.guest.runtime, content.markdown).await;
    if content.truncated {
        let more = "the page is longer than what was made Markdown of: browser_evaluate can cut parts out of it";
        content_cut.hint = Some(content_cut.hint.map_or(more.to_owned(), |hint| format!("{hint}; {more}")));
    }
    cut(content_cut)
}

/// Reads what the current tab's page shows, as plain text. What is longer than 30,000 characters is cut in the middle, and
/// all of it kept in a file.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct GetText {}

pub(super) async fn text(caller: Caller, GetText {}: GetText) -> ToolResult {
    let hint = "browser_evaluate can cut a part out of the page";
    let text = look(&caller, hint, |work| async move { work.text().await }).await?;
    cut(bounded(&caller.guest.runtime, text).await)
}

/// Lists where the links of the current tab's page and its frames lead, and what they are called.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ReadLinks {}

pub(super) async fn links(caller: Caller, ReadLinks {}: ReadLinks) -> ToolResult {
    let hint = "browser_get_markdown reads the page with its links";
    let mut found = look(&caller, hint, |work| async move { work.links().await }).await?;
    let left = found.len().saturating_sub(MOST_LINKS);
    found.truncate(MOST_LINKS);
    let word = |link: &Value, key: &str| link[key].as_str().unwrap_or_default().to_owned();
    let mut said: Vec<String> = found.iter().map(|link| format!("[{}]({})", word(link, "text"), word(link, "href"))).collect();
    if said.is_empty() {
        said.push("The page has no links.".to_owned());
    }
    if left > 0 {
        said.push(format!("[… {left} more …]\nHint: browser_evaluate can choose among all links of the page"));
    }
    worded(said.join("\n"), &json!({"links": found, "links_left": left}))
}

/// Lists the files that pages had the browser download: name, address, where the file is in the sandbox once it is whole, and
/// whether it is `in_progress`, `completed` or `canceled`. The oldest comes first.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct GetDownloadList {}

pub(super) async fn downloads(Caller { guest, .. }: Caller, GetDownloadList {}: GetDownloadList) -> ToolResult {
    let told: Vec<Value> = guest.browser.downloads().await?.into_iter().map(told).collect();
    let word = |download: &Value, key: &str| download[key].as_str().unwrap_or("not there yet").to_owned();
    let line = |download: &Value| {
        let [filename, status, path, url] = ["filename", "status", "path", "url"].map(|key| word(download, key));
        format!("{filename} ({status}): {path}, from {url}")
    };
    let said: Vec<String> = told.iter().map(line).collect();
    let said = if said.is_empty() { "Nothing was downloaded.".to_owned() } else { said.join("\n") };
    worded(said, &json!({"downloads": told}))
}

fn told(download: Download) -> Value {
    let status = match download.progress {
        DownloadProgress::Running => "in_progress",
        DownloadProgress::Whole => "completed",
        DownloadProgress::Broken => "canceled",
    };
    // The file may have got a number appended.
    let own = download.path.as_deref().and_then(|path| path.rsplit('/').next());
    let filename = own.unwrap_or(&download.filename);
    json!({"filename": filename, "url": download.url, "path": download.path, "status": status})
}
