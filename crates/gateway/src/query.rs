//! Queries of requests to Arenite's own interfaces, compared with the descriptions of their routes. What a route does not know is
//! refused, so that a mistyped filter selects nothing by accident.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::path::query_pairs;
use crate::refusal::Refusal;

/// A parameter of a query: its name, its kind and its meaning.
///
/// A kind is a type of JSON Schema, `date-time`, or values separated by `|`. With `[]` at its end, the parameter may be repeated.
pub(crate) type Query = (&'static str, &'static str, &'static str);

/// How often a parameter may be repeated.
pub(crate) const MAX_VALUES: usize = 32;
/// The most characters of a name or a value that a refusal repeats.
const MAX_SHOWN: usize = 80;

/// Checks names and values. Handlers check what depends on more than one value.
pub(crate) fn check(parameters: &[Query], query: Option<&str>) -> Result<(), Refusal> {
    let mut counts = vec![0; parameters.len()];
    for (name, value) in query_pairs(query.unwrap_or_default()) {
        let Some(at) = parameters.iter().position(|(known, ..)| *known == name) else {
            return Err(unknown(parameters, &name));
        };
        let (name, kind, _) = parameters[at];
        counts[at] += 1;
        match kind.strip_suffix("[]") {
            None if counts[at] > 1 => return Err(Refusal::bad_request(format!("{name} is given more than once"))),
            Some(_) if counts[at] > MAX_VALUES => {
                return Err(Refusal::bad_request(format!("{name} is given more than {MAX_VALUES} times")));
            }
            _ => check_value(name, kind.trim_end_matches("[]"), &value)?,
        }
    }
    Ok(())
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

fn unknown(parameters: &[Query], name: &str) -> Refusal {
    let known = parameters.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
    let refusal = Refusal::bad_request(format!("unknown query parameter {:?}", shown(name)));
    refusal.hint(if known.is_empty() { "this route takes none".to_owned() } else { format!("this route takes {known}") })
}

fn check_value(name: &str, kind: &str, value: &str) -> Result<(), Refusal> {
    let (is_valid, expected) = match kind {
        "string" => return Ok(()),
        "integer" => (value.parse::<u64>().is_ok(), "is no number".to_owned()),
        "boolean" => (matches!(value, "true" | "false"), "is neither true nor false".to_owned()),
        "date-time" => (value.parse::<Timestamp>().is_ok(), "is no time in RFC 3339, such as 2026-01-31T00:00:00Z".to_owned()),
        values => (values.split('|').any(|known| known == value), format!("is none of {}", values.replace('|', ", "))),
    };
    if is_valid { Ok(()) } else { Err(Refusal::bad_request(format!("{name} {:?} {expected}", shown(value)))) }
}

/// A parameter for the OpenAPI document.
pub(crate) fn described((name, kind, meaning): &Query) -> Value {
    let one = match kind.trim_end_matches("[]") {
        "date-time" => json!({ "type": "string", "format": "date-time" }),
        values if values.contains('|') => json!({ "type": "string", "enum": values.split('|').collect::<Vec<_>>() }),
        kind => json!({ "type": kind }),
    };
    let schema = if kind.ends_with("[]") { json!({ "type": "array", "items": one, "maxItems": MAX_VALUES }) } else { one };
    json!({ "name": name, "in": "query", "required": false, "description": meaning, "schema": schema })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMETERS: &[Query] = &[
        ("name", "string", ""),
        ("limit", "integer", ""),
        ("follow", "boolean", ""),
        ("since", "date-time", ""),
        ("state", "running|paused[]", ""),
        ("order", "oldest|newest", ""),
    ];

    #[test]
    fn what_a_route_does_not_know_is_refused() {
        for good in [
            "",
            "name=&limit=0",
            "follow=true&since=2026-01-31T00:00:00Z",
            "state=running&state=paused&state=running",
            "order=newest",
            "%6eame=x",
        ] {
            check(PARAMETERS, Some(good)).unwrap();
        }
        for (bad, said) in [
            ("nmae=x", "\"nmae\""),
            ("name", "more than once"),
            ("limit=-1", "limit"),
            ("limit=1e3", "number"),
            ("limit=", "number"),
            ("follow=1", "true nor false"),
            ("since=yesterday", "RFC 3339"),
            ("state=on", "running, paused"),
            ("state=running,paused", "running, paused"),
            ("order=newest&order=oldest", "more than once"),
            (&"state=paused&".repeat(MAX_VALUES + 1), "more than 32"),
        ] {
            let query = if bad == "name" { "name=a&name=b" } else { bad };
            let refused = check(PARAMETERS, Some(query)).unwrap_err();
            assert!(refused.status == 400 && refused.message.contains(said), "{bad}: {}", refused.message);
        }
        let refused = check(PARAMETERS, Some("x=1")).unwrap_err();
        assert_eq!(refused.hint.unwrap(), "this route takes name, limit, follow, since, state, order");
        assert_eq!(check(&[], Some("x=1")).unwrap_err().hint.unwrap(), "this route takes none");
    }

    #[test]
    fn a_repeatable_parameter_is_an_array() {
        let schema = &described(&PARAMETERS[4])["schema"];
        assert_eq!(
            *schema,
            json!({ "type": "array", "items": { "type": "string", "enum": ["running", "paused"] }, "maxItems": 32 })
        );
        assert_eq!(described(&PARAMETERS[3])["schema"], json!({ "type": "string", "format": "date-time" }));
    }
}
