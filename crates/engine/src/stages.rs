//! Durations of the stages of a create.

use std::time::{Duration, Instant};

/// Measures the stages of a create.
#[derive(Debug)]
pub struct Stages {
    last: Instant,
    /// Name and duration of each stage so far.
    pub done: Vec<(&'static str, Duration)>,
}

impl Stages {
    pub fn begin() -> Self {
        Self { last: Instant::now(), done: Vec::new() }
    }

    /// Ends a stage: the next one begins.
    pub fn done(&mut self, stage: &'static str) {
        let now = Instant::now();
        self.done.push((stage, now - self.last));
        self.last = now;
    }
}
