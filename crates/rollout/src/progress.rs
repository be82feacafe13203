//! What of a run is told while it goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::outcome::Status;

/// How far a run is.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    pub total: usize,
    /// Tasks that are done, those of earlier runners among them.
    pub done: usize,
    /// Of them, those that were done before this runner began.
    pub done_before: usize,
    pub running: usize,
    /// How many may run at this time.
    pub limit: usize,
    /// Attempts that the infrastructure failed, and that are made again.
    pub retries: usize,
    pub by_status: BTreeMap<Status, usize>,
    pub is_server_away: bool,
    pub is_stopping: bool,
    pub elapsed: Duration,
}

impl Progress {
    /// The share of successes among tasks that say something of the agent; nothing before there is one.
    pub fn success_rate(&self) -> Option<f64> {
        success_rate(&self.by_status)
    }

    /// The time that is left, if things go on as they do.
    pub fn eta(&self) -> Option<Duration> {
        let done = self.done.checked_sub(self.done_before).filter(|done| *done > 0)?;
        let left = self.total.saturating_sub(self.done);
        Some(self.elapsed.mul_f64(left as f64 / done as f64))
    }
}

/// What the infrastructure failed is left out: it says nothing of the agent.
pub(crate) fn success_rate(by_status: &BTreeMap<Status, usize>) -> Option<f64> {
    let of = |status| by_status.get(&status).copied().unwrap_or(0);
    let judged = of(Status::Success) + of(Status::Agent) + of(Status::Timeout);
    (judged > 0).then(|| of(Status::Success) as f64 / judged as f64)
}

/// Whoever watches a run.
pub trait Observer: Send + Sync {
    /// Something has changed.
    fn changed(&self, progress: &Progress);
    /// Something that a person should know.
    fn note(&self, text: &str);
}
