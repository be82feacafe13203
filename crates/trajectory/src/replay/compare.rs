use serde_json::Value;

use super::ids::Ids;
use super::picture::Picture;
use super::rules::{Rule, Treat};
use super::text::masked;
use crate::export::is_envelope;

/// Characters of a value that a report shows.
const SHORT: usize = 160;
/// Deeper bodies are compared as text.
const DEEPEST: usize = 100;

/// The first difference between two answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// `status`, `body`, or a field as a JSON pointer.
    pub field: String,
    /// Both values, shortened around the difference.
    pub recorded: String,
    pub now: String,
}

impl Divergence {
    fn new(field: &str, recorded: &str, now: &str) -> Self {
        let (recorded, now) = around(recorded, now);
        Self { field: if field.is_empty() { "body".to_owned() } else { field.to_owned() }, recorded, now }
    }
}

/// Compares a recorded answer with a current one. Statuses are HTTP's; bodies are whole.
pub fn compare(rule: &Rule, ids: &Ids, recorded: (Option<u16>, &[u8]), now: (Option<u16>, &[u8])) -> Option<Divergence> {
    if recorded.0 != now.0 {
        let told = |status: Option<u16>| status.map_or("none".to_owned(), |status| status.to_string());
        return Some(Divergence::new("status", &told(recorded.0), &told(now.0)));
    }
    let (old, new) = (recorded.1, now.1);
    let as_json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    if let (Some(old), Some(new)) = (as_json(old), as_json(new)) {
        return match rule.treat {
            Treat::Compare => Walk { rule, ids }.differ(&old, &new, &mut String::new(), "", 0),
            Treat::Status | Treat::Skip(_) => status(&old, &new),
        };
    }
    if rule.treat != Treat::Compare {
        return None;
    }
    match (Picture::of_bytes(old), Picture::of_bytes(new)) {
        (Some(old), Some(new)) if old == new => return None,
        (Some(old), Some(new)) => return Some(Divergence::new("", &old.to_string(), &new.to_string())),
        _ => {}
    }
    match (std::str::from_utf8(old), std::str::from_utf8(new)) {
        (Ok(old), Ok(new)) => texts(ids, "", old, new),
        _ if old == new => None,
        _ => {
            let told = |bytes: &[u8]| format!("{} bytes, blake3 {}", bytes.len(), blake3::hash(bytes));
            Some(Divergence::new("", &told(old), &told(new)))
        }
    }
}

/// Of an envelope, compares only whether it succeeded.
fn status(old: &Value, new: &Value) -> Option<Divergence> {
    if !is_envelope(old) && !is_envelope(new) {
        return None;
    }
    ["code", "success"].iter().find_map(|key| {
        let told = |value: &Value| value.get(*key).map_or("absent".to_owned(), Value::to_string);
        let (old, new) = (told(old), told(new));
        (old != new).then(|| Divergence::new(&format!("/{key}"), &old, &new))
    })
}

fn texts(ids: &Ids, place: &str, old: &str, new: &str) -> Option<Divergence> {
    if old == new {
        return None;
    }
    let (old, new) = (masked(&ids.text(old)), masked(new));
    (old != new).then(|| Divergence::new(place, &old, &new))
}

struct Walk<'a> {
    rule: &'a Rule,
    ids: &'a Ids,
}

impl Walk<'_> {
    /// `place` is the position of the two, `field` the name of the nearest field around them.
    fn differ(&self, old: &Value, new: &Value, place: &mut String, field: &str, depth: usize) -> Option<Divergence> {
        if depth > DEEPEST {
            return texts(self.ids, place, &old.to_string(), &new.to_string());
        }
        match (old, new) {
            (Value::Object(olds), Value::Object(news)) => {
                for (name, old) in olds {
                    let known = self.ids.text(name);
                    let length = push(place, &known);
                    let found = match news.get(&known).or_else(|| news.get(name)) {
                        None => Some(Divergence::new(place, &old.to_string(), "absent")),
                        Some(new) if self.rule.masks(name) => presence(old, new, place),
                        Some(new) => self.differ(old, new, place, name, depth + 1),
                    };
                    if found.is_some() {
                        return found;
                    }
                    place.truncate(length);
                }
                let unknown = |name: &String| !olds.keys().any(|old| *old == **name || self.ids.text(old) == **name);
                let (name, new) = news.iter().find(|(name, _)| unknown(name))?;
                push(place, name);
                Some(Divergence::new(place, "absent", &new.to_string()))
            }
            (Value::Array(olds), Value::Array(news)) => {
                for (at, (old, new)) in olds.iter().zip(news).enumerate() {
                    let length = push(place, &at.to_string());
                    if let Some(found) = self.differ(old, new, place, field, depth + 1) {
                        return Some(found);
                    }
                    place.truncate(length);
                }
                (olds.len() != news.len())
                    .then(|| Divergence::new(place, &format!("{} items", olds.len()), &format!("{} items", news.len())))
            }
            (Value::String(old), Value::String(new)) => match (Picture::of_text(old), Picture::of_text(new)) {
                (Some(old), Some(new)) => (old != new).then(|| Divergence::new(place, &old.to_string(), &new.to_string())),
                _ => texts(self.ids, place, old, new),
            },
            (Value::Number(old), Value::Number(new)) => {
                let same = old == new
                    || old
                        .as_f64()
                        .zip(new.as_f64())
                        .is_some_and(|(old, new)| old == new || self.rule.near(field).is_some_and(|near| near.holds(old, new)));
                (!same).then(|| Divergence::new(place, &old.to_string(), &new.to_string()))
            }
            _ if old == new => None,
            _ => Some(Divergence::new(place, &old.to_string(), &new.to_string())),
        }
    }
}

