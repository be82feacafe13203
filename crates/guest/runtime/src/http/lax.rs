//! Reads values like pydantic in its lax mode, since AIO's clients were written against it.
//!
//! | wanted | also taken |
//! | --- | --- |
//! | an integer | `"5"`, `5.0`, `"5.0"`, a truth value |
//! | a number | `"5.5"`, a truth value |
//! | a truth value | `"true"`, `"yes"`, `"on"`, `"1"`, `1` and their opposites, in any case |
//!
//! No other value is converted to a text. [`Lax`] is a deserializer: the values nested in it are read the same way.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::{Error, Number, Value};

/// Parsed JSON.
#[derive(Debug)]
pub struct Lax(pub Value);

/// Reads a field of a type that serde buffers (tagged, untagged and flattened types), which would be strict otherwise: for
/// `#[serde(deserialize_with)]`.
pub fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    T::deserialize(Lax(Value::deserialize(deserializer)?)).map_err(D::Error::custom)
}

fn number(value: Value) -> Value {
    match value {
        Value::Bool(is) => Number::from(u8::from(is)).into(),
        Value::String(text) => match text.trim().parse::<i64>().map(Number::from).ok().or_else(|| float(&text)) {
            Some(number) => number.into(),
            None => Value::String(text),
        },
        other => other,
    }
}

fn float(text: &str) -> Option<Number> {
    text.trim().parse::<f64>().ok().and_then(Number::from_f64)
}

fn integer(value: Value) -> Value {
    // Up to this bound, every whole number is exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let value = number(value);
    match value.as_f64() {
        Some(whole) if value.is_f64() && whole.fract() == 0.0 && whole.abs() <= EXACT => Number::from(whole as i64).into(),
        _ => value,
    }
}

fn truth(value: Value) -> Value {
    let is = match &value {
        Value::Number(number) => match number.as_f64() {
            Some(0.0) => Some(false),
            Some(1.0) => Some(true),
            _ => None,
        },
        Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
            "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    };
    is.map_or(value, Value::Bool)
}

macro_rules! coerced {
    ($($method:ident: $coerce:ident,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            $coerce(self.0).$method(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Lax {
    type Error = Error;

    coerced! {
        deserialize_bool: truth,
        deserialize_i8: integer, deserialize_i16: integer, deserialize_i32: integer, deserialize_i64: integer,
        deserialize_u8: integer, deserialize_u16: integer, deserialize_u32: integer, deserialize_u64: integer,
        deserialize_f32: number, deserialize_f64: number,
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.into_iter().map(Lax));
                let read = visitor.visit_seq(&mut items)?;
                items.end().map(|()| read)
            }
            Value::Object(fields) => {
                let mut fields = MapDeserializer::new(fields.into_iter().map(|(name, value)| (name, Lax(value))));
                let read = visitor.visit_map(&mut fields)?;
                fields.end().map(|()| read)
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    /// Null is no map: a body that may be any object would take it for an empty one.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => Err(serde::de::Error::invalid_type(serde::de::Unexpected::Unit, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct struct identifier ignored_any
    }
}

impl IntoDeserializer<'_, Error> for Lax {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Sample {
        small: u16,
        number: Option<f64>,
        is: bool,
        text: Option<String>,
        nested: Vec<Sample>,
        kind: Kind,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        #[default]
        One,
        Two,
    }

    fn read(value: Value) -> Result<Sample, Error> {
        Sample::deserialize(Lax(value))
    }

    #[test]
    fn scalars_are_taken_as_pydantic_takes_them() {
        for five in [json!(5), json!("5"), json!(" 5 "), json!(5.0), json!("5.0")] {
            assert_eq!(read(json!({"small": five})).unwrap().small, 5, "{five}");
        }
        for (given, number) in [(json!("1.5"), 1.5), (json!("2"), 2.0), (json!(true), 1.0), (json!("1e2"), 100.0)] {
            assert_eq!(read(json!({"number": given})).unwrap().number, Some(number), "{given}");
        }
        for (given, is) in [("true", true), ("False", false), ("YES", true), ("off", false), ("1", true), ("0", false)] {
            assert_eq!(read(json!({"is": given})).unwrap().is, is, "{given}");
        }
        assert!(read(json!({"is": 1})).unwrap().is && !read(json!({"is": 0.0})).unwrap().is);
        let deep = read(json!({"nested": [{"nested": [{"small": "7", "kind": "two"}]}]})).unwrap();
        assert_eq!((deep.nested[0].nested[0].small, &deep.nested[0].nested[0].kind), (7, &Kind::Two));
        assert_eq!(read(json!({"number": null, "text": null})).unwrap(), Sample::default());
        for wrong in [
            json!({"small": "x"}),
            json!({"small": 5.5}),
            json!({"small": "70000"}),
            json!({"small": -1}),
            json!({"small": ""}),
            json!({"number": "nan"}),
            json!({"is": 2}),
            json!({"is": "maybe"}),
            json!({"text": 5}),
            json!({"text": true}),
            json!({"kind": 1}),
            json!({"nested": "5"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
