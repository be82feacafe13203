//! What a runner that died left behind: processes without a parent, and workers that the server still keeps sandboxes for.

use std::path::Path;

use jiff::Timestamp;

use crate::agent::{self, WORK};
use crate::error::RolloutError;
use crate::journal::{History, Journal, Line};
use crate::outcome::{End, Status, Trouble};
use crate::server::Server;

/// Ends what still runs of attempts whose end nobody saw. For these it says how many there are.
pub(crate) fn end_orphans(dir: &Path, history: &History) -> usize {
    let mut found = 0;
    for attempt in history.tasks.values().flatten().filter(|attempt| attempt.end.is_none()) {
        agent::end_leftovers(&agent::result_of(&dir.join(WORK).join(&attempt.worker_id)));
        found += 1;
    }
    found
}

/// Tells the server of workers that it doesn't know to be gone. Without a journal nothing is noted: it is about to be removed.
pub(crate) async fn disconnect_all(
    server: &Server,
    history: &mut History,
    journal: Option<&Journal>,
) -> Result<(), RolloutError> {
    for (task, attempts) in &mut history.tasks {
        for attempt in attempts.iter_mut().filter(|attempt| attempt.end.as_ref().is_none_or(|end| !end.disconnected)) {
            let (disconnected, _) = server.disconnect(&attempt.worker_id).await;
            let line = match &mut attempt.end {
                Some(end) => {
                    end.disconnected = disconnected;
                    if !disconnected {
                        continue;
                    }
                    Line::Disconnected { task: *task, attempt: attempt.number }
                }
                None => {
                    let at = Timestamp::now();
                    let end = End {
                        status: Status::Lost,
                        is_final: false,
                        error: Some(Trouble::new("lost", "the runner died while the agent ran")),
                        exit_code: None,
                        result: None,
                        duration_ms: 0,
                        disconnected,
                        at,
                    };
                    attempt.end = Some(end.clone());
                    Line::End { task: *task, attempt: attempt.number, end }
                }
            };
            if let Some(journal) = journal {
                journal.append(&line).await?;
            }
        }
    }
    Ok(())
}
