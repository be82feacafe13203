//! Filters on the metadata of passages.
//!
//! ```text
//! {"lang": "en"}                     equal; of a list in the metadata: one of it
//! {"year": {"gte": 1990, "lt": 2000}, "lang": {"in": ["en", "de"]}, "draft": {"exists": false}, "kind": {"ne": "table"}}
//! ```
//!
//! All conditions have to hold. A field inside an object is named with dots: `source.page`. `id` and `title` are the passage's
//! own.

use serde_json::{Map, Value};

use crate::Passage;

/// Maximum number of conditions of a filter.
const MAX_CONDITIONS: usize = 100;
/// Maximum size of a filter, in bytes of JSON.
const MAX_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    conditions: Vec<Condition>,
    /// The filter's text: equal texts filter equally.
    text: String,
}

#[derive(Debug, Clone, PartialEq)]
struct Condition {
    field: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    Is(Value),
    IsNot(Value),
    In(Vec<Value>),
    Exists(bool),
    /// The required order of a comparison with the value, and whether equality is accepted.
    Order(std::cmp::Ordering, bool, Value),
}

impl Filter {
    /// Parses a filter; none if it has no condition.
    ///
    /// # Errors
    /// What is invalid.
    pub fn parse(filter: &Map<String, Value>) -> Result<Option<Self>, String> {
        use std::cmp::Ordering::{Greater, Less};
        let text = serde_json::to_string(filter).map_err(|error| error.to_string())?;
        if text.len() > MAX_BYTES {
            return Err(format!("the filter is larger than {} KiB", MAX_BYTES >> 10));
        }
        let mut conditions = Vec::new();
        for (field, wanted) in filter {
            let mut add = |test| conditions.push(Condition { field: field.clone(), test });
            let Value::Object(tests) = wanted else {
                add(Test::Is(wanted.clone()));
                continue;
            };
            for (name, bound) in tests {
                let bounded = |order, equal| match bound {
                    Value::Number(_) | Value::String(_) => Ok(Test::Order(order, equal, bound.clone())),
                    _ => Err(format!("{name} of the filter's {field} has to be a number or a string")),
                };
                add(match name.as_str() {
                    "eq" => Test::Is(bound.clone()),
                    "ne" => Test::IsNot(bound.clone()),
                    "in" => {
                        Test::In(bound.as_array().ok_or_else(|| format!("in of the filter's {field} has to be a list"))?.clone())
                    }
                    "exists" => Test::Exists(
                        bound.as_bool().ok_or_else(|| format!("exists of the filter's {field} has to be true or false"))?,
                    ),
                    "gt" => bounded(Greater, false)?,
                    "gte" => bounded(Greater, true)?,
                    "lt" => bounded(Less, false)?,
                    "lte" => bounded(Less, true)?,
                    other => {
                        return Err(format!(
                            "the filter's {field} has {other:?}; there are eq, ne, in, exists, gt, gte, lt and lte"
                        ));
                    }
                });
            }
        }
        if conditions.len() > MAX_CONDITIONS {
            return Err(format!("the filter has more than {MAX_CONDITIONS} conditions"));
        }
        Ok((!conditions.is_empty()).then_some(Self { conditions, text }))
    }

    /// The key that distinguishes it from other filters.
    pub fn key(&self) -> &str {
        &self.text
    }

    pub fn admits(&self, passage: &Passage) -> bool {
        self.conditions.iter().all(|condition| match condition.field.as_str() {
            "id" => condition.test.holds(Some(&Value::from(passage.id.as_str()))),
            "title" => condition.test.holds(Some(&Value::from(passage.title.as_str()))),
            field => condition.test.holds(field_of(&passage.metadata, field)),
        })
    }
}

fn field_of<'a>(metadata: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    metadata.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        field_of(metadata.get(outer)?.as_object()?, inner)
    })
}

fn equal(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Number(found), Value::Number(wanted)) => found == wanted || found.as_f64() == wanted.as_f64(),
        (Value::Array(found), wanted) if !wanted.is_array() => found.iter().any(|one| equal(one, wanted)),
        _ => found == wanted,
    }
}

impl Test {
    fn holds(&self, found: Option<&Value>) -> bool {
        let found = found.filter(|value| !value.is_null());
        match self {
            Self::Exists(wanted) => found.is_some() == *wanted,
            Self::Is(Value::Null) => found.is_none(),
            Self::IsNot(Value::Null) => found.is_some(),
            Self::Is(wanted) => found.is_some_and(|found| equal(found, wanted)),
            Self::IsNot(wanted) => !found.is_some_and(|found| equal(found, wanted)),
            Self::In(wanted) => found.is_some_and(|found| wanted.iter().any(|one| equal(found, one))),
            Self::Order(order, or_equal, bound) => {
                let compared = match (found, bound) {
                    (Some(Value::Number(found)), Value::Number(bound)) => {
                        found.as_f64().zip(bound.as_f64()).and_then(|(found, bound)| found.partial_cmp(&bound))
                    }
                    (Some(Value::String(found)), Value::String(bound)) => Some(found.cmp(bound)),
                    _ => None,
                };
                compared.is_some_and(|compared| compared == *order || (*or_equal && compared.is_eq()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn admits(filter: Value, passage: Value) -> bool {
        let passage = Passage::from_record(passage, None).unwrap();
        Filter::parse(filter.as_object().unwrap()).unwrap().is_none_or(|filter| filter.admits(&passage))
    }

    #[test]
    fn conditions_hold_or_do_not() {
        let passage = json!({"id": "p1", "text": "x", "title": "T", "metadata": {"year": 1995, "lang": "en", "tags": ["a", "b"], "source": {"page": 3}}});
        for (filter, wanted) in [
            (json!({}), true),
            (json!({"lang": "en", "year": 1995.0}), true),
            (json!({"lang": "de"}), false),
            (json!({"tags": "b"}), true),
            (json!({"tags": {"in": ["c", "a"]}}), true),
            (json!({"tags": "c"}), false),
            (json!({"source.page": {"lte": 3}}), true),
            (json!({"year": {"gte": 1990, "lt": 1995}}), false),
            (json!({"year": {"gt": "1990"}}), false),
            (json!({"lang": {"gte": "e", "lt": "f"}}), true),
            (json!({"draft": {"exists": false}, "lang": {"exists": true}}), true),
            (json!({"draft": null}), true),
            (json!({"lang": {"ne": "en"}}), false),
            (json!({"draft": {"ne": true}}), true),
            (json!({"id": {"in": ["p1", "p2"]}, "title": "T"}), true),
        ] {
            assert_eq!(admits(filter.clone(), passage.clone()), wanted, "{filter}");
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for filter in [
            json!({"a": {"like": 1}}),
            json!({"a": {"in": 1}}),
            json!({"a": {"gt": []}}),
            json!({"a": {"exists": 1}}),
            json!({"a": "x".repeat(MAX_BYTES)}),
        ] {
            assert!(Filter::parse(filter.as_object().unwrap()).is_err(), "{filter}");
        }
    }
}
