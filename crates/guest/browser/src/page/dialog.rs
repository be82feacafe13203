//! Dialogs of the page (`alert`, `confirm`, `prompt`, leaving), answered by a caller.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

use super::super::automation::{AnsweredDialog, Dialog, DialogAnswer};
use super::PageError;
use crate::BrowserService;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct DialogRequest {
    /// Whether to accept the dialog.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub accept: bool,
    /// The answer to an accepted `prompt`. Absent: its default text.
    #[serde(alias = "prompt_text")]
    pub text: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DialogState {
    /// The dialog that is shown, which blocks the page.
    dialog: Option<Dialog>,
    /// The answer to the next dialog, if a call has set one.
    next: Option<DialogAnswer>,
    /// The answered dialogs, the oldest first, at most 20.
    answered: Vec<AnsweredDialog>,
}

/// Returns the dialogs of the current tab. Does not answer any.
pub(super) async fn state(service: &Arc<BrowserService>) -> Result<DialogState, PageError> {
    let tab = service.automation().await?.tab().await?;
    let state = tab.state();
    let dialogs = state.dialogs();
    Ok(DialogState {
        dialog: dialogs.shown.clone(),
        next: dialogs.next.clone(),
        answered: dialogs.answered.iter().cloned().collect(),
    })
}

/// Answers the dialog that is shown, or sets the answer for the current tab's next one. Returns whether one was shown.
pub(super) async fn answer(service: &Arc<BrowserService>, request: DialogRequest) -> Result<bool, PageError> {
    let tab = service.automation().await?.tab().await?;
    Ok(tab.answer_dialog(DialogAnswer { accept: request.accept, text: request.text }).await?)
}
