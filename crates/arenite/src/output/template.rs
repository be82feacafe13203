//! Templates for the output of entries: text with fields, such as `{{.name}} is {{.state}}`.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde_json::Value;

use crate::failure::Failure;
use crate::names::nearest;

/// A template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field {
        /// Names of fields and indices of lists, from the outside in. Empty: the entry itself.
        path: Vec<String>,
        /// Also texts are written as JSON.
        as_json: bool,
    },
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            parts.push(Part::Text(unescaped(before)));
            let (inner, after) =
                after.split_once("}}").ok_or_else(|| format!("a field in {text:?} has no end: write {{{{.name}}}}"))?;
            parts.push(field(inner.trim())?);
            rest = after;
        }
        parts.push(Part::Text(unescaped(rest)));
        Ok(Self(parts))
    }
}

fn field(inner: &str) -> Result<Part, String> {
    let (as_json, named) = inner.strip_prefix("json ").map_or((false, inner), |named| (true, named.trim()));
    let invalid = || format!("{{{{{inner}}}}} is no field: write {{{{.name}}}}, {{{{.spec.image}}}} or {{{{json .labels}}}}");
    let path = named.strip_prefix('.').ok_or_else(invalid)?;
    let path: Vec<String> = if path.is_empty() { Vec::new() } else { path.split('.').map(str::to_owned).collect() };
    let is_name = |name: &String| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '{' || c == '}');
    if path.iter().all(is_name) { Ok(Part::Field { path, as_json }) } else { Err(invalid()) }
}

/// `\n` and `\t` as what they stand for: a shell's quotes keep them as they are.
fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\t", "\t")
}

impl Template {
    /// The text of each entry.
    ///
    /// # Errors
    /// If no entry has a field of the template. Fields that only other entries have are empty.
    pub(crate) fn render(&self, entries: &[Value]) -> Result<Vec<String>, Failure> {
        for part in &self.0 {
            if let Part::Field { path, .. } = part {
                check(path, entries)?;
            }
        }
        let text = |entry: &Value| {
            let text = |part: &Part| match part {
                Part::Text(text) => text.clone(),
                Part::Field { path, as_json } => shown(path.iter().try_fold(entry, |value, name| inside(value, name)), *as_json),
            };
            self.0.iter().map(text).collect()
        };
        Ok(entries.iter().map(text).collect())
    }
}

fn shown(value: Option<&Value>, as_json: bool) -> String {
    match value {
        None | Some(Value::Null) if !as_json => String::new(),
        None => "null".to_owned(),
        Some(Value::String(text)) if !as_json => text.clone(),
        Some(value) => value.to_string(),
    }
}

fn inside<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => fields.get(name),
        Value::Array(list) => list.get(name.parse::<usize>().ok()?),
        _ => None,
    }
}

fn check(path: &[String], entries: &[Value]) -> Result<(), Failure> {
    let mut values: Vec<&Value> = entries.iter().collect();
    for (depth, name) in path.iter().enumerate() {
        let next: Vec<&Value> = values.iter().filter_map(|value| inside(value, name)).collect();
        // Lists and maps may be empty, and a value may be null: then nothing is known about what they can have.
        let is_open =
            |value: &&Value| matches!(value, Value::Null | Value::Array(_)) || value.as_object().is_some_and(|o| o.is_empty());
        if next.is_empty() && !values.is_empty() && !values.iter().all(is_open) {
            return Err(unknown(path, depth, &values));
        }
        values = next;
    }
    Ok(())
}

fn unknown(path: &[String], depth: usize, values: &[&Value]) -> Failure {
    let fields: BTreeSet<&str> =
        values.iter().filter_map(|v| v.as_object()).flat_map(|fields| fields.keys().map(String::as_str)).collect();
    let (name, outer) = (&path[depth], path[..depth].join("."));
    let place = if outer.is_empty() { String::new() } else { format!(" in .{outer}") };
    if fields.is_empty() {
        return Failure::new(format!("no field \"{name}\"{place}, which is a single value")).exit_code(2);
    }
    let meant = nearest(name, fields.iter().copied()).map_or_else(String::new, |meant| format!("did you mean \"{meant}\"? "));
    let fields: Vec<&str> = fields.into_iter().collect();
    Failure::new(format!("no field \"{name}\"{place}")).hint(format!("{meant}there are: {}", fields.join(", "))).exit_code(2)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(template: &str, entries: &[Value]) -> Result<Vec<String>, String> {
        template.parse::<Template>()?.render(entries).map_err(|failure| failure.whole())
    }

    #[test]
    fn fields_are_taken_from_each_entry() {
        let entries = [
            json!({"name": "a", "spec": {"image": "base", "ports": [80]}, "n": 1}),
            json!({"name": "b", "why": "x", "spec": {"ports": []}}),
        ];
        assert_eq!(render("{{.name}}\\t{{ .spec.image }}!", &entries).unwrap(), ["a\tbase!", "b\t!"]);
        assert_eq!(render("{{.n}}{{.why}} {{.spec.ports.0}}", &entries).unwrap(), ["1 80", "x "]);
        assert_eq!(render("{{json .name}} {{.spec.ports}}", &entries).unwrap(), ["\"a\" [80]", "\"b\" []"]);
        assert_eq!(render("{{.}}", &[json!({"a": null})]).unwrap(), ["{\"a\":null}"]);
        assert_eq!(render("{{.anything}}", &[]).unwrap(), [""; 0]);
    }

    #[test]
    fn an_unknown_field_is_named_with_those_that_there_are() {
        let entries = [json!({"name": "a", "labels": {}, "end": null, "spec": {"image": "base", "tier": "x"}})];
        assert_eq!(
            render("{{.nmae}}", &entries).unwrap_err(),
            "no field \"nmae\"; did you mean \"name\"? there are: end, labels, name, spec"
        );
        assert_eq!(render("{{.spec.zzzz}}", &entries).unwrap_err(), "no field \"zzzz\" in .spec; there are: image, tier");
        assert_eq!(render("{{.name.x}}", &entries).unwrap_err(), "no field \"x\" in .name, which is a single value");
        assert_eq!(render("{{.labels.team}}{{.end.at}}", &entries).unwrap(), [""]);
        for bad in ["{{.name", "{{name}}", "{{}}", "{{.a..b}}", "{{.a b}}"] {
            assert!(bad.parse::<Template>().is_err(), "{bad}");
        }
    }
}
