//! The progress of bytes: on a terminal a bar, elsewhere a line every few seconds. Both are on stderr.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use indicatif::{ProgressBar, ProgressStyle};

use crate::config::values::Size;

/// Time between lines.
const INTERVAL: Duration = Duration::from_secs(5);

/// A transfer of bytes. Clones are the same transfer.
#[derive(Clone)]
pub(super) struct Transfer(Arc<State>);

struct State {
    what: String,
    bar: ProgressBar,
    has_lines: bool,
    done: AtomicU64,
    /// 0: unknown.
    total: AtomicU64,
    started: Instant,
    /// The time of the last line.
    said: Mutex<Instant>,
}

impl Transfer {
    /// `what` starts each line. A quiet one shows nothing.
    pub(super) fn new(what: impl Into<String>, is_quiet: bool) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let bar = if is_quiet || !is_terminal { ProgressBar::hidden() } else { ProgressBar::no_length() };
        bar.set_style(style("{spinner} {bytes} at {bytes_per_sec}"));
        let now = Instant::now();
        let (done, total) = (AtomicU64::new(0), AtomicU64::new(0));
        let has_lines = !is_quiet && !is_terminal;
        Self(Arc::new(State { what: what.into(), bar, has_lines, done, total, started: now, said: Mutex::new(now) }))
    }

    /// Sets the number of all bytes.
    pub(super) fn expect(&self, total: u64) {
        if self.0.total.swap(total, Ordering::Relaxed) == 0 && total > 0 {
            self.0.bar.set_style(style("{wide_bar} {bytes} of {total_bytes} at {bytes_per_sec}, {eta} left"));
        }
        self.0.bar.set_length(total);
    }

    pub(super) fn add(&self, bytes: u64) {
        self.set(self.0.done.load(Ordering::Relaxed) + bytes);
    }

    /// Sets the number of bytes that are done.
    pub(super) fn set(&self, done: u64) {
        let state = &*self.0;
        state.done.store(done, Ordering::Relaxed);
        state.bar.set_position(done);
        if !state.has_lines {
            return;
        }
        let mut said = state.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.elapsed() >= INTERVAL {
            *said = Instant::now();
            eprintln!("{}: {}", state.what, progress(done, state.total.load(Ordering::Relaxed), state.started.elapsed()));
        }
    }

    /// Counts the bytes of a stream.
    pub(super) fn watch<S: Stream<Item = io::Result<Bytes>>>(
        &self,
        content: S,
    ) -> impl Stream<Item = io::Result<Bytes>> + use<S> {
        let transfer = self.clone();
        content.inspect_ok(move |piece| transfer.add(piece.len() as u64))
    }

    /// Lets the bar move without news.
    pub(super) fn tick(&self) {
        self.0.bar.enable_steady_tick(Duration::from_millis(120));
    }

    /// Prints a line above the bar.
    pub(super) fn say(&self, text: &str) {
        // If the bar is hidden, as in a log, println would drop the line.
        self.0.bar.suspend(|| eprintln!("{text}"));
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        self.0.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is valid")
}

/// Bytes, rate, and remaining time in a line.
fn progress(done: u64, total: u64, took: Duration) -> String {
    let rate = done as f64 / took.as_secs_f64().max(0.001);
    let bytes = Size(done).short();
    if total <= done {
        return format!("{bytes} at {}/s", Size(rate as u64).short());
    }
    let left = if rate < 1.0 { "unknown time".to_owned() } else { format!("{:.0} s", (total - done) as f64 / rate) };
    format!("{bytes} of {} at {}/s, {left} left", Size(total).short(), Size(rate as u64).short())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_bytes_rate_and_remaining_time() {
        let (mib, took) = (1 << 20, Duration::from_secs(10));
        assert_eq!(
            progress(20 * mib, 100 * mib, took),
            format!("{} of {} at {}/s, 40 s left", Size(20 * mib).short(), Size(100 * mib).short(), Size(2 * mib).short())
        );
        assert_eq!(progress(20 * mib, 0, took), format!("{} at {}/s", Size(20 * mib).short(), Size(2 * mib).short()));
        assert!(progress(0, mib, took).ends_with("unknown time left"));
    }
}
