//! Checks bodies as AgentFlow's server does, with pydantic's error messages.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

/// The required type of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Text,
    /// Or null.
    MaybeText,
    /// Or null. Whole numbers, also as text or with a fraction of 0.
    MaybeInteger,
    Bool,
    Object,
    /// A list of objects.
    Objects,
    /// An object of objects.
    ObjectOfObjects,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    name: &'static str,
    kind: Kind,
    required: bool,
}

pub(super) const fn required(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, required: true }
}

pub(super) const fn optional(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, required: false }
}

/// The fields of every message.
const BASE: [Field; 4] = [
    optional("message_id", Kind::Text),
    optional("message_type", Kind::Text),
    optional("timestamp", Kind::Text),
    optional("session_id", Kind::MaybeText),
];

/// A checked body.
pub(super) struct Checked(Map<String, Value>);

/// Reads a body and checks its fields. `worker`: the caller, for a body that does not name it.
///
/// # Errors
/// The `detail` of an answer with status 422.
pub(super) fn read(headers: &HeaderMap, bytes: &[u8], fields: &[Field], worker: Option<&str>) -> Result<Checked, Value> {
    if bytes.is_empty() {
        return Err(json!([{"type": "missing", "loc": ["body"], "msg": "Field required", "input": null}]));
    }
    let no_object = |input: Value| {
        json!([{
            "type": "model_attributes_type",
            "loc": ["body"],
            "msg": "Input should be a valid dictionary or object to extract fields from",
            "input": input,
        }])
    };
    if !is_json(headers) {
        return Err(no_object(String::from_utf8_lossy(bytes).into()));
    }
    let parsed: Value = serde_json::from_slice(bytes).map_err(|error| {
        json!([{
            "type": "json_invalid",
            "loc": ["body", offset(bytes, &error)],
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": decode_error(&error)},
        }])
    })?;
    let Value::Object(mut body) = parsed else { return Err(no_object(parsed)) };
    if let Some(worker) = worker
        && !body.contains_key("worker_id")
    {
        body.insert("worker_id".to_owned(), worker.into());
    }
    let mut wrong = Vec::new();
    for field in BASE.iter().chain(fields) {
        match body.get(field.name) {
            Some(value) => check(field.kind, value, json!(["body", field.name]), &mut wrong),
            None if field.required => {
                let input = Value::Object(body.clone());
                wrong.push(json!({"type": "missing", "loc": ["body", field.name], "msg": "Field required", "input": input}));
            }
            None => {}
        }
    }
    if wrong.is_empty() { Ok(Checked(body)) } else { Err(wrong.into()) }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json")
}

fn offset(bytes: &[u8], error: &serde_json::Error) -> usize {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    lines.map(<[u8]>::len).sum::<usize>() + error.column().saturating_sub(1)
}

/// The error in the form of Python's parser, if it has the same one.
fn decode_error(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let said = said.split(" at line ").next().unwrap_or_default();
    match said {
        "key must be a string" => "Expecting property name enclosed in double quotes".to_owned(),
        "expected value" => "Expecting value".to_owned(),
        "trailing characters" => "Extra data".to_owned(),
        other => other.to_owned(),
    }
}

fn check(kind: Kind, value: &Value, loc: Value, wrong: &mut Vec<Value>) {
    let mut say = |kind: &str, msg: &str| wrong.push(json!({"type": kind, "loc": loc, "msg": msg, "input": value}));
    match kind {
        Kind::Text if value.is_string() => {}
        Kind::MaybeText if value.is_string() || value.is_null() => {}
        Kind::Text | Kind::MaybeText => say("string_type", "Input should be a valid string"),
        Kind::MaybeInteger => match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => {}
            Value::Number(_) => say("int_from_float", "Input should be a valid integer, got a number with a fractional part"),
            Value::String(text) if whole(text).is_some() => {}
            Value::String(_) => say("int_parsing", "Input should be a valid integer, unable to parse string as an integer"),
            _ => say("int_type", "Input should be a valid integer"),
        },
        Kind::Bool => match value {
            Value::Bool(_) => {}
            Value::Number(number) if matches!(number.as_f64(), Some(0.0 | 1.0)) => {}
            Value::String(text) if truth(text).is_some() => {}
            Value::String(_) | Value::Number(_) => {
                say("bool_parsing", "Input should be a valid boolean, unable to interpret input");
            }
            _ => say("bool_type", "Input should be a valid boolean"),
        },
        Kind::Object if value.is_object() => {}
        Kind::Object => say("dict_type", "Input should be a valid dictionary"),
        Kind::Objects => match value {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    check(Kind::Object, item, below(&loc, at.into()), wrong);
                }
            }
            _ => say("list_type", "Input should be a valid list"),
        },
        Kind::ObjectOfObjects => match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    check(Kind::Object, field, below(&loc, name.as_str().into()), wrong);
                }
            }
            _ => say("dict_type", "Input should be a valid dictionary"),
        },
    }
}

fn below(loc: &Value, next: Value) -> Value {
    let mut loc = loc.clone();
    if let Value::Array(parts) = &mut loc {
        parts.push(next);
    }
    loc
}

/// A whole number in a text, also one such as `5.0`.
fn whole(text: &str) -> Option<i64> {
    let text = text.trim();
    let plain = text.strip_suffix(".0").unwrap_or(text);
    plain.parse().ok()
}

/// The texts that pydantic accepts as booleans.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// A number of seconds, from a value that was checked.
pub(super) fn integer(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Bool(truth) => Some(i64::from(*truth)),
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|number| number as i64)),
        Value::String(text) => whole(text),
        _ => None,
    }
}

impl Checked {
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        match self.0.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn integer(&self, name: &str) -> Option<i64> {
        integer(self.0.get(name))
    }

    pub(super) fn truth(&self, name: &str, default: bool) -> bool {
        match self.0.get(name) {
            Some(Value::Bool(truth)) => *truth,
            Some(Value::String(text)) => truth(text).unwrap_or(default),
            Some(Value::Number(number)) => number.as_f64() == Some(1.0),
            _ => default,
        }
    }

    pub(super) fn object(&mut self, name: &str) -> Map<String, Value> {
        match self.0.remove(name) {
            Some(Value::Object(object)) => object,
            _ => Map::new(),
        }
    }

    pub(super) fn list(&mut self, name: &str) -> Vec<Value> {
        match self.0.remove(name) {
            Some(Value::Array(list)) => list,
            _ => Vec::new(),
        }
    }

    pub(super) fn any(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }
}
