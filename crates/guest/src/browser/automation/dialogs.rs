//! Dialogs of pages, which hold up everything in their tab.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::Instant;

use super::super::cdp::CdpError;
use super::super::page::PageError;
use super::tab::{EVER, Message, Tab};

/// One that is shown.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::browser) struct Dialog {
    pub(super) message: String,
    /// `alert`, `confirm`, `prompt` or `beforeunload`.
    pub(super) r#type: String,
}

impl Tab {
    /// Answers each dialog that is shown, for as long as it is polled. Nobody is asked: questions are declined, but a page
    /// that is left is left. The console tells of it. While no operation works in the tab, a dialog stays for a person or
    /// another client.
    pub(super) async fn answer_dialogs(&self) -> CdpError {
        loop {
            let dialog = match self.until(Instant::now() + EVER, |state| state.dialog.take()).await {
                Ok(Some(dialog)) => dialog,
                Ok(None) => continue,
                Err(PageError::Cdp(error)) => return error,
                // Whoever polls this hears of it by itself.
                Err(_) => return std::future::pending().await,
            };
            let accept = matches!(dialog.r#type.as_str(), "alert" | "beforeunload");
            // Somebody else may have answered first.
            let answered: Result<IgnoredAny, _> = self.call("Page.handleJavaScriptDialog", json!({"accept": accept})).await;
            if let Err(CdpError::Closed) = answered {
                return CdpError::Closed;
            }
            let answer = if accept { "accepted" } else { "declined" };
            let text = format!("{} {answer}: {}", dialog.r#type, dialog.message);
            let timestamp = jiff::Timestamp::now().as_millisecond() as f64 / 1000.0;
            self.note(|state| {
                state.say(Message { kind: "dialog".to_owned(), text, timestamp, url: None, line: None, column: None });
            });
        }
    }
}
