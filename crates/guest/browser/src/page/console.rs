//! The page's console.

use serde::Serialize;
use utoipa::ToSchema;

use super::super::automation::Message;
use super::super::files::write;
use super::{PageError, Work};
use arenite_guest_runtime::Runtime;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Exported {
    save_path: String,
    count: usize,
}

impl Work {
    /// Returns the messages of the page's console, the oldest first.
    pub(super) fn console(&self, clear: bool) -> Vec<Message> {
        let mut state = self.tab.state();
        if clear { state.console.drain(..).collect() } else { state.console.iter().cloned().collect() }
    }

    /// Writes the messages to a file of the sandbox, as JSON.
    pub(super) async fn export_console(&self, runtime: &Runtime, path: &str, clear: bool) -> Result<Exported, PageError> {
        let messages = self.console(false);
        let json = serde_json::to_vec_pretty(&messages).map_err(|error| PageError::Failed(error.to_string()))?;
        let (save_path, _) = write(runtime, path, json).await?;
        if clear {
            self.tab.state().console.clear();
        }
        Ok(Exported { save_path, count: messages.len() })
    }
}
