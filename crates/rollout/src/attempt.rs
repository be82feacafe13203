//! One attempt at a task, from its start in the journal to its end there.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::agent::Workshop;
use crate::error::RolloutError;
use crate::journal::{Journal, Line};
use crate::outcome::{End, How, Seen, Status, judge};
use crate::progress::Observer;
use crate::results::Records;
use crate::server::{Absence, Presence, Server};
use crate::task::Task;

/// Time to report a worker's end to the server when the run stops.
const FAREWELL: Duration = Duration::from_secs(10);

/// State that attempts share.
pub(crate) struct Bench {
    pub(crate) run: String,
    pub(crate) workshop: Workshop,
    pub(crate) server: Arc<Server>,
    pub(crate) presence: watch::Receiver<Presence>,
    pub(crate) absence: Absence,
    pub(crate) journal: Arc<Journal>,
    pub(crate) records: Arc<Records>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) attempts: u32,
    pub(crate) agent_retries: u32,
}

/// Identifies an attempt, and describes earlier ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) task: usize,
    pub(crate) number: u32,
    pub(crate) by_infrastructure: u32,
    pub(crate) by_agent: u32,
}

/// The result of an attempt, for the scheduler.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) task: usize,
    pub(crate) status: Status,
    pub(crate) is_final: bool,
    /// The server answered 429.
    pub(crate) server_was_busy: bool,
}

/// The worker id of an attempt's agent: unique among all runs and attempts, and stable. Letters, digits and hyphens, at most 32
/// characters, since it names a trajectory.
pub(crate) fn worker_id(run: &str, task: usize, attempt: u32) -> String {
    format!("r{run}-t{}-a{attempt}", task + 1)
}

impl Bench {
    pub(crate) async fn make(&self, attempt: Attempt, task: &Task) -> Result<Done, RolloutError> {
        let worker = worker_id(&self.run, attempt.task, attempt.number);
        let start = Line::Start {
            task: attempt.task,
            id: task.id.clone(),
            attempt: attempt.number,
            worker_id: worker.clone(),
            at: Timestamp::now(),
        };
        self.journal.append(&start).await?;
        let absences = self.presence.borrow().absences;
        let ended = self.workshop.run(&self.server, task, &worker).await;
        let exit_code = match ended.how {
            How::Exit(code) => Some(code),
            _ => None,
        };
        let mut seen = Seen { how: ended.how, result: ended.result, server_was_away: false };
        let timeout = self.workshop.timeout.as_secs_f64();
        let (mut status, mut error) = judge(&seen, timeout);
        // Only then can the server's death excuse a failure.
        if matches!(status, Status::Agent | Status::Timeout) {
            let was_away = || self.presence.borrow().absences > absences;
            let is_away = self.server.is_away().await;
            if is_away {
                self.absence.tell();
            }
            seen.server_was_away = is_away || was_away();
            (status, error) = judge(&seen, timeout);
        }
        let (disconnected, server_was_busy) = self.disconnect(&worker).await;
        let is_final = match status {
            Status::Success | Status::Timeout => true,
            Status::Agent => attempt.by_agent >= self.agent_retries,
            Status::Infrastructure => attempt.by_infrastructure + 1 >= self.attempts,
            Status::Interrupted | Status::Lost => false,
        };
        let end = End {
            status,
            is_final,
            error,
            exit_code,
            result: seen.result.ok().flatten(),
            duration_ms: u64::try_from(ended.took.as_millis()).unwrap_or(u64::MAX),
            disconnected,
            at: Timestamp::now(),
        };
        self.journal.append(&Line::End { task: attempt.task, attempt: attempt.number, end }).await?;
        if is_final && !self.workshop.stop.is_cancelled() {
            self.records.fetch(&worker, &*self.observer).await;
        }
        Ok(Done { task: attempt.task, status, is_final, server_was_busy })
    }

    /// Makes the server remove what the agent may have left. When the run stops, this has little time; a runner that continues
    /// the run reports it again.
    async fn disconnect(&self, worker: &str) -> (bool, bool) {
        let hurry = async {
            self.workshop.stop.cancelled().await;
            tokio::select! {
                () = sleep(FAREWELL) => {}
                () = self.workshop.at_once.cancelled() => {}
            }
        };
        tokio::select! {
            heard = self.server.disconnect(worker) => heard,
            () = hurry => (false, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_id_is_short_enough_for_a_trajectory() {
        let id = worker_id("0123abcd", 9_999_999, 999);
        assert_eq!(id, "r0123abcd-t10000000-a999");
        assert!(id.len() <= 32);
    }
}