/// For a field that is not compared: whether it exists in both.
fn presence(old: &Value, new: &Value, place: &str) -> Option<Divergence> {
    (old.is_null() != new.is_null()).then(|| Divergence::new(place, &old.to_string(), &new.to_string()))
}

/// Goes one field down, and returns the previous length of the place.
fn push(place: &mut String, name: &str) -> usize {
    let length = place.len();
    place.push('/');
    place.push_str(&name.replace('~', "~0").replace('/', "~1"));
    length
}

/// Both texts, from shortly before their difference.
fn around(old: &str, new: &str) -> (String, String) {
    let same = old.chars().zip(new.chars()).take_while(|(a, b)| a == b).count();
    let from = if old.chars().count().max(new.chars().count()) <= SHORT { 0 } else { same.saturating_sub(SHORT / 4) };
    let short = |text: &str| {
        let mut out = String::new();
        if from > 0 {
            out.push('…');
        }
        out.extend(text.chars().skip(from).take(SHORT));
        if text.chars().count() > from + SHORT {
            out.push('…');
        }
        out
    };
    (short(old), short(new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{rule, skipped};
    use crate::{IntentRecord, OutcomeKind, Step};
    use serde_json::json;

    fn differ(action: &str, old: &Value, new: &Value) -> Option<Divergence> {
        let bytes = |value: &Value| value.to_string().into_bytes();
        compare(rule(action), &Ids::default(), (Some(200), &bytes(old)), (Some(200), &bytes(new)))
    }

    fn ran(stdout: &str, code: i64, session: &str) -> Value {
        json!({"success": true, "message": "ok", "data": {"session_id": session, "stdout": stdout, "exit_code": code, "offset": stdout.len()}})
    }

    #[test]
    fn what_is_of_its_run_is_passed_over_and_what_was_done_is_not() {
        let exec = "POST /v1/bash/exec";
        assert_eq!(differ(exec, &ran("in 0.10s\n", 0, "a"), &ran("in 12.25s\n", 0, "b")), None);
        let found = differ(exec, &ran("one\n", 0, "a"), &ran("two\n", 0, "b")).unwrap();
        assert_eq!((&*found.field, &*found.recorded, &*found.now), ("/data/stdout", "one\n", "two\n"));
        assert_eq!(differ(exec, &ran("", 0, "a"), &ran("", 1, "a")).unwrap().field, "/data/exit_code");
        let mut without = ran("", 0, "a");
        without["data"]["session_id"] = Value::Null;
        assert_eq!(differ(exec, &ran("", 0, "a"), &without).unwrap().field, "/data/session_id");
        let fewer = differ("bash:run", &json!({"a": [1, 2], "b": 1}), &json!({"a": [1], "b": 1})).unwrap();
        assert_eq!((&*fewer.field, &*fewer.recorded, &*fewer.now), ("/a", "2 items", "1 items"));
        assert_eq!(differ("bash:run", &json!({"a/b": 1}), &json!({})).unwrap().field, "/a~1b");
        assert_eq!(differ("bash:run", &json!({}), &json!({"c": 1})).unwrap().recorded, "absent");
    }

    #[test]
    fn envelopes_of_agentflow_are_compared_but_for_their_meta_of_the_run() {
        let envelope = |code: i64, id: &str, ms: f64, out: &str| {
            json!({"code": code, "message": "success", "data": {"stdout": out}, "meta": {"tool": "bash:run",
                   "execution_time_ms": ms, "resource_type": "bash", "session_id": id, "trace_id": id}})
        };
        assert_eq!(differ("bash:run", &envelope(0, "a", 1.0, "x"), &envelope(0, "b", 9.5, "x")), None);
        assert_eq!(differ("bash:run", &envelope(0, "a", 1.0, "x"), &envelope(5000, "b", 1.0, "x")).unwrap().field, "/code");
        assert_eq!(differ("session:create", &envelope(0, "a", 1.0, "x"), &envelope(0, "a", 1.0, "y")), None);
        assert_eq!(differ("session:create", &envelope(0, "a", 1.0, ""), &envelope(4007, "a", 1.0, "")).unwrap().field, "/code");
    }

    #[test]
    fn sizes_of_directories_may_differ_a_little() {
        let listed = |size: u64| json!({"files": [{"name": "d", "size": size}]});
        assert_eq!(differ("POST /v1/file/list", &listed(4096), &listed(0)), None);
        assert!(differ("POST /v1/file/list", &listed(4096), &listed(400_000)).is_some());
        assert!(differ("POST /v1/file/read", &listed(4096), &listed(4097)).is_some());
    }

    #[test]
    fn pictures_are_compared_by_kind_and_size() {
        let png =
            |width: u8, rest: u8| [b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x05", &[width][..], &[0, 0, 2, 0xd0, rest][..]].concat();
        let call = |old: &[u8], new: &[u8]| {
            compare(rule("GET /v1/browser/screenshot"), &Ids::default(), (Some(200), old), (Some(200), new))
        };
        assert_eq!(call(&png(0, 1), &png(0, 2)), None);
        let found = call(&png(0, 1), &png(1, 1)).unwrap();
        assert_eq!((&*found.field, &*found.recorded), ("body", "image/png of 1280×720"));
        assert_eq!(call(b"plain", b"plain"), None);
        assert_eq!(call(b"plain", b"other").unwrap().field, "body");
        assert!(call(&[0xfe], &[0xff]).unwrap().recorded.starts_with("1 bytes"));
        let status = compare(rule("bash:run"), &Ids::default(), (Some(200), b""), (Some(500), b"")).unwrap();
        assert_eq!((&*status.field, &*status.recorded, &*status.now), ("status", "200", "500"));
    }

    #[test]
    fn known_ids_are_the_same_and_long_texts_are_shown_where_they_part() {
        let mut ids = Ids::default();
        ids.learn("sandbox-old", "sandbox-new");
        let walk = |old: Value, new: Value| {
            compare(rule("bash:run"), &ids, (None, old.to_string().as_bytes()), (None, new.to_string().as_bytes()))
        };
        assert_eq!(walk(json!({"sandbox-old": "in sandbox-old"}), json!({"sandbox-new": "in sandbox-new"})), None);
        let long = "x".repeat(5000);
        let found = walk(json!({"out": format!("{long}a{long}")}), json!({"out": format!("{long}b{long}")})).unwrap();
        assert!(found.recorded.contains("xa") && found.now.contains("xb") && found.recorded.chars().count() <= SHORT + 2);
    }

    #[test]
    fn steps_that_cannot_be_run_again_are_named_with_their_reason() {
        let step = |action: &str, outcome: Option<OutcomeKind>, dialect: &str| {
            let intent: IntentRecord = serde_json::from_value(json!({
                "v": 1, "kind": "intent", "step": 1, "last": 1, "tenant": "default", "sandbox_id": "s", "sandbox_name": "s",
                "dialect": dialect, "action": action, "arguments": null, "bytes_in": 0,
                "started_at": "2026-01-01T00:00:00Z", "origin": null, "request_id": "r",
            }))
            .unwrap();
            let mut step = Step::of_intent(intent);
            step.outcome = outcome;
            skipped(&step)
        };
        let ok = Some(OutcomeKind::Ok);
        assert_eq!(step("bash:run", ok, "agentflow"), None);
        assert_eq!(step("POST /v1/bash/exec", Some(OutcomeKind::Error), "aio"), None);
        assert_eq!(step("web:search", ok, "agentflow"), Some("it goes to the internet"));
        assert_eq!(
            step("POST /api/v2/sandboxes", ok, "api"),
            Some("it is about the sandbox itself; a replay makes one of its own")
        );
        for outcome in [None, Some(OutcomeKind::Interrupted), Some(OutcomeKind::Aborted), Some(OutcomeKind::Failed)] {
            assert!(step("bash:run", outcome, "agentflow").is_some());
        }
        assert!(step("POST /v1/bash/exec", ok, "inside").is_some());
    }
}
