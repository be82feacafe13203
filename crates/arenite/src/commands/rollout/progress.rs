//! The progress of a run: a bar on a terminal, else a line every few seconds.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

use arenite_rollout::{Observer, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::MissedTickBehavior;

use super::duration;
use crate::output;

/// Interval between lines without a bar.
const EVERY: Duration = Duration::from_secs(5);

pub(crate) struct Shown {
    /// None if stderr is no terminal.
    bar: Option<ProgressBar>,
    last: Mutex<Option<Progress>>,
}

impl Shown {
    pub(crate) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {wide_msg}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, last: Mutex::new(None) }
    }

    /// Waits for the run, and writes lines meanwhile if there is no bar.
    pub(crate) async fn while_it_runs<T>(&self, run: impl Future<Output = T>) -> T {
        let mut run = std::pin::pin!(run);
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + EVERY, EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                outcome = &mut run => {
                    if let Some(bar) = &self.bar {
                        bar.finish_and_clear();
                    }
                    return outcome;
                }
                _ = ticks.tick(), if self.bar.is_none() => {
                    if let Some(last) = self.last() {
                        eprintln!("{}/{} done, {}", last.done, last.total, told(&last));
                    }
                }
            }
        }
    }

    /// Prints a message beside the bar. Part of it may be from a server.
    pub(crate) fn say(&self, text: &str) {
        let text = output::harmless(text);
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    pub(crate) fn last(&self) -> Option<Progress> {
        self.last.lock().ok()?.clone()
    }
}

impl Observer for Shown {
    fn changed(&self, progress: &Progress) {
        if let Some(bar) = &self.bar {
            bar.set_length(progress.total as u64);
            bar.set_position(progress.done as u64);
            bar.set_message(told(progress));
        }
        if let Ok(mut last) = self.last.lock() {
            *last = Some(progress.clone());
        }
    }

    fn note(&self, text: &str) {
        self.say(text);
    }
}

fn told(progress: &Progress) -> String {
    let mut parts = vec![format!("{} running", progress.running)];
    if let Some(rate) = progress.success_rate() {
        parts.push(format!("{:.0}% success", rate * 100.0));
    }
    match progress.retries {
        0 => {}
        1 => parts.push("1 retry".to_owned()),
        retries => parts.push(format!("{retries} retries")),
    }
    if progress.is_stopping {
        parts.push("stopping".to_owned());
    } else if progress.is_server_away {
        parts.push("waiting for the server".to_owned());
    } else if let Some(left) = progress.eta().filter(|left| !left.is_zero()) {
        parts.push(format!("about {} left", duration(left)));
    }
    parts.join(", ")
}
