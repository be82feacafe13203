use std::collections::HashMap;

use serde_json::{Map, Value};

use super::text::{made_up, masked};

/// The most pairs that are kept; later ones are not learned.
const MOST: usize = 10_000;
/// Shorter ids are only replaced if they are a whole value: within a text they could be anything.
const LONG: usize = 8;
/// Fields of an answer that name something that later steps may use.
const NAMING: [&str; 9] =
    ["session_id", "session_name", "command_id", "watcher_id", "report_id", "worker_id", "id", "file_id", "target_id"];

/// Maps names of the first run to those of the replay.
#[derive(Debug, Default)]
pub struct Ids {
    pairs: HashMap<String, String>,
    /// Long ones by their first bytes, so that a text is searched for all of them at once; the longest first.
    long: HashMap<[u8; LONG], Vec<String>>,
}

impl Ids {
    /// Learns one pair. Equal names need none.
    pub fn learn(&mut self, old: &str, new: &str) {
        let known = self.pairs.contains_key(old);
        // An equal pair is learned too if the first run had another pair for this name.
        if old.is_empty() || (!known && (old == new || self.pairs.len() >= MOST)) {
            return;
        }
        self.pairs.insert(old.to_owned(), new.to_owned());
        if let Some(head) = old.as_bytes().first_chunk::<LONG>().filter(|_| !known) {
            let alike = self.long.entry(*head).or_default();
            alike.push(old.to_owned());
            alike.sort_unstable_by_key(|id| std::cmp::Reverse(id.len()));
        }
    }

    /// Learns from two answers to the same step. If both have a naming field at the same place, its values are a pair. Generated
    /// names are pairs too, in texts that are otherwise equal.
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
            (Value::String(recorded), Value::String(now)) if recorded != now => self.learn_from_texts(recorded, now),
            _ => {}
        }
    }

    fn learn_from_texts(&mut self, recorded: &str, now: &str) {
        let (old, new) = (made_up(recorded), made_up(now));
        if !old.is_empty() && old.len() == new.len() && masked(&self.text(recorded)) == masked(now) {
            for (old, new) in old.into_iter().zip(new) {
                self.learn(old, new);
            }
        }
    }

    /// The text with every known id replaced by the new one.
    pub fn text(&self, text: &str) -> String {
        if let Some(new) = self.pairs.get(text) {
            return new.clone();
        }
        // Ids are text, and start and end at character boundaries, so the result is text again.
        String::from_utf8(self.bytes(text.as_bytes())).unwrap_or_else(|_| text.to_owned())
    }

    /// The same for a body of any kind, such as a form with files.
    pub fn bytes(&self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(body.len());
        // In one pass: replacements are never replaced again.
        let (mut written, mut at) = (0, 0);
        while let Some(head) = body[at..].first_chunk::<LONG>().filter(|_| !self.long.is_empty()) {
            let found = self.long.get(head).and_then(|alike| alike.iter().find(|old| body[at..].starts_with(old.as_bytes())));
            match found {
                Some(old) => {
                    out.extend_from_slice(&body[written..at]);
                    out.extend_from_slice(self.pairs[old].as_bytes());
                    at += old.len();
                    written = at;
                }
                None => at += 1,
            }
        }
        out.extend_from_slice(&body[written..]);
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

    /// Replaces ids in a path and query, segment by segment and value by value.
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
        // Only whole: a short one may be part of any word. And only in fields that name something.
        assert_eq!(ids.text("w1 w1"), "w1 w1");
        assert_eq!(ids.text("x"), "x");
    }

    #[test]
    fn names_of_temporary_files_are_translated_once_texts_are_alike() {
        let mut ids = Ids::default();
        let said = |text: &str| json!({"data": {"stdout": text}});
        ids.learn_from(&said("made /tmp/tmp.Ab12Cd34Ef in 1s"), &said("made /tmp/tmp.Gh56Ij78Kl in 2s"));
        assert_eq!(ids.text("cd /tmp/tmp.Ab12Cd34Ef && ls"), "cd /tmp/tmp.Gh56Ij78Kl && ls");
        assert_eq!(ids.bytes(b"\xff/tmp/tmp.Ab12Cd34Ef\xfe"), b"\xff/tmp/tmp.Gh56Ij78Kl\xfe");
        ids.learn_from(&said("one /tmp/tmp.0000000001"), &said("two /tmp/tmp.0000000002"));
        assert_eq!(ids.text("/tmp/tmp.0000000001"), "/tmp/tmp.0000000001");
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
