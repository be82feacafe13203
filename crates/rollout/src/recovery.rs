//! Cleans up after a runner that died: processes without a parent, and workers with sandboxes on the server.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::agent::{self, WORK};
use crate::error::RolloutError;
use crate::journal::{History, Journal, Line};
use crate::outcome::{End, Status, Trouble};
use crate::server::Server;

/// Workers that are reported to the server concurrently.
const TOLD: usize = 16;

/// Ends the remaining processes of attempts without a recorded end, and returns the number of such attempts.
pub(crate) fn end_orphans(dir: &Path, history: &History) -> usize {
    let open = history.tasks.values().flatten().filter(|attempt| attempt.end.is_none());
    let results: Vec<_> = open.map(|attempt| agent::result_of(&dir.join(WORK).join(&attempt.worker_id))).collect();
    if !results.is_empty() {
        agent::end_leftovers(&results);
    }
    results.len()
}

/// Reports ended workers to the server that it doesn't know of, and records lost attempts in the journal. Without a journal
/// nothing is recorded: it is about to be removed.
pub(crate) async fn disconnect_all(
    server: &Arc<Server>,
    history: &mut History,
    journal: Option<&Journal>,
) -> Result<(), RolloutError> {
    let permits = Arc::new(Semaphore::new(TOLD));
    let mut told = JoinSet::new();
    for (task, attempts) in &history.tasks {
        for (place, attempt) in attempts.iter().enumerate() {
            if attempt.end.as_ref().is_some_and(|end| end.disconnected) {
                continue;
            }
            let (task, worker) = (*task, attempt.worker_id.clone());
            let (server, permits) = (Arc::clone(server), Arc::clone(&permits));
            told.spawn(async move {
                let permit = permits.acquire().await;
                let (disconnected, _) = server.disconnect(&worker).await;
                drop(permit);
                (task, place, disconnected)
            });
        }
    }
    while let Some(one) = told.join_next().await {
        let Ok((task, place, disconnected)) = one else { continue };
        let Some(attempt) = history.tasks.get_mut(&task).and_then(|attempts| attempts.get_mut(place)) else { continue };
        let line = match &mut attempt.end {
            Some(end) if disconnected => {
                end.disconnected = true;
                Line::Disconnected { task, attempt: attempt.number }
            }
            Some(_) => continue,
            None => {
                let end = lost(disconnected);
                attempt.end = Some(end.clone());
                Line::End { task, attempt: attempt.number, end }
            }
        };
        if let Some(journal) = journal {
            journal.append(&line).await?;
        }
    }
    Ok(())
}

fn lost(disconnected: bool) -> End {
    End {
        status: Status::Lost,
        is_final: false,
        error: Some(Trouble::new("lost", "the runner died while the agent ran")),
        exit_code: None,
        result: None,
        duration_ms: 0,
        disconnected,
        at: Timestamp::now(),
    }
}
