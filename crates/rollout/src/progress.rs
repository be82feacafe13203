//! Progress reports of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::outcome::Status;

/// The progress of a run.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    pub total: usize,
    /// Tasks that are done, including those of earlier runners.
    pub done: usize,
    /// Of them, those that were done before this runner started.
    pub done_before: usize,
    pub running: usize,
    /// The current maximum number of concurrent agents.
    pub limit: usize,
    /// Attempts that the infrastructure failed, and that are repeated.
    pub retries: usize,
    pub by_status: BTreeMap<Status, usize>,
    pub is_server_away: bool,
    pub is_stopping: bool,
    pub elapsed: Duration,
}

impl Progress {
    /// The share of successes among tasks with an agent's outcome; none before there is one.
    pub fn success_rate(&self) -> Option<f64> {
        success_rate(&self.by_status)
    }

    /// The estimated remaining time, at the current rate.
    pub fn eta(&self) -> Option<Duration> {
        let done = self.done.checked_sub(self.done_before).filter(|done| *done > 0)?;
        let left = self.total.saturating_sub(self.done);
        Some(self.elapsed.mul_f64(left as f64 / done as f64))
    }
}

/// Infrastructure failures are left out: they say nothing about the agent.
pub(crate) fn success_rate(by_status: &BTreeMap<Status, usize>) -> Option<f64> {
    let of = |status| by_status.get(&status).copied().unwrap_or(0);
    let judged = of(Status::Success) + of(Status::Agent) + of(Status::Timeout);
    (judged > 0).then(|| of(Status::Success) as f64 / judged as f64)
}

/// A receiver of a run's progress.
pub trait Observer: Send + Sync {
    /// Receives changed progress.
    fn changed(&self, progress: &Progress);
    /// Receives a message for people.
    fn note(&self, text: &str);
}
