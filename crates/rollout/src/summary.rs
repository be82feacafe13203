//! The summary of a run.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;

use crate::error::RolloutError;
use crate::journal::History;
use crate::outcome::Status;
use crate::progress::success_rate;
use crate::results::{self, Totals};

/// Totals of a run, over all its runners.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The run's name, the prefix of its workers' ids.
    pub run: String,
    pub agent: String,
    pub tasks: usize,
    pub by_status: BTreeMap<Status, usize>,
    /// Successes among tasks that did not end by a fault of the infrastructure; none if there is no such task.
    pub success_rate: Option<f64>,
    /// Median duration of the deciding attempts, without those that the infrastructure failed.
    pub median_ms: Option<u64>,
    pub p95_ms: Option<u64>,
    /// Attempts that ended by themselves.
    pub attempts: usize,
    /// Attempts that were interrupted, or lost with their runner.
    pub lost: usize,
    /// Time in which a runner was active.
    pub wall_ms: u64,
    pub tasks_per_minute: Option<f64>,
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    /// Tasks with steps that the server recorded.
    pub with_steps: usize,
    /// The result files, in the run's directory.
    pub files: Vec<String>,
}

impl Summary {
    pub(crate) fn new(history: &History, agent: &str, totals: Totals, files: Vec<String>) -> Self {
        let tasks = totals.by_status.values().sum();
        let ends = history.tasks.values().flatten().filter_map(|attempt| Some(attempt.end.as_ref()?.at));
        let rate = |tasks: usize| tasks as f64 / (history.wall_ms as f64 / 60_000.0);
        Self {
            run: history.run.clone(),
            agent: agent.to_owned(),
            tasks,
            success_rate: success_rate(&totals.by_status),
            by_status: totals.by_status,
            median_ms: quantile(&totals.durations, 0.5),
            p95_ms: quantile(&totals.durations, 0.95),
            attempts: totals.attempts,
            lost: totals.lost,
            wall_ms: history.wall_ms,
            tasks_per_minute: (history.wall_ms > 0).then(|| rate(tasks)),
            started_at: history.begun_at,
            ended_at: ends.max().unwrap_or(history.begun_at),
            with_steps: totals.with_steps,
            files,
        }
    }

    /// The number of tasks with this status.
    pub fn count(&self, status: Status) -> usize {
        self.by_status.get(&status).copied().unwrap_or(0)
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<(), RolloutError> {
        let path = dir.join(results::SUMMARY);
        let text = serde_json::to_string_pretty(self).expect("a summary has text keys only");
        results::replace(&path, format!("{text}\n").as_bytes()).map_err(RolloutError::io("write", &path))
    }
}

/// The smallest of sorted values that is at least as large as this share of them.
fn quantile(sorted: &[u64], share: f64) -> Option<u64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_met() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!((quantile(&values, 0.5), quantile(&values, 0.95)), (Some(50), Some(95)));
        assert_eq!((quantile(&[7], 0.5), quantile(&[7], 0.95), quantile(&[], 0.5)), (Some(7), Some(7), None));
    }
}
