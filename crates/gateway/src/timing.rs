//! Durations of a request's stages, for `Server-Timing`.

use std::fmt::Write;
use std::time::{Duration, Instant};

use http::HeaderValue;

/// Stages in order, each from the end of the one before.
pub(crate) struct Timing {
    begun: Instant,
    last: Instant,
    stages: Vec<(&'static str, Duration)>,
}

impl Timing {
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        Self { begun: now, last: now, stages: Vec::with_capacity(6) }
    }

    /// Ends the current stage.
    pub(crate) fn mark(&mut self, stage: &'static str) {
        self.mark_at(stage, Instant::now());
    }

    /// Ends the current stage at an earlier time.
    pub(crate) fn mark_at(&mut self, stage: &'static str, at: Instant) {
        self.stages.push((stage, at.saturating_duration_since(self.last)));
        self.last = at;
    }

    /// Adds a duration that other stages contain.
    pub(crate) fn add(&mut self, part: &'static str, took: Duration) {
        self.stages.push((part, took));
    }

    pub(crate) fn total(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Milliseconds with microsecond precision: `target;dur=0.012, …, total;dur=1.034`.
    pub(crate) fn header(&self) -> HeaderValue {
        let mut text = String::with_capacity(128);
        let total = ("total", self.total());
        for (stage, took) in self.stages.iter().chain([&total]) {
            let comma = if text.is_empty() { "" } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(text, "{comma}{stage};dur={:.3}", took.as_secs_f64() * 1e3);
        }
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_stand_in_their_order() {
        let mut timing = Timing::start();
        timing.mark("target");
        timing.mark("wake");
        timing.add("store", Duration::from_millis(2));
        let header = timing.header();
        let names: Vec<_> = header.to_str().unwrap().split(", ").map(|s| s.split(';').next().unwrap()).collect();
        assert_eq!(names, ["target", "wake", "store", "total"]);
    }
}
