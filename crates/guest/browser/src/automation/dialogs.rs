//! Dialogs of pages, which block everything in their tab.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::super::page::PageError;
use super::tab::{EVER, Message, Tab};
use arenite_guest_cdp::CdpError;

/// Maximum answered dialogs that are kept per tab.
const MAX_ANSWERED: usize = 20;
/// Maximum characters of a dialog's message that are kept.
const MAX_TEXT: usize = 4000;

/// A dialog that is shown.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
pub(crate) struct Dialog {
    /// `alert`, `confirm`, `prompt` or `beforeunload`.
    pub(super) r#type: String,
    pub(super) message: String,
    /// The default text of a `prompt`.
    #[serde(rename(deserialize = "defaultPrompt"), default)]
    pub(super) default_value: String,
}

/// The answer to a dialog.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct DialogAnswer {
    pub accept: bool,
    /// The text for a `prompt`; none: its default.
    pub text: Option<String>,
}

/// An answered dialog.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct AnsweredDialog {
    #[serde(flatten)]
    dialog: Dialog,
    accepted: bool,
    /// No call had set an answer: alerts and leaving are accepted, questions declined.
    by_default: bool,
}

impl std::fmt::Display for AnsweredDialog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let answer = if self.accepted { "accepted" } else { "declined" };
        let message: String = self.dialog.message.chars().take(200).collect();
        write!(f, "the page's {} {message:?} was {answer}", self.dialog.r#type)
    }
}

/// The recorded dialogs of a tab.
#[derive(Debug, Default)]
pub(crate) struct Dialogs {
    pub shown: Option<Dialog>,
    pub next: Option<DialogAnswer>,
    pub answered: VecDeque<AnsweredDialog>,
    /// The total number of answered dialogs.
    count: usize,
}

impl Dialogs {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the questions that were answered by default since the total was `count`.
    pub(crate) fn defaulted_since(&self, count: usize) -> Vec<String> {
        let new = self.answered.iter().rev().take(self.count.saturating_sub(count));
        let questions = new.filter(|one| one.by_default && !one.accepted);
        questions.map(ToString::to_string).collect()
    }

    fn note(&mut self, answered: AnsweredDialog) {
        if self.answered.len() == MAX_ANSWERED {
            self.answered.pop_front();
        }
        self.answered.push_back(answered);
        self.count += 1;
    }
}

impl Tab {
    /// Answers each dialog that is shown, while it is polled: as a call has set, or else so that the page continues, which
    /// declines questions. Each answer is logged to the console. While no operation works in the tab, a dialog stays for a
    /// person, another client, or [`Self::answer_dialog`].
    pub(super) async fn answer_dialogs(&self) -> CdpError {
        loop {
            let dialog = self.until(Instant::now() + EVER, |state| {
                let dialog = state.dialogs.shown.take()?;
                Some((dialog, state.dialogs.next.take()))
            });
            let (dialog, wanted) = match dialog.await {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(PageError::Cdp(error)) => return error,
                // The operation that polls this gets the same error from the tab.
                Err(_) => return std::future::pending().await,
            };
            if let Err(CdpError::Closed) = self.close_dialog(dialog, wanted).await {
                return CdpError::Closed;
            }
        }
    }

    /// Answers the dialog that is shown, or else the next one. Returns whether one was shown.
    pub(crate) async fn answer_dialog(&self, answer: DialogAnswer) -> Result<bool, CdpError> {
        let shown = {
            let mut state = self.state();
            let shown = state.dialogs.shown.take();
            if shown.is_none() {
                state.dialogs.next = Some(answer.clone());
            }
            shown
        };
        match shown {
            Some(dialog) => self.close_dialog(dialog, Some(answer)).await.map(|()| true),
            None => Ok(false),
        }
    }

    async fn close_dialog(&self, mut dialog: Dialog, wanted: Option<DialogAnswer>) -> Result<(), CdpError> {
        let by_default = wanted.is_none();
        let accept = wanted.as_ref().map_or(matches!(dialog.r#type.as_str(), "alert" | "beforeunload"), |wanted| wanted.accept);
        let mut params = json!({"accept": accept});
        if dialog.r#type == "prompt" && accept {
            let text = wanted.and_then(|wanted| wanted.text).unwrap_or_else(|| dialog.default_value.clone());
            params["promptText"] = text.into();
        }
        // Another client may have answered first.
        match self.effect("Page.handleJavaScriptDialog", params).await {
            Err(CdpError::Refused { .. }) => return Ok(()),
            answered => answered?,
        }
        let answer = if accept { "accepted" } else { "declined" };
        let text = format!("{} {answer}: {}", dialog.r#type, dialog.message);
        let timestamp = jiff::Timestamp::now().as_millisecond() as f64 / 1000.0;
        dialog.message = dialog.message.chars().take(MAX_TEXT).collect();
        self.note(|state| {
            state.say(Message { kind: "dialog".to_owned(), text, timestamp, url: None, line: None, column: None });
            state.dialogs.note(AnsweredDialog { dialog, accepted: accept, by_default });
        });
        Ok(())
    }
}
