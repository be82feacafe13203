//! Reads bodies as AgentFlow's server does: with pydantic's conversions and its list of errors.

use std::cell::RefCell;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::Asked;
use super::types::Message;

pub(super) const NOT_BOOLEAN: &str = "Input should be a valid boolean, unable to interpret input";

/// Reads a request's body.
///
/// # Errors
/// The `detail` of an answer with status 422.
pub(super) fn read<T: DeserializeOwned + ToSchema>(asked: &Asked<'_>) -> Result<(T, Message), Value> {
    let bytes = &asked.body;
    if bytes.is_empty() {
        return Err(json!([problem("missing", ["body"], "Field required", ())]));
    }
    let no_object = |input: Value| {
        let msg = "Input should be a valid dictionary or object to extract fields from";
        json!([problem("model_attributes_type", ["body"], msg, input)])
    };
    if !is_json(&asked.exchange.parts.headers) {
        return Err(no_object(String::from_utf8_lossy(bytes).into()));
    }
    let mut body: Value = serde_json::from_slice(bytes).map_err(|error| {
        let mut invalid = problem("json_invalid", ("body", offset(bytes, &error)), "JSON decode error", json!({}));
        invalid["ctx"] = json!({ "error": decode_error(&error) });
        json!([invalid])
    })?;
    let Value::Object(fields) = &mut body else { return Err(no_object(body)) };
    asked.name_worker(fields);
    let read = |required: &[String]| {
        let wrong = RefCell::default();
        let input = Input { value: Some(&body), key: Key::Name("body"), parent: None, required, wrong: &wrong };
        let message = Message::deserialize(input)?;
        T::deserialize(input).map(|read| ((read, message), wrong.take()))
    };
    // Serde stops at the first missing field. The list has all, so the body is read again with those as input.
    match read(&[]).or_else(|_| read(&required::<T>())) {
        Ok((read, wrong)) if wrong.is_empty() => Ok(read),
        Ok((_, wrong)) => Err(wrong.into()),
        Err(error) => Err(json!([problem("value_error", ["body"], &error.to_string(), &body)])),
    }
}

fn required<T: ToSchema>() -> Vec<String> {
    match T::schema() {
        RefOr::T(Schema::Object(object)) => object.required,
        _ => Vec::new(),
    }
}

/// An error in pydantic's format.
pub(super) fn problem(kind: &str, loc: impl Serialize, msg: &str, input: impl Serialize) -> Value {
    json!({ "type": kind, "loc": loc, "msg": msg, "input": input })
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
    match said.split(" at line ").next().unwrap_or_default() {
        "key must be a string" => "Expecting property name enclosed in double quotes",
        "expected value" => "Expecting value",
        "trailing characters" => "Extra data",
        other => other,
    }
    .to_owned()
}

#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
enum Key<'a> {
    Name(&'a str),
    Index(usize),
}

/// A value of a body. A wrong one is noted and read as an empty value, so that all errors are found.
#[derive(Clone, Copy)]
struct Input<'a, 'de> {
    /// None: a required field is missing.
    value: Option<&'de Value>,
    key: Key<'de>,
    parent: Option<&'a Input<'a, 'de>>,
    required: &'a [String],
    wrong: &'a RefCell<Vec<Value>>,
}

impl<'de> Input<'_, 'de> {
    fn below<'a>(&'a self, key: Key<'de>, value: Option<&'de Value>) -> Input<'a, 'de> {
        Input { value, key, parent: Some(self), ..*self }
    }

    fn loc(&self) -> Vec<Key<'de>> {
        let mut loc = self.parent.map(Input::loc).unwrap_or_default();
        loc.push(self.key);
        loc
    }

    /// Notes an error if the value could not be read.
    fn noted<T>(&self, read: Option<T>, kind: &str, msg: &str) -> Option<T> {
        if read.is_none() {
            self.wrong.borrow_mut().push(match self.value {
                Some(value) => problem(kind, self.loc(), msg, value),
                None => problem("missing", self.loc(), "Field required", self.parent.and_then(|parent| parent.value)),
            });
        }
        read
    }

    fn object(&self) -> Option<&'de Map<String, Value>> {
        self.noted(self.value.and_then(Value::as_object), "dict_type", "Input should be a valid dictionary")
    }
}

type Read<T> = Result<T, serde_json::Error>;

impl<'de> Deserializer<'de> for Input<'_, 'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        self.value.unwrap_or(&Value::Null).deserialize_any(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        let read = self.noted(self.value.and_then(Value::as_str), "string_type", "Input should be a valid string");
        visitor.visit_str(read.unwrap_or_default())
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        let is_fraction = self.value.and_then(Value::as_f64).is_some_and(|number| number.fract() != 0.0);
        let (kind, msg) = match self.value {
            Some(Value::Number(_)) => ("int_from_float", "Input should be a valid integer, got a number with a fractional part"),
            Some(Value::String(_)) => ("int_parsing", "Input should be a valid integer, unable to parse string as an integer"),
            _ => ("int_type", "Input should be a valid integer"),
        };
        let read = self.value.and_then(integer).filter(|_| !is_fraction);
        visitor.visit_i64(self.noted(read, kind, msg).unwrap_or_default())
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        let (kind, msg) = match self.value {
            Some(Value::String(_) | Value::Number(_)) => ("bool_parsing", NOT_BOOLEAN),
            _ => ("bool_type", "Input should be a valid boolean"),
        };
        visitor.visit_bool(self.noted(self.value.and_then(truth), kind, msg).unwrap_or_default())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match self.value {
            Some(Value::Null) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        let items = self.noted(self.value.and_then(Value::as_array), "list_type", "Input should be a valid list");
        let items = items.into_iter().flatten().enumerate();
        visitor.visit_seq(SeqDeserializer::new(items.map(|(index, item)| self.below(Key::Index(index), Some(item)))))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        let fields = self.object().into_iter().flatten();
        let fields = fields.map(|(name, value)| (name.as_str(), self.below(Key::Name(name), Some(value))));
        visitor.visit_map(MapDeserializer::new(fields))
    }

    fn deserialize_struct<V: Visitor<'de>>(self, _: &str, names: &'static [&'static str], visitor: V) -> Read<V::Value> {
        let object = self.object();
        // In the order of the type, which the list of errors has too.
        let fields = names.iter().filter_map(|name| {
            let value = object.and_then(|object| object.get(*name));
            let is_known = value.is_some() || self.required.iter().any(|required| required == name);
            is_known.then(|| (*name, self.below(Key::Name(name), value)))
        });
        visitor.visit_map(MapDeserializer::new(fields))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct
        enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, serde_json::Error> for Input<'_, 'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// A boolean in one of the forms that pydantic accepts.
pub(super) fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(truth) => Some(*truth),
        Value::Number(number) => number.as_f64().filter(|number| matches!(number, 0.0 | 1.0)).map(|number| number == 1.0),
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
            "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// A whole number, also in a text. A fraction is cut off.
pub(super) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Bool(truth) => Some(i64::from(*truth)),
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|number| number as i64)),
        Value::String(text) => text.trim().strip_suffix(".0").unwrap_or(text.trim()).parse().ok(),
        _ => None,
    }
}
