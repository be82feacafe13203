//! What the model knows of a sandbox's usage: every sandbox has the same memory in use for as long as it lives, so its usage
//! is its time.

use jiff::Timestamp;

/// The longest time between two samples, in seconds: the interval, and the longest wait of a step. A crash may add its own wait.
pub(crate) const UNREAD: f64 = 30.0;

#[derive(Debug, Clone)]
pub(crate) struct Metered {
    /// Since when it runs or is paused.
    since: Option<Timestamp>,
    ended: Option<Timestamp>,
    /// Seconds of earlier times.
    seconds: f64,
    /// The length of the last of these times.
    last: f64,
    /// Seconds that the server may have lost.
    lost: f64,
    calls: Vec<Timestamp>,
    lost_calls: usize,
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

impl Metered {
    pub(crate) fn new(since: Timestamp) -> Self {
        Self { since: Some(since), ended: None, seconds: 0.0, last: 0.0, lost: 0.0, calls: Vec::new(), lost_calls: 0 }
    }

    pub(crate) fn call(&mut self, now: Timestamp) {
        self.calls.push(now);
    }

    /// It is deleted: its last sample is in memory.
    pub(crate) fn end(&mut self, now: Timestamp) {
        match self.since.take() {
            Some(since) => {
                self.last = seconds(since, now);
                self.seconds += self.last;
                self.ended = Some(now);
            }
            // It was dead, so its last calls are not counted.
            None => self.lose_calls(now, UNREAD),
        }
    }

    /// Its processes ended before they could be measured.
    pub(crate) fn end_unread(&mut self, now: Timestamp, unread: f64) {
        if self.since.is_some() {
            self.end(now);
            self.lost += self.last.min(unread);
            self.ended = None;
        }
        self.lose_calls(now, unread);
    }

    pub(crate) fn resume(&mut self, now: Timestamp) {
        self.since = Some(now);
        self.ended = None;
    }

    /// It runs again since a time between these.
    pub(crate) fn resume_between(&mut self, from: Timestamp, to: Timestamp) {
        self.resume(from);
        self.lost += seconds(from, to);
    }

    /// The server was killed.
    pub(crate) fn lose(&mut self, now: Timestamp, unread: f64) {
        self.lose_calls(now, unread);
        if self.ended.take().is_some_and(|ended| seconds(ended, now) <= unread) {
            self.lost += self.last.min(unread);
        }
    }

    fn lose_calls(&mut self, now: Timestamp, unread: f64) {
        self.lost_calls += self.calls.iter().filter(|at| seconds(**at, now) <= unread).count();
    }

    /// The least and the most seconds and calls that the server may have stored by now.
    pub(crate) fn bounds(&self, now: Timestamp) -> ([f64; 2], [usize; 2]) {
        let most = self.seconds + self.since.map_or(0.0, |since| seconds(since, now));
        // Samples of the last moments are not stored yet.
        let recent = match (self.since, self.ended) {
            (Some(since), _) => seconds(since, now).min(UNREAD),
            (None, Some(ended)) if seconds(ended, now) <= UNREAD => self.last.min(UNREAD),
            _ => 0.0,
        };
        let recent_calls = self.calls.iter().filter(|at| seconds(**at, now) <= UNREAD).count();
        let calls = self.calls.len();
        ([most - self.lost - recent, most], [calls.saturating_sub(self.lost_calls + recent_calls), calls])
    }
}
