//! The counters, by session. Nothing here knows of the protocol.

use std::collections::HashMap;

use serde_json::Value;

#[derive(Default)]
pub struct Counters {
    /// Where the counters of new sessions begin, unless they say so themselves.
    start: i64,
    by_session: HashMap<String, i64>,
}

impl Counters {
    pub fn configure(&mut self, config: &Value) {
        self.start = config["start"].as_i64().unwrap_or(0);
    }

    pub fn begin(&mut self, session: &str, config: &Value) {
        self.by_session.insert(session.to_owned(), config["start"].as_i64().unwrap_or(self.start));
    }

    pub fn end(&mut self, session: &str) {
        self.by_session.remove(session);
    }

    /// None when the sum is too large.
    pub fn add(&mut self, session: Option<&str>, by: i64) -> Option<i64> {
        let count = self.by_session.entry(session.unwrap_or_default().to_owned()).or_insert(self.start);
        *count = count.checked_add(by)?;
        Some(*count)
    }

    pub fn read(&self, session: Option<&str>) -> i64 {
        self.by_session.get(session.unwrap_or_default()).copied().unwrap_or(self.start)
    }
}
