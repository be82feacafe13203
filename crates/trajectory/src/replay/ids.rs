use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The most pairs that are kept; later ones are not learned.
const MOST: usize = 10_000;
/// Shorter ids are only replaced where they are the whole of a value: within a text they could be anything.
const LONG: usize = 8;
/// Fields of an answer that name something which later steps may use.
const NAMING: [&str; 9] =
    ["session_id", "session_name", "command_id", "watcher_id", "report_id", "worker_id", "id", "file_id", "target_id"];

/// What the first run called something, and what the replay calls it.
#[derive(Debug, Default)]
pub struct Ids {
    pairs: BTreeMap<String, String>,
}

impl Ids {
    /// Learns one pair. What is called the same in both needs none.
    pub fn learn(&mut self, old: &str, new: &str) {
        if old != new && !old.is_empty() && (self.pairs.len() < MOST || self.pairs.contains_key(old)) {
            self.pairs.insert(old.to_owned(), new.to_owned());
        }
    }

    /// Learns from two answers to the same step: where both have a naming field at the same place, its values are a pair.
    pub fn learn_from(&mut self, recorded: &Value, now: &Value) {
        match (recorded, now) {
            (Value::Object(recorded), Value::Object(now)) => {
                for (name, old) in recorded {
                    let Some(new) = now.get(name) else { continue };
                    match (old, new) {
                        (Value::String(old), Value::String(new)) if NAMING.contains(&&**name) => self.learn(old, new),
                        _ => self.learn_from(old, new),
                    }
                }
            }
            (Value::Array(recorded), Value::Array(now)) => {
                for (old, new) in recorded.iter().zip(now) {
                    self.learn_from(old, new);
                }
            }
            _ => {}
        }
    }

    /// A text with every known id replaced by the new one.
    pub fn text(&self, text: &str) -> String {
        if let Some(new) = self.pairs.get(text) {
            return new.clone();
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        // In one pass, the longest id first: what a replacement says is never replaced again.
        'text: while !rest.is_empty() {
            for (old, new) in self.pairs.iter().rev().filter(|(old, _)| old.len() >= LONG) {
                if let Some(after) = rest.strip_prefix(old.as_str()) {
                    out.push_str(new);
                    rest = after;
                    continue 'text;
                }
            }
            let next = rest.chars().next().map_or(0, char::len_utf8);
            out.push_str(&rest[..next]);
            rest = &rest[next..];
        }
        out
    }

    /// The same for every text of a body, and for the names of its fields.
    pub fn value(&self, value: &Value) -> Value {
        if self.pairs.is_empty() {
            return value.clone();
        }
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.value(item)).collect()),
            Value::Object(fields) => {
                let translated = fields.iter().map(|(name, field)| (self.text(name), self.value(field)));
                Value::Object(translated.collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }

    /// A path and query, segment by segment and value by value.
    pub fn path(&self, path_and_query: &str) -> String {
        path_and_query
            .split_inclusive(['/', '?', '&', '='])
            .map(|piece| {
                let (word, end) = match piece.strip_suffix(['/', '?', '&', '=']) {
                    Some(word) => (word, &piece[word.len()..]),
                    None => (piece, ""),
                };
                format!("{}{end}", self.text(word))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_of_answers_are_translated_in_later_requests() {
        let mut ids = Ids::default();
        ids.learn_from(
            &json!({"data": {"session_id": "11112222-a", "command": "x", "list": [{"id": "w1"}]}}),
            &json!({"data": {"session_id": "33334444-b", "command": "y", "list": [{"id": "w2"}]}}),
        );
        assert_eq!(ids.value(&json!({"session_id": "11112222-a"})), json!({"session_id": "33334444-b"}));
        assert_eq!(ids.value(&json!({"a": ["see 11112222-a."], "w1": 1})), json!({"a": ["see 33334444-b."], "w2": 1}));
        assert_eq!(ids.path("/v1/bash/sessions/11112222-a/close?id=w1&x=w11"), "/v1/bash/sessions/33334444-b/close?id=w2&x=w11");
        // Only whole: a short one may be part of any word. And only fields that name something.
        assert_eq!(ids.text("w1 w1"), "w1 w1");
        assert_eq!(ids.text("x"), "x");
    }

    #[test]
    fn translations_are_not_translated_again() {
        let mut ids = Ids::default();
        ids.learn("aaaaaaaa", "bbbbbbbb");
        ids.learn("bbbbbbbb", "cccccccc");
        ids.learn("aaaaaaaa1", "dddddddd");
        assert_eq!(ids.text("aaaaaaaa/bbbbbbbb/aaaaaaaa1/ä"), "bbbbbbbb/cccccccc/dddddddd/ä");
    }
}
